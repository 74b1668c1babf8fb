"""Calls of NumPy's functions that compiled programs must answer as NumPy does.

A case is a function of some of the arrays of `arrays(dtype)`, by the names of its parameters. Those
of `SMOOTH` are also differentiated.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def arrays(dtype: Any) -> dict[str, Any]:
    """Operands by name: x and y of one shape, p positive, u in (-1, 1), v a vector..."""
    r = np.random.default_rng(7)
    sizes: dict[str, tuple[int, ...]] = {"x": (3, 4), "y": (3, 4), "c": (2, 3, 4), "v": (5,)}
    sizes |= {"w": (3,), "q": (4, 4), "m": (4, 2), "b": (2, 3, 3), "e": (2, 3, 1)}
    out: dict[str, Any] = {k: r.normal(size=s).astype(dtype) for k, s in sizes.items()}
    if np.dtype(dtype).kind in "iu":
        out = {k: r.integers(0, 9, size=s).astype(dtype) for k, s in sizes.items()}
    out["p"] = (np.abs(r.normal(size=(3, 4))) + 0.6).astype(dtype)
    out["t"] = r.uniform(-0.9, 0.9, size=(3, 4)).astype(dtype)
    out["s"] = np.sort(out["v"])
    out["a"] = (out["q"] @ out["q"].T + 4 * np.eye(4, dtype=dtype)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        out["n"] = np.where(out["x"] > 0.8, np.asarray(np.nan, dtype), out["x"]).astype(dtype)
    out["i"] = r.integers(-9, 9, size=(3, 4))
    out["j"] = r.integers(1, 9, size=(3, 4))
    out["k"] = np.array([2, 0, 1, 2, 2])
    return out


# Differentiable, on f64 and f32.
SMOOTH: list[Any] = [
    # elementwise
    lambda t: np.arcsin(t),
    lambda t: np.arccos(t),
    lambda x: np.arctan(x),
    lambda x, y: np.arctan2(x, y),
    lambda x: np.sinh(x),
    lambda x: np.cosh(x),
    lambda x: np.arcsinh(x),
    lambda p: np.arccosh(p + 1),
    lambda t: np.arctanh(t),
    lambda x: np.cbrt(x),
    lambda x: np.exp2(x),
    lambda p: np.log2(p) + np.log10(p),
    lambda x, y: np.hypot(x, y),
    lambda x, y: np.copysign(x, y),
    lambda x, p: np.fmod(x * 3, p),
    lambda x, p: np.divmod(x * 3, p)[1],
    lambda x: np.modf(x * 3)[0],
    lambda x, y: np.logaddexp(x, y) + np.logaddexp2(x, y),
    lambda x, y: np.fmax(x, y) - np.fmin(x, y),
    lambda x: np.sinc(x),
    lambda x: np.deg2rad(x) + np.rad2deg(x) + np.radians(x) + np.degrees(x),
    lambda p, x: np.float_power(p, x),
    lambda x: np.ldexp(x, 3),
    lambda x, y: np.select([x > 0.5, y > 0], [x * y, x - y], 1.0),
    lambda x, y: np.choose(np.array([[0, 1, 1, 0]] * 3), [x, y]),
    lambda x: np.piecewise(x, [x < -0.3, x > 0.3], [lambda z: z * z, np.sin, 2.0]),
    lambda x: np.unwrap(x * 4, axis=1),
    lambda n: np.nan_to_num(n, nan=2.0, posinf=1.0),
    lambda x: np.real(x) + np.conjugate(x) + x.conj() + np.imag(x),
    lambda x: np.clip(x, -0.5, np.array([0.1, 0.2, 0.3, 0.4], np.float32)),
    lambda x, v: np.r_[x[0], v, x[1, 2]] * np.r_[v, x[1], 2.0],
    lambda x, y, w: np.c_[x[:, 0], y[:, 1:], w] + np.c_[w],
    lambda x: np.reshape(x, (2, 6), order="F") + x.ravel("F")[:6] + x.flatten("F")[6:],
    lambda x: np.apply_along_axis(lambda v: np.outer(v, v), 1, x),
    lambda x: np.apply_along_axis(np.prod, 0, x),
    lambda x, q: x[np.tril_indices_from(x)].sum() * q[np.triu_indices_from(q, 1)],
    lambda x: np.array([k * e for (k, _), e in np.ndenumerate(x)]),
    lambda x: sum(x.tolist()[1]) * x,
    lambda x: np.std(x[:, :1], axis=1) + x[:, 0],
    lambda x: np.dot([x[0, 0], x[1, 1]], [[1.0, x[2, 2]], [x[0, 1], 2.0]]),
    lambda x: np.concatenate([[x[0, 0], 1.0], x[1]]),
    # reductions and order
    lambda x: np.cumprod(x, axis=1),
    lambda x: x.cumprod(0) + np.cumprod(x).reshape(3, 4),
    lambda x: np.ptp(x, axis=0),
    lambda x: np.median(x, axis=(0, 1)) + np.median(x, axis=1, keepdims=True),
    lambda x: np.quantile(x, 0.3, axis=1),
    lambda x: np.quantile(x, [0.1, 0.5, 1.0], axis=0, keepdims=True),
    lambda x: np.percentile(x, 40),
    lambda x: np.quantile(x, 0.35, axis=1, method="median_unbiased"),
    lambda x: np.quantile(x, 0.35, axis=1, method="nearest"),
    lambda x: np.quantile(x, 0.35, method="midpoint") + np.quantile(x, 0.4, method="lower"),
    lambda c: np.quantile(c, 0.6, axis=(0, 2), method="higher"),
    lambda n: np.nansum(n, axis=1) + np.nanmean(n, axis=1) + np.nanvar(n, axis=1),
    lambda n: np.nanstd(n, ddof=1) + np.nanprod(n) + np.nanmax(n) - np.nanmin(n, axis=0),
    lambda n: np.nanmedian(n, axis=1),
    lambda n: np.nanquantile(n, [0.2, 0.7], axis=0),
    lambda n: np.nanpercentile(n, 30, axis=1, keepdims=True),
    lambda n: np.nancumsum(n, axis=0) + np.nancumprod(n, axis=1),
    lambda x: np.average(x, axis=1, weights=np.array([1.0, 2, 3, 4], np.float32), returned=True)[0],
    lambda x, y: np.cov(x, y) + np.cov(x, rowvar=True, bias=True)[0, 0],
    lambda x, p: np.cov(x, aweights=p[0]) + np.cov(x, fweights=[1, 2, 1, 3], aweights=p[1]),
    lambda x: np.corrcoef(x),
    lambda x: np.sort(x, axis=None) + np.sort(np.partition(x.ravel(), 3)),
    lambda x: np.maximum.accumulate(x, axis=1) + np.minimum.accumulate(x, axis=1),
    lambda x: np.add.reduce(x) + np.multiply.reduce(x, axis=0) + np.maximum.reduce(x),
    lambda x: np.add.accumulate(x, axis=1) + np.logaddexp.accumulate(x, axis=1),
    lambda v, w: np.multiply.outer(v, w) + np.subtract.outer(v, w),
    lambda x: np.cumulative_sum(x, axis=1, include_initial=True) if NEW else x,
    # shapes
    lambda x: np.atleast_2d(x[0]) + np.atleast_3d(x)[..., 0][0],
    lambda x, y: np.dstack([x, y]),
    lambda v: np.column_stack([v, v * 2, v[:, None]]),
    lambda x: np.array_split(x, 3, axis=1)[0],
    lambda x: np.vsplit(x, 3)[2] + np.hsplit(x, 1)[0],
    lambda c: np.dsplit(c, [1, 3])[1],
    lambda x: np.flipud(x) + np.fliplr(x),
    lambda q: np.rot90(q) + np.rot90(q, 2) + np.rot90(q, -1),
    lambda c: np.rollaxis(c, 2) + np.rollaxis(c, 2, 1).swapaxes(0, 1),
    lambda x, y: np.append(x, y) + np.append(x, y, axis=0).ravel(),
    lambda x: np.delete(x, [1], axis=1),
    lambda x: np.insert(x, 1, x[:, 0], axis=1),
    lambda v: np.insert(v, [1, 3], [7.0, 8.0]) - np.insert(v, 0, v[:2]),
    lambda x: np.resize(x, (5, 3)),
    lambda x: np.block([[x, x[:, :1]], [x[:1], np.zeros((1, 1), np.float32)]]),
    lambda x, w: np.broadcast_arrays(x, w[:, None])[1] + x,
    lambda v, w: np.meshgrid(v, w)[0] * np.meshgrid(v, w, indexing="xy")[1],
    lambda v, w: np.meshgrid(v, w, indexing="ij", sparse=True)[1],
    lambda x: np.diagonal(x) + np.diag(x) + np.diagonal(x, -1).sum() + np.trace(x),
    lambda c: np.diagonal(c, 1, 1, 2) + c.trace(axis1=1, axis2=2)[:, None],
    lambda v: np.diag(v) + np.diag(v, 1)[:5, :5] + np.diag(v, -2)[2:, 2:] + np.diagflat(v),
    lambda x, m: np.kron(x, m) + np.kron(x[0], m).sum(),
    lambda v: np.vander(v, 3) + np.vander(v, 3, increasing=True),
    lambda x: np.compress([True, False, True, True], x, axis=1),
    lambda x: np.pad(x, ((1, 2), (2, 1)), mode="edge"),
    lambda x: np.pad(x, 2, mode="reflect") + np.pad(x, 2, mode="symmetric"),
    lambda x: np.pad(x, ((0, 5), (3, 0)), mode="wrap"),
    lambda x: np.pad(x, 1, constant_values=((1, 2), (3, 4))),
    lambda x: np.repeat(x, [1, 0, 2, 1], axis=1),
    lambda x: np.take(x, [0, 5, -1], mode="wrap") + np.take(x, [0, 5, 99], mode="clip"),
    lambda x: np.diff(x, prepend=0.0) + np.diff(x, append=x[:, :1]),
    lambda x: x[np.array([True, False, True])] + x[:, np.array([1, 0, 1, 1], bool)][:1, :1],
    lambda x: x[np.array([[1, 0, 0, 1]] * 3, bool)],
    lambda c: c[:, np.array([0, 2, 1]), np.array([1, 1, 3])] + c[1, np.array([0, 1, 2]), 0],
    lambda c: c[np.array([0, 1])[:, None], :, np.array([2, 0, 1])],
    lambda c: c[..., np.array([True, False, True, False])],
    # An ellipsis parts the arrays even where it stands for no axis.
    lambda c: c[:, np.array([0, 2]), ..., 1] + c[:, 1, None, np.array([0, 3])].swapaxes(0, 1)[0],
    lambda x: x[[[True, False, True, True]] * 3] + x[[True, False, True]][0, 1],
    lambda x: np.linspace(x[0], x[1], 4) + np.linspace(0, x[0, 0], 4, endpoint=False)[0],
    # sequences
    lambda v: np.ediff1d(v, to_begin=0.5, to_end=[1.0, 2.0]),
    lambda x: np.gradient(x)[0] + np.gradient(x, axis=1) + np.gradient(x, 2.0, axis=0),
    lambda x: np.gradient(x, np.array([0.0, 1, 3, 4.5], np.float32), axis=1, edge_order=2),
    lambda v: np.gradient(v, 0.5, edge_order=2),
    lambda x: np.trapezoid(x, axis=0) + np.trapezoid(x, np.array([0.0, 1, 4]), axis=0),
    lambda v, w: np.convolve(v, w) * 2,
    lambda v, w: np.convolve(w, v, "same") + np.correlate(v, w, "same"),
    lambda v, w: np.convolve(v, w, "valid") + np.correlate(v, w),
    lambda v, w: np.correlate(w, v, "same") + np.correlate(w, v, "full")[:5],
    lambda w, x: np.polyval(w, x),
    lambda v, w: np.polyadd(v, w) - np.polysub(v, w) + np.polymul(v, w)[:5],
    lambda v: np.polyder(v, 2).sum() + np.polyint(v, 2, k=[1.0, 2.0]),
    lambda x, s, v: np.interp(x, s, v),
    lambda x, s, v: np.interp(x, s, v, left=-1.0, right=2.0),
    # products
    lambda x, y: np.einsum("ij,kj->ik", x, y) + np.einsum("...j,...j->...", x, y),
    lambda q: np.einsum("ii", q) + np.einsum("ii->i", q) + np.einsum("ij,ji", q, q),
    lambda c, m: np.einsum("...ij,jk->...ik", c, m),
    lambda b, c: np.einsum("bij,bjk->ikb", b, c) + np.einsum("bii->b", b),
    lambda c, e: np.einsum("abc,abd->acd", c, e) + np.einsum("abc,abc->a", c, e)[:, None, None],
    lambda x, y: np.einsum(x, [0, 1], y, [2, 1], [0, 2]),
    lambda w, v: np.einsum("i,j,i->j", w, v, w),
    lambda c: np.einsum("...c->c...", c),
    lambda w: np.cross(w, w[::-1]) + np.cross(w, np.array([1.0, 2, 3], np.float32)),
    lambda c: np.cross(c, c[::-1] ** 2, axis=1),
    lambda x, y: np.vecdot(x, y) + np.linalg.vecdot(x, y),
    lambda x: np.linalg.norm(x, axis=1) + np.linalg.norm(x, 1) + np.linalg.norm(x, np.inf),
    lambda x: np.linalg.norm(x, 3, axis=0) + np.linalg.norm(x, -np.inf, axis=0) + x[0],
    lambda c: np.linalg.norm(c, axis=(0, 2), keepdims=True) + np.linalg.norm(c[0], "fro"),
    lambda x: np.linalg.vector_norm(x, ord=1) + np.linalg.matrix_norm(x),
    lambda a: np.linalg.matrix_power(a, 3) + np.linalg.matrix_power(a, 0),
    lambda x, q, m: np.linalg.multi_dot([x, q, m]) + np.linalg.multi_dot([x[0], q, m]),
    lambda x: np.linalg.matrix_transpose(x) + np.linalg.outer(x[0], x[:, 0]),
    # systems
    lambda a: np.linalg.cholesky(a),
    lambda a, m: np.linalg.solve(a, m) + np.linalg.solve(a, m[:, 0])[:, None],
    lambda b, c: np.linalg.solve(b + 4 * np.eye(3, dtype=b.dtype), c),
    lambda a: np.linalg.inv(a) + np.linalg.matrix_power(a, -2),
    lambda a: np.linalg.slogdet(a)[1] + np.log(np.linalg.det(a)),
    lambda b: np.linalg.det(b) + np.linalg.det(b[:, :2, :2]) + np.linalg.det(b[:, :1, :1]),
    lambda a: np.linalg.tensorsolve(a.reshape(2, 2, 2, 2), a[:2, :2]),
    lambda a: np.linalg.tensorinv(a.reshape(4, 2, 2), ind=1),
]

# The primitives by NumPy's names; their own tests differentiate them by finite differences.
BASIC: list[Any] = [
    lambda x: np.exp(x) + np.expm1(x),
    lambda p: np.log(p) + np.log1p(p) + np.sqrt(p) + 1 / np.sqrt(p),
    lambda x: np.sin(x) * np.cos(x) + np.tan(x / 2),
    lambda x: np.tanh(x) + np.square(x) - np.abs(x),
    lambda p, x: p**x + p**2.5 + x**3 + 2.0**x + np.power(p, -2),
    lambda x, y: x * y - x / (y + 4) + np.reciprocal(x + 5),
    lambda x, y: np.maximum(x, y) * np.minimum(x, 0.3) + np.where(x > y, x * x, np.sin(y)),
    lambda x, p: np.remainder(x * 3, p) + np.floor_divide(x, p) + np.sign(x) + np.floor(x),
    lambda x: np.sum(x, axis=0) + np.mean(x, axis=0) + np.var(x, axis=0) + np.std(x, axis=0),
    lambda x: np.prod(x, axis=1) + np.max(x, axis=1) - np.min(x * x, axis=1),
    lambda x: np.cumsum(x * x, axis=1) + np.sort(x, axis=1) * x,
    lambda x: np.take_along_axis(x * x, np.argsort(x, axis=1), axis=1),
    lambda x: np.take(x * x, np.array([1, 0, 1]), axis=1) + x[np.array([0, 2, 0]), 1][:, None],
    lambda x, y: np.concatenate([x * y, x[:1]]) * np.stack([x, y, y, x])[:, 0],
    lambda c: np.transpose(c * c, (2, 0, 1)).reshape(4, 6) * np.flip(c).reshape(4, 6),
    lambda x: np.roll(x, 1, axis=1) * np.tril(x) + np.pad(x, 1)[1:-1, 2:] * x[::-1, ::-1],
    lambda x, m: np.tanh(x @ m) @ m.T,
    lambda b, c: np.matmul(b, c) * np.matmul(b, c[:1]),
    lambda x, y: np.tensordot(x, y, axes=([0, 1], [0, 1])) * np.outer(x[0], y[:, 0]),
    lambda w, v: np.dot(w, w) * np.inner(v, v) + np.vdot(v, v) * np.linalg.norm(w),
    lambda x: np.log(np.sum(np.exp(x), axis=1)) + np.argmax(x, axis=1),
    lambda x: np.broadcast_to(x[:, None], (3, 2, 4)) * np.repeat(x, 2, axis=0).reshape(3, 2, 4),
]

# Without a slope that matters: flat, whole numbers, truth; on f64 and f32.
FLAT: list[Any] = [
    lambda x: np.trunc(x * 3) + np.fix(x * 3) + np.rint(x * 3) + np.round(x * 3),
    lambda x: np.round(x * 30, 1) + np.round(x * 300, -1),
    lambda x: np.heaviside(x, 0.5) + np.heaviside(np.zeros_like(x), x),
    lambda x: (np.signbit(x), np.isposinf(x / 0.0), np.isneginf(x / 0.0), np.isinf(x)),
    lambda x, y: (np.isclose(x, x + 1e-9), np.allclose(x, y), np.array_equal(x, x)),
    lambda x: (np.array_equiv(x, x[0]), np.array_equal(x, x[0])),
    lambda x: (np.argsort(x), x.argsort(0), np.argpartition(x, 1)[..., :0]),
    lambda x: np.lexsort((x[0], np.round(x[1]))),
    lambda x, s: (np.searchsorted(s, x), s.searchsorted(x, side="right"), np.searchsorted(s, 0.3)),
    lambda x: (np.digitize(x, [-1.0, 0.0, 0.5]), np.digitize(x, [0.5, 0.0, -1.0], right=True)),
    lambda n, s: np.searchsorted(np.sort(n[0]), n),
    lambda x: np.histogram(x, 4),
    lambda x: np.histogram(x, bins=[-2.0, -1.0, 0.0, 3.0], density=True),
    lambda x, p: np.histogram(x, 3, range=(-1.0, 1.0), weights=p),
    lambda n: (np.nanargmax(n, axis=1), np.nanargmin(n)),
    lambda x: (np.isin(x, x[0]), np.isin(x, [1.0, 2.0], invert=True)),
    lambda x: (np.logical_and.reduce(x > -1), np.logical_or.reduce(x > 1, axis=1)),
    lambda x: np.tri(3, 4, 1) + np.tri(3, 4, dtype=np.float32) + x,
    lambda x: (np.indices((2, 3)), np.fromfunction(lambda i, j: i * j, (2, 3)), np.identity(2)),
    lambda x: np.ix_(np.array([0, 1]), np.array([2, 0])),
    lambda x: (np.result_type(x, 1.0) == x.dtype, np.shape(x), np.size(x, 1), np.isscalar(3)),
    lambda n: (np.median(n, axis=1), np.quantile(n, 0.5, axis=0), np.fmax(n, 0.0)),
    lambda x: np.astype(x, np.int32) if NEW else x,
    lambda q: (np.linalg.det(q[:0, :0]), np.linalg.slogdet(q[:0, :0]), np.linalg.inv(q[:0, :0])),
    lambda x: np.logspace(0, x[0, 0], 3) + np.geomspace(1.0, 2 + x[0, 0] ** 2, 3),
]

# On whole numbers of several types.
WHOLE: list[Any] = [
    lambda x, y: (np.fmod(x, y + 1), np.gcd(x, y), np.lcm(x, y)),
    lambda x, y: (x ** (y % 5), np.power(x, 3), np.power(2, y)),
    lambda x, y: (np.copysign(x, y), np.hypot(x, y), np.arctan2(x, y), np.trunc(x)),
    lambda x: (np.cumprod(x, axis=1), np.ptp(x), np.median(x, axis=0), np.quantile(x, 0.3)),
    lambda x: (np.sort(x), np.argsort(x, axis=0, kind="stable"), np.maximum.accumulate(x)),
    lambda x: (np.bitwise_or.accumulate(x, axis=1), np.gcd.accumulate(x)),
    lambda x: np.bincount(np.concatenate([x.ravel(), x[0] + 90]), minlength=99),
    lambda x, p: np.bincount(x.ravel(), np.ones(12), minlength=12),
    lambda x: (np.unravel_index(x, (3, 4)), np.ravel_multi_index((x % 3, x % 4), (3, 4))),
    lambda x: (np.diff(x), np.convolve(x[0], x[1]), np.kron(x, x), np.trace(x), np.diag(x)),
    lambda x: (np.einsum("ij,kj->ik", x, x), np.cross(x[0, :3], x[1, :3])),
    lambda x: (np.nansum(x), np.nanmax(x), np.linalg.norm(x), np.searchsorted(np.sort(x[0]), x)),
    lambda x: (np.histogram(x, 3), np.interp(x, [0, 4, 9], [1, 0, 3]), np.average(x, axis=0)),
    lambda x: (np.pad(x, 1, "edge"), np.delete(x, 1, 0), np.insert(x, 0, 7, axis=1)),
    lambda x: (np.float_power(x, 2), np.exp2(x), np.arctanh(x / 10), np.cbrt(x)),
    lambda x: (np.heaviside(x, 1), np.signbit(x), np.isclose(x, x), np.rint(x), np.sinh(x / 4)),
]

#: Some functions came with NumPy 2.1.
NEW = hasattr(np, "cumulative_sum")
