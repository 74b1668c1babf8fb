"""Partial training: the model as algorithms see it, and the task around it.

An algorithm computes with the leaves that are trained, a `Trained` tree, and with nothing else. Its
task, a `PartialTask`, puts them into the whole model, next to the frozen leaves, before it calls
the model. So no algorithm knows of frozen leaves: none is in a gradient, an optimiser's state or an
update, and what only their derivatives need is not computed.

Personal leaves are trained like shared ones. What divides them is `Split`, at the border of a
program: the state that travels has the shared leaves alone, and the client state has the personal
ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..common.errors import DelianError
from ..compiler import tree
from ..compiler.api import module
from ..compiler.ir import Tensor
from .leaf_roles import Role
from .sampling import Batch, Episodes, Samples
from .task import Metrics, Task, after_step

if TYPE_CHECKING:
    from .bundle import Bundle

M = TypeVar("M")


@module
class Trained:
    """The leaves of a model that are trained."""

    values: list[Tensor]
    """f32 arrays, in the order of the whole model's tree."""
    names: tuple[str, ...] = tree.static_field()
    """Their dotted names in the whole model."""
    last: tuple[int, ...] = tree.static_field()
    """Their places in the order in which the head's are last."""

    def last_parameters(self, count: int) -> list[Tensor]:
        """The last parameters that are trained: those of the head."""
        return [self.values[k] for k in self.last[-count:]]

    def with_last_parameters(self, values: list[Tensor]) -> Trained:
        """The model with these for its last parameters."""
        return self.replaced(self.last[-len(values) :], values)

    def replaced(self, places: Sequence[int], values: Sequence[Tensor]) -> Trained:
        """The model with these values at these places."""
        made = list(self.values)
        for k, value in zip(places, values, strict=True):
            made[k] = value
        return Trained(made, self.names, self.last)


@dataclass(frozen=True)
class PartialTask:
    """A task whose model is trained in part."""

    inner: Task
    """The task of the whole model."""
    structure: tree.Structure
    """Of the whole model."""
    roles: tuple[Role, ...]
    """Of each leaf."""
    names: tuple[str, ...]
    """Of the leaves that are trained."""
    last: tuple[int, ...]
    """Their places among themselves, those of the head last."""
    frozen: list[Tensor] = field(default_factory=list)
    """The frozen leaves: inside of a program, its parameters."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def source(self) -> Samples | Episodes:
        return self.inner.source

    @property
    def metric_names(self) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self.inner, "metric_names", ())
        return found

    def bound(self, frozen: list[Tensor]) -> PartialTask:
        """The task with these frozen leaves."""
        return PartialTask(self.inner, self.structure, self.roles, self.names, self.last, frozen)

    def init(self, key: Tensor) -> Trained:
        """The first values of what is trained."""
        return self.trained(self.inner.init(key))

    def trained(self, whole: Any) -> Trained:
        """What is trained of a whole model."""
        leaves = tree.leaves(whole)
        values = [leaves[k] for k in range(len(leaves)) if self.roles[k] != "frozen"]
        return Trained(values, self.names, self.last)

    def whole(self, model: Trained) -> Any:
        """The whole model."""
        leaves, trained, frozen = [], 0, 0
        for role in self.roles:
            if role == "frozen":
                leaves.append(self.frozen[frozen])
                frozen += 1
            else:
                leaves.append(model.values[trained])
                trained += 1
        return tree.unflatten(self.structure, leaves)

    def loss(self, model: Trained, batch: Batch) -> Tensor:
        """The inner task's loss of the whole model, f32[]."""
        return self.inner.loss(self.whole(model), batch)

    def metrics(self, model: Trained, batch: Batch) -> Metrics:
        """The inner task's metrics of the whole model."""
        return self.inner.metrics(self.whole(model), batch)

    def more_metrics(self, model: Trained, batch: Batch) -> Any:
        """The inner task's own metrics of the whole model."""
        inner: Any = self.inner
        return inner.more_metrics(self.whole(model), batch)

    def infer(self, model: Trained, x: Tensor) -> Tensor:
        """What the whole model gives for inputs already scaled."""
        return self.inner.infer(self.whole(model), x)

    def after_step(self, before: Trained, after: Trained, batch: Batch) -> Trained:
        """The model after a step, with new running statistics where the whole model has some."""
        whole = self.whole(before)
        if not hasattr(whole, "with_statistics"):
            return after
        return self.trained(after_step(self.inner, whole, self.whole(after), batch))


