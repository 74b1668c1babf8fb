"""Links whose bandwidth changes: made by a Markov chain, or read from a file.

A `LinkTrace` is a row of stretches in which bandwidth and latency hold; it repeats when it ends.

The means of the made ones are those with which partitioned inference is compared in the literature:
3G 1.1, 4G 5.85 and Wi-Fi 18.88 Mbit/s upwards (Hu, Bao, Wang, Liu, "Dynamic Adaptive DNN Surgery
for Inference Acceleration on the Edge", INFOCOM 2019). How they vary is a Markov-modulated rate, as
is usual for mobile channels: a chain of levels, each held for an exponential time, then left for a
neighbour. The levels, the holding times and the latencies are chosen by us to look like a phone
that moves; they are not measured. The mean over time is exact: levels are scaled so that the
chain's stationary mean is 1.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ...core.common.errors import DelianError
from ...core.protocol.ports import MS, SECOND
from ...core.protocol.random_streams import Streams

#: Bytes a second in a Mbit/s.
MBPS = 125_000.0
FILE_BYTES_MAX = 16 << 20
ROWS_MAX = 200_000
SECONDS_MAX = 7 * 24 * 3600.0
#: Shorter ones would keep a transfer going through them for ever.
STRETCH_S_MIN = 0.001
MBPS_MIN, MBPS_MAX = 0.001, 100_000.0
LATENCY_MS_MAX = 60_000.0
_HINT = "rows of seconds,Mbit/s[,latency in ms], in order of time, the first at 0"


@dataclass(frozen=True, slots=True)
class Mobile:
    """One kind of mobile link."""

    mbps: float
    """The mean upwards."""
    down: float
    """Times as much downwards."""
    latency_ms: float
    """One way."""
    hold_s: float
    """The mean time at a level."""


#: Levels of the chain, before they are scaled to a mean of 1: from a bad spot to a good one.
LEVELS = (0.15, 0.5, 1.0, 1.6, 2.4)
MOBILES = {
    "3g": Mobile(mbps=1.1, down=2.0, latency_ms=50.0, hold_s=3.0),
    "4g": Mobile(mbps=5.85, down=2.0, latency_ms=20.0, hold_s=3.0),
    "wifi": Mobile(mbps=18.88, down=1.0, latency_ms=5.0, hold_s=5.0),
}


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """Bandwidth and latency of a link over virtual time."""

    starts: tuple[int, ...]
    """Ns at which each stretch begins, the first 0."""
    up: tuple[float, ...]
    """Bytes a second upwards."""
    down: tuple[float, ...]
    """Bytes a second downwards."""
    latency: tuple[int, ...]
    """Ns one way."""
    length: int
    """Ns after which the trace repeats."""

    def at(self, now: int) -> int:
        """The number of the stretch at a time."""
        return bisect_right(self.starts, now % self.length) - 1

    def latency_at(self, now: int) -> int:
        return self.latency[self.at(now)]

    def sent_at(self, now: int, nbytes: float, up: bool) -> int:
        """When the last of so many bytes has left, if the first leaves now."""
        rates = self.up if up else self.down
        k, left = self.at(now), float(nbytes)
        turn = now - now % self.length  # where this repetition of the trace began
        while True:
            end = turn + (self.starts[k + 1] if k + 1 < len(self.starts) else self.length)
            room = (end - now) / SECOND * rates[k]
            if left <= room:
                return now + math.ceil(left / rates[k] * SECOND)
            left -= room
            now, k = end, k + 1
            if k == len(self.starts):
                turn, k = turn + self.length, 0

    def mean_up(self) -> float:
        """Bytes a second upwards, over time."""
        ends = (*self.starts[1:], self.length)
        total = sum((e - s) * rate for s, e, rate in zip(self.starts, ends, self.up, strict=True))
        return total / self.length


def constant(mbps: float, latency_ms: float, down_mbps: float | None = None) -> LinkTrace:
    """A link that never changes."""
    down = mbps if down_mbps is None else down_mbps
    return LinkTrace((0,), (mbps * MBPS,), (down * MBPS,), (round(latency_ms * MS),), SECOND)


def mobile(kind: str, streams: Streams, device: int, seconds: float) -> LinkTrace:
    """A made link of a device: `seconds` of the chain, from its stationary distribution on."""
    profile = MOBILES[kind]
    levels = _scaled(LEVELS)
    # Inner levels are left for two neighbours, the outer ones for one: they are half as likely.
    level = 1 + streams.word("level", device) % (2 * (len(levels) - 1))
    level = level // 2
    starts, rates = [], []
    now, step = 0.0, 0
    while now < seconds:
        starts.append(round(now * SECOND))
        rates.append(levels[level] * profile.mbps * MBPS)
        unit = 1.0 - streams.unit("hold", device, step)
        now += max(0.01, -math.log(unit) * profile.hold_s)
        level = _neighbour(level, len(levels), streams.unit("move", device, step))
        step += 1
    down = tuple(rate * profile.down for rate in rates)
    latency = (round(profile.latency_ms * MS),) * len(rates)
    return LinkTrace(tuple(starts), tuple(rates), down, latency, round(seconds * SECOND))


def _neighbour(level: int, count: int, unit: float) -> int:
    if level in (0, count - 1):
        return 1 if level == 0 else count - 2
    return level + (1 if unit < 0.5 else -1)


def _scaled(levels: Sequence[float]) -> tuple[float, ...]:
    """The levels with a stationary mean of 1."""
    weights = [1.0 if k in (0, len(levels) - 1) else 2.0 for k in range(len(levels))]
    mean = sum(w * x for w, x in zip(weights, levels, strict=True)) / sum(weights)
    return tuple(x / mean for x in levels)


def read_trace(path: Path, latency_ms: float, down: float = 1.0) -> LinkTrace:
    """A trace file: rows of seconds,Mbit/s upwards and, if given, latency in ms.

    A first row of words is skipped. The last row holds as long as the one before it. Raises
    DelianError.
    """
    rows: list[tuple[float, float, float]] = []
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise DelianError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB", _HINT)
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or (number == 1 and not _is_number(row[0])):
                    continue
                rows.append(_row(path, number, row, latency_ms))
                if len(rows) > ROWS_MAX:
                    raise DelianError(f"{path}: more than {ROWS_MAX} rows", _HINT)
    except (OSError, ValueError, csv.Error) as error:
        raise DelianError(f"{path}: cannot be read: {error}", _HINT) from None
    if not rows or rows[0][0] != 0:
        raise DelianError(f"{path}: does not begin at 0 seconds", _HINT)
    times = [r[0] for r in rows]
    if any(b < a + STRETCH_S_MIN for a, b in pairwise(times)):
        raise DelianError(f"{path}: times do not rise, by a millisecond at least", _HINT)
    last = times[-1] - times[-2] if len(times) > 1 else 1.0
    up = tuple(r[1] * MBPS for r in rows)
    return LinkTrace(
        tuple(round(t * SECOND) for t in times),
        up,
        tuple(rate * down for rate in up),
        tuple(round(r[2] * MS) for r in rows),
        round((times[-1] + last) * SECOND),
    )


def _row(path: Path, number: int, row: list[str], latency_ms: float) -> tuple[float, float, float]:
    if len(row) not in (2, 3) or not all(map(_is_number, row)):
        raise DelianError(f"{path}, line {number}: not two or three numbers", _HINT)
    seconds, mbps = float(row[0]), float(row[1])
    latency = float(row[2]) if len(row) == 3 else latency_ms
    if not (0 <= seconds <= SECONDS_MAX and 0 <= latency <= LATENCY_MS_MAX):
        raise DelianError(f"{path}, line {number}: out of range", _HINT)
    # A link without any bandwidth would never end a transfer.
    return seconds, min(MBPS_MAX, max(MBPS_MIN, mbps)), latency


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
