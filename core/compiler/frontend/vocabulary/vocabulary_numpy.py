"""NumPy's functions: one row each, under NumPy's own names and with its semantics.

A handler builds operations; a `Defined` one is written in NumPy itself (`definitions`). What a row
leaves out of NumPy's is in a note of the row: docs/vocabulary.md is made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...traced import ARRAY, BOOL, SCALAR
from ..complexes import complex_functions as complex_functions
from ..complexes import fourier
from ..definitions import (
    np_arrays,
    np_grids,
    np_matrices,
    np_numbers,
    np_orders,
    np_signals,
    np_spectra,
    np_statistics,
)
from ..memory import array_changes
from ..numpy import (
    arithmetic,
    checked_functions,
    elementwise,
    linear_systems,
    matrix_products,
    reductions,
    shapes,
    strided_views,
    taking,
)
from ..numpy.arithmetic import tensor
from ..numpy.elementwise import array, binary, floats, logical, whole
from ..numpy.elementwise import numbers as of_numbers
from ..ragged import ragged_searches
from ..values import Once, Tensor, Text
from .vocabulary_table import Defined, Handler, Row

if TYPE_CHECKING:
    from ..specialise import Specialiser

Named = tuple[Any, Handler]


def _definitions(module: Any, names: str, source: Any = np) -> Iterator[Named]:
    """NumPy's functions of these names, as a module of `definitions` defines them."""
    for name in names.split():
        if hasattr(source, name):  # A few are not in every NumPy 2.
            yield getattr(source, name), Defined(getattr(module, name))


def _of_range(names: str, top: int, words: str) -> Iterator[Named]:
    for name in names.split():
        yield getattr(np, name), checked_functions.in_range(getattr(np, name), top, words)


def _some(source: Any, **handlers: Handler) -> Iterator[Named]:
    for name, handler in handlers.items():
        if hasattr(source, name):
            yield getattr(source, name), handler


_ARITHMETIC: tuple[Named, ...] = (
    (np.add, binary(arithmetic.add)),
    (np.subtract, binary(arithmetic.subtract)),
    (np.multiply, binary(arithmetic.multiply)),
    (np.divide, binary(arithmetic.divide)),
    (np.floor_divide, binary(arithmetic.floor_divide)),
    (np.remainder, binary(arithmetic.remainder)),
    *_definitions(np_numbers, "fmod divmod modf"),
    (np.ldexp, checked_functions.ldexp),
    *_definitions(np_numbers, "gcd lcm"),
    (np.power, binary(arithmetic.power)),
    (np.float_power, elementwise.float_power),
    (np.negative, arithmetic.negative),
    (np.positive, arithmetic.positive),
    (np.absolute, elementwise.absolute),
    (np.fabs, floats("abs")),
    (np.sign, of_numbers("sign")),
    *_definitions(np_numbers, "copysign heaviside real angle"),
    (np.imag, checked_functions.imag),
    (np.conjugate, elementwise.conjugate),
    (np.square, elementwise.square),
    (np.sqrt, floats("sqrt")),
    *_definitions(np_numbers, "cbrt"),
    (np.reciprocal, elementwise.reciprocal),
    (np.hypot, elementwise.hypot),
    (np.floor, whole("floor")),
    (np.ceil, whole("ceil")),
    (np.trunc, elementwise.trunc),
    (np.fix, elementwise.trunc),
    (np.rint, elementwise.rint),
    (np.round, elementwise.round_),
    (np.around, elementwise.round_),
    (np.clip, elementwise.clip),
    (np.maximum, binary(arithmetic.maximum)),
    (np.minimum, binary(arithmetic.minimum)),
    *_definitions(np_numbers, "fmax fmin"),
    (np.nan_to_num, checked_functions.nan_to_num),
)

_TRANSCENDENTAL: tuple[Named, ...] = (
    (np.exp, floats("exp")),
    (np.exp2, elementwise.exp2),
    (np.expm1, floats("expm1")),
    (np.log, floats("log")),
    (np.log2, elementwise.log_base(2.0)),
    (np.log10, elementwise.log_base(10.0)),
    (np.log1p, floats("log1p")),
    (np.logaddexp, elementwise.logaddexp),
    *_definitions(np_numbers, "logaddexp2"),
    (np.sin, floats("sin")),
    (np.cos, floats("cos")),
    (np.tan, elementwise.tan),
    (np.arcsin, elementwise.arcsin),
    (np.arccos, elementwise.arccos),
    (np.arctan, elementwise.arctan),
    (np.arctan2, elementwise.arctan2),
    (np.tanh, floats("tanh")),
    *_definitions(np_numbers, "sinh cosh arcsinh arccosh arctanh sinc deg2rad rad2deg unwrap"),
    (np.radians, Defined(np_numbers.deg2rad)),
    (np.degrees, Defined(np_numbers.rad2deg)),
)

