"""What both kinds of run do: tasks, sums, evaluation, early stopping, and how a run ends.

A run's machine sees what the coordinator passes on to it: its own messages, timers (their names
without the run's prefix), programs, its operator's orders, and offers of devices. It reaches the
pool of devices through the `Roster` alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ...core.learning import metrics
from ...core.learning.aggregate import robust
from ...core.privacy.mechanisms import noise_mechanism, ring
from ...core.privacy.mechanisms.accountant import BudgetError
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.signed_task import sign
from ...core.privacy.task_limits import with_left
from ...core.protocol import ports
from ...core.protocol.machine import Output, Part
from ...core.wire import round_pb2
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.secure_pb2 import HelperKey, SecurePlan
from .coordinator_state import Attempt, EndedRun, Phase, RunState, Share
from .edge_sums import Sums
from .refusal_texts import explained
from .run_context import RunContext, ring_now, ring_of
from .secure_rounds import Sessions, turned_away

TICKETS = 2**32  # of one run; a ticket is the run's number and a count


@dataclass(frozen=True, slots=True)
class EdgeRestarted:
    """An edge has lost what it was doing."""

    edge: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """An edge asks for one of the run's blobs."""

    edge: int
    digest: bytes


def digest_of(total: ports.Vector) -> bytes:
    """SHA-256 of a sum, little-endian u32."""
    return hashlib.sha256(total.astype("<u4", copy=False).data).digest()


def prefix(run: int) -> str:
    """What the names of a run's timers begin with."""
    return f"run/{run}/"


