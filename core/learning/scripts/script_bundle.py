"""The bundle of a run that sites' own scripts train.

A site's script takes the place of the local descent, and of nothing else: its answer is the data of
a compiled `client_update`, which takes the difference to the round's weights, clips it, rounds it
into the ring and weighs it, as it does with what a compiled model has learnt.

    trained    a tree like the state: the script's weights
    examples   f32[], rows it trained on, or judged by: the weight in the mean
    loss       f32[], the mean over those
    judged     f32[2 + K]: the loss and the accuracy of the weights that it received, and the task's
               own K metrics; NaN for what it did not say

The bundle has no `infer`: what such a model says of an input, only the script knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...compiler import tree
from ...compiler.ir import DType, Tensor, TensorType
from ...protocol.ports import DIMENSION_MAX
from ..aggregate import chains
from ..aggregate.chains import Chain
from ..algorithm import About, Algorithm, ClientResult
from ..bundle import Bundle, check_metric_names
from ..sampling import Batch
from ..task import Metrics
from .script_spec import ScriptSpec

#: Of `judged`, before the task's own metrics.
LOSS, ACCURACY, OWN = 0, 1, 2
#: The most examples that a site counts for, unless the run says otherwise.
EXAMPLES_MAX = 10_000
#: The norm that updates are clipped to, unless the run says otherwise.
CLIP = 100.0
#: Sites in a round, unless the run says otherwise.
CLIENTS_MAX = 10

Array = NDArray[np.float32]


class ScriptAnswer(NamedTuple):
    """What a script answered, as the programs take it."""

    trained: Any
    """A tree like the state."""
    examples: Tensor
    """f32[]."""
    loss: Tensor
    """f32[]."""
    judged: Tensor
    """f32[2 + K]."""


@dataclass(frozen=True)
class _Judged:
    """The source of the one batch that there is: what the script said of the received weights."""

    def order(self, data: ScriptAnswer, key: Tensor) -> Tensor:
        return key

    def query_batches(self, data: ScriptAnswer) -> int:
        return 1

    def query(self, data: ScriptAnswer, order: Tensor, step: Any) -> Batch:
        return Batch(data.judged, data.judged, data.examples.reshape((1,)))


@dataclass(frozen=True)
class ScriptTask:
    """What a script learns: arrays of these names and shapes."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    metric_names: tuple[str, ...] = ()
    source: Any = field(default_factory=_Judged)

    def init(self, key: Tensor) -> Any:
        """Zeros: a run brings its first weights along."""
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """What the script said, for so many examples.

        Without a loss the loss is the zero-one loss, 1 - accuracy.
        """
        count = batch.weight[0]
        accuracy = _or(batch.x[ACCURACY], 0.0)
        loss = _or(batch.x[LOSS], 1.0 - accuracy)
        return Metrics(loss * count, accuracy * count, count)

    def more_metrics(self, model: Any, batch: Batch) -> Mapping[str, tuple[Tensor, Tensor]]:
        """The means, and the examples that they are of: none where the script said nothing."""
        count = batch.weight[0]
        found = {}
        for i, name in enumerate(self.metric_names):
            value = batch.x[OWN + i]
            said = np.where(np.isnan(value), 0.0, count)
            found[name] = (_or(value, 0.0) * said, said)
        return found


def _or(value: Tensor, otherwise: Any) -> Tensor:
    """The number, or another where it is NaN."""
    found: Tensor = np.where(np.isnan(value), otherwise, value)
    return found


@dataclass(frozen=True)
class ScriptUpdate(Algorithm):
    """Federated averaging of what scripts train (McMahan et al. 2017)."""

    about: ClassVar[About] = About("training script", "McMahan et al. 2017")
    equal: bool = False
    """Whether all sites have one weight, and not that of their examples."""

    def weight(self, data: Any) -> Tensor:
        return np.minimum(data.examples, 1.0) if self.equal else data.examples

    def client_update(
        self, task: Any, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        """The script's weights, less those that it began with."""
        change = tree.map(np.subtract, data.trained, state)
        return ClientResult(change, self.weight(data), data.loss, kept)

    def personalise(self, task: Any, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The shared model: a script keeps what is its site's own to itself."""
        return self.model(state)


def build(
    weights: Mapping[str, Any],
    spec: ScriptSpec,
    *,
    clients_max: int = CLIENTS_MAX,
    examples_max: int = EXAMPLES_MAX,
    equal: bool = False,
    chain: Chain | None = None,
    releases: int = 1,
    survivors: int = 1,
) -> Bundle:
    """Compiles the programs of a run that scripts train.

    Args:
        weights: the first weights, by name: arrays of floats.
        spec: the script, and its settings.
        clients_max: the most sites in a round.
        examples_max: the most examples that a site counts for.
        equal: whether all sites have the same weight.
        chain: the stages of an update; absent: a clip at 100, and no noise.
        releases: as of `bundle_builder.build`.
        survivors: as of `bundle_builder.build`.

    Raises:
        DelianError: the weights are no arrays of finite floats, or too many; a metric cannot have
            its name; the ring has no room.
    """
    from ..build.bundle_builder import build as build_programs

    check_metric_names(spec.metrics)
    first = first_weights(weights)
    shapes = {name: value.shape for name, value in first.items()}
    task: Any = ScriptTask(spec.name, shapes, spec.metrics)
    like = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    one = TensorType(DType.F32, ())
    data = ScriptAnswer(like, one, one, TensorType(DType.F32, (OWN + len(spec.metrics),)))
    algorithm = ScriptUpdate(equal=equal, personal_steps=0)
    if chain is None:
        chain = chains.chain(chains.clip(CLIP), chains.quantise(), chains.mean())
    bundle = build_programs(
        task,
        algorithm,
        data,
        example=None,
        clients_max=clients_max,
        weight_max=1.0 if equal else float(examples_max),
        seed=0,
        chain=chain,
        releases=releases,
        survivors=survivors,
    )
    flat = flat_weights(first, bundle)
    manifest = replace(bundle.manifest, script=spec.to_json())
    return replace(bundle, manifest=manifest, weights=flat)


def first_weights(weights: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of floats among the weights, as f32. Raises DelianError."""
    found: dict[str, Array] = {}
    for name, value in weights.items():
        array = np.asarray(value)
        if array.dtype.kind != "f":
            raise DelianError(
                f"the weights' `{name}` is {array.dtype}, and what is averaged are floats",
                "leave it out: a site keeps its own",
            )
        if not np.all(np.isfinite(array)):
            raise DelianError(f"the weights' `{name}` is not finite", "look at what made it")
        found[str(name)] = np.ascontiguousarray(array, np.float32)
    total = sum(a.size for a in found.values())
    if not 0 < total <= DIMENSION_MAX:
        raise DelianError(
            f"the weights have {total} numbers; from 1 to {DIMENSION_MAX} can be sent",
            "give a state_dict, or a dict of arrays by name",
        )
    return found


def flat_weights(weights: Mapping[str, Any], bundle: Bundle) -> Array:
    """The weights as the manifest lays them out, f32[D]."""
    parts = [np.asarray(weights[leaf.name], np.float32) for leaf in bundle.manifest.state]
    return np.concatenate([part.reshape(-1) for part in parts])
