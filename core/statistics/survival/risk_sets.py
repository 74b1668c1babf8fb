"""Risk sets of a Cox model at a site: which event bins a row is at risk in, and sums over them.

Event bins are the bins of time with events, of all strata one after the other. A row is at risk in
a run of bins of its stratum. It adds to the last bin of its run and takes away before the first:
what leaves is an increment a bin, and cumulating from the last bin on gives sums over risk sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..question import Step
from ..sums import StatisticsError
from .time_grid import CELLS_MAX, FollowUp, Places

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EventBins:
    """The bins with events."""

    stratum: Places
    """i64[bins]: not decreasing."""
    first: Places
    """i64[bins]: a bin's first grid point; increasing within a stratum."""
    last: Places
    """i64[bins]: its last grid point."""

    def __len__(self) -> int:
        return len(self.stratum)

    def arrays(self) -> dict[str, Places]:
        """For a step."""
        return {"stratum": self.stratum, "first": self.first, "last": self.last}

    @staticmethod
    def read(step: Step, strata: int) -> EventBins:
        """A step's bins, at a site. Raises StatisticsError: a step is hostile."""
        bins = EventBins(*(step.integers(name, -1) for name in ("stratum", "first", "last")))
        same = len(bins.stratum) == len(bins.first) == len(bins.last)
        if not same or not 0 < len(bins) <= CELLS_MAX:
            raise StatisticsError("a step's bins of events are none, or too many")
        place = bins.stratum * (CELLS_MAX + 1) + bins.first
        if (
            np.any((bins.stratum < 0) | (bins.stratum >= strata))
            or np.any((bins.first < 0) | (bins.last < bins.first) | (bins.last > CELLS_MAX))
            or np.any(np.diff(place) <= 0)
        ):
            raise StatisticsError("a step's bins of events are not in order")
        return bins

    def starts(self, strata: int) -> Places:
        """The first bin of each stratum, and behind the last, i64[strata + 1]."""
        return np.searchsorted(self.stratum, np.arange(strata + 1))

    def cumulated(self, increments: Floats) -> Floats:
        """Sums over risk sets, [bins, ...], of increments of the same shape."""
        out = np.empty_like(increments)
        ends = [*np.flatnonzero(np.diff(self.stratum)).tolist(), len(self) - 1]
        begin = 0
        for end in ends:
            part = slice(begin, end + 1)
            out[part] = np.cumsum(increments[part][::-1], axis=0)[::-1]
            begin = end + 1
        return out


@dataclass(frozen=True)
class RiskSets:
    """The runs of bins of a site's rows."""

    bins: int
    begin: Places
    """i64[rows]: the first bin of a row's run."""
    end: Places
    """i64[rows]: behind its last bin; `begin` for a row that is in no risk set."""
    floor: Places
    """i64[rows]: the first bin of a row's stratum."""
    event: npt.NDArray[np.bool_]
    """bool[rows]: whether a row has its event in the last bin of its run."""
    unplaced: int
    """Rows whose event is in no bin."""

    @staticmethod
    def of(bins: EventBins, found: FollowUp, stratum: Places, strata: int) -> RiskSets:
        """stratum: i64[usable rows]."""
        width = CELLS_MAX + 1
        places = bins.stratum * width + bins.first
        floor = bins.starts(strata)[stratum]
        behind = np.minimum(found.end, CELLS_MAX)
        end = np.maximum(np.searchsorted(places, stratum * width + behind, side="right"), floor)
        late = np.minimum(found.start, CELLS_MAX)
        begin = np.where(
            late < 0, floor, np.searchsorted(places, stratum * width + late, side="right")
        )
        begin = np.maximum(begin, floor)
        end = np.maximum(end, begin)
        inside = (end > begin) & (found.end <= bins.last[np.maximum(end - 1, 0)])
        return RiskSets(
            len(bins), begin, end, floor, found.event & inside, int((found.event & ~inside).sum())
        )

    def increments(self, values: Floats) -> Floats:
        """Increments [bins, columns] of values f64[rows, columns] of rows at risk."""
        out = np.zeros((self.bins, values.shape[1]))
        run = self.end > self.begin
        late = run & (self.begin > self.floor)
        for k in range(values.shape[1]):
            out[:, k] = np.bincount(self.end[run] - 1, values[run, k], self.bins)
            if late.any():
                out[:, k] -= np.bincount(self.begin[late] - 1, values[late, k], self.bins)
        return out

    def at_events(self, values: Floats) -> Floats:
        """Sums [bins, columns] of values of rows that have their event."""
        out = np.zeros((self.bins, values.shape[1]))
        for k in range(values.shape[1]):
            out[:, k] = np.bincount(
                self.end[self.event] - 1, values[self.event, k], minlength=self.bins
            )
        return out

    def over_runs(self, values: Floats) -> Floats:
        """f64[rows]: the sum of values f64[bins] over each row's run."""
        cumulated = np.append(0.0, np.cumsum(values))
        found: Floats = cumulated[self.end] - cumulated[self.begin]
        return found

    def of_event(self, values: Floats) -> Floats:
        """f64[rows]: the value f64[bins] of the bin of a row's event, 0 without."""
        return np.where(self.event, values[np.maximum(self.end - 1, 0)], 0.0)

    def rows_over_runs(self, values: Floats) -> Floats:
        """f64[rows, p]: the sum of values f64[bins, p] over each row's run."""
        columns = [self.over_runs(values[:, k]) for k in range(values.shape[1])]
        return np.stack(columns, axis=1)

    def rows_of_event(self, values: Floats) -> Floats:
        """f64[rows, p]: the values f64[bins, p] of the bin of a row's event, 0 without."""
        found: Floats = values[np.maximum(self.end - 1, 0)] * self.event[:, None]
        return found
