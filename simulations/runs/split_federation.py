"""Split training under federated rounds, in one process.

Devices train the lower part of a model, edges the upper, and no other node sees a device's part,
its data or, in the U-shape, its labels.

A round:

    every device of the cohort    begins with the device part that all have
    local_steps steps             each with the chain of its edge (`split_training.step_sides`):
                                  activations up, gradients down, as they are written on the wire
    device parts                  each update is clipped, rounded into the ring, masked and added
                                  (`mechanisms.ring`, `core.privacy.secagg`); the mean moves the
                                  part
    edge parts                    an edge averages its devices' copies where they have some, and the
                                  cloud the edges' parts, all weighed by examples

A device that drops out trained with its edge and is in no sum. Its copy is dropped as well; what it
did to a chain that devices share stays. With nothing above (`above` empty) this is federated
averaging of the whole model with the same steps: what split training is compared with.

With a shield what goes up is released under local differential privacy
(`core.privacy.mechanisms.activation_noise`), and a device whose budget is spent trains no more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler import random, tree
from ...core.compiler.backends import Backend, compile_function
from ...core.compiler.frontend import trace
from ...core.compiler.ir import Array, TensorType
from ...core.compiler.passes.number_profiles import Profile
from ...core.learning import Samples, SampleSet, Task
from ...core.learning.leaf_roles import leaf_names, matches
from ...core.learning.nn.optim import Optimizer, sgd
from ...core.placement.cut.cut import DEVICE, EDGE
from ...core.placement.cut.owned_weights import cut_at, kept_below
from ...core.placement.cut.training_step import (
    TrainingStep,
    frozen_patterns,
    step_of,
    step_parts,
)
from ...core.placement.split_training.shields import check_rows, shields_of, spent_on
from ...core.placement.split_training.step_sides import Guard, Sharing, Stepper, averaged
from ...core.privacy.mechanisms import ring
from ...core.privacy.mechanisms.accountant import Budget, BudgetError
from ...core.privacy.mechanisms.activation_noise import Shield
from ...core.privacy.mechanisms.noise import KEY_BYTES
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol.ports import Vector
from ..federation.secure_sum import COHORT_MIN, secure_sum

#: A budget that nothing runs out of, and whose spending is still counted.
EPSILON_MAX = 1e300
# What keys are folded with.
_ORDER, _ROUND, _COHORT, _TURNS, _DROPS, _ROUNDING = range(6)


@dataclass(frozen=True)
class SplitPlan:
    """What is run."""

    above: tuple[str, ...]
    """Names of the model's leaves that live above the device, or what they begin with
    (`layers.1.`); empty: none, and this is federated averaging.
    """
    frozen: tuple[str, ...] | None = None
    """Patterns of leaves that are not trained, and so are in no update and no copy; None: of a
    model with adapters all but these.
    """
    sharing: Sharing = Sharing.COPIES
    """Of what is above, by the devices of an edge."""
    rounds: int = 10
    """Number of rounds."""
    local_steps: int = 5
    """Of each round's device."""
    edges: int = 1
    """Devices are dealt to them in turn."""
    cohort: int | None = None
    """Devices a round; None: all."""
    dropout: float = 0.0
    """The share of these that fall silent."""
    optimizer: Optimizer = field(default_factory=lambda: sgd(0.1))
    """Of all parts; it starts again each round."""
    labels_stay: bool = True
    """The U-shape: labels, and the last layers, on the device."""
    wire: str = "f32"
    """How f32 tensors travel: "f32", "f16", "i8"."""
    clip: float = 10.0
    """Of a device part's update."""
    secure: bool = True
    """Whether the sum of device parts' updates is masked."""
    shields: tuple[Shield, ...] = ()
    """Of what goes up: one for each tensor that does, activations first and gradients after them
    (`SplitRun.up`), or one for all; none: it goes as it is.
    """
    epsilon: float = math.inf
    """Of the shields' privacy budget."""
    delta: float = 1e-5
    """Of the shields' privacy budget."""
    seed: int = 0
    """Of everything drawn."""


