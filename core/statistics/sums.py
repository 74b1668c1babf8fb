"""What sites add up in a step: named arrays of numbers, as elements of the ring.

The arrays of a step lie one after the other, each in the form of `privacy.mechanisms.wide_sums`:
one device's numbers are masked like any update, and the totals are exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.errors import DelianError
from ..privacy.mechanisms.ring import RingPlan
from ..privacy.mechanisms.wide_sums import WideSum
from ..protocol.ports import DIMENSION_MAX

#: Names of arrays in a step.
SUMS_MAX = 64
_NAME_CHARS_MAX = 40


class StatisticsError(DelianError):
    """A question that cannot be answered, or data that does not fit it.

    It names no single site and none of its rows.
    """


@dataclass(frozen=True, slots=True)
class Sum:
    """An array of numbers that sites add up."""

    name: str
    """What a method calls it: letters, digits and _."""
    shape: tuple[int, ...] = ()
    """The same at all sites."""
    before: int = 48
    """The absolute value of a total is below 2^before."""
    after: int = 40
    """A site rounds to multiples of 2^-after."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def counts(name: str, *shape: int) -> Sum:
    """Whole numbers, whose total is exact."""
    return Sum(name, shape, before=48, after=0)


class Totals(dict[str, npt.NDArray[np.float64]]):
    """The totals of a step by name, f64 of each sum's shape.

    sites: how many sites are in them.
    """

    def __init__(self, totals: Mapping[str, npt.NDArray[np.float64]], sites: int) -> None:
        super().__init__(totals)
        self.sites = sites

    def number(self, name: str) -> float:
        """The total of a sum of one number."""
        return float(self[name].reshape(-1)[0])


class SumPlan:
    """The sums of a step over at most so many sites. Raises StatisticsError for impossible ones.

    noise: what each site adds, in lengths of what one row can change; zero: none.
    """

    def __init__(self, sums: Sequence[Sum], clients_max: int, noise: float = 0.0) -> None:
        if not sums or len(sums) > SUMS_MAX or len({s.name for s in sums}) < len(sums):
            raise StatisticsError(
                f"{len(sums)} sums in a step", f"1 to {SUMS_MAX}, each with its own name"
            )
        for each in sums:
            if not each.name.isidentifier() or len(each.name) > _NAME_CHARS_MAX:
                raise StatisticsError(f"a sum called {each.name[:_NAME_CHARS_MAX]!r}")
            if any(n < 1 for n in each.shape):
                raise StatisticsError(f"a sum `{each.name}` of shape {list(each.shape)}")
        self.sums = tuple(sums)
        self.forms = tuple(WideSum(clients_max, s.before, s.after) for s in sums)
        sizes = [s.size * f.limbs for s, f in zip(self.sums, self.forms, strict=True)]
        self.dimension = sum(sizes)
        """Ring elements of a step."""
        if self.dimension > DIMENSION_MAX:
            raise StatisticsError(
                f"a step of {self.dimension:,} ring elements", f"at most {DIMENSION_MAX:,}"
            )
        self.ring = RingPlan(1.0, clients_max, self.dimension, noise=noise, wide=True)
        """The ring plan that the step travels by; one more element counts the sites."""
        ends = np.cumsum([0, *sizes]).tolist()
        self._places = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def encode(self, measured: Mapping[str, Any]) -> npt.NDArray[np.uint32]:
        """A site's numbers as ring elements, u32[dimension]. Raises StatisticsError."""
        if set(measured) != {s.name for s in self.sums}:
            raise StatisticsError(
                f"a step of {[s.name for s in self.sums]} was measured as {sorted(measured)}"
            )
        out = np.empty(self.dimension, np.uint32)
        for each, form, place in zip(self.sums, self.forms, self._places, strict=True):
            values = np.asarray(measured[each.name])
            if values.shape != each.shape:
                raise StatisticsError(
                    f"`{each.name}` was measured as {list(values.shape)}, not {list(each.shape)}"
                )
            out[place] = form.encode(values)
        return out

    def decode(self, total: npt.NDArray[np.uint32], sites: int) -> Totals:
        """The totals of a sum of encoded vectors, u32[dimension]. Raises StatisticsError."""
        if total.shape != (self.dimension,):
            raise StatisticsError(
                f"a total of {total.size} elements, and the step has {self.dimension}"
            )
        made = {
            each.name: form.decode(total[place]).reshape(each.shape)
            for each, form, place in zip(self.sums, self.forms, self._places, strict=True)
        }
        return Totals(made, sites)
