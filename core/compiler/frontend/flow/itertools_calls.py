"""The iterators of `itertools` that end: Python goes through them while compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import operators
from ..values import Once, Tensor, is_static
from . import iteration

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: They take all that they go through when they are made.
_EAGER = frozenset(("product", "permutations", "combinations", "combinations_with_replacement"))


def iterator(s: Specialiser, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Once:
    """A call of a class of `itertools`."""
    what = f"`{cls.__name__}`"
    if cls.__name__ in _CALLING:
        return _calling(s, _CALLING[cls.__name__], args, kwargs)
    if cls.__name__ == "groupby" and not is_static(tuple(args)):
        raise s.needs_static(tuple(args), f"what {what} compares")

    def items() -> Any:
        drawn = [iteration.partly(s, a)[0] if type(a) in (Once, Tensor) else a for a in args]
        return operators.python(s, lambda: list(cls(*drawn, **kwargs)), what)

    if cls.__name__ in _EAGER:
        made = items()
        return Once(lambda: made, s.region)
    sources = iteration.sources_of(*args)
    return Once(items, s.region, sources, iteration.computes(*args), tuple(args))


def from_iterable(s: Specialiser, iterable: Any) -> Once:
    """`itertools.chain.from_iterable`."""

    def items() -> list[Any]:
        rows = iteration.partly(s, iterable)[0]
        return [v for row in rows for v in iteration.partly(s, row)[0]]

    return Once(items, s.region, iteration.sources_of(iterable), True, (iterable,))


# Those that call a function: it is inlined.


def _calling(
    s: Specialiser,
    items: Callable[..., list[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Once:
    reads = (*args, *kwargs.values())

    def make() -> list[Any]:
        inner = iteration.watched(s, *reads)
        made = items(s, *args, **kwargs)
        iteration.settled(s, inner)
        return made

    return Once(make, s.region, iteration.sources_of(*reads), computes=True, reads=reads)


def _accumulate(
    s: Specialiser, iterable: Any, func: Any = None, *, initial: Any = None
) -> list[Any]:
    values = iteration.partly(s, iterable)[0]
    if initial is not None:
        values.insert(0, initial)
    made = values[:1]
    for value in values[1:]:
        last = made[-1]
        added = operators.binary(s, "+", last, value) if func is None else None
        made.append(added if func is None else s.call(func, last, value))
    return made


def _starmap(s: Specialiser, function: Any, iterable: Any) -> list[Any]:
    rows = iteration.partly(s, iterable)[0]
    return [s.call(function, *iteration.items(s, row)) for row in rows]


def _takewhile(s: Specialiser, predicate: Any, iterable: Any) -> list[Any]:
    values = iteration.partly(s, iterable)[0]
    return values[: _first_not(s, predicate, values, "takewhile")]


def _dropwhile(s: Specialiser, predicate: Any, iterable: Any) -> list[Any]:
    values = iteration.partly(s, iterable)[0]
    return values[_first_not(s, predicate, values, "dropwhile") :]


def _first_not(s: Specialiser, predicate: Any, values: list[Any], name: str) -> int:
    """The place of the first item that does not fulfil a predicate."""
    for place, value in enumerate(values):
        if not _known(s, s.call(predicate, value), name):
            return place
    return len(values)


def _filterfalse(s: Specialiser, predicate: Any, iterable: Any) -> list[Any]:
    values = iteration.partly(s, iterable)[0]
    tests = [v if predicate is None else s.call(predicate, v) for v in values]
    return [v for v, t in zip(values, tests, strict=True) if not _known(s, t, "filterfalse")]


def _known(s: Specialiser, test: Any, name: str) -> bool:
    truth = operators.condition(s, test)
    if not isinstance(truth, bool):
        raise s.needs_static(Tensor(truth), f"what `{name}` tests")
    return truth


def _repeat(s: Specialiser, value: Any, times: Any = None) -> list[Any]:
    if times is None:
        raise s.error("DL106", "an endless `repeat` cannot be compiled", "give it a number: times")
    return [value] * operators.static_index(s, times, "how often `repeat` gives its value")


_CALLING: dict[str, Callable[..., list[Any]]] = {
    "accumulate": _accumulate,
    "starmap": _starmap,
    "takewhile": _takewhile,
    "dropwhile": _dropwhile,
    "filterfalse": _filterfalse,
    "repeat": _repeat,
}

__all__ = ["from_iterable", "iterator"]
