"""Federated analytics: what all devices' data are like, from sums alone.

Ramage and Mazzocchi, "Federated Analytics: Collaborative Data Science without Data Collection",
2020. A query is an algorithm that trains nothing: a device's update is a statistic of its rows, its
weight their number, and what the server makes of the mean is the answer, or the next round's
question. So it goes through the same rounds, masks, noise and limits as training does.

- `Moments`: mean and standard deviation of every feature.
- `Histogram`: shares of labels, or of feature values between edges.
- `Quantiles`: by bisection; each round asks what share of values lies below the middles.
- `HeavyHitters`: the most frequent of very many integers, by their bits: each round lengthens the
  prefixes that were frequent (the trie of Zhu, Kairouz, McMahan, Sun and Li, "Federated Heavy
  Hitters Discovery with Differential Privacy", AISTATS 2020, with sums of counts for its votes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..compiler import ops, tree
from ..compiler.ir import Tensor
from .algorithm import Algorithm, ClientResult
from .sampling import Batch, SampleSet
from .task import Classification, Metrics, Task

#: Integers that f32 holds exactly.
BITS_MAX = 24


@dataclass(frozen=True)
class Counting(Classification):
    """The task of a query: nothing is predicted, and nothing judged."""

    classes: int = 1

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        nothing = np.sum(batch.weight) * 0.0
        return Metrics(nothing, nothing, np.sum(batch.weight))

    def infer(self, model: Any, x: Tensor) -> Tensor:
        return np.zeros((x.shape[0], self.classes), np.float32)


@dataclass(frozen=True)
class Query(Algorithm):
    """A query: an algorithm that trains nothing."""

    of: str = "label"
    """What is asked about: "label", or "x", the values of the rows as models take them."""
    classes: int = 2
    """The number of labels."""

    def task(self, task: Task) -> Task:
        return Counting(task.name, task.init, task.source, self.classes)

    def measure(self, state: Any, values: Tensor, weight: Tensor) -> Any:
        """The statistic of a device's rows: a tree like the state, here the share of each label.

        Args:
            state: the question of the round.
            values: [rows, ...].
            weight: f32[rows], which add up to one.
        """
        return binned(values, weight, self.classes)

    def answer(self, state: Any, mean: Any) -> Any:
        """The next state from the mean measure."""
        return mean

    def weight(self, data: SampleSet) -> Tensor:
        return (data.support + data.query).astype(np.float32)

    def client_update(
        self, task: Task, state: Any, data: SampleSet, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        rows = data.support + data.query
        real = (np.arange(data.x.shape[0]) < rows).astype(np.float32)
        values = data.y if self.of == "label" else task.source.scaled(data.x)
        weight = real / np.maximum(rows, 1).astype(np.float32)
        measured = self.measure(state, values, weight)
        return ClientResult(measured, self.weight(data), np.float32(0.0), kept)

    def server_update(self, state: Any, memory: Any, mean: Any) -> tuple[Any, Any]:
        return self.answer(state, mean), memory

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        return state


def binned(place: Tensor, weight: Tensor, bins: int) -> Tensor:
    """Shares by bin, f32[bins]; place: i32[rows, ...] below bins; a row shares its weight."""
    flat = place.reshape(place.shape[0], -1)
    each = np.broadcast_to((weight / flat.shape[1])[:, None], flat.shape)
    return ops.segment_sum(each.reshape(-1), flat.reshape(-1), bins)


class MomentsState(NamedTuple):
    """Means over the rows so far."""

    mean: Tensor
    """The mean of x, f32[features]."""
    square: Tensor
    """The mean of x^2, f32[features]."""


@dataclass(frozen=True)
class Moments(Query):
    """Mean and variance of each feature over the rows of all devices."""

    of: str = "x"
    features: int = 1
    """The number of values in a row."""

    def init(self, task: Task, key: Tensor) -> MomentsState:
        zeros = np.zeros(self.features, np.float32)
        return MomentsState(zeros, zeros)

    def measure(self, state: Any, values: Tensor, weight: Tensor) -> MomentsState:
        flat = values.reshape(values.shape[0], -1).astype(np.float32)
        return MomentsState(weight @ flat, weight @ (flat * flat))


@dataclass(frozen=True)
class Histogram(Query):
    """The share of values in each bin, a bin a label; values outside count in the end bins."""

    bins: int = 10
    """Bins of x, all of one width."""
    low: float = 0.0
    """Lower bound of the range of x."""
    high: float = 1.0
    """Upper bound of the range of x."""

    def init(self, task: Task, key: Tensor) -> Tensor:
        return np.zeros(self.classes if self.of == "label" else self.bins, np.float32)

    def measure(self, state: Any, values: Tensor, weight: Tensor) -> Tensor:
        if self.of == "label":
            return binned(values, weight, self.classes)
        wide = (self.high - self.low) / self.bins
        place = np.floor((values.astype(np.float32) - self.low) / wide)
        return binned(np.clip(place, 0, self.bins - 1).astype(np.int32), weight, self.bins)


class Bracket(NamedTuple):
    """An interval for each quantile."""

    low: Tensor
    """Lower bounds, f32[Q]."""
    high: Tensor
    """Upper bounds, f32[Q]."""


@dataclass(frozen=True)
class Quantiles(Query):
    """Quantiles of all devices' values, by bisection from round to round."""

    of: str = "x"
    wanted: tuple[float, ...] = (0.5,)
    """Probabilities in 0..1. The interval of each halves each round, from `high` - `low`."""
    low: float = 0.0
    """Lower end of the first interval."""
    high: float = 1.0
    """Upper end of the first interval."""

    def init(self, task: Task, key: Tensor) -> Bracket:
        ends = np.zeros(len(self.wanted), np.float32)
        return Bracket(ends + self.low, ends + self.high)

    def measure(self, state: Bracket, values: Tensor, weight: Tensor) -> Bracket:
        flat = values.reshape(values.shape[0], -1).astype(np.float32)
        middle = (state.low + state.high) * 0.5
        below = np.mean((flat[:, :, None] <= middle).astype(np.float32), axis=1)
        return Bracket(weight @ below, np.zeros_like(state.high))

    def answer(self, state: Bracket, mean: Bracket) -> Bracket:
        middle = (state.low + state.high) * 0.5
        above = mean.low < np.array(self.wanted, np.float32)
        return Bracket(np.where(above, middle, state.low), np.where(above, state.high, middle))


