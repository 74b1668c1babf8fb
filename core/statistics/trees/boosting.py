"""Rounds of boosting: the steps of a round's trees, and what a site adds up for one."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..question import Kept, Step
from ..sums import StatisticsError, Sum, Totals, counts
from .bins import F32, I64
from .forest import TreeNodes, unpacked
from .growth import SUM_BITS, Frame, GrowingTree, exponent_for, packed_trees
from .histograms import F64, fixed_point, histogram
from .objectives import Objective
from .search_steps import LOSS
from .site_model import BinnedRows, binned_rows, leaves, margins
from .site_rows import SiteRows

#: Numbers of a histogram step: a level of more nodes is asked in several.
STEP_NUMBERS_MAX = 1 << 22
#: A round begins again when sites come or go; so often at most in all rounds.
BEGINS_MAX = 100
#: A total of absolute gradients, of any unit.
_SIZE = (200, 180)
_EXPONENT_MAX = 1000


@dataclass(frozen=True)
class BoostingSettings:
    """What the analyst and a site both need of a question."""

    objective: Objective
    outputs: int
    max_delta_step: float
    subsample: float
    is_weighted: bool

    @property
    def counts_rows(self) -> bool:
        """Whether Hessians are 1, so that rows are counted."""
        return self.objective.name == "reg:squarederror" and not self.is_weighted


def level_sums(asked: int, bins: int, outputs: int, rows_bits: int | None) -> tuple[Sum, ...]:
    """The sums of a histogram step. rows_bits: of a count of rows, where Hessians are 1."""
    hessian_bits = SUM_BITS if rows_bits is None else rows_bits
    return (
        counts("rows"),
        counts("held_out"),
        Sum("totals", (outputs, 2), SUM_BITS, 0),
        Sum("size", (outputs, 2), *_SIZE),
        Sum("loss", (2,), *LOSS),
        Sum("weight", (2,), *_SIZE),
        Sum("gradients", (asked, bins), SUM_BITS, 0),
        Sum("hessians", (asked, bins), hessian_bits, 0),
    )


@dataclass(frozen=True)
class _State:
    """A site's gradients in a round."""

    margin: F32
    exponents: I64
    gradients: F64
    """Whole numbers, f64[outputs, rows]."""
    hessians: F64
    sizes: F64
    judged: dict[str, Any]


def _state(
    settings: BoostingSettings, margin: F32, exponents: I64, rows: SiteRows, kept: Kept
) -> _State:
    old: _State | None = kept.get("state")
    if old is not None and old.margin is margin and np.array_equal(old.exponents, exponents):
        return old
    with np.errstate(over="ignore"):
        g, h = settings.objective.gradients(margin, rows.label, settings.max_delta_step)
    if not (np.isfinite(g).all() and np.isfinite(h).all()):
        raise StatisticsError("gradients have grown beyond all bounds", "take a smaller eta")
    if rows.pull is not None:
        g, h = g * rows.pull[:, None], h * rows.pull[:, None]
    growing = ~rows.held_out
    sizes = np.stack(
        [np.abs(each[growing]).astype(np.float64).sum(axis=0) for each in (g, h)], axis=1
    )
    made = _State(
        margin,
        exponents,
        np.ascontiguousarray(fixed_point(g, exponents[:, 0]).T),
        np.ascontiguousarray(fixed_point(h, exponents[:, 1]).T),
        sizes,
        _judged(settings, margin, rows),
    )
    kept["state"] = made
    return made


def _judged(settings: BoostingSettings, margin: F32, rows: SiteRows) -> dict[str, Any]:
    """Losses and weights of the rows that grow trees, and of those held out."""
    losses = settings.objective.losses(margin, rows.label)
    weights = np.ones(len(losses)) if rows.weight is None else rows.weight.astype(np.float64)
    sides = (~rows.held_out, rows.held_out)
    return {
        "rows": np.array(int(sides[0].sum())),
        "held_out": np.array(int(sides[1].sum())),
        "loss": np.array([(weights * losses)[side].sum() for side in sides]),
        "weight": np.array([weights[side].sum() for side in sides]),
    }


