"""Elementwise functions.

A choice is made by `where` on x < 0 rather than by `abs`, whose slope at 0 is 0: so an odd function
has its slope there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor

_LN2 = float(np.log(2.0))
#: Above it e^(x / 2) + 1 is e^(x / 2) in f64, and e^x is a number of f32 below it.
_FAR_EXPONENT = 80
#: Above it x + 1 is x in f64, and twice it is a number of f32.
_FAR_NUMBER = 2.0**60


def _float_type(*values: Tensor) -> Any:
    """The type that a function of floats gives: for integers one that holds all of them, or f64."""
    kind = np.result_type(*values)
    if kind.kind not in "biu":
        return kind
    return np.dtype({1: np.float16, 2: np.float32}.get(kind.itemsize, np.float64))


def _in_reach(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether e^x may be too large where its half is not, and then x / 2 in the place of x."""
    far = (x > _FAR_EXPONENT) | (x < -_FAR_EXPONENT)
    return far, np.where(far, x / 2, x)


def sinh(x: Tensor) -> Tensor:
    """(e^x - e^-x) / 2, each without its one, which would swallow a small x."""
    x = np.asarray(x, _float_type(x))
    if x.dtype == np.float16:
        return np.sinh(x.astype(np.float32)).astype(np.float16)
    far, x = _in_reach(x)
    up, down = np.expm1(x), np.expm1(-x)
    half = (up - down) / 2
    return np.where(far, half * np.maximum(up, down), half)


def cosh(x: Tensor) -> Tensor:
    x = np.asarray(x, _float_type(x))
    if x.dtype == np.float16:
        return np.cosh(x.astype(np.float32)).astype(np.float16)
    far, x = _in_reach(x)
    up, down = np.exp(x), np.exp(-x)
    half = (up + down) / 2
    return np.where(far, half * np.maximum(up, down), half)


def arcsinh(x: Tensor) -> Tensor:
    x = np.asarray(x, _float_type(x))  # The least integer has no negative.
    if x.dtype == np.float16:
        return np.arcsinh(x.astype(np.float32)).astype(np.float16)
    below = x < 0
    a = np.where(below, -x, x)
    far = a > _FAR_NUMBER
    y = np.log1p(a * (1 + np.where(far, 0, a / (1 + np.hypot(1, a)))))
    y = np.where(far, y + _LN2, y)
    return np.where(below, -y, y)


def arccosh(x: Tensor) -> Tensor:
    if _float_type(x) == np.float16:
        return np.arccosh(np.asarray(x, np.float32)).astype(np.float16)
    above = x - 1.0
    far = above > _FAR_NUMBER
    y = np.log1p(above + np.where(far, 0, np.sqrt(above) * np.sqrt(above + 2)))
    return np.where(far, y + _LN2, y)


def arctanh(x: Tensor) -> Tensor:
    if _float_type(x) == np.float16:
        return np.arctanh(np.asarray(x, np.float32)).astype(np.float16)
    x = x * 1.0
    return (np.log1p(x) - np.log1p(-x)) / 2


def cbrt(x: Tensor) -> Tensor:
    """A power, and a step of Newton's: the root of a cube is exact."""
    kind = _float_type(x)
    if kind == np.float16:
        return np.cbrt(np.asarray(x, np.float32)).astype(np.float16)
    x = np.asarray(x, kind)
    below = np.signbit(x)
    size = np.where(below, -x, x)
    root = size ** (1 / 3)
    usable = (root > 0) & np.isfinite(root)
    square = np.where(usable, root * root, 1)
    root = np.where(usable, root - (root - size / square) / 3, root)
    return np.where(below, -root, root)


def copysign(x1: Tensor, x2: Tensor) -> Tensor:
    size = np.abs(np.asarray(x1, dtype=_float_type(x1, x2)))
    return np.where(np.signbit(x2), -size, size)


def fmod(x1: Tensor, x2: Tensor) -> Tensor:
    kind = np.result_type(x1, x2)
    x1, x2 = np.asarray(x1, kind), np.asarray(x2, kind)
    if kind.kind in "iu":  # The least number has no negative.
        rest = np.remainder(x1, x2)
        return np.where((rest != 0) & ((x1 < 0) != (x2 < 0)), rest - x2, rest)
    below = np.signbit(x1)
    rest = np.remainder(np.where(below, -x1, x1), np.where(x2 < 0, -x2, x2))
    return np.where(below, -rest, rest)