class Prefixes(NamedTuple):
    """The state of `HeavyHitters`, whose form uploads have."""

    found: Tensor
    """Prefixes, f32[K]; -1: none."""
    shares: Tensor
    """The share of each, f32[K]."""
    level: Tensor
    """Bits of the prefixes, f32[]."""
    votes: Tensor
    """f32[K * 2^b], zeros; in an upload the shares of longer prefixes."""


@dataclass(frozen=True)
class HeavyHitters(Query):
    """The most frequent integers, found bit by bit in bits / step rounds."""

    most: int = 8
    """Prefixes that are kept in a round, and integers that are found (K)."""
    bits: int = 16
    """Bits of the integers."""
    step: int = 4
    """Bits that a round adds to the prefixes (b)."""
    least: float = 0.0
    """Minimum frequency (0..1) of a heavy hitter."""

    def init(self, task: Task, key: Tensor) -> Prefixes:
        first = (np.arange(self.most) == 0).astype(np.float32) - 1.0  # the empty prefix, alone
        votes = np.zeros(self.most << self.step, np.float32)
        return Prefixes(first, np.zeros(self.most, np.float32), np.float32(0.0), votes)

    def longer(self, state: Prefixes) -> Tensor:
        """Every prefix with `step` more bits, f32[K * 2^b]; negative where there is none."""
        more = np.arange(1 << self.step).astype(np.float32)
        grown = state.found[:, None] * float(1 << self.step) + more
        return np.where(state.found[:, None] < 0.0, -1.0, grown).reshape(-1)

    def measure(self, state: Prefixes, values: Tensor, weight: Tensor) -> Prefixes:
        flat = values.reshape(values.shape[0], -1).astype(np.float32)
        dropped = 2.0 ** (float(self.bits - self.step) - state.level)
        prefix = np.floor(flat / dropped)
        same = (prefix[:, :, None] == self.longer(state)).astype(np.float32)
        zeros = tree.map(np.zeros_like, state)
        return zeros._replace(votes=weight @ np.mean(same, axis=1))

    def answer(self, state: Prefixes, mean: Prefixes) -> Prefixes:
        votes = mean.votes
        order = np.argsort(-votes)[: self.most]
        kept = votes[order] > np.float32(self.least)
        return Prefixes(
            np.where(kept, self.longer(state)[order], -1.0),
            np.where(kept, votes[order], 0.0),
            state.level + float(self.step),
            state.votes,
        )
