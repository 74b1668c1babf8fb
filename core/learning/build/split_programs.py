"""What a device runs besides its parts of a step, where it trains with its edge.

    split_batch(data, key, epoch, step)         -> x, y, weight, steps of a pass i64[]
    split_upload(update, examples f32[], key)   -> vector u32[L], finite bool[]

The parts themselves are made of the program `split_step` (`placement.split_training.run_step`): one
batch in, one step of the optimiser. `split_batch` gives the batch that `client_update` would take
at that step, raw, under the same key; `split_upload` makes of an update what `client_update`
uploads. So a device that trains with its edge takes the steps that it would take by itself.

A side fills the leaves that it owns, and zeros in the others: vectors of the ring add, so the
device's and the edge's together are one update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.errors import DelianError
from ...compiler import random, tree
from ...compiler.frontend import trace
from ...compiler.ir import DType, Tensor, TensorType
from ...compiler.traced import Traced
from ...privacy.mechanisms import ring
from ..aggregate.chains import Chain
from ..aggregate.stages import Turn
from ..algorithm import Algorithm
from ..algorithms.fedavg import FedAvg
from ..bundle import SPLIT_PROGRAMS
from ..sampling import Samples, SampleSet
from ..task import Task
from .partial_training import Division

#: Of `epoch` and `step`, and of `examples`.
PLACE, EXAMPLES = TensorType(DType.I64, ()), TensorType(DType.F32, ())
_WHOLE = "or train without `split`: devices then train the whole model"


def check(
    task: Task, algorithm: Algorithm, chain: Chain, plan: ring.RingPlan, division: Division
) -> None:
    """Raises DelianError for what cannot be trained on two tiers."""
    source = task.source
    why = ""
    if type(algorithm) is not FedAvg:
        why = f"{type(algorithm).__name__} is trained on one tier: two have fedavg"
    elif not isinstance(source, Samples):
        why = "two tiers train on rows, and the data has episodes"
    elif source.keyed:
        why = "the model draws random numbers in training, which two tiers do not share"
    elif source.last_batch not in ("fill", "full"):
        why = f'data.last_batch = "{source.last_batch}": two tiers take "fill" or "full"'
    elif division.has_personal:
        why = "personal leaves are trained on one tier"
    elif chain.remembers or chain.get("moving_clip") is not None:
        why = "two tiers upload no update whose stages keep a state, and their clip does not move"
    elif plan.noise or plan.rotated:
        why = "noise and rotation are of updates that one side makes"
    if why:
        raise DelianError(why, _WHOLE)


def functions(
    task: Task, algorithm: Algorithm, chain: Chain, plan: ring.RingPlan, weight_max: float
) -> dict[str, Callable[..., Any]]:
    """Both, as functions of trees."""
    assert isinstance(task.source, Samples)
    source = replace(task.source, scale=1.0, shift=())  # the step scales them

    def batch(data: Any, key: Tensor, epoch: Tensor, step: Tensor) -> Any:
        order = source.order(data, random.fold_in(random.split(key, 2)[0], epoch))
        if algorithm.local_steps:
            found, steps = source.cyclic(data, order, step), np.int64(algorithm.local_steps)
        else:
            found, steps = source.batch(data, order, step), source.steps(data)
        return found.x, found.y, found.weight, steps

    def upload(update: Any, examples: Tensor, key: Tensor) -> Any:
        parts = ring.parts(tree.leaves(update))
        turn = Turn(plan, np.minimum(examples / weight_max, 1.0), random.split(key, 2)[1])
        vector, _ = chain.program(parts, chain.remembered(plan), turn)
        return vector, np.isfinite(ring.squares(parts))

    return dict(zip(SPLIT_PROGRAMS, (batch, upload), strict=True))


def traced(
    division: Division,
    algorithm: Algorithm,
    chain: Chain,
    plan: ring.RingPlan,
    weight_max: float,
    state: Any,
    data: Any,
    key: TensorType,
) -> dict[str, Traced]:
    """Both as programs. state, data: trees of types. Raises DelianError as `check`."""
    check(division.task, algorithm, chain, plan, division)
    if not isinstance(data, SampleSet):
        raise DelianError("two tiers train on rows, and the data has episodes", _WHOLE)
    batch, upload = SPLIT_PROGRAMS
    f = functions(division.task, algorithm, chain, plan, weight_max)
    return {
        batch: trace(f[batch], data, key, PLACE, PLACE, name=batch),
        upload: trace(f[upload], state, EXAMPLES, key, name=upload),
    }
