"""Arrays of the running program whose length the data decide (`core.compiler.ragged.Ragged`).

What makes one is in `selecting`; here is how they meet other numbers. An operation runs on the
elements with their padding. What joins the elements along the axis of unknown length (a sum, a
sort, a product) first puts something in the padding that it does not see. Derivatives are those of
these dense operations.

The padding repeats the first element, so what has a value (or a slope) for the elements has one for
the padding: no infinity of `log(x[x > 0])` comes from it. Where there is no element, it is a 1.

Lengths meet as NumPy's do: equal, or one of them 1; the program checks it where the counts are not
one value, and its caller raises NumPy's error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ...ragged import Ragged
from .. import operators
from ..flow import raises
from ..memory import stores
from ..numpy import arithmetic
from ..values import Tensor, describe, is_number

if TYPE_CHECKING:
    from ..specialise import Specialiser


def among(values: Sequence[Any]) -> bool:
    """Whether one of some values, or of the sequences in them, is ragged."""
    return any(type(v) is Ragged or (type(v) in (list, tuple) and among(v)) for v in values)


def refused(s: Specialiser, what: str, value: Any, hint: str = "") -> Exception:
    """The error of a function that cannot take a length that the data decide."""
    text = f"{what} needs the length of {describe(value)}, which the data decide"
    default = "keep the shape and choose with np.where(mask, x, 0), or reduce it: sum, mean, sort"
    return s.static_needed(text, hint or default)


def refuse(s: Specialiser, value: Any, what: str) -> None:
    """Refuses a tree with a ragged array in it where that has no meaning."""
    found = _first(value)
    if found is not None:
        raise refused(s, what, found)


def _first(value: Any) -> Ragged | None:
    from ... import tree

    if type(value) is Ragged:
        return value
    node = tree.children(value)
    found = (_first(v) for v in node[1]) if node is not None else iter(())
    return next((v for v in found if v is not None), None)


# Parts


def new(s: Specialiser, data: Any, count: Any, axis: int = 0) -> Ragged:
    """One that was just computed, with memory of its own."""
    s.ragged = True
    if type(data) is not Tensor:
        raise s.error("DL116", f"{describe(data)} cannot have a length that the data decide")
    return Ragged(stores.fresh(s, data.value), count, axis)


def capacity(r: Ragged) -> int:
    """The length at most: that of the axis with its padding."""
    size: int = r.data.shape[r.axis]
    return size


def rank(r: Ragged) -> int:
    """The number of axes, the one of unknown length among them."""
    return len(r.data.shape)


def plain(r: Ragged) -> Tensor:
    """The data with the padding, as a tensor without its memory."""
    return stores.plain(r.data)


def number(value: Value) -> Tensor:
    """A count or an index: an int of Python's."""
    return Tensor(value, True)


def counts(s: Specialiser, n: int) -> Tensor:
    """0, 1, ..., n - 1."""
    return Tensor(s.emit("iota", dtype=DType.I64, shape=(n,), axis=0))


def valid(s: Specialiser, r: Ragged) -> Tensor:
    """Where the elements are: bool, of as many axes as the data have from that axis on."""
    inside = arithmetic.less(s, counts(s, capacity(r)), Tensor(r.count.value))
    ones = (1,) * (rank(r) - 1 - r.axis)
    if not ones:
        return inside
    return Tensor(s.emit("reshape", inside.value, shape=(capacity(r), *ones)))


def filled(s: Specialiser, r: Ragged, padding: Any) -> Tensor:
    """The elements, with a number in the padding."""
    x = plain(r)
    kept = arithmetic.select(s, valid(s, r), x, padding)
    return arithmetic.tensor(s, kept, x.dtype)


def places(s: Specialiser, n: int, count: Tensor) -> Tensor:
    """0, 1, ..., count - 1, and then 0: i64[n]."""
    every = counts(s, n)
    inside = arithmetic.less(s, every, Tensor(count.value))
    return arithmetic.select(s, inside, every, Tensor(s.scope.number(0, DType.I64)))


def taken(s: Specialiser, x: Tensor, order: Tensor, count: Tensor, axis: int = 0) -> Ragged:
    """The entries of an axis at some places, of which the first `count` count."""
    data = Tensor(s.emit("take", x.value, order.value, axis=axis))
    return new(s, padded(s, data, count), count, axis)


def padded(s: Specialiser, data: Tensor, count: Tensor) -> Tensor:
    """Where there is no element, the padding is what every function has a value and a slope for."""
    harmless: Any = False if data.dtype is DType.BOOL else 1 if data.dtype.is_float else 0
    none = arithmetic.equal(s, Tensor(count.value), 0)
    return arithmetic.tensor(s, arithmetic.select(s, none, harmless, data), data.dtype)


def normal(s: Specialiser, r: Ragged) -> Tensor:
    """The data with the first element in the padding, whatever was written since."""
    order = places(s, capacity(r), r.count)
    if not capacity(r):
        return plain(r)
    data = Tensor(s.emit("take", r.data.value, order.value, axis=r.axis))
    return padded(s, data, r.count)