def level_numbers(
    settings: BoostingSettings, step: Step, rows: SiteRows, kept: Kept
) -> dict[str, Any]:
    """A site's numbers for a histogram step, which may be hostile. Raises StatisticsError."""
    outputs = settings.outputs
    binned = binned_rows(step, rows, kept)
    margin = _margin(outputs, step, binned, kept)
    exponents = step.integers("exponents", outputs, 2)
    if (np.abs(exponents) > _EXPONENT_MAX).any():
        raise StatisticsError("exponents of fixed point beyond all numbers")
    state = _state(settings, margin, exponents, rows, kept)
    trees = unpacked(
        step.integers("open_nodes", -1), step.integers("open_starts", -1), binned.sizes
    )
    if len(trees) != outputs:
        raise StatisticsError(f"{len(trees)} open trees for {outputs} outputs")
    features = step.integers("features", -1)
    asked = step.integers("asked", -1, 2)
    wanted = _wanted(asked, features, binned, [tree.nodes for tree in trees])
    places = list(leaves(trees, binned, kept))
    first = int(step.integers("round", 1)[0]) * outputs
    chosen = [_chosen(settings, rows, first + k) for k in range(outputs)]
    parts = [
        histogram(
            binned.bins,
            binned.sizes,
            features,
            places[k],
            wanted[k],
            [state.gradients[k], None if settings.counts_rows else state.hessians[k]],
            chosen[k],
        )
        for k in range(outputs)
        if (wanted[k] >= 0).any()
    ]
    whole = np.concatenate(parts, axis=1)
    totals = [
        [each[chosen[k]].sum() if chosen[k] is not None else each.sum() for each in pair]
        for k, pair in enumerate(zip(state.gradients, state.hessians, strict=True))
    ]
    return state.judged | {
        "totals": np.array(totals).astype(np.int64),
        "size": state.sizes,
        "gradients": whole[0],
        "hessians": whole[1],
    }


def score_numbers(
    settings: BoostingSettings, step: Step, rows: SiteRows, kept: Kept
) -> dict[str, Any]:
    """A site's losses after the trees of a step. Raises StatisticsError."""
    margin = _margin(settings.outputs, step, binned_rows(step, rows, kept), kept)
    return _judged(settings, margin, rows)


def _margin(outputs: int, step: Step, binned: BinnedRows, kept: Kept) -> F32:
    return margins(
        step.integers("nodes", -1),
        step.integers("trees", -1),
        step.floats("base", outputs),
        binned,
        kept,
    )


def _chosen(settings: BoostingSettings, rows: SiteRows, tree: int) -> npt.NDArray[np.bool_] | None:
    """Rows that a tree grows on; None: all."""
    drawn = ~rows.held_out
    if settings.subsample < 1:
        drawn = drawn & rows.draws.share("subsample", tree, settings.subsample)
    return None if drawn.all() else drawn


def _wanted(asked: I64, features: I64, binned: BinnedRows, sizes: Sequence[int]) -> list[I64]:
    """By open tree: a node's slot, or -1. Raises StatisticsError for what cannot be asked."""
    if not (
        len(features)
        and (np.diff(features) > 0).all()
        and int(features[0]) >= 0
        and int(features[-1]) < len(binned.sizes)
    ):
        raise StatisticsError("a step of features that are not in order")
    tree, node = asked[:, 0], asked[:, 1]
    good = len(asked) > 0 and ((tree >= 0) & (tree < len(sizes)) & (node >= 0)).all()
    if not good or (node >= np.array(sizes)[tree]).any():
        raise StatisticsError("a step that asks for nodes that are not")
    if not (np.diff(tree * (1 << 32) + node) > 0).all():
        raise StatisticsError("a step that asks for nodes out of order")
    if len(asked) * int(binned.sizes[features].sum()) > STEP_NUMBERS_MAX:
        raise StatisticsError("a step of too many numbers")
    made = []
    for k, size in enumerate(sizes):
        slots = np.full(size, -1, np.int64)
        own = node[tree == k]
        slots[own] = np.arange(len(own))
        made.append(slots)
    return made


