"""What boosted trees minimise: gradients, base scores and losses, in XGBoost's order of rounding.

Margins and gradients are f32, as in XGBoost. Exponentials are taken in f64 and rounded once: the
same f32 wherever NumPy runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..sums import StatisticsError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

#: XGBoost's smallest probability and Hessian.
_EPS = np.float32(1e-16)
#: XGBoost's kRtEps: base scores are kept so far from 0 and 1.
RT_EPS = 1e-6
#: The largest exponent of a sigmoid, and of a Poisson rate.
_EXPONENT_MAX = np.float32(88.7)


@dataclass(frozen=True)
class Objective:
    """An objective by XGBoost's name."""

    name: str
    metric: str
    """XGBoost's metric for it: the mean loss, or its square root for rmse."""
    gradients: Callable[[F32, F32, float], tuple[F32, F32]]
    """Margins f32[rows, outputs], labels f32[rows] and max_delta_step -> gradients and Hessians,
    f32[rows, outputs] each.
    """
    losses: Callable[[F32, F32], F64]
    """Margins and labels -> losses, f64[rows]."""
    transform: Callable[[F32], F32]
    """Margins f32[rows, outputs] -> predictions of the same shape."""
    margin: Callable[[F32], F32]
    """A base score as users give it -> margin, f32[outputs]."""
    hessian_max: float
    """The largest Hessian of a row; infinite where there is none."""
    is_label: Callable[[F32, int], npt.NDArray[np.bool_]]
    """Labels and classes -> which labels the objective takes."""


def _exp(x: F32) -> F32:
    made: F32 = np.exp(x.astype(np.float64)).astype(np.float32)
    return made


def _sigmoid(margin: F32) -> F32:
    one = np.float32(1)
    made: F32 = one / (_exp(np.minimum(-margin, _EXPONENT_MAX)) + one + _EPS)
    return made


def _softmax_parts(margin: F32) -> tuple[F32, F32]:
    # XGBoost begins its maximum at the smallest positive f32.
    highest = np.maximum(margin.max(axis=1), np.finfo(np.float32).tiny)
    powers = _exp(margin - highest[:, None])
    total: F32 = powers.astype(np.float64).sum(axis=1).astype(np.float32)
    return powers, total


def _softmax(margin: F32) -> F32:
    powers = _exp(margin - margin.max(axis=1)[:, None])
    made: F32 = powers / powers.astype(np.float64).sum(axis=1).astype(np.float32)[:, None]
    return made


def _squared_gradients(margin: F32, label: F32, _step: float) -> tuple[F32, F32]:
    return margin - label[:, None], np.ones_like(margin)


def _logistic_gradients(margin: F32, label: F32, _step: float) -> tuple[F32, F32]:
    p = _sigmoid(margin)
    return p - label[:, None], np.maximum(p * (np.float32(1) - p), _EPS)


def _softmax_gradients(margin: F32, label: F32, _step: float) -> tuple[F32, F32]:
    powers, total = _softmax_parts(margin)
    p = powers / total[:, None]
    one, two = np.float32(1), np.float32(2)
    hessians = np.maximum(two * p * (one - p), _EPS)
    rows = np.arange(len(label))
    p[rows, label.astype(np.int64)] -= one
    return p, hessians


def _poisson_gradients(margin: F32, label: F32, step: float) -> tuple[F32, F32]:
    held = np.minimum(margin, _EXPONENT_MAX - np.float32(step))
    return _exp(held) - label[:, None], _exp(held + np.float32(step))


def _squared_losses(margin: F32, label: F32) -> F64:
    made: F64 = np.square(margin[:, 0].astype(np.float64) - label)
    return made


def _logistic_losses(margin: F32, label: F32) -> F64:
    p = _sigmoid(margin)[:, 0].astype(np.float64)
    q = np.maximum(1.0 - p, 1e-16)
    made: F64 = -(label * np.log(np.maximum(p, 1e-16)) + (1.0 - label) * np.log(q))
    return made