def shape(s: Specialiser, r: Ragged) -> tuple[Any, ...]:
    """Its shape, with the count in the place of the axis."""
    return tuple(r.count if k == r.axis else n for k, n in enumerate(r.data.shape))


def size(s: Specialiser, r: Ragged) -> Any:
    """The number of elements without the padding, as the running program counts them."""
    others = r.data.type.size // max(capacity(r), 1)
    return r.count if others == 1 else operators.binary(s, "*", r.count, others)


def check(
    s: Specialiser,
    bad: Any,
    make: Callable[..., BaseException | None],
    *held: Any,
) -> None:
    """Raises what `make` gives of some numbers, where a condition holds once the program ran."""
    faults = raises.checks(s)
    if faults is None:
        return
    tensors = [arithmetic.tensor(s, v) for v in held]
    truth = arithmetic.any_of(s, arithmetic.tensor(s, bad).value)
    faults.add(lambda numbers: make(*map(int, numbers)), tensors, truth)


# Where they meet


def same_count(a: Ragged, b: Ragged) -> bool:
    """Whether both are surely of one length."""
    return a.count.value is b.count.value


def _from_right(r: Ragged) -> int:
    return rank(r) - r.axis


def _size_at(value: Any, place: int) -> int:
    """How long the axis of a number is that stands so far from the right."""
    sizes = arithmetic.shape_of(value)
    return sizes[-place] if place <= len(sizes) else 1


def aligned(
    s: Specialiser, values: Sequence[Any], out: Ragged | None = None
) -> tuple[list[Any], Tensor | None, int]:
    """Numbers as operands of an elementwise operation on dense arrays.

    `out`: what the result is written to, which NumPy names in its error.

    Returns (the operands, the count of the result or None where its length is known, how far from
    the right its axis stands).
    """
    values = [s.array(v) if isinstance(v, list | tuple) else v for v in values]
    some = [v for v in values if type(v) is Ragged]
    place = _from_right(some[0])
    for v in values:
        if type(v) is not Ragged and not is_number(v):
            text = f"{describe(some[0])} and {describe(v)} do not go together"
            raise s.error("DL119", text, "take its parts: z.real, z.imag")
    for r in some[1:]:
        if _from_right(r) != place:
            text = "an array of two axes"
            raise refused(s, text, r, "loop over one of them, or choose with np.where")
    sizes = {_size_at(v, place) for v in values if type(v) is not Ragged} - {1}
    if sizes:
        known = sizes.pop()
        return [_fitted(s, v, known, values) if type(v) is Ragged else v for v in values], None, 0
    count = some[0].count
    if not all(same_count(some[0], r) for r in some[1:]):
        some, count = _met(s, some, out)
    most = max(map(capacity, some))
    least = min(map(capacity, some))
    if least < most:  # The count is at most the least.
        some = [_cut(s, r, least) for r in some]
    supply = iter(some)
    data = [plain(next(supply)) if type(v) is Ragged else v for v in values]
    return data, count, place


def _cut(s: Specialiser, r: Ragged, n: int) -> Ragged:
    order = counts(s, n)
    return Ragged(Tensor(s.emit("take", r.data.value, order.value, axis=r.axis)), r.count, r.axis)


def words(shapes: Sequence[tuple[Any, ...]]) -> str:
    """Shapes as NumPy's errors write them: (2,3) (4,)."""
    written = (",".join(map(str, x)) + ("," if len(x) == 1 else "") for x in shapes)
    return " ".join(f"({x})" for x in written)


def mismatch(shapes: Sequence[tuple[Any, ...]], numbers: Sequence[int]) -> str:
    """NumPy's words; `None` in a shape stands for the next of some numbers."""
    supply = iter(numbers)
    known = [_known(x, next(supply)) if None in x else x for x in shapes]
    return f"operands could not be broadcast together with shapes {words(known)} "


def _known(shape: tuple[Any, ...], count: int) -> tuple[int, ...]:
    return tuple(count if n is None else n for n in shape)


def _static_shape(value: Any) -> tuple[Any, ...]:
    if type(value) is Ragged:
        return tuple(None if k == value.axis else n for k, n in enumerate(value.data.shape))
    return arithmetic.shape_of(value)


def _fitted(s: Specialiser, r: Ragged, known: int, values: Sequence[Any]) -> Tensor:
    """One that meets an array of a known length: it must be as long, or one long."""
    count = Tensor(r.count.value)
    single = arithmetic.equal(s, count, 1)
    fits = arithmetic.bitwise_or(s, single, arithmetic.equal(s, count, known))
    shapes = [_static_shape(v) for v in values]
    held = [v.count for v in values if type(v) is Ragged]

    def make(*numbers: int) -> BaseException:
        return ValueError(mismatch(shapes, numbers))

    check(s, arithmetic.invert(s, fits), make, *held)
    most = capacity(r)
    if not most:
        zeros = (*r.data.shape[: r.axis], known, *r.data.shape[r.axis + 1 :])
        return Tensor(s.scope.number(0, r.data.dtype, zeros))
    every = Tensor(s.scope.array(np.minimum(np.arange(known), most - 1), DType.I64))
    order = arithmetic.select(s, single, Tensor(s.scope.number(0, DType.I64)), every)
    return Tensor(s.emit("take", r.data.value, order.value, axis=r.axis))


