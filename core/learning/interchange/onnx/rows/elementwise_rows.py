"""Operators that work element by element: arithmetic, comparisons, activations, choices."""

from __future__ import annotations

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Div: of whole numbers towards zero."""
    if a.dtype.kind == "f" or a.dtype.name == "bfloat16":
        return a / b
    if a.dtype.kind == "u":
        return a // b
    floor = a // b
    rest = a - floor * b
    return np.where((rest != 0) & ((a < 0) != (b < 0)), floor + 1, floor).astype(a.dtype)


def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Mod: with the divisor's sign, or the dividend's with `fmod`."""
    if fmod:
        return np.fmod(a, b)
    return np.remainder(a, b)


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Pow: of the base's type."""
    if base.dtype == exponent.dtype:
        return np.power(base, exponent)
    if base.dtype.kind == "f" and exponent.dtype.kind in "iu":
        return np.power(base, exponent.astype(base.dtype))
    return np.power(base, exponent).astype(base.dtype)


def reciprocal(x: Tensor) -> Tensor:
    """Reciprocal."""
    return 1 / x


def logarithm_error(x: Tensor) -> Tensor:
    """Erf, of whole numbers too."""
    if x.dtype.kind in "iu":
        return ops.erf(x.astype(np.float64)).astype(x.dtype)
    return ops.erf(x)


def clip(
    x: Tensor,
    low: Tensor = None,
    high: Tensor = None,
    *,
    min: float | None = None,
    max: float | None = None,
) -> Tensor:
    """Clip: the upper bound wins."""
    low = min if low is None else low
    high = max if high is None else high
    if low is not None:
        x = np.maximum(x, low)
    if high is not None:
        x = np.minimum(x, high)
    return x


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """LeakyRelu."""
    return np.where(x < 0, x * alpha, x)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Elu."""
    return ops.elu(x, alpha)


def selu(
    x: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Tensor:
    """Selu."""
    return gamma * ops.elu(x, alpha)


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Celu: max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    below = np.where(x > 0, 0, x)
    return np.where(x > 0, x, alpha * np.expm1(below / alpha))


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ThresholdedRelu: x above alpha, else 0."""
    return np.where(x > alpha, x, 0).astype(x.dtype)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """HardSigmoid: alpha x + beta within 0..1."""
    return np.minimum(np.maximum(x * alpha + beta, 0), 1)


def hard_swish(x: Tensor) -> Tensor:
    """HardSwish: x HardSigmoid(x) with alpha 1/6."""
    return x * np.minimum(np.maximum(x / 6.0 + 0.5, 0), 1)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gelu, exact or by tanh."""
    return ops.gelu(x, approximate == "tanh")


def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Swish: x sigmoid(alpha x)."""
    return x * ops.sigmoid(x * alpha)


def shrink(x: Tensor, *, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    """Shrink: towards zero by the bias outside +-lambd, zero within."""
    moved = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, x * 0))
    return moved.astype(x.dtype)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """PRelu; the slope broadcasts to x."""
    return np.where(x < 0, x * slope, x)


def sign(x: Tensor) -> Tensor:
    """Sign, 0 for 0."""
    return np.sign(x)


