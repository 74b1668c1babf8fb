"""Which object a number is, where a condition of the running program has picked one of two.

    a = x if c else y          `a in [x]`: c, or a == x

Python's containers take an item for equal to itself, which a NaN alone is not by `==`. A number
that is one and the same `Tensor` is one object; what `if`, `and`, `or`, `max` and `min` leave is
one of two, and `Picks` knows which. Of what a loop carries it is not known. A condition within a
branch is not there after it: what it picked may be the other number, and two NaN are an error then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ir import DType, Value
from ...traced import ARRAY
from ..numpy import arithmetic
from ..scope import Scope
from ..values import Tensor
from . import raises

if TYPE_CHECKING:
    from ..specialise import Specialiser


@dataclass(frozen=True, slots=True)
class Pick:
    """`yes` where `test` holds, else `no`; both are values of `scope`."""

    test: Value
    yes: Any
    no: Any
    scope: Scope


class Picks:
    """The numbers of a program that are one of two others."""

    def __init__(self) -> None:
        self.known: dict[Value, Pick] = {}

    def note(self, s: Specialiser, made: Value, test: Value, yes: Any, no: Any) -> None:
        """Notes what was picked in the scope that is being built."""
        if not made.tensor.shape and made.dtype.is_float:
            self.known[made] = Pick(test, yes, no, s.scope)


def same(s: Specialiser, a: Any, b: Any) -> bool | Value:
    """Whether two numbers are surely one object where it matters: where they are NaN.

    Known now, or a bool of the running program.
    """
    search = _Same(s)
    found = search.of(a, b)
    if search.is_open:
        both = s.emit("and", *(arithmetic.not_equal(s, v, v).value for v in (a, b)))
        raises.ask(s, both, _undecided, a, b, kind=raises.Uncaught)
    return found


def _undecided(a: Any, b: Any) -> None:
    raise ArithmeticError(
        "Python gives True where two numbers are one NaN, and a condition within a branch decides"
        " whether these are: test them with np.isnan"
    )


class _Same:
    def __init__(self, s: Specialiser) -> None:
        self.s = s
        self.found: dict[tuple[int, int], bool | Value] = {}
        #: Whether the numbers may be one, by a condition that is not there any more.
        self.is_open = False

    def of(self, a: Any, b: Any) -> bool | Value:
        if a is b:
            return True
        key = id(a), id(b)
        if key not in self.found:
            self.found[key] = self._of_picks(a, b)
        return self.found[key]

    def _of_picks(self, a: Any, b: Any) -> bool | Value:
        for one, other in ((a, b), (b, a)):
            pick = self._pick(one)
            if pick is None:
                continue
            found = self.of(pick.yes, other), self.of(pick.no, other)
            if any(pick.scope is scope for scope in self.s.open):
                return self._either(pick.test, *found)
            self.is_open = self.is_open or found != (False, False)
        return False

    def _pick(self, value: Any) -> Pick | None:
        if type(value) is not Tensor or value.kind & ARRAY or value.part is not None:
            return None
        return self.s.picks.known.get(value.value)

    def _either(self, test: Value, yes: bool | Value, no: bool | Value) -> bool | Value:
        if isinstance(yes, bool) and isinstance(no, bool):
            if yes is no:
                return yes
            return test if yes else self.s.emit("not", test)
        return self.s.emit("select", test, self._value(yes), self._value(no))

    def _value(self, truth: bool | Value) -> Value:
        return self.s.scope.number(truth, DType.BOOL) if isinstance(truth, bool) else truth
