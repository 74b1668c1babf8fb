"""Columns as features: what each column becomes, as plain data that a report keeps.

How a column is encoded is found by sums over devices (`statistics.methods.preparation`); here it is
applied to rows, at training and at prediction alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .columns import Column, as_texts, missing, number
from .dates import Order, days_of
from .hashed_words import BUCKETS_MAX, vectors
from .table_rows import Series

Kind = Literal["number", "category", "date", "text"]
#: Bytes of a category that are compared: those that are found have no more.
LEVEL_BYTES = 64
#: What a date gives besides its day: place in the year, in the week and in the day.
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
#: Features of a table.
FEATURES_MAX = 1 << 16
Features = NDArray[np.float32]
#: How names of ids end: customer_id, orderId, row key.
_ID = re.compile(r"(?:^|[^A-Za-z])(?:id|ID|Id|uuid|key)$|[a-z](?:Id|ID)$")


@dataclass(frozen=True)
class Encoder:
    """How one column becomes features."""

    column: str
    kind: Kind
    fill: float = 0.0
    """Of numbers and dates: what stands for a missing value, the mean."""
    levels: tuple[str, ...] = ()
    """Of categories: the values that have a feature, the most frequent first."""
    other: bool = False
    """Of categories: whether all other values have one feature."""
    missing: bool = False
    """Whether a missing value has a feature of its own."""
    order: Order = ""
    """Of dates with slashes, which comes first: `dmy` or `mdy`."""
    cycles: tuple[str, ...] = ()
    """Of dates: `year`, `week` and `day`, each as a sine and a cosine."""
    weights: tuple[float, ...] = ()
    """Of texts: the weight of each bucket of words."""

    def names(self) -> list[str]:
        """The features' names."""
        if self.kind == "category":
            shown = [f"{self.column}={level}" for level in self.levels]
            shown += [f"{self.column}: other"] * self.other
            shown += [f"{self.column}: missing"] * self.missing
            return shown[1:] if len(shown) == 2 else shown
        if self.kind == "text":
            return [f"{self.column} #{k}" for k in range(len(self.weights))]
        waves = [f"{self.column}: {wave} of {c}" for c in self.cycles for wave in ("sin", "cos")]
        return [self.column, *waves, *[f"{self.column}: missing"] * self.missing]

    def plain(self) -> list[bool]:
        """Which features are scaled already."""
        return [self.kind == "text"] * len(self.names())

    def features(self, values: Column) -> Features:
        """A column's features, f32[n, k]."""
        if self.kind == "category":
            return self._categories(as_texts(values))
        if self.kind == "text":
            return vectors(as_texts(values).tolist(), np.array(self.weights, np.float32))
        dated = self.kind == "date"
        numbers = days_of(as_texts(values), self.order) if dated else numbers_of(values)
        absent = np.isnan(numbers)
        filled = np.where(absent, self.fill, numbers)
        # Days since the mean: days since 1970 with a time have more digits than f32.
        made = [filled - self.fill if dated else filled]
        for cycle in self.cycles:
            turn = 2 * np.pi * filled / _CYCLES[cycle]
            made += [np.sin(turn), np.cos(turn)]
        if self.missing:
            made.append(absent.astype(np.float64))
        with np.errstate(over="ignore"):  # refused where rows are encoded
            return np.stack(made, axis=1).astype(np.float32)

    def _categories(self, values: Column) -> Features:
        found, index = np.unique(values, return_inverse=True)
        place = {level: k for k, level in enumerate(self.levels)}
        other = len(place) if self.other else -1
        absent = len(place) + self.other if self.missing else 0  # the most frequent value
        codes = [absent if not v else place.get(level_of(v), other) for v in found.tolist()]
        width = len(place) + self.other + self.missing
        made = np.zeros((len(values), width), np.float32)
        code = np.array(codes, np.int64)[index]
        known = code >= 0
        made[np.flatnonzero(known), code[known]] = 1.0
        return made[:, 1:] if width == 2 else made


def level_of(text: str) -> str:
    """A text as categories are found: its first bytes."""
    return text.encode("utf-8", "replace")[:LEVEL_BYTES].decode("utf-8", "replace")


