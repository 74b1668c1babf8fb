"""Functions of complex numbers that compiled programs must answer as Python and NumPy do.

A case is a function of some of the arguments of `arguments()`, by the names of its parameters.
"""

from __future__ import annotations

import cmath
from typing import Any

import numpy as np


def arguments() -> dict[str, Any]:
    """Complex arrays z, w, q, v (z4 of complex64), real ones x and k, numbers c, s, f, i, n."""
    r = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        return r.normal(size=shape) + 1j * r.normal(size=shape)

    z = made(3, 4)
    x = r.normal(size=(3, 4))
    return {
        "z": z,
        "w": made(3, 4),
        "q": made(4, 4),
        "v": made(5),
        "x": x,
        "z4": z.astype(np.complex64),
        "x4": x.astype(np.float32),
        "k": np.arange(12).reshape(3, 4),
        "c": 1.5 - 0.5j,
        "s": np.complex128(-0.3 + 2j),
        "s4": np.complex64(1 - 1j),
        "f": 2.5,
        "i": 2,
        "n": np.int64(3),
    }


#: Expressions.
SAME: list[Any] = [
    lambda z: z + 1,
    lambda z: z + 1j,
    lambda z: 1j - z,
    lambda z, x: z * x,
    lambda x: x * 1j,
    lambda x4: x4 * 1j,
    lambda z4: z4 * 2.0,
    lambda z4: z4 * 1j,
    lambda x, z4: z4 * x,
    lambda z4, k: z4 + k,
    lambda k: k * 1j,
    lambda c, s: s * c,
    lambda c, s4: s4 * c,
    lambda s4: s4 * 2.0,
    lambda f: f * 1j,
    lambda c: c * c / 3,
    lambda c: c**2,
    lambda c: c**-2,
    lambda c: c**0.5,
    lambda c: c**c,
    lambda z: z**2,
    lambda z: z**-3,
    lambda z: z**0,
    lambda z: z**0.5,
    lambda z, w: z**w,
    lambda z, x: z**x,
    lambda z: 2.0**z,
    lambda c, f: f**c,
    lambda c, i: i * c,
    lambda c, n: n * c,
    lambda n: n + 1j,
    lambda z: (-z, +z),
    lambda z, w: (z == w, z != w),
    lambda z, w: (z < w, z <= w, z > w, z >= w),
    lambda c: c == 1.5 - 0.5j,
    lambda c, f: c == f,
    lambda s: s < 2j,
    lambda c, s: c != s,
    lambda z: (z.real, z.imag),
    lambda c: (c.real, c.imag, c.conjugate()),
    lambda s: (s.real, s.imag),
    lambda z: (z.conj(), np.conj(z), np.conjugate(z)),
    lambda z, c, s: (abs(z), np.abs(z), abs(c), abs(s)),
    lambda z, c: (np.angle(z), np.angle(z, deg=True), np.angle(c)),
    lambda z, c: (np.real(z), np.imag(z), np.real(c)),
    lambda z, x: (np.exp(z), np.exp(1j * x)),
    lambda z: (
        np.log(z),
        np.sqrt(z),
        np.log2(z),
        np.log10(z),
        np.log1p(z),
        np.expm1(z),
        np.exp2(z),
    ),
    lambda z: (np.sin(z), np.cos(z), np.tan(z)),
    lambda z: (np.sinh(z), np.cosh(z), np.tanh(z)),
    lambda z: (np.arcsin(z), np.arccos(z), np.arctan(z)),
    lambda z: (np.arcsinh(z), np.arccosh(z), np.arctanh(z)),
    lambda z: (np.square(z), np.reciprocal(z), np.sign(z), np.positive(z), np.negative(z)),
    lambda z, w: (np.power(z, 3), np.power(z, w)),
    lambda z: (z.shape, z.ndim, z.size, z.itemsize, z.nbytes),
    lambda z: z.dtype == np.complex128,
    lambda z: (z[0], z[0, 1], z[:, ::-1], z[1:, None], z[..., 0], z[-1, -1]),
    lambda z, i: (z[i], z[i, i]),
    lambda z, k: z[k[0, :2]],
    lambda z, c: (np.atleast_1d(z), np.atleast_2d(z[0]), np.atleast_3d(z), np.atleast_1d(c)),
    lambda z: (z.T, z.reshape(4, 3), z.ravel(), z.flatten(), z.transpose(1, 0), z.swapaxes(0, 1)),
    lambda z: (z.sum(), z.sum(0), z.sum(axis=1, keepdims=True), z.mean(), z.mean(0)),
    lambda z: (z.prod(), z.prod(1), np.prod(z, axis=0, keepdims=True), np.prod(z, keepdims=True)),
    lambda z: (np.cumsum(z, 1), np.cumprod(z, 1), np.cumprod(z), np.cumsum(z)),
    lambda z: (z.var(), z.std(), z.var(0), np.std(z, 1, ddof=1)),
    lambda z: (z.any(), z.all(), np.any(z, 0), np.count_nonzero(z)),
    lambda z: (
        z.max(),
        z.min(),
        np.max(z, 0),
        np.min(z, axis=1, keepdims=True),
        np.argmax(z),
        np.argmin(z, 1),
    ),
    lambda z: (np.sort(z), np.sort(z, 0), np.argsort(z, 1), np.sort(z, axis=None)),
    lambda z, q, x, v: (z @ q, q @ q, x @ q, q @ z.T, v @ v),
    lambda z, w, q, v: (
        np.dot(z, q),
        np.vdot(v, v),
        np.vdot(z, w),
        np.inner(z, w),
        np.outer(v, v),
        np.tensordot(z, w, 2),
    ),
    lambda w, x: (np.vdot(x, w), np.vdot(w, x)),
    lambda q, v: (np.kron(q, v), np.convolve(v, v)),
    lambda z, w, q, x: (
        np.einsum("ij,jk->ik", z, q),
        np.einsum("ij->ji", z),
        np.einsum("ij,ij,ij->", z, w, x),
        np.einsum("ii", q),
    ),
    lambda z, w, x: (
        np.concatenate([z, x]),
        np.stack([z, w]),
        np.vstack([z, x]),
        np.hstack([z, w]),
        np.append(z, 1j),
    ),
    lambda z, w, x: (np.where(x > 0, z, w), np.where(x > 0, z, 0), np.where(x > 0, 1j, x)),
    lambda: (
        np.zeros(3, complex),
        np.zeros((2, 3), dtype=np.complex64),
        np.ones(2, complex),
        np.empty(0, dtype=complex),
        np.eye(3, dtype=complex),
    ),
    lambda x: np.zeros(3, complex) + x[0, :3],
    lambda c, f, i: (
        np.full(3, c),
        np.full((2, 2), 1j),
        np.full(3, f, dtype=complex),
        np.full(3, i, complex),
    ),
    lambda z, x, f: (
        np.zeros_like(z),
        np.ones_like(z),
        np.full_like(z, f),
        np.zeros_like(x, dtype=complex),
        np.zeros_like(z, dtype=float),
    ),
    lambda z, x, c, f: (
        np.array([c, 1.0, 2j]),
        np.array([[c, f], [f, c]]),
        np.asarray(z),
        np.array(z),
        np.array(x, dtype=complex),
        np.array(c),
        np.asarray(c),
    ),
    lambda z, x, x4: (
        z.astype(np.complex64),
        x.astype(complex),
        x4.astype(np.complex64),
        z.astype(complex),
    ),
    lambda c, s, f, i, n: (
        complex(f, 2),
        complex(i),
        complex(c),
        complex(c, c),
        complex(f),
        complex(s),
        complex(n),
    ),
    lambda x, c, f: (np.complex64(c), np.complex128(f), np.complex128(x)),
    lambda z, c, s, f: (
        isinstance(c, complex),
        isinstance(z, np.ndarray),
        isinstance(s, complex),
        isinstance(f, complex),
        isinstance(s, np.complexfloating),
    ),
    lambda z, c, s, f: (
        type(c) is complex,
        type(s) is np.complex128,
        type(f * 1j) is complex,
        type(z[0, 0]) is np.complex128,
    ),
    lambda c, s: (hasattr(c, "real"), hasattr(c, "shape"), hasattr(s, "shape")),
    lambda z, x: (
        np.iscomplexobj(z),
        np.isrealobj(z),
        np.iscomplex(z),
        np.isreal(z),
        np.iscomplexobj(x),
        np.iscomplex(x),
    ),
    lambda z: (np.isnan(z), np.isinf(z), np.isfinite(z)),
    lambda z, w, c: (
        np.isclose(z, z * (1 + 1e-9)),
        np.allclose(z, w),
        np.array_equal(z, z),
        np.allclose(c, c),
    ),
    lambda z, v: (
        np.linalg.norm(z),
        np.linalg.norm(v),
        np.linalg.norm(z, axis=1),
        np.linalg.norm(v, 1),
        np.linalg.norm(z, np.inf),
    ),
    lambda q, x, v: (np.linalg.solve(q, q @ v[:4]), np.linalg.inv(q), np.linalg.solve(q, x.T)),
    lambda z, q, v: (
        np.roll(z, 1, 1),
        np.flip(z),
        np.tile(v, 2),
        np.repeat(v, 2),
        np.diff(v),
        np.diag(v),
        np.diag(q),
        np.trace(q),
        np.tril(q),
    ),
    lambda z, v: (
        np.take(z, [0, 1], axis=1),
        np.split(v[:4], 2),
        np.squeeze(z[None]),
        np.expand_dims(z, 0),
        np.broadcast_to(v, (2, 5)),
        np.moveaxis(z, 0, 1),
    ),
    lambda z, v: (
        np.pad(v, 2),
        np.pad(v, 1, mode="wrap"),
        np.round(z, 1),
        np.nan_to_num(z),
        np.rint(z),
    ),
    lambda z: (np.shape(z), np.ndim(z), np.size(z), len(z)),
    lambda c, f: (np.linspace(0, 1j, 5), np.linspace(c, f, 4)),
    lambda c, f: c if f > 1 else 2j,
    lambda c, f: c if f > 1 else 2.0,
    lambda f: 1j if f > 1 else 2j,
    lambda v, c, f: (sum([c, 1j, f]), sum(v)),
    lambda c: (pow(c, 2), pow(c, c)),
    lambda f, i: ([a * 1j for a in (f, i)]),
    lambda z: (np.abs(z) ** 2, (z * z.conj()).real),
    lambda z, w, x: (
        np.add(z, w),
        np.subtract(z, x),
        np.multiply(z, 2),
        np.divide(z, w),
        np.true_divide(z, 2),
    ),
    lambda z, w: (np.maximum(z, w), np.minimum(z, 0)),
    lambda z, x: (np.logical_not(z), np.logical_and(z, x)),
    lambda z, v: (np.add.reduce(z), np.add.reduce(z, axis=1), np.multiply.outer(v, v)),
    lambda c, s: (np.sum([c, s]), np.mean([c, 1])),
    lambda f, i: 1j * f + i,
    lambda f: np.e ** (1j * np.pi) * f,
    lambda v: v[::-1].conj() * np.array([1, 1j, -1, -1j, 1]),
    lambda f, i: (np.array([1, 1j, -1])[i], np.array([1j, 2, 3])[i] * f),
    lambda z, x, z4: (
        np.sum(z, dtype=np.complex64),
        np.sum(x, dtype=complex),
        z4.sum(),
        z4.mean(),
        z4.prod(),
    ),
    lambda q, x, v: (x.dot(q), q.dot(q), x.dot(v[:4])),
    lambda z, w: np.cross(z[:, :3], w[:, :3]),
    lambda c, f: (c * True, c + (f > 1)),
    lambda v: np.unwrap(np.angle(v)),
    lambda z, x, v: (
        np.trapezoid(v),
        np.average(z),
        np.average(z, 0, x[:, 0] ** 2),
        np.gradient(v),
    ),
    lambda z, s: (z[0, 0].item(), s.item()),
    lambda c, f: (
        cmath.exp(c),
        cmath.sqrt(f),
        cmath.sqrt(-f),
        cmath.log(c),
        cmath.log(c, 2),
        cmath.log10(c),
        cmath.phase(c),
        cmath.polar(c),
        cmath.rect(f, 1.0),
    ),
    lambda c, f: (
        cmath.sin(c),
        cmath.acos(c),
        cmath.atanh(c),
        cmath.isnan(c),
        cmath.isclose(c, c),
        cmath.isclose(c, f),
        cmath.tanh(c),
        cmath.asinh(f),
    ),
    lambda c, s: (cmath.exp(1j), cmath.pi * c, cmath.exp(s), cmath.inf),
]