def _softmax_losses(margin: F32, label: F32) -> F64:
    p = _softmax(margin)[np.arange(len(label)), label.astype(np.int64)]
    made: F64 = -np.log(np.maximum(p.astype(np.float64), 1e-16))
    return made


def _poisson_losses(margin: F32, label: F32) -> F64:
    rate = np.maximum(_exp(np.minimum(margin[:, 0], _EXPONENT_MAX)).astype(np.float64), 1e-16)
    factorials = np.array([math.lgamma(float(v) + 1.0) for v in np.unique(label)])
    places = np.unique(label, return_inverse=True)[1]
    made: F64 = factorials[places] + rate - np.log(rate) * label
    return made


def _logit(score: F32) -> F32:
    held = np.clip(score, np.float32(RT_EPS), np.float32(1) - np.float32(RT_EPS))
    odds = np.float32(1) / held - np.float32(1)
    made: F32 = -np.log(odds.astype(np.float64)).astype(np.float32)
    return made


def _log(score: F32) -> F32:
    made: F32 = np.log(score.astype(np.float64)).astype(np.float32)
    return made


def _any_label(label: F32, _classes: int) -> npt.NDArray[np.bool_]:
    return np.ones(len(label), np.bool_)


OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective(
            "reg:squarederror",
            "rmse",
            _squared_gradients,
            _squared_losses,
            transform=lambda margin: margin,
            margin=lambda score: score,
            hessian_max=1.0,
            is_label=_any_label,
        ),
        Objective(
            "binary:logistic",
            "logloss",
            _logistic_gradients,
            _logistic_losses,
            transform=_sigmoid,
            margin=_logit,
            hessian_max=0.25,
            is_label=lambda label, _classes: (label >= 0) & (label <= 1),
        ),
        Objective(
            "multi:softprob",
            "mlogloss",
            _softmax_gradients,
            _softmax_losses,
            transform=_softmax,
            margin=lambda score: score,
            hessian_max=0.5,
            is_label=lambda label, classes: (
                (label >= 0) & (label < classes) & (label == np.floor(label))
            ),
        ),
        Objective(
            "count:poisson",
            "poisson-nloglik",
            _poisson_gradients,
            _poisson_losses,
            transform=lambda margin: _exp(np.minimum(margin, _EXPONENT_MAX)),
            margin=_log,
            hessian_max=math.inf,
            is_label=lambda label, _classes: label >= 0,
        ),
    )
}


def objective_of(name: str) -> Objective:
    """An objective by its name. Raises StatisticsError."""
    found = OBJECTIVES.get(name)
    if found is None:
        raise StatisticsError(f"no objective {name!r}", f"one of {', '.join(OBJECTIVES)}")
    return found


def estimated_base_score(
    objective: Objective, weight: float, sums: F64, one_step: bool = False
) -> F32:
    """XGBoost's own base score, from sums over rows, f32[outputs].

    weight: the sum of weights. sums: of the weighted labels, f64[1]; or the weight of each class,
    f64[classes]. one_step: of a probability, by one step of Newton's from 1/2, as where XGBoost
    has a scale_pos_weight. Raises StatisticsError where the labels allow none.
    """
    means = (sums / weight).astype(np.float32)
    if one_step:
        step = (sums - 0.5 * weight) / max(0.25 * weight, RT_EPS)
        return _sigmoid(step.astype(np.float32))
    if objective.name == "multi:softprob":
        logs = _log(means + np.float32(RT_EPS))
        # XGBoost adds up a class's share at a time, in f32.
        mean, classes = np.float32(0), np.float32(len(logs))
        for each in logs:
            mean = mean + each / classes
        return np.asarray(logs - mean, np.float32)
    if objective.name == "count:poisson" and means[0] <= 0:
        raise StatisticsError("all counts are 0: a Poisson rate has no logarithm")
    return means


def mean_loss(objective: Objective, total: float, rows: float) -> float:
    """A metric from a sum of losses."""
    mean = total / max(rows, 1.0)
    return math.sqrt(max(mean, 0.0)) if objective.metric == "rmse" else mean
