"""Where a run's trees are divided by the roles of leaves: shared, personal, frozen.

    state      the shared leaves of the algorithm's state
    memory     the shared leaves of the server's
    kept       (personal leaves, the algorithm's own client state) where there are personal ones
    frozen     the frozen leaves of the model, and the first values of the personal ones: what
               every program that a device runs takes after the state or the model

Without roles a division leaves every tree as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...compiler import random, tree
from ...compiler.ir import Array, DType, Tensor, TensorType
from ..algorithm import Algorithm
from ..heads import head_order
from ..leaf import Leaf
from ..leaf_roles import Role, Roles, leaf_names, roles_of
from ..partial import PartialTask, Split, named_paths, personal_places
from ..task import Task


@dataclass(frozen=True)
class Division:
    """A task, and how its trees are divided."""

    task: Task
    """As the algorithm has it; with roles a `PartialTask`."""
    split: Split = field(default_factory=Split)
    """The places of personal leaves."""
    state: tree.Structure = tree.LEAF
    """Of the algorithm's whole state, where there are personal leaves."""
    memory: tree.Structure = tree.LEAF
    """Of the server's whole memory, where there are personal leaves."""
    frozen: tuple[Leaf, ...] = ()
    """The leaves that programs take after the state or the model."""
    arrays: tuple[Array, ...] = ()
    """Their values."""

    @property
    def has_personal(self) -> bool:
        return bool(self.split.state)

    @property
    def types(self) -> list[TensorType]:
        """Of the leaves in `frozen`."""
        return [TensorType(DType(leaf.dtype), leaf.shape) for leaf in self.frozen]

    def without_values(self) -> Division:
        """The same, types in the place of frozen leaves.

        Programs are traced of this: tracing copies each array that a function can reach, and what
        was traced is kept until the bundle is built.
        """
        if not isinstance(self.task, PartialTask):
            return self
        kept = self.types[: len(self.frozen) - len(self.split.state)]
        return replace(self, task=replace(self.task, frozen=kept), arrays=())

    def task_of(self, frozen: list[Tensor]) -> Task:
        """The task inside of a program that was given these leaves."""
        if not self.frozen:
            return self.task
        assert isinstance(self.task, PartialTask)
        return self.task.bound(frozen[: len(self.frozen) - len(self.split.state)])

    def first_personal(self, frozen: list[Tensor]) -> list[Tensor]:
        """The first values of the personal leaves."""
        return frozen[len(self.frozen) - len(self.split.state) :]

    def own(self, kept: Any) -> Any:
        """A client state without the personal leaves."""
        return kept[1] if self.has_personal else kept

    def opened(self, state: Any, personal: Any) -> Any:
        """The algorithm's state, from what travelled and the personal leaves."""
        if not self.has_personal:
            return state
        return self.split.joined(self.state, tree.leaves(state), personal, self.split.state)

    def opened_by(self, state: Any, kept: Any) -> Any:
        """The algorithm's state on a device with this client state."""
        return self.opened(state, kept[0]) if self.has_personal else state

    def shared(self, whole: Any) -> Any:
        """What travels of a state, an update or a mean."""
        return self.split.without(whole, self.split.state) if self.has_personal else whole

    def kept(self, whole: Any, own: Any) -> Any:
        """A client state, from the algorithm's state after training and its own client state."""
        return (self.split.only(whole, self.split.state), own) if self.has_personal else own

    def personal_of(self, kept: Any) -> Any:
        """The personal leaves in a client state."""
        return kept[0] if self.has_personal else ()

    def opened_server(self, shared: Any) -> Any:
        """The algorithm's state or mean at the server: zeros where devices have personal leaves."""
        return self.opened(shared, [np.float32(0.0)] * len(self.split.state))

    def state_names(self, structure: tree.Structure) -> list[str]:
        """The names of the leaves that travel."""
        whole = self.state if self.has_personal else structure
        names = enumerate(named_paths(whole))
        return [name for k, name in names if k not in self.split.state]

    def kept_names(self, structure: tree.Structure) -> list[str]:
        """The names of a client state's leaves."""
        if not self.has_personal:
            return list(named_paths(structure, "kept"))
        names = list(named_paths(self.state))
        own = named_paths(structure.children[1], "kept")
        return [*(f"personal.{names[k]}" for k in self.split.state), *own]

    def opened_memory(self, memory: Any) -> Any:
        """The server's whole memory: zeros where personal leaves would have theirs."""
        if not self.has_personal:
            return memory
        zeros = [np.float32(0.0)] * len(self.split.memory)
        return self.split.joined(self.memory, tree.leaves(memory), zeros, self.split.memory)

    def shared_memory(self, whole: Any) -> Any:
        """What the server keeps of its memory."""
        return self.split.without(whole, self.split.memory) if self.has_personal else whole


def divided(task: Task, algorithm: Algorithm, roles: Roles, seed: int) -> Division:
    """How the trees of a run are divided.

    Args:
        task: as the algorithm has it.
        algorithm: it may give roles to leaves (`Algorithm.roles`).
        roles: patterns for the model's leaves.
        seed: of the first values of frozen and personal leaves.

    Raises:
        DelianError: a pattern fits no leaf, or no leaf is shared.
    """
    if not roles and type(algorithm).roles is Algorithm.roles:
        return Division(task)
    # In plain Python: frozen leaves have any dtype, and may be larger than a program's constants.
    whole = task.init(random.key(seed))
    found = roles_of(whole, roles, algorithm.roles(whole))
    if set(found) == {"shared"}:
        return Division(task)
    partial = partial_task(task, whole, found)
    state = algorithm.init(partial, random.key(seed))
    values, whole_state = tree.flatten(state)
    memory = tree.flatten(algorithm.memory(state))[1]
    personal = [role == "personal" for role in found if role != "frozen"]
    split = Split(personal_places(whole_state, personal), personal_places(memory, personal))
    names = [name for name, role in zip(leaf_names(whole), found, strict=True) if role == "frozen"]
    of_state = list(named_paths(whole_state))
    names += [f"first.{of_state[k]}" for k in split.state]
    arrays = [np.asarray(each) for each in (*partial.frozen, *(values[k] for k in split.state))]
    return Division(
        partial,
        split,
        whole_state if split.state else tree.LEAF,
        memory if split.state else tree.LEAF,
        tuple(Leaf.of(n, TensorType.of(each)) for n, each in zip(names, arrays, strict=True)),
        tuple(arrays),
    )


def partial_task(task: Task, whole: Any, roles: Sequence[Role]) -> PartialTask:
    """The task of a model whose leaves have these roles.

    whole: the model, or a tree of what stands for its leaves.
    """
    leaves, structure = tree.flatten(whole)
    names = leaf_names(whole)
    trained = [k for k, role in enumerate(roles) if role != "frozen"]
    order = head_order(tree.unflatten(structure, range(len(roles))))
    return PartialTask(
        task,
        structure,
        tuple(roles),
        tuple(names[k] for k in trained),
        tuple(trained.index(k) for k in order if k in trained),
        [leaf for leaf, role in zip(leaves, roles, strict=True) if role == "frozen"],
    )
