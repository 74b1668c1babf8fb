"""The trackers that a run is recorded in: each gets its settings, every round and its end.

A tracker that fails while the run goes on does not cost the run: that is said once, and the run is
not recorded there any more. What is missing or refused is said before the run begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..report.measures import measure_of
from ..report.report import printable, summarise
from ..runs.result import Event, Replayed, RoundFinished, RoundRecord, SimulationResult, Started
from .mlflow_runs import MlflowRuns
from .tensorboard_files import TensorBoardFiles
from .tracker import Tracker, figures_in_all, figures_of, flat
from .wandb_runs import WandbRuns

_OUTCOMES = {None: "finished", "interrupt": "stopped", "unfinished": "stopped", "failure": "failed"}


class Trackers:
    """Listens to runs, one after the other, and passes them on to trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._all = tuple(trackers)
        self._live = list(trackers)
        self._measure, self._open = "", False

    def __call__(self, event: Event) -> None:
        """Passes an event on; those of single devices are not."""
        match event:
            case Started(scenario):
                tables = scenario.to_json()
                name = f"{scenario.name}-{scenario.algorithm.label}-{scenario.seed}"
                name = "".join(c if c.isalnum() or c in "-_." else "-" for c in printable(name))
                self._measure = measure_of(tables).name.replace(" ", "_")
                self._open, settings = True, {k: printable(v) for k, v in flat(tables).items()}
                self._each(lambda each: each.started(name, settings, _now_ms()))
            case Replayed(_, rounds):
                for record in rounds:
                    self._round(record)
            case RoundFinished(record):
                self._round(record)

    def _round(self, record: RoundRecord) -> None:
        if record.applied:
            values = figures_of(record, self._measure)
            self._each(lambda each: each.figures(record.round, values, _now_ms()))

    def ended(self, result: SimulationResult) -> None:
        """A run is over."""
        summary = summarise(result)
        values = figures_in_all(summary)
        outcome = _OUTCOMES[result.stopped_by]
        self._open = False
        self._each(lambda each: each.ended(outcome, values))

    def close(self, last: SimulationResult) -> None:
        """All runs are over; `last` is not reported yet."""
        self.ended(last)

    def failed(self) -> None:
        """The run was broken off, and has no result."""
        if self._open:
            self._open = False
            self._each(lambda each: each.ended("failed", {}))

    def where(self) -> list[str]:
        """What shows the runs, a line a tracker."""
        return [each.where() for each in self._live]

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for each in tuple(self._live):
            try:
                do(each)
            except Exception as error:  # of a package that is not ours: no reason to end the run
                self._live.remove(each)
                told = str(error).partition("\n")[0] or type(error).__name__
                print(f"delian: {type(each).__name__} records no more: {told}", file=sys.stderr)


def trackers(
    tensorboard: str | os.PathLike[str] | None = None,
    mlflow: str | os.PathLike[str] | None = None,
    wandb: str | None = None,
) -> Trackers | None:
    """The trackers that were asked for; None: there are none.

    Args:
        tensorboard: a folder for event files.
        mlflow: a folder, or a URI.
        wandb: "offline".

    Raises:
        DelianError: a package is not installed, or a place cannot be used.
    """
    found: list[Tracker] = []
    if tensorboard is not None:
        found.append(TensorBoardFiles(Path(tensorboard)))
    if mlflow is not None:
        found.append(MlflowRuns(os.fspath(mlflow)))
    if wandb is not None:
        found.append(WandbRuns(wandb))
    return Trackers(found) if found else None


@contextmanager
def recorded(
    recording: Trackers | None, view: Callable[[Event], None]
) -> Iterator[Callable[[Event], None]]:
    """A function for a run's events that passes them to a view and to trackers.

    A run that raises is recorded as failed.
    """
    if recording is None:
        yield view
        return

    def both(event: Event) -> None:
        view(event)
        recording(event)

    try:
        yield both
    except BaseException:
        recording.failed()
        raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
