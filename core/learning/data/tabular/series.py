"""Time series in tables: windows of rows, and what follows each, split by time.

Rows are ordered by their time, those of each entity apart. Training windows end before one moment
that is the same for all entities; windows that judge begin at or after it. No row is in a window of
both kinds, and nothing is trained on that is later than what judges.

Numbers are forecast: the next `horizon` values of the target, whose own past is among the features.
A target of labels is learnt of each window: the label of its last row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .columns import Column, as_texts, missing
from .dates import date_text, days_of, order_of
from .table_rows import FEATURES_HINT, Series, TableRows
from .tables import (
    DEVICE_NAMES,
    TARGET_NAMES,
    TableChoice,
    check_lengths,
    check_numbers,
    chosen,
    left_out,
    owners_of,
    targets_of,
)

TIME_NAMES = ("time", "timestamp", "datetime", "date", "ds", "day", "month")
ENTITY_NAMES = (*DEVICE_NAMES, "unique_id", "series", "series_id", "entity", "sensor", "station")
#: Windows of a table.
WINDOWS_MAX = 1 << 22
#: Share of steps between rows that may be unlike the others without a note.
_EVEN = 0.01
#: Windows that a piece of a single series has about, and the fewest and most pieces.
_PIECE, _PIECES = 50, (4, 50)
#: Share of times that may be none for a column to be that of times.
_DAMAGED = 0.05
#: Windows that judge, of a piece at least.
_JUDGE = 4

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """How windows are cut."""

    steps: int
    """Rows of a window."""
    horizon: int = 1
    """Of numbers: how many of the following rows are forecast."""
    stride: int = 1
    """Rows from one window's begin to the next one's."""
    time: str = ""
    """The column of times; empty: found by name, or the only one of dates."""


def series_of(
    columns: Mapping[str, Column],
    source: str,
    choice: TableChoice,
    how: WindowChoice,
    query_fraction: float,
    pieces: int = 0,
) -> TableRows:
    """Windows of a table's rows, with what is learnt of each.

    Args:
        columns: the table.
        source: what errors and reports call it.
        choice: which columns are what; the one of devices says which series a row is of.
        how: how windows are cut.
        query_fraction: the share of rows, the last in time, that windows which judge are made of.
        pieces: of a single series: how many devices hold a piece of it; zero: as many as fit.

    Raises:
        DelianError: times are missing or occur twice, or there are too few rows for a window.
    """
    check_lengths(columns, source)
    time = time_column(columns, how.time, source)
    device = chosen(columns, choice.device, ENTITY_NAMES, source)
    rest = [name for name in columns if name not in (time, device)]
    target = chosen(columns, choice.target, TARGET_NAMES, source) or (rest or [""])[-1]
    if target not in rest:
        what = "times" if target == time else "which series a row is of"
        why = f": `{target}` says {what}" if target in columns else ""
        raise DelianError(
            f"{source} has no column to learn{why}", "name another with --target COLUMN"
        )
    times = _times(columns, time, source)
    owners, names = owners_of(columns, device, source)
    order = np.lexsort((times, owners)) if owners is not None else np.argsort(times, kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    times = times[order]
    lanes = np.zeros(len(times), np.int64) if owners is None else owners[order]
    _check_times(times, lanes, names, time, source)
    notes = [] if time else ["no column has times: rows are taken in the file's order"]
    notes += _gaps(times, lanes)
    check_numbers({name: columns[name] for name in rest}, source)
    y, labels, known = _targets(columns[target], target, choice, source)
    forecast = not labels
    wanted = choice.columns or tuple(n for n in rest if forecast or n != target)
    for name in wanted:
        chosen(columns, name, (), source)
    if not wanted:
        raise DelianError(f"{source} has no column of features", FEATURES_HINT)
    after = how.horizon if forecast else 0
    moment = _moment(times, query_fraction)
    lanes, names = (
        _pieces(times, lanes, names, moment, how, pieces) if not device else (lanes, names)
    )
    begins, judges = _begins(times, lanes, moment, how, after)
    reach = np.arange(how.steps, how.steps + after) if forecast else np.array([how.steps - 1])
    usable = known[begins[:, None] + reach].all(axis=1)
    if not usable.all():
        notes.append(left_out(int((~usable).sum()), "window", target))
    begins, judges = begins[usable], judges[usable]
    begins, judges, left = _with_both(begins, judges, lanes)
    if left:
        noun = "piece" if not device else f"`{device}`"
        notes.append(
            f"{left} of {noun} have no windows on both sides of the split, and are left out"
        )
    if not len(begins):
        raise _too_short(source, how, after, times, lanes)
    learnt = y[begins[:, None] + reach]
    cut = date_text(moment) if time and columns[time].dtype.kind != "f" else f"{moment:g}"
    notes.append(f"training windows end before {cut or moment}, windows that judge begin then")
    return TableRows(
        source,
        {name: columns[name] for name in wanted},
        learnt if forecast else learnt[:, 0],
        lanes[begins],
        names,
        judges,
        labels,
        target,
        tuple(notes),
        begins[:, None] + np.arange(how.steps),
        Series(time, device, how.steps),
        device,
        bool(choice.columns),
    )


def time_column(columns: Mapping[str, Column], name: str, source: str) -> str:
    """The column of times; empty: there is none. Raises DelianError for a name of none."""
    if found := chosen(columns, name, (), source):
        return found
    dated = [n for n, v in columns.items() if v.dtype.kind != "f" and _are_dates(v)]
    usual = [n for n in columns if n.lower() in TIME_NAMES]
    return next((n for n in usual if n in dated or columns[n].dtype.kind == "f"), "") or (
        dated[0] if len(dated) == 1 else ""
    )


def _are_dates(values: Column) -> bool:
    known = values[~missing(values)]
    first = known[:100]
    # One that is damaged is still the column of times, and is named as damaged.
    return bool(len(first)) and float(np.isnan(days_of(first, order_of(first))).mean()) <= _DAMAGED


def _times(columns: Mapping[str, Column], time: str, source: str) -> NDArray[np.float64]:
    """Each row's time, f64[n]: numbers, or days since 1970."""
    if not time:
        return np.arange(len(next(iter(columns.values()))), dtype=np.float64)
    values = columns[time]
    times = values if values.dtype.kind == "f" else days_of(values, order_of(values))
    broken = ~np.isfinite(times)
    if broken.any():
        row = int(broken.argmax())
        text = str(as_texts(values)[row])[:40]
        raise DelianError(
            f"{source}, row {row + 1}: {text!r} in the column `{time}` is no time",
            "write times as 2026-01-31 18:00, or as numbers; data.time names another column",
        )
    return times


