"""Split training on a device: its part of each step runs here, the rest at the edge.

    trainer = SplitTrainer("step.dlb", cut, ["edge-1@edge:7451"], identity)
    trained = trainer.run(weights, batches, examples=600)
    trained.update                # f32, for the ring: what device part's leaves moved by

Activations go up, gradients come down; raw rows do not leave, nor labels where the step says so.
The device has the weights of its own part and never sees those above; of a model with adapters it
trains and returns the adapters of its part, and holds the frozen leaves that this part reads. What
becomes of its update is no business of this module: it goes where updates go.

With shields all that goes up is clipped and noised on the device, row by row, and charged to a
budget before any of it leaves (`core.privacy.mechanisms.activation_noise` says what that promises,
and what not of a part that learns):

    trainer = SplitTrainer(..., shields=noise_for(...), budget=Budget(8.0, 1e-5))

A run gives all of its steps or raises; weights that were given are not written to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.backends import Backend
from ...core.compiler.ir import Array
from ...core.compiler.passes.number_profiles import Profile
from ...core.node.identity.pki.certificates import channel_credentials
from ...core.node.service.hosting import merge_homes, parse_home, who_is
from ...core.placement.cut.cut import DEVICE, Cut
from ...core.placement.split_training.shields import check_rows, shields_of, spent_on
from ...core.placement.split_training.step_bundle import PROGRAM, StepBundle
from ...core.placement.split_training.step_sides import Programs, Sent, Sharing, Side, SplitError
from ...core.placement.split_training.training_requests import SplitLostError, TrainingAsker, lost
from ...core.placement.split_training.training_service import SHARINGS
from ...core.placement.split_training.trainings import EXAMPLES_MAX, RUN_BYTES, STEPS_MAX, turns_of
from ...core.placement.subgraphs.frames.stream_client import Upstream
from ...core.privacy.mechanisms.accountant import Budget
from ...core.privacy.mechanisms.activation_noise import BoundaryError, Shield
from ...core.privacy.mechanisms.noise import KEY_BYTES
from ...core.protocol.ports import Tier
from ...core.wire.subgraph_pb2 import SubgraphOpen, SubgraphTraining

if TYPE_CHECKING:
    import grpc

#: How long an answer may take: dialling, the edge's other devices and its compiler are in it.
DUE_S = 60.0


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run has come to."""

    weights: dict[int, Array]
    """The device part's leaves, by number."""
    update: Array
    """f32[n], what they moved by, leaf by leaf in the order of their numbers."""
    losses: tuple[float, ...]
    """Of each step."""
    streams: int
    """That the edge was reached on."""