_LOGIC: tuple[Named, ...] = (
    (np.equal, binary(arithmetic.equal)),
    (np.not_equal, binary(arithmetic.not_equal)),
    (np.less, binary(arithmetic.less)),
    (np.less_equal, binary(arithmetic.less_equal)),
    (np.greater, binary(arithmetic.greater)),
    (np.greater_equal, binary(arithmetic.greater_equal)),
    *_definitions(np_numbers, "isclose allclose array_equal array_equiv"),
    (np.isnan, elementwise.isnan),
    (np.isinf, elementwise.isinf),
    (np.isfinite, elementwise.isfinite),
    *_definitions(np_numbers, "isposinf isneginf"),
    (np.signbit, elementwise.signbit),
    (np.logical_and, logical(arithmetic.bitwise_and)),
    (np.logical_or, logical(arithmetic.bitwise_or)),
    (np.logical_xor, logical(arithmetic.bitwise_xor)),
    (np.logical_not, elementwise.logical_not),
    (np.bitwise_and, binary(arithmetic.bitwise_and)),
    (np.bitwise_or, binary(arithmetic.bitwise_or)),
    (np.bitwise_xor, binary(arithmetic.bitwise_xor)),
    (np.invert, arithmetic.invert),
    (np.left_shift, binary(arithmetic.left_shift)),
    (np.right_shift, binary(arithmetic.right_shift)),
    (np.where, ragged_searches.where),
    (np.nonzero, ragged_searches.nonzero),
    (np.flatnonzero, ragged_searches.flatnonzero),
    (np.argwhere, ragged_searches.argwhere),
    *_definitions(np_numbers, "select piecewise"),
    (np.choose, checked_functions.choose),
    *_definitions(np_numbers, "isreal iscomplex isrealobj iscomplexobj"),
)

_REDUCTIONS: tuple[Named, ...] = (
    (np.sum, reductions.sum_),
    (np.prod, reductions.prod),
    (np.mean, reductions.mean),
    (np.average, reductions.average),
    (np.var, reductions.var),
    (np.std, reductions.std),
    (np.max, reductions.max_),
    (np.amax, reductions.max_),
    (np.min, reductions.min_),
    (np.amin, reductions.min_),
    (np.any, reductions.any_),
    (np.all, reductions.all_),
    (np.count_nonzero, reductions.count_nonzero),
    (np.argmax, reductions.argmax),
    (np.argmin, reductions.argmin),
    (np.cumsum, reductions.cumsum),
    (np.cumprod, reductions.cumprod),
    *_definitions(np_statistics, "ptp median cov corrcoef"),
    *_of_range("quantile nanquantile", 1, "Quantiles"),
    *_of_range("percentile nanpercentile", 100, "Percentiles"),
    *_definitions(np_statistics, "nansum nanprod nanmean nanvar nanstd nanmax nanmin nanmedian"),
    (np.nanargmax, checked_functions.nan_place(np.nanargmax)),
    (np.nanargmin, checked_functions.nan_place(np.nanargmin)),
    *_definitions(np_statistics, "nancumsum nancumprod"),
    *_definitions(np_statistics, "cumulative_sum cumulative_prod"),
)


_ORDER: tuple[Named, ...] = (
    (np.sort, reductions.sort),
    (np.argsort, reductions.argsort),
    (np.unique, ragged_searches.unique),
    *_definitions(np_orders, "lexsort partition argpartition searchsorted isin interp"),
    (np.digitize, checked_functions.digitize),
    (np.bincount, reductions.bincount),
    (np.histogram, checked_functions.histogram),
    *_definitions(np_orders, "histogram_bin_edges"),
)