def _check_times(
    times: NDArray[np.float64], lanes: Places, names: tuple[str, ...], time: str, source: str
) -> None:
    """Raises DelianError for rows of one series with the same time."""
    same = (np.diff(times) == 0) & (np.diff(lanes) == 0)
    if not same.any():
        return
    place = int(same.argmax())
    whose = f" of `{names[lanes[place]]}`" if names else ""
    raise DelianError(
        f"{source}: {int(same.sum())} rows{whose} have the time of another in `{time}`",
        "where the file has several series, name the column that says which:"
        " --set data.device=COLUMN; else leave out rows that occur twice",
    )


def _gaps(times: NDArray[np.float64], lanes: Places) -> list[str]:
    """A note on rows that do not follow one another evenly."""
    steps = np.diff(times)[np.diff(lanes) == 0]
    if not len(steps):
        return []
    usual = float(np.median(steps))
    odd = int((np.abs(steps - usual) > 1e-6 * max(usual, 1e-9)).sum())
    if odd <= _EVEN * len(steps):
        return []
    return [
        f"{odd} of {len(steps)} steps between rows are not as long as the others: a window has"
        " as many rows, whatever time these span"
    ]


def _targets(
    values: Column, target: str, choice: TableChoice, source: str
) -> tuple[NDArray[np.float32] | NDArray[np.int32], tuple[str, ...], NDArray[np.bool_]]:
    """By row what may be learnt, labels' names, and whether the row has it."""
    known = ~missing(values)
    if not known.any():
        raise DelianError(f"column `{target}` of {source} is empty", "choose another target")
    found, labels = targets_of(values[known], target, choice.targets, source)
    y = np.zeros(len(values), found.dtype)
    y[known] = found
    return y, labels, known


