"""What a federation's data looks like in memory.

One padded table a device, and a card that describes them all.

Compiled programs have fixed shapes, so every device's examples sit in an array of the common
capacity; the counts next to it give how many rows are real. The first `support` rows are what the
device may learn from, the `query` rows after them are what it is judged by, the rest is zeros that
no program may read as data.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError

if TYPE_CHECKING:
    from .stored_rows import StoredRows
    from .tokens.token_facts import TokenFacts

FEDERATION_BYTES_MAX = 4 << 30
"""The most memory that a federation's tables may take, checked before anything is allocated."""


@dataclass(frozen=True, slots=True)
class DeviceData:
    """One device's examples."""

    x: NDArray[Any]
    """u8, i32 or f32 [capacity, ...]."""
    y: NDArray[Any]
    """i32 [capacity, ...], or f32 where numbers are learnt and not labels."""
    support: int
    query: int

    @property
    def examples(self) -> int:
        return self.support + self.query


@dataclass(frozen=True, slots=True)
class EpisodeData:
    """One device's characters, to draw few-shot episodes from.

    A program samples N characters and splits their drawings into K shots and queries, so support
    and query sets are made afresh for each episode.
    """

    x: NDArray[np.uint8]
    """u8 [characters, drawers, 28, 28]."""
    chars: int
    """How many of the characters are real."""
    drawers: int
    """How many drawings of each are real."""

    @property
    def examples(self) -> int:
        return self.chars * self.drawers


@dataclass(frozen=True, slots=True)
class DataCard:
    """What a reader of a report must know: where data are from, how they lie on the devices."""

    source: str
    """Where the data are from, in words."""
    partition: str
    """How they were dealt to the devices, in words."""
    unit: str
    """What an example is, in the plural: "drawings"."""
    examples: tuple[int, ...]
    """By device, how many of these it has."""
    label_names: tuple[str, ...]
    """By label, its name."""
    label_counts: tuple[tuple[int, ...], ...]
    """`[d][l]` counts device d's examples of label l (its support and query sets together)."""
    numbers: bool = False
    """Whether numbers are learnt; then a label l is a range of values."""
    left_out: int = 0
    """How many devices of the data have too little."""
    least: str = ""
    """What they have less than, in words: "4 examples"."""
    notes: tuple[str, ...] = ()
    """What was left out or filled in when the data was read, in words."""
    feature_names: tuple[str, ...] = ()
    """Of a table, the features of a row; of categories one for each, as `name=text`."""
    preparation: Mapping[str, Any] | None = None
    """Of a table, how its columns became features (`tabular.fitted_features.Fitted`)."""
    tokens: Mapping[str, Any] | None = None
    """Of rows of token ids, what is known of them (`tokens.token_facts.TokenFacts`)."""

    @property
    def missing(self) -> str:
        """What was left out, in words; empty where nothing was."""
        if not self.left_out:
            return ""
        one = self.left_out == 1
        devices, verb = ("device has", "was") if one else ("devices have", "were")
        return f"{self.left_out} {devices} fewer than {self.least} and {verb} left out"

    def to_json(self) -> dict[str, Any]:
        """The card as plain data, for report.json."""
        return {
            "source": self.source,
            "partition": self.partition,
            "unit": self.unit,
            "examples_total": sum(self.examples),
            "examples": list(self.examples),
            "label_names": list(self.label_names),
            "label_counts": [list(row) for row in self.label_counts],
            "numbers": self.numbers,
            "left_out": self.left_out,
            "left_out_text": self.missing,
            "notes": list(self.notes),
            "feature_names": list(self.feature_names),
            "preparation": self.preparation,
            **({} if self.tokens is None else {"tokens": self.tokens}),
        }


@dataclass(frozen=True, slots=True)
class Scaling:
    """What makes numbers of different units comparable: `(value - shift) * scale`."""

    shift: tuple[float, ...]
    """Of each feature, its mean."""
    scale: tuple[float, ...]
    """Of each feature, one by its standard deviation; 1 for a constant."""
    target_shift: tuple[float, ...] = ()
    """Of each number that is learnt, its mean; empty where labels are."""
    target_scale: tuple[float, ...] = ()
    """One by its standard deviation."""


