"""The functions that the compiler knows, one row each, found by identity.

A row says what a function means on abstract values. With `fold`, a call whose arguments are all
known is made by Python itself while compiling, so `np.sqrt(2.0)` is the very number that NumPy
gives. Functions that make arrays of a given size do not fold: a million zeros are one operation,
not a constant.

NumPy's functions are below; Python's in `vocabulary_python`, Delian's own in `vocabulary_delian`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import DType
from . import arithmetic, indexing, linear, operators, reductions, shapes
from .arithmetic import tensor
from .values import Method, Tensor, describe, is_static

if TYPE_CHECKING:
    from .specialise import Specialiser

Handler = Callable[..., Any]


class Row:
    """What one function means."""

    __slots__ = ("fold", "function", "handler", "name")

    def __init__(self, function: Any, name: str, handler: Handler, fold: bool) -> None:
        self.function = function
        self.name = name
        self.handler = handler
        self.fold = fold

    def __call__(
        self, s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        from .calls import run_handler

        if self.fold and is_static((tuple(args), dict(kwargs))):
            return operators.python(s, lambda: f(*args, **kwargs), f"`{self.name}`")
        return run_handler(s, self.name, self.handler, args, kwargs)


# Elementwise


def _binary(handler: Handler) -> Handler:
    def run(s: Specialiser, x1: Any, x2: Any) -> Any:
        return handler(s, _array(s, x1), _array(s, x2))

    return run


def _array(s: Specialiser, value: Any) -> Any:
    """NumPy's functions take nested sequences for arrays."""
    return shapes.array(s, value) if isinstance(value, tuple | list) else value


def _floats(name: str) -> Handler:
    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.floating(s, name, _array(s, x))

    return run


def _numbers(name: str) -> Handler:
    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.elementwise(s, name, _array(s, x))

    return run


def _whole(name: str) -> Handler:
    """floor and ceil leave integers alone."""

    def run(s: Specialiser, x: Any) -> Tensor:
        value = tensor(s, x)
        return value if not value.dtype.is_float else arithmetic.elementwise(s, name, value)

    return run