class SplitTrainer:
    """Trains the device's part of a step with an edge.

    bundle: a step's, or its file. cut: as the edge has it, of a round; one whose cut has moved has
    a trainer of its own. frozen: by name, the frozen leaves that the device's part reads (others
    are left where they are). homes: edges, in order, as `delian
    device run --home` takes them; none: as enrolment said. identity: what `delian join` wrote;
    None: no TLS, on this machine alone, and `number` says which device it is. sharing: as the edge
    has it. backend, profile: of the device's parts. due_s: how long one answer may take. shields:
    of what goes up, one for each tensor that does (activations first and gradients after them), or
    one for all; none: it goes as it is. budget: what runs are charged to with shields, and its
    owner's to keep from one trainer to the next; None: steps are not counted. plain: whether a
    device with an identity may send values that the edge can read, without shields; the rule of
    `device.masks.required`.

    Raises DelianError where something cannot be read or a frozen leaf is missing, CutError for a
    cut that is not the step's, BoundaryError for one whose rows cannot be shielded, as one that
    sends labels up.
    """

    def __init__(
        self,
        bundle: StepBundle | Path | str,
        cut: Cut,
        homes: Sequence[str] = (),
        identity: Path | None = None,
        *,
        number: int | None = None,
        sharing: Sharing = Sharing.COPIES,
        backend: Backend = "native",
        profile: Profile = "fast",
        due_s: float = DUE_S,
        shields: Sequence[Shield] = (),
        budget: Budget | None = None,
        plain: bool = False,
        frozen: Mapping[str, Array] | None = None,
    ) -> None:
        if identity is not None and not shields and not plain:
            raise DelianError(
                "the edge can read the activations and gradients of single examples",
                "give shields, or allow it with plain=True",
            )
        if sharing not in SHARINGS:
            raise DelianError("devices that step together", "over links: copies or sequential")
        self.bundle = bundle if isinstance(bundle, StepBundle) else StepBundle.load(Path(bundle))
        self.parts = self.bundle.parts(cut)
        self._turns = turns_of(self.parts)
        self._held = self.bundle.held(self.parts, False, {} if frozen is None else frozen)
        self._programs = Programs(self.parts, backend, profile)
        self._cut, self._sharing, self._due_s = cut, sharing, due_s
        if budget is not None and not shields:
            raise BoundaryError("a budget for what goes up as it is", "give shields")
        self._rows = self.parts.inputs[0].type.shape[0]
        self._shields = shields_of(self.parts, self._rows, shields) if shields else {}
        self._spent = None if budget is None else spent_on(self.parts, self._shields, budget)
        self._who = who_is(Tier.DEVICE, identity, insecure=identity is None, number=number)
        said = [parse_home(home) for home in homes] or self._who.homes
        known = merge_homes(said) if said else ()
        self._homes = [(home.node, home.grpc) for home in known if home.grpc]

    def run(
        self,
        weights: Mapping[int, Array],
        batches: Sequence[Sequence[Array]],
        examples: int,
        on_step: Callable[[int, float], None] | None = None,
        passes: int | None = None,
    ) -> Trained:
        """One step for each batch; blocks. Not to be called on an event loop.

        weights: f32, the leaves of the device's part by number. batches: (x, y, weight) of the
        step's types. examples: how many rows the batches are drawn from, which the edge weighs its
        copy by. on_step: called with the number of steps done and the last one's loss. passes: in
        how many of the batches one example is, at most (in none twice); None: in all of them. That
        is what a budget is charged where the device has no weights of its own, and else, as these
        carry each example into all rows that go up later, all rows of all steps.

        Raises SplitLostError where the edge is gone or refuses, with the number of whole steps;
        then nothing of the run counts, but that it stays charged. DelianError for arrays that do
        not fit; BudgetError where the budget does not allow the run, BoundaryError where rows mix
        or are not finite, and in these nothing, or nothing more, has gone up.
        """
        if not 1 <= len(batches) <= STEPS_MAX or not 1 <= examples <= EXAMPLES_MAX:
            raise DelianError(f"{len(batches)} steps on {examples} examples", "give one at least")
        if passes is not None and not 1 <= passes <= len(batches):
            raise DelianError(f"{passes} passes in {len(batches)} steps", "from 1 to the steps")
        first = self.bundle.started(self.parts, False, weights)
        if self._shields:
            check_rows(self._programs, {**self._held, **first}, self._rows)
        if self._spent is not None:
            self._spent.spend(self._charged(passes or len(batches), len(batches)))
        return asyncio.run(self._run(first, batches, examples, on_step))

    def _charged(self, passes: int, steps: int) -> int:
        """How many rows may depend on one example: its own, where the device's part stays as it is.

        A part that learns carries it into each row of each later step.
        """
        learns = self.bundle.owned_by(self.parts, above=False)
        return steps * self._rows if learns else passes

    # ------------------------------------------------ the steps

    async def _run(
        self,
        first: dict[int, Array],
        batches: Sequence[Sequence[Array]],
        examples: int,
        on_step: Callable[[int, float], None] | None,
    ) -> Trained:
        asker = TrainingAsker(self._opening(len(batches), examples))
        own = self._who.identity

        def credentials() -> grpc.ChannelCredentials:
            assert own is not None
            return channel_credentials(own.material())

        upstream = Upstream(
            self._who.node,
            self._homes,
            asker,
            None if own is None else credentials,
            self._who.federation,
        )
        upstream.start()
        now, losses = first, []
        try:
            for number, batch in enumerate(batches):
                try:
                    now, loss = await self._step(asker, number, now, batch)
                except SplitLostError as error:
                    raise lost(error, number) from None
                losses.append(loss)
                if on_step is not None:
                    on_step(number + 1, loss)
        finally:
            asker.finish()
            await upstream.close()
        owned = self.bundle.owned_by(self.parts, above=False)
        moved = [(now[i] - first[i]).reshape(-1) for i in owned]
        update = np.concatenate(moved) if moved else np.empty(0, np.float32)
        return Trained({i: now[i] for i in owned}, update, tuple(losses), asker.streams)

    async def _step(
        self, asker: TrainingAsker, number: int, weights: dict[int, Array], batch: Sequence[Array]
    ) -> tuple[dict[int, Array], float]:
        """One step: the weights after it, and its loss."""
        guard = self._release if self._shields else None
        side = Side(self._programs, DEVICE, {**self._held, **weights}, guard=guard)
        values = [p.value for p in self.parts.inputs]
        sent = await asyncio.to_thread(side.start, dict(zip(values, batch, strict=True)))
        for k, (request, reply) in enumerate(self._turns):
            if sent is None or sent.message != request:
                raise SplitError("the device's part asks for nothing where the edge is asked")
            turn = number * len(self._turns) + k + 1
            came = await asker.ask(turn, request, sent.tensors[0], reply, self._due_s)
            sent = await asyncio.to_thread(side.take, Sent(reply, (came,)))
        return {**weights, **side.moved}, float(side.value(self.parts.results[0]))

    def _release(self, value: int, array: Array) -> Array:
        """What goes up of a tensor.

        A turn that is repeated is sent as it was: it is released once, under a key that is drawn
        for it and forgotten.
        """
        return self._shields[value].release(array, os.urandom(KEY_BYTES))

    def _opening(self, steps: int, examples: int) -> SubgraphOpen:
        return SubgraphOpen(
            bundle=bytes.fromhex(self.bundle.content_hash()),
            program=PROGRAM,
            cut=self._cut.to_bytes(),
            tier=1,
            training=SubgraphTraining(
                run=os.urandom(RUN_BYTES),
                steps=steps,
                examples=examples,
                sharing=SHARINGS[self._sharing],
            ),
        )