@dataclass(frozen=True, slots=True)
class FederatedData:
    """Every device's data. All devices share one capacity, one dtype and one example shape."""

    devices: tuple[DeviceData, ...] | tuple[EpisodeData, ...]
    """Each device's data, by its number."""
    held_out: frozenset[int]
    """Devices that never train: they say how well the model serves devices that it has not met."""
    example_shape: tuple[int, ...]
    """Of one example, without the axis of rows."""
    classes: int
    """The number of a model's labels, or of numbers that it gives a row."""
    names: tuple[str, ...]
    """The devices' names for people."""
    card: DataCard
    """What a report says of the data."""
    scaling: Scaling | None = None
    """How features are standardised; None: they are not."""
    stored: tuple[StoredRows, ...] = ()
    """Each device's rows where they are in files, of which `devices` are samples; empty: they are
    in memory.
    """
    folders: tuple[Path, ...] = ()
    """Where these rows are, a folder for each device."""
    tokens: TokenFacts | None = None
    """Of rows of token ids, what is known of them."""

    def __post_init__(self) -> None:
        assert self.devices, "a federation without devices"
        assert len(self.names) == len(self.devices) == len(self.card.examples)
        assert self.held_out <= set(range(len(self.devices)))
        assert len({d.x.shape for d in self.devices}) == 1, "devices differ in capacity"
        assert len({d.x.dtype for d in self.devices}) == 1, "devices differ in dtype"

    @property
    def capacity(self) -> int:
        """Rows in each device's table (characters in an episode table)."""
        return int(self.devices[0].x.shape[0])

    @property
    def training(self) -> tuple[int, ...]:
        """The devices that may train, in order."""
        return tuple(i for i in range(len(self.devices)) if i not in self.held_out)


def hold_out(devices: int, held_out: int, seed: int) -> frozenset[int]:
    """Which devices never train: `held_out` of `devices`, drawn by the seed; one must train."""
    if not 0 <= held_out < devices:
        raise DelianError(
            f"cannot hold out {held_out} of {devices} devices: at least one must train",
            f"choose data.held_out_devices between 0 and {devices - 1}",
        )
    rng = np.random.default_rng([seed, HOLD_OUT_STREAM])
    return frozenset(int(i) for i in rng.choice(devices, held_out, replace=False))


# Each use of the scenario's seed draws from a stream of its own, so that changing one choice leaves
# the others.
HOLD_OUT_STREAM = 1
SPLIT_STREAM = 2
PARTITION_STREAM = 3


def label_table(labels: Sequence[NDArray[Any]], classes: int) -> tuple[tuple[int, ...], ...]:
    """How many examples of each label each device has."""
    counts = (np.bincount(y.ravel(), minlength=classes) for y in labels)
    return tuple(tuple(int(n) for n in row) for row in counts)


def scaling_of(
    devices: Sequence[DeviceData],
    held_out: frozenset[int],
    numbers: bool,
    plain: NDArray[np.bool_] | None = None,
) -> Scaling:
    """Means and deviations of the rows that devices train on.

    They are made of each device's count, sums and sums of squares, as a federated sum gives them.

    Args:
        devices: x [capacity, k], or windows [capacity, steps, k], whose steps are alike.
        held_out: those that do not train.
        numbers: whether y holds what is learnt as numbers.
        plain: bool[k]: features that stay as they are. Absent: all are scaled.
    """
    trained = [d for i, d in enumerate(devices) if i not in held_out]
    shift, scale = _standard([d.x[: d.support].reshape(-1, d.x.shape[-1]) for d in trained])
    if plain is not None:
        shift = tuple(0.0 if p else s for p, s in zip(plain.tolist(), shift, strict=True))
        scale = tuple(1.0 if p else s for p, s in zip(plain.tolist(), scale, strict=True))
    if not numbers:
        return Scaling(shift, scale)
    return Scaling(
        shift, scale, *_standard([d.y[: d.support].reshape(d.support, -1) for d in trained])
    )


