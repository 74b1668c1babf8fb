"""ATen's elementwise operators. Derivatives at kinks are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ....compiler import ops
from ....compiler.ir import Tensor
from .aten_row import Row

Functions: TypeAlias = dict[str, Callable[..., Any]]


def add(x: Tensor, y: Tensor, alpha: Any = 1) -> Tensor:
    return x + y if alpha == 1 else x + y * alpha


def sub(x: Tensor, y: Tensor, alpha: Any = 1) -> Tensor:
    return x - y if alpha == 1 else x - y * alpha


def rsub(x: Tensor, y: Tensor, alpha: Any = 1) -> Tensor:
    return sub(y, x, alpha)


def mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def div(x: Tensor, y: Tensor, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    if np.result_type(x, y).kind == "f":
        return np.trunc(x / y)
    return np.sign(x) * np.sign(y) * np.floor_divide(np.abs(x), np.abs(y))


def power(x: Tensor, exponent: Tensor) -> Tensor:
    if isinstance(exponent, int | float):
        if exponent == 0:
            return np.ones_like(x)
        if exponent == 1:
            return x
        if exponent == 2:
            return x * x
        if exponent == 0.5:
            return np.sqrt(x)
    return x**exponent


def neg(x: Tensor) -> Tensor:
    return -x


def rsqrt(x: Tensor) -> Tensor:
    return 1.0 / np.sqrt(x)


def reciprocal(x: Tensor) -> Tensor:
    return 1.0 / x


def sgn(x: Tensor) -> Tensor:
    return ops.stop_gradient(np.sign(x))


def logical_not(x: Tensor) -> Tensor:
    return x == 0


def logical_and(x: Tensor, y: Tensor) -> Tensor:
    return (x != 0) & (y != 0)


def logical_or(x: Tensor, y: Tensor) -> Tensor:
    return (x != 0) | (y != 0)


def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    return (x != 0) ^ (y != 0)


def clamp(x: Tensor, low: Tensor = None, high: Tensor = None) -> Tensor:
    """The slope is 1 at a bound; above `high` wins."""
    if low is not None:
        x = np.where(x < low, low, x)
    if high is not None:
        x = np.where(x > high, high, x)
    return x


def clamp_max(x: Tensor, high: Tensor) -> Tensor:
    return clamp(x, None, high)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """The slope is 0 at a bound."""
    return np.where(x <= min_val, min_val, np.where(x >= max_val, max_val, x))


def relu6(x: Tensor) -> Tensor:
    return hardtanh(x, 0.0, 6.0)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return np.where(x > 0, x, x * negative_slope)


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    below = np.expm1(np.where(x > 0, 0, x) * input_scale) * (alpha * scale)
    return np.where(x > 0, x * scale, below)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(x, alpha, 1.0, 1.0 / alpha)


def selu(x: Tensor) -> Tensor:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return ops.gelu(x, approximate == "tanh")


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x * beta
    inside = np.where(scaled > threshold, 0, scaled)
    return np.where(scaled > threshold, x, np.log1p(np.exp(inside)) / beta)


def log_sigmoid(x: Tensor) -> Tensor:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def mish(x: Tensor) -> Tensor:
    return x * np.tanh(softplus(x))


def hardsigmoid(x: Tensor) -> Tensor:
    return hardtanh(x + 3.0, 0.0, 6.0) / 6.0


def hardswish(x: Tensor) -> Tensor:
    """The slope is 0 at -3 and 1 at 3."""
    return np.where(x <= -3.0, 0, np.where(x < 3.0, x * (x + 3.0) / 6.0, x))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return np.where((x >= -lambd) & (x <= lambd), 0, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    return np.where(x <= threshold, value, x)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    return ops.glu(x, dim)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """weight: of the shape that broadcasts to x, or one number a channel (axis 1)."""
    if weight.ndim == 1 and x.ndim > 1:
        weight = weight.reshape(1, -1, *[1] * (x.ndim - 2))
    if x.ndim == 0:
        weight = weight.reshape(())
    return np.where(x > 0, x, x * weight)


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    nothing = (x == 0) & ~np.isnan(y)
    return np.where(nothing, x * 0, x * np.log(np.where(nothing, 1, y)))


def entr(x: Tensor) -> Tensor:
    inside = np.where(x > 0, x, 1)
    return np.where(
        x > 0, -x * np.log(inside), np.where(x == 0, x * 0, np.where(x < 0, -np.inf, x))
    )


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    if eps is not None:
        x = clamp(x, eps, 1.0 - eps)
    return np.log(x / (1.0 - x))


def erfc(x: Tensor) -> Tensor:
    return 1.0 - ops.erf(x)


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return np.where(condition, x, y)


def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return np.where(mask, np.asarray(value).astype(x.dtype), x)


def lerp(x: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    return np.where(np.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))


def addcmul(x: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Tensor:
    return x + first * second * value


def addcdiv(x: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Tensor:
    return x + first / second * value


def fmod(x: Tensor, y: Tensor) -> Tensor:
    return np.fmod(x, y)


def cast(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Tensor:
    """To another element type; bools say what is not zero."""
    if dtype is None:
        return x
    return x != 0 if np.dtype(dtype).kind == "b" else np.asarray(x).astype(dtype)


def same(x: Tensor) -> Tensor:
    return x


def detach(x: Tensor) -> Tensor:
    return ops.stop_gradient(x)


def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if x.dtype.kind != "f":
        return x
    limits = np.finfo(x.dtype)
    x = np.where(np.isnan(x), 0.0 if nan is None else nan, x)
    x = np.where(x == np.inf, float(limits.max) if posinf is None else posinf, x)
    return np.where(x == -np.inf, float(limits.min) if neginf is None else neginf, x)


def round_half_even(x: Tensor, decimals: int = 0) -> Tensor:
    if decimals == 0:
        return np.round(x)
    scale = 10.0**decimals
    return np.round(x * scale) / scale


def frac(x: Tensor) -> Tensor:
    return x - np.trunc(x)


def sinc(x: Tensor) -> Tensor:
    return np.sinc(x)


def exp2(x: Tensor) -> Tensor:
    return np.exp(x * math.log(2.0))


_FLOAT: Functions = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp,
    "expm1": np.expm1, "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2,
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "erf": ops.erf, "sigmoid": ops.sigmoid, "rsqrt": rsqrt, "reciprocal": reciprocal,
    "erfc": erfc, "exp2": exp2, "sinc": sinc, "logit": logit, "special_entr": entr,
    "deg2rad": np.deg2rad, "rad2deg": np.rad2deg, "silu": ops.silu, "mish": mish, "gelu": gelu,
    "softplus": softplus, "hardsigmoid": hardsigmoid, "hardswish": hardswish,
    "hardshrink": hardshrink, "softshrink": softshrink, "selu": selu, "celu": celu, "elu": elu,
    "leaky_relu": leaky_relu, "log_sigmoid": log_sigmoid,
}  # fmt: skip
_SAME: Functions = {
    "abs": np.abs, "neg": neg, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "round": round_half_even, "sign": sgn, "sgn": sgn, "relu": ops.relu, "relu6": relu6,
    "hardtanh": hardtanh, "threshold": threshold, "square": np.square, "positive": same,
    "bitwise_not": np.invert, "nan_to_num": nan_to_num, "frac": frac, "fix": np.trunc,
}  # fmt: skip
_BOOL: Functions = {
    "isinf": np.isinf, "isnan": np.isnan, "isfinite": np.isfinite, "logical_not": logical_not,
    "isposinf": np.isposinf, "isneginf": np.isneginf, "signbit": np.signbit,
}  # fmt: skip
_SAME_PAIRS: Functions = {
    "add": add, "sub": sub, "rsub": rsub, "mul": mul, "fmod": fmod, "remainder": np.remainder,
    "maximum": np.maximum, "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "__and__": np.bitwise_and, "__or__": np.bitwise_or, "__xor__": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift,
    "__lshift__": np.left_shift, "__rshift__": np.right_shift, "clamp_min": clamp,
    "clamp_max": clamp_max, "floor_divide": np.floor_divide, "copysign": np.copysign,
    "heaviside": np.heaviside, "hypot": np.hypot, "gcd": np.gcd, "lcm": np.lcm,
    "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2, "nextafter": np.nextafter,
}  # fmt: skip
_BOOL_PAIRS: Functions = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": logical_and, "logical_or": logical_or,
    "logical_xor": logical_xor,
}  # fmt: skip

ROWS: dict[str, Row] = {
    **{name: Row(function, "float", layout="pointwise") for name, function in _FLOAT.items()},
    **{name: Row(function, "same", layout="pointwise") for name, function in _SAME.items()},
    **{name: Row(function, "bool", layout="pointwise") for name, function in _BOOL.items()},
    **{
        name: Row(function, "same", 2, layout="pointwise") for name, function in _SAME_PAIRS.items()
    },
    **{
        name: Row(function, "bool", 2, layout="pointwise") for name, function in _BOOL_PAIRS.items()
    },
    "glu": Row(glu, "same"),
    "div": Row(div, "float", 2, layout="pointwise"),
    "div.Tensor_mode": Row(div, "same", 2, layout="pointwise"),
    "div.Scalar_mode": Row(div, "same", 2, layout="pointwise"),
    "max.other": Row(np.maximum, "same", 2, layout="pointwise"),
    "min.other": Row(np.minimum, "same", 2, layout="pointwise"),
    "pow": Row(power, "long", 2, layout="pointwise"),
    "atan2": Row(np.arctan2, "float", 2, layout="pointwise"),
    "xlogy": Row(xlogy, "float", 2, layout="pointwise"),
    "clamp": Row(clamp, "same", 3, layout="pointwise"),
    "prelu": Row(prelu),
    "_prelu_kernel": Row(prelu),
    "where": Row(where, layout="pointwise"),
    "masked_fill": Row(masked_fill, layout="pointwise"),
    "lerp": Row(lerp, "same", 3, layout="pointwise"),
    "addcmul": Row(addcmul, "same", 3, layout="pointwise"),
    "addcdiv": Row(addcdiv, "float", 3, layout="pointwise"),
    "_to_copy": Row(cast, layout="pointwise"),
    "clone": Row(same, layout="pointwise"),
    "alias": Row(same, layout="pointwise"),
    "lift_fresh_copy": Row(same, layout="pointwise"),
    "detach": Row(detach, layout="pointwise"),
    "detach_": Row(detach, layout="pointwise"),
    "sym_numel": Row(np.size),
}
