"""Torch's operators as calls of NumPy's functions: name -> a function of torch's arguments.

Only what NumPy has, or a line of it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import delian as dl
import numpy as np


def axis_of(dim: Any) -> Any:
    """Torch's dim as NumPy's axis: an empty list is all of them."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) if len(dim) else None


def reduction(f: Callable[..., Any]) -> Any:
    def call(x: Any, dim: Any = None, keepdim: Any = False) -> Any:
        return f(x, axis=axis_of(dim) if x.ndim else None, keepdims=keepdim)

    return call


def freedom(f: Callable[..., Any]) -> Any:
    def call(
        x: Any, dim: Any = None, unbiased: Any = True, keepdim: Any = False, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = correction if correction is not None else 1 if unbiased else 0
        return f(x, axis=axis_of(dim), ddof=ddof, keepdims=keepdim)

    return call


def both(first: Callable[..., Any], second: Callable[..., Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return first(*args, **kwargs), second(*args, **kwargs)

    return call


def listed(f: Callable[..., Any]) -> Any:
    """Of one array or of a list of them."""

    def call(x: Any) -> Any:
        return f(*x) if isinstance(x, tuple | list) else f(x)

    return call


def logsumexp(x: Any, dim: Any, keepdim: Any = False) -> Any:
    axis = axis_of(dim) if x.ndim else None
    top = dl.ops.stop_gradient(np.max(x, axis=axis, keepdims=True))
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdim or x.ndim == 0 else np.squeeze(total, axis=axis)


def softmax(x: Any, dim: Any, dtype: Any = None) -> Any:
    dim = dim if x.ndim else None
    raised = np.exp(x - dl.ops.stop_gradient(np.max(x, axis=dim, keepdims=True)))
    return raised / np.sum(raised, axis=dim, keepdims=True)


def divide(x: Any, y: Any, rounding_mode: Any = None) -> Any:
    q = x / y
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    return np.trunc(q) if rounding_mode == "trunc" else q


def permuted(x: Any, *dims: Any) -> Any:
    return np.transpose(x, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


def flatten(x: Any, start_dim: Any = 0, end_dim: Any = -1) -> Any:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape((*x.shape[:start], -1, *x.shape[end + 1 :]))


def expand(x: Any, *shape: Any) -> Any:
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    extra = len(sizes) - x.ndim
    return np.broadcast_to(
        x, tuple(x.shape[k - extra] if n == -1 else n for k, n in enumerate(sizes))
    )


def repeat(x: Any, *sizes: Any) -> Any:
    return np.tile(x, tuple(sizes[0]) if not isinstance(sizes[0], int) else sizes)


def chunk(x: Any, chunks: Any, dim: Any = 0) -> Any:
    size = -(-x.shape[dim] // chunks)
    return np.split(x, list(range(size, x.shape[dim], size)), dim)


def split(x: Any, size: Any, dim: Any = 0) -> Any:
    if isinstance(size, int):
        return np.split(x, list(range(size, x.shape[dim], size)), dim)
    return np.split(x, [sum(size[: k + 1]) for k in range(len(size) - 1)], dim)


def at(x: Any, dim: Any, index: Any) -> Any:
    axis = dim % x.ndim
    return x[(*(slice(None),) * axis, index)]


def narrow(x: Any, dim: Any, start: Any, length: Any) -> Any:
    if not isinstance(start, int):
        return np.take(x, start + np.arange(length), axis=dim)
    first = start % x.shape[dim] if start < 0 else start
    return at(x, dim, slice(first, first + length))


def ordered(x: Any, dim: Any = -1, descending: Any = False, stable: Any = None) -> Any:
    if x.ndim == 0:
        return x
    y = np.sort(x, axis=dim)
    return np.flip(y, dim) if descending else y


def topk(x: Any, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = True) -> Any:
    if x.ndim == 0:
        return x
    y = np.sort(x, axis=dim)
    return at(np.flip(y, dim) if largest else y, dim, slice(k))


def kth(x: Any, k: Any, dim: Any = -1, keepdim: Any = False) -> Any:
    if x.ndim == 0:
        return x
    y = at(np.sort(x, axis=dim), dim, k - 1)
    return np.expand_dims(y, dim) if keepdim else y


def running(f: Any) -> Any:
    def call(x: Any, dim: Any) -> Any:
        return x if x.ndim == 0 else f.accumulate(x, axis=dim)

    return call


def cumulated(f: Any) -> Any:
    def call(x: Any, dim: Any, dtype: Any = None) -> Any:
        return x if x.ndim == 0 else f(x, axis=dim)

    return call


def quantile(f: Any) -> Any:
    def call(
        x: Any, q: Any, dim: Any = None, keepdim: Any = False, *, interpolation: Any = "linear"
    ) -> Any:
        axis = dim if x.ndim else None
        return f(x, q, axis=axis, method=interpolation, keepdims=keepdim)

    return call


def diag_embed(x: Any, offset: Any = 0, dim1: Any = -2, dim2: Any = -1) -> Any:
    size = x.shape[-1] + abs(offset)
    rows = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, abs(offset))])
    wide = rows[..., :, None] if offset >= 0 else rows[..., None, :]
    made = np.where(np.eye(size, k=offset, dtype=bool), wide, 0.0)
    return np.moveaxis(made, (-2, -1), (dim1, dim2))


def matmul_plus(c: Any, a: Any, b: Any, beta: Any = 1.0, alpha: Any = 1.0) -> Any:
    product = alpha * (a @ b)
    return product if beta == 0 else beta * c + product


def outer_plus(c: Any, a: Any, b: Any, beta: Any = 1.0, alpha: Any = 1.0) -> Any:
    product = alpha * np.outer(a, b)
    return product if beta == 0 else beta * c + product


def summed_plus(c: Any, a: Any, b: Any, beta: Any = 1.0, alpha: Any = 1.0) -> Any:
    product = alpha * np.sum(a @ b, axis=0)
    return product if beta == 0 else beta * c + product


def cross(a: Any, b: Any, dim: Any = -1) -> Any:
    return np.cross(a, b, axis=dim)


def solve(a: Any, b: Any, left: Any = True) -> Any:
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    if vector and left:
        return np.linalg.solve(a, b[..., None])[..., 0]
    if left:
        return np.linalg.solve(a, b)
    turned = np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2))
    return np.swapaxes(turned, -1, -2)


