"""How element types and numbers are written in C."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...ir import DType, Op
from ...primitives import PRIMITIVES

_LOCAL = {
    DType.F64: "double",
    DType.F32: "float",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I16: "int16_t",
    DType.I8: "int8_t",
    DType.U64: "uint64_t",
    DType.U32: "uint32_t",
    DType.U16: "uint16_t",
    DType.U8: "uint8_t",
    DType.BOOL: "_Bool",
    DType.F16: "uint16_t",  # their bits: they are moved and converted, no more
    DType.BF16: "uint16_t",
}

#: Integers for which the headers have no functions but where a program needs them.
MORE_INTS = frozenset((DType.I16, DType.I8, DType.U64, DType.U16))
#: The types in which sums and products of these are made. C makes an int of a number that is
#: narrower, and a product of two u16 overflows it.
_WRAPS = {
    DType.I64: "uint64_t",
    DType.I32: "uint32_t",
    DType.I16: "uint32_t",
    DType.I8: "uint32_t",
    DType.U16: "uint32_t",
}

#: A `literal` that is an int in C.
_INT = re.compile(r"\(-?\d+\)")


def local_type(dtype: DType) -> str:
    """The C type of one number."""
    return _LOCAL[dtype]


def memory_type(dtype: DType) -> str:
    """The C type of a number in memory. A bool is a byte, which compilers vectorise."""
    return "uint8_t" if dtype is DType.BOOL else _LOCAL[dtype]


def unsigned_type(dtype: DType) -> str:
    """The C type in which sums and products of numbers of a type wrap; of a float, its own."""
    return _WRAPS.get(dtype, local_type(dtype))


def wrapping(dtype: DType) -> str:
    """What stands before an operand of arithmetic: a cast where overflow would be undefined."""
    return f"({_WRAPS[dtype]})" if dtype in _WRAPS else ""


def from_memory(dtype: DType, expression: str) -> str:
    """What is read from memory, as a number: a byte of a bool need not be 0 or 1."""
    return f"{expression} != 0" if dtype is DType.BOOL else expression


def literal(value: Any, dtype: DType) -> str:
    """A number, exactly."""
    if dtype.is_half:
        return f"{int(np.asarray(value, dtype.numpy).view(np.uint16))}u"
    if dtype.is_float:
        suffix = "f" if dtype is DType.F32 else ""
        x = float(value)
        if math.isnan(x):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(x):
            return f"{'-' if x < 0 else ''}__builtin_inf{suffix}()"
        short = repr(float(np.float32(value))) if suffix else repr(x)
        if suffix:  # the shortest decimal that gives this number
            short = str(np.format_float_scientific(np.float32(value), unique=True, trim="0"))
        return f"({short}{suffix})" if x < 0 or short.startswith("-") else f"{short}{suffix}"
    x = int(value)
    if dtype is DType.I64:
        return "INT64_MIN" if x == -(2**63) else f"INT64_C({x})" if abs(x) > 2**31 else f"({x})"
    if dtype is DType.I32:
        return "INT32_MIN" if x == -(2**31) else f"({x})"
    if dtype in (DType.I16, DType.I8):
        return f"({x})"
    if dtype is DType.U64:
        return f"UINT64_C({x})"
    return f"{x}u" if dtype is DType.U32 else str(x)


def expression(op: Op, operands: list[str]) -> str:
    """One element of an elementwise operation."""
    if op.name == "convert" and op.operands[0].dtype is DType.BOOL:
        # Compilers vectorise a choice where they do not vectorise the conversion of a bool.
        one, zero = (literal(x, op.result.dtype) for x in (1, 0))
        return f"({operands[0]} ? {one} : {zero})"
    if op.name == "convert" and op.result.dtype.is_half:
        return f"dl_{op.result.dtype.value}_of_f32({operands[0]})"
    if op.name == "convert" and op.operands[0].dtype.is_half:
        return f"dl_f32_of_{op.operands[0].dtype.value}({operands[0]})"
    dtype, first = op.result.dtype, op.operands[0].dtype
    if op.name == "convert" and first.is_float and dtype.is_int:
        return f"dl_{dtype.value}_of_{first.value}({operands[0]})"
    if op.name == "shr" and dtype is DType.I64 and _INT.fullmatch(operands[0]):
        operands = [f"(int64_t){operands[0]}", *operands[1:]]  # An int has but 32 bits to shift.
    template = PRIMITIVES[op.name].c
    assert template is not None, op.name
    return template.format(
        *operands, t=local_type(dtype), s=dtype.value, s0=first.value, w=wrapping(dtype)
    )
