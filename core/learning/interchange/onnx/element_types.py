"""Element types of ONNX that programs have not: bits, with the type's name.

Floats of 8 bits and fewer and whole numbers of 4 and 2 bits are held as `Coded`: their bits in an
array of u8 (whole numbers: of i32), an element each, and the name of the type, which is known.
Operators that move elements move bits; casts and quantisation give the bits a meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.errors import DelianError
from ....common.install_hint import install
from ....compiler.api import module
from ....compiler.ir import Array, DType, Tensor
from ....compiler.tree import static_field
from .onnx_errors import OnnxError

#: Element types of ONNX by number that are NumPy's (onnx.proto, TensorProto.DataType).
NUMPY_TYPES: dict[int, Any] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
}
BFLOAT16 = 16
_bfloat16: Any = DType.BF16.numpy.type if DType.BF16 in DType.here() else None
STRING = 8
BOOL = 9
#: Those that are held as bits: the name of ml_dtypes.
CODED_TYPES: dict[int, str] = {
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
    27: "float6_e2m3fn",
    28: "float6_e3m2fn",
}
#: Least and largest of the whole numbers.
SMALL_INTEGERS: dict[str, tuple[int, int]] = {
    "uint4": (0, 15),
    "int4": (-8, 7),
    "uint2": (0, 3),
    "int2": (-2, 1),
}


@module
class Coded:
    """Elements of a type that programs have not."""

    bits: Tensor  # u8[...]; of whole numbers i32[...], the numbers themselves
    kind: str = static_field(default="")

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.bits.shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """As of an array."""
        return self.bits.ndim  # type: ignore[no-any-return]


def numpy_type(element_type: int) -> Any:
    """NumPy's type of one of ONNX. Raises OnnxError for one that programs have not."""
    if element_type == BFLOAT16 and _bfloat16 is not None:
        return _bfloat16
    found = NUMPY_TYPES.get(int(element_type))
    if found is None:
        name = CODED_TYPES.get(element_type, "string" if element_type == STRING else "")
        raise OnnxError(
            f"numbers of the element type {name or element_type} are not computed with",
            "cast them to float or int32 first",
        )
    return found


def as_program_value(array: Array) -> Any:
    """An array, or a `Coded` of one whose type programs have not; strings stay as they are."""
    name = array.dtype.name
    if name in SMALL_INTEGERS:
        held = array.astype(np.int32)
        held.flags.writeable = False
        return Coded(held, name)
    if name in CODED_TYPES.values():
        held = array.view(np.uint8)
        held.flags.writeable = False
        return Coded(held, name)
    return array


def as_array(value: Any) -> Any:
    """What a program gives as an array of ONNX's types: `Coded` as arrays of ml_dtypes."""
    if isinstance(value, list | tuple):
        return [as_array(each) for each in value]
    if value is None:
        return None
    if not isinstance(value, Coded):
        return np.asarray(value)
    kind = coded_dtype(value.kind)
    if value.kind in SMALL_INTEGERS:
        return np.asarray(value.bits).astype(kind)
    return np.asarray(value.bits).view(kind)


def coded_dtype(kind: str) -> Any:
    """NumPy's type of the package ml_dtypes, which comes with onnx."""
    try:
        import ml_dtypes
    except ImportError:
        raise DelianError(
            f"arrays of {kind} need the package ml_dtypes", f"install it: {install('bf16')}"
        ) from None
    return np.dtype(getattr(ml_dtypes, kind))


def has_bfloat16(model: Any) -> bool:
    """Whether a model has inputs, tensors or casts of bf16."""
    types = [value.type.tensor_type.elem_type for value in model.graph.input]
    types += [tensor.data_type for tensor in model.graph.initializer]
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    types += [a.i for node in nodes for a in node.attribute if a.name in ("to", "dtype")]
    types += [a.t.data_type for node in nodes for a in node.attribute if a.name == "value"]
    return BFLOAT16 in types


def in_single(function: Any, *inputs: Tensor, **attributes: Any) -> Tensor:
    """A function in f32 where an input is bf16, with floats of f32 rounded to bf16 again."""
    if not any(_is_brief(x) for x in inputs):
        return function(*inputs, **attributes)
    wide = [x.astype(np.float32) if _is_brief(x) else x for x in inputs]
    results = function(*wide, **attributes)
    if isinstance(results, tuple):
        return tuple([_brief(y) for y in results])
    return _brief(results)


def _is_brief(x: Tensor) -> bool:
    if x is None or isinstance(x, Coded | list | tuple):
        return False
    return x.dtype.name == "bfloat16"  # type: ignore[no-any-return]


def _brief(y: Tensor) -> Tensor:
    return y.astype(_bfloat16) if y.dtype == np.float32 else y
