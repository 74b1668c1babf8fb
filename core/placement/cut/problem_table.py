"""A placement problem as arrays, checked once: what `flow`, `exact` and `price` compute with.

Letters, here and in the files that use it: n items, m tensors, t tiers, h = t - 1 hops, e reads
(one for each consumer of each tensor), w wires of the tensor that has the most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ...compiler.ir import Array
from .problem import Hop, Item, Objective, PlacementError, Problem

#: Of tiers: of four, one wire for all hops that a tensor crosses would not fit in a cut.
TIERS_MAX = 3
#: More than these is refused before anything is allocated for it.
ITEMS_MAX = 100_000
READS_MAX = 1_000_000
WIRES_MAX = 8
#: Of one tensor, or of one item's memory: sums of them stay whole numbers in 64 bits.
BYTES_MAX = 1 << 45
#: Seconds, joules and weights, so that no sum of products overflows.
NUMBER_MAX = 1e15


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """What crossing one way costs the objective, for m tensors and h hops."""

    cost: Array
    """f64[m,h]: tensor v on hop k, in the wire that costs least there; inf where v has none."""
    wire: Array
    """i64[m,h]: that wire."""
    more: Array
    """f64[m], from 0: what v costs beyond the sum of its `cost` when it crosses all hops, in the
    one wire that costs least over all.
    """
    whole: Array
    """i64[m]: that one wire."""

    def wires(self, crosses: Array) -> Array:
        """i64[m,h]: the wire that each tensor takes where it crosses these hops, bool[m,h]."""
        everywhere = crosses.sum(axis=1, keepdims=True) == crosses.shape[1]
        return np.where(everywhere, self.whole[:, None], self.wire)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The problem as arrays: n items, t tiers, m tensors, w wire formats, e reads, r ties."""

    problem: Problem
    seconds: Array
    """f64[n,t]."""
    joules: Array
    """f64[n,t]."""
    memory: Array
    """i64[n]."""
    allowed: Array
    """bool[n,t]."""
    producer: Array
    """i64[m]; -1: an input of the program."""
    read_tensor: Array
    """i64[e]."""
    read_item: Array
    """i64[e]."""
    result: Array
    """bool[m]."""
    nbytes: Array
    """f64[m,w], zero where `wired` is false."""
    encode: Array
    """f64[m,w], zero where `wired` is false."""
    wired: Array
    """bool[m,w]."""
    ties: Array
    """i64[r,2]; some are of tensors without a wire."""
    up: Rates
    """What a crossing upwards costs."""
    down: Rates
    """What a crossing downwards costs."""

    @classmethod
    def of(cls, problem: Problem) -> Table:
        """Raises PlacementError for whatever is wrong with any labels."""
        _check_frame(problem)
        seconds, joules, memory = _items(problem.items, problem.tiers)
        producer, read_tensor, read_item = _reads(problem)
        nbytes, encode, wired = _wires(problem)
        return cls(
            problem=problem,
            seconds=seconds,
            joules=joules,
            memory=memory,
            allowed=_allowed(problem, seconds, wired, producer, read_tensor, read_item),
            producer=producer,
            read_tensor=read_tensor,
            read_item=read_item,
            result=np.array([v.result for v in problem.tensors], bool),
            nbytes=nbytes,
            encode=encode,
            wired=wired,
            ties=_ties(problem, wired, producer, read_tensor, read_item),
            up=_rates(problem, nbytes, encode, wired, up=True),
            down=_rates(problem, nbytes, encode, wired, up=False),
        )

    def revised(
        self, *, hops: tuple[Hop, ...] | None = None, objective: Objective | None = None
    ) -> Table:
        """The same with as many other hops, or another objective."""
        old = self.problem
        problem = replace(old, hops=hops or old.hops, objective=objective or old.objective)
        _check_hops(problem)
        wires = self.nbytes, self.encode, self.wired
        up, down = (_rates(problem, *wires, up=way) for way in (True, False))
        return replace(self, problem=problem, up=up, down=down)

    @property
    def makes_result(self) -> Array:
        """Items whose values are wanted on the device, ascending."""
        return np.unique(self.producer[self.result & (self.producer >= 0)])

    @property
    def fed(self) -> Array:
        """Items that read what another makes, ascending."""
        return np.unique(self.read_item[self.producer[self.read_tensor] >= 0])

    @property
    def limited(self) -> bool:
        return any(limit is not None for limit in self.problem.memory)

    def unary(self) -> Array:
        """f64[n,t]: what an item costs the objective on a tier by itself, inf where not allowed."""
        weigh = self.problem.objective
        cost = np.where(self.allowed, 0.0, math.inf)
        if weigh.latency:
            cost += np.where(self.allowed, self.seconds, 0.0) * weigh.latency
        if weigh.energy:
            cost += self.joules * weigh.energy
        return cost