def _met(s: Specialiser, some: list[Ragged], out: Ragged | None) -> tuple[list[Ragged], Tensor]:
    """Arrays whose lengths must be equal, or 1."""
    count = Tensor(some[0].count.value)
    for r in some[1:]:
        other = Tensor(r.count.value)
        count = arithmetic.select(s, arithmetic.equal(s, count, 1), other, count)
    named = some if out is None else [*some, out]
    shapes = [_static_shape(r) for r in named]
    bad: Any = None
    for r in some:
        other = Tensor(r.count.value)
        differs = arithmetic.bitwise_and(
            s, arithmetic.not_equal(s, other, count), arithmetic.not_equal(s, other, 1)
        )
        bad = differs if bad is None else arithmetic.bitwise_or(s, bad, differs)

    def make(*numbers: int) -> BaseException:
        return ValueError(mismatch(shapes, numbers))

    check(s, bad, make, *(r.count for r in named))
    most = max(map(capacity, some))
    if not min(map(capacity, some)):
        raise refused(s, "arithmetic", next(r for r in some if not capacity(r)))
    made = []
    for r in some:
        single = arithmetic.equal(s, Tensor(r.count.value), 1)
        every = Tensor(s.scope.array(np.minimum(np.arange(most), capacity(r) - 1), DType.I64))
        order = arithmetic.select(s, single, Tensor(s.scope.number(0, DType.I64)), every)
        data = Tensor(s.emit("take", r.data.value, order.value, axis=r.axis))
        made.append(Ragged(data, r.count, r.axis))
    return made, number(count.value)


def wrapped(s: Specialiser, made: Any, count: Tensor | None, place: int) -> Any:
    """The result of an elementwise operation, or of several."""
    if isinstance(made, tuple):
        return tuple(wrapped(s, m, count, place) for m in made)
    if type(made) is not Tensor:
        raise s.error("DL116", f"{describe(made)} cannot have a length that the data decide")
    if count is None:
        return stores.fresh(s, made.value)
    return new(s, made, count, len(made.shape) - place)


def elementwise(
    s: Specialiser, values: Sequence[Any], run: Callable[..., Any], out: Ragged | None = None
) -> Any:
    """An operation on the elements of some numbers, broadcast together."""
    data, count, place = aligned(s, values, out)
    return wrapped(s, run(*data), count, place)


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """An operator on two numbers, one of which is ragged."""
    if op == "@":
        return s.call(np.matmul, a, b)
    return elementwise(s, (a, b), lambda x, y: operators.binary(s, op, x, y))


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A comparison by elements; `in` is one truth."""
    if op in ("in", "not in"):
        found = Tensor(s.call(np.any, compare(s, "==", b, a)).value, True)
        return found if op == "in" else operators.unary(s, "not", found)
    return elementwise(s, (a, b), lambda x, y: operators.compare(s, op, x, y))


def unary(s: Specialiser, op: str, a: Ragged) -> Any:
    """`op a` by elements."""
    return elementwise(s, (a,), lambda x: operators.unary(s, op, x))


def is_operand(value: Any) -> bool:
    """Whether an operator of ragged arrays takes it."""
    return type(value) is Ragged or is_number(value)


def no_truth(s: Specialiser, r: Ragged) -> Exception:
    """The error for the truth of an array, which NumPy knows of one element alone."""
    hint = "ask `x.size > 0`, np.any(x) or np.all(x)"
    return s.error("DL115", f"{describe(r)} has no single truth", hint)


# Changes in place


def update(s: Specialiser, op: str, r: Ragged, value: Any) -> None:
    """`r op= value`."""
    stores.changeable(s, r.data)
    own = Ragged(plain(r), r.count, r.axis)
    made = elementwise(s, (own, value), lambda x, y: operators.binary(s, op, x, y), own)
    write(s, r, made, f"`{op}=`")


def write(s: Specialiser, r: Ragged, result: Any, what: str) -> None:
    """A result into an array that is there, as `op=` does."""
    from ..memory import array_changes

    if type(result) is not Ragged or result.axis != r.axis or result.data.shape != r.data.shape:
        raise refused(s, what, r, "assign a new array to the name: x = x + v")
    if not same_count(r, result):
        bad = arithmetic.not_equal(s, Tensor(r.count.value), Tensor(result.count.value))
        target = _static_shape(r)

        def make(have: int, want: int) -> BaseException:
            own, made = (words([_known(target, n)]) for n in (want, have))
            text = f"non-broadcastable output operand with shape {own}"
            return ValueError(f"{text} doesn't match the broadcast shape {made}")

        check(s, bad, make, result.count, r.count)
    array_changes.same_kind(s, result.data, r.data.dtype, what)
    stores.put(s, r.data, arithmetic.convert(s, result.data.value, r.data.dtype))


def attribute_of(s: Specialiser, r: Ragged, name: str) -> Any:
    """`r.name`."""
    from . import ragged_attributes

    return ragged_attributes.attribute(s, r, name)