def _moment(times: NDArray[np.float64], query_fraction: float) -> float:
    """The time that splits the rows."""
    ordered = np.sort(times)
    return float(ordered[min(round(len(times) * (1 - query_fraction)), len(times) - 1)])


def _pieces(
    times: NDArray[np.float64],
    lanes: Places,
    names: tuple[str, ...],
    moment: float,
    how: WindowChoice,
    pieces: int,
) -> tuple[Places, tuple[str, ...]]:
    """A single series in pieces of neighbouring rows: each has one on either side of the split."""
    before = times < moment
    fit = int(np.clip(len(times) // how.stride // _PIECE, *_PIECES))
    # A piece has room for some windows that judge.
    room = int((~before).sum()) // (how.steps + how.horizon + _JUDGE * how.stride)
    count = pieces or max(min(fit, room), 1)
    made = np.zeros(len(times), np.int64)
    for part in (before, ~before):
        rows = np.flatnonzero(part)
        made[rows] = np.minimum(np.arange(len(rows)) * count // max(len(rows), 1), count - 1)
    width = len(str(count))
    return made, tuple(f"piece {k + 1:0{width}}" for k in range(count))


def _begins(
    times: NDArray[np.float64], lanes: Places, moment: float, how: WindowChoice, after: int
) -> tuple[Places, NDArray[np.bool_]]:
    """The first row of each window, and whether it judges. Raises DelianError for too many."""
    late = times >= moment
    # Rows of one series on one side of the split, one after the other.
    change = np.flatnonzero((np.diff(lanes) != 0) | (np.diff(late.astype(np.int8)) != 0)) + 1
    starts, ends = np.r_[0, change], np.r_[change, len(times)]
    length = how.steps + after
    counts = np.maximum((ends - starts - length) // how.stride + 1, 0)
    if counts.sum() > WINDOWS_MAX:
        raise DelianError(
            f"{int(counts.sum()):,} windows; at most {WINDOWS_MAX:,}",
            "--set data.stride=N makes one of N",
        )
    begins = [
        s + how.stride * np.arange(n) for s, n in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    found = np.concatenate(begins).astype(np.int64)
    return found, late[found]


def _with_both(
    begins: Places, judges: NDArray[np.bool_], lanes: Places
) -> tuple[Places, NDArray[np.bool_], int]:
    """The windows of series that have windows of both kinds, and how many series have not."""
    owner = lanes[begins]
    size = int(lanes.max()) + 1
    both = (np.bincount(owner[judges], minlength=size) > 0) & (
        np.bincount(owner[~judges], minlength=size) > 0
    )
    kept = both[owner] if len(owner) else np.zeros(0, np.bool_)
    return begins[kept], judges[kept], int(size - both.sum())


def _too_short(
    source: str, how: WindowChoice, after: int, times: NDArray[np.float64], lanes: Places
) -> DelianError:
    longest = int(np.bincount(lanes).max())
    return DelianError(
        f"{source} has no series that is long enough: the longest has {longest} rows, and a window"
        f" has {how.steps + after} on each side of the split in time",
        "a smaller data.window, data.horizon or fleet.devices, or a larger data.query_fraction",
    )


def last_windows(columns: Mapping[str, Column], series: Series) -> Places:
    """The rows of each series' last window, i64[m, steps], by its name.

    Raises DelianError for series that are too short.
    """
    times = _times(columns, series.time, "the rows")
    owners, names = owners_of(
        columns, series.device if series.device in columns else "", "the rows"
    )
    lanes = np.zeros(len(times), np.int64) if owners is None else owners
    order = np.lexsort((times, lanes))
    made = []
    for lane in range(int(lanes.max()) + 1):
        rows = order[lanes[order] == lane]
        if len(rows) < series.steps:
            whose = f" of `{names[lane]}`" if names else ""
            raise DelianError(
                f"there are {len(rows)} rows{whose}, and the model takes the last {series.steps}",
                "give more of them",
            )
        made.append(rows[-series.steps :])
    return np.array(made, np.int64)
