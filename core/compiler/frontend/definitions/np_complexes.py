"""Functions of complex numbers, on their real and imaginary parts.

Branch cuts and the signs of zeros are those of C99 (annex G) and so of NumPy and `cmath`; Kahan,
"Branch cuts for complex elementary functions", 1987. Parts have one float type. A power or quotient
at zero is that of NumPy; where NumPy's result is an infinity or NaN, derivatives are NaN too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir import Tensor

Pair = tuple[Tensor, Tensor]

_LN2 = math.log(2.0)
_LN10 = math.log(10.0)


def add(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    return a + c, b + d


def subtract(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    return a - c, b - d


def multiply(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    return a * c - b * d, a * d + b * c


def divide(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    """Smith's: by the quotient of the smaller and the larger part of the divisor."""
    wide = np.abs(c) >= np.abs(d)
    large: Tensor = np.where(wide, c, d)
    small: Tensor = np.where(wide, d, c)
    nothing = large == 0
    ratio = np.where(nothing, 0, small / np.where(nothing, 1, large))
    scale = large + small * ratio
    re = np.where(wide, a + b * ratio, a * ratio + b) / scale
    im = np.where(wide, b - a * ratio, b * ratio - a) / scale
    return re, im


def reciprocal(a: Tensor, b: Tensor) -> Pair:
    """Of zero NaN, as NumPy's."""
    re, im = divide(np.ones_like(a), np.zeros_like(a), a, b)
    return np.where((a == 0) & (b == 0), np.nan, re), im


def negative(a: Tensor, b: Tensor) -> Pair:
    return -a, -b


def positive(a: Tensor, b: Tensor) -> Pair:
    return a, b


def conjugate(a: Tensor, b: Tensor) -> Pair:
    return a, -b


def square(a: Tensor, b: Tensor) -> Pair:
    return multiply(a, b, a, b)


def absolute(a: Tensor, b: Tensor) -> Tensor:
    """Without a slope at zero, which has none."""
    nothing = (a == 0) & (b == 0)
    size = np.where(nothing, 0, np.hypot(np.where(nothing, 1, a), b))
    return np.where(np.isinf(a) | np.isinf(b), np.inf, size)


def angle(a: Tensor, b: Tensor) -> Tensor:
    return np.arctan2(b, a)


def sign(a: Tensor, b: Tensor) -> Pair:
    """z / |z|; a number of infinite size has NaN in NumPy too."""
    size = absolute(a, b)
    nothing = size == 0
    size = np.where(nothing, 1, size)
    return np.where(nothing, 0, a / size), np.where(nothing, 0, b / size)


# Powers, exponentials, logarithms


def sqrt(a: Tensor, b: Tensor) -> Pair:
    size = absolute(a, b)
    nothing = size == 0
    above, below = a >= 0, np.signbit(b)
    t = np.sqrt(np.where(nothing, 1, 0.5 * np.where(above, a, -a) + 0.5 * size))
    other = b / (2 * t)
    re = np.where(above, t, np.where(below, -other, other))
    im = np.where(above, other, np.where(below, -t, t))
    endless = np.isinf(b)
    re = np.where(endless, np.inf, np.where(nothing, 0, re))
    return re, np.where(endless | nothing, b, im)


def exp(a: Tensor, b: Tensor) -> Pair:
    """In two factors where the size alone would be too large for a float."""
    limit = 80.0 if a.dtype == np.float32 else 700.0
    low = np.minimum(a, limit)
    size, rest = np.exp(low), np.exp(a - low)
    gone = (a == -np.inf) & ~np.isfinite(b)  # e^-inf is 0, whatever the direction.
    turn = np.where(gone, 0, b)
    re = size * np.cos(turn) * rest
    im = size * np.sin(turn) * rest
    return re, np.where((b == 0) & (np.isinf(a) | np.isinf(rest)), b, im)


def log(a: Tensor, b: Tensor) -> Pair:
    return _log_size(a, b), np.arctan2(b, a)


def _log_size(a: Tensor, b: Tensor) -> Tensor:
    """log |z|; near |z| = 1 by log1p of |z|^2 - 1, of which nothing cancels."""
    wide = np.abs(a) >= np.abs(b)
    x: Tensor = np.where(wide, np.abs(a), np.abs(b))
    y: Tensor = np.where(wide, np.abs(b), np.abs(a))
    near = (x > 0.5) & (x < 2)
    u, v = np.where(near, x, 1), np.where(near, y, 0)
    size = absolute(np.where(near, 1, a), np.where(near, 0, b))
    return np.where(near, 0.5 * np.log1p((u - 1) * (u + 1) + v * v), np.log(size))