# Changes in place, branches and loops


def stores(z: Any, c: Any, f: Any, i: Any, x: Any) -> Any:
    a = z.copy()
    a[0] = 1j
    a[1, 1:] *= 2j
    a[:, 0] += x[:, 0]
    b = np.zeros(4, complex)
    b[0] = f
    b[1] = c
    b[i + 1] += c
    return a, b


def whole_arrays(z: Any, x: Any) -> Any:
    a = z.copy()
    a *= 1j
    a += x
    a /= 2
    a **= 2
    return a


def views(z: Any) -> Any:
    a = z.copy()
    row = a[0]
    row[...] = 5
    row *= 1j
    a.real[1] = 9
    part = a.imag
    part += 1
    return a


def masks(z: Any, x: Any) -> Any:
    a = z.copy()
    a[x > 0] = 0
    a[x < -0.5] *= 2j
    a[[0, 2]] += 1j
    return a


def narrow(z: Any, z4: Any) -> Any:
    a = z4.copy()
    a += z
    return a


def functions_in_place(z: Any, v: Any, x: Any, c: Any) -> Any:
    a = z.copy()
    np.fill_diagonal(a, 1j)
    np.copyto(a[1], x[1])
    np.add.at(a, [0, 0], 1j)
    b = v.copy()
    b.sort()
    np.multiply(b, c, out=b)
    d = np.array(v)
    d.fill(c)
    return a, b, d