def _check_frame(problem: Problem) -> None:
    """Sizes, hops, objective, memory limits."""
    if not 2 <= problem.tiers <= TIERS_MAX:
        raise PlacementError(
            f"a placement over {problem.tiers} tiers", f"2 to {TIERS_MAX}: a hop joins two"
        )
    reads = sum(map(len, [v.consumers for v in problem.tensors]))
    sizes = (
        ("items", len(problem.items), ITEMS_MAX),
        ("tensors", len(problem.tensors), READS_MAX),
        ("reads of tensors", reads, READS_MAX),
        ("ties", len(problem.ties), READS_MAX),
    )
    for what, found, most in sizes:
        if found > most:
            raise PlacementError(f"a placement problem with {found} {what}", f"at most {most}")
    _check_hops(problem)
    weights = problem.objective
    given = (weights.latency, weights.throughput, weights.energy)
    if not all(0 <= w <= NUMBER_MAX for w in given) or not any(given):
        raise PlacementError(f"an objective with weights {given}", "none below 0, one above it")
    if not 0 <= problem.start_s <= NUMBER_MAX:
        raise PlacementError(f"a device that takes {problem.start_s} s to start", "from 0")
    if len(problem.memory) not in (0, problem.tiers):
        raise PlacementError(
            f"{len(problem.memory)} memory limits for {problem.tiers} tiers", "one a tier, or none"
        )
    if any(limit is not None and limit < 0 for limit in problem.memory):
        raise PlacementError("a tier's memory limit is below 0", "bytes, or None: no limit")
    for pair in problem.ties:
        if not all(0 <= i < len(problem.items) for i in pair):
            raise PlacementError(f"a tie of items {pair[0]} and {pair[1]}", "items count from 0")


def _check_hops(problem: Problem) -> None:
    for k, hop in enumerate(problem.hops):
        if not (hop.up > 0 and hop.down > 0):
            raise PlacementError(
                f"hop {k} carries {hop.up} bytes/s up, {hop.down} down", "both above 0"
            )
        if not (0 <= hop.latency_s <= NUMBER_MAX and 0 <= hop.joules_per_byte <= NUMBER_MAX):
            raise PlacementError(
                f"hop {k} has {hop.latency_s} s latency, {hop.joules_per_byte} J a byte",
                "finite numbers from 0",
            )


def _items(items: tuple[Item, ...], tiers: int) -> tuple[Array, Array, Array]:
    """seconds, joules f64[n,t], memory i64[n]."""
    all_seconds, all_joules = [item.seconds for item in items], [item.joules for item in items]
    if not ({*map(len, all_seconds)} <= {tiers} and {*map(len, all_joules)} <= {0, tiers}):
        i = next(
            i
            for i, item in enumerate(items)
            if len(item.seconds) != tiers or len(item.joules) not in (0, tiers)
        )
        raise PlacementError(
            f"item {i} has {len(all_seconds[i])} seconds and {len(all_joules[i])} joules",
            f"one for each of the {tiers} tiers; joules may be left out",
        )
    memory = [item.memory for item in items]
    if memory and not (min(memory) >= 0 and max(memory) <= BYTES_MAX):
        i = next(i for i, held in enumerate(memory) if not 0 <= held <= BYTES_MAX)
        raise PlacementError(f"item {i} holds {memory[i]} bytes", f"0 to {BYTES_MAX}")
    shape = (len(items), tiers)
    seconds = np.array(all_seconds, np.float64).reshape(shape)
    joules, nothing = np.zeros(shape), (0.0,) * tiers
    if any(all_joules):
        joules = np.array([given or nothing for given in all_joules], np.float64)
    good = ((seconds >= 0) & (seconds <= NUMBER_MAX)) | (seconds == math.inf)
    if not good.all():
        i, t = (int(axis[0]) for axis in np.nonzero(~good))
        raise PlacementError(
            f"item {i} takes {seconds[i, t]} s on tier {t}", "from 0, or math.inf: cannot run there"
        )
    if not ((joules >= 0) & (joules <= NUMBER_MAX)).all():
        raise PlacementError("an item's joules are not a finite number from 0")
    return seconds, joules, np.array(memory, np.int64)


def _reads(problem: Problem) -> tuple[Array, Array, Array]:
    """producer i64[m], read_tensor, read_item i64[e]."""
    n, tensors = len(problem.items), problem.tensors
    makers = [-1 if v.producer is None else v.producer for v in tensors]
    for v, i in enumerate(makers):
        if i >= n or (i < 0 and tensors[v].producer is not None):
            raise PlacementError(f"tensor {v} comes from item {i} of {n}", "None: an input")
    readers = [v.consumers for v in tensors]
    read_tensor = np.repeat(np.arange(len(tensors)), [*map(len, readers)])
    found = list(chain.from_iterable(readers))
    if found and not (min(found) >= 0 and max(found) < n):
        at = next(at for at, i in enumerate(found) if not 0 <= i < n)
        raise PlacementError(f"tensor {read_tensor[at]} is read by item {found[at]} of {n}")
    producer, read_item = np.array(makers, np.int64), np.array(found, np.int64)
    late = producer[read_tensor] >= read_item
    if late.any():
        at = int(late.argmax())
        raise PlacementError(
            f"item {read_item[at]} reads tensor {read_tensor[at]} of item "
            f"{producer[read_tensor[at]]}, which comes no earlier",
            "items come in an order in which they can run; a cycle has none",
        )
    return producer, read_tensor, read_item