def log2(a: Tensor, b: Tensor) -> Pair:
    re, im = log(a, b)
    return re / _LN2, im / _LN2


def log10(a: Tensor, b: Tensor) -> Pair:
    re, im = log(a, b)
    return re / _LN10, im / _LN10


def log1p(a: Tensor, b: Tensor) -> Pair:
    return log(a + 1, b)


def exp2(a: Tensor, b: Tensor) -> Pair:
    return exp(a * _LN2, b * _LN2)


def expm1(a: Tensor, b: Tensor) -> Pair:
    half = np.sin(b / 2)
    return np.expm1(a) * np.cos(b) - 2 * half * half, np.exp(a) * np.sin(b)


def power(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    """e^(w log z); a power of zero is 1, 0 or NaN, as in NumPy."""
    nothing = (a == 0) & (b == 0)
    u, v = np.where(nothing, 1, a), np.where(nothing, 0, b)
    size, turn = _log_size(u, v), np.arctan2(v, u)
    real = d == 0  # No product with an infinite logarithm then.
    re, im = exp(
        np.where(real, c * size, c * size - d * turn),
        np.where(real, c * turn, c * turn + d * size),
    )
    one = (c == 0) & real
    void = np.where(c > 0, np.zeros_like(c), np.nan)
    re = np.where(one, 1, np.where(nothing, void, re))
    return re, np.where(one, 0, np.where(nothing, void, im))


def whole_power(a: Tensor, b: Tensor, n: int) -> Pair:
    """By squaring."""
    if n < 0:
        re, im = whole_power(a, b, -n)
        return reciprocal(re, im)
    made = None
    while n > 0:
        if n % 2 == 1:
            made = (a, b) if made is None else multiply(made[0], made[1], a, b)
        n = n // 2
        if n > 0:
            a, b = multiply(a, b, a, b)
    return (np.ones_like(a), np.zeros_like(a)) if made is None else made


# Trigonometry


def sinh(a: Tensor, b: Tensor) -> Pair:
    size = np.cosh(a)
    return np.sinh(a) * np.cos(b), np.where((b == 0) & np.isinf(size), b, size * np.sin(b))


def cosh(a: Tensor, b: Tensor) -> Pair:
    size = np.sinh(a)
    im = np.where((b == 0) & np.isinf(size), a * b, size * np.sin(b))
    return np.cosh(a) * np.cos(b), im


def tanh(a: Tensor, b: Tensor) -> Pair:
    """Beyond |a| = 20 the real part is 1 to the last bit, and the quotient's parts overflow."""
    far = np.abs(a) > 20
    x = np.where(far, 0, a)
    sine, cosine = np.sin(b), np.cos(b)
    up, down = np.sinh(x), np.cosh(x)
    below = np.where(far, 1, cosine * cosine + up * up)
    rest = 4 * sine * cosine * np.exp(-2 * np.where(far, np.abs(a), 20))
    re = np.where(far, np.copysign(1, a), up * down / below)
    im = np.where(far, rest, sine * cosine / below)
    return re, im


def sin(a: Tensor, b: Tensor) -> Pair:
    re, im = sinh(-b, a)
    return im, -re


def cos(a: Tensor, b: Tensor) -> Pair:
    return cosh(-b, a)


def tan(a: Tensor, b: Tensor) -> Pair:
    re, im = tanh(-b, a)
    return im, -re


def arcsin(a: Tensor, b: Tensor) -> Pair:
    p, q = sqrt(1 - a, -b)
    r, t = sqrt(1 + a, b)
    return np.arctan2(a, p * r - q * t), np.arcsinh(p * t - q * r)


def arccos(a: Tensor, b: Tensor) -> Pair:
    p, q = sqrt(1 - a, -b)
    r, t = sqrt(1 + a, b)
    return 2 * np.arctan2(p, r), np.arcsinh(r * q - t * p)


def arccosh(a: Tensor, b: Tensor) -> Pair:
    p, q = sqrt(a - 1, b)
    r, t = sqrt(a + 1, b)
    return np.arcsinh(p * r + q * t), 2 * np.arctan2(q, r)


def arctanh(a: Tensor, b: Tensor) -> Pair:
    left = a < 0
    x = np.where(left, -a, a)
    gap = 1 - x
    size = 0.25 * np.log1p(4 * x / (gap * gap + b * b))
    return np.where(left, -size, size), 0.5 * np.arctan2(2 * b, gap * (1 + x) - b * b)


def arcsinh(a: Tensor, b: Tensor) -> Pair:
    re, im = arcsin(-b, a)
    return im, -re


def arctan(a: Tensor, b: Tensor) -> Pair:
    re, im = arctanh(-b, a)
    return im, -re


# Comparison: lexicographic, as NumPy's


def equal(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a == c) & (b == d)


def not_equal(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a != c) | (b != d)


def less(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return ((a < c) & (b == b) & (d == d)) | ((a == c) & (b < d))


def less_equal(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return ((a < c) & (b == b) & (d == d)) | ((a == c) & (b <= d))


def greater(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return less(c, d, a, b)


def greater_equal(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return less_equal(c, d, a, b)


def truth(a: Tensor, b: Tensor) -> Tensor:
    """Whether a number is not zero, as `bool` and np.logical_and take it."""
    return (a != 0) | (b != 0)


def logical_not(a: Tensor, b: Tensor) -> Tensor:
    return ~truth(a, b)


def logical_and(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return truth(a, b) & truth(c, d)


def logical_or(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return truth(a, b) | truth(c, d)


def logical_xor(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return truth(a, b) ^ truth(c, d)


def isnan(a: Tensor, b: Tensor) -> Tensor:
    return np.isnan(a) | np.isnan(b)


def isinf(a: Tensor, b: Tensor) -> Tensor:
    return np.isinf(a) | np.isinf(b)


def isfinite(a: Tensor, b: Tensor) -> Tensor:
    return np.isfinite(a) & np.isfinite(b)


def maximum(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    first = greater_equal(a, b, c, d) | isnan(a, b)
    return np.where(first, a, c), np.where(first, b, d)


def minimum(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    first = less_equal(a, b, c, d) | isnan(a, b)
    return np.where(first, a, c), np.where(first, b, d)


def isclose(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    rtol: Any = 1e-05,
    atol: Any = 1e-08,
    equal_nan: bool = False,
) -> Tensor:
    near = absolute(a - c, b - d) <= atol + rtol * absolute(c, d)
    close = (near & isfinite(c, d)) | equal(a, b, c, d)
    return close | (isnan(a, b) & isnan(c, d)) if equal_nan else close


def is_close(a: Tensor, b: Tensor, c: Tensor, d: Tensor, rel_tol: Any, abs_tol: Any) -> Tensor:
    """`cmath.isclose`: relative to the larger of both."""
    size = np.maximum(absolute(a, b), absolute(c, d))
    near = absolute(a - c, b - d) <= np.maximum(rel_tol * size, abs_tol)
    return equal(a, b, c, d) | (near & isfinite(a, b) & isfinite(c, d))


def rect(r: Tensor, phi: Tensor) -> Pair:
    """`cmath.rect`."""
    return r * np.cos(phi), r * np.sin(phi)


# Reductions


def prod(a: Tensor, b: Tensor) -> Pair:
    """Over the first axis, by halves."""
    n = a.shape[0]
    if n == 0:
        return np.ones(a.shape[1:], a.dtype), np.zeros(a.shape[1:], a.dtype)
    while n > 1:
        half = n // 2
        re, im = multiply(a[:half], b[:half], a[half : 2 * half], b[half : 2 * half])
        if n % 2 == 1:
            re, im = np.concatenate([re, a[-1:]]), np.concatenate([im, b[-1:]])
        a, b = re, im
        n = half + n % 2
    return a[0], b[0]


def cumprod(a: Tensor, b: Tensor) -> Pair:
    """Along the first axis, in NumPy's order."""
    a, b = a.copy(), b.copy()
    for k in range(1, len(a)):
        a[k], b[k] = multiply(a[k - 1], b[k - 1], a[k], b[k])
    return a, b


def argmax(a: Tensor, b: Tensor, sign: int) -> Tensor:
    """The place along the first axis of the first of the greatest (least: `sign` -1), or NaN."""
    a, b = sign * a, sign * b
    top = np.max(a, axis=0)
    second = np.max(np.where(a == top, b, -np.inf), axis=0)
    lost = isnan(a, b)
    found = np.argmax((a == top) & (b == second), axis=0)
    return np.where(np.any(lost, axis=0), np.argmax(lost, axis=0), found)


def argsort(a: Tensor, b: Tensor) -> Tensor:
    """Along the last axis, stable; what holds a NaN comes last, as in NumPy."""
    lost = 2 * np.isnan(a) + np.isnan(b)
    return np.lexsort((b, a, lost), axis=-1)


# Systems


def solve(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    """Of matrices a + bi and right sides c + di (matrices): [[a, -b], [b, a]] is as regular."""
    n = a.shape[-1]
    top = np.concatenate([a, -b], axis=-1)
    whole = np.concatenate([top, np.concatenate([b, a], axis=-1)], axis=-2)
    made = np.linalg.solve(whole, np.concatenate([c, d], axis=-2))
    return made[..., :n, :], made[..., n:, :]
