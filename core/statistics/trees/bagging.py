"""Forests of bootstrapped trees: a step is a level of all trees, and what a site adds up for it.

A site draws how often each of its rows is in a tree's sample from a Poisson distribution of mean 1,
the limit of Breiman's bootstrap (2001); nothing outside the site knows the draws.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..question import Kept, Step
from ..sums import StatisticsError, Sum, Totals, counts
from .bins import I64, Cuts
from .forest import I32, Tree, TreeNodes, unpacked
from .growth import SUM_BITS, packed_trees
from .impurity import F64, Items, best_cleavage
from .objectives import Objective
from .search_steps import LOSS
from .site_model import BinnedRows, binned_rows, leaves
from .site_rows import SiteRows

#: Numbers of a step: a level of more is asked in several.
STEP_NUMBERS_MAX = 1 << 22
BEGINS_MAX = 20
#: Bits by which a sum of drawn rows may exceed that of the rows.
_DRAWN_BITS = 3
_EXPONENT_MAX = 1000


@dataclass(frozen=True)
class ForestSettings:
    """What the analyst and a site both need of a question."""

    objective: Objective
    outputs: int
    """Classes, or 1 for numbers."""
    trees: int
    max_depth: int
    features_a_node: int
    leaf_min: float
    bootstrap: bool

    @property
    def is_classes(self) -> bool:
        return self.outputs > 1

    @property
    def channels(self) -> int:
        """Sums a bin: the weight of each class, or values and weight; and different rows."""
        return self.outputs + 1 if self.is_classes else 3


def _weights(settings: ForestSettings, rows: SiteRows, tree: int) -> F64:
    if not settings.bootstrap:
        return np.ones(len(rows.label))
    return rows.draws.poisson("bootstrap", tree)


def _trees(
    settings: ForestSettings, step: Step, rows: SiteRows, kept: Kept
) -> tuple[BinnedRows, list[Tree], Iterator[I32]]:
    binned = binned_rows(step, rows, kept)
    trees = unpacked(step.integers("nodes", -1), step.integers("trees", -1), binned.sizes)
    if len(trees) != settings.trees:
        raise StatisticsError(f"{len(trees)} trees, and the forest has {settings.trees}")
    return binned, trees, leaves(trees, binned, kept)


def level_numbers(
    settings: ForestSettings, step: Step, rows: SiteRows, kept: Kept
) -> dict[str, Any]:
    """A site's numbers for a level, which may be hostile. Raises StatisticsError."""
    binned, trees, places = _trees(settings, step, rows, kept)
    asked = step.integers("asked", -1, 2)
    items = Items(
        step.integers("features", len(asked), settings.features_a_node),
        binned.sizes,
        settings.channels,
    )
    _check(asked, items, [tree.nodes for tree in trees])
    centre, exponent = step.floats("centre", 1)[0], int(step.integers("exponent", 1)[0])
    if abs(exponent) > _EXPONENT_MAX:
        raise StatisticsError("an exponent of fixed point beyond all numbers")
    values = np.rint(np.ldexp(rows.label.astype(np.float64) - centre, exponent))
    out = np.zeros(items.numbers, np.int64)
    totals = np.zeros((settings.trees, settings.channels), np.int64)
    first = np.searchsorted(asked[:, 0], np.arange(settings.trees + 1))
    ends = np.append(items.offsets[:, 0], items.numbers)
    for t, (tree, place) in enumerate(zip(trees, places, strict=True)):
        weights = _weights(settings, rows, t)
        totals[t] = _totals(settings, rows, values, weights)
        a, b = int(first[t]), int(first[t + 1])
        if a < b:
            slots = np.full(tree.nodes, -1, np.int64)
            slots[asked[a:b, 1]] = np.arange(a, b)
            part = slice(int(ends[a]), int(ends[b]))
            out[part] = _counted(settings, rows, binned, items, slots[place], weights, values, part)
    return {"rows": np.array(len(rows.label)), "totals": totals, "sums": out}


def _totals(settings: ForestSettings, rows: SiteRows, values: F64, weights: F64) -> F64:
    drawn = np.count_nonzero(weights)
    if settings.is_classes:
        classes = rows.label.astype(np.int64)
        return np.append(np.bincount(classes, weights, minlength=settings.outputs), float(drawn))
    return np.array([(weights * values).sum(), weights.sum(), drawn])


def _counted(
    settings: ForestSettings,
    rows: SiteRows,
    binned: BinnedRows,
    items: Items,
    slot: I64,
    weights: F64,
    values: F64,
    part: slice,
) -> I64:
    """A tree's numbers. slot: each row's node among all asked, or -1, i64[rows]."""
    here = np.flatnonzero((slot >= 0) & (weights > 0))
    node, weight = slot[here], weights[here]
    keys = []
    for j in range(items.features.shape[1]):
        feature = items.features[node, j]
        keys.append(
            items.offsets[node, j] - part.start + binned.bins[feature, here].astype(np.int64)
        )
    key = np.concatenate(keys)
    copies = items.features.shape[1]
    width = np.concatenate([items.widths[node, j] for j in range(copies)])
    length = part.stop - part.start
    drawn = np.bincount(key + width * (settings.channels - 1), minlength=length)
    if settings.is_classes:
        key += width * np.tile(rows.label[here].astype(np.int64), copies)
        return drawn + np.bincount(key, np.tile(weight, copies), minlength=length).astype(np.int64)
    valued = np.bincount(key, np.tile(weight * values[here], copies), minlength=length)
    counted = np.bincount(key + width, np.tile(weight, copies), minlength=length)
    return drawn + (valued + counted).astype(np.int64)