def paths(c: Any, f: Any) -> Any:
    if f > 1:
        z = c * f
    else:
        z = 2j
    return z, 1j if f < 0 else c


def mandelbrot(c: Any) -> Any:
    z = 0j
    count = 0
    while abs(z) <= 2.0 and count < 60:
        z = z * z + c - 1.2
        count += 1
    return z, count


def from_a_real_number(v: Any, n: Any) -> Any:
    total = 0
    for k in range(int(n)):
        total = total + v[k] * 1j
    return np.asarray(total)


def mandelbrot_set(x: Any) -> Any:
    c = x + 1j * x.T[:3, :3].sum()
    z = np.zeros_like(c)
    count = np.zeros(c.shape, dtype=np.int64)
    for _ in range(20):
        inside = np.abs(z) < 2
        z = np.where(inside, z * z + c, z)
        count += inside
    return count


def rows(z: Any) -> Any:
    return [row.sum() for row in z], sum(a.real for a in z[0])


def newton(c: Any) -> Any:
    for _ in range(20):
        c = c - (c**3 - 1) / (3 * c**2)
    return c


def known_numbers(f: Any) -> Any:
    return f, 1j, np.complex64(2j), np.array([1j]), {1j: 2}[1j] * f


def containers(c: Any, z: Any) -> Any:
    found = {"a": c, "b": [z, c * 2]}
    return found, (c in [1, 1.5 - 0.5j]), [c, 1] == [c, 1], not c


