"""Primitives of two operands, element by element, and `select`.

In the partial derivatives x and y are the operands, i the one that is meant (0 is x) and g what is
multiplied in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import Array, Block, Builder, DType, Op, TensorType, Type, Value
from .rules import (
    Partial,
    diagonal,
    each,
    each_in_f64,
    filled,
    number,
    per_element,
    zeros_like,
)
from .table import Attrs, Maybe, Primitive, ReferenceRule
from .type_checks import ALL, BITS, FLOATS, INTS, NUMERIC, differ, fail, same, tensor
from .unary import FUNCTION_COST


def _add(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    return g


def _sub(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    return b("neg", g) if i else g


def _mul(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    return b("mul", g, op.operands[1 - i])


def _div(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    scaled = b("div", g, op.operands[1])
    return b("neg", b("mul", scaled, op.result)) if i else scaled


def _mod(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    """mod(x, y) = x - y * floordiv(x, y), and floordiv is flat."""
    return b("neg", b("mul", g, b("floordiv", *op.operands))) if i else g


def _extreme(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    """All of g to the operand that was chosen, half to each at a tie. One rule for `max` and `min`.

    By `select`, not by a product, so that an infinite g does not become NaN where it does not go.
    """
    chosen, other = op.operands[i], op.operands[1 - i]
    wins = b("lt", other, chosen) if op.name == "max" else b("lt", chosen, other)
    half = b("select", b("eq", *op.operands), b("mul", g, number(b, g, 0.5)), zeros_like(b, g))
    return b("select", wins, g, half)


def _pow(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    """d(x^y)/dx = y x^(y-1) and d(x^y)/dy = x^y log x, with the care that zeros need.

    Where y = 0 the first is 0 even at x = 0, so the exponent there must not be -1. Where x = 0 the
    second is taken as 0 (its limit for y > 0), so the logarithm must not see 0.
    """
    x, y = op.operands
    one, zero = number(b, x, 1), zeros_like(b, x)
    if i == 0:
        exponent = b("select", b("eq", y, zero), one, b("sub", y, one))
        return b("mul", g, b("mul", y, b("pow", x, exponent)))
    base = b("select", b("eq", x, zero), one, x)
    return b("mul", g, b("mul", op.result, b("log", base)))


def _atan2(b: Builder, op: Op, i: int, g: Value) -> Maybe:
    """The angle of (x, y), taken as atan2(y, x), turns by (x dy - y dx) / (x^2 + y^2)."""
    y, x = op.operands
    square = b("add", b("mul", y, y), b("mul", x, x))
    turned = b("div", b("mul", g, op.operands[1 - i]), square)
    return b("neg", turned) if i else turned


def _select_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    pred, a, b = types
    if a is not b and a != b:
        differ("select", a, b)
    if type(pred) is not TensorType or pred.dtype is not DType.BOOL:
        fail("select", f"the predicate must be bool, not {pred}")
    if pred.shape != tensor("select", a).shape:
        fail("select", f"the predicate {pred} and the operands {a} differ in shape")
    return (a,)


def _select_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (g,), pred = cotangents, op.operands[0]
    if g is None:
        return (None, None, None)
    zero = zeros_like(b, g)
    return (None, b("select", pred, g, zero), b("select", pred, zero, g))


def _select_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if tangents[1] is None and tangents[2] is None:
        return (None,)
    pred = op.operands[0]
    _, if_true, if_false = filled(b, op, (pred, *tangents[1:]))
    return (b("select", pred, if_true, if_false),)


def _smooth(
    name: str,
    kinds: tuple[DType, ...],
    reference: ReferenceRule,
    partial: Partial,
    c: str,
    operations: int = 1,
) -> Primitive:
    vjp, jvp = diagonal(partial)
    cost = per_element(operations)
    return Primitive(name, same(name, kinds), reference, vjp, jvp, cost, c, operands=2)


def _power(x: Array, y: Array) -> Any:
    """np.power, which takes a square root where its exponent is a 0-d 0.5."""
    return np.power(x.reshape(-1), y.reshape(-1)).reshape(x.shape)


def _flat(
    name: str,
    kinds: tuple[DType, ...],
    reference: ReferenceRule,
    c: str,
    result: DType | None = None,
    operations: int = 1,
) -> Primitive:
    """A row of a primitive whose derivative is zero wherever it has one."""
    rule = same(name, kinds, result)
    return Primitive(name, rule, reference, None, None, per_element(operations), c, operands=2)


_SELECT = (_select_back, _select_forward, per_element(1), "({0} ? {1} : {2})")
#: A division with its remainder made to follow the divisor's sign.
_DIVISION_COST = 4

# In C, a shift by the width or more is undefined; NumPy's result is as if by infinite precision.
# The count is masked for the branch not taken, which a vectorised select still computes.
_IN_WIDTH = "(uint64_t){1} < 8 * sizeof({t})"
_COUNT = "({1} & (8 * sizeof({t}) - 1))"
_LEFT, _RIGHT = f"({{t}})({{w}}{{0}} << {_COUNT})", f"({{t}})({{0}} >> {_COUNT})"

ROWS = (
    _smooth("add", NUMERIC, each(np.add), _add, "({t})({w}{0} + {w}{1})"),
    _smooth("sub", NUMERIC, each(np.subtract), _sub, "({t})({w}{0} - {w}{1})"),
    _smooth("mul", NUMERIC, each(np.multiply), _mul, "({t})({w}{0} * {w}{1})"),
    _smooth("div", FLOATS, each(np.divide), _div, "({0} / {1})"),
    # The first operand where it is larger or NaN, else the second, which may be NaN.
    _smooth(
        "max", NUMERIC, each(np.maximum), _extreme, "(({0} >= {1}) | ({0} != {0}) ? {0} : {1})"
    ),
    _smooth(
        "min", NUMERIC, each(np.minimum), _extreme, "(({0} <= {1}) | ({0} != {0}) ? {0} : {1})"
    ),
    _smooth("pow", FLOATS, each_in_f64(_power), _pow, "dl_pow_{s}({0}, {1})", 2 * FUNCTION_COST),
    _smooth(
        "atan2",
        FLOATS,
        each_in_f64(np.arctan2),
        _atan2,
        "dl_atan2_{s}({0}, {1})",
        2 * FUNCTION_COST,
    ),
    _flat(
        "floordiv",
        NUMERIC,
        each(np.floor_divide),
        "dl_floordiv_{s}({0}, {1})",
        None,
        _DIVISION_COST,
    ),
    _smooth("mod", NUMERIC, each(np.remainder), _mod, "dl_mod_{s}({0}, {1})", _DIVISION_COST),
    _flat("and", BITS, each(np.bitwise_and), "({t})({0} & {1})"),
    _flat("or", BITS, each(np.bitwise_or), "({t})({0} | {1})"),
    _flat("xor", BITS, each(np.bitwise_xor), "({t})({0} ^ {1})"),
    _flat("shl", INTS, each(np.left_shift), f"({_IN_WIDTH} ? {_LEFT} : ({{t}})0)"),
    _flat(
        "shr", INTS, each(np.right_shift), f"({_IN_WIDTH} ? {_RIGHT} : ({{t}})({{0}} < 0 ? -1 : 0))"
    ),
    _flat("eq", ALL, each(np.equal), "({t})({0} == {1})", DType.BOOL),
    _flat("ne", ALL, each(np.not_equal), "({t})({0} != {1})", DType.BOOL),
    _flat("lt", ALL, each(np.less), "({t})({0} < {1})", DType.BOOL),
    _flat("le", ALL, each(np.less_equal), "({t})({0} <= {1})", DType.BOOL),
    Primitive("select", _select_type, each(np.where), *_SELECT, operands=3),
)