@dataclass
class Boosting:
    """The model so far, where the question is asked."""

    settings: BoostingSettings
    base: F32
    rows: float
    sizes: F64
    """About what the absolute gradients and Hessians add up to, f64[outputs, 2]."""
    trees: list[TreeNodes] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Mean losses before each round: of the rows that grow trees, and of those held out."""
    held_out: float = 0.0
    sites: set[int] = field(default_factory=set)
    """How many sites' rows the rounds were of."""
    begins: int = 0
    """Rounds that began again because sites came or went."""

    @property
    def rounds(self) -> int:
        return len(self.trees) // self.settings.outputs

    def _model(self, frame: Frame) -> dict[str, npt.NDArray[Any]]:
        nodes, starts = packed_trees(self.trees)
        return {
            "starts": frame.cuts.starts,
            "cuts": frame.cuts.values.astype(np.float64),
            "base": self.base.astype(np.float64),
            "nodes": nodes,
            "trees": starts,
        }

    def grow(self, frame: Frame) -> Generator[Step, Totals, None]:
        """A round. Raises StatisticsError where sites do not stay."""
        while not (yield from self._grown(frame)):
            self.begins += 1
            if self.begins > BEGINS_MAX:
                raise StatisticsError(
                    f"sites came and went in {BEGINS_MAX} rounds", "ask again once they stay up"
                )

    def _grown(self, frame: Frame) -> Generator[Step, Totals, bool]:
        """A round's trees; False: they are not of the same rows, and were dropped."""
        outputs, model = self.settings.outputs, self._model(frame)
        exponents = np.array([[exponent_for(float(s)) for s in pair] for pair in self.sizes])
        if self.settings.counts_rows:
            exponents[:, 1] = 0
        growing: list[GrowingTree] = []
        asked = [(k, 0) for k in range(outputs)]
        first: Totals | None = None
        while asked:
            parts: list[Totals] = []
            for some in self._batches(asked, frame):
                step = self._step(frame, model, growing, some, exponents)
                parts.append((yield step))
                if first is None:
                    first = parts[0]
                if not _same_rows(first, parts[-1]):
                    self._settle(parts[-1])
                    return False
            assert first is not None
            if not growing:
                growing = [
                    GrowingTree(frame, totals, (int(e[0]), int(e[1])))
                    for totals, e in zip(first["totals"], exponents, strict=True)
                ]
            gradients = np.concatenate([part["gradients"] for part in parts])
            hessians = np.concatenate([part["hessians"] for part in parts])
            tree = np.array([k for k, _ in asked])
            for k, each in enumerate(growing):
                if each.open:
                    each.take(gradients[tree == k], hessians[tree == k])
            asked = [(k, n) for k, t in enumerate(growing) if t.open for n in t.asked()]
        assert first is not None
        self._settle(first)
        self.losses.append(self.mean_losses(first))
        self.sites.add(first.sites)
        self.trees += [each.nodes for each in growing]
        return True

    def _settle(self, totals: Totals) -> None:
        self.rows, self.sizes = totals.number("rows"), totals["size"]
        self.held_out = totals.number("held_out")

    def mean_losses(self, totals: Totals) -> tuple[float, float]:
        """Mean losses of the rows that grow trees, and of those held out; 0 of none."""
        grown, judged = (
            float(loss) / float(weight) if weight > 0 else 0.0
            for loss, weight in zip(totals["loss"], totals["weight"], strict=True)
        )
        return grown, judged

    def _batches(self, asked: list[tuple[int, int]], frame: Frame) -> list[list[tuple[int, int]]]:
        bins = int(frame.sizes.sum())
        if bins > STEP_NUMBERS_MAX:
            raise StatisticsError(
                f"all features together have {bins:,} bins",
                f"at most {STEP_NUMBERS_MAX:,}: take a smaller max_bin or colsample_bytree",
            )
        size = STEP_NUMBERS_MAX // bins
        return [asked[i : i + size] for i in range(0, len(asked), size)]

    def _step(
        self,
        frame: Frame,
        model: dict[str, npt.NDArray[Any]],
        growing: list[GrowingTree],
        asked: list[tuple[int, int]],
        exponents: I64,
    ) -> Step:
        outputs = self.settings.outputs
        trees = [each.nodes for each in growing] or [TreeNodes() for _ in range(outputs)]
        nodes, starts = packed_trees(trees)
        rows_bits = math.ceil(math.log2(self.rows + 1)) + 1 if self.settings.counts_rows else None
        return Step(
            "level",
            level_sums(len(asked), int(frame.sizes.sum()), outputs, rows_bits),
            model
            | {
                "open_nodes": nodes,
                "open_starts": starts,
                "asked": np.array(asked, np.int64),
                "features": frame.features,
                "exponents": exponents,
                "round": np.array([self.rounds], np.int64),
            },
        )

    def score(self, frame: Frame) -> Generator[Step, Totals, tuple[float, float]]:
        """Mean losses after the last round."""
        totals = yield Step(
            "score",
            (
                counts("rows"),
                counts("held_out"),
                Sum("loss", (2,), *LOSS),
                Sum("weight", (2,), *_SIZE),
            ),
            self._model(frame),
        )
        self.held_out = totals.number("held_out")
        return self.mean_losses(totals)


def _same_rows(first: Totals, now: Totals) -> bool:
    """Whether two steps of a round are of the same rows.

    Totals are whole numbers of some 50 bits: other rows would have to have the same to the last.
    """
    return (
        first.sites == now.sites
        and first.number("rows") == now.number("rows")
        and np.array_equal(first["totals"], now["totals"])
    )