def _absolute(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    return value if value.dtype is DType.BOOL else arithmetic.elementwise(s, "abs", value)


def _square(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.multiply(s, x, x)


def _reciprocal(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.divide(s, 1, x)


def _tan(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.divide(s, _floats("sin")(s, x), _floats("cos")(s, x))


def _log_base(base: float) -> Handler:
    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.divide(s, _floats("log")(s, x), float(np.log(base)))

    return run


def _exp2(s: Specialiser, x: Any) -> Tensor:
    return _floats("exp")(s, arithmetic.multiply(s, x, float(np.log(2.0))))  # type: ignore[no-any-return]


def _hyperbolic(sign: int) -> Handler:
    def run(s: Specialiser, x: Any) -> Tensor:
        up, down = _floats("exp")(s, x), _floats("exp")(s, arithmetic.negative(s, x))
        both = arithmetic.add(s, up, down) if sign > 0 else arithmetic.subtract(s, up, down)
        return arithmetic.divide(s, both, 2)

    return run


def _logaddexp(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    top = arithmetic.maximum(s, x1, x2)
    gap = arithmetic.negative(s, _absolute(s, arithmetic.subtract(s, x1, x2)))
    return arithmetic.add(s, top, _floats("log1p")(s, _floats("exp")(s, gap)))


def _hypot(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    return _floats("sqrt")(s, arithmetic.add(s, _square(s, x1), _square(s, x2)))  # type: ignore[no-any-return]


def _logical(handler: Handler) -> Handler:
    def run(s: Specialiser, x1: Any, x2: Any) -> Any:
        return handler(s, tensor(s, x1, DType.BOOL), tensor(s, x2, DType.BOOL))

    return run


def _logical_not(s: Specialiser, x: Any) -> Tensor:
    return Tensor(s.emit("not", tensor(s, x, DType.BOOL).value))


def _isnan(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    return arithmetic.not_equal(s, value, value)


def _isfinite(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    if not value.dtype.is_float:
        return Tensor(s.scope.number(True, DType.BOOL, value.shape))
    return Tensor(s.emit("is_finite", value.value))


def _isinf(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    lost = _logical_not(s, _isfinite(s, value))
    return arithmetic.bitwise_and(s, lost, arithmetic.equal(s, value, value))


def _where(s: Specialiser, condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise s.error(
            "DL115",
            "np.where(condition) alone has a shape that depends on the data",
            "give both values: np.where(condition, x, y)",
        )
    return arithmetic.select(s, _array(s, condition), _array(s, x), _array(s, y))


def _clip(
    s: Specialiser,
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    low, high = a_min if a_min is not None else min, a_max if a_max is not None else max
    out: Any = a if low is None else arithmetic.maximum(s, a, low)
    return out if high is None else arithmetic.minimum(s, out, high)


#: Powers of ten beyond are no floats.
_DECIMALS_MAX = 300


def _round(s: Specialiser, a: Any, decimals: Any = 0) -> Tensor:
    """Half to even, as NumPy rounds."""
    places = operators.static_int(s, decimals, "the number of decimals")
    if abs(places) > _DECIMALS_MAX:
        raise s.error("DL119", f"no float has {places} decimals")
    x = tensor(s, a)
    if not x.dtype.is_float:
        return x
    scaled = x if places == 0 else arithmetic.multiply(s, x, 10.0**places)
    low = arithmetic.elementwise(s, "floor", scaled)
    gap = arithmetic.subtract(s, scaled, low)
    odd = arithmetic.not_equal(s, arithmetic.remainder(s, low, 2), 0)
    tie = arithmetic.bitwise_and(s, arithmetic.equal(s, gap, 0.5), odd)
    up = arithmetic.bitwise_or(s, arithmetic.greater(s, gap, 0.5), tie)
    whole = arithmetic.add(s, low, Tensor(arithmetic.convert(s, up.value, low.dtype)))
    return whole if places == 0 else arithmetic.divide(s, whole, 10.0**places)


def _nan_to_num(s: Specialiser, x: Any, copy: Any = True, nan: Any = 0.0) -> Tensor:
    """NaN to `nan`; infinities to the largest numbers."""
    value = tensor(s, x)
    if not value.dtype.is_float:
        return value
    limit = float(np.finfo(value.dtype.numpy).max)
    kept = _clip(s, value, -limit, limit)
    return arithmetic.select(s, _isnan(s, value), nan, kept)


_ELEMENTWISE: tuple[tuple[Any, Handler], ...] = (
    (np.add, _binary(arithmetic.add)),
    (np.subtract, _binary(arithmetic.subtract)),
    (np.multiply, _binary(arithmetic.multiply)),
    (np.divide, _binary(arithmetic.divide)),
    (np.floor_divide, _binary(arithmetic.floor_divide)),
    (np.remainder, _binary(arithmetic.remainder)),
    (np.power, _binary(arithmetic.power)),
    (np.float_power, _binary(arithmetic.power)),
    (np.maximum, _binary(arithmetic.maximum)),
    (np.minimum, _binary(arithmetic.minimum)),
    (np.equal, _binary(arithmetic.equal)),
    (np.not_equal, _binary(arithmetic.not_equal)),
    (np.less, _binary(arithmetic.less)),
    (np.less_equal, _binary(arithmetic.less_equal)),
    (np.greater, _binary(arithmetic.greater)),
    (np.greater_equal, _binary(arithmetic.greater_equal)),
    (np.bitwise_and, _binary(arithmetic.bitwise_and)),
    (np.bitwise_or, _binary(arithmetic.bitwise_or)),
    (np.bitwise_xor, _binary(arithmetic.bitwise_xor)),
    (np.left_shift, _binary(arithmetic.left_shift)),
    (np.right_shift, _binary(arithmetic.right_shift)),
    (np.logical_and, _logical(arithmetic.bitwise_and)),
    (np.logical_or, _logical(arithmetic.bitwise_or)),
    (np.logical_xor, _logical(arithmetic.bitwise_xor)),
    (np.logical_not, _logical_not),
    (np.logaddexp, _logaddexp),
    (np.hypot, _hypot),
    (np.negative, arithmetic.negative),
    (np.positive, arithmetic.positive),
    (np.invert, arithmetic.invert),
    (np.absolute, _absolute),
    (np.fabs, _floats("abs")),
    (np.sign, _numbers("sign")),
    (np.floor, _whole("floor")),
    (np.ceil, _whole("ceil")),
    (np.rint, _round),
    (np.round, _round),
    (np.exp, _floats("exp")),
    (np.exp2, _exp2),
    (np.expm1, _floats("expm1")),
    (np.log, _floats("log")),
    (np.log2, _log_base(2.0)),
    (np.log10, _log_base(10.0)),
    (np.log1p, _floats("log1p")),
    (np.sqrt, _floats("sqrt")),
    (np.sin, _floats("sin")),
    (np.cos, _floats("cos")),
    (np.tan, _tan),
    (np.sinh, _hyperbolic(-1)),
    (np.cosh, _hyperbolic(1)),
    (np.tanh, _floats("tanh")),
    (np.square, _square),
    (np.reciprocal, _reciprocal),
    (np.isnan, _isnan),
    (np.isinf, _isinf),
    (np.isfinite, _isfinite),
    (np.where, _where),
    (np.clip, _clip),
    (np.nan_to_num, _nan_to_num),
)

_ALONG_AXES: tuple[tuple[Any, Handler], ...] = (
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
    (np.argmax, reductions.argmax),
    (np.argmin, reductions.argmin),
    (np.argsort, reductions.argsort),
    (np.sort, reductions.sort),
    (np.cumsum, reductions.cumsum),
    (np.median, reductions.median),
    (np.count_nonzero, reductions.count_nonzero),
    (np.linalg.norm, reductions.norm),
)

_SHAPES: tuple[tuple[Any, Handler], ...] = (
    (np.reshape, shapes.reshape),
    (np.ravel, shapes.ravel),
    (np.transpose, shapes.transpose),
    (np.swapaxes, shapes.swapaxes),
    (np.moveaxis, shapes.moveaxis),
    (np.expand_dims, shapes.expand_dims),
    (np.squeeze, shapes.squeeze),
    (np.broadcast_to, shapes.broadcast_to),
    (np.atleast_1d, shapes.atleast_1d),
    (np.concatenate, shapes.concatenate),
    (np.stack, shapes.stack),
    (np.vstack, shapes.vstack),
    (np.hstack, shapes.hstack),
    (np.split, shapes.split),
    (np.repeat, shapes.repeat),
    (np.tile, shapes.tile),
    (np.flip, shapes.flip),
    (np.roll, shapes.roll),
    (np.pad, shapes.pad),
    (np.take, shapes.take),
    (np.take_along_axis, shapes.take_along_axis),
    (np.tril, shapes.tril),
    (np.triu, shapes.triu),
    (np.diff, shapes.diff),
    (np.copy, shapes.copy),
    (np.array, shapes.array),
    (np.asarray, shapes.array),
    (np.ascontiguousarray, shapes.array),
    (np.matmul, linear.matmul),
    (np.dot, linear.dot),
    (np.inner, linear.inner),
    (np.vdot, linear.vdot),
    (np.outer, linear.outer),
    (np.tensordot, linear.tensordot),
    (np.einsum, linear.einsum),
)

#: Not folded: their result may be large though their arguments are small.
_MAKING: tuple[tuple[Any, Handler], ...] = (
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
    (np.eye, shapes.eye),
    (np.identity, shapes.eye),
)


def _shape(s: Specialiser, a: Any) -> tuple[int, ...]:
    return arithmetic.shape_of(_array(s, a))


def _ndim(s: Specialiser, a: Any) -> int:
    return len(_shape(s, a))


def _size(s: Specialiser, a: Any, axis: Any = None) -> int:
    shape = _shape(s, a)
    return tensor(s, a).type.size if axis is None else shape[shapes.axis_of(s, a, axis)]


def _result_type(s: Specialiser, *values: Any) -> np.dtype[Any]:
    return arithmetic.result_dtype(s, values)[0].numpy


_ASKING: tuple[tuple[Any, Handler], ...] = (
    (np.shape, _shape),
    (np.ndim, _ndim),
    (np.size, _size),
    (np.result_type, _result_type),
)


def _constructor(dtype: DType) -> Handler:
    def run(s: Specialiser, x: Any = 0) -> Tensor:
        return tensor(s, _array(s, x), dtype)

    return run


def _numpy_rows() -> list[Row]:
    rows = [
        Row(f, f"np.{f.__name__}", h, True)
        for group in (_ELEMENTWISE, _ALONG_AXES, _SHAPES, _ASKING)
        for f, h in group
    ]
    rows += [Row(f, f"np.{f.__name__}", h, False) for f, h in _MAKING]
    rows += [Row(d.numpy.type, f"np.{d.numpy.name}", _constructor(d), True) for d in DType]
    return rows


# Attributes of tensors


def _item(s: Specialiser, x: Tensor) -> Tensor:
    return Tensor(indexing.reshape(s, x.value, ()), True)


#: ndarray's methods.
METHODS: dict[str, Handler] = {
    "astype": shapes.astype,
    "view": shapes.view,
    "reshape": shapes.reshape,
    "ravel": shapes.ravel,
    "flatten": shapes.ravel,
    "transpose": shapes.transpose,
    "swapaxes": shapes.swapaxes,
    "squeeze": shapes.squeeze,
    "repeat": shapes.repeat,
    "take": shapes.take,
    "copy": shapes.copy,
    "sum": reductions.sum_,
    "prod": reductions.prod,
    "mean": reductions.mean,
    "var": reductions.var,
    "std": reductions.std,
    "max": reductions.max_,
    "min": reductions.min_,
    "any": reductions.any_,
    "all": reductions.all_,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argsort": reductions.argsort,
    "cumsum": reductions.cumsum,
    "dot": linear.dot,
    "clip": _clip,
    "round": _round,
    "item": _item,
}

PROPERTIES: dict[str, Callable[[Specialiser, Tensor], Any]] = {
    "shape": lambda s, x: x.shape,
    "ndim": lambda s, x: len(x.shape),
    "size": lambda s, x: x.type.size,
    "dtype": lambda s, x: x.dtype.numpy,
    "itemsize": lambda s, x: x.dtype.itemsize,
    "nbytes": lambda s, x: x.type.nbytes,
    "T": lambda s, x: shapes.transpose(s, x),
    "mT": lambda s, x: shapes.swapaxes(s, x, -1, -2),
}

#: Methods that an ndarray has and a compiled program cannot: name -> what to do instead.
_INSTEAD = {
    "sort": "x.sort() changes x; use np.sort(x)",
    "fill": "an array cannot be changed; use np.full_like(x, value)",
    "tolist": "the numbers are not known while compiling; index the array",
    "nonzero": "its shape depends on the data; weigh with a mask, or use np.argsort",
    "put": "an array cannot be changed; use np.where or dl.ops.dynamic_update",
    "resize": "an array cannot be changed; use np.reshape or np.pad",
}


def tensor_attribute(s: Specialiser, x: Tensor, name: str) -> Any:
    found = PROPERTIES.get(name)
    if found is not None:
        return found(s, x)
    handler = METHODS.get(name)
    if handler is not None:
        return Method(name, x, handler)
    near = difflib.get_close_matches(name, [*METHODS, *PROPERTIES], 1)
    text = _INSTEAD.get(name) or (f"did you mean `{near[0]}`?" if near else "")
    raise s.error("DL104", f"{describe(x)} has no attribute `{name}` in a compiled program", text)


# Finding rows

_TABLE: dict[int, Row] = {}
#: NumPy functions whose absence needs a word: name -> hint.
_NUMPY_HINTS = {
    "nonzero": "its shape depends on the data; weigh with a mask instead",
    "argwhere": "its shape depends on the data; weigh with a mask instead",
    "unique": "its shape depends on the data; use np.sort and compare neighbours",
    "put_along_axis": "an array cannot be changed; use np.where",
    "fill_diagonal": "an array cannot be changed; use np.where(np.eye(n, dtype=bool), value, x)",
    "erf": "use dl.ops.erf",
}


def _table() -> dict[int, Row]:
    if not _TABLE:
        from . import vocabulary_delian, vocabulary_python

        for row in (*_numpy_rows(), *vocabulary_python.rows(), *vocabulary_delian.rows()):
            _TABLE[id(row.function)] = row
    return _TABLE


def find(f: Any) -> Row | None:
    """The row of a function, if it has one."""
    row = (_TABLE or _table()).get(id(f))
    return row if row is not None and row.function is f else None


def names() -> list[str]:
    """Every function's name, sorted."""
    return sorted({row.name for row in _table().values()})


def hint(f: Any) -> str:
    """What to use instead of a function without a row."""
    module = getattr(f, "__module__", None) or type(f).__module__ or ""
    name = getattr(f, "__name__", type(f).__name__)
    owner = getattr(f, "__self__", None)
    if module.startswith("numpy.random") or type(owner).__module__.startswith("numpy.random"):
        return "use delian.random: uniform(key, shape), normal(key, shape), permutation(key, ...)"
    if module.split(".")[0] == "math":
        return f"math works on known numbers alone; use np.{name}"
    if module.split(".")[0] == "numpy" or isinstance(f, np.ufunc):
        if name in _NUMPY_HINTS:
            return _NUMPY_HINTS[name]
        known = [n.removeprefix("np.") for n in names() if n.startswith("np.")]
        near = difflib.get_close_matches(name, known, 1)
        if near:
            return f"the nearest that it knows is `np.{near[0]}`"
        return "write it with the functions that it knows, or call it outside the compiled function"
    if module == "builtins" and name in ("print", "breakpoint", "input"):
        return "run the function op by op with dl.debug() or DELIAN_DEBUG=1 to look inside"
    if module == "builtins":
        near = difflib.get_close_matches(name, names(), 1)
        return f"the nearest that it knows is `{near[0]}`" if near else ""
    return "it has no Python source; write it with NumPy's functions, or call it outside"