def is_infinite(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """IsInf."""
    found = np.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


def bit_shift(x: Tensor, places: Tensor, *, direction: str) -> Tensor:
    """BitShift; by as many places as bits, or more: zero, or -1 of a negative number."""
    bits = x.dtype.itemsize * 8
    near = np.minimum(places, bits - 1).astype(x.dtype)
    moved = x << near if direction == "LEFT" else x >> near
    if direction == "RIGHT" and x.dtype.kind == "i":
        return moved
    return np.where(places < bits, moved, 0).astype(x.dtype)


def total(*values: Tensor) -> Tensor:
    """Sum, of any number of tensors."""
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def average(*values: Tensor) -> Tensor:
    """Mean, of any number of tensors."""
    return total(*values) / len(values)


def largest(*values: Tensor) -> Tensor:
    """Max, of any number of tensors."""
    result = values[0]
    for value in values[1:]:
        result = np.maximum(result, value)
    return result


def smallest(*values: Tensor) -> Tensor:
    """Min, of any number of tensors."""
    result = values[0]
    for value in values[1:]:
        result = np.minimum(result, value)
    return result


def choose(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Where."""
    return np.where(condition, a, b)


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Equal."""
    return a == b


def drop_out(
    x: Tensor,
    ratio: Tensor = None,
    training: Tensor = None,
    *,
    outputs: tuple[bool, ...] = (True,),
    seed: int | None = None,
    is_test: int = 1,
) -> tuple[Tensor, ...]:
    """Dropout outside of training: the input, and a mask of ones. With the ratio 0, likewise."""
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise OnnxError(
            "Dropout in training mode draws random numbers of ONNX's own",
            "export the model in evaluation mode",
        )
    if len(outputs) > 1:
        return x, np.ones(x.shape, np.bool_)
    return (x,)


def identity(x: Tensor) -> Tensor:
    """Identity."""
    return x


ELEMENTWISE_ROWS: Rows = {
    "Abs": Row(np.abs, pointwise=True),
    "Acos": Row(np.arccos, pointwise=True),
    "Acosh": Row(np.arccosh, pointwise=True),
    "Add": Row(np.add, pointwise=True),
    "And": Row(np.logical_and, pointwise=True),
    "Asin": Row(np.arcsin, pointwise=True),
    "Asinh": Row(np.arcsinh, pointwise=True),
    "Atan": Row(np.arctan, pointwise=True),
    "Atanh": Row(np.arctanh, pointwise=True),
    "BitShift": Row(bit_shift, pointwise=True),
    "BitwiseAnd": Row(np.bitwise_and, pointwise=True),
    "BitwiseNot": Row(np.bitwise_not, pointwise=True),
    "BitwiseOr": Row(np.bitwise_or, pointwise=True),
    "BitwiseXor": Row(np.bitwise_xor, pointwise=True),
    "Ceil": Row(np.ceil, pointwise=True),
    "Celu": Row(celu, pointwise=True),
    "Clip": Row(clip, pointwise=True),
    "Cos": Row(np.cos, pointwise=True),
    "Cosh": Row(np.cosh, pointwise=True),
    "Div": Row(divide, pointwise=True),
    "Dropout": Row(drop_out, known=(1, 2), several=True, counted=True, pointwise=True),
    "Elu": Row(elu, pointwise=True),
    "Equal": Row(equal, pointwise=True),
    "Erf": Row(logarithm_error, pointwise=True),
    "Exp": Row(np.exp, pointwise=True),
    "Floor": Row(np.floor, pointwise=True),
    "Gelu": Row(gelu, pointwise=True),
    "Greater": Row(np.greater, pointwise=True),
    "GreaterOrEqual": Row(np.greater_equal, pointwise=True),
    "HardSigmoid": Row(hard_sigmoid, pointwise=True),
    "HardSwish": Row(hard_swish, pointwise=True),
    "Identity": Row(identity, wide=False, pointwise=True),
    "IsInf": Row(is_infinite, pointwise=True),
    "IsNaN": Row(np.isnan, pointwise=True),
    "LeakyRelu": Row(leaky_relu, pointwise=True),
    "Less": Row(np.less, pointwise=True),
    "LessOrEqual": Row(np.less_equal, pointwise=True),
    "Log": Row(np.log, pointwise=True),
    "Max": Row(largest, pointwise=True),
    "Mean": Row(average, pointwise=True),
    "Min": Row(smallest, pointwise=True),
    "Mish": Row(ops.mish, pointwise=True),
    "Mod": Row(modulo, pointwise=True),
    "Mul": Row(np.multiply, pointwise=True),
    "Neg": Row(np.negative, pointwise=True),
    "Not": Row(np.logical_not, pointwise=True),
    "Or": Row(np.logical_or, pointwise=True),
    "PRelu": Row(prelu),
    "Pow": Row(power, pointwise=True),
    "Reciprocal": Row(reciprocal, pointwise=True),
    "Relu": Row(ops.relu, pointwise=True),
    "Round": Row(np.rint, pointwise=True),
    "Selu": Row(selu, pointwise=True),
    "Shrink": Row(shrink, pointwise=True),
    "Sigmoid": Row(ops.sigmoid, pointwise=True),
    "Sign": Row(sign, pointwise=True),
    "Sin": Row(np.sin, pointwise=True),
    "Sinh": Row(np.sinh, pointwise=True),
    "Softplus": Row(ops.softplus, pointwise=True),
    "Softsign": Row(ops.softsign, pointwise=True),
    "Sqrt": Row(np.sqrt, pointwise=True),
    "Sub": Row(np.subtract, pointwise=True),
    "Sum": Row(total, pointwise=True),
    "Swish": Row(swish, pointwise=True),
    "Tan": Row(np.tan, pointwise=True),
    "Tanh": Row(np.tanh, pointwise=True),
    "ThresholdedRelu": Row(thresholded_relu, pointwise=True),
    "Where": Row(choose, pointwise=True),
    "Xor": Row(np.logical_xor, pointwise=True),
}
