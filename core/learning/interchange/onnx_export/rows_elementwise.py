"""Primitives of one, two and three operands, element by element, as operators of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ....compiler.ir import DType, Op, Value
from .export_types import ELEMENT, IN_EXTREME, UNSIGNED
from .graph_maker import OPSET_OF_BITCAST, GraphMaker

#: What a row gives: the name of its result's tensor, the names of several, the value that its
#: result is, or None where it bound them itself.
Made: TypeAlias = "str | list[str] | Value | None"
#: Writes an operation's nodes.
Row: TypeAlias = Callable[[GraphMaker, Op], Made]

_BITS_A_BYTE = 8


def plain(op_type: str, **attrs: Any) -> Row:
    """A row that is one operator of ONNX."""

    def row(g: GraphMaker, op: Op) -> str:
        return g.node(op_type, *g.together(op.operands), **attrs)

    return row


def by_type(of_bool: str, of_bits: str) -> Row:
    """A row that is one operator on bools and another on whole numbers."""

    def row(g: GraphMaker, op: Op) -> str:
        is_bool = op.operands[0].dtype is DType.BOOL
        return g.node(of_bool if is_bool else of_bits, *g.together(op.operands))

    return row


def alias(g: GraphMaker, op: Op) -> Value:
    """The operand itself."""
    return op.operands[0]


def neg(g: GraphMaker, op: Op) -> str:
    """Unsigned numbers have no Neg: 0 - x."""
    x, dtype = g.value(op.operands[0]), op.result.dtype
    if dtype.is_unsigned:
        return g.node("Sub", g.number(dtype, 0), x)
    return g.node("Neg", x)


def absolute(g: GraphMaker, op: Op) -> Made:
    """Of unsigned numbers the operand itself."""
    if op.result.dtype.is_unsigned:
        return op.operands[0]
    return g.node("Abs", g.value(op.operands[0]))


def log1p(g: GraphMaker, op: Op) -> str:
    """x log(u) / (u - 1) with u = 1 + x, exact where 1 + x rounds (Kahan; Higham 2002, 1.14.1)."""
    x, dtype = g.value(op.operands[0]), op.result.dtype
    one = g.number(dtype, 1)
    u = g.node("Add", x, one)
    log = g.node("Log", u)
    scaled = g.node("Div", g.node("Mul", log, x), g.node("Sub", u, one))
    # 1 + x = x where x is large or infinite: there the logarithm itself is right.
    near = g.where(g.node("Equal", u, x), log, scaled, dtype)
    return g.where(g.node("Equal", u, one), x, near, dtype)


def expm1(g: GraphMaker, op: Op) -> str:
    """(u - 1) x / log(u) with u = exp(x) (Higham 2002, algorithm 2 of section 1.14.1)."""
    x, dtype = g.value(op.operands[0]), op.result.dtype
    one = g.number(dtype, 1)
    u = g.node("Exp", x)
    less = g.node("Sub", u, one)
    scaled = g.node("Div", g.node("Mul", less, x), g.node("Log", u))
    # u - 1 = u where u is large, infinite or zero; -1 where u is lost next to 1.
    at_end = g.node("Or", g.node("Equal", less, u), g.node("Equal", less, g.number(dtype, -1)))
    far = g.where(at_end, less, scaled, dtype)
    return g.where(g.node("Equal", u, one), x, far, dtype)


def rsqrt(g: GraphMaker, op: Op) -> str:
    return g.node("Reciprocal", g.node("Sqrt", g.value(op.operands[0])))


def is_finite(g: GraphMaker, op: Op) -> str:
    x = g.value(op.operands[0])
    return g.node("Not", g.node("Or", g.node("IsNaN", x), g.node("IsInf", x)))


def convert(g: GraphMaker, op: Op) -> str:
    (x,) = op.operands
    kept = x.dtype is DType.BOOL or x.dtype.is_unsigned or not op.result.dtype.is_unsigned
    if not x.dtype.is_float and kept:
        g.bits[op.result] = 1 if x.dtype is DType.BOOL else x.dtype.itemsize * _BITS_A_BYTE
    return g.cast(g.value(x), x.dtype, op.result.dtype)


def bitcast(g: GraphMaker, op: Op) -> Made:
    """BitCast, of opset 26."""
    if op.operands[0].dtype is op.result.dtype:
        return op.operands[0]
    g.opset = OPSET_OF_BITCAST
    return g.node("BitCast", g.value(op.operands[0]), to=ELEMENT[op.result.dtype])


def extreme(op_type: str) -> Row:
    """Max and Min: NaN where either is, as in ONNX Runtime."""

    def row(g: GraphMaker, op: Op) -> str:
        dtype = op.result.dtype
        wide = IN_EXTREME.get(dtype, dtype)
        names = [g.cast(x, dtype, wide) for x in g.together(op.operands)]
        return g.cast(g.node(op_type, *names), wide, dtype)

    return row


def select(g: GraphMaker, op: Op) -> str:
    pred, a, b = g.together(op.operands)
    return g.where(pred, a, b, op.result.dtype)


def not_equal(g: GraphMaker, op: Op) -> str:
    return g.node("Not", g.node("Equal", *g.together(op.operands)))


def less(op_type: str) -> Row:
    """Less and LessOrEqual; bools have no order in ONNX, so they are compared as numbers."""

    def row(g: GraphMaker, op: Op) -> str:
        names = g.together(op.operands)
        if op.operands[0].dtype is DType.BOOL:
            names = [g.cast(x, DType.BOOL, DType.U8) for x in names]
        return g.node(op_type, *names)

    return row


def atan2(g: GraphMaker, op: Op) -> str:
    """The angle of y / x, turned by pi where x is negative.

    Signs of zeros count: 1 / x is below zero for -0. Two infinities are taken as ones.
    """
    dtype = op.result.dtype
    y, x = (g.value(v) for v in op.operands)
    zero, pi = g.number(dtype, 0), g.number(dtype, math.pi)
    both = g.node("And", g.node("IsInf", y), g.node("IsInf", x))
    rise = g.where(both, g.node("Sign", y), y, dtype)
    run = g.where(both, g.node("Sign", x), x, dtype)
    angle = g.node("Atan", g.node("Div", rise, run))

    def negative(v: str) -> str:
        """Also of -0."""
        below = g.node("Less", g.node("Reciprocal", v), zero)
        return g.node("Or", g.node("Less", v, zero), below)

    half = g.where(negative(y), g.node("Neg", pi), pi, dtype)
    turned = g.where(negative(x), g.node("Add", angle, half), angle, dtype)
    # 0 / 0 has no angle: 0, or pi where x is -0.
    origin = g.node("And", g.node("Equal", y, zero), g.node("Equal", x, zero))
    flat = g.where(negative(x), half, y, dtype)
    return g.where(origin, flat, turned, dtype)


def _safe_divisor(g: GraphMaker, op: Op, b: str) -> str:
    """1 for 0 and for -1, by which a processor does not divide the least number."""
    dtype, known = op.result.dtype, g.known.get(op.operands[1])
    if known is not None and known not in (0, -1):
        return b
    zero, one = g.number(dtype, 0), g.number(dtype, 1)
    bad = g.node("Equal", b, zero)
    if not dtype.is_unsigned:
        bad = g.node("Or", bad, g.node("Equal", b, g.number(dtype, -1)))
    return g.where(bad, one, b, dtype)


def floordiv(g: GraphMaker, op: Op) -> str:
    """NumPy's: rounded down; by 0 it is 0 for whole numbers."""
    dtype = op.result.dtype
    a, b = g.together(op.operands)
    if dtype.is_float:
        return _float_division(g, a, b, dtype)[0]
    zero = g.number(dtype, 0)
    divisor = _safe_divisor(g, op, b)
    quotient = g.node("Div", a, divisor)
    if not dtype.is_unsigned:
        rest = g.node("Sub", a, g.node("Mul", quotient, divisor))
        signs = g.node("Xor", g.node("Less", rest, zero), g.node("Less", divisor, zero))
        down = g.node("And", g.node("Not", g.node("Equal", rest, zero)), signs)
        quotient = g.node("Sub", quotient, g.cast(down, DType.BOOL, dtype))
        by_minus = g.node("Equal", b, g.number(dtype, -1))
        quotient = g.where(by_minus, g.node("Sub", zero, a), quotient, dtype)
    return g.where(g.node("Equal", b, zero), zero, quotient, dtype)


