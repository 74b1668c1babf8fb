"""Primitives of two operands, element by element, and `select`."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, DType, TensorType, Type
from .checks import ALL, BITS, FLOATS, INTS, NUMERIC, differ, fail, same, tensor
from .table import Attrs, Primitive


def _select_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    pred, a, b = types
    if a is not b and a != b:
        differ("select", a, b)
    if type(pred) is not TensorType or pred.dtype is not DType.BOOL:
        fail("select", f"the predicate must be bool, not {pred}")
    if pred.shape != tensor("select", a).shape:
        fail("select", f"the predicate {pred} and the operands {a} differ in shape")
    return (a,)


def _row(name: str, kinds: tuple[DType, ...], result: DType | None = None) -> Primitive:
    return Primitive(name, same(name, kinds, result), None, None, None, lambda op: 0, operands=2)


ROWS = (
    *(_row(n, NUMERIC) for n in ("add", "sub", "mul", "max", "min", "floordiv", "mod")),
    *(_row(n, FLOATS) for n in ("div", "pow")),
    *(_row(n, BITS) for n in ("and", "or", "xor")),
    *(_row(n, INTS) for n in ("shl", "shr")),
    *(_row(n, ALL, DType.BOOL) for n in ("eq", "ne", "lt", "le")),
    Primitive("select", _select_type, None, None, None, lambda op: 0, operands=3),
)
