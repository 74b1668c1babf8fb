"""What a person sees while a simulation runs.

A live table in a terminal, one plain line a round elsewhere.

It only listens: the run calls `Progress` with its events and never waits for the screen. NO_COLOR
and dumb terminals are respected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..report import own_metrics
from ..report.measures import measure_of
from ..report.svg import duration, size
from ..scenario.scenario import Scenario
from .result import Event, Phase, Replayed, RoundFinished, RoundRecord, Started, UpdateFinished

ROUNDS_SHOWN = 8
RATE_ROUNDS = 10  # the time left is judged by the last so many rounds
REFRESHES_PER_SECOND = 8
BAR_WIDTH = 24
WIDE_TABLE = 90  # columns of a terminal in which the table has room to breathe


class Progress:
    """Listens to one run. Use it as a context manager and pass it to `simulate` as `on_event`."""

    def __init__(
        self, console: Console, scenario: Scenario, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._scenario = scenario
        self._measure = measure_of(scenario.to_json())
        self._clock = clock
        self._lock = threading.Lock()  # the screen is drawn by a thread of its own
        self._live: Live | None = None
        self._doing = "starting"
        self._fleet = ""
        self._last: deque[tuple[RoundRecord, float]] = deque(maxlen=ROUNDS_SHOWN)
        self._times: deque[float] = deque(maxlen=RATE_ROUNDS)
        self._judged: RoundRecord | None = None
        self._done = 0
        self._share = 0.0  # of the round that is under way
        self._since = self._trained = clock()

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
            )
            self._live.start()
        else:
            self._print(self._heading().plain)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._doing = ""
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take note of an event; may be called from any thread."""
        with self._lock:
            self._note(event)
        if self._live is None and isinstance(event, RoundFinished):
            self._print(self._line(*self._last[-1]))
        elif isinstance(event, Replayed):
            self._print(f"replayed to round {event.record.round}")

    def _note(self, event: Event) -> None:
        match event:
            case Started():
                self._scenario = event.scenario
                held_out = f", {event.held_out} never train" if event.held_out else ""
                self._fleet = f"{event.devices} devices{held_out}"
                self._since = self._clock()
            case Phase():
                self._doing = event.doing
                self._since = self._trained = self._clock()
            case UpdateFinished():
                verb = "evaluating" if event.evaluating else "training"
                self._doing = f"round {event.round}: {verb} {event.done} of {event.expected}"
                if not event.evaluating:
                    self._trained = self._clock()
                share = event.done / max(1, event.expected)
                self._share = 0.8 + 0.2 * share if event.evaluating else 0.8 * share
            case Replayed():
                record = event.record
                self._done = record.round - (not record.applied)
                self._since = self._trained = self._clock()
            case RoundFinished():
                now = self._clock()
                # A rate is one of training; the time left counts evaluation too.
                trained = max(self._since, self._trained) - self._since
                self._last.append((event.record, trained or now - self._since))
                self._times.append(now - self._since)
                self._since = now
                self._done = event.record.round - (not event.record.applied)
                self._share = 0.0
                if event.record.global_accuracy is not None:
                    self._judged = event.record

    @property
    def seconds_left(self) -> float | None:
        """As the last rounds went; None before the first has ended."""
        if not self._times:
            return None
        return (
            sum(self._times) / len(self._times) * (self._scenario.rounds - self._done - self._share)
        )

    def _show(self, value: float | None) -> str:
        return "-" if value is None else self._measure.show(value)

    def _print(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)

    def _heading(self) -> Text:
        scenario = self._scenario
        edges = scenario.fleet.edges
        parts = [
            scenario.algorithm.label,
            self._fleet or (f"{scenario.fleet.devices} devices" if scenario.fleet.devices else ""),
            f"{edges} edge{'s' if edges != 1 else ''}",
            f"seed {scenario.seed}",
        ]
        told = " · ".join(part for part in parts if part)
        return Text.assemble((scenario.name, "bold"), "  ", (told, "dim"))

    def _line(self, record: RoundRecord, seconds: float) -> str:
        """One round as a line of plain text."""
        left = self.seconds_left
        parts = [f"round {record.round}/{self._scenario.rounds}"]
        if record.global_accuracy is not None:
            parts.append(
                f"{self._measure.name} {self._show(record.global_accuracy)} -> "
                f"{self._show(record.personalised_accuracy)}"
            )
        if own := own_metrics.told(record):
            parts.append(own)
        lost = [
            f"{count} {name}"
            for name, count in (
                ("dropped", record.dropped),
                ("late", record.late),
                ("refused", record.refused),
                ("spare", record.spare),
            )
            if count
        ]
        parts.append(
            f"{record.reported} of {record.selected} reported"
            + (f" ({', '.join(lost)})" if lost else "")
            + ("" if record.applied else ", too few")
        )
        parts.append(f"{size(_up(record))} up {size(_down(record))} down")
        parts.append(f"{_rate(record, seconds)} updates/s")
        kind = "virtual" if record.wall_seconds is None else "real"
        parts.append(f"{duration(record.took_seconds)} {kind}")
        if left:
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [self._heading(), self._bar()]
            if self._last:
                parts.append(self._table())
                if self._judged is not None and (own := own_metrics.told(self._judged)):
                    parts.append(Text(own, style="dim"))
            return Group(*parts)

    def _bar(self) -> Table:
        rounds = self._scenario.rounds
        row = Table.grid(padding=(0, 2))
        left = self.seconds_left
        status = f"round {self._done}/{rounds}"
        if self._done < rounds and left is not None:
            status += f", {duration(left)} left"
        bar = ProgressBar(
            total=rounds,
            completed=self._done + self._share,
            width=BAR_WIDTH,
            complete_style="blue",
            finished_style="green",
        )
        row.add_row(bar, status, Text(self._doing, style="dim"))
        return row

    def _table(self) -> Table:
        gap = 2 if self._console.width >= WIDE_TABLE else 1
        table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
        for name in ("round", "shared", "personal", "reported", "lost", "spare", "up", "down"):
            table.add_column(name, justify="right")
        table.add_column("updates/s", justify="right")
        real = self._last[-1][0].wall_seconds is not None
        table.add_column("real time" if real else "virtual", justify="right")
        for record, seconds in list(self._last)[-ROUNDS_SHOWN:]:
            lost = record.dropped + record.late + record.refused
            table.add_row(
                str(record.round),
                Text(self._show(record.global_accuracy), style="blue"),
                Text(self._show(record.personalised_accuracy), style="bold"),
                f"{record.reported}/{record.selected}",
                Text(str(lost), style="yellow" if lost else "dim"),
                Text(str(record.spare), style="dim"),
                size(_up(record)),
                size(_down(record)),
                _rate(record, seconds),
                duration(record.took_seconds),
            )
        return table


def _up(record: RoundRecord) -> int:
    return record.bytes.get("device_edge_up", 0)


def _down(record: RoundRecord) -> int:
    return record.bytes.get("device_edge_down", 0)


def _rate(record: RoundRecord, seconds: float) -> str:
    return f"{record.reported / max(seconds, 1e-9):,.0f}"
