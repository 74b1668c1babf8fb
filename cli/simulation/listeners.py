"""Options of `delian simulate` that change no run, and what records one while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...simulations.integrations.trackers import Trackers
    from ...simulations.runs.event_file import EventFile
    from ...simulations.runs.result import Event, SimulationResult

Baselines = Annotated[
    bool,
    typer.Option(
        "--baselines", help="Compare with devices that train alone, and with all rows in one place."
    ),
]
TensorBoard = Annotated[
    str | None, typer.Option(metavar="DIR", help="Write event files of TensorBoard into DIR.")
]
Mlflow = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|URI", help="Record the run in MLflow: a folder, sqlite:///FILE or a server."
    ),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="offline", help="Record the run for Weights & Biases, in ./wandb; nothing is sent."
    ),
]


class Listeners:
    """The file of events and the trackers that were asked for; both may be absent."""

    def __init__(self, events: EventFile | None, trackers: Trackers | None) -> None:
        self._all = [each for each in (events, trackers) if each is not None]
        self._trackers = trackers

    def __call__(self, event: Event) -> None:
        for each in self._all:
            each(event)

    def ended(self, result: SimulationResult) -> None:
        """The first run of a comparison is over."""
        for each in self._all:
            each.ended(result)

    def close(self, last: SimulationResult) -> None:
        """All runs are over; `last` is not reported yet."""
        for each in self._all:
            each.close(last)

    def failed(self) -> None:
        """The run was broken off: only trackers record that."""
        if self._trackers is not None:
            self._trackers.failed()

    def where(self) -> list[str]:
        """What shows the recorded runs."""
        return [] if self._trackers is None else self._trackers.where()


def listeners(
    events: Path | None, tensorboard: str | None, mlflow: str | None, wandb: str | None
) -> Listeners:
    """What the options ask for.

    Raises:
        DelianError: a file or a folder cannot be written, or a package is not installed.
    """
    file = trackers = None
    if tensorboard is not None or mlflow is not None or wandb is not None:
        from ...simulations.integrations.trackers import trackers as made

        trackers = made(tensorboard, mlflow, wandb)
    if events is not None:
        from ...simulations.runs.event_file import EventFile

        file = EventFile(events)
    return Listeners(file, trackers)


def absolute(place: str | None) -> str | None:
    """A folder by its whole path; an address as it is."""
    return place if place is None or "://" in place else str(Path(place).absolute())
