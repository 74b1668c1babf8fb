"""Hard examples: which inputs a small model had better hand up to a large one.

A filter reads what the device's model says of an example and gives a confidence c in [0, 1]; the
example is hard where c lies under the filter's limit:

    Threshold     c = mean score of what was found                    hard: c <  threshold
    CrossEntropy  c = 1 - H(p) / log C,  H(p) = -sum p log p          hard: c <  threshold
    IBT           c = share of scores above threshold_box             hard: c <= threshold_img
    Random        c = uniform, of a seed and the example's number     hard: c <  random_ratio
    CloudOnly     everything is hard
    EdgeOnly      nothing is

The names, the parameters and their defaults are those of KubeEdge Sedna's joint inference, so that
a job can be moved (IBT: image-box thresholds: an image is hard where enough of its boxes are
doubtful). What an answer says is one of

    logits         f32[B, ..., C]: a score is the highest probability; a sequence has one a position
    probabilities  f32[B, ..., C], the same without the softmax
    boxes          f32[B, N, >= 5], column 4 the score; a row whose score is not above 0 is none

Two things differ from Sedna. An answer that is not finite is hard: Sedna keeps it. And p = 0 adds
nothing to an entropy, where Sedna stops with an error. An image without boxes is easy in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ...common.errors import DelianError
from ...compiler import random
from ...compiler.ir import Array

SCORE = 4  # a box's column
_CONFIDENT = 1.0
#: A threshold that every confidence is under.
EVERYTHING = 2.0


class Says(StrEnum):
    """What the numbers of an answer are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    BOXES = "boxes"


class Filter(Protocol):
    """Says which examples are hard."""

    name: ClassVar[str]
    """As in Sedna."""
    looks: ClassVar[bool]
    """Whether it reads an answer at all; one that does not can choose before any model has run.

    limit: examples of a confidence under it are hard.
    """

    @property
    def limit(self) -> float: ...

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        """f64[B], NaN where an answer is not finite.

        first: the number of the first example, on which Random's draws depend. Raises DelianError
        for an answer of another form.
        """


def hard(chosen: Filter, answer: Array | None, first: int = 0) -> Array:
    """bool[B]: which examples are to go up."""
    # So put, NaN is hard.
    found: Array = ~(chosen.confidence(answer, first) >= chosen.limit)
    return found


@dataclass(frozen=True, slots=True)
class Threshold:
    """Hard where the mean score (class probability, or boxes' mean) is under `threshold`."""

    name: ClassVar[str] = "Threshold"
    looks: ClassVar[bool] = True
    threshold: float = 0.5
    says: Says = Says.LOGITS

    @property
    def limit(self) -> float:
        return self.threshold

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        scores, there = _scores(answer, self.says)
        return _mean(scores, there)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Hard where the classes' probabilities are near to uniform.

    One less the entropy as a share of the largest, log C. Needs classes; of a sequence, the
    positions' mean.
    """

    name: ClassVar[str] = "CrossEntropy"
    looks: ClassVar[bool] = True
    threshold_cross_entropy: float = 0.5
    says: Says = Says.LOGITS

    @property
    def limit(self) -> float:
        return self.threshold_cross_entropy

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        if self.says is Says.BOXES:
            raise DelianError(
                "CrossEntropy reads classes, not boxes", "Threshold and IBT read them"
            )
        p = _probabilities(answer, self.says)
        logs = np.log(np.where(p > 0.0, p, 1.0))
        share = 1.0 + np.sum(p * logs, axis=-1) / math.log(max(2, p.shape[-1]))
        found: Array = share.reshape(len(share), -1).mean(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class IBT:
    """Hard where 1 - `threshold_img` of the boxes or positions score `threshold_box` or less."""

    name: ClassVar[str] = "IBT"
    looks: ClassVar[bool] = True
    threshold_img: float = 0.5
    threshold_box: float = 0.5
    says: Says = Says.LOGITS

    @property
    def limit(self) -> float:
        return math.nextafter(self.threshold_img, math.inf)  # its bound is hard too

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        scores, there = _scores(answer, self.says)
        sure = np.where(np.isnan(scores), scores, scores > self.threshold_box)
        return _mean(sure, there)


@dataclass(frozen=True, slots=True)
class Random:
    """Hard for a random share `random_ratio`, the baseline, by seed and number."""

    name: ClassVar[str] = "Random"
    looks: ClassVar[bool] = False
    random_ratio: float = 0.3
    seed: int = 0

    @property
    def limit(self) -> float:
        return self.random_ratio

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        count = 1 if answer is None else len(answer)
        numbers = np.arange(first, first + count, dtype=np.uint64)
        high, low = (numbers >> np.uint64(32)), numbers & np.uint64(0xFFFFFFFF)
        y0, _ = random.threefry2x32(
            random.key(self.seed), high.astype(np.uint32), low.astype(np.uint32)
        )
        drawn: Array = y0.astype(np.float64) * 2.0**-32
        return drawn


@dataclass(frozen=True, slots=True)
class CloudOnly:
    """Everything goes up."""

    name: ClassVar[str] = "CloudOnly"
    looks: ClassVar[bool] = False

    @property
    def limit(self) -> float:
        return math.inf

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        return np.zeros(1 if answer is None else len(answer))


@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Nothing goes up: the lower tier's model answers alone."""

    name: ClassVar[str] = "EdgeOnly"
    looks: ClassVar[bool] = False

    @property
    def limit(self) -> float:
        return -math.inf

    def confidence(self, answer: Array | None, first: int = 0) -> Array:
        return np.full(1 if answer is None else len(answer), _CONFIDENT)


