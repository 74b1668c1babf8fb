"""Helpers of a buffered run: what the coordinator shows them, and what is left of a sum after it.

A run whose plan names helpers has no sessions: devices mask and seal in one go, waves give parts of
their sums as in a run without masks, and sums stay masked until they are to make a model. Then what
is here is put into batches, each helper is shown the seeds of a batch, and the sum of their masks
comes off. `core.privacy.secagg.helper` has what an honest helper refuses; so

- a batch is of `cohort_min` different devices at least, and no device's update is in two;
- where the coordinator has a certificate log, a batch is shown with the proof that the log has its
  devices' certificates, when it has them all: a helper whose federation requires the log wants it;
- a batch that was shown once is shown again as it was, also after a restart, until all its helpers
  have answered; with a refusal, or none of them for as long as a round takes, its updates are lost.

FedBuff weighs updates of one age alike, so a batch is best of one model's. Too few of one go with
those of the next older model, and the batch counts as its updates do on average:

    s  =  1/n * sum over i of s(tau_i)

the only thing in which such a run differs from one whose updates are not masked. (Weights in the
ring, a_v times each wave's sum, would be exact; but then the parity of an odd one's update among
even ones could be read off.)

The helpers' keys are those that the edges publish with their hellos; devices judge them. A wave
keeps those that its devices sealed to, and what was sealed to a key that is not the edge's any more
is as good as too old.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...core.privacy.mechanisms import ring
from ...core.privacy.secagg.helper import are_seeds, leaves_of
from ...core.privacy.secagg.limits import BATCH_MAX
from ...core.privacy.secagg.logged import INDEX_BYTES, prove
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol.machine import Part
from ...core.protocol.ports import Node, Tier, Vector
from ...core.wire import helper_pb2
from ...core.wire.round_pb2 import EdgeSum, Task
from ...core.wire.secure_pb2 import MaskSeeds
from . import staleness
from .coordinator_state import Attempt, Batch, RunState
from .run import Run

#: The name of the timer that asks helpers again.
TIMER = "help"


class Helpers(Part[RunState]):
    """What a buffered run does where helpers unmask its updates."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.state, run.out)
        self.run = run
        self.plan = run.plan
        self.sums = run.sums
        self.context = run.context

    # ------------------------------------------------ which edges help

    def missing_helper(self) -> str:
        """Why no wave can begin, or nothing."""
        if not self.run.helped:
            return ""
        assert self.plan.secure is not None
        known = {card.edge for card in self.run.published()}
        for card in self.plan.secure.helpers:
            if card.edge not in known:
                return f"edge {card.edge} has not said that it helps"
        return ""

    def is_outdated(self, wave: Attempt) -> bool:
        """Whether no helper could open what its devices have sealed."""
        newest = {card.edge: card.key for card in self.run.published()} if wave.helpers else {}
        return any(newest.get(card.edge, card.key) != card.key for card in wave.helpers)

    def has_seeds(self, wave: Attempt, message: EdgeSum) -> bool:
        """Whether exactly the seeds of the devices in a sum are there."""
        if not wave.helpers:
            return not message.seeds
        return [one.device for one in message.seeds] == list(message.devices) and all(
            are_seeds(one, len(wave.helpers)) for one in message.seeds
        )

    # ------------------------------------------------ asking

    def groups(self, waves: Iterable[Attempt]) -> list[list[Attempt]]:
        room = min(self.plan.ring.clients_max, BATCH_MAX)
        return grouped(waves, self.plan.cohort_min, room)

    def new_batch(self, pieces: Sequence[Attempt]) -> Batch:
        """What is to be unmasked together, and what each helper is shown of it."""
        state = self.state
        state.batches += 1
        total = np.zeros(self.plan.ring.length, np.uint32)
        ages: list[float] = []
        for piece in pieces:
            assert piece.total is not None
            ring.add(total, piece.total)
            ages += [staleness.staleness_weight(state.round - piece.round)] * len(piece.unused)
        cards = pieces[0].helpers
        requests = {
            card.edge: helper_pb2.HelpRequest(
                run=self.run.name_of(pieces[0]),
                batch=state.batches,
                parts=[self._part(piece, place) for piece in pieces],
            )
            for place, card in enumerate(cards)
        }
        return Batch(state.batches, len(pieces), sum(ages) / len(ages), total, requests)

    def _part(self, piece: Attempt, place: int) -> helper_pb2.HelpPart:
        said = Task()
        said.CopyFrom(self.run.task_of(piece))
        for name in ("certificate", "signature"):  # what the seals depend on is all else
            said.ClearField(name)
        devices = [
            MaskSeeds(device=one.device, certificate=one.certificate, seeds=[one.seeds[place]])
            for one in sorted(piece.seeds, key=lambda one: one.device)
        ]
        return helper_pb2.HelpPart(task=said, devices=devices)

    def begin(self) -> None:
        """Begins to have the batches unmasked."""
        self.state.help_ends_ns = self.now + self.plan.timeout_ns
        self.state.help_tries = 0
        self.ask()

    def ask(self) -> None:
        state = self.state
        for batch in state.opening:
            for edge, request in batch.requests.items():
                self._show(edge, request)
        state.help_tries += 1
        size = self.plan.ring.wire_bytes * len(state.opening)
        pause = self.context.backoff.pause(state.help_tries, size)
        self.set_timer(TIMER, min(self.now + pause, max(self.now, state.help_ends_ns)))

    def _show(self, edge: int, request: helper_pb2.HelpRequest) -> None:
        """Shows a helper a batch, unless the log has no proof of it yet: then the next time."""
        log = self.context.log
        if log is not None:
            leaves = [leaf for _, leaf in self._leaves(request)]
            places = [at for leaf in leaves if (at := log.place(leaf)) is not None]
            if len(places) < len(leaves):
                return
            packed = b"".join(at.to_bytes(INDEX_BYTES, "little") for at in places)
            known = self.state.help_logs.get(edge, 0)
            try:
                proof = prove(log.copy.tree(), log.head, known, packed, range(len(places)))
            except SecureError:
                return  # the helper knows a newer head than this one
            plain, request = request, helper_pb2.HelpRequest()
            request.CopyFrom(plain)
            request.log.CopyFrom(proof)
        self.send(Node(Tier.EDGE, edge), request)

    def _leaves(self, request: helper_pb2.HelpRequest) -> list[tuple[int, bytes]]:
        """Device and leaf of each certificate of a batch."""
        assert self.context.identity is not None
        return leaves_of(request, self.context.identity)

    def prove_again(self, message: helper_pb2.HelpSum) -> None:
        """Shows a batch again, with a proof from the head that the helper has."""
        batch = self.batch_of(message)
        assert batch is not None
        self.state.help_logs[message.edge] = message.log_size
        self._show(message.edge, batch.requests[message.edge])

    def unproved(self) -> str:
        """Bars the devices that could not be proved; returns that there are some, or nothing."""
        log = self.context.log
        if log is not None:
            shown = [r for batch in self.state.opening for r in batch.requests.values()]
            pairs = {pair for request in shown for pair in self._leaves(request)}
            missing = sorted({device for device, leaf in pairs if log.place(leaf) is None})
            self.sums.exclude(missing)
            if missing:
                return f"{len(missing)} devices are not in the certificate log"
        return ""

    # ------------------------------------------------ hearing

    def batch_of(self, message: helper_pb2.HelpSum) -> Batch | None:
        """The batch that an answer is awaited for."""
        for batch in self.state.opening:
            asked = batch.requests.get(message.edge)
            if asked is not None and (asked.run, asked.batch) == (message.run, message.batch):
                return batch
        return None

    def unmask(self, message: helper_pb2.HelpSum) -> None:
        """Takes a helper's masks out of a batch."""
        batch = self.batch_of(message)
        assert batch is not None
        masks = ring.unpacked(message.sum, self.plan.ring)
        np.subtract(batch.total, masks, out=batch.total)
        del batch.requests[message.edge]
        self.state.help_logs[message.edge] = message.log_size
        if not self.owing():
            self.cancel_timer(TIMER)

    def owing(self) -> list[int]:
        return sorted({edge for batch in self.state.opening for edge in batch.requests})

    def refusal(self, message: helper_pb2.HelpSum) -> str:
        """Why a helper's answer is of no use, in words; nothing where it is."""
        if message.refusal == helper_pb2.HELP_GIVEN and ring.is_packed(message.sum, self.plan.ring):
            return ""
        known = (
            message.refusal in helper_pb2.HelpRefusal.values()
            and message.refusal != helper_pb2.HELP_GIVEN
        )
        reason = helper_pb2.HelpRefusal.Name(message.refusal if known else helper_pb2.MALFORMED)
        return f"edge {message.edge} does not unmask: {reason.lower().replace('_', ' ')}"

    def note_refusal(self, message: helper_pb2.HelpSum) -> None:
        """Bars the devices whose seeds are bad, as those that spoil a sum."""
        batch = self.batch_of(message)
        assert batch is not None
        shown = {d.device for part in batch.requests[message.edge].parts for d in part.devices}
        self.sums.exclude(sorted(shown.intersection(message.bad)))

    def forget(self) -> None:
        if self.state.opening:
            self.state.opening = []
            self.cancel_timer(TIMER)

    def sums_opened(self) -> list[tuple[float, Vector]]:
        """What the batches have come to: each with what it counts."""
        assert not self.owing()
        return [(batch.factor, batch.total) for batch in self.state.opening]


def grouped(waves: Iterable[Attempt], least: int, room: int) -> list[list[Attempt]]:
    """Waves whose updates are unmasked together; those that fit nowhere are left out.

    By model as far as there are `least` different devices, and at most `room` updates at once;
    never under two names of their run, each of which is a run of its own to a helper.
    """
    groups: list[list[Attempt]] = []
    for wave in sorted(waves, key=lambda w: (w.round, w.attempt)):
        last = groups[-1] if groups else None
        joins = last is not None and _count(last) + len(wave.unused) <= room
        if last is not None and last[-1].name != wave.name:
            joins = False
        if last is not None and joins:
            joins = last[-1].round == wave.round or _devices(last) < least
        if last is not None and joins:
            last.append(wave)
        else:
            groups.append([wave])
    if len(groups) > 1 and _devices(groups[-1]) < least:
        few = groups.pop()
        fits = _count(groups[-1]) + _count(few) <= room
        if fits and groups[-1][-1].name == few[0].name:
            groups[-1] += few
    return [group for group in groups if _devices(group) >= least]


def _count(group: Sequence[Attempt]) -> int:
    return sum(len(wave.unused) for wave in group)


def _devices(group: Sequence[Attempt]) -> int:
    return len({device for wave in group for device in wave.unused})
