"""The actions of a synchronous run; `rounds_machine` has its table.

`cohorts` has those of rounds that are cut into several masked cohorts. A run sees sums of updates
and never one device's, and it does not know which algorithm makes the next model of a mean.

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

from ...core.learning.aggregate.robust import RobustError
from ...core.privacy.mechanisms import ring
from ...core.protocol import ports
from ...core.protocol.machine import Part
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from . import rounds_triggers
from .cohorts import Cohorts
from .coordinator_state import Attempt, RunState
from .refusal_texts import explained
from .run import Run
from .run_context import ring_now

_T = rounds_triggers.Trigger


class Rounds(Part[RunState]):
    """The actions of a run in rounds."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.state, run.out)
        self.run = run
        self.plan = run.plan
        self.sums = run.sums
        self.sessions = run.sessions
        self.cohorts = Cohorts(run, self.fall_short) if run.plan.cohorts > 1 else None

    @property
    def at_hand(self) -> Attempt:
        """The attempt of a round or an evaluation in one piece."""
        return self.state.open[0]

    @property
    def cut(self) -> Cohorts | None:
        """The cohorts, while devices train for a round that is cut into several."""
        return self.cohorts if self.state.phase is rounds_triggers.COLLECTING else None

    # ------------------------------------------------ waiting

    def wait(self, _: object) -> None:
        state, plan = self.state, self.plan
        if state.ordered is not None:
            self._use_ordered()
        if state.pausing:
            self.post(_T.HOLD)
            return
        broke = self.run.cannot_pay()
        if broke:
            state.stopped_by = broke
            self.post(_T.GIVE_UP)
            return
        state.rested = state.settling = False
        # In the first round no device is on the way back.
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
        self.run.skip(why)
        self._after_evaluation()

    # ------------------------------------------------ collecting

    def select(self, count: int) -> None:
        state = self.state
        cut = None if state.evaluates else self.cohorts
        if not state.evaluates:
            state.opened_ns = self.now
        if cut is not None:
            cut.select(count)
        else:
            self.run.open(count, state.evaluates)
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        if cut is not None:
            cut.set_out()
        else:
            self.resume(None)

    def resume(self, _: object) -> None:
        if self.cut is not None:
            self.cut.resume()
            return
        self.set_timer("round", self.at_hand.ends_ns)
        self.sessions.resume(self.at_hand)
        self.at_hand.tries = 0
        self.ask_again(None)

    def ask_again(self, _: object) -> None:
        """Tasks the edges that gave no sign of life; asks the others for sums once it is time."""
        if self.cut is not None:
            self.cut.ask_again()
            return
        attempt = self.at_hand
        for edge, share in attempt.owing():
            if not share.alive:
                self.run.send_task(attempt, edge)
            elif attempt.flushed:
                self.run.send_flush(attempt, edge, go_on=False)
        attempt.tries += 1
        self.set_timer("repeat", self.now + self.run.context.backoff.pause(attempt.tries))

    def mark_alive(self, edge: int) -> None:
        self.at_hand.shares[edge].alive = True

    def note(self, message: EdgeProgress) -> None:
        if self.cut is not None:
            self.cut.note(message)
            return
        self.at_hand.hear(message.edge, message.counted)
        self._post_if_met()

    def _post_if_met(self) -> None:
        attempt = self.at_hand
        target = self.plan.evaluation_cohort if attempt.evaluates else self.plan.cohort
        target = self.sessions.target(attempt, target)
        if not attempt.flushed and attempt.counted() + len(attempt.unused) >= target:
            self.post(_T.TARGET_MET)

    def flush(self, _: object) -> None:
        attempt = self.at_hand
        attempt.flushed = True
        for edge, _share in attempt.owing():
            self.run.send_flush(attempt, edge, go_on=False)

    def add(self, message: EdgeSum) -> None:
        if self.cut is not None:
            self.cut.add(message)
            return
        self.sums.add(self.at_hand, message)
        self._after_report(message.edge)

    def refuse(self, message: EdgeSum) -> None:
        if self.cut is not None:
            self.cut.refuse(message)
            return
        self.sums.refuse(self.at_hand, message)
        self._after_report(message.edge)

    def lose(self, edge: int) -> None:
        if self.cut is not None:
            self.cut.lose(edge)
            return
        self.record("edge_lost", edge=edge)
        self.at_hand.lose(edge)
        self._after_report(edge)

    def _after_report(self, edge: int) -> None:
        attempt = self.at_hand
        self.run.free(attempt, edge)
        if any(attempt.owing()):
            self._post_if_met()
        else:
            self.post(_T.ALL_IN)

    # ------------------------------------------------ closing

    def judge(self, _: object) -> None:
        if self.cut is not None:
            self.cut.judge()
            return
        self._record_unanswered()
        if len(self.at_hand.reported()) >= self.plan.reports_min:
            masked = self.at_hand.session is not None
            self._close(not masked)
            self.post(_T.UNMASK if masked else _T.CLOSE)
        else:
            self.sessions.end(self.at_hand, "too few devices reported")
            self._close(False)
            self.fall_short("too few devices reported")

    def _record_unanswered(self) -> None:
        for edge, _share in self.at_hand.owing():
            self.record("unanswered", edge=edge)

    def _close(self, succeeded: bool) -> None:
        """Ends the collecting: no more timers, and the edges may forget."""
        self.cancel_timer("round")
        self.cancel_timer("repeat")
        self.run.release(self.at_hand)
        self.run.send_closed(self.at_hand, succeeded)

    # ------------------------------------------------ masks

    def ack(self, message: EdgeSum) -> None:
        self.sums.ack(message)

    def turn_away(self, subject: tuple[int, Any]) -> None:
        self.run.turn_away(*subject)

    def attend(self, subject: tuple[int, Any]) -> None:
        if self.cut is not None:
            self.cut.attend(*subject)
            return
        end = self.run.attend(self.at_hand, *subject)
        if end:
            self.post(*((_T.SHARES_IN,) if end is True else (_T.SESSION_FAILED, end)))

    def step(self, cohort: Any) -> None:
        if self.cut is not None:
            self.cut.step(cohort)
            return
        self._look_at(self.run.step(self.at_hand))

    def unmask(self, _: object) -> None:
        attempt = self.at_hand
        self._look_at(self.run.ask_survivors(attempt) or self.run.pay(attempt))

    def resume_unmasking(self, _: object) -> None:
        attempt = self.at_hand
        if attempt.book.ticket:
            self.open_sum(None)
        else:
            self.sessions.resume(attempt)

    def open_sum(self, _: object) -> None:
        self._look_at(self.run.open_sum(self.at_hand))

    def use_sum(self, outcome: Any) -> None:
        if self.cut is not None:
            self.cut.use_sum(*outcome)
            return
        attempt = self.at_hand
        why = self.run.opened(attempt, outcome)
        if why:
            self.post(_T.SESSION_FAILED, why)
        elif attempt.evaluates:
            self._judge()
        else:
            self.run.send_closed(attempt, True)
            self.post(_T.CLOSE)

    def _look_at(self, why: str) -> None:
        if why:
            self.post(_T.SESSION_FAILED, why)

    def fail_session(self, why: str) -> None:
        attempt = self.at_hand
        self.sessions.end(attempt, why)
        if self.state.phase in rounds_triggers.OUT:
            self._close(False)
        if not attempt.evaluates:
            self.fall_short(why)
            return
        self.run.skip(why)
        self._after_attempt()

    # ------------------------------------------------ the next model

    def aggregate(self, _: object) -> None:
        state = self.state
        try:
            made, state.weight = self._made()
        except (ring.RingError, RobustError) as fault:
            self.fall_short(fault.message)
            return
        self.run.run_program("server_update", (made, state.weight))

    def _made(self) -> tuple[Any, float]:
        """The round's update and the weights in it, as `Run.combined` says."""
        if self.cohorts is not None:
            return self.cohorts.made()
        return self.run.combined(self.at_hand)

    def _summed(self) -> ports.Vector:
        """The sum that the new model was made of."""
        if self.cohorts is not None:
            return self.cohorts.total()
        return self.run.total(self.at_hand)

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

    def next_round(self, model: ports.NewModel) -> None:
        self._take(model)
        state = self.state
        state.evaluates = self.run.is_due(state.round - 1)
        self.wait(None)

    def end(self, model: ports.NewModel) -> None:
        self._take(model)

    def _take(self, model: ports.NewModel) -> None:
        state = self.state
        self._record_round("", model)
        if state.clip is not None:
            state.clip.follow(ring.indicator(self._summed(), ring_now(self.plan, self.state)))
        state.open.clear()
        self.run.replace_model(model.weights, model.memory)
        state.round += 1
        state.attempt = 1
        state.failed = 0

    def give_up(self, _: object) -> None:
        self.state.open.clear()
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        self.record("run_failed", run=self.plan.run, why=self.state.stopped_by)

    def _record_round(self, why: str, model: ports.NewModel | None) -> None:
        attempts = self.state.open
        failures = {device: why for a in attempts for device, why in a.failures.items()}
        self.run.record_attempt(
            why,
            model,
            selected=sorted(d for a in attempts for d in a.selected()),
            reported=sorted(d for a in attempts for d in a.reported()),
            refused=dict(sorted(failures.items())),
            target_met=any(a.flushed for a in attempts),
            sum=self._opened_digest() if model is not None else b"",
        )

    def _opened_digest(self) -> bytes:
        """Of the sum that the new model was made of; see `Run.sum_digest`."""
        if self.cohorts is not None:
            return self.cohorts.sum_digest()
        return self.run.sum_digest(self.at_hand)

    # ------------------------------------------------ evaluation

    def score(self, _: object) -> None:
        attempt = self.at_hand
        self._record_unanswered()
        self._close(False)  # the edges keep the weights: the next round begins from them
        enough = len(attempt.reported()) >= self.plan.evaluation_min
        if attempt.session is not None and enough:
            self.post(_T.UNMASK)
            return
        self.sessions.end(attempt, "too few devices reported")
        self._judge()

    def _judge(self) -> None:
        self.run.score(self.at_hand)
        self._after_attempt()

    def _after_attempt(self) -> None:
        self.state.open.clear()
        self.state.attempt += 1
        self._after_evaluation()

    def _after_evaluation(self) -> None:
        self.state.evaluates = False
        self.post(_T.LAST_JUDGED if self.run.is_enough() else _T.JUDGED)

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
        if self.cut is not None:
            self.cut.cancel()
        elif state.phase is rounds_triggers.AGGREGATING:
            self.emit(ports.CancelProgram(state.ticket))
        elif state.open:
            attempt = self.at_hand
            if attempt.session is not None and attempt.session.ticket:
                self.emit(ports.CancelProgram(attempt.session.ticket))
            self.sessions.end(attempt, "cancelled")
            if state.phase is not rounds_triggers.UNMASKING:
                self._close(False)
        state.open.clear()
        self.hold(None)

    def take_weights(self, weights: Any) -> None:
        self.state.ordered = weights
        if self.state.phase in (rounds_triggers.WAITING, rounds_triggers.PAUSED):
            self._use_ordered()

    def _use_ordered(self) -> None:
        """Makes the ordered weights the model; the optimiser's memory is of other ones."""
        state = self.state
        assert state.ordered is not None
        if state.ordered != state.best_weights:
            state.worse = 0
        self.run.replace_model(state.ordered, None)
        state.ordered = None
        digest = state.weights.digest
        self.record("model_ordered", run=self.plan.run, round=state.round, model=digest)