def numbers_of(values: Column) -> NDArray[np.float64]:
    """A column as numbers, f64[n]; NaN where it is missing or is no number."""
    if values.dtype.kind == "f":
        return values
    found = [number(text) for text in values.tolist()]
    return np.array([np.nan if each is None else each for each in found], np.float64)


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become features."""

    encoders: tuple[Encoder, ...]
    series: Series | None = None
    """Of a time series, how its windows are made; None: a row is an example."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features, in their order."""
        return tuple(name for each in self.encoders for name in each.names())

    @property
    def plain(self) -> NDArray[np.bool_]:
        """Which features are scaled already, bool[k]."""
        return np.array([p for each in self.encoders for p in each.plain()], np.bool_)

    def encode(self, columns: Mapping[str, Column], source: str = "the rows") -> Features:
        """Rows as features, f32[n, k].

        Raises DelianError for a column that is missing, or of text where numbers were learnt, and
        for numbers that are not finite in f32.
        """
        made = []
        for each in self.encoders:
            values = columns.get(each.column)
            if values is None:
                raise DelianError(
                    f"{source} have no column `{each.column}`", "the model was trained on it"
                )
            _check_kind(each, values, source)
            part = each.features(values)
            if not np.isfinite(part).all():
                row = int((~np.isfinite(part).all(axis=1)).argmax())
                raise DelianError(
                    f"{source}, row {row + 1}: `{each.column}` is not finite in f32",
                    "mend this row",
                )
            made.append(part)
        return np.concatenate(made, axis=1)

    def examples(self, columns: Mapping[str, Column]) -> Features:
        """What a model takes: rows f32[n, k], or the last window of each series, f32[m, steps, k].

        Raises DelianError as `encode` does, and for series that are too short.
        """
        rows = self.encode(columns)
        if self.series is None:
            return rows
        from .series import last_windows

        return rows[last_windows(columns, self.series)]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        plain: dict[str, Any] = {"encoders": [_plain(each) for each in self.encoders]}
        return plain if self.series is None else {**plain, "series": asdict(self.series)}

    @staticmethod
    def from_json(said: Any) -> Encoding:
        """The reverse of `to_json`. Raises DelianError for what is none."""
        series = None
        try:
            encoders = tuple(_encoder(each) for each in said["encoders"])
            if plain := said.get("series"):
                series = Series(str(plain["time"]), str(plain["device"]), int(plain["steps"]))
                if series.steps < 1:
                    raise ValueError(f"windows of {series.steps} rows")
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise DelianError(
                f"the report's columns cannot be read: {error}", "was report.json changed?"
            ) from None
        found = Encoding(encoders, series)
        if not encoders or len(found.names) > FEATURES_MAX:
            raise DelianError(f"the report has {len(found.names)} features", f"1 to {FEATURES_MAX}")
        return found


def _check_kind(encoder: Encoder, values: Column, source: str) -> None:
    """Raises DelianError where no value of a column is what the model was trained on."""
    known = ~missing(values)
    if not known.any() or encoder.kind in ("category", "text"):
        return
    dated = encoder.kind == "date"
    read = days_of(as_texts(values), encoder.order) if dated else numbers_of(values)
    if np.isnan(read[known]).all():
        raise DelianError(
            f"{source} have no {encoder.kind} in column `{encoder.column}`, but"
            f" {str(values[known][0])[:40]!r}",
            f"the model was trained on {encoder.kind}s",
        )


def _plain(encoder: Encoder) -> dict[str, Any]:
    """Its fields without those that say nothing."""
    kept = {k: v for k, v in asdict(encoder).items() if v or k in ("column", "kind")}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()}


def _encoder(said: Mapping[str, Any]) -> Encoder:
    made = Encoder(
        str(said["column"]),
        said["kind"],
        float(said.get("fill", 0.0)),
        tuple(str(each) for each in said.get("levels", ())),
        bool(said.get("other", False)),
        bool(said.get("missing", False)),
        said.get("order", ""),
        tuple(str(each) for each in said.get("cycles", ())),
        tuple(float(each) for each in said.get("weights", ())),
    )
    if made.order not in get_args(Order):
        raise ValueError(f"no order of dates {made.order!r}")
    if made.kind not in get_args(Kind) or not set(made.cycles) <= set(_CYCLES):
        raise ValueError(f"no kind {made.kind!r} with {made.cycles}")
    if made.kind == "category" and not made.levels:
        raise ValueError(f"`{made.column}` has no categories")
    if made.kind == "text" and not 0 < len(made.weights) <= BUCKETS_MAX:
        raise ValueError(f"`{made.column}` has {len(made.weights)} buckets of words")
    return made


def row_numbers(columns: Mapping[str, Column], names: Sequence[str]) -> list[str]:
    """Columns with one of these names, or an id's, of whole numbers that differ in each row."""
    found = []
    for name, values in columns.items():
        named = name.lower() in names or _ID.search(name) is not None
        if named and values.dtype.kind == "f":
            whole = bool((np.rint(values) == values).all())
            if whole and len(np.unique(values)) == len(values):
                found.append(name)
    return found
