"""A synchronous run. Everything that decides what such a run does next lives in this file, but for
rounds that are cut into several masked cohorts (`cohorts`); it sees sums of updates and never one
device's, and it does not know which algorithm makes the next model of a mean.

A round waits until enough devices are ready, selects some uniformly, tasks them through their
edges, adds the edges' sums as they come, and closes when it has enough updates, when all edges have
reported or when its time is over. With too few updates it is tried again; after too many attempts
the run gives up and says why. The same seed, plan and events give the same effects.

Where the plan says so, devices judge a new model before the next round begins. An evaluation is an
attempt of the round that it precedes (the task names the weights that the round begins from): what
a device takes has ever higher (round, attempt). Too few reports skip it; it never fails the run.
"""

from __future__ import annotations

from typing import Any

from ...core.learning.aggregate.robust import Combination, RobustError
from ...core.privacy.mechanisms import ring
from ...core.privacy.secagg import messages
from ...core.protocol.machine import index
from ...core.protocol.ports import (
    CancelProgram,
    Floats,
    NewModel,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Started,
    TimerFired,
    Vector,
)
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from ..service.refusal_texts import explained
from ..service.update_failures import why_stopped
from .coordinator_state import Attempt
from .roster import Offer
from .rounds_table import (
    AGGREGATING,
    IN_SESSION,
    OUT,
    PAUSED,
    UNMASKING,
    WAITING,
)
from .rounds_table import TABLE as TABLE
from .rounds_table import Trigger as Trigger
from .run import EdgeRestarted, Fetched, RunMachine

_T = Trigger