def norm(x: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    if dim is None and ord is None:
        flat = np.linalg.norm(np.ravel(x))
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    return np.linalg.norm(x, ord, axis=axis_of(dim), keepdims=keepdim)


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False) -> Any:
    if x.ndim == 0:
        return np.abs(x) if ord != 0 else (x != 0) * 1.0
    return np.linalg.vector_norm(x, ord=ord, axis=axis_of(dim), keepdims=keepdim)


def pad(x: Any, pad: Any, mode: Any = "constant", value: Any = 0.0) -> Any:
    ends = [(0, 0)] * (x.ndim - len(pad) // 2)
    ends = ends + [(pad[2 * k], pad[2 * k + 1]) for k in reversed(range(len(pad) // 2))]
    if any(n < 0 for pair in ends for n in pair):
        keep = tuple(
            slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(x.shape, ends, strict=True)
        )
        x, ends = x[keep], [(max(lo, 0), max(hi, 0)) for lo, hi in ends]
    if mode == "constant":
        return np.pad(x, ends, constant_values=0.0 if value is None else value)
    return np.pad(x, ends, mode={"replicate": "edge", "circular": "wrap"}.get(mode, mode))


def lerp(a: Any, b: Any, weight: Any) -> Any:
    return a + weight * (b - a)


def gradient(x: Any, *args: Any, spacing: Any = None, dim: Any = None, edge_order: Any = 1) -> Any:
    axis = axis_of(dim)
    given = () if spacing is None else spacing if isinstance(spacing, list | tuple) else (spacing,)
    made = np.gradient(x, *given, axis=axis, edge_order=edge_order)
    return made if isinstance(made, tuple) else (made,)


def trapezoid(y: Any, x: Any = None, *, dx: Any = 1.0, dim: Any = -1) -> Any:
    return np.trapezoid(y, x, dx, axis=dim)


def diff(x: Any, n: Any = 1, dim: Any = -1, prepend: Any = None, append: Any = None) -> Any:
    return np.diff(x, n, dim, prepend, append)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return np.clip(x, min, max)


def take_along(x: Any, index: Any, dim: Any = None) -> Any:
    return np.take_along_axis(x, np.ravel(index) if dim is None else index, axis=dim)


def gather(x: Any, dim: Any, index: Any, sparse_grad: Any = False) -> Any:
    if x.ndim == 0:
        return np.take(np.ravel(x), index)
    cut = tuple(slice(None if k == dim % x.ndim else n) for k, n in enumerate(index.shape))
    return np.take_along_axis(x[cut], index, axis=dim)


def index_select(x: Any, dim: Any, index: Any) -> Any:
    return x if x.ndim == 0 else np.take(x, index, axis=dim)


def repeat_interleave(x: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    return np.repeat(x, repeats, axis=dim)


def unfold(x: Any, dim: Any, size: Any, step: Any) -> Any:
    if x.ndim == 0:
        return x.reshape(1)[:size]
    count = (x.shape[dim] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    axis = dim % x.ndim
    return np.moveaxis(np.take(x, places, axis=axis), axis + 1, -1)


def unflatten(x: Any, dim: Any, sizes: Any) -> Any:
    axis = dim % x.ndim
    return x.reshape((*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def block_diag(*xs: Any) -> Any:
    wide = [np.atleast_2d(x) for x in xs]
    columns = sum(w.shape[1] for w in wide)
    left = [sum(w.shape[1] for w in wide[:k]) for k in range(len(wide))]
    padded = [
        np.pad(w, ((0, 0), (at, columns - at - w.shape[1])))
        for w, at in zip(wide, left, strict=True)
    ]
    return np.concatenate(padded)


def einsum(operands: Sequence[Any], equation: Any) -> Any:
    return np.einsum(equation, *operands)


def searchsorted(
    s: Any,
    v: Any,
    *,
    out_int32: Any = False,
    right: Any = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    at = "right" if right or side == "right" else "left"
    return np.searchsorted(s, v, at, sorter)


def with_alpha(f: Callable[..., Any]) -> Any:
    def call(x: Any, y: Any, alpha: Any = 1) -> Any:
        return f(x, alpha * y if alpha != 1 else y)

    return call


def addc(f: Callable[..., Any]) -> Any:
    def call(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
        return x + value * f(a, b)

    return call


def linear_dims(x: Any, start: Any, end: Any) -> Any:
    return np.moveaxis(x, start, end)


#: Called alike, with tensors alone.
SAME = (
    *("ceil", "cos", "cosh", "exp", "exp2", "expm1", "floor", "isfinite", "isinf", "isnan"),
    *("isneginf", "isposinf", "log", "log10", "log1p", "log2", "logical_not", "logical_and"),
    *("logical_or", "logical_xor", "positive", "reciprocal", "sign", "signbit", "sin", "sinc"),
    *("sinh", "sqrt", "square", "tan", "tanh", "trunc", "rad2deg", "deg2rad", "hypot"),
    *("copysign", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "fmod"),
    *("remainder", "float_power", "heaviside", "ldexp", "gcd", "lcm", "kron", "inner", "outer"),
    *("dot", "vdot", "matmul", "fliplr", "flipud", "ravel", "isclose", "allclose", "dstack"),
    *("hstack", "vstack", "column_stack", "vsplit", "hsplit", "dsplit", "floor_divide"),
)

CALLS: dict[str, Any] = {
    **{n: getattr(np, n) for n in SAME},
    "atleast_1d": listed(np.atleast_1d),
    "atleast_2d": listed(np.atleast_2d),
    "atleast_3d": listed(np.atleast_3d),
    "flip": lambda x, dims: np.flip(x, axis_of(dims)) if len(dims) else x,
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "neg": np.negative,
    "erf": dl.ops.erf,
    "sigmoid": dl.ops.sigmoid,
    "frac": lambda x: x - np.trunc(x),
    "round": lambda x, decimals=0: np.round(x, decimals),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sgn": np.sign,
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: np.nan_to_num(
        x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf
    ),
    "bitwise_not": np.invert,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
    "add": with_alpha(np.add),
    "sub": with_alpha(np.subtract),
    "rsub": lambda x, y, alpha=1: y - alpha * x,
    "mul": np.multiply,
    "div": divide,
    "true_divide": np.divide,
    "pow": np.power,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equal": np.array_equal,
    "clamp": clamp,
    "clamp_min": lambda x, low: np.clip(x, low, None),
    "clamp_max": lambda x, high: np.clip(x, None, high),
    "lerp": lerp,
    "addcmul": addc(np.multiply),
    "addcdiv": addc(np.divide),
    "where": lambda x, c, y: np.where(c, x, y),
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "sum": reduction(np.sum),
    "mean": reduction(np.mean),
    "prod": lambda x, dim=None, keepdim=False, dtype=None: reduction(np.prod)(x, dim, keepdim),
    "amax": reduction(np.max),
    "amin": reduction(np.min),
    "all": reduction(np.all),
    "any": reduction(np.any),
    "argmax": reduction(np.argmax),
    "argmin": reduction(np.argmin),
    "count_nonzero": reduction(np.count_nonzero),
    "nansum": reduction(np.nansum),
    "nanmean": reduction(np.nanmean),
    "aminmax": both(reduction(np.min), reduction(np.max)),
    "max.reduction_no_dim": lambda x: np.max(x),
    "min.reduction_no_dim": lambda x: np.min(x),
    "max.reduction_with_dim": reduction(np.max),
    "min.reduction_with_dim": reduction(np.min),
    "max.binary": np.maximum,
    "min.binary": np.minimum,
    "var": freedom(np.var),
    "std": freedom(np.std),
    "var_mean": freedom(
        lambda x, axis, ddof, keepdims: (
            np.var(x, axis, ddof=ddof, keepdims=keepdims),
            np.mean(x, axis, keepdims=keepdims),
        )
    ),
    "std_mean": freedom(
        lambda x, axis, ddof, keepdims: (
            np.std(x, axis, ddof=ddof, keepdims=keepdims),
            np.mean(x, axis, keepdims=keepdims),
        )
    ),
    "logsumexp": logsumexp,
    "softmax": softmax,
    "log_softmax": lambda x, dim, dtype=None: x - logsumexp(x, dim, True),
    "quantile": quantile(np.quantile),
    "nanquantile": quantile(np.nanquantile),
    "cumsum": cumulated(np.cumsum),
    "cumprod": cumulated(np.cumprod),
    "cummax": running(np.maximum),
    "cummin": running(np.minimum),
    "logcumsumexp": running(np.logaddexp),
    "diff": diff,
    "gradient": gradient,
    "trapezoid": trapezoid,
    "trapz": trapezoid,
    "cov": lambda x, correction=1, fweights=None, aweights=None: np.cov(
        x, ddof=correction, fweights=fweights, aweights=aweights
    ),
    "corrcoef": np.corrcoef,
    "sort": ordered,
    "msort": lambda x: x if x.ndim == 0 else np.sort(x, axis=0),
    "argsort": lambda x, dim=-1, descending=False, stable=False: (
        np.zeros((), int) if x.ndim == 0 else np.argsort(-x if descending else x, axis=dim)
    ),
    "topk": topk,
    "kthvalue": kth,
    "searchsorted": searchsorted,
    "bucketize": lambda v, s, out_int32=False, right=False: searchsorted(s, v, right=right),
    "isin": lambda a, b, assume_unique=False, invert=False: np.isin(a, b, invert=invert),
    "reshape": lambda x, *shape: x.reshape(*shape),
    "view": lambda x, *shape: x.reshape(*shape),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "view_as": lambda x, y: x.reshape(y.shape),
    "flatten": flatten,
    "unflatten": unflatten,
    "squeeze": lambda x, dim=None: (
        x if x.ndim == 0 or (dim is not None and x.shape[dim] != 1) else np.squeeze(x, dim)
    ),
    "unsqueeze": lambda x, dim: np.expand_dims(x, dim),
    "transpose": lambda x, a, b: x if x.ndim == 0 else np.swapaxes(x, a, b),
    "swapaxes": lambda x, a, b: x if x.ndim == 0 else np.swapaxes(x, a, b),
    "permute": permuted,
    "movedim": np.moveaxis,
    "t": lambda x: x.T,
    "T": lambda x: x.T,
    "mT": lambda x: np.swapaxes(x, -1, -2),
    "expand": expand,
    "expand_as": lambda x, y: np.broadcast_to(x, y.shape),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "broadcast_tensors": np.broadcast_arrays,
    "repeat": repeat,
    "tile": lambda x, *sizes: repeat(x, *sizes) if sizes else x,
    "repeat_interleave": repeat_interleave,
    "roll": lambda x, shifts, dims=None: (
        x
        if x.ndim == 0
        else np.roll(x, shifts, None if isinstance(dims, tuple | list) and len(dims) == 0 else dims)
    ),
    "rot90": lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims),
    "cat": lambda xs, dim=0: np.concatenate(
        [x for x in xs if x.shape != (0,)] or list(xs), axis=dim
    ),
    "stack": lambda xs, dim=0: np.stack(xs, axis=dim),
    "split": split,
    "split_with_sizes": split,
    "chunk": chunk,
    "tensor_split": lambda x, parts, dim=0: np.array_split(x, parts, dim),
    "unbind": lambda x, dim=0: tuple(at(x, dim, k) for k in range(x.shape[dim])),
    "narrow": narrow,
    "select": at,
    "unfold": unfold,
    "index_select": index_select,
    "gather": gather,
    "take": lambda x, index: np.take(x, index),
    "take_along_dim": take_along,
    "tril": lambda x, k=0: np.tril(x, k),
    "triu": lambda x, k=0: np.triu(x, k),
    "diag": np.diag,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: np.diagonal(x, offset, dim1, dim2),
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: np.diagonal(x, offset, dim1, dim2),
    "diag_embed": diag_embed,
    "diagflat": lambda x, offset=0: np.diagflat(x, offset),
    "trace": np.trace,
    "meshgrid.list_of_tensors": lambda xs, indexing="ij": np.meshgrid(*xs, indexing=indexing),
    "meshgrid.variadic_tensors": lambda *xs, indexing="ij": np.meshgrid(*xs, indexing=indexing),
    "block_diag": block_diag,
    "nn.functional.pad.constant": pad,
    "nn.functional.pad.reflect": pad,
    "nn.functional.pad.replicate": pad,
    "nn.functional.pad.circular": pad,
    "zeros_like": lambda x, **kw: np.zeros_like(x),
    "ones_like": lambda x, **kw: np.ones_like(x),
    "full_like": lambda x, value, **kw: np.full_like(x, value),
    "mm": np.matmul,
    "bmm": np.matmul,
    "mv": np.matmul,
    "addmm": matmul_plus,
    "addmv": matmul_plus,
    "baddbmm": matmul_plus,
    "addbmm": summed_plus,
    "addr": outer_plus,
    "einsum": einsum,
    "tensordot": lambda a, b, dims=2: np.tensordot(a, b, dims),
    "linalg.multi_dot": lambda xs: np.linalg.multi_dot(xs),
    "cross": cross,
    "linalg.cross": cross,
    "linalg.det": np.linalg.det,
    "logdet": lambda x: np.linalg.slogdet(x)[1],
    "linalg.slogdet": lambda x: tuple(np.linalg.slogdet(x)),
    "linalg.inv": np.linalg.inv,
    "linalg.solve": solve,
    "cholesky": lambda x, upper=False: np.linalg.cholesky(x, upper=upper),
    "linalg.cholesky": lambda x, upper=False: np.linalg.cholesky(x, upper=upper),
    "linalg.matrix_power": np.linalg.matrix_power,
    "linalg.norm": norm,
    "linalg.vector_norm": vector_norm,
    "linalg.matrix_norm": lambda x, ord="fro", dim=(-2, -1), keepdim=False: np.linalg.norm(
        x, ord, axis=axis_of(dim), keepdims=keepdim
    ),
    "linalg.vecdot": lambda a, b, dim=-1: np.vecdot(a, b, axis=dim),
    "linalg.vander": lambda x, N=None: np.vander(x, N, increasing=True),
    "linalg.tensorinv": np.linalg.tensorinv,
    "linalg.tensorsolve": lambda a, b, dims=None: np.linalg.tensorsolve(a, b, dims),
}