def _standard(parts: Sequence[NDArray[Any]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The means, and one by the deviations, of all rows of the parts [n, k]."""
    rows = sum(len(part) for part in parts)
    sums = [part.sum(axis=0, dtype=np.float64) for part in parts]
    mean = np.sum(sums, axis=0) / rows
    squares = [np.square(part - mean).sum(axis=0) for part in parts]
    deviation = np.sqrt(np.sum(squares, axis=0) / rows)
    varies = deviation > 1e-6 * np.maximum(np.abs(mean), 1e-30)
    scale = np.where(varies, 1 / np.where(varies, deviation, 1.0), 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())


#: Ranges that a card cuts numbers into.
VALUE_BINS = 10


def value_table(
    values: Sequence[NDArray[Any]],
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """The names of `VALUE_BINS` equal ranges of all numbers, and each device's counts in them."""
    low = min(float(v.min()) for v in values)
    high = max(float(v.max()) for v in values)
    edges = np.linspace(low, high if high > low else low + 1.0, VALUE_BINS + 1)
    names = tuple(f"{a:.3g} to {b:.3g}" for a, b in itertools.pairwise(edges))
    counts = (np.histogram(v, edges)[0] for v in values)
    return names, tuple(tuple(int(n) for n in row) for row in counts)


def check_memory(devices: int, capacity: int, row_bytes: int) -> None:
    """Refuse tables that would not fit the limit, before they are allocated."""
    total = devices * capacity * row_bytes
    if total > FEDERATION_BYTES_MAX:
        raise DelianError(
            f"{devices} devices of {capacity} examples at {row_bytes} bytes each would take "
            f"{total / 2**30:.1f} GiB; the limit is {FEDERATION_BYTES_MAX / 2**30:.0f} GiB",
            "every device gets room for the largest: use fewer devices, less skew or u8 examples",
        )


@dataclass(frozen=True, slots=True)
class Split:
    """One device's rows, support set first."""

    rows: NDArray[np.int64]
    query: int
    """How many, at the end, are the query set."""

    @property
    def support(self) -> NDArray[np.int64]:
        """The rows that it may train on."""
        return self.rows[: len(self.rows) - self.query]


def make_tables(
    x: NDArray[Any],
    y: NDArray[Any],
    parts: Sequence[NDArray[np.int64]],
    names: Sequence[str],
    query_fraction: float | Sequence[float],
    seed: int,
    *,
    shuffle: bool = True,
    judges: NDArray[np.bool_] | None = None,
) -> tuple[DeviceData, ...]:
    """Cuts each device's rows into support and query sets and pads them."""
    splits = split_parts(parts, names, query_fraction, seed, shuffle=shuffle, judges=judges)
    return tables_of(x, y, splits)


def split_parts(
    parts: Sequence[NDArray[np.int64]],
    names: Sequence[str],
    query_fraction: float | Sequence[float],
    seed: int,
    *,
    shuffle: bool = True,
    judges: NDArray[np.bool_] | None = None,
) -> list[Split]:
    """Cuts each device's rows into support and query sets. Raises DelianError for too few rows."""
    for name, rows in zip(names, parts, strict=True):
        if len(rows) == 0:
            raise DelianError(
                f"device `{name}` has no samples",
                "leave it out, or use fewer devices",
            )
        if len(rows) == 1:
            raise DelianError(
                f"device `{name}` has one sample; one must be learnt from and one judged by",
                "raise data.min_examples to 2 or more, or leave the device out",
            )
    rng = np.random.default_rng([seed, SPLIT_STREAM])
    splits = []
    each = [query_fraction] * len(parts) if isinstance(query_fraction, float) else query_fraction
    for name, part, fraction in zip(names, parts, each, strict=True):
        rows = rng.permutation(part) if shuffle else part
        count = len(rows)
        query = min(count - 1, max(1, round(count * fraction)))
        if judges is not None:
            rows = rows[np.argsort(judges[rows], kind="stable")]
            query = int(judges[rows].sum())
            if not 0 < query < count:
                raise DelianError(
                    f"device `{name}` has {query} of {count} rows that only judge",
                    "the data's `query` leaves each device some to learn from and some to judge by",
                )
        splits.append(Split(rows, query))
    return splits


def tables_of(x: NDArray[Any], y: NDArray[Any], splits: Sequence[Split]) -> tuple[DeviceData, ...]:
    """The devices' tables, padded to the largest. Raises DelianError beyond the memory's limit."""
    capacity = max(len(split.rows) for split in splits)
    row_bytes = sum(int(np.prod(a.shape[1:], dtype=np.int64)) * a.itemsize for a in (x, y))
    check_memory(len(splits), capacity, row_bytes)
    devices = []
    for split in splits:
        count = len(split.rows)
        device_x = np.zeros((capacity, *x.shape[1:]), x.dtype)
        device_y = np.zeros((capacity, *y.shape[1:]), y.dtype)
        device_x[:count] = x[split.rows]
        device_y[:count] = y[split.rows]
        devices.append(DeviceData(device_x, device_y, count - split.query, split.query))
    return tuple(devices)