class RoundsMachine(RunMachine):
    """A run in rounds."""

    rows = index(TABLE)
    heeds_fetches = True

    # ------------------------------------------------ what the coordinator asks

    def wanted(self) -> int:
        state = self.state
        if state.phase is not WAITING or not (state.rested or state.settling):
            return 0
        return self._enough()

    def takes(self, offer: Offer) -> bool:
        return self.state.settling or offer.devices >= self._enough()

    def _enough(self) -> int:
        plan = self.plan
        wanted = plan.evaluation_selected if self.state.evaluates else plan.selected
        return max(wanted, plan.round.pool_min or 0)

    def owes(self, edge: int) -> bool:
        return self.state.phase in OUT and self._at_hand().owes(edge)

    # ------------------------------------------------ reading events

    def read(self, event: Any) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                if type(message) in messages.UP:
                    open_still = self._has_session(message)
                    trigger = _T.SESSION if open_still else _T.SESSION_OVER
                    return trigger, (sender.number, message)
                return self._read_message(message)
            case TimerFired(name):
                return self._read_timer(name), None
            case ProgramFinished(ticket, outcome):
                if self.state.phase is UNMASKING and ticket == self._at_hand().book.ticket:
                    return _T.OPENED, outcome
                if self.state.phase is not AGGREGATING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case Offer():
                return self._read_offer(event)
            case EdgeRestarted(edge):
                return _T.EDGE_LOST, edge
            case Fetched(edge):
                return _T.FETCHED, edge
            case RunOrder():
                return self._read_order(event)
            case Started():
                return _T.STARTED, None
        raise AssertionError(f"no event of a run: {event}")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        is_owed = self._is_open(message) and self._at_hand().owes(message.edge)
        if type(message) is EdgeProgress:
            return (_T.PROGRESS if is_owed and not message.part else _T.STALE), message
        assert type(message) is EdgeSum
        if not is_owed:
            return _T.SUM_AGAIN, message
        attempt = self._at_hand()
        whole = not message.part and not message.more
        good = whole and self.sums.is_good(attempt, message)
        return (_T.SUM if good else _T.BAD_SUM), message

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if state.phase is WAITING and name == "rest" and self.now >= state.rest_ends_ns:
            return _T.REST_OVER
        if state.phase is WAITING and name == "wait" and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER
        if state.phase in OUT and name == "round" and self.now >= self._at_hand().ends_ns:
            return _T.TIME_OVER
        if state.phase in OUT and name == "repeat":
            return _T.SILENT
        if name.startswith("session/") and state.phase in IN_SESSION:
            attempt = self._at_hand()
            mine = name == f"session/{attempt.round}/{attempt.attempt}"
            return _T.STEP_OVER if mine and attempt.session is not None else _T.STALE
        return _T.STALE

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        if not isinstance(outcome, NewModel):
            return _T.UPDATE_STOPPED, why_stopped(outcome)
        last = self.state.round >= self.plan.rounds and not self.plan.evaluation.every
        return (_T.LAST_UPDATED if last else _T.UPDATED), outcome

    def _read_offer(self, offer: Offer) -> tuple[Trigger, Any]:
        """How many devices to take, if any."""
        state, plan = self.state, self.plan
        wanted = plan.evaluation_selected if state.evaluates else plan.selected
        least = plan.evaluation_min if state.evaluates else plan.reports_min
        count = min(wanted, offer.devices)
        if offer.devices < self._enough():
            count = min(count, max(offer.part, least))
        if count >= least:
            return (_T.ENOUGH_JUDGES if state.evaluates else _T.ENOUGH), count
        if offer.devices + offer.others >= least:
            return _T.OTHERS_FIRST, None
        why = "too few devices are ready"
        return (_T.NO_JUDGES if state.evaluates else _T.TOO_FEW), why

    def _read_order(self, order: RunOrder) -> tuple[Trigger, Any]:
        state = self.state
        if order.HasField("weights"):
            return _T.WEIGHTS, order.weights
        if order.HasField("cancel"):
            return _T.CANCEL, None
        idle = state.phase in (WAITING, PAUSED)
        paused = state.phase is PAUSED if idle else state.pausing
        if order.HasField("pause"):
            return (_T.STALE if paused else _T.PAUSE), None
        return (_T.RESUME if paused else _T.STALE), None

    def _at_hand(self) -> Attempt:
        return self.state.open[0]

    def _is_open(self, message: Any) -> bool:
        """Whether a message belongs to the attempt at hand."""
        if self.state.phase not in OUT:
            return False
        attempt = self._at_hand()
        return bool(message.round == attempt.round and message.attempt == attempt.attempt)

    def _has_session(self, message: Any) -> bool:
        """Whether a message belongs to the session of the attempt at hand."""
        if self.state.phase not in IN_SESSION:
            return False
        attempt = self._at_hand()
        at = (message.round, message.attempt)
        return at == (attempt.round, attempt.attempt) and attempt.session is not None

    # ------------------------------------------------ waiting

    def wait(self, _: object) -> None:
        state, plan = self.state, self.plan
        if state.ordered is not None:
            self._use_ordered()
        if state.pausing:
            self.post(_T.HOLD)
            return
        broke = self._cannot_pay()
        if broke:
            state.stopped_by = broke
            self.post(_T.GIVE_UP)
            return
        state.rested = state.settling = False
        # In the first round nobody is on the way back.
        rest_ns = plan.rest_ns if (state.round, state.attempt) != (1, 1) else 0
        state.rest_ends_ns = self.now + rest_ns
        state.wait_ends_ns = self.now + plan.wait_ns
        self.set_timer("rest", state.rest_ends_ns)
        self.set_timer("wait", state.wait_ends_ns)

    def look(self, _: object) -> None:
        self.state.rested = True

    def settle(self, _: object) -> None:
        self.state.settling = True

    def wait_on(self, _: object) -> None:
        self.state.settling = False
        self.state.wait_ends_ns = self.now + self.plan.wait_ns
        self.set_timer("wait", self.state.wait_ends_ns)

    def skip(self, why: str) -> None:
        self._skip(why)
        self._after_evaluation()

    # ------------------------------------------------ collecting

    def select(self, count: int) -> None:
        state = self.state
        self._open(count, state.evaluates)
        if not state.evaluates:
            state.opened_ns = self.now
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        self.resume(None)

    def resume(self, _: object) -> None:
        self.set_timer("round", self._at_hand().ends_ns)
        self.sessions.resume(self._at_hand())
        self._at_hand().tries = 0
        self.ask_again(None)

    def ask_again(self, _: object) -> None:
        """Tasks the edges that gave no sign of life, and asks the others for their sums where it is
        time for that.
        """
        attempt = self._at_hand()
        for edge, share in attempt.owing():
            if not share.alive:
                self._send_task(attempt, edge)
            elif attempt.flushed:
                self._send_flush(attempt, edge, go_on=False)
        attempt.tries += 1
        self.set_timer("repeat", self.now + self.backoff.pause(attempt.tries))

    def hear(self, edge: int) -> None:
        self._at_hand().shares[edge].alive = True

    def note(self, message: EdgeProgress) -> None:
        self._at_hand().hear(message.edge, message.counted)
        self._post_if_met()

    def _post_if_met(self) -> None:
        attempt = self._at_hand()
        target = self.plan.evaluation_cohort if attempt.evaluates else self.plan.cohort
        target = self.sessions.target(attempt, target)
        if not attempt.flushed and attempt.counted() + len(attempt.unused) >= target:
            self.post(_T.TARGET_MET)

    def flush(self, _: object) -> None:
        attempt = self._at_hand()
        attempt.flushed = True
        for edge, _share in attempt.owing():
            self._send_flush(attempt, edge, go_on=False)

    def add(self, message: EdgeSum) -> None:
        self.sums.add(self._at_hand(), message)
        self._after_report(message.edge)

    def refuse(self, message: EdgeSum) -> None:
        self.sums.refuse(self._at_hand(), message)
        self._after_report(message.edge)

    def lose(self, edge: int) -> None:
        self.record("edge_lost", edge=edge)
        self._at_hand().lose(edge)
        self._after_report(edge)

    def _after_report(self, edge: int) -> None:
        attempt = self._at_hand()
        self.roster.release(self.plan.run, edge, attempt.shares[edge].devices)
        if any(attempt.owing()):
            self._post_if_met()
        else:
            self.post(_T.ALL_IN)

    # ------------------------------------------------ closing

    def judge(self, _: object) -> None:
        self._record_unanswered()
        if len(self._at_hand().reported()) >= self.plan.reports_min:
            masked = self._at_hand().session is not None
            self._close(not masked)
            self.post(_T.UNMASK if masked else _T.CLOSE)
        else:
            self.sessions.end(self._at_hand(), "too few devices reported")
            self._close(False)
            self.fall_short("too few devices reported")

    def _record_unanswered(self) -> None:
        for edge, _share in self._at_hand().owing():
            self.record("unanswered", edge=edge)

    def _close(self, succeeded: bool) -> None:
        """Ends the collecting: no more timers, and the edges may forget."""
        self.cancel_timer("round")
        self.cancel_timer("repeat")
        self._release(self._at_hand())
        self._send_closed(self._at_hand(), succeeded)

    # ------------------------------------------------ masks

    def attend(self, subject: tuple[int, Any]) -> None:
        end = self._attend(self._at_hand(), *subject)
        if end:
            self.post(*((_T.SHARES_IN,) if end is True else (_T.SESSION_FAILED, end)))

    def step(self, _: object) -> None:
        self._look_at(self._step(self._at_hand()))

    def unmask(self, _: object) -> None:
        attempt = self._at_hand()
        self._look_at(self._ask_survivors(attempt) or self._pay(attempt))

    def resume_unmasking(self, _: object) -> None:
        attempt = self._at_hand()
        if attempt.book.ticket:
            self.open_sum(None)
        else:
            self.sessions.resume(attempt)

    def open_sum(self, _: object) -> None:
        self._look_at(self._open_sum(self._at_hand()))

    def use_sum(self, outcome: Any) -> None:
        attempt = self._at_hand()
        why = self._opened(attempt, outcome)
        if why:
            self.post(_T.SESSION_FAILED, why)
        elif attempt.evaluates:
            self._judge()
        else:
            self._send_closed(attempt, True)
            self.post(_T.CLOSE)

    def _look_at(self, why: str) -> None:
        if why:
            self.post(_T.SESSION_FAILED, why)

    def fail_session(self, why: str) -> None:
        attempt = self._at_hand()
        self.sessions.end(attempt, why)
        if self.state.phase in OUT:
            self._close(False)
        if not attempt.evaluates:
            self.fall_short(why)
            return
        self._skip(why)
        self._after_attempt()

    # ------------------------------------------------ the next model

    def aggregate(self, _: object) -> None:
        state = self.state
        try:
            made, state.weight = self._made()
        except (ring.RingError, RobustError) as fault:
            self.fall_short(fault.message)
            return
        self._run_program("server_update", (made, state.weight))

    def _made(self) -> tuple[Floats | Combination, float]:
        """The round's update and the weights in it, as `_combined` says."""
        return self._combined(self._at_hand())

    def _summed(self) -> Vector:
        """The sum that the new model was made of."""
        return self._total(self._at_hand())

    def fall_short(self, why: str) -> None:
        state = self.state
        why = explained(why, (r for a in state.open for r in a.failures.values()))
        self._record_round(why, None)
        state.stopped_by = why
        state.failed += 1
        self.post(_T.SHORT if state.failed < self.plan.round.attempts_max else _T.GIVE_UP)

    def try_again(self, _: object) -> None:
        self.state.attempt += 1
        self.state.open.clear()
        self.wait(None)

    def next_round(self, model: NewModel) -> None:
        self._take(model)
        state = self.state
        state.evaluates = self._is_due(state.round - 1)
        self.wait(None)

    def end(self, model: NewModel) -> None:
        self._take(model)

    def _take(self, model: NewModel) -> None:
        state = self.state
        self._record_round("", model)
        if state.clip is not None:
            state.clip.follow(ring.indicator(self._summed(), self._ring_now()))
        state.open.clear()
        self._replace_model(model.weights, model.memory)
        state.round += 1
        state.attempt = 1
        state.failed = 0

    def give_up(self, _: object) -> None:
        self.state.open.clear()
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        self.record("run_failed", run=self.plan.run, why=self.state.stopped_by)

    def _record_round(self, why: str, model: NewModel | None) -> None:
        attempts = self.state.open
        failures = {device: why for a in attempts for device, why in a.failures.items()}
        self._record_attempt(
            why,
            model,
            selected=sorted(d for a in attempts for d in a.selected()),
            reported=sorted(d for a in attempts for d in a.reported()),
            refused=dict(sorted(failures.items())),
            target_met=any(a.flushed for a in attempts),
            sum=self._opened_digest() if model is not None else b"",
        )

    def _opened_digest(self) -> bytes:
        """Of the sum that the new model was made of; see `_sum_digest`."""
        return self._sum_digest(self._at_hand())

    # ------------------------------------------------ evaluation

    def score(self, _: object) -> None:
        attempt = self._at_hand()
        self._record_unanswered()
        self._close(False)  # the edges keep the weights: the next round begins from them
        enough = len(attempt.reported()) >= self.plan.evaluation_min
        if attempt.session is not None and enough:
            self.post(_T.UNMASK)
            return
        self.sessions.end(attempt, "too few devices reported")
        self._judge()

    def _judge(self) -> None:
        self._score(self._at_hand())
        self._after_attempt()

    def _after_attempt(self) -> None:
        self.state.open.clear()
        self.state.attempt += 1
        self._after_evaluation()

    def _after_evaluation(self) -> None:
        self.state.evaluates = False
        self.post(_T.LAST_JUDGED if self._is_enough() else _T.JUDGED)

    def train_on(self, _: object) -> None:
        self.wait(None)

    def finish(self, _: object) -> None:
        if self.state.ordered is not None:
            self._use_ordered()
        for name in ("rest", "wait"):
            self.cancel_timer(name)

    # ------------------------------------------------ orders

    def pause(self, _: object) -> None:
        self.state.pausing = True
        self.hold(None)

    def hold(self, _: object) -> None:
        for name in ("rest", "wait"):
            self.cancel_timer(name)

    def pause_after(self, _: object) -> None:
        self.state.pausing = True

    def go_on(self, _: object) -> None:
        self.go_on_after(None)
        self.wait(None)

    def go_on_after(self, _: object) -> None:
        self.state.pausing, self.state.stopped_by = False, ""

    def cancel(self, _: object) -> None:
        state = self.state
        state.stopped_by = "cancelled"
        if state.phase is AGGREGATING:
            self.emit(CancelProgram(state.ticket))
        elif state.open:
            attempt = self._at_hand()
            if attempt.session is not None and attempt.session.ticket:
                self.emit(CancelProgram(attempt.session.ticket))
            self.sessions.end(attempt, "cancelled")
            if state.phase is not UNMASKING:
                self._close(False)
        state.open.clear()
        self.hold(None)

    def take_weights(self, weights: Any) -> None:
        self.state.ordered = weights
        if self.state.phase in (WAITING, PAUSED):
            self._use_ordered()

    def _use_ordered(self) -> None:
        """The ordered weights are the model now. What the optimiser remembers is of other ones."""
        state = self.state
        assert state.ordered is not None
        if state.ordered != state.best_weights:
            state.worse = 0
        self._replace_model(state.ordered, None)
        state.ordered = None
        digest = state.weights.digest
        self.record("model_ordered", run=self.plan.run, round=state.round, model=digest)
