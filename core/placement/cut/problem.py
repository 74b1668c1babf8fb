"""What is to be placed, and what a placement costs: the model that solver, plan and reports share.

Tiers are numbered upwards: 0 is the device, 1 the edge, 2 the cloud. Hop k joins tiers k and k + 1;
there is no other way between tiers, so what goes from 0 to 2 pays both hops. An item is a piece of
work that runs on one tier; a tensor is what one item makes and others read.

    t(i)                      the tier of item i;  of a program input: 0
    up(v, k)                  t(producer) <= k < t(some consumer)
    down(v, k)                t(producer) > k >= t(some consumer), or v is a result: k < t(producer)
    wire(v, way)              the one of v's wires with the least cost over all hops that v crosses
                              that way: it is encoded once, and passed on as it came

    latency    = sum_i seconds(i, t(i)) + sum over crossings (bytes / bandwidth + wire's seconds)
                 + fixed latencies + start_s if anything runs on the device
    throughput = the slowest of: a tier's seconds (start_s with the device's), a hop's seconds up,
                 a hop's seconds down
    energy     = sum_i joules(i, t(i)) + sum over crossings bytes * joules_per_byte
    cost       = the objective's weighted sum of the three

A message pays its hop's latency, whatever it carries. Without returns (inference) work only moves
up, t(producer) <= t(consumer), and what crosses a hop travels in one message: once up if anything
runs beyond it, and once down if a result comes from beyond it. With returns (training: activations
up, gradients down) messages are those of the token of `program_split`, which goes on when all that
is ready where it is has run: as many down a hop as up (`price`).

A throughput counts neither fixed latencies nor waiting, since a stream of inputs is pipelined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.errors import DelianError


class PlacementError(DelianError):
    """A placement problem is not well formed, or nothing satisfies it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of work."""

    seconds: tuple[float, ...]
    """By tier; math.inf: it cannot run there."""
    memory: int = 0
    """Bytes that it holds on its tier."""
    joules: tuple[float, ...] = ()
    """By tier, or empty: none."""
    pin: int | None = None
    """The only tier where it may run."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One way to write a tensor on a link: its bytes, and the seconds to encode and decode it."""

    dtype: str
    nbytes: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that may cross."""

    producer: int | None
    """An item, or None for a program input, which is on the device."""
    consumers: tuple[int, ...]
    """Items that read it, all after the producer."""
    wires: tuple[Wire, ...]
    """Ways to send it; none: it never leaves its tier."""
    ceiling: int | None = None
    """The highest tier that may see it, and so the highest for producer and consumers."""
    result: bool = False
    """Wanted on the device."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A link between neighbouring tiers."""

    up: float
    """Bytes a second, as `down`."""
    down: float
    latency_s: float = 0.0
    """One way, for the first byte."""
    joules_per_byte: float = 0.0
    """What the objective counts for a byte."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the sum."""

    latency: float = 1.0
    """Of seconds for one input."""
    throughput: float = 0.0
    """Of seconds between inputs in a stream (the slowest stage)."""
    energy: float = 0.0
    """Of joules."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What to place, and where it can be placed."""

    items: tuple[Item, ...]
    """In an order in which they could run."""
    tensors: tuple[Tensor, ...]
    hops: tuple[Hop, ...]
    memory: tuple[int | None, ...] = ()
    """Bytes of each tier, None: no limit, and empty: no limits at all."""
    ties: tuple[tuple[int, int], ...] = ()
    """Pairs of items that share a tier."""
    returns: bool = False
    """Whether work may come back down."""
    objective: Objective = Objective()
    start_s: float = 0.0
    """Seconds once if anything runs on the device; hops have those of tiers above."""

    @property
    def tiers(self) -> int:
        return len(self.hops) + 1


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor crosses a hop."""

    tensor: int
    hop: int
    up: bool
    wire: int
    """Its wire number, the same on all hops that it crosses in that direction."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement and what the model says of it."""

    labels: tuple[int, ...]
    """An item's tier."""
    crossings: tuple[Crossing, ...]
    """The crossings, ordered by tensor and hop."""
    cost: float
    """The objective's."""
    tier_seconds: tuple[float, ...]
    """Seconds of each tier."""
    up_seconds: tuple[float, ...]
    """Transfers and encoding on each hop, the hops' latencies, without `fixed_seconds`."""
    down_seconds: tuple[float, ...]
    fixed_seconds: tuple[float, ...]
    up_bytes: tuple[int, ...]
    """Bytes that each hop carries up."""
    down_bytes: tuple[int, ...]
    memory: tuple[int, ...]
    joules: float
    bound: float = -math.inf
    """No placement costs less."""
    optimal: bool = False
    """Cost and bound agree to `solve.TOLERANCE`."""

    @property
    def latency(self) -> float:
        """Seconds for one input."""
        times = self.tier_seconds + self.up_seconds + self.down_seconds + self.fixed_seconds
        return math.fsum(times)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest stage: between two inputs of a stream."""
        return max(*self.tier_seconds, *self.up_seconds, *self.down_seconds, 0.0)
