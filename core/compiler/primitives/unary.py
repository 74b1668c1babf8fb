"""Primitives of one operand by element; in derivatives x is it, y the result, g the cotangent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value
from .rules import Partial, cast, diagonal, each, each_in_f64, number, one_result, per_element
from .table import Attrs, CostRule, InferRule, Maybe, Primitive, ReferenceRule
from .type_checks import ALL, BITS, FLOATS, INTS, NUMERIC, dtype_of, fail, same, tensor

#: What an exponential, a sine and the like cost relative to an addition: about a polynomial's
#: length.
FUNCTION_COST = 10
_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)

_Slope = Callable[[Builder, Value, Value, Value], Value]


def _sigmoid(x: Array) -> Any:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _erf(x: Array) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), dtype=np.float64)


def _slope(f: _Slope) -> Partial:
    """A partial derivative from `f(builder, x, y, g)`."""

    def partial(b: Builder, op: Op, i: int, g: Value) -> Maybe:
        return f(b, op.operands[0], op.result, g)

    return partial


def _abs_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    return b("mul", g, b("sign", x))


def _sqrt_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    return b("div", b("mul", g, number(b, y, 0.5)), y)


def _tanh_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    return b("mul", g, b("sub", number(b, y, 1), b("mul", y, y)))


def _sigmoid_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    return b("mul", g, b("mul", y, b("sub", number(b, y, 1), y)))


def _erf_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    bell = b("exp", b("neg", b("mul", x, x)))
    return b("mul", g, b("mul", bell, number(b, x, _TWO_OVER_SQRT_PI)))


def _rsqrt_slope(b: Builder, x: Value, y: Value, g: Value) -> Value:
    return b("mul", g, b("mul", b("div", y, x), number(b, y, -0.5)))


def _convert_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (TensorType(dtype_of("convert", attrs), tensor("convert", types[0]).shape),)


def _bitcast_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = tensor("bitcast", types[0], NUMERIC)
    dtype = dtype_of("bitcast", attrs, NUMERIC)
    if dtype.itemsize != x.dtype.itemsize:
        fail("bitcast", f"{x} and {dtype.value} differ in width", "use convert")
    return (TensorType(dtype, x.shape),)


def _convert_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (g,), (x,) = cotangents, op.operands
    return (cast(b, g, x) if g is not None and x.dtype.is_float else None,)


def _convert_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (t,) = tangents
    return (cast(b, t, op.result) if t is not None and op.result.dtype.is_float else None,)


_CONVERT = (_convert_back, _convert_forward)


def _flat(
    name: str,
    kinds: tuple[DType, ...],
    reference: ReferenceRule,
    c: str,
    result: DType | None = None,
    cost: CostRule | None = None,
) -> Primitive:
    """A row of a primitive whose derivative is zero wherever it has one."""
    rule, cost = same(name, kinds, result), cost or per_element(1)
    return Primitive(name, rule, reference, None, None, cost, c, operands=1)


def _smooth(
    name: str,
    kinds: tuple[DType, ...],
    reference: ReferenceRule,
    slope: _Slope,
    c: str,
    cost: CostRule | None = None,
) -> Primitive:
    vjp, jvp = diagonal(_slope(slope))
    cost = cost or per_element(FUNCTION_COST)
    return Primitive(name, same(name, kinds), reference, vjp, jvp, cost, c, operands=1)


def _function(name: str, f: Callable[[Array], Array], slope: _Slope, c: str = "") -> Primitive:
    """A row of a function of floats that is computed in f64, in C by `dl_NAME_TYPE`."""
    return _smooth(name, FLOATS, each_in_f64(f), slope, c or f"dl_{name}_{{s}}({{0}})")


def _with_dtype(
    name: str, rule: InferRule, f: Callable[..., Any], cost: CostRule, c: str, *rules: Any
) -> Primitive:
    """A row of a primitive whose attribute is the result's element type."""
    vjp, jvp = rules or (None, None)
    reference = one_result(lambda x, attrs: f(x, attrs["dtype"].numpy))
    return Primitive(name, rule, reference, vjp, jvp, cost, c, attrs=("dtype",), operands=1)


_CHEAP, _FREE = per_element(1), per_element(0)

ROWS = (
    _smooth(
        "neg", NUMERIC, each(np.negative), lambda b, x, y, g: b("neg", g), "({t})(-{w}{0})", _CHEAP
    ),
    _smooth("abs", NUMERIC, each(np.abs), _abs_slope, "dl_abs_{s}({0})", _CHEAP),
    # NaN stays NaN; both zeros give +0.
    _flat("sign", NUMERIC, each(np.sign), "({0} != {0} ? {0} : ({t})(({0} > 0) - ({0} < 0)))"),
    _flat("floor", FLOATS, each(np.floor), "dl_floor_{s}({0})"),
    _flat("ceil", FLOATS, each(np.ceil), "dl_ceil_{s}({0})"),
    # To the nearest whole number, a half to the even one.
    _flat("round", FLOATS, each(np.rint), "dl_round_{s}({0})"),
    _function("exp", np.exp, lambda b, x, y, g: b("mul", g, y)),
    _function("log", np.log, lambda b, x, y, g: b("div", g, x)),
    _function("log1p", np.log1p, lambda b, x, y, g: b("div", g, b("add", x, number(b, x, 1)))),
    _function("expm1", np.expm1, lambda b, x, y, g: b("mul", g, b("add", y, number(b, y, 1)))),
    # The slope at 0 is infinite, as it is in truth: add an epsilon where it must be finite.
    _smooth("sqrt", FLOATS, each(np.sqrt), _sqrt_slope, "dl_sqrt_{s}({0})"),
    _function("rsqrt", lambda x: 1 / np.sqrt(x), _rsqrt_slope, "(1 / dl_sqrt_{s}({0}))"),
    _function("sin", np.sin, lambda b, x, y, g: b("mul", g, b("cos", x))),
    _function("cos", np.cos, lambda b, x, y, g: b("neg", b("mul", g, b("sin", x)))),
    _function("tanh", np.tanh, _tanh_slope),
    _function("sigmoid", _sigmoid, _sigmoid_slope),
    _function("erf", _erf, _erf_slope),
    _flat("not", BITS, each(np.invert), "dl_not_{s}({0})"),
    # x - x is 0 for a finite x and NaN for the others.
    _flat("is_finite", FLOATS, each(np.isfinite), "({t})({0} - {0} == 0)", DType.BOOL),
    _flat("stop_gradient", ALL, each(np.asarray), "{0}", cost=_FREE),
    # The number itself, which no pass looks through: what must stay apart hangs on it.
    _flat("opaque", INTS, each(np.asarray), "{0}"),
    # A float that the integer type cannot hold gives some integer, not the same one everywhere.
    _with_dtype(
        "convert",
        _convert_type,
        lambda x, dtype: x.astype(dtype),
        _CHEAP,
        "dl_to_{s}({0})",
        *_CONVERT,
    ),
    _with_dtype(
        "bitcast", _bitcast_type, lambda x, dtype: x.view(dtype), _FREE, "dl_bitcast_{s0}_{s}({0})"
    ),
)
