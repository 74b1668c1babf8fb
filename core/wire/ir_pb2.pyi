from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    F64: _ClassVar[DType]
    F32: _ClassVar[DType]
    I64: _ClassVar[DType]
    I32: _ClassVar[DType]
    U32: _ClassVar[DType]
    U8: _ClassVar[DType]
    BOOL: _ClassVar[DType]
    BF16: _ClassVar[DType]
    F16: _ClassVar[DType]
    I16: _ClassVar[DType]
    I8: _ClassVar[DType]
    U64: _ClassVar[DType]
    U16: _ClassVar[DType]
DTYPE_UNSPECIFIED: DType
F64: DType
F32: DType
I64: DType
I32: DType
U32: DType
U8: DType
BOOL: DType
BF16: DType
F16: DType
I16: DType
I8: DType
U64: DType
U16: DType

class Program(_message.Message):
    __slots__ = ("schema", "name", "primitives", "types", "blocks", "param_names", "result_names", "donated", "files", "spans")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMITIVES_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PARAM_NAMES_FIELD_NUMBER: _ClassVar[int]
    RESULT_NAMES_FIELD_NUMBER: _ClassVar[int]
    DONATED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    schema: int
    name: str
    primitives: _containers.RepeatedCompositeFieldContainer[Primitive]
    types: _containers.RepeatedCompositeFieldContainer[Type]
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    param_names: _containers.RepeatedScalarFieldContainer[str]
    result_names: _containers.RepeatedScalarFieldContainer[str]
    donated: _containers.RepeatedScalarFieldContainer[int]
    files: _containers.RepeatedScalarFieldContainer[str]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, schema: _Optional[int] = ..., name: _Optional[str] = ..., primitives: _Optional[_Iterable[_Union[Primitive, _Mapping]]] = ..., types: _Optional[_Iterable[_Union[Type, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., param_names: _Optional[_Iterable[str]] = ..., result_names: _Optional[_Iterable[str]] = ..., donated: _Optional[_Iterable[int]] = ..., files: _Optional[_Iterable[str]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Primitive(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("tensor", "list_of", "lanes")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_OF_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    tensor: TensorType
    list_of: int
    lanes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[_Union[TensorType, _Mapping]] = ..., list_of: _Optional[int] = ..., lanes: _Optional[_Iterable[int]] = ...) -> None: ...

class TensorType(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("params", "ops", "results")
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    params: _containers.RepeatedScalarFieldContainer[int]
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    results: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, params: _Optional[_Iterable[int]] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., results: _Optional[_Iterable[int]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("primitive", "operands", "results", "attributes", "regions", "spans")
    PRIMITIVE_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    primitive: int
    operands: _containers.RepeatedScalarFieldContainer[int]
    results: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.RepeatedCompositeFieldContainer[Attribute]
    regions: _containers.RepeatedScalarFieldContainer[int]
    spans: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, primitive: _Optional[int] = ..., operands: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Iterable[_Union[Attribute, _Mapping]]] = ..., regions: _Optional[_Iterable[int]] = ..., spans: _Optional[_Iterable[int]] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Datum
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Datum, _Mapping]] = ...) -> None: ...

class Datum(_message.Message):
    __slots__ = ("integer", "real", "truth", "text", "dtype", "type", "array", "tuple", "integers")
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    integer: int
    real: float
    truth: bool
    text: str
    dtype: DType
    type: int
    array: Array
    tuple: Tuple
    integers: Integers
    def __init__(self, integer: _Optional[int] = ..., real: _Optional[float] = ..., truth: _Optional[bool] = ..., text: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., type: _Optional[int] = ..., array: _Optional[_Union[Array, _Mapping]] = ..., tuple: _Optional[_Union[Tuple, _Mapping]] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ...) -> None: ...

class Tuple(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Datum]
    def __init__(self, items: _Optional[_Iterable[_Union[Datum, _Mapping]]] = ...) -> None: ...

class Integers(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, items: _Optional[_Iterable[int]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("type", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: int
    data: bytes
    def __init__(self, type: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("file", "line", "column", "end_line", "end_column")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    END_LINE_FIELD_NUMBER: _ClassVar[int]
    END_COLUMN_FIELD_NUMBER: _ClassVar[int]
    file: int
    line: int
    column: int
    end_line: int
    end_column: int
    def __init__(self, file: _Optional[int] = ..., line: _Optional[int] = ..., column: _Optional[int] = ..., end_line: _Optional[int] = ..., end_column: _Optional[int] = ...) -> None: ...