class Run(Part[RunState]):
    """What a run of either kind does."""

    def __init__(self, state: RunState, out: Output, context: RunContext) -> None:
        super().__init__(state, out)
        self.context = context
        self.plan = context.plan
        self.roster = context.roster
        self.rng = context.rng
        self.sessions = Sessions(state, out, context)
        self.sums = Sums(state, out, context.plan, self.sessions)
        self.took = 0  # devices taken while the last event was handled

    # ------------------------------------------------ what the coordinator asks

    def working(self) -> int:
        """Devices that have a task of this run, and have not answered."""
        return sum(a.working() for a in self.state.open)

    @property
    def selects(self) -> bool:
        """Whether the run will want devices, now or later."""
        return self.state.phase is not Phase.PAUSED and not self.state.pausing

    def names(self, digest: bytes) -> bool:
        """Whether edges may ask for this blob."""
        state = self.state
        weights = (state.weights.digest, *(a.weights.digest for a in state.open))
        return digest in self.plan.lasting or digest in weights

    def needs(self, digest: bytes) -> bool:
        """Whether the blob must stay in the store."""
        kept = (self.state.memory, self.state.ordered, self.state.best_weights)
        return self.names(digest) or any(r is not None and r.digest == digest for r in kept)

    def summary(self) -> EndedRun:
        state = self.state
        return EndedRun(state.phase, state.round - 1, state.weights, state.stopped_by)

    def phase_facts(self) -> dict[str, Any]:
        """The facts of a change of phase, with the privacy that sums have cost so far."""
        state, promise = self.state, self.plan.promise
        facts: dict[str, Any] = {"run": state.run, "phase": state.phase.value}
        facts["why"] = state.stopped_by
        if promise is not None:
            facts["privacy"] = (state.budget or promise.budget()).facts()
        return facts

    # ------------------------------------------------ names that are the run's own

    def next_ticket(self) -> int:
        self.state.tickets += 1
        return self.state.run * TICKETS + self.state.tickets % TICKETS

    def run_program(self, program: str, arguments: tuple[Any, ...]) -> None:
        state = self.state
        state.ticket = self.next_ticket()
        blobs = [self.plan.bundle.digest, state.weights.digest]
        if state.memory is not None:
            blobs.append(state.memory.digest)
        self.emit(ports.RunProgram(state.ticket, program, tuple(blobs), arguments))

    # ------------------------------------------------ tasks and sums

    def choose(self, count: int, attempt: int) -> dict[int, list[int]]:
        """So many of the ready devices, uniformly; takes them and gives them by edge."""
        ready = self.roster.ready(self.now)
        sure, rest = [], self.sums.eligible(ready)
        if len(rest) < count:
            # Excluded devices may be selected when there are too few others.
            sure, rest = rest, sorted(ready.keys() - set(rest))
        names = (self.plan.run, self.state.round, attempt)
        chosen = [*sure, *self.rng.sample(rest, count - len(sure), "select", *names)]
        by_edge: dict[int, list[int]] = {}
        for device in sorted(chosen):
            by_edge.setdefault(ready[device], []).append(device)
        self.roster.take(self.plan.run, by_edge)
        self.took = count
        return by_edge

    def open(self, count: int, evaluates: bool) -> Attempt:
        """A new attempt, with its devices; nothing is sent yet."""
        return self.open_with(self.choose(count, self.state.attempt), evaluates)

    def open_with(self, chosen: dict[int, list[int]], evaluates: bool) -> Attempt:
        """A new attempt with these devices, by edge."""
        state = self.state
        attempt = Attempt(
            round=state.round,
            attempt=state.attempt,
            evaluates=evaluates,
            weights=state.weights,
            opened_ns=self.now,
            ends_ns=self.now + self.plan.timeout_ns,
            shares={e: Share(d) for e, d in chosen.items()},
            apart=self.plan.apart and not evaluates,
            # An evaluation waits for all its devices anyway: it has a session.
            helpers=self.published() if self.helped and not evaluates else [],
            name=state.name,
        )
        state.open.append(attempt)
        state.stopped_by = ""
        if self.plan.secure is not None and not attempt.helpers:
            self.sessions.begin(attempt, self.task_of(attempt))
        return attempt

    @property
    def helped(self) -> bool:
        """Whether helpers unmask the run's updates."""
        return self.plan.secure is not None and len(self.plan.secure.helpers) > 0

    def published(self) -> list[HelperKey]:
        """The helpers' keys, in the plan's order: of those that have published one."""
        assert self.plan.secure is not None
        views = (self.roster.edges.get(card.edge) for card in self.plan.secure.helpers)
        return [view.helper for view in views if view is not None and view.helper is not None]

    def _secure(self, attempt: Attempt) -> SecurePlan | None:
        """How an attempt's updates are masked: as in the plan, with what is known only now.

        That is the helpers' keys, the survivors that the devices' noise was planned for, and the
        deny list's version.
        """
        plan, promise = self.plan.secure, self.plan.promise
        if plan is None:
            return None
        secure = SecurePlan(helpers=attempt.helpers, denied_version=self.context.denied)
        secure.suite, secure.cohort_min = plan.suite, plan.cohort_min
        secure.corrupt, secure.dropout = plan.corrupt, plan.dropout
        if promise is not None and not promise.central and not attempt.evaluates:
            secure.noise_survivors = promise.survivors
        elif self.plan.ring.wide and self.plan.ring.noise:
            secure.noise_survivors = plan.cohort_min
        return secure

    def _key(self, attempt: Attempt) -> int:
        """The random key: one for all attempts of a round, and one for all evaluations.

        So evaluations differ by what was learnt and not by what was drawn.
        """
        if attempt.evaluates:
            return self.rng.word("evaluation key", self.plan.run)
        if self.plan.buffered:
            # A device may be in two waves of one model; its updates are not to be the same.
            return self.rng.word("wave key", self.plan.run, attempt.round, attempt.attempt)
        return self.rng.word("round key", self.plan.run, attempt.round)

    def key_bytes(self, attempt: Attempt) -> bytes:
        return self._key(attempt).to_bytes(8, "little")

    def name_of(self, attempt: Attempt) -> int:
        """What the run is called in an attempt's messages."""
        return attempt.name or self.plan.run

    def is_about(self, message: Any) -> bool:
        """Whether a message with the run's number belongs to an attempt of this coordinator.

        False: it has the place of an open attempt, but another name of the run.
        """
        for attempt in self.state.open:
            if (attempt.round, attempt.attempt) == (message.round, message.attempt):
                return bool(message.run == self.name_of(attempt))
        return True

    def task_of(self, attempt: Attempt) -> round_pb2.Task:
        """The task of an attempt: made, and signed where the coordinator has an identity, once."""
        if attempt.task is None:
            attempt.task = self._make_task(attempt)
            if self.context.identity is not None:
                sign(attempt.task, self.context.identity, -(-attempt.ends_ns // ports.SECOND))
        return attempt.task

    def _make_task(self, attempt: Attempt) -> round_pb2.Task:
        plan = self.plan
        whole_ms = (attempt.ends_ns - attempt.opened_ns - plan.margin_ns) // ports.MS
        return round_pb2.Task(
            run=self.name_of(attempt),
            round=attempt.round,
            attempt=attempt.attempt,
            bundle=plan.bundle,
            weights=attempt.weights,
            frozen=plan.frozen,
            ring=ring_of(self.plan, self.state, attempt).message(),
            time_ms=max(0, whole_ms),
            rng_key=self.key_bytes(attempt),
            purpose=round_pb2.EVALUATE if attempt.evaluates else round_pb2.TRAIN,
            secure=self._secure(attempt),
            manifest=plan.manifest,
            split=plan.split and not attempt.evaluates,
        )

    def send_task(self, attempt: Attempt, edge: int) -> None:
        left_ms = max(0, (attempt.ends_ns - self.now) // ports.MS)
        message = round_pb2.EdgeTask(
            task=with_left(self.task_of(attempt), left_ms - self.plan.margin_ns // ports.MS),
            devices=attempt.shares[edge].devices,
            time_ms=left_ms,
            alone=len(self.state.open) == 1,
            apart=attempt.apart,
        )
        self.send(ports.Node(ports.Tier.EDGE, edge), message)

    def send_flush(self, attempt: Attempt, edge: int, go_on: bool) -> None:
        share = attempt.shares[edge]
        flush = round_pb2.Flush(
            run=self.name_of(attempt),
            round=attempt.round,
            attempt=attempt.attempt,
            part=share.part,
            go_on=go_on,
        )
        self.send(ports.Node(ports.Tier.EDGE, edge), flush)

    def release(self, attempt: Attempt) -> None:
        for edge in attempt.shares:
            self.free(attempt, edge)

    def free(self, attempt: Attempt, edge: int) -> None:
        """The attempt has no more use for an edge's devices."""
        share = attempt.shares[edge]
        # Once the sums were asked for, silence is not the devices' fault.
        answered = [*share.reported, *(d for d in share.devices if d in attempt.failures)]
        there = share.devices if attempt.flushed else answered
        self.roster.release(self.plan.run, edge, share.devices, there, self.now)

    def send_closed(self, attempt: Attempt, succeeded: bool) -> None:
        for edge in attempt.shares:
            self.send(
                ports.Node(ports.Tier.EDGE, edge),
                round_pb2.RoundClosed(
                    run=self.name_of(attempt),
                    round=attempt.round,
                    attempt=attempt.attempt,
                    succeeded=succeeded,
                ),
            )

    # ------------------------------------------------ masks

    def attend(self, attempt: Attempt, edge: int, message: Any) -> str | bool:
        """Takes a message of an attempt's session.

        Returns True where the sum can be opened now, and text: why the session cannot go on.
        """
        try:
            return self.sessions.take(attempt, edge, message)
        except SecureError as fault:
            self.sums.exclude(self.sessions.spoilers(attempt))
            return fault.message

    def step(self, attempt: Attempt) -> str:
        """Goes on with a session whose step's time is over; gives why it cannot, or nothing."""
        try:
            self.sessions.step(attempt)
        except SecureError as fault:
            self.sums.exclude(self.sessions.spoilers(attempt))
            return fault.message
        return ""

    def ask_survivors(self, attempt: Attempt) -> str:
        """Begins to take the masks out of a whole sum; gives why it cannot be, or nothing."""
        for edge, share in attempt.shares.items():  # of sums from before these were looked at
            self.sums.suspect(self.sessions.outsiders(attempt, share.reported), edge)
        try:
            self.sessions.survivors(attempt)
        except SecureError as fault:
            return fault.message
        return ""

    def open_sum(self, attempt: Attempt) -> str:
        """Has the masks taken out; gives why they cannot be, or nothing."""
        try:
            arguments = self.sessions.program(attempt)
        except SecureError as fault:
            return fault.message
        attempt.book.ticket = self.next_ticket()
        self.emit(ports.RunProgram(attempt.book.ticket, "unmask", (), arguments))
        return ""

    def opened(
        self, attempt: Attempt, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped
    ) -> str:
        """Keeps a sum without masks; gives why there is none, or nothing."""
        if not isinstance(outcome, ports.Outcome) or outcome.vector is None:
            return "the masks could not be taken out of the sum"
        attempt.total = outcome.vector
        self.sessions.end(attempt)
        return ""

    def turn_away(self, edge: int, message: Any) -> None:
        self.send(ports.Node(ports.Tier.EDGE, edge), turned_away(message))

    # ------------------------------------------------ what is promised

    def cannot_pay(self) -> str:
        """Why one more sum would break the promise, or nothing; checked before devices work."""
        promise = self.plan.promise
        if promise is None:
            return ""
        cost = noise_mechanism.release(
            ring_now(self.plan, self.state), promise.survivors, promise.corrupt
        )
        return (self.state.budget or promise.budget()).refusal(cost, noise_mechanism.FAILURE)

    def pay(self, attempt: Attempt) -> str:
        """Charges a sum to the run's budget, before its devices unmask it; gives why it cannot.

        More devices than were planned make it cheaper.
        """
        promise, state = self.plan.promise, self.state
        if promise is None:
            return ""
        if state.budget is None:
            state.budget = promise.budget()
        try:
            cost = noise_mechanism.release(
                ring_now(self.plan, self.state), len(attempt.unused), promise.corrupt
            )
            state.budget.spend(cost, noise_mechanism.FAILURE)
        except (BudgetError, ring.RingError) as fault:
            return fault.message
        return ""

    def total(self, attempt: Attempt) -> ports.Vector:
        assert attempt.total is not None and attempt.session is None
        return attempt.total

    def combined(self, attempt: Attempt) -> tuple[Any, float]:
        """The round's update (or the plan's rule and its operands), and the weights in it.

        An exact sum is its own result, u32[L].

        Raises RingError, RobustError.
        """
        plan = self.plan
        if not attempt.apart:
            made = ring_of(self.plan, self.state, attempt)
            return ring.result(self.total(attempt), made, self.key_bytes(attempt))
        vectors = [attempt.updates[device] for device in sorted(attempt.updates)]
        return robust.Combination.of(vectors, plan.ring, plan.aggregation, plan.round.hostile)

    def sum_digest(self, attempt: Attempt | None) -> bytes:
        """SHA-256 of an opened sum, little-endian u32, for the record.

        Empty where the plan does not ask for it, and where there is no such sum: updates came one
        by one or in several sums.
        """
        if not self.context.names_sums or attempt is None:
            return b""
        if attempt.total is None or attempt.session is not None:
            return b""
        return digest_of(ring.settled(attempt.total, ring_of(self.plan, self.state, attempt)))

    # ------------------------------------------------ models

    def replace_model(self, weights: BlobRef, memory: BlobRef | None) -> None:
        """Takes a new model; what no attempt works on any more may go."""
        state = self.state
        old, old_memory = state.weights, state.memory
        state.weights, state.memory = weights, memory
        self.drop(old.digest)
        if old_memory is not None:
            self.drop(old_memory.digest)

    def drop(self, digest: bytes) -> None:
        """The coordinator lets it go where no other run needs it."""
        if not self.needs(digest):
            self.emit(ports.DropBlob(digest))

    def record_attempt(self, why: str, model: ports.NewModel | None, **facts: Any) -> None:
        """Records the facts of an attempt at a model.

        refused: devices that answered by a Failure; the others of `selected` did not answer. model,
        parent: what was made, and from what. privacy: what all sums so far cost, of a run with a
        promise. clip: the round's, where it adapts.
        """
        state, made = self.state, model.weights if model is not None else None
        if state.budget is not None:
            facts["privacy"] = state.budget.facts()
        if state.clip is not None:
            facts["clip"] = state.clip.clip
        self.record(
            "round",
            run=self.plan.run,
            round=state.round,
            attempt=state.attempt,
            succeeded=made is not None,
            why=why,
            weight=state.weight if made is not None else 0.0,
            opened_ns=state.opened_ns,
            parent=state.weights.digest,
            model=made.digest if made is not None else b"",
            model_size=made.size if made is not None else 0,
            **facts,
        )

    # ------------------------------------------------ evaluation

    def is_due(self, made: int) -> bool:
        """Whether model number `made` is evaluated: every so many, and the last."""
        every = self.plan.evaluation.every
        return every > 0 and (made % every == 0 or made >= self.plan.rounds)

    def score(self, attempt: Attempt) -> None:
        """Reads the metrics of an evaluation that is over, or says why there are none."""
        devices = attempt.reported()
        if len(devices) < self.plan.evaluation_min:
            self.skip(explained("too few devices reported", attempt.failures.values()))
            return
        try:
            names = self.plan.own_metrics
            found = metrics.decode(self.total(attempt), self.plan.metrics, names)
        except ring.RingError as fault:
            self.skip(fault.message)
            return
        self.record(
            "evaluation",
            run=self.plan.run,
            round=attempt.round - 1,
            model=attempt.weights.digest,
            metrics=found,
            devices=len(devices),
            sum=self.sum_digest(attempt),
        )
        self._compare(found["personalised_loss"], found["personalised_accuracy"], attempt)

    def skip(self, why: str) -> None:
        self.record("evaluation_skipped", run=self.plan.run, round=self.state.round - 1, why=why)

    def _compare(self, loss: float, accuracy: float, attempt: Attempt) -> None:
        """Counts the evaluations since the best one; rolls back to it where the plan says so."""
        state, plan, best, back = self.state, self.plan, self.state.best, self.state.best_weights
        if best is None and loss >= metrics.LOSS_TOLD_MAX:
            return  # losses at their limit do not show which of two models is better
        lost = state.best_accuracy - accuracy
        falls = back is not None and 0 < plan.evaluation.rollback_accuracy < lost
        if not falls and (
            best is None or loss < best - abs(best) * plan.evaluation.improvement_min
        ):
            state.best, state.worse = loss, 0
            if plan.evaluation.rollback_worse or plan.evaluation.rollback_accuracy:
                state.best_weights, state.best_accuracy = attempt.weights, accuracy
                state.best_round = attempt.round - 1
                if back is not None:
                    self.drop(back.digest)
            return
        state.worse += 1
        assert best is not None
        rises = (
            plan.evaluation.rollback_worse > 0
            and loss > best + abs(best) * plan.evaluation.rollback_worse
        )
        if back is None or not (falls or rises):
            return
        self.record(
            "rolled_back",
            run=plan.run,
            round=state.round,
            model=back.digest,
            left=attempt.weights.digest,
            to=state.best_round,
            loss=loss,
            best=best,
            accuracy=accuracy,
            best_accuracy=state.best_accuracy,
        )
        if state.ordered is None:  # an operator's order has priority
            state.ordered = back

    def is_enough(self) -> bool:
        """Whether the run ends here: all models are made, or they get no better."""
        state, plan = self.state, self.plan
        if state.round > plan.rounds:
            return True
        if plan.evaluation.patience and state.worse >= plan.evaluation.patience:
            state.stopped_by = f"no better in {state.worse} evaluations"
            return True
        return False
