"""Trees as arrays: how they travel in a step, which leaf a row is at, and what they predict.

A node is one number of 64 bits in a step. Its children lie side by side, behind it:

    bits  0-15  feature + 1, or 0 for a leaf
    bits 16-31  bin + 1: bins up to this one go left; 0: only missing values may
    bit     32  whether missing values go left
    bits 33-55  the left child's number in its tree; the right one's is one more

A leaf has its value's 32 bits in bits 16-47.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..sums import StatisticsError
from .bins import F32, I64, U16

I32 = npt.NDArray[np.int32]

FEATURES_MAX = (1 << 16) - 2
NODES_MAX = 1 << 22
TREES_MAX = 1 << 16
_HALF = (1 << 16) - 1
_VALUE_SHIFT = 16
_LEFT_BIT, _CHILD_SHIFT, _CHILD_MASK = 32, 33, (1 << 23) - 1


@dataclass(frozen=True)
class Tree:
    """A tree that a site was sent: arrays [nodes]."""

    feature: I32
    """-1: a leaf."""
    bin: I32
    """Bins up to this one go left."""
    missing_left: npt.NDArray[np.bool_]
    left: I32
    """The left child; the right one is the next."""
    value: F32
    """A leaf's prediction; 0 where leaves have several."""

    @property
    def nodes(self) -> int:
        return len(self.feature)

    def begins_as(self, other: Tree) -> bool:
        """Whether the splits of `other` are the same here: it has grown, or is the same."""
        inner = np.flatnonzero(other.feature >= 0)
        return other.nodes <= self.nodes and all(
            np.array_equal(mine[inner], its[inner])
            for mine, its in (
                (self.feature, other.feature),
                (self.bin, other.bin),
                (self.missing_left, other.missing_left),
                (self.left, other.left),
            )
        )

    def descend(self, bins: U16, sizes: I64, at: I32) -> None:
        """Moves rows on until all are at leaves.

        bins: u16[features, rows]. sizes: bins a feature, i64[features]: a row's bin is that where
        its value is missing. at: each row's node, i32[rows], changed in place.
        """
        moving = np.flatnonzero(self.feature[at] >= 0)
        while len(moving):
            node = at[moving]
            feature = self.feature[node]
            value = bins[feature, moving]
            right = value > self.bin[node]
            missing = value == sizes[feature]
            if missing.any():
                right = np.where(missing, ~self.missing_left[node], right)
            node = self.left[node] + right
            at[moving] = node
            moving = moving[self.feature[node] >= 0]


@dataclass
class TreeNodes:
    """A tree that grows, where the question is asked. Lists [nodes]."""

    feature: list[int] = field(default_factory=lambda: [-1])
    bin: list[int] = field(default_factory=lambda: [0])
    missing_left: list[bool] = field(default_factory=lambda: [False])
    left: list[int] = field(default_factory=lambda: [-1])
    threshold: list[float] = field(default_factory=lambda: [0.0])
    """Values below it go left."""
    gain: list[float] = field(default_factory=lambda: [0.0])
    value: list[tuple[float, ...]] = field(default_factory=lambda: [(0.0,)])
    """A node's prediction, a number an output; it counts at leaves."""

    @property
    def nodes(self) -> int:
        return len(self.feature)

    def split(
        self, node: int, feature: int, cut: int, missing_left: bool, threshold: float, gain: float
    ) -> int:
        """Makes two children; returns the left one's number."""
        self.feature[node], self.bin[node] = feature, cut
        self.missing_left[node], self.left[node] = missing_left, self.nodes
        self.threshold[node], self.gain[node] = threshold, gain
        for _ in range(2):
            self.feature.append(-1)
            self.bin.append(0)
            self.missing_left.append(False)
            self.left.append(-1)
            self.threshold.append(0.0)
            self.gain.append(0.0)
            self.value.append((0.0,))
        return self.nodes - 2

    def packed(self) -> I64:
        """The nodes as they travel, i64[nodes]."""
        feature, cut = np.array(self.feature, np.int64), np.array(self.bin, np.int64)
        inner = feature >= 0
        whole = (
            (feature + 1)
            | (cut + 1) << 16
            | np.array(self.missing_left, np.int64) << _LEFT_BIT
            | np.array(self.left, np.int64) << _CHILD_SHIFT
        )
        value = np.array([v[0] if len(v) == 1 else 0.0 for v in self.value], np.float32)
        return np.where(inner, whole, value.view(np.uint32).astype(np.int64) << _VALUE_SHIFT)


def check_starts(nodes: I64, starts: I64) -> None:
    """Raises StatisticsError where trees do not lie one after the other."""
    if not 1 <= len(starts) <= TREES_MAX + 1 or len(nodes) > NODES_MAX:
        raise StatisticsError(f"{len(starts) - 1} trees of {len(nodes)} nodes")
    if int(starts[0]) != 0 or int(starts[-1]) != len(nodes) or not (np.diff(starts) > 0).all():
        raise StatisticsError("trees that are not one after the other")


