"""What a link between two tiers can do, and how that is estimated from what was sent over it.

A transfer of n bytes one way and back again with an empty answer takes

    t = rtt + n / bandwidth

so the round trip is the least time that an empty probe took (a queue only ever adds to it: Cardwell
et al., "BBR: congestion-based congestion control", ACM Queue 2016), and a byte's time is what sized
ones took beyond that. Seconds a byte are what is averaged: the time of the next transfer is what is
wanted, and it is linear in them. How a link changes while it is used is
estimated by `subgraphs.machines.link_estimate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...common.errors import DelianError

#: What a link may be said to do. Beyond it is a slip of the pen.
_BYTES_PER_SECOND_MIN, _BYTES_PER_SECOND_MAX = 1e-3, 1e13
_LATENCY_MAX_S = 60.0
#: A transfer of fewer bytes says more of the round trip than of the bandwidth.
SIZED_BYTES_MIN = 4096

_EXAMPLE = 'a link is written "5.85Mbit/s,20ms", or "5.85Mbit/s/20Mbit/s,20ms" for up and down'
_RATE = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kKMG]?)(bit/s|bps|B/s)")
_RATES = re.compile(r"(.*?(?:bit/s|bps|B/s))(?:\s*/\s*(.+))?")
_TIME = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(us|ms|s)")
_LOSS = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*%")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A link between a tier and the one above it."""

    up: float
    """Bytes a second towards the cloud."""
    down: float
    """Bytes a second back."""
    latency_s: float
    """One way, in seconds."""
    loss: float = 0.0
    """The share of probes without an answer; the bandwidth includes it already."""

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if not _BYTES_PER_SECOND_MIN <= getattr(self, name) <= _BYTES_PER_SECOND_MAX:
                raise DelianError(f"a link of {getattr(self, name)} bytes/s {name}", _EXAMPLE)
        if not 0 <= self.latency_s <= _LATENCY_MAX_S:
            raise DelianError(f"a link's latency of {self.latency_s} s", _EXAMPLE)
        if not 0 <= self.loss <= 1:
            raise DelianError(f"a link's loss of {self.loss}", "a share from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> LinkProfile:
        """Reads "5.85Mbit/s,20ms": bandwidth, one-way latency and, if wanted, a loss ("1%").

        Up and down may differ: "5Mbit/s/20Mbit/s". Units: bit/s, kbit/s, Mbit/s, Gbit/s, and B/s
        likewise; us, ms, s. Raises DelianError for anything else.
        """
        bandwidth, _, rest = text.partition(",")
        latency, _, loss = rest.partition(",")
        rates = _RATES.fullmatch(bandwidth.strip())
        lost = _LOSS.fullmatch(loss.strip() or "0%")
        if rates is None or lost is None:
            raise DelianError(f"not a link: {text!r}", _EXAMPLE)
        up = parse_bandwidth(rates[1])
        down = parse_bandwidth(rates[2]) if rates[2] else up
        seconds = parse_seconds(latency) if latency.strip() else 0.0
        return cls(up, down, seconds, _number(lost[1]) / 100)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> LinkProfile:
        """The profile that `body` gave. Raises DelianError for something else."""
        try:
            return cls(*(float(body[k]) for k in ("up", "down", "latency_s", "loss")))
        except (KeyError, TypeError, ValueError):
            raise DelianError("a link's profile is incomplete", "measure it again") from None

    def body(self) -> dict[str, float]:
        """As JSON has it."""
        return {k: getattr(self, k) for k in ("up", "down", "latency_s", "loss")}

    def text(self) -> str:
        """As `parse` reads it."""
        rates = f"{8e-6 * self.up:.6g}Mbit/s/{8e-6 * self.down:.6g}Mbit/s"
        return f"{rates},{1e3 * self.latency_s:.6g}ms,{100 * self.loss:.4g}%"

    def __str__(self) -> str:
        up, down = bits(self.up), bits(self.down)
        rates = up if up == down else f"{up} up, {down} down"
        return f"{rates}, {1e3 * self.latency_s:.3g} ms"


def parse_bandwidth(text: str) -> float:
    """Bytes a second of "5.85Mbit/s". Raises DelianError for anything else."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise DelianError(f"not a bandwidth: {text!r}", "such as 1.1Mbit/s or 200kB/s")
    return _number(found[1]) * _SCALES[found[2]] / (1.0 if found[3] == "B/s" else 8.0)


def parse_seconds(text: str) -> float:
    """Seconds of "20ms". Raises DelianError for anything else."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise DelianError(f"not a time: {text!r}", "such as 20ms or 0.5s")
    return _number(found[1]) * _SECONDS[found[2]]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DelianError(f"not a number: {text!r}", _EXAMPLE) from None


def bits(rate: float) -> str:
    """Bytes a second as people write them of links: "5.85 Mbit/s"."""
    value = 8 * rate
    for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} bit/s"


@dataclass(frozen=True, slots=True)
class Probe:
    """Seconds of a message of `up` bytes answered with `down`; None: no answer."""

    up: int
    down: int
    seconds: float | None


def estimate(probes: Sequence[Probe]) -> LinkProfile:
    """The link that probes went over: empty ones, and sized ones each way.

    Raises DelianError where no empty one, or no sized one upwards, was answered.
    """
    answered = [(p, p.seconds) for p in probes if p.seconds is not None]
    empty = [s for p, s in answered if max(p.up, p.down) < SIZED_BYTES_MIN]
    if not empty:
        raise DelianError("no probe of the link was answered", "is the node above there?")
    rtt = min(empty)

    def byte_s(way: str) -> float | None:
        """The median seconds of a byte one way, at least a tenth of the whole."""
        other = "down" if way == "up" else "up"
        found = [
            max(s - rtt, 0.1 * s) / getattr(p, way)
            for p, s in answered
            if getattr(p, way) >= SIZED_BYTES_MIN > getattr(p, other)
        ]
        return max(median(found), 1 / _BYTES_PER_SECOND_MAX) if found else None

    up = byte_s("up")
    if up is None:
        raise DelianError("no sized probe of the link was answered", "is the link very slow?")
    down = byte_s("down") or up
    lost = 1 - len(answered) / len(probes)
    return LinkProfile(1 / up, 1 / down, min(rtt / 2, _LATENCY_MAX_S), lost)
