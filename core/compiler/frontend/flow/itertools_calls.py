"""The iterators of `itertools` that end: Python goes through them while compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import operators
from ..values import Once, is_static
from . import iteration

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: They take all that they go through when they are made.
_EAGER = frozenset(("product", "permutations", "combinations", "combinations_with_replacement"))


def iterator(s: Specialiser, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Once:
    """A call of a class of `itertools`."""
    what = f"`{cls.__name__}`"
    if cls.__name__ == "groupby" and not is_static(tuple(args)):
        raise s.needs_static(tuple(args), f"what {what} compares")

    def items() -> Any:
        drawn = [iteration.partly(s, a)[0] if type(a) is Once else a for a in args]
        return operators.python(s, lambda: list(cls(*drawn, **kwargs)), what)

    if cls.__name__ in _EAGER:
        made = items()
        return Once(lambda: made, s.region)
    sources = iteration.sources_of(*args)
    return Once(items, s.region, sources, iteration.computes(*args), tuple(args))


__all__ = ["iterator"]
