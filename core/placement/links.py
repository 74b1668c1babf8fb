"""What a link between two tiers can do, and how that is told from what was sent over it.

A transfer of n bytes one way and back again with an empty answer takes

    t = rtt + n / bandwidth

so the round trip is the least time that an empty probe took within a window (a queue only ever adds
to it: Jacobson, "Congestion avoidance and control", SIGCOMM 1988, takes means, Cardwell et al.,
"BBR", ACM Queue 2016, the minimum over ten seconds, as here), and a byte's time is what a sized one
took beyond that. Seconds a byte are averaged, not bytes a second: the time of the next transfer is
what is wanted, and it is linear in them. The average forgets with a half-life in seconds of the
clock, not in samples, so that it is as quick on a quiet link as on a busy one.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DelianError

#: What a link may be said to do. Beyond it is a slip of the pen.
_BYTES_PER_SECOND_MAX = 1e13
_LATENCY_MAX_S = 60.0
#: How long an empty probe's time stands for the round trip.
RTT_WINDOW_S = 10.0
#: Probes kept in that window; with more the earliest go.
_RTTS_MAX = 256
#: After how long a transfer counts half.
HALF_LIFE_S = 0.4
#: A transfer of fewer bytes says more of the round trip than of the bandwidth.
SIZED_BYTES_MIN = 4096

_EXAMPLE = 'a link is written "5.85Mbit/s,20ms", or "5.85Mbit/s/20Mbit/s,20ms" for up and down'
_RATE = re.compile(r"([0-9.]+)\s*([kKMG]?)(bit/s|bps|B/s)")
_RATES = re.compile(r"(.*?(?:bit/s|bps|B/s))(?:\s*/\s*(.+))?")
_TIME = re.compile(r"([0-9.]+)\s*(us|ms|s)")
_LOSS = re.compile(r"([0-9.]+)\s*%")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A link between a tier and the one above it.

    up, down: bytes a second, towards the cloud and back. latency_s: one way, in seconds. loss: the
    share of probes that were not answered; it is told, and lowers nothing, for what the transport
    sends again is in the bandwidth already.
    """

    up: float
    down: float
    latency_s: float
    loss: float = 0.0

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if not 0 < getattr(self, name) <= _BYTES_PER_SECOND_MAX:
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
        """From what `body` gave. Raises DelianError for something else."""
        try:
            return cls(*(float(body[k]) for k in ("up", "down", "latency_s", "loss")))
        except (KeyError, TypeError, ValueError):
            raise DelianError("a link's profile is incomplete", "measure it again") from None

    def body(self) -> dict[str, float]:
        """As JSON has it."""
        return {k: getattr(self, k) for k in ("up", "down", "latency_s", "loss")}

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


class LinkEstimator:
    """Tells a link's profile from probes and transfers, as they come.

    `now` is any clock in seconds that only goes forward. Without I/O: who probes calls it.
    """

    def __init__(self, half_life_s: float = HALF_LIFE_S, window_s: float = RTT_WINDOW_S) -> None:
        self._window_s = window_s
        self._rtts: deque[tuple[float, float]] = deque(maxlen=_RTTS_MAX)
        self._up, self._down = _Forgetful(half_life_s), _Forgetful(half_life_s)
        self._sent = self._lost = 0

    def probed(self, seconds: float, now: float) -> None:
        """An empty probe came back after so long."""
        self._sent += 1
        self._note_rtt(seconds, now)

    def lost(self) -> None:
        """A probe was not answered."""
        self._sent += 1
        self._lost += 1

    def sent(self, nbytes: int, seconds: float, now: float) -> None:
        """So many bytes went up, and an answer of next to nothing came, after so long."""
        self._moved(self._up, nbytes, seconds, now)

    def received(self, nbytes: int, seconds: float, now: float) -> None:
        """A request of next to nothing went up, and so many bytes came, after so long."""
        self._moved(self._down, nbytes, seconds, now)

    @property
    def rtt_s(self) -> float | None:
        """The least time there and back of late; None before any."""
        return min((s for _, s in self._rtts), default=None)

    def profile(self) -> LinkProfile | None:
        """What is known; None until a round trip and a sized transfer upwards were seen. Down is
        taken to be as up until it was measured.
        """
        rtt, up = self.rtt_s, self._up.mean
        if rtt is None or up is None:
            return None
        down = self._down.mean or up
        loss = self._lost / self._sent if self._sent else 0.0
        limit = 1 / _BYTES_PER_SECOND_MAX
        return LinkProfile(
            1 / max(up, limit), 1 / max(down, limit), min(rtt / 2, _LATENCY_MAX_S), loss
        )

    def _note_rtt(self, seconds: float, now: float) -> None:
        self._rtts.append((now, max(seconds, 0.0)))
        while self._rtts and self._rtts[0][0] < now - self._window_s:
            self._rtts.popleft()

    def _moved(self, rate: _Forgetful, nbytes: int, seconds: float, now: float) -> None:
        if nbytes < SIZED_BYTES_MIN:
            return
        rtt = self.rtt_s
        # A transfer quicker than any probe says that the probes were slow, and is a probe itself.
        if rtt is None or seconds < rtt:
            self._note_rtt(seconds, now)
            rtt = 0.0
        # What the clock cannot see is at most a tenth of the whole.
        rate.add(max(seconds - rtt, 0.1 * seconds) / nbytes, now)


class _Forgetful:
    """A mean in which a value counts half after each half-life."""

    __slots__ = ("_at", "_half_life_s", "_total", "_weight")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._total = self._weight = self._at = 0.0

    def add(self, value: float, now: float) -> None:
        fade = math.exp2(-max(now - self._at, 0.0) / self._half_life_s) if self._weight else 0.0
        self._total, self._weight = fade * self._total + value, fade * self._weight + 1.0
        self._at = now

    @property
    def mean(self) -> float | None:
        return self._total / self._weight if self._weight else None