def _check(asked: I64, items: Items, sizes: Sequence[int]) -> None:
    """Raises StatisticsError for what cannot be asked."""
    tree, node, features = asked[:, 0], asked[:, 1], items.features
    good = len(asked) > 0 and ((tree >= 0) & (tree < len(sizes)) & (node >= 0)).all()
    if not good or (node >= np.array(sizes)[tree]).any():
        raise StatisticsError("a step that asks for nodes that are not")
    if not (np.diff(tree * (1 << 32) + node) > 0).all():
        raise StatisticsError("a step that asks for nodes out of order")
    if not ((features >= 0) & (features < len(items.sizes))).all():
        raise StatisticsError("a step of features that are not")
    if items.numbers > 2 * STEP_NUMBERS_MAX:
        raise StatisticsError("a step of too many numbers")


def score_numbers(
    settings: ForestSettings, step: Step, rows: SiteRows, kept: Kept
) -> dict[str, Any]:
    """A site's judgement of each row by the trees that it is not in. Raises StatisticsError."""
    _, trees, places = _trees(settings, step, rows, kept)
    nodes = sum(tree.nodes for tree in trees)
    values = step.floats("values", nodes, settings.outputs)
    votes, sums = np.zeros(len(rows.label)), np.zeros((len(rows.label), settings.outputs))
    begin = 0
    for t, (tree, place) in enumerate(zip(trees, places, strict=True)):
        outside = _weights(settings, rows, t) == 0
        votes += outside
        sums[outside] += values[begin + place[outside]]
        begin += tree.nodes
    judged = votes > 0
    means, label = sums[judged] / votes[judged][:, None], rows.label[judged]
    if settings.is_classes:
        right = means.argmax(axis=1) == label
        loss = np.array([float((~right).sum()), 0.0])
    else:
        loss = np.array([np.square(means[:, 0] - label).sum(), 0.0])
    return {
        "rows": np.array(len(rows.label)),
        "judged": np.array(int(judged.sum())),
        "loss": loss,
    }