SAME += [
    *(stores, whole_arrays, views, masks, narrow, functions_in_place, paths, mandelbrot),
    *(from_a_real_number, mandelbrot_set, rows, newton, known_numbers, containers),
]


def real_array_in_place(x: Any) -> Any:
    a = x.copy()
    a += 1j
    return a


#: What is refused, and a word of the error.
REFUSED: list[tuple[Any, str]] = [
    (lambda z: ~z, "does not take complex numbers"),
    (lambda z: z // 2, "does not take complex numbers"),
    (lambda c: c < 2j, "does not take complex numbers"),
    (lambda c: round(c), "does not take complex numbers"),
    (lambda c: int(c), "does not take complex numbers"),
    (lambda c: float(c), "does not take complex numbers"),
    (lambda c, f: max(c, f), "must be known"),
    (lambda z: np.floor(z), "`np.floor` does not take complex numbers"),
    (lambda z: np.arctan2(z, 1), "`np.arctan2` does not take complex numbers"),
    (lambda q: np.linalg.det(q), "does not take complex numbers in a program"),
    (lambda z: z.astype(float), "drops the imaginary part"),
    (lambda z: z.tolist(), "has no attribute `tolist`"),
    (lambda c: c.shape, "has no attribute `shape`"),
    (lambda z: 1 if z else 0, "a condition must be one number"),
    (real_array_in_place, "a real one is needed"),
]