Made: TypeAlias = Threshold | CrossEntropy | IBT | Random | CloudOnly | EdgeOnly
FILTERS: dict[str, type[Made]] = {
    kind.name: kind for kind in (Threshold, CrossEntropy, IBT, Random, CloudOnly, EdgeOnly)
}
#: Which parameter of a filter is its threshold: what `calibration` chooses.
THRESHOLDS = {
    "Threshold": "threshold",
    "CrossEntropy": "threshold_cross_entropy",
    "IBT": "threshold_img",
    "Random": "random_ratio",
}


def make(name: str, **parameters: Any) -> Made:
    """The filter of this name. Raises DelianError for an unknown name or wrong parameter."""
    kind = FILTERS.get(name)
    if kind is None:
        raise DelianError(f"no filter of hard examples is called {name}", f"{', '.join(FILTERS)}")
    known = [field.name for field in fields(kind)]
    for given, value in parameters.items():
        if given not in known:
            raise DelianError(
                f"{name} has no parameter {given}", f"it has {', '.join(known) or 'none'}"
            )
        if given not in ("seed", "says") and not 0.0 <= float(value) <= EVERYTHING:
            raise DelianError(f"{name}'s {given} is {value}", "from 0 to 1; 2: everything goes up")
    return kind(**parameters)


def limited(chosen: Made, limit: float) -> Made:
    """The filter with another limit. Raises DelianError for a filter without one."""
    parameter = THRESHOLDS.get(chosen.name)
    if parameter is None:
        raise DelianError(
            f"{chosen.name} has no threshold", f"{', '.join(THRESHOLDS)} have one to calibrate"
        )
    values: Any = {
        parameter: math.nextafter(limit, -math.inf) if isinstance(chosen, IBT) else limit
    }
    made: Made = replace(chosen, **values)
    return made


def _probabilities(answer: Array | None, says: Says) -> Array:
    """f64[B, ..., C], NaN for rows that are no distribution."""
    rows = _rows(answer)
    if rows.ndim < 2 or not rows.shape[-1]:
        raise DelianError(
            f"an answer of shape {list(rows.shape)} has no classes", "it is [B, ..., C]"
        )
    if says is Says.LOGITS:
        # Of what is not finite comes NaN, which is what it is to be.
        with np.errstate(invalid="ignore"):
            raised = np.exp(rows - rows.max(axis=-1, keepdims=True))
            p: Array = raised / raised.sum(axis=-1, keepdims=True)
        return p
    sound = np.all((rows >= 0.0) & (rows <= 1.0), axis=-1, keepdims=True)
    return np.where(sound, rows, np.nan)


def _scores(answer: Array | None, says: Says) -> tuple[Array, Array]:
    """Scores f64[B, N] in [0, 1] or NaN, and which of them are there, bool[B, N]."""
    if says is not Says.BOXES:
        best = _probabilities(answer, says).max(axis=-1)
        best = best.reshape(len(best), -1)
        return best, np.ones(best.shape, np.bool_)
    rows = _rows(answer)
    if rows.ndim != 3 or rows.shape[-1] <= SCORE:
        raise DelianError(
            f"an answer of shape {list(rows.shape)} is no boxes", "they are [B, N, 5 or more]"
        )
    scores = rows[:, :, SCORE]
    return np.where(scores <= 1.0, scores, np.nan), ~(scores <= 0.0)


def _mean(values: Array, there: Array) -> Array:
    """f64[B]: the mean of what is there; of nothing, a confident one."""
    count = there.sum(axis=1)
    total = np.where(there, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), _CONFIDENT)


def _rows(answer: Array | None) -> Array:
    if answer is None:
        raise DelianError(
            "this filter looks at an answer, and there is none yet",
            "Random, CloudOnly and EdgeOnly choose without one; give a router, or infer first",
        )
    return np.asarray(answer, np.float64)