@dataclass(frozen=True)
class Split:
    """Divides trees of trained leaves into what travels and what stays: without roles, nothing."""

    state: tuple[int, ...] = ()
    """The places of the personal leaves in a state."""
    memory: tuple[int, ...] = ()
    """In the server's memory."""

    def without(self, whole: Any, places: tuple[int, ...]) -> Any:
        """The leaves of a tree that travel."""
        leaves = tree.leaves(whole)
        return [leaves[k] for k in range(len(leaves)) if k not in places]

    def only(self, whole: Any, places: tuple[int, ...]) -> list[Tensor]:
        """The others."""
        leaves = tree.leaves(whole)
        return [leaves[k] for k in places]

    def joined(
        self, structure: tree.Structure, shared: Any, personal: Any, places: tuple[int, ...]
    ) -> Any:
        """The tree of both."""
        leaves, others, own = [], 0, 0
        for k in range(structure.leaves):
            if k in places:
                leaves.append(personal[own])
                own += 1
            else:
                leaves.append(shared[others])
                others += 1
        return tree.unflatten(structure, leaves)


def with_bundle(model: M, bundle: Bundle | str | os.PathLike[str]) -> M:
    """The model with the weights of a run's bundle, such as `model.bundle` of its report.

    Args:
        model: of the run, with its adapters where it had some.
        bundle: one that has its weights, or its file. Its frozen leaves are taken too, and personal
            leaves have their first values.

    Raises:
        DelianError: the bundle is of another model, or lacks its weights.
    """
    from .bundle import Bundle, load

    where = "this bundle" if isinstance(bundle, Bundle) else str(bundle)
    found = bundle if isinstance(bundle, Bundle) else load(Path(bundle), own=True)
    leaves, structure = tree.flatten(model)
    frozen = {leaf.name: k for k, leaf in enumerate(found.manifest.frozen)}
    names = list(structure.paths())
    trained = [k for k, name in enumerate(names) if name not in frozen]
    kept = found.manifest.model_leaves()
    if [leaf.shape for leaf in kept] != [np.shape(leaves[k]) for k in trained]:
        kind = getattr(getattr(model, "graphs", None), "name", type(model).__name__)
        raise DelianError(
            f"{where} is not a bundle of {kind}: its model has other leaves",
            "take the model that the run trained, with the same settings and adapters",
        )
    if not found.weights.size:
        raise DelianError(f"{where} has no weights", "take the bundle of the run's report")
    ends = np.cumsum([leaf.size for leaf in kept])
    parts = np.split(found.model_of(found.weights), ends[:-1])
    for k, leaf, part in zip(trained, kept, parts, strict=True):
        leaves[k] = part.reshape(leaf.shape)
    for k, name in enumerate(names):
        if name in frozen and found.frozen:
            leaves[k] = found.frozen[frozen[name]]
    made: M = tree.unflatten(structure, leaves)
    return made


def named_paths(structure: tree.Structure, prefix: str = "") -> Iterator[str]:
    """Leaves' dotted names, of trained leaves those that they have in the whole model."""
    if structure.kind is Trained:
        fixed = dict(structure.fixed)
        yield from (f"{prefix}.{name}" if prefix else name for name in fixed["names"])
    elif structure.kind is None:
        yield prefix
    else:
        for key, child in zip(structure.keys, structure.children, strict=True):
            yield from named_paths(child, f"{prefix}.{key}" if prefix else str(key))


def personal_places(structure: tree.Structure, personal: Sequence[bool]) -> tuple[int, ...]:
    """The places of the personal leaves in a tree that has `Trained` nodes."""
    return tuple(k for k, own in enumerate(_marks(structure, personal)) if own)


def _marks(structure: tree.Structure, personal: Sequence[bool]) -> Iterator[bool]:
    if structure.kind is Trained:
        yield from personal
    elif structure.kind is None:
        yield False
    else:
        for child in structure.children:
            yield from _marks(child, personal)