def divmod(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    return np.floor_divide(x1, x2), np.remainder(x1, x2)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1.0
    whole = np.trunc(x)
    return np.where(np.isinf(x), 0, x - whole), whole


def ldexp(x1: Tensor, x2: Tensor) -> Tensor:
    kind = _float_type(x1)
    if np.result_type(x2).kind not in "bi":
        raise ProgramError("DL116", "np.ldexp takes exponents of signed integers")
    # In three steps: 2^x2 may be out of range where the result is not.
    most = 3 * {2: 15, 4: 126, 8: 1022}[kind.itemsize]
    power = np.clip(np.asarray(x2, dtype=np.int64), -most, most)
    first = power // 3
    second = (power - first) // 2
    made = np.asarray(x1, dtype=kind)
    for part in (first, second, power - first - second):
        made = made * np.exp2(np.asarray(part, dtype=kind))
    return made


def heaviside(x1: Tensor, x2: Tensor) -> Tensor:
    kind = _float_type(x1, x2)
    x, middle = np.asarray(x1, dtype=kind), np.asarray(x2, dtype=kind)
    step = np.where(x < 0, 0, np.where(x > 0, 1, middle))
    return np.where(np.isnan(x), x, step)


#: sin(y) / y = 1 - y^2 / 3! + y^4 / 5! - ..., up to y^18: right to 1e-17 where |y| < 1.
_SINC = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(10))


def sinc(x: Tensor) -> Tensor:
    """A series near 0, where the quotient's derivatives would cancel."""
    y = x * np.pi
    near = np.abs(y) < 1
    square = np.where(near, y * y, 0)
    series = _SINC[-1] * square + _SINC[-2]
    for term in _SINC[-3::-1]:
        series = series * square + term
    far = np.where(near, 1, y)
    return np.where(near, series, np.sin(far) / far)


def deg2rad(x: Tensor) -> Tensor:
    return x * (np.pi / 180)


def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / np.pi)


def logaddexp2(x1: Tensor, x2: Tensor) -> Tensor:
    kind = _float_type(x1, x2)
    return np.logaddexp(np.asarray(x1, kind) * _LN2, np.asarray(x2, kind) * _LN2) / _LN2


def fmax(x1: Tensor, x2: Tensor) -> Tensor:
    larger = np.maximum(x1, x2)
    return np.where(np.isnan(x1), x2, np.where(np.isnan(x2), x1, larger))


def fmin(x1: Tensor, x2: Tensor) -> Tensor:
    smaller = np.minimum(x1, x2)
    return np.where(np.isnan(x1), x2, np.where(np.isnan(x2), x1, smaller))


def gcd(x1: Tensor, x2: Tensor) -> Tensor:
    """Euclid's, all elements side by side."""
    _wholes(x1, x2)
    kind = np.result_type(x1, x2)
    a, b = np.broadcast_arrays(np.asarray(x1, kind), np.asarray(x2, kind))
    a, b = np.abs(a), np.abs(b)
    while np.any(b != 0):
        rest = np.remainder(a, np.where(b == 0, 1, b))
        a, b = np.where(b == 0, a, b), np.where(b == 0, b, rest)
    return np.abs(a)  # The least number stays below zero, and so may a rest by it.


def _wholes(x1: Tensor, x2: Tensor) -> None:
    """Refuses what is no integer; an int of Python's has to fit the other's type."""
    if np.result_type(x1, x2).kind not in "iu":
        raise ProgramError("DL116", "np.gcd and np.lcm take integers")
    np.minimum(x1, x2)


def lcm(x1: Tensor, x2: Tensor) -> Tensor:
    _wholes(x1, x2)
    kind = np.result_type(x1, x2)
    x1, x2 = np.asarray(x1, kind), np.asarray(x2, kind)
    g = np.gcd(x1, x2)
    return np.abs(x1) // np.where(g == 0, 1, g) * np.abs(x2)


def int_power(x1: Tensor, x2: Tensor) -> Tensor:
    """By squaring, all elements side by side; integers wrap around."""
    kind = np.result_type(x1, x2)
    base, exponent = np.broadcast_arrays(x1, x2)
    base, exponent = base.astype(kind), exponent.astype(kind)
    negative = exponent < 0
    result = np.ones(base.shape, dtype=kind)
    while np.any(exponent > 0):
        result = np.where(exponent & 1 == 1, result * base, result)
        base, exponent = base * base, exponent >> 1
    return np.where(negative, 0, result)


def isposinf(x: Tensor) -> Tensor:
    return x == np.inf


def isneginf(x: Tensor) -> Tensor:
    return x == -np.inf


