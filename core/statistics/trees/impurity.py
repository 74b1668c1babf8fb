"""Splits of a forest's nodes: the largest decrease of impurity, each node by its own features.

A node of weight H whose outputs sum to G (a class's weight, or weighted values) has the score
|G|^2 / H. A split gains the scores of its children less its own: with a class an output that is H
times the decrease of the Gini impurity, with one output of values H times that of the variance
(Breiman and others 1984, chapters 4 and 8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bins import I64

F64 = npt.NDArray[np.float64]
#: A gain below this share of the node's score is rounding.
_SHARE = 1e-12


@dataclass(frozen=True)
class Items:
    """Which histograms a step asks for: of each node, of some features, bin by bin.

    The numbers of a node's feature lie together: `channels` rows of its bins and one for missing
    values.
    """

    features: I64
    """i64[nodes, features a node]."""
    sizes: I64
    """Bins of all features, i64[features]."""
    channels: int

    @property
    def widths(self) -> I64:
        """Numbers a channel of a node's feature, i64[nodes, features a node]."""
        found: I64 = self.sizes[self.features] + 1
        return found

    @property
    def offsets(self) -> I64:
        """Where a node's feature begins, i64[nodes, features a node]."""
        lengths = self.channels * self.widths.reshape(-1)
        return (np.cumsum(lengths) - lengths).reshape(self.features.shape)

    @property
    def numbers(self) -> int:
        return int(self.channels * self.widths.sum())

    def padded(self, flat: F64) -> tuple[F64, F64]:
        """The sums by bin, and those of missing values.

        Returns f64[nodes, features, channels, bins at most] and f64[nodes, features, channels].
        """
        widths = self.widths[:, :, None, None]
        rows = self.offsets[:, :, None, None] + widths * np.arange(self.channels)[:, None]
        bins = np.arange(int(self.sizes[self.features].max()))
        held = bins < widths - 1
        found = flat[np.where(held, rows + bins, rows)]
        return np.where(held, found, 0.0), flat[(rows + widths - 1)[..., 0]]


@dataclass(frozen=True)
class Cleaved:
    """The best split of each node: arrays [nodes]."""

    gain: F64
    """0 where there is none."""
    feature: I64
    bin: I64
    after: I64
    """The first bin right of the split that has rows; `bin` where there is none."""
    missing_left: npt.NDArray[np.bool_]
    left: F64
    """Sums of the left child: outputs, weight and rows, f64[nodes, outputs + 2]."""


def score(sums: F64) -> F64:
    """|G|^2 / H of sums f64[..., outputs + 2]: outputs G, the weight H, rows."""
    weight = sums[..., -2]
    squares = np.square(sums[..., :-2]).sum(axis=-1)
    found: F64 = np.where(weight > 0, squares / np.where(weight > 0, weight, 1.0), 0.0)
    return found


def best_cleavage(sums: F64, missing: F64, nodes: F64, items: Items, leaf_min: float) -> Cleaved:
    """The best split of each node.

    sums, missing: as of `Items.padded`, whose channels are outputs, weight and rows. nodes: the
    nodes' sums, f64[nodes, outputs + 2]. leaf_min: rows of a child at least.
    """
    by_bin = np.moveaxis(sums, 2, 3).cumsum(axis=2)  # [nodes, features, bins, outputs + 2]
    whole = nodes[:, None, None, :]
    own = score(nodes)
    held = np.arange(by_bin.shape[2]) < items.sizes[items.features][:, :, None]
    # The last bin on the left leaves what is missing on the right; none else leaves nothing.
    gains, lefts = [], []
    for on_left in (False, True):
        left = by_bin + missing[:, :, None, :] if on_left else by_bin
        right = whole - left
        valid = held & (left[..., -1] >= leaf_min) & (right[..., -1] >= leaf_min)
        if on_left:
            valid &= missing[:, :, None, -1] > 0
        gain = score(left) + score(right) - own[:, None, None]
        gains.append(np.where(valid, gain, -np.inf))
        lefts.append(left)
    gain = np.stack(gains, axis=3).reshape(len(nodes), -1)
    best = gain.argmax(axis=1)
    row = np.arange(len(nodes))
    feature, cut, side = np.unravel_index(best, (*held.shape[1:], 2))
    found = gain[row, best]
    left = np.where((side == 1)[:, None], lefts[1][row, feature, cut], lefts[0][row, feature, cut])
    rows = by_bin[row, feature, :, -1]
    behind = rows > rows[row, cut][:, None]
    return Cleaved(
        np.where(found > _SHARE * np.maximum(own, 1.0), found, 0.0),
        items.features[row, feature],
        cut.astype(np.int64),
        np.where(behind.any(axis=1), behind.argmax(axis=1), cut).astype(np.int64),
        side == 1,
        left,
    )
