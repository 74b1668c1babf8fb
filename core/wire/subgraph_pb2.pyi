from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubgraphFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBGRAPH_DONE: _ClassVar[SubgraphFailure]
    SUBGRAPH_UNKNOWN: _ClassVar[SubgraphFailure]
    SUBGRAPH_MISFIT: _ClassVar[SubgraphFailure]
    SUBGRAPH_BUSY: _ClassVar[SubgraphFailure]
    SUBGRAPH_LATE: _ClassVar[SubgraphFailure]
SUBGRAPH_DONE: SubgraphFailure
SUBGRAPH_UNKNOWN: SubgraphFailure
SUBGRAPH_MISFIT: SubgraphFailure
SUBGRAPH_BUSY: SubgraphFailure
SUBGRAPH_LATE: SubgraphFailure

class BoundaryTensor(_message.Message):
    __slots__ = ("index", "dtype", "shape", "content", "scale", "zero_point")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ZERO_POINT_FIELD_NUMBER: _ClassVar[int]
    index: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    scale: float
    zero_point: int
    def __init__(self, index: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., scale: _Optional[float] = ..., zero_point: _Optional[int] = ...) -> None: ...

class SubgraphRequest(_message.Message):
    __slots__ = ("session", "sequence", "bundle", "program", "inputs", "time_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    bundle: bytes
    program: str
    inputs: _containers.RepeatedCompositeFieldContainer[BoundaryTensor]
    time_ms: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., bundle: _Optional[bytes] = ..., program: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[BoundaryTensor, _Mapping]]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class SubgraphReply(_message.Message):
    __slots__ = ("session", "sequence", "failure", "outputs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    failure: SubgraphFailure
    outputs: _containers.RepeatedCompositeFieldContainer[BoundaryTensor]
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., failure: _Optional[_Union[SubgraphFailure, str]] = ..., outputs: _Optional[_Iterable[_Union[BoundaryTensor, _Mapping]]] = ...) -> None: ...