class SplitRun:
    """Split training of a task on some devices.

    devices: each one's rows, all of one capacity. after `run`, `model` is the model; `leaves` has
    what is trained of it, by number.

    Raises:
        DelianError: the model does not fit the data, or cannot be cut so; rows would mix, or labels
            go up, where a shield is to hold.
    """

    def __init__(
        self,
        plan: SplitPlan,
        task: Task,
        devices: Sequence[SampleSet],
        backend: Backend = "native",
        profile: Profile = "fast",
    ) -> None:
        if not isinstance(task.source, Samples):
            raise DelianError("split training draws mini-batches of rows", "a source of Samples")
        taking_part = min(plan.cohort or len(devices), len(devices))
        if plan.secure and taking_part < COHORT_MIN:
            raise DelianError(
                f"{taking_part} devices a round, whose sum is masked",
                f"{COHORT_MIN} at least, or secure=False",
            )
        self.plan, self.task, self.devices = plan, task, list(devices)
        self.source = task.source
        first = task.init(random.key(plan.seed))
        patterns, names = frozen_patterns(first, plan.frozen), leaf_names(first)
        every, self._structure = tree.flatten(first)
        self._marks = matches(patterns, names)
        self._names = [n for n, held in zip(names, self._marks, strict=True) if not held]
        both = [
            [np.asarray(a) for a, m in zip(every, self._marks, strict=True) if m is held]
            for held in (False, True)
        ]
        self.leaves, self._frozen = both
        self.step = self._step(patterns)
        self.parts = step_parts(self.step, cut_at(self.step, self._homes(), plan.wire))
        held = dict(zip(self.step.resident, self._frozen, strict=True))
        self.stepper = Stepper(self.parts, backend, profile, held)
        if plan.shields:
            weights = {**held, **self._weights()}
            check_rows(self.stepper.programs, weights, rows=self._batch_type.shape[0])
        self._below = [i for i in range(self.step.leaves) if self.parts.homes[i] == DEVICE]
        self._above = [i for i in range(self.step.leaves) if self.parts.homes[i] != DEVICE]
        dimension = sum(self.leaves[i].size for i in self._below)
        self.ring = RingPlan(plan.clip, len(self.devices), dimension)
        self._weight_max = max(float(d.support) for d in self.devices)
        self._infer = self._compiled_infer(backend, profile)
        rows = self._batch_type.shape[0]
        self._shields = shields_of(self.parts, rows, plan.shields) if plan.shields else {}
        self._spent = [spent_on(self.parts, self._shields, self._budget()) for _ in self.devices]
        self.rounds: list[dict[str, Any]] = []

    # ------------------------------------------------ making it

    @property
    def _batch_type(self) -> TensorType:
        x = self.devices[0].x
        return TensorType(TensorType.of(x).dtype, (self.source.batch_size, *x.shape[1:]))

    def _step(self, frozen: Sequence[str]) -> TrainingStep:
        y = self.devices[0].y
        labels = TensorType(TensorType.of(y).dtype, (self.source.batch_size, *y.shape[1:]))
        optimizer, stays = self.plan.optimizer, self.plan.labels_stay
        return kept_below(
            step_of(
                self.task,
                optimizer,
                self.model,
                self._batch_type,
                labels,
                stays=stays,
                frozen=frozen,
            )
        )

    def _homes(self) -> dict[int, int]:
        names = self._names
        above = tuple(self.plan.above)
        homes = {i: EDGE if n.startswith(above) else DEVICE for i, n in enumerate(names)}
        for prefix in above:
            if not any(n.startswith(prefix) for n in names):
                raise DelianError(
                    f"no weight's name begins with {prefix}", f"there are {', '.join(names)}"
                )
        return homes

    def _compiled_infer(self, backend: Backend, profile: Profile) -> Callable[..., Any]:
        model, task = self.model, self.task

        def infer(model: Any, x: Any) -> Any:
            return task.infer(model, task.source.scaled(x))

        rows = TensorType(
            self._batch_type.dtype, (self.source.query_size, *self.devices[0].x.shape[1:])
        )
        return compile_function(trace(infer, model, rows).function, backend, profile)

    @property
    def up(self) -> tuple[TensorType, ...]:
        """What goes up from a device in a step, in the order in which shields are given."""
        return tuple(p.type for p in self.parts.crossing(DEVICE, up=True))

    def _budget(self) -> Budget:
        epsilon = self.plan.epsilon if self.plan.epsilon < math.inf else EPSILON_MAX
        return Budget(epsilon, self.plan.delta)

    def _weights(self) -> dict[int, Array]:
        """All weights by number, the optimiser's state at its beginning."""
        params = self.step.function.body.params
        states = range(self.step.leaves, self.step.leaves + self.step.states)
        zeros = {i: np.zeros(params[i].tensor.shape, np.float32) for i in states}
        return {**dict(enumerate(self.leaves)), **zeros}

    # ------------------------------------------------ running it

    @property
    def model(self) -> Any:
        return tree.unflatten(self._structure, self._every())

    def _every(self) -> list[Array]:
        """All leaves, in the order of the model's tree."""
        trained, frozen = iter(self.leaves), iter(self._frozen)
        return [next(frozen if held else trained) for held in self._marks]

    def run(self, on_round: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
        """Runs all rounds; the report, as JSON has it."""
        for number in range(self.plan.rounds):
            record = self.round(number)
            self.rounds.append(record)
            if on_round is not None:
                on_round(record)
        return self.report()

    def round(self, number: int) -> dict[str, Any]:
        """One round. Where no device is left to train, nothing changes."""
        key = random.fold_in(random.fold_in(random.key(self.plan.seed), _ROUND), number)
        cohort = [d for d in self._cohort(key) if self._may_train(d)]
        silent = self._silent(cohort, key)
        traffic = dict(self.stepper.traffic.nbytes)
        deltas: dict[int, dict[int, Array]] = {}
        chains: list[tuple[dict[int, Array], float]] = []
        losses: list[float] = []
        for edge in range(self.plan.edges):
            mine = [d for d in cohort if d % self.plan.edges == edge]
            ended = self._train(mine, silent, key, deltas, losses) if mine else None
            if ended is not None:
                chains.append(ended)
        failed = self._move(deltas, chains, silent, number, key)
        sent = self.stepper.traffic.nbytes
        crossed = {k: n - traffic.get(k, 0) for k, n in sent.items()}
        part, above = 4 * self.ring.dimension, 4 * sum(self.leaves[i].size for i in self._above)
        return {
            "round": number + 1,
            "loss": float(np.mean(losses)) if losses else None,
            "accuracy": self.accuracy(),
            "devices": len(cohort),
            "reported": len(cohort) - len(silent),
            "failed": failed,
            "boundary_bytes_up": crossed.get((DEVICE, True), 0),
            "boundary_bytes_down": crossed.get((DEVICE, False), 0),
            "part_bytes_up": self.ring.wire_bytes * (len(cohort) - len(silent)),
            "part_bytes_down": part * len(cohort),
            "edge_bytes_up": above * len(chains),
            "edge_bytes_down": above * len(chains),
            "epsilon": self.epsilon,
        }

    def _move(
        self,
        deltas: Mapping[int, dict[int, Array]],
        chains: Sequence[tuple[dict[int, Array], float]],
        silent: set[int],
        number: int,
        key: Array,
    ) -> str:
        """The next model, of what devices and edges ended with.

        Where the sum cannot be had nothing moves, and why is said.
        """
        if not set(deltas) - silent:
            return "no device reported"
        try:
            mean = self._mean(deltas, silent, number, key)
        except SecureError as error:
            return error.message
        at = 0
        for i in self._below:
            leaf = self.leaves[i]
            self.leaves[i] = leaf + mean[at : at + leaf.size].reshape(leaf.shape)
            at += leaf.size
        if self._above:
            above = averaged([c for c, _ in chains], [w for _, w in chains])
            self.leaves = [above.get(i, leaf) for i, leaf in enumerate(self.leaves)]
        return ""

    def _train(
        self,
        mine: Sequence[int],
        silent: set[int],
        key: Array,
        deltas: dict[int, dict[int, Array]],
        losses: list[float],
    ) -> tuple[dict[int, Array], float] | None:
        """An edge's devices through the round.

        Their updates go into `deltas`; what is above them then, with its weight, or None where all
        had copies and fell silent.
        """
        start = self._weights()
        chain = {i: start[i] for i in self.stepper.above}
        sharing = self.plan.sharing
        groups = [list(mine)] if sharing is Sharing.SYNCHRONOUS else [[d] for d in mine]
        if sharing is Sharing.SEQUENTIAL:
            turns = random.permutation(random.fold_in(key, _TURNS), len(groups), len(groups))
            groups = [groups[int(i)] for i in turns]
        ended: list[tuple[dict[int, Array], float]] = []
        for group in groups:
            begun = chain if sharing is Sharing.SEQUENTIAL else {i: start[i] for i in chain}
            after, left = self._steps(group, begun, key, losses)
            deltas.update(after)
            if sharing is not Sharing.COPIES:
                chain = left
            elif not silent.issuperset(group):
                ended.append((left, self._examples(group)))
        if sharing is not Sharing.COPIES:
            return chain, self._examples(mine)
        if not ended:
            return None
        weights = [weight for _, weight in ended]
        return averaged([copy for copy, _ in ended], weights), sum(weights)

    def _steps(
        self, group: Sequence[int], chain: dict[int, Array], key: Array, losses: list[float]
    ) -> tuple[dict[int, dict[int, Array]], dict[int, Array]]:
        """Local steps of devices that step together: their updates, leaf by leaf, and the chain."""
        start = self._weights()
        own = [{i: start[i] for i in self.stepper.below} for _ in group]
        orders = [
            self.source.order(self.devices[d], random.fold_in(random.fold_in(key, _ORDER), d))
            for d in group
        ]
        for step in range(self.plan.local_steps):
            batches = [self._batch(d, o, step) for d, o in zip(group, orders, strict=True)]
            guards = [self._guard(d, key, step) for d in group]
            own, chain, told = self.stepper.step(own, chain, batches, guards)
            losses.extend(float(one[0]) for one in told)
        deltas = {
            d: {i: weights[i] - start[i] for i in self._below}
            for d, weights in zip(group, own, strict=True)
        }
        return deltas, chain

    def _batch(self, device: int, order: Array, step: int) -> list[Array]:
        """x, y and weight.

        Rows that only fill the batch are zeros: they say nothing of the data, whatever becomes of
        them.
        """
        data = self.devices[device]
        column = np.arange(self.source.batch_size)
        taken = (step * self.source.batch_size + column) % max(int(data.support), 1)
        rows = self.source.entries(data, order, taken)
        weight = (column < data.support).astype(np.float32)
        there = weight.astype(np.bool_)
        x = np.where(there.reshape(-1, *[1] * (data.x.ndim - 1)), data.x[rows], 0)
        y = np.where(there.reshape(-1, *[1] * (data.y.ndim - 1)), data.y[rows], 0)
        return [x.astype(data.x.dtype), y.astype(data.y.dtype), weight]

    def _guard(self, device: int, key: Array, step: int) -> Guard | None:
        if not self._shields:
            return None
        return partial(
            _release, self._shields, (self.plan.seed, int(key[0]), int(key[1]), device, step)
        )

    def _mean(
        self, deltas: Mapping[int, dict[int, Array]], silent: set[int], number: int, key: Array
    ) -> Array:
        """The mean of the updates of the devices that reported, f32[D]."""
        vectors: dict[int, Vector] = {}
        for device, delta in sorted(deltas.items()):
            flat = np.concatenate([delta[i].reshape(-1) for i in self._below])
            if not np.isfinite(flat).all():
                raise DelianError(
                    f"the update of device {device} is not finite", "lower the learning rate"
                )
            weight = np.float32(self._examples([device]) / self._weight_max)
            rounding = random.fold_in(random.fold_in(key, _ROUNDING), device)
            vectors[device] = ring.encode(flat, weight, rounding, self.ring)
        if self.plan.secure:
            total = secure_sum(vectors, self.ring, self.plan.seed, number, silent)
        else:
            total = ring.zeros(self.ring)
            for device, vector in vectors.items():
                if device not in silent:
                    ring.add(total, vector)
        return ring.decode(total, self.ring)[0]

    # ------------------------------------------------ members, and cost

    def _cohort(self, key: Array) -> list[int]:
        count = len(self.devices)
        order = random.permutation(random.fold_in(key, _COHORT), count, count)
        return sorted(int(d) for d in order[: self.plan.cohort or count])

    def _silent(self, cohort: Sequence[int], key: Array) -> set[int]:
        if not self.plan.dropout:
            return set()
        drawn = random.uniform(random.fold_in(key, _DROPS), len(self.devices))
        return {d for d in cohort if drawn[d] < self.plan.dropout}

    def _examples(self, devices: Sequence[int]) -> float:
        return float(sum(int(self.devices[d].support) for d in devices))

    def _may_train(self, device: int) -> bool:
        """Charges a device for a round, or says that it has nothing left to spend."""
        if not self._shields:
            return True
        rows, spent = int(self.devices[device].support), self._spent[device]
        taken = min(self.source.batch_size, rows)
        passes = math.ceil(self.plan.local_steps * taken / max(rows, 1))
        try:
            spent.spend(passes)
        except BudgetError:
            return False
        return True

    @property
    def epsilon(self) -> float | None:
        """The most that any example was charged, at the plan's delta; None without a shield."""
        if not self._shields:
            return None
        return max(s.budget.epsilon_spent for s in self._spent)

    def accuracy(self) -> float | None:
        """The share of right answers on all devices' query rows; None where there are none."""
        right, count, size = 0, 0, self.source.query_size
        for data in self.devices:
            start, stop = int(data.support), int(data.support) + int(data.query)
            for at in range(start, stop, size):
                rows = data.x[at : min(at + size, stop)]
                filled = np.resize(rows, (size, *rows.shape[1:]))
                answers = self._infer(*self._every(), filled)[0][: len(rows)]
                right += int(np.sum(answers.argmax(-1) == data.y[at : at + len(rows)]))
                count += len(rows)
        return right / count if count else None

    def report(self) -> dict[str, Any]:
        """What there was, round by round."""
        return {
            "sharing": self.plan.sharing.value,
            "above": list(self.plan.above),
            "numbers_below": self.ring.dimension,
            "numbers_above": sum(self.leaves[i].size for i in self._above),
            "up": [str(t) for t in self._ports(up=True)],
            "down": [str(t) for t in self._ports(up=False)],
            "rounds": self.rounds,
        }

    def _ports(self, up: bool) -> list[TensorType]:
        return [p.type for p in self.parts.crossing(DEVICE, up)] if self.parts.top else []


def _release(
    shields: Mapping[int, Shield], seeds: tuple[int, ...], value: int, array: Array
) -> Array:
    """A tensor that goes up. A simulated device's noise follows from the seed."""
    named = ":".join(map(str, (*seeds, value))).encode()
    return shields[value].release(array, hashlib.blake2b(named, digest_size=KEY_BYTES).digest())