@dataclass
class Bagging:
    """A forest that grows, where the question is asked."""

    settings: ForestSettings
    cuts: Cuts
    rows: float
    centre: float
    """What is taken off the values: their mean."""
    size: float
    """About what absolute values less the centre add up to."""
    seed: int
    trees: list[TreeNodes] = field(default_factory=list)
    sites: int = 0
    begins: int = 0
    """How often all trees began again because sites came or went."""

    @property
    def _exponent(self) -> int:
        if self.settings.is_classes:
            return 0
        return SUM_BITS - _DRAWN_BITS - 1 - math.ceil(math.log2(max(self.size, 1e-280)))

    def grow(self) -> Generator[Step, Totals, None]:
        """All trees. Raises StatisticsError where sites do not stay."""
        while not (yield from self._grown()):
            self.begins += 1
            if self.begins > BEGINS_MAX:
                raise StatisticsError(
                    f"sites came and went {BEGINS_MAX} times", "ask again once they stay up"
                )

    def _grown(self) -> Generator[Step, Totals, bool]:
        settings = self.settings
        self.trees = [TreeNodes() for _ in range(settings.trees)]
        # Sums of each node: outputs, weight, rows.
        sums: list[dict[int, F64]] = [{} for _ in self.trees]
        draw = np.random.Generator(np.random.Philox(key=self.seed & ((1 << 64) - 1)))
        asked = [(t, 0) for t in range(settings.trees)]
        first: Totals | None = None
        for depth in range(settings.max_depth):
            grown: list[tuple[int, int]] = []
            for some, items in self._batches(asked, draw):
                totals = yield self._step(some, items)
                if first is None:
                    first = totals
                    roots = self._with_weight(totals["totals"])
                    for t in range(settings.trees):
                        sums[t][0] = roots[t]
                        self._value(t, 0, roots[t])
                if not _same_rows(first, totals):
                    self.rows = totals.number("rows")
                    return False
                grown += self._split(some, items, totals["sums"], sums)
            open_min = 2 * settings.leaf_min
            asked = [(t, n) for t, n in sorted(grown) if self._may_split(sums[t][n], open_min)]
            if not asked or depth + 1 == settings.max_depth:
                break
        assert first is not None
        self.rows, self.sites = first.number("rows"), first.sites
        return True

    def _with_weight(self, channels: F64) -> F64:
        """Sums f64[n, channels, ...] as outputs, weight and rows, f64[n, outputs + 2, ...]."""
        if self.settings.is_classes:
            outputs, drawn = channels[:, :-1], channels[:, -1:]
            return np.concatenate([outputs, outputs.sum(axis=1, keepdims=True), drawn], axis=1)
        valued = np.ldexp(channels[:, :1], -self._exponent)
        return np.concatenate([valued, channels[:, 1:]], axis=1)

    def _may_split(self, sums: F64, open_min: float) -> bool:
        if sums[-1] < open_min:
            return False
        return not self.settings.is_classes or float(sums[:-2].max()) < sums[-2]

    def _value(self, tree: int, node: int, sums: F64) -> None:
        mean = sums[:-2] / max(float(sums[-2]), 1.0)
        if not self.settings.is_classes:
            mean = mean + self.centre
        self.trees[tree].value[node] = tuple(float(v) for v in mean)

    def _batches(
        self, asked: list[tuple[int, int]], draw: np.random.Generator
    ) -> list[tuple[list[tuple[int, int]], Items]]:
        settings, sizes = self.settings, np.diff(self.cuts.starts)
        features = np.sort(
            draw.random((len(asked), len(sizes))).argsort(axis=1)[:, : settings.features_a_node],
            axis=1,
        )
        lengths = settings.channels * (sizes[features] + 1).sum(axis=1)
        if int(lengths.max()) > STEP_NUMBERS_MAX:
            raise StatisticsError(
                f"a node's features together have {int(lengths.max()):,} numbers",
                f"at most {STEP_NUMBERS_MAX:,}: take a smaller max_bin or max_features",
            )
        batch = np.cumsum(lengths) // STEP_NUMBERS_MAX
        return [
            (asked[a:b], Items(features[a:b], sizes, settings.channels))
            for a, b in zip(
                np.searchsorted(batch, np.unique(batch), side="left").tolist(),
                np.searchsorted(batch, np.unique(batch), side="right").tolist(),
                strict=True,
            )
        ]

    def _step(self, asked: list[tuple[int, int]], items: Items) -> Step:
        settings = self.settings
        rows_bits = math.ceil(math.log2(self.rows + 1)) + _DRAWN_BITS
        bits = rows_bits if settings.is_classes else SUM_BITS
        return Step(
            "level",
            (
                counts("rows"),
                Sum("totals", (settings.trees, settings.channels), SUM_BITS, 0),
                Sum("sums", (items.numbers,), bits, 0),
            ),
            self._model()
            | {
                "asked": np.array(asked, np.int64),
                "features": items.features.astype(np.int64),
                "centre": np.array([self.centre]),
                "exponent": np.array([self._exponent], np.int64),
            },
        )

    def _model(self) -> dict[str, npt.NDArray[Any]]:
        nodes, starts = packed_trees(self.trees)
        return {
            "starts": self.cuts.starts,
            "cuts": self.cuts.values.astype(np.float64),
            "nodes": nodes,
            "trees": starts,
        }

    def _split(
        self,
        asked: list[tuple[int, int]],
        items: Items,
        flat: F64,
        sums: list[dict[int, F64]],
    ) -> list[tuple[int, int]]:
        """Splits nodes; returns their children as (tree, node)."""
        padded = items.padded(flat)
        shape = items.features.shape
        by_bin, missing = (self._with_weight(each.reshape(-1, *each.shape[2:])) for each in padded)
        by_bin = by_bin.reshape(*shape, *by_bin.shape[1:])
        missing = missing.reshape(*shape, *missing.shape[1:])
        nodes = np.stack([sums[t][n] for t, n in asked])
        found = best_cleavage(by_bin, missing, nodes, items, self.settings.leaf_min)
        children = []
        for i, (t, n) in enumerate(asked):
            if found.gain[i] <= 0:
                continue
            feature = int(found.feature[i])
            cut, threshold = self.cuts.middle(feature, int(found.bin[i]), int(found.after[i]))
            left = self.trees[t].split(
                n, feature, cut, bool(found.missing_left[i]), threshold, float(found.gain[i])
            )
            sums[t][left], sums[t][left + 1] = found.left[i], nodes[i] - found.left[i]
            for child in (left, left + 1):
                self._value(t, child, sums[t][child])
                children.append((t, child))
        return children

    def score(self) -> Generator[Step, Totals, tuple[float, float]]:
        """The mean loss of rows by the trees that they are not in, and how many such rows."""
        values = np.concatenate([np.array(tree.value, np.float64) for tree in self.trees])
        totals = yield Step(
            "score",
            (counts("rows"), counts("judged"), Sum("loss", (2,), *LOSS)),
            self._model() | {"values": values},
        )
        judged = totals.number("judged")
        return float(totals["loss"][0]) / max(judged, 1.0), judged


def _same_rows(first: Totals, now: Totals) -> bool:
    """Whether two steps are of the same rows: all trees' draws of them have the same totals."""
    return (
        first.sites == now.sites
        and first.number("rows") == now.number("rows")
        and np.array_equal(first["totals"], now["totals"])
    )
