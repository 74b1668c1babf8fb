"""Federated evaluation: how well a model does on a device, as sums that add up in the ring.

A device evaluates the global model and its personalized model on its query set of c examples. It
sends the means

    (loss before, accuracy before, loss after, accuracy after)        f32[4]

with the weight c, as a vector of the ring like any update (`privacy.ring`). Before is the global
model, after the personalized one (`personalise`); a regression has squared and absolute errors in
place of loss and accuracy. The weighted mean over devices is then the mean over their examples, and
with masks no single device's means can be read. Losses are clamped to `LOSS_MAX` and the other two
to `ERROR_MAX`, which keeps the vector's norm below the ring plan's clip: a vector is never scaled
down. A query set counts for at most `QUERIES_MAX` examples.

A task's own metrics (`task.Task`) follow: the two sums of each, divided by c, before and then
after, clamped to `OWN_MAX`. A metric is the ratio of their means over all examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..compiler import random
from ..privacy.mechanisms import ring
from ..protocol.ports import Outcome, Vector
from .runtime import Runtime, Score
from .windows.window_training import first_rows, scores

#: Numbers in a metrics vector, before those of a task's own metrics.
DIMENSION = 4
#: And of each of these: two sums, before and after.
OWN_DIMENSION = 4
#: The largest that such a sum may be for an example, either way.
OWN_MAX = 64.0
#: The largest mean loss that is reported: cross-entropy of a model that is sure and wrong.
LOSS_MAX = 64.0
#: From here on a mean loss may be any: (nearly) all devices are at the limit, and rounding apart.
LOSS_TOLD_MAX = 0.999 * LOSS_MAX
#: The largest mean absolute error: no larger than the root of the squared one.
ERROR_MAX = 8.0
#: The metric whose figure is an exponential, and the largest exponent: its figure is finite.
PERPLEXITY, EXPONENT_MAX = "perplexity", 700.0
#: Above the norm of (64, 8, 64, 8), which is below 91.3.
CLIP = 96.0
#: The largest number of examples that a device counts for. A device's steps in the ring are so
#: many times fewer than the ring's as its query set is smaller: no larger than is of use.
QUERIES_MAX = 1_024


def metrics_plan(clients_max: int, own: int = 0) -> ring.RingPlan:
    """The ring plan of an evaluation by at most so many devices.

    Args:
        clients_max: the most devices that evaluate.
        own: the number of the task's own metrics.

    Raises:
        RingError: no ring has room for the sum.
    """
    clip = math.sqrt(CLIP**2 + own * OWN_DIMENSION * OWN_MAX**2)
    dimension = DIMENSION + own * OWN_DIMENSION
    return ring.RingPlan(clip=clip, clients_max=clients_max, dimension=dimension)


def encode(before: Score, after: Score, key: Vector, plan: ring.RingPlan) -> Vector:
    """The metrics of one device, u32[5 + 4 K]. key: u32[2], used for nothing else.

    `before` and `after` are sums over the same query set, which is not empty, and finite but for
    the task's own K metrics, which are left out where the plan has no room for any. Raises
    RingError for a plan with room for others.
    """
    assert before.count == after.count > 0
    means = [
        _clamped(before.loss / before.count),
        min(before.accuracy, ERROR_MAX),
        _clamped(after.loss / after.count),
        min(after.accuracy, ERROR_MAX),
    ]
    if plan.dimension > DIMENSION:
        means += [*_own(before), *_own(after)]
    if len(means) != plan.dimension:
        raise ring.RingError(
            f"an evaluation of {plan.dimension} numbers, and the bundle gives {len(means)}"
        )
    weight = np.float32(min(before.count / QUERIES_MAX, 1.0))
    vector: Vector = ring.encode(np.array(means, np.float32), weight, key, plan)
    return vector


def decode(total: Vector, plan: ring.RingPlan, names: Sequence[str] = ()) -> dict[str, float]:
    """The means over all examples, from a sum u32[5 + 4 K]; `queries`: about how many there are.

    What is called accuracy is the mean absolute error of a regression.

    Args:
        total: the sum.
        plan: its ring plan.
        names: those of the task's own K metrics. A metric is left out if its denominator is zero,
            or no larger than rounding may be.

    Raises:
        RingError: no honest devices can have made the sum, or it is empty.
    """
    mean, weight = ring.decode(total, plan)
    assert plan.dimension == DIMENSION + OWN_DIMENSION * len(names) or not names
    own = {}
    # Each device's rounding is at most a step: of all of them, four standard deviations and more.
    least = 4 * math.sqrt(plan.clients_max) / (plan.scale * weight)
    for i, name in enumerate(names):
        for kind, first in (("global", DIMENSION), ("personalised", DIMENSION + 2 * len(names))):
            above, below = map(float, mean[first + 2 * i : first + 2 * i + 2])
            if abs(below) > least:
                own[f"{kind}_{name}"] = figure(name, above, below)
    return {
        "global_loss": float(mean[0]),
        "global_accuracy": float(mean[1]),
        "personalised_loss": float(mean[2]),
        "personalised_accuracy": float(mean[3]),
        "queries": weight * QUERIES_MAX,
        **own,
    }


def figure(name: str, above: float, below: float) -> float:
    """A task's own metric of its two sums: their ratio. `below` is not zero.

    Of `perplexity` it is the exponential of the ratio, which is the mean loss of a token: means of
    perplexities would not be the perplexity of all tokens.
    """
    ratio = above / below
    return math.exp(min(ratio, EXPONENT_MAX)) if name == PERPLEXITY else ratio


def judge(
    runtime: Runtime,
    state: Any,
    data: Any,
    key: Vector,
    plan: ring.RingPlan,
    kept: Any | None = None,
) -> tuple[Any, Outcome]:
    """A device's part in an evaluation: its own model f32[M], and the outcome to upload.

    `state` is that of the shared model, f32[D]; `kept` the client state, f32[K], if there is one.
    `data` may be `WindowRows`: then the own model is made from one window, and all rows judge.
    Without a query set the outcome has no vector. `finite` is False if a metric is infinite or NaN.
    """
    keys = random.split(key, 2)
    own = runtime.personalise(state, first_rows(data, keys[0]), keys[0], kept)
    before, after = scores(runtime, [runtime.model_of(state), own], data, keys[0])
    count = int(before.count)
    if not count:
        return own, Outcome(None)
    if not (math.isfinite(before.loss) and math.isfinite(after.loss)):
        return own, Outcome(None, count, after.loss, finite=False)
    vector = encode(before, after, keys[1], plan)
    return own, Outcome(vector, count, after.loss / after.count)


def _clamped(loss: float) -> float:
    return min(max(loss, -LOSS_MAX), LOSS_MAX)


def _own(score: Score) -> list[float]:
    """The sums of the task's own metrics, an example; what is no number counts as nothing."""
    means = []
    for above, below in score.more:
        pair = above / score.count, below / score.count
        sound = all(map(math.isfinite, pair))
        means += [min(max(m, -OWN_MAX), OWN_MAX) if sound else 0.0 for m in pair]
    return means
