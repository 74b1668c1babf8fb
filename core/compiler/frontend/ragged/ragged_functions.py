"""NumPy's functions along the axis whose length the data decide: sums, extremes, order, joining.

Each takes the row's own handler for the elements, and sees to the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from .. import operators
from ..memory import stores
from ..numpy import arithmetic, indexing
from ..numpy.formulas import fails
from ..operators import static_int
from ..values import Tensor, describe, is_number
from . import (
    capacity,
    check,
    elementwise,
    filled,
    new,
    normal,
    number,
    plain,
    ragged_selection,
    rank,
    refused,
    same_count,
    shape,
    size,
    taken,
    valid,
)
from .ragged_arguments import axis_of

if TYPE_CHECKING:
    from ..specialise import Specialiser


def axes_of(s: Specialiser, r: Ragged, axis: Any, what: str) -> tuple[int, ...]:
    """The axes that an argument `axis` names, counted from the front."""
    if axis is None:
        return tuple(range(rank(r)))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple([axis_of(s, what, static_int(s, k, "an axis"), rank(r)) for k in given])


def _off(
    s: Specialiser, r: Ragged, f: Any, axes: tuple[int, ...], keepdims: Any, **kwargs: Any
) -> Ragged:
    """A reduction of other axes: one for each entry."""
    given = axes[0] if len(axes) == 1 else axes
    extra = {"keepdims": keepdims} if keepdims else {}
    data = s.call(f, plain(r), axis=given, **extra, **kwargs)
    axis = r.axis if keepdims else r.axis - sum(1 for k in axes if k < r.axis)
    return new(s, data, r.count, axis)


def _reduced(identity: Any) -> Callable[..., Any]:
    """A sum, a product, `any`, `all`: with the number that changes nothing in the padding."""

    def run(
        s: Specialiser, f: Any, a: Any, axis: Any = None, *, keepdims: Any = False, **kwargs: Any
    ) -> Any:
        axes = axes_of(s, a, axis, f"np.{f.__name__}")
        if a.axis not in axes:
            return _off(s, a, f, axes, keepdims, **kwargs)
        extra = {"keepdims": keepdims} if keepdims else {}
        given = None if axis is None else axes[0] if len(axes) == 1 else axes
        return s.call(f, filled(s, a, identity), axis=given, **extra, **kwargs)

    return run


def _least(dtype: DType, largest: bool) -> Any:
    """What is no larger (or smaller) than any number of a type."""
    if dtype is DType.BOOL:
        return not largest
    if dtype.is_float:
        return -np.inf if largest else np.inf
    info = np.iinfo(dtype.numpy)
    return int(info.min if largest else info.max)


def _extreme(largest: bool) -> Callable[..., Any]:
    def run(
        s: Specialiser, f: Any, a: Any, axis: Any = None, *, keepdims: Any = False, **kwargs: Any
    ) -> Any:
        axes = axes_of(s, a, axis, f"np.{f.__name__}")
        if a.axis not in axes:
            return _off(s, a, f, axes, keepdims, **kwargs)
        name = "maximum" if largest else "minimum"
        if kwargs.get("initial") is None:
            text = f"zero-size array to reduction operation {name} which has no identity"
            _not_empty(s, a, text)
        if not capacity(a):
            raise s.error("DL115", f"{describe(a)} has no largest or smallest element")
        extra = {"keepdims": keepdims} if keepdims else {}
        given = None if axis is None else axes[0] if len(axes) == 1 else axes
        whole = filled(s, a, _least(a.data.dtype, largest))
        return s.call(f, whole, axis=given, **extra, **kwargs)

    return run


def _not_empty(s: Specialiser, r: Ragged, text: str) -> None:
    def make(count: int) -> BaseException:
        return ValueError(text)

    check(s, arithmetic.equal(s, Tensor(r.count.value), 0), make, r.count)


def _place(largest: bool) -> Callable[..., Any]:
    def run(s: Specialiser, f: Any, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
        axes = axes_of(s, a, axis, f"np.{f.__name__}")
        if a.axis not in axes:
            return _off(s, a, f, axes, keepdims)
        if axis is None and a.axis:
            raise refused(s, f"np.{f.__name__}", a, "say along which axis")
        _not_empty(s, a, f"attempt to get {f.__name__} of an empty sequence")
        extra = {"keepdims": keepdims} if keepdims else {}
        return s.call(f, filled(s, a, _least(a.data.dtype, largest)), axis=axis, **extra)

    return run


def _spread(s: Specialiser, a: Ragged, axes: tuple[int, ...], dtype: DType) -> Tensor:
    """How many elements are reduced."""
    others = 1
    for k in axes:
        others *= a.data.shape[k] if k != a.axis else 1
    count = operators.binary(s, "*", a.count, others)
    return arithmetic.tensor(s, count, dtype)


def _floats(s: Specialiser, a: Ragged, dtype: Any) -> Ragged:
    x = plain(a)
    kind = x.dtype if x.dtype.is_float else DType.F64
    if dtype is not None:
        kind = arithmetic.numpy_dtype(s, dtype)
    return Ragged(arithmetic.tensor(s, x, kind), a.count, a.axis)


def _asked(dtype: Any) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": dtype}


def mean(
    s: Specialiser,
    f: Any,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    *,
    keepdims: Any = False,
) -> Any:
    axes = axes_of(s, a, axis, "np.mean")
    if a.axis not in axes:
        return _off(s, a, f, axes, keepdims, **_asked(dtype))
    wide = dtype is None and a.data.dtype is DType.F16  # As in `reductions.mean`.
    x = _floats(s, a, np.float32 if wide else dtype)
    kind = x.data.dtype
    if kind is DType.BOOL:
        text = "np.mean in bool is a truth, not a mean"
        raise s.error("DL116", text, "convert the result: np.mean(x).astype(bool)")
    extra = {} if kind.is_float else {"dtype": kind.numpy}
    total = s.call(np.sum, filled(s, x, 0), axis=axes, keepdims=keepdims, **extra)
    many = _spread(s, a, axes, kind if kind.is_float else DType.I64)
    made = arithmetic.divide(s, total, many)
    return arithmetic.tensor(s, made, DType.F16 if wide else kind)


def var(
    s: Specialiser,
    f: Any,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    *,
    keepdims: Any = False,
) -> Any:
    axes = axes_of(s, a, axis, "np.var")
    if a.axis not in axes:
        return _off(s, a, f, axes, keepdims, ddof=ddof, **_asked(dtype))
    x = _floats(s, a, None)
    kind = x.data.dtype if dtype is None else arithmetic.numpy_dtype(s, dtype)
    if not kind.is_float:
        text = f"np.var and np.std in {kind.value} round at each step"
        raise s.error("DL116", text, "convert the result: np.var(x).astype(dtype)")
    # NumPy takes the mean in `dtype`, and what it takes it from as it is.
    centre = mean(s, np.mean, x, axes, kind.numpy, keepdims=True)
    far = arithmetic.subtract(s, plain(x), centre)
    far = arithmetic.select(s, valid(s, x), far, Tensor(s.scope.number(0, far.dtype)))
    squares = arithmetic.tensor(s, arithmetic.multiply(s, far, far), kind)
    total = s.call(np.sum, squares, axis=axes, keepdims=keepdims)
    free = arithmetic.subtract(s, _spread(s, a, axes, kind), ddof)
    return arithmetic.divide(s, total, arithmetic.maximum(s, free, 0))


def std(
    s: Specialiser,
    f: Any,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    *,
    keepdims: Any = False,
) -> Any:
    axes = axes_of(s, a, axis, "np.std")
    if a.axis not in axes:
        return _off(s, a, f, axes, keepdims, ddof=ddof, **_asked(dtype))
    squares = var(s, f, a, axis, dtype, ddof, keepdims=keepdims)
    # Of one element it is 0, or NaN: its own root, with a slope that is not NaN.
    single = arithmetic.equal(s, _spread(s, a, axes, squares.dtype), 1)
    safe = arithmetic.select(s, single, Tensor(s.scope.number(1, squares.dtype)), squares)
    root = Tensor(s.emit("sqrt", safe.value))
    return arithmetic.select(s, single, squares, root)


# Order


def _last(dtype: DType) -> Any:
    """What no number comes behind in a sort."""
    return np.nan if dtype.is_float else _least(dtype, False)


def _along(s: Specialiser, a: Ragged, axis: Any, what: str) -> bool:
    """Whether an axis is the one of unknown length."""
    if axis is None and rank(a) > 1:
        raise refused(s, what, a, "say along which axis")
    return rank(a) == 1 if axis is None else axes_of(s, a, axis, what) == (a.axis,)


def order(s: Specialiser, a: Ragged) -> Tensor:
    """The places of the elements in order, and behind them those of the padding."""
    whole = filled(s, a, _last(a.data.dtype))
    return Tensor(s.emit("argsort", whole.value, axis=a.axis))


def argsort(
    s: Specialiser, f: Any, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None
) -> Any:
    if not _along(s, a, axis, "np.argsort"):
        return new(s, s.call(f, plain(a), axis=axis), a.count, a.axis)
    made = Ragged(order(s, a), a.count, a.axis)
    return new(s, normal(s, made), a.count, a.axis)


def sort(
    s: Specialiser, f: Any, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None
) -> Any:
    if not _along(s, a, axis, "np.sort"):
        return new(s, s.call(f, plain(a), axis=axis), a.count, a.axis)
    value = s.emit("take_along", a.data.value, order(s, a).value, axis=a.axis)
    made = Ragged(Tensor(value), a.count, a.axis)
    return new(s, normal(s, made), a.count, a.axis)


def sort_in_place(s: Specialiser, r: Ragged, axis: Any = -1) -> None:
    """`x.sort(axis)`."""
    stores.changeable(s, r.data)
    made = sort(s, np.sort, Ragged(plain(r), r.count, r.axis), axis)
    stores.put(s, r.data, made.data.value)


def median(s: Specialiser, f: Any, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    along = axes_of(s, a, axis, "np.median")
    if keepdims or not (rank(a) == 1 or along == (a.axis,)):
        if not keepdims and axis is not None and a.axis not in along:
            return _off(s, a, f, along, False)
        raise refused(s, "np.median", a, "say along which axis, without keepdims")
    x = _floats(s, a, None)
    if not capacity(a):
        raise s.error("DL115", "np.median: there is no median of no elements")
    lanes = sort(s, np.sort, x, a.axis)
    count = Tensor(a.count.value)

    def entry(at: Tensor) -> Tensor:
        inside = arithmetic.maximum(s, at, 0)
        return Tensor(s.emit("take", lanes.data.value, inside.value, axis=a.axis))

    low = entry(arithmetic.floor_divide(s, arithmetic.subtract(s, count, 1), 2))
    high = entry(arithmetic.floor_divide(s, count, 2))
    odd = arithmetic.equal(s, arithmetic.remainder(s, count, 2), 1)
    middle = arithmetic.divide(s, arithmetic.add(s, low, high), 2)
    middle = arithmetic.select(s, odd, low, middle)
    last = entry(arithmetic.subtract(s, count, 1))
    lost = arithmetic.bitwise_or(
        s, arithmetic.equal(s, count, 0), arithmetic.not_equal(s, last, last)
    )
    return arithmetic.select(s, lost, np.nan, middle)


def running(identity: int) -> Callable[..., Any]:
    """`cumsum`, `cumprod`."""

    def run(s: Specialiser, f: Any, a: Any, axis: Any = None, dtype: Any = None) -> Any:
        extra = _asked(dtype)
        if not _along(s, a, axis, f"np.{f.__name__}"):
            return new(s, s.call(f, plain(a), axis=axis, **extra), a.count, a.axis)
        data = s.call(f, filled(s, a, identity), axis=a.axis, **extra)
        if type(data) is not Tensor:
            raise refused(s, f"np.{f.__name__} in complex numbers", a)
        return new(s, normal(s, Ragged(data, a.count, a.axis)), a.count, a.axis)

    return run


def diff(s: Specialiser, f: Any, a: Any, n: Any = 1, axis: Any = -1) -> Any:
    if not _along(s, a, static_int(s, axis, "an axis"), "np.diff"):
        return new(s, s.call(f, plain(a), n, axis=axis), a.count, a.axis)
    many = static_int(s, n, "the order of a difference")
    if many < 0:
        raise s.error("DL115", f"np.diff: {many} differences")
    for _ in range(many):
        size_ = capacity(a)
        if size_ < 2:
            return ragged_selection.sliced(s, a, slice(1, None))
        data = s.call(f, plain(a), 1, axis=a.axis)
        less = arithmetic.subtract(s, Tensor(a.count.value), 1)
        count = number(arithmetic.maximum(s, less, 0).value)
        s.natural.known[count.value] = 0, size_ - 1
        a = new(s, normal(s, Ragged(data, count, a.axis)), count, a.axis)
    return a


# Products


def product(s: Specialiser, f: Any, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """`dot`, `matmul`, `inner`, `vdot`: over the axis of unknown length, or row by row."""
    name = f"np.{f.__name__}"
    if f is np.vdot:  # It flattens both.
        a, b = (s.call(np.ravel, v) for v in (a, b))
    for v in (a, b):
        if type(v) is not Ragged and not is_number(v):
            raise s.error("DL119", f"{name} does not take {describe(v)}")
    ranks = [rank(v) if type(v) is Ragged else len(arithmetic.shape_of(v)) for v in (a, b)]
    if 0 in ranks and name == "np.dot":
        return elementwise(s, (a, b), lambda x, y: s.call(np.multiply, x, y))
    if 0 in ranks or max(ranks) > 2 or args or kwargs:
        raise refused(s, name, a if type(a) is Ragged else b)
    inner = (ranks[0] - 1, 0 if ranks[1] == 1 or name != "np.inner" else 1)
    along = [type(v) is Ragged and v.axis == k for v, k in zip((a, b), inner, strict=True)]
    free = [type(v) is Ragged and not x for v, x in zip((a, b), along, strict=True)]
    if any(along):
        if any(free):
            raise refused(s, name, a, "sum over whole arrays: np.where(mask, x, 0)")
        return s.call(f, *_contracted(s, a, b, inner))
    if all(free):
        raise refused(s, f"{name} along both of its axes", a)
    one = a if free[0] else b
    data = s.call(f, *(plain(v) if v is one else v for v in (a, b)))
    axis = 0 if one is a else len(data.shape) - 1
    return new(s, data, one.count, axis)


def _contracted(s: Specialiser, a: Any, b: Any, inner: tuple[int, int]) -> list[Tensor]:
    """Two numbers whose inner axes are of one length, with zeros in the padding."""
    lines = []
    for v, k in zip((a, b), inner, strict=True):
        r = v.data.shape if type(v) is Ragged else arithmetic.shape_of(v)
        lines.append((v, k, r[k]))
    known = [n for v, _, n in lines if type(v) is not Ragged]
    counts = [v.count for v, _, _ in lines if type(v) is Ragged]
    if known:
        counts.append(number(s.scope.number(known[0], DType.I64)))
    if counts[0].value is not counts[1].value:
        bad = arithmetic.not_equal(s, Tensor(counts[0].value), Tensor(counts[1].value))

        def make(m: int, n: int) -> BaseException:
            return ValueError(f"shapes do not fit: the inner sizes {m} and {n} differ")

        check(s, bad, make, *counts)
    least = min(n for _, _, n in lines)
    out = []
    for v, k, n in lines:
        x = filled(s, v, 0) if type(v) is Ragged else arithmetic.tensor(s, v)
        if n > least:
            cut = tuple(slice(0, least) if d == k else slice(None) for d in range(len(x.shape)))
            x = stores.plain(indexing.subscript(s, stores.plain(x), cut))
        out.append(x)
    return out


def outer(s: Specialiser, f: Any, a: Any, b: Any) -> Any:
    if type(a) is Ragged and type(b) is Ragged:
        raise refused(s, "np.outer along both of its axes", a)
    one = a if type(a) is Ragged else b
    if rank(one) != 1:
        raise refused(s, "np.outer of several axes", one)
    data = s.call(f, *(plain(v) if type(v) is Ragged else v for v in (a, b)))
    return new(s, data, one.count, 0 if one is a else 1)


def norm(
    s: Specialiser, f: Any, x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False
) -> Any:
    axes = axes_of(s, x, axis, "np.linalg.norm")
    if x.axis not in axes:
        return _off(s, x, f, axes, keepdims, ord=ord)
    if ord not in (None, 1, 2, "fro") or (ord in (1, 2) and len(axes) > 1):
        raise refused(s, f"np.linalg.norm of ord={ord!r}", x)
    return s.call(f, filled(s, x, 0), ord, axis, keepdims)


# Making


def like(s: Specialiser, f: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    """`zeros_like` and its kind, `np.array`, `copy`."""
    if static_int(s, kwargs.get("ndmin", 0), "`ndmin` of np.array") > rank(a):
        raise refused(s, "`ndmin` of np.array", a, "y[None] adds an axis")
    made = s.call(f, plain(a), *args, **kwargs)
    kept = _KEEPING.get(f.__name__) or (f is np.array and kwargs.get("copy", True) is not True)
    ordered = "order" in kwargs or len(args) > 1 or f is np.ascontiguousarray
    return remade(s, a, made, bool(kept), not ordered)


#: Functions that give the array itself where its type is the one asked for.
_KEEPING = dict.fromkeys(("asarray", "asanyarray", "ascontiguousarray"), True)


def remade(s: Specialiser, a: Ragged, made: Any, kept: bool, surely: bool) -> Ragged:
    """An array of as many elements that was made of one.

    kept: it is the array itself where the types are the same; surely: in any layout of its memory.
    """
    if type(made) is not Tensor:
        text = f"{describe(a)} does not become {describe(made)}"
        raise refused(s, text, a, "convert the whole array before a mask picks from it")
    if not kept or made.dtype is not a.data.dtype:
        return new(s, stores.plain(made), a.count, a.axis)
    return a if surely else viewed(s, a, made, a.count, a.axis)


def viewed(s: Specialiser, a: Ragged, data: Any, count: Any, axis: int) -> Ragged:
    """An array that NumPy makes a view of another, or may make one."""
    s.ragged = True
    return Ragged(stores.guarded(s, data.value, [a.data]), count, axis)


def transpose(s: Specialiser, f: Any, a: Any, axes: Any = None) -> Any:
    order = tuple(range(rank(a)))[::-1] if axes is None else axes_of(s, a, axes, "np.transpose")
    if sorted(order) != list(range(rank(a))):
        raise s.error("DL115", f"np.transpose: {list(order)} are not the axes of {describe(a)}")
    data = s.call(np.transpose, plain(a), order)
    return Ragged(stores.guarded(s, data.value, [a.data]), a.count, order.index(a.axis))


def ravel(s: Specialiser, f: Any, a: Any, order: Any = "C") -> Any:
    """`np.ravel`; with `np.copy` for f, `flatten`."""
    if rank(a) == 1:
        return a if f is np.ravel else like(s, np.copy, a)
    if order != "C":
        raise refused(s, f"an order of {order!r}", a, "transpose it first: y.T.ravel()")
    made = _raveled(s, a)
    return made if f is np.copy else viewed(s, a, made.data, made.count, 0)


def _raveled(s: Specialiser, a: Ragged) -> Ragged:
    n = a.data.type.size
    flat = indexing.reshape(s, a.data.value, (n,))
    if a.axis:
        inside = indexing.reshape(s, valid(s, a).value, (capacity(a),))
        every = s.emit("broadcast", inside, shape=a.data.shape, dims=(a.axis,))
        kept = Tensor(indexing.reshape(s, every, (n,)))
        (order,), count = ragged_selection.true_places(s, kept)
        return taken(s, Tensor(flat), order, count, 0)
    return new(s, Tensor(flat), number(size(s, a).value))


def reshape(s: Specialiser, f: Any, a: Any, *given: Any, **kwargs: Any) -> Any:
    """To (-1, 1), (1, -1) or (-1,) of a vector."""
    want = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    want = tuple(want) if isinstance(want, tuple | list) else (want,)
    unknown = [k for k, n in enumerate(want) if n == -1 or n is a.count]
    ones = all(n == 1 for k, n in enumerate(want) if k not in unknown)
    if rank(a) != 1 or len(unknown) != 1 or not ones or kwargs:
        raise refused(s, "np.reshape", a, "y[:, None] adds an axis")
    sizes = tuple(capacity(a) if k in unknown else 1 for k in range(len(want)))
    data = indexing.reshape(s, a.data.value, sizes)
    return Ragged(stores.guarded(s, data, [a.data]), a.count, unknown[0])


def flip(s: Specialiser, f: Any, m: Any, axis: Any = None) -> Any:
    if _along(s, m, axis, "np.flip"):
        return ragged_selection.sliced(s, m, slice(None, None, -1))
    return viewed(s, m, s.call(f, plain(m), axis), m.count, m.axis)


def average(s: Specialiser, f: Any, a: Any, axis: Any = None, weights: Any = None) -> Any:
    if weights is None:
        return s.call(np.mean, a, axis)
    both = type(a) is Ragged and type(weights) is Ragged
    if not both or not same_count(a, weights) or (a.axis, rank(a)) != (weights.axis, rank(weights)):
        raise refused(s, "np.average with weights", a, "select weights as the numbers are selected")
    if a.data.shape != weights.data.shape:
        raise refused(s, "np.average with weights of another shape", a)
    x = _floats(s, a, None)
    kind = arithmetic.result_dtype(s, (x.data, plain(weights)))[0]
    w = Ragged(arithmetic.tensor(s, plain(weights), kind), a.count, a.axis)
    total = s.call(np.sum, operators.binary(s, "*", x, w), axis)
    heavy = s.call(np.sum, w, axis)
    nothing = operators.compare(s, "==", heavy, 0)
    if type(nothing) is Ragged:
        nothing = filled(s, nothing, False)
    fails(s, nothing.value, ZeroDivisionError, "Weights sum to zero, can't be normalized")
    return operators.binary(s, "/", total, heavy)


def ask_shape(s: Specialiser, f: Any, a: Any) -> Any:
    """`np.shape`, with the count in the place of the axis."""
    return shape(s, a)


def ask_size(s: Specialiser, f: Any, a: Any, axis: Any = None) -> Any:
    """`np.size`, without the padding."""
    return size(s, a) if axis is None else shape(s, a)[axes_of(s, a, axis, "np.size")[0]]


def ask_ndim(s: Specialiser, f: Any, a: Any) -> int:
    """`np.ndim`."""
    return rank(a)


def array_equal(s: Specialiser, f: Any, a1: Any, a2: Any) -> Any:
    one, other = (a1, a2) if type(a1) is Ragged else (a2, a1)
    sizes = other.data.shape if type(other) is Ragged else arithmetic.shape_of(other)
    if rank(one) != 1 or len(sizes) != 1:
        raise refused(s, "np.array_equal", one)
    length = other.count if type(other) is Ragged else sizes[0]
    same = operators.compare(s, "==", one.count, length)
    least = min(capacity(one), sizes[0])
    if least:
        x, y = (
            stores.plain(s.subscript(plain(v) if type(v) is Ragged else v, slice(0, least)))
            for v in (one, other)
        )
        behind = valid(s, Ragged(x, one.count))
        equal = arithmetic.bitwise_or(
            s, operators.compare(s, "==", x, y), arithmetic.invert(s, behind)
        )
        same = arithmetic.bitwise_and(s, same, s.call(np.all, equal))
    return Tensor(arithmetic.tensor(s, same).value, True)


#: NumPy's functions of ragged arrays, by name: handlers of (specialiser, function, arguments).
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _reduced(0),
    "prod": _reduced(1),
    "any": _reduced(False),
    "all": _reduced(True),
    "count_nonzero": _reduced(0),
    "nansum": _reduced(0),
    "max": _extreme(True),
    "min": _extreme(False),
    "argmax": _place(True),
    "argmin": _place(False),
    "mean": mean,
    "var": var,
    "std": std,
    "average": average,
    "median": median,
    "sort": sort,
    "argsort": argsort,
    "cumsum": running(0),
    "cumprod": running(1),
    "diff": diff,
    **dict.fromkeys(("dot", "matmul", "inner", "vdot"), product),
    "outer": outer,
    "linalg.norm": norm,
    **dict.fromkeys(
        ("zeros_like", "ones_like", "full_like", "empty_like", "array", "asarray", "copy"), like
    ),
    "asanyarray": like,
    "ascontiguousarray": like,
    "transpose": transpose,
    "ravel": ravel,
    "reshape": reshape,
    "flip": flip,
    "array_equal": array_equal,
    "shape": ask_shape,
    "size": ask_size,
    "ndim": ask_ndim,
}

#: Functions that are written in those above (`definitions`) and never look at a length.
COMPOSED = frozenset(("ptp", "isin", "isclose", "allclose", "deg2rad", "rad2deg", "sinc"))