def isclose(
    a: Tensor, b: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    b = b * 1.0
    near = np.abs(a - b) <= atol + rtol * np.abs(b)
    close = (near & np.isfinite(b)) | (a == b)
    return close | (np.isnan(a) & np.isnan(b)) if equal_nan else close


def allclose(
    a: Tensor, b: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    return np.all(np.isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Tensor, a2: Tensor, equal_nan: bool = False) -> Tensor:
    if np.shape(a1) != np.shape(a2):
        return False
    same = np.equal(a1, a2)
    return np.all(same | (np.isnan(a1) & np.isnan(a2)) if equal_nan else same)


def array_equiv(a1: Tensor, a2: Tensor) -> Tensor:
    sizes = zip(np.shape(a1)[::-1], np.shape(a2)[::-1], strict=False)
    if any(m != n and m != 1 and n != 1 for m, n in sizes):
        return False
    return np.all(np.equal(a1, a2))


def real(val: Tensor) -> Tensor:
    if isinstance(val, bool | int | float) and not isinstance(val, np.generic):
        return val.real
    return np.asarray(val)


def imag(val: Tensor) -> Tensor:
    if isinstance(val, bool | int | float) and not isinstance(val, np.generic):
        return val.imag
    return np.zeros_like(val)


def angle(z: Tensor, deg: bool = False) -> Tensor:
    turn = np.arctan2(0, z)
    return turn * (180 / np.pi) if deg else turn


def isreal(x: Tensor) -> Any:
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return True  # Python's comparison of its imaginary part with 0.
    return np.ones(np.shape(x), np.bool_)


def iscomplex(x: Tensor) -> Tensor:
    return np.zeros(np.shape(x), np.bool_)


def isrealobj(x: Tensor) -> bool:
    return True


def iscomplexobj(x: Tensor) -> bool:
    return False


def unwrap(
    p: Tensor, discont: Any = None, axis: int = -1, *, period: float = 6.283185307179586
) -> Tensor:
    """Jumps of more than half a period are taken out, as NumPy does it."""
    kind = np.asarray(p).dtype
    if kind.itemsize == 1 or (kind.kind in "iu" and isinstance(period, int)):
        text = f"np.unwrap of {kind} is made of differences of this type, which wrap around"
        raise ProgramError("DL116", text, hint="convert it first: x.astype(np.float64)")
    p = np.moveaxis(p, axis, -1)
    jumps = np.diff(p)  # Of integers they wrap around, and so does the size of the least one.
    steps = jumps * 1.0
    p = p * 1.0
    half = period / 2
    small = np.remainder(steps + half, period) - half
    small = np.where((small == -half) & (steps > 0), half, small)
    limit = half if discont is None else max(discont, half)
    correction = np.where(np.abs(jumps) < limit, 0, small - steps)
    tail = p[..., 1:] + np.cumsum(correction, axis=-1)
    return np.moveaxis(np.concatenate([p[..., :1], tail], axis=-1), -1, axis)


def select(condlist: Sequence[Tensor], choicelist: Sequence[Tensor], default: Tensor = 0) -> Tensor:
    if len(condlist) != len(choicelist) or not condlist:
        raise ProgramError("DL119", "np.select: as many conditions as choices, please")
    dtype = np.result_type(*choicelist, default)
    result = default
    if isinstance(default, int | float):  # NumPy makes an array of it, and casts that.
        result = np.asarray(default).astype(dtype)
    if dtype.kind == "u":
        for choice in choicelist:
            if isinstance(choice, int):
                hint = "give numbers of that type: np.uint8(3)"
                raise ProgramError("DL116", "np.select casts no int of Python's to u8", hint=hint)
    for k in reversed(range(len(condlist))):
        result = np.where(condlist[k], choicelist[k], result)
    return result


def choose(a: Tensor, choices: Sequence[Tensor], mode: str = "raise") -> Tensor:
    n, wide = len(choices), np.result_type(*choices)
    kind = np.result_type(a)
    if kind == np.uint64 or kind.kind not in "biu":
        hint = "convert it first: a.astype(np.int64)"
        raise ProgramError("DL116", f"np.choose: NumPy casts no {kind} to int64", hint=hint)
    if mode == "wrap":
        a = np.remainder(a, n)
    rows = [np.asarray(choice).astype(wide) for choice in choices]
    result = rows[0]
    for k in range(1, n):
        result = np.where(a == k if k < n - 1 else a >= k, rows[k], result)
    return result


def piecewise(
    x: Tensor, condlist: Sequence[Tensor], funclist: Sequence[Any], *args: Any, **kw: Any
) -> Tensor:
    """Every function is run on all of x."""
    if not isinstance(condlist, list | tuple):
        condlist = [condlist]
    kind = np.result_type(x)
    for condition in condlist:
        if np.shape(condition) != np.shape(x):
            hint = "np.broadcast_to(condition, x.shape) gives one of that shape"
            text = "np.piecewise takes conditions of the array's shape"
            raise ProgramError("DL115", text, hint=hint)
    for f in funclist:
        if not callable(f) and np.ndim(f):
            raise ProgramError("DL119", "np.piecewise takes functions and numbers, not arrays")
    values = [f(x, *args, **kw) if callable(f) else np.asarray(f, kind) for f in funclist]
    if len(values) not in (len(condlist), len(condlist) + 1):
        raise ProgramError("DL119", "np.piecewise: a function a condition, and one more or none")
    result = values[-1] if len(values) > len(condlist) else 0
    for k in range(len(condlist)):
        result = np.where(condlist[k], values[k], result)
    return np.asarray(result, dtype=kind)


def running(f: Callable[[Tensor, Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    """f of everything up to each element, in NumPy's order.

    A product of a part of them may overflow, or be zero, where none from the start on does.
    """
    rows = np.moveaxis(x, axis, 0)
    made = rows.copy()
    for k in range(1, len(made)):
        made[k] = f(made[k - 1], rows[k])
    return np.moveaxis(made, 0, axis)