_SHAPES: tuple[Named, ...] = (
    (np.reshape, shapes.reshape),
    (np.ravel, shapes.ravel),
    (np.transpose, checked_functions.transpose),
    (np.swapaxes, shapes.swapaxes),
    (np.moveaxis, shapes.moveaxis),
    (np.expand_dims, shapes.expand_dims),
    (np.squeeze, checked_functions.kept(shapes.squeeze)),
    (np.broadcast_to, shapes.broadcast_to),
    (np.lib.stride_tricks.as_strided, strided_views.as_strided),
    (np.lib.stride_tricks.sliding_window_view, strided_views.sliding_window_view),
    (np.atleast_1d, shapes.atleast_1d),
    *_definitions(np_arrays, "atleast_2d atleast_3d broadcast_arrays fromiter rollaxis"),
    *_definitions(np_arrays, "matrix_transpose"),
    (np.concatenate, shapes.concatenate),
    (np.stack, shapes.stack),
    (np.vstack, shapes.vstack),
    (np.hstack, shapes.hstack),
    *_definitions(np_arrays, "dstack column_stack block append insert delete"),
    (np.split, shapes.split),
    *_definitions(np_arrays, "array_split vsplit hsplit dsplit unstack"),
    (np.repeat, shapes.repeat),
    (np.tile, shapes.tile),
    *_definitions(np_arrays, "resize"),
    (np.flip, shapes.flip),
    *_definitions(np_arrays, "flipud fliplr rot90"),
    (np.roll, shapes.roll),
    (np.pad, taking.pad),
    (np.take, taking.take),
    (np.take_along_axis, taking.take_along_axis),
    *_definitions(np_grids, "triu_indices_from tril_indices_from diag_indices_from"),
    *_definitions(np_grids, "apply_along_axis row_stack"),
    (np.compress, ragged_searches.compress),
    (np.extract, ragged_searches.extract),
    *_definitions(np_arrays, "ix_"),
    (np.unravel_index, checked_functions.unravel_index),
    (np.ravel_multi_index, checked_functions.ravel_multi_index),
    (np.tril, shapes.tril),
    (np.triu, shapes.triu),
    *_definitions(np_arrays, "diagonal diag diagflat trace vander"),
    (np.copy, shapes.copy),
    (np.array, shapes.array),
    (np.asarray, strided_views.as_array),
    (np.asanyarray, strided_views.as_array),
    (np.ascontiguousarray, lambda s, a, dtype=None: shapes.array(s, a, dtype, ndmin=1)),
)

_SIGNALS: tuple[Named, ...] = (
    (np.diff, taking.diff),
    *_definitions(np_signals, "ediff1d gradient trapezoid convolve correlate"),
    *_definitions(np_signals, "polyval polyadd polysub polyder polyint"),
    (np.polymul, checked_functions.polymul),
)

_PRODUCTS: tuple[Named, ...] = (
    (np.matmul, matrix_products.matmul),
    (np.dot, matrix_products.dot),
    (np.inner, matrix_products.inner),
    (np.vdot, matrix_products.vdot),
    (np.outer, matrix_products.outer),
    (np.tensordot, matrix_products.tensordot),
    (np.einsum, matrix_products.einsum),
    *_definitions(np_arrays, "kron"),
    *_definitions(np_matrices, "cross vecdot matvec vecmat"),
)

_LINALG: tuple[Named, ...] = (
    (np.linalg.cholesky, linear_systems.cholesky),
    (np.linalg.solve, linear_systems.solve),
    (np.linalg.inv, linear_systems.inv),
    (np.linalg.det, linear_systems.det),
    (np.linalg.slogdet, linear_systems.slogdet),
    (np.linalg.multi_dot, linear_systems.multi_dot),
    *_definitions(np_matrices, "norm matrix_power tensorsolve tensorinv", np.linalg),
    *_definitions(np_spectra, "qr eigh eigvalsh svd svdvals pinv matrix_rank cond", np.linalg),
    *_definitions(np_matrices, "vector_norm matrix_norm vecdot", np.linalg),
    *_definitions(np_arrays, "matrix_transpose", np.linalg),
    *_some(
        np.linalg,
        matmul=matrix_products.matmul,
        outer=Defined(np_matrices.linalg_outer),
        cross=Defined(np_matrices.linalg_cross),
        tensordot=matrix_products.tensordot,
    ),
    *_some(
        np.linalg,
        diagonal=lambda s, x, offset=0: s.call(np_arrays.diagonal, x, offset, -2, -1),
        trace=lambda s, x, offset=0, dtype=None: s.call(np_arrays.trace, x, offset, -2, -1, dtype),
    ),
)

_FOURIER: tuple[Named, ...] = tuple(
    (getattr(np.fft, name), getattr(fourier, name)) for name in fourier.NAMES
)

