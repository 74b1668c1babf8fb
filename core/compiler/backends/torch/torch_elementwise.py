"""The primitives that work element by element, in torch.

The functions take tensors of one shape. NumPy's rules hold: integers divided by zero give 0, the
smallest divided by -1 wraps, NaN goes through `max` and `min`, and a shift by the width or more is
as if by infinite precision. What depends on the sign is given u32 and u16 as int64
(`torch_lowering`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .torch_tensors import Tensor


def sign(x: Tensor) -> Tensor:
    return torch.where(x != x, x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def absolute(x: Tensor) -> Tensor:
    return torch.abs(x) if x.dtype.is_signed else x


def negative(x: Tensor) -> Tensor:
    # 0 - x would make 0 of 0, whose negative is -0. Unsigned types have no negative in torch.
    return torch.neg(x) if x.is_floating_point() else torch.zeros_like(x) - x


def whole_division(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Quotients of integers rounded down; 1 replaces the divisors 0 and -1, which would trap."""
    minus = (y == -1) if y.dtype.is_signed else torch.zeros_like(y, dtype=torch.bool)
    safe = torch.where((y == 0) | minus, torch.ones_like(y), y)
    quotient = torch.div(x, safe, rounding_mode="floor")
    quotient = torch.where(minus, negative(x), quotient)
    return torch.where(y == 0, torch.zeros_like(x), quotient), safe


def floordiv(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.div(x, y, rounding_mode="floor")
    return whole_division(x, y)[0]


def mod(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point():
        found = torch.remainder(x, y)
        # A remainder of zero takes the divisor's sign.
        return torch.where(found == 0, torch.copysign(found, y), found)
    return torch.remainder(x, whole_division(x, y)[1])


def shift_left(x: Tensor, y: Tensor, *, width: int) -> Tensor:
    inside = (y >= 0) & (y < width)
    moved = torch.bitwise_left_shift(x, torch.where(inside, y, torch.zeros_like(y)))
    return torch.where(inside, moved, torch.zeros_like(x))


def shift_right(x: Tensor, y: Tensor, *, width: int) -> Tensor:
    inside = (y >= 0) & (y < width)
    moved = torch.bitwise_right_shift(x, torch.where(inside, y, torch.zeros_like(y)))
    outside = torch.where(x < 0, negative(torch.ones_like(x)), torch.zeros_like(x))
    return torch.where(inside, moved, outside)


def square_root(x: Tensor) -> Tensor:
    """Rounded once: on a CPU torch's own of f32 may be one unit off."""
    if x.dtype is torch.float32 and x.device.type == "cpu":
        return torch.sqrt(x.double()).float()
    return torch.sqrt(x)


def same(x: Tensor) -> Tensor:
    return x


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "neg": negative,
    "abs": absolute,
    "sign": sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": square_root,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "not": torch.bitwise_not,
    "is_finite": torch.isfinite,
    "stop_gradient": same,
    "opaque": same,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "floordiv": floordiv,
    "mod": mod,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": shift_left,
    "shr": shift_right,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "select": torch.where,
}
