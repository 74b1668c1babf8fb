"""What a person sees while a simulation runs.

A live table in a terminal, one plain line a round elsewhere.

It only listens: the run calls `Progress` with its events and never waits for the screen. NO_COLOR
and dumb terminals are respected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..report import own_metrics
from ..report.measures import measure_of, shown
from ..report.svg import count, duration, size
from ..scenario.scenario import Scenario
from .result import (
    Event,
    Notice,
    Phase,
    Replayed,
    Replaying,
    RoundFinished,
    RoundRecord,
    Started,
    UpdateFinished,
)

ROUNDS_SHOWN = 8
RATE_ROUNDS = 10  # the time left is judged by the last so many rounds
REFRESHES_PER_SECOND = 8
BAR_WIDTH = 24
#: Lines about a replay, without a terminal.
REPLAY_LINES = 10
WIDE_TABLE = 98  # columns of a terminal in which the table has room to breathe
LEGEND_WIDTH = 72  # and those in which there is room for a bar and a line that explains the table
LEGEND = (
    "shared, personal: the shared model and the personalized ones on held-out rows; lost: dropped"
    " out, late or refused; spare: the round had enough without it"
)
LEFT_OUT_FIRST = (
    "spare",
    "virtual",
    "real time",
    "updates/s",
    "down",
    "up",
    "lost",
    "reported",
    "loss",
)


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
        elif isinstance(event, Notice):
            self._warn(event.text)
        elif self._live is None and isinstance(event, Replaying) and _has_line(event):
            self._print(f"replaying round {event.round} of {event.last}")

    def _note(self, event: Event) -> None:
        match event:
            case Started():
                self._scenario = event.scenario
                some = f"never train{'s' * (event.held_out == 1)}"
                held_out = f", {event.held_out} {some}" if event.held_out else ""
                self._fleet = count(event.devices, "device") + held_out
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
            case Replaying():
                self._doing = f"replaying {event.last} rounds"
                self._done = event.round
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

    def _warn(self, text: str) -> None:
        """A warning, above the table where there is one."""
        if self._live is None:
            self._print(f"warning: {text}")
        else:
            self._console.print(Text.assemble(("warning: ", "yellow"), text))

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
        if record.training_loss is not None:
            parts.append(f"loss {shown(record.training_loss)}")
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
                if self._console.width >= LEGEND_WIDTH:
                    parts.append(Text(LEGEND, style="dim"))
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
        doing = Text(self._doing, style="dim", no_wrap=True, overflow="ellipsis")
        if self._console.width < LEGEND_WIDTH:  # no room for the bar
            row.add_row(status, doing)
        else:
            row.add_row(bar, status, doing)
        return row

    def _table(self) -> Table:
        """The last rounds, in as many columns as there is room for."""
        gap = 2 if self._console.width >= WIDE_TABLE else 1
        rows = [self._cells(*each) for each in list(self._last)[-ROUNDS_SHOWN:]]
        names = _fitting(rows, self._console.width, gap)
        table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for cells in rows:
            table.add_row(*(Text(cells[name], style=_style(name, cells[name])) for name in names))
        return table

    def _cells(self, record: RoundRecord, seconds: float) -> dict[str, str]:
        """A round by the names of columns."""
        lost = record.dropped + record.late + record.refused
        real = record.wall_seconds is not None
        loss = "-" if record.training_loss is None else shown(record.training_loss)
        return {
            "round": str(record.round),
            "shared": self._show(record.global_accuracy),
            "personal": self._show(record.personalised_accuracy),
            "loss": loss,
            "reported": f"{record.reported}/{record.selected}",
            "lost": str(lost),
            "spare": str(record.spare),
            "up": size(_up(record)),
            "down": size(_down(record)),
            "updates/s": _rate(record, seconds),
            "real time" if real else "virtual": duration(record.took_seconds),
        }


def _fitting(rows: Sequence[Mapping[str, str]], room: int, gap: int) -> list[str]:
    """The columns that fit into so many characters, in order: the least important are left out."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + gap for name in names}
    for name in LEFT_OUT_FIRST:
        if sum(widths[each] for each in names) <= room:
            break
        names = [each for each in names if each != name]
    return names


def _style(name: str, cell: str) -> str:
    """Of a cell of the table."""
    if name == "lost":
        return "dim" if cell == "0" else "yellow"
    return {"shared": "blue", "personal": "bold", "spare": "dim"}.get(name, "")


def _has_line(event: Replaying) -> bool:
    """Whether a round has a line: each tenth of a replay, and its beginning."""
    before = max(0, event.round - 1)
    each = REPLAY_LINES * event.round // max(1, event.last)
    return not event.round or each > REPLAY_LINES * before // max(1, event.last)


def _up(record: RoundRecord) -> int:
    return record.bytes.get("device_edge_up", 0)


def _down(record: RoundRecord) -> int:
    return record.bytes.get("device_edge_down", 0)


def _rate(record: RoundRecord, seconds: float) -> str:
    return f"{record.reported / max(seconds, 1e-9):,.0f}"