#: Not folded: their result may be large though their arguments are small.
_MAKING: tuple[Named, ...] = (
    (np.zeros, shapes.zeros),
    (np.ones, shapes.ones),
    (np.empty, shapes.zeros),
    (np.full, shapes.full),
    (np.zeros_like, shapes.zeros_like),
    (np.ones_like, shapes.ones_like),
    (np.empty_like, shapes.zeros_like),
    (np.full_like, shapes.full_like),
    (np.arange, shapes.arange),
    (np.linspace, shapes.linspace),
    *_definitions(np_arrays, "logspace"),
    (np.geomspace, checked_functions.geomspace),
    (np.eye, shapes.eye),
    (np.identity, shapes.identity),
    (np.tri, shapes.tri),
    *_definitions(np_arrays, "meshgrid indices fromfunction"),
    (np.ndindex, lambda s, *shape: _ndindex(s, *shape)),
)


def _shape(s: Specialiser, a: Any) -> tuple[int, ...]:
    return arithmetic.shape_of(array(s, a))


def _ndim(s: Specialiser, a: Any) -> int:
    return len(_shape(s, a))


def _size(s: Specialiser, a: Any, axis: Any = None) -> int:
    shape = _shape(s, a)
    return tensor(s, a).type.size if axis is None else shape[shapes.axis_of(s, a, axis)]


def _result_type(s: Specialiser, *values: Any) -> np.dtype[Any]:
    kinds = [np.empty(0, v) if isinstance(v, type | np.dtype) else array(s, v) for v in values]
    return arithmetic.result_dtype(s, kinds)[0].numpy


def _isscalar(s: Specialiser, element: Any) -> bool:
    if type(element) is not Tensor:
        return type(element) is Text
    if element.kind & ARRAY and element.kind != ARRAY:
        raise s.needs_static(element, "the class of an argument of `np.isscalar`")
    return element.kind != ARRAY


def _ndindex(s: Specialiser, *shape: Any) -> Once:
    sizes = shapes.shape_argument(s, shape[0] if len(shape) == 1 else shape)
    return Once(lambda: list(np.ndindex(*sizes)), s.region)


def _ndenumerate(s: Specialiser, arr: Any) -> Once:
    x = tensor(s, array(s, arr))
    return Once(lambda: [(at, s.subscript(x, at)) for at in np.ndindex(*x.shape)], s.region)


def _astype(s: Specialiser, x: Any, dtype: Any, /, *, copy: Any = True) -> Tensor:
    return shapes.astype(s, x, dtype)


_ASKING: tuple[Named, ...] = (
    (np.shape, _shape),
    (np.ndim, _ndim),
    (np.size, _size),
    (np.isscalar, _isscalar),
    (np.ndenumerate, _ndenumerate),
    (np.result_type, _result_type),
    *_some(np, astype=_astype),
)

_IN_PLACE: tuple[Named, ...] = (
    (np.copyto, array_changes.copyto),
    (np.fill_diagonal, array_changes.fill_diagonal),
    (np.place, array_changes.place),
    (np.put, array_changes.put),
    (np.putmask, array_changes.putmask),
)

#: The chapters of docs/vocabulary.md.
GROUPS: tuple[tuple[str, tuple[Named, ...]], ...] = (
    ("Arithmetic and rounding", _ARITHMETIC),
    ("Exponentials, logarithms, trigonometry", _TRANSCENDENTAL),
    ("Comparison, logic, bits, choice", _LOGIC),
    ("Reductions and statistics", _REDUCTIONS),
    ("Order, search, counting", _ORDER),
    ("Shape, joining, taking", _SHAPES),
    ("Making arrays", _MAKING),
    ("Changes in place", _IN_PLACE),
    ("Sequences and polynomials", _SIGNALS),
    ("Products", _PRODUCTS),
    ("Linear algebra", _LINALG),
    ("Fourier transforms", _FOURIER),
    ("Types and sizes", _ASKING),
)