def mod(g: GraphMaker, op: Op) -> str:
    """NumPy's: of the divisor's sign; by 0 it is 0 for whole numbers, NaN for floats."""
    dtype = op.result.dtype
    a, b = g.together(op.operands)
    if dtype.is_float:
        return _float_division(g, a, b, dtype)[1]
    return g.node("Mod", a, _safe_divisor(g, op, b))


def _float_division(g: GraphMaker, a: str, b: str, dtype: DType) -> tuple[str, str]:
    """The quotient rounded down, and the rest, as Python has them for floats."""
    zero, one = g.number(dtype, 0), g.number(dtype, 1)
    rest = g.node("Mod", a, b, fmod=1)
    quotient = g.node("Div", g.node("Sub", a, rest), b)
    nonzero = g.node("Not", g.node("Equal", rest, zero))
    signs = g.node("Xor", g.node("Less", rest, zero), g.node("Less", b, zero))
    down = g.node("And", nonzero, signs)
    signed_zero = g.where(g.node("Less", b, zero), g.number(dtype, -0.0), zero, dtype)
    modulus = g.where(
        nonzero, g.where(down, g.node("Add", rest, b), rest, dtype), signed_zero, dtype
    )
    quotient = g.where(down, g.node("Sub", quotient, one), quotient, dtype)
    floor = g.node("Floor", quotient)
    over = g.node("Greater", g.node("Sub", quotient, floor), g.number(dtype, 0.5))
    floor = g.where(over, g.node("Add", floor, one), floor, dtype)
    plain_quotient = g.node("Div", a, b)
    # By 0 the quotient is infinite or NaN, as a division's.
    by_zero = g.node("Equal", b, zero)
    return g.where(by_zero, plain_quotient, floor, dtype), modulus