def unpacked(nodes: I64, starts: I64, bins: I64) -> list[Tree]:
    """The trees of a step, which may be hostile. Raises StatisticsError.

    nodes: i64[n]. starts: tree t is nodes starts[t] to starts[t + 1], i64[trees + 1]. bins: bins a
    feature, i64[features].
    """
    check_starts(nodes, starts)
    sizes = np.diff(starts)
    feature = (nodes & _HALF) - 1
    cut = ((nodes >> 16) & _HALF) - 1
    left = (nodes >> _CHILD_SHIFT) & _CHILD_MASK
    inner = feature >= 0
    own = np.arange(len(nodes)) - np.repeat(starts[:-1], sizes)
    size = np.repeat(sizes, sizes)
    # A child behind its parent: no row runs in a circle.
    good = (left > own) & (left + 1 < size) & (feature < len(bins))
    good &= cut < bins[np.minimum(np.maximum(feature, 0), len(bins) - 1)]
    bits = np.where(inner, 0, nodes >> _VALUE_SHIFT & 0xFFFFFFFF).astype(np.uint32)
    value = bits.view(np.float32)
    if not (good | ~inner).all() or (nodes < 0).any() or not np.isfinite(value).all():
        raise StatisticsError("a tree whose nodes make no sense")
    missing_left = (nodes >> _LEFT_BIT & 1).astype(np.bool_)
    parts = [
        np.split(each, starts[1:-1])
        for each in (
            feature.astype(np.int32),
            cut.astype(np.int32),
            missing_left,
            left.astype(np.int32),
            value,
        )
    ]
    return [Tree(*each) for each in zip(*parts, strict=True)] if len(starts) > 1 else []


@dataclass(frozen=True)
class Forest:
    """Trees for prediction: arrays [nodes] of all trees, one after the other."""

    outputs: int
    """Numbers of a prediction."""
    output_of: tuple[int, ...]
    """By tree: which output it adds to; -1: its leaves have all outputs."""
    starts: I64
    feature: I32
    threshold: F32
    missing_left: npt.NDArray[np.bool_]
    left: I32
    gain: F32
    value: F32
    """f32[nodes, 1], or [nodes, outputs] where leaves have all outputs."""

    @staticmethod
    def of(trees: Sequence[TreeNodes], output_of: Sequence[int], outputs: int) -> Forest:
        """Grown trees."""
        return Forest(
            outputs,
            tuple(output_of),
            np.cumsum([0, *(t.nodes for t in trees)]),
            np.array([v for t in trees for v in t.feature], np.int32),
            np.array([v for t in trees for v in t.threshold], np.float32),
            np.array([v for t in trees for v in t.missing_left], np.bool_),
            np.array([v for t in trees for v in t.left], np.int32),
            np.array([v for t in trees for v in t.gain], np.float32),
            np.array([v for t in trees for v in t.value], np.float32),
        )

    @property
    def trees(self) -> int:
        return len(self.output_of)

    def leaves(self, columns: F32, tree: int) -> npt.NDArray[np.int64]:
        """Each row's leaf in a tree, as a place in the arrays. columns: f32[features, rows]."""
        begin = int(self.starts[tree])
        at = np.full(columns.shape[1], begin, np.int64)
        moving = np.flatnonzero(self.feature[at] >= 0)
        while len(moving):
            node = at[moving]
            value = columns[self.feature[node], moving]
            # A missing value is below nothing.
            to_left = np.where(
                np.isnan(value), self.missing_left[node], value < self.threshold[node]
            )
            at[moving] = begin + self.left[node] + np.where(to_left, 0, 1)
            moving = moving[self.feature[at[moving]] >= 0]
        return at

    def margins(self, columns: F32, base: F32) -> F32:
        """What the trees add to the base margins f32[outputs], in f32, tree by tree.

        columns: f32[features, rows], NaN where missing. Returns f32[rows, outputs].
        """
        out = np.tile(np.asarray(base, np.float32), (columns.shape[1], 1))
        for tree, output in enumerate(self.output_of):
            value = self.value[self.leaves(columns, tree)]
            if output < 0:
                out += value
            else:
                out[:, output] += value[:, 0]
        return out

    def importance(self, features: int) -> tuple[npt.NDArray[np.float64], I64]:
        """The sum of gains and the number of splits by feature, f64 and i64[features]."""
        inner = self.feature >= 0
        used = self.feature[inner]
        gains = np.bincount(used, self.gain[inner].astype(np.float64), minlength=features)
        return gains.astype(np.float64), np.bincount(used, minlength=features).astype(np.int64)
