"""A tree that grows a level at a time from histograms, where the question is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bins import F32, I64, Cuts
from .forest import TreeNodes
from .splits import F64, GAIN_MIN, Nodes, Penalties, Splits, best_splits

#: Bits of a sum in fixed point. Whole numbers in f64 are exact to 53; under masks, 51 bits with
#: the sign are two ring elements for up to 64 sites.
SUM_BITS = 50
#: Bits by which a sum of gradients may grow from a round to the next.
_GROWTH_BITS = 4


def exponent_for(size: float) -> int:
    """The exponent of fixed point for numbers whose absolute values add up to `size`."""
    return SUM_BITS - _GROWTH_BITS - math.ceil(math.log2(max(size, 1e-280)))


@dataclass(frozen=True)
class Frame:
    """What the trees of a round have in common."""

    cuts: Cuts
    features: I64
    """The features that splits are chosen among, rising."""
    penalties: Penalties
    eta: float
    max_depth: int

    @property
    def sizes(self) -> I64:
        """Bins of each of the features."""
        every: I64 = np.diff(self.cuts.starts)
        return every[self.features]

    def padded(self, flat: F64) -> F64:
        """Histograms [nodes, bins of all features] as [nodes, features, bins at most]."""
        sizes = self.sizes
        held = np.arange(int(sizes.max()))[None, :] < sizes[:, None]
        out = np.zeros((len(flat), *held.shape))
        out[:, held] = flat
        return out


class GrowingTree:
    """One tree. exponents: of the fixed point of gradients and Hessians."""

    def __init__(self, frame: Frame, totals: F64, exponents: tuple[int, int]) -> None:
        self.frame, self.exponents = frame, exponents
        self.nodes = TreeNodes()
        self.depth = 0
        """Splits between the root and the open nodes."""
        gradient, hessian = (
            np.ldexp(totals[i : i + 1], -e) for i, e in zip((0, 1), exponents, strict=True)
        )
        widest = np.finfo(np.float32).max
        self._low, self._high = {0: -widest}, {0: widest}
        low, high = np.full(1, -widest, np.float32), np.full(1, widest, np.float32)
        weight = frame.penalties.weight(gradient, hessian, low, high)
        gain = frame.penalties.gain(gradient, hessian, weight)
        self._sums = {0: (float(gradient[0]), float(hessian[0]))}
        self._gains = {0: gain[0]}
        self.nodes.value[0] = (float(weight[0] * np.float32(frame.eta)),)
        self.open = [0]
        """The nodes of the level that may split."""
        self._pairs: list[tuple[int, int]] = []
        """(parent, left child) of the open nodes below the root."""
        self._histograms: dict[int, tuple[F64, F64]] = {}

    def asked(self) -> list[int]:
        """The nodes whose histograms are needed, rising: of two siblings the lighter one."""
        if not self.depth:
            return list(self.open)
        return sorted(
            left if self._sums[left][1] <= self._sums[left + 1][1] else left + 1
            for _, left in self._pairs
        )

    def take(self, gradients: F64, hessians: F64) -> None:
        """Splits the level, by the totals of the nodes asked, f64[asked, bins of all features]."""
        found = dict(
            zip(
                self.asked(),
                zip(self.frame.padded(gradients), self.frame.padded(hessians), strict=True),
                strict=True,
            )
        )
        for parent, left in self._pairs:
            known = left if left in found else left + 1
            whole, part = self._histograms[parent], found[known]
            # Whole numbers: what is left is exact, and an empty bin is 0.
            found[2 * left + 1 - known] = (whole[0] - part[0], whole[1] - part[1])
        self._histograms = found
        splits = self._best(found)
        self._apply(splits)

    def _best(self, found: dict[int, tuple[F64, F64]]) -> Splits:
        nodes = self.open
        sums = np.array([self._sums[n] for n in nodes])
        return best_splits(
            np.ldexp(np.stack([found[n][0] for n in nodes]), -self.exponents[0]),
            np.ldexp(np.stack([found[n][1] for n in nodes]), -self.exponents[1]),
            self.frame.sizes,
            self.frame.features,
            Nodes(
                sums[:, 0],
                sums[:, 1],
                np.array([self._gains[n] for n in nodes], np.float32),
                np.array([self._low[n] for n in nodes], np.float32),
                np.array([self._high[n] for n in nodes], np.float32),
            ),
            self.frame.penalties,
        )

    def _apply(self, splits: Splits) -> None:
        level, self.open, self._pairs = self.open, [], []
        self.depth += 1
        for i, node in enumerate(level):
            if splits.gain[i] <= GAIN_MIN or splits.gain[i] < self.frame.penalties.gamma:
                continue
            left = self._split(node, splits, i)
            if self.depth < self.frame.max_depth:
                self.open += [left, left + 1]
                self._pairs.append((node, left))
        if not self.open:
            self._histograms = {}

    def _split(self, node: int, splits: Splits, i: int) -> int:
        penalties = self.frame.penalties
        feature, cut = int(splits.feature[i]), int(splits.bin[i])
        left = self.nodes.split(
            node,
            feature,
            cut,
            bool(splits.missing_left[i]),
            self.frame.cuts.threshold(feature, cut),
            float(splits.gain[i]),
        )
        whole = self._sums[node]
        first = (float(splits.left_gradient[i]), float(splits.left_hessian[i]))
        sums = (first, (whole[0] - first[0], whole[1] - first[1]))
        gradient, hessian = np.array([s[0] for s in sums]), np.array([s[1] for s in sums])
        low, high = (np.full(2, side[node], np.float32) for side in (self._low, self._high))
        weight: F32 = penalties.weight(gradient, hessian, low, high)
        gain = penalties.gain(gradient, hessian, weight)
        middle = (weight[0] + weight[1]) / np.float32(2)
        order = int(penalties.monotone[feature])
        for side in range(2):
            child = left + side
            self._sums[child], self._gains[child] = sums[side], gain[side]
            self._low[child] = middle if (order > 0) == (side == 1) and order else self._low[node]
            self._high[child] = middle if (order > 0) == (side == 0) and order else self._high[node]
            self.nodes.value[child] = (float(weight[side] * np.float32(self.frame.eta)),)
        return left


def packed_trees(trees: list[TreeNodes]) -> tuple[I64, I64]:
    """Trees as a step has them: nodes i64[n] and starts i64[trees + 1]."""
    parts = [tree.packed() for tree in trees]
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    nodes: npt.NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *parts])
    return nodes, starts