def _wires(problem: Problem) -> tuple[Array, Array, Array]:
    """nbytes, encode f64[m,w] and which of them there are, bool[m,w]."""
    choices = [v.wires for v in problem.tensors]
    counts = np.array([*map(len, choices)], np.int64)
    width = int(counts.max(initial=1))
    if width > WIRES_MAX:
        raise PlacementError(
            f"tensor {int(counts.argmax())} has {width} wires", f"at most {WIRES_MAX}"
        )
    wired = np.arange(width) < counts[:, None]
    nbytes, encode = np.zeros(wired.shape), np.zeros(wired.shape)
    flat = list(chain.from_iterable(choices))
    nbytes[wired] = [wire.nbytes for wire in flat]
    encode[wired] = [wire.seconds for wire in flat]
    good = (nbytes >= 0) & (nbytes <= BYTES_MAX) & (encode >= 0) & (encode <= NUMBER_MAX)
    if not good.all():
        v, w = (int(axis[0]) for axis in np.nonzero(~good))
        raise PlacementError(
            f"wire {w} of tensor {v} takes {nbytes[v, w]:.15g} bytes and {encode[v, w]} s",
            f"0 to {BYTES_MAX} bytes, and finite seconds from 0",
        )
    return nbytes, encode, wired


def _ties(
    problem: Problem, wired: Array, producer: Array, read_tensor: Array, read_item: Array
) -> Array:
    """i64[r,2]: the problem's, and maker and readers of a tensor that cannot cross."""
    stays = (wired.sum(axis=1) == 0)[read_tensor] & (producer[read_tensor] >= 0)
    more = np.stack([producer[read_tensor[stays]], read_item[stays]], axis=1)
    return np.concatenate([np.array(problem.ties, np.int64).reshape(-1, 2), more])


def _allowed(
    problem: Problem,
    seconds: Array,
    wired: Array,
    producer: Array,
    read_tensor: Array,
    read_item: Array,
) -> Array:
    """bool[n,t]: where an item may run by its own seconds and pin, and its tensors' ceilings."""
    allowed, tiers = np.isfinite(seconds), problem.tiers
    at = np.arange(tiers)
    for i, pin in enumerate([item.pin for item in problem.items]):
        if pin is not None:
            if not 0 <= pin < tiers:
                raise PlacementError(f"item {i} is pinned to tier {pin}", f"0 to {tiers - 1}")
            allowed[i] &= at == pin
    ceilings = np.array([tiers if v.ceiling is None else v.ceiling for v in problem.tensors], int)
    if (ceilings < 0).any():
        raise PlacementError(f"tensor {int((ceilings < 0).argmax())} has a ceiling below tier 0")
    home = np.array([v.result or v.producer is None for v in problem.tensors], bool)
    ceilings[home & (wired.sum(axis=1) == 0)] = 0  # of an input or a result that cannot cross
    if (ceilings < tiers).any():
        made = producer >= 0
        ends = np.concatenate([read_item, producer[made]])
        highest = np.full(len(allowed), tiers)
        np.minimum.at(highest, ends, np.concatenate([ceilings[read_tensor], ceilings[made]]))
        allowed &= at <= highest[:, None]
    nowhere = allowed.sum(axis=1) == 0
    if nowhere.any():
        raise PlacementError(
            f"item {int(nowhere.argmax())} can run on none of the {tiers} tiers",
            "its pin, its infinite seconds and its tensors' ceilings leave none",
        )
    return allowed


def _rates(problem: Problem, nbytes: Array, encode: Array, wired: Array, *, up: bool) -> Rates:
    weigh = problem.objective
    per_second, per_joule = weigh.latency + weigh.throughput, weigh.energy
    each = np.empty((len(problem.hops), *nbytes.shape))
    for k, hop in enumerate(problem.hops):
        taken = nbytes / (hop.up if up else hop.down) + encode
        spent = nbytes * (hop.joules_per_byte * per_joule)
        each[k] = np.where(wired, taken * per_second + spent, math.inf)
    cost, total = each.min(axis=2).T, each.sum(axis=0)
    apart, together = cost.sum(axis=1), total.min(axis=1)
    more = np.where(wired.sum(axis=1) > 0, together, 0.0) - np.where(np.isinf(apart), 0.0, apart)
    return Rates(cost, each.argmin(axis=2).T, np.maximum(more, 0.0), total.argmin(axis=1))