#: Where a row differs from NumPy's function, beyond what holds for all.
NOTES = {
    "np.arange": "its bounds must be known",
    "np.argpartition": "sorted throughout",
    "np.argsort": "always stable, whatever `kind` says",
    "np.bincount": "`minlength` must be given and reach the numbers: it is the length",
    "np.correlate": "in one dimension",
    "np.convolve": "in one dimension",
    "np.delete": "`obj` must be known",
    "np.digitize": "bins that fall must be known; others must grow",
    "np.einsum": "any subscripts; products from the left, whatever `optimize` says",
    "np.empty": "zeros",
    "np.empty_like": "zeros",
    "np.float_power": "in f64",
    "np.geomspace": "of numbers above zero",
    "np.histogram": "the number of bins must be known",
    "np.insert": "`obj` must be known",
    "np.interp": "in f64",
    "np.lib.stride_tricks.as_strided": "within the array, and to be read",
    "np.lib.stride_tricks.sliding_window_view": "to be read",
    "np.linalg.cholesky": "of one triangle, so the slope of the other is zero",
    "np.linalg.det": "written out up to 3 by 3; beyond, no slope where it is singular",
    "np.linalg.matrix_norm": "no norm of singular values",
    "np.linalg.norm": "no matrix norm of singular values (`2`, `-2`, `'nuc'`)",
    "np.linalg.eigh": "vectors up to their signs; NaN where it does not converge",
    "np.linalg.svd": "vectors up to their signs; those that complete a basis have no slope",
    "np.linalg.pinv": "one `rcond` for all matrices",
    "np.pad": "modes constant, empty, edge, reflect, symmetric, wrap",
    "np.partition": "sorted throughout",
    "np.percentile": "methods as in np.quantile",
    "np.piecewise": "every function is run on all of x",
    "np.power": "whole numbers by a negative known number are refused; by a computed one give 0",
    "np.quantile": "methods linear, lower, higher, nearest, midpoint and those of Hyndman and Fan"
    " that interpolate",
    "np.repeat": "repeats must be known",
    "np.reshape": "orders C and F",
    "np.searchsorted": "`a` must be a vector",
    "np.select": "conditions from the first",
    "np.sort": "always stable, whatever `kind` says",
    "np.split": "where to split must be known",
    "np.take": "an index out of range is moved to the nearest end, or round with `mode='wrap'`",
    "np.vander": "`x` must be a vector",
}


def _name(function: Any, group: Iterable[Named]) -> str:
    prefix = "np.linalg." if group is _LINALG else "np.fft." if group is _FOURIER else "np."
    if group is _SHAPES and not hasattr(np, function.__name__):
        prefix = "np.lib.stride_tricks."
    return f"{prefix}{function.__name__}"


#: Functions that give an array where others give a number of NumPy's: x[()] has no axis but is one.
_ARRAYS = frozenset(
    (
        *("array", "asarray", "asanyarray", "ascontiguousarray", "copy", "zeros", "ones", "empty"),
        "full",
        *("zeros_like", "ones_like", "empty_like", "full_like", "reshape", "unique"),
        *("swapaxes", "moveaxis", "expand_dims", "broadcast_to", "flipud"),
        *("fliplr", "roll", "rollaxis", "rot90", "matrix_transpose", "where", "select"),
        *("tensordot", "cov", "piecewise", "take_along_axis", "pad", "apply_along_axis"),
        *("isin", "broadcast_arrays", "block", "tensorsolve", "tile", "resize", "cross"),
    )
)
_PYTHON = {"allclose": BOOL, "array_equal": BOOL, "array_equiv": BOOL, "isscalar": BOOL}


def _gives(name: str) -> int | None:
    """What a single number of a function's result is in Python."""
    last = name.rpartition(".")[2]
    if last in ("real", "imag", "squeeze", "transpose"):
        return None  # What it is given.
    return ARRAY if last in _ARRAYS else _PYTHON.get(last, SCALAR)


def rows() -> list[Row]:
    """A row for each function and scalar type of NumPy that the compiler knows."""
    made: dict[int, Row] = {}
    for _, group in GROUPS:
        for f, handler in group:
            # Two names of one function (np.max is np.amax) are one row, by its own name.
            name = _name(f, group)
            fold = group not in (_MAKING, _IN_PLACE)
            made.setdefault(id(f), Row(f, name, handler, fold, _gives(name)))
    out = list(made.values())
    for kind in (np.complex64, np.complex128):
        handler = complex_functions.converted(kind)
        out.append(Row(kind, f"np.{kind.__name__}", handler, True, None))
    for d in DType.here():
        # Types from outside NumPy (bfloat16) may crash on what is no number.
        builtin = d.numpy.isbuiltin == 1
        out.append(Row(d.numpy.type, f"np.{d.numpy.name}", elementwise.constructor(d), builtin))
    return out
