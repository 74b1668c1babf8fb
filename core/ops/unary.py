"""Primitives of one operand, element by element."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, DType, TensorType, Type
from .checks import ALL, BITS, FLOATS, NUMERIC, dtype_of, fail, same, tensor
from .table import Attrs, Primitive


def _convert_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    return (TensorType(dtype_of("convert", attrs), tensor("convert", types[0]).shape),)


def _bitcast_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("bitcast", types[0], NUMERIC)
    dtype = dtype_of("bitcast", attrs, NUMERIC)
    if dtype.itemsize != x.dtype.itemsize:
        fail("bitcast", f"{x} and {dtype.value} differ in width", "use convert")
    return (TensorType(dtype, x.shape),)


def _row(name: str, kinds: tuple[DType, ...], result: DType | None = None) -> Primitive:
    return Primitive(name, same(name, kinds, result), None, None, None, lambda op: 0, operands=1)


ROWS = (
    *(_row(n, NUMERIC) for n in ("neg", "abs", "sign")),
    *(
        _row(n, FLOATS)
        for n in (
            *("floor", "ceil", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt"),
            *("sin", "cos", "tanh", "sigmoid", "erf"),
        )
    ),
    _row("not", BITS),
    _row("is_finite", FLOATS, DType.BOOL),
    _row("stop_gradient", ALL),
    Primitive(
        "convert", _convert_type, None, None, None, lambda op: 0, attrs=("dtype",), operands=1
    ),
    Primitive(
        "bitcast", _bitcast_type, None, None, None, lambda op: 0, attrs=("dtype",), operands=1
    ),
)