def shift(direction: str) -> Row:
    """BitShift is of unsigned numbers, and of counts below the width: NumPy's has no such bounds.

    A signed number shifts to the right as its complement does where it is negative.
    """

    def row(g: GraphMaker, op: Op) -> str:
        dtype = op.result.dtype
        bits = UNSIGNED.get(dtype, dtype)
        x, count = (g.value(v) for v in op.operands)
        width = dtype.itemsize * _BITS_A_BYTE
        counts = g.cast(count, dtype, bits)
        known = g.known.get(op.operands[1])
        safe = known is not None and 0 <= known < width
        inside = "" if safe else g.node("Less", counts, g.number(bits, width))
        zero = g.number(bits, 0)
        if not safe:
            counts = g.where(inside, counts, zero, bits)
        fill = ""
        raw = g.cast(x, dtype, bits)
        if direction == "RIGHT" and bits is not dtype:
            ones = g.number(bits, 2**width - 1)
            fill = g.where(g.node("Less", x, g.number(dtype, 0)), ones, zero, bits)
            raw = g.node("BitwiseXor", raw, fill)
        shifted = g.node("BitShift", raw, counts, direction=direction)
        if not safe:
            shifted = g.where(inside, shifted, zero, bits)
        if fill:
            shifted = g.node("BitwiseXor", shifted, fill)
        return g.cast(shifted, bits, dtype)

    return row
