"""A synchronous run. Everything that decides what such a run does next lives in this file; it sees
sums of updates and never one device's, and it does not know which algorithm makes the next model of
a mean.

A round waits until enough devices are ready, selects some uniformly, tasks them through their
edges, adds the edges' sums as they come, and closes when it has enough updates, when all edges have
reported or when its time is over. With too few updates it is tried again; after too many attempts
the run gives up and says why. The same seed, plan and events give the same effects.

Where the plan says so, devices judge a new model before the next round begins. An evaluation is an
attempt of the round that it precedes (the task names the weights that the round begins from): what
a device takes has ever higher (round, attempt). Too few reports skip it; it never fails the run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ..core.machine import IGNORE, index, row
from ..core.ports import (
    CancelProgram,
    NewModel,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Started,
    TimerFired,
)
from ..core.privacy import ring
from ..core.wire.operator_pb2 import RunOrder
from ..core.wire.round_pb2 import EdgeProgress, EdgeSum
from .roster import Offer
from .run import EdgeRestarted, Fetched, RunMachine
from .state import Attempt, Phase


class Trigger(StrEnum):
    STARTED = "started"
    REST_OVER = "rest is over"
    WAIT_OVER = "waited long enough"
    ENOUGH = "enough devices are ready"
    ENOUGH_JUDGES = "enough devices are ready to evaluate"
    OTHERS_FIRST = "too few are ready, for other runs have them"
    TOO_FEW = "too few are ready"
    NO_JUDGES = "too few are ready to evaluate"
    FETCHED = "FetchBlob"
    PROGRESS = "EdgeProgress"
    TARGET_MET = "enough updates are with the edges"
    SUM = "first EdgeSum of an edge"
    BAD_SUM = "EdgeSum that does not fit"
    SUM_AGAIN = "EdgeSum again, or late"
    EDGE_LOST = "edge has started anew"
    SILENT = "edges still silent"
    ALL_IN = "all edges have reported"
    TIME_OVER = "round's time is over"
    CLOSE = "enough reports"
    SHORT = "too few reports"
    GIVE_UP = "too few reports, too many times"
    UPDATED = "new model"
    LAST_UPDATED = "new model of the last round"
    UPDATE_STOPPED = "no new model"
    JUDGED = "evaluation is over"
    LAST_JUDGED = "evaluation is over, and it was the last"
    PAUSE = "pause"
    HOLD = "pause, which was ordered before"
    RESUME = "resume"
    CANCEL = "cancel"
    WEIGHTS = "other weights"
    STALE = "late, repeated or of no use"


NEW, WAITING, COLLECTING, AGGREGATING, EVALUATING, PAUSED, DONE, CANCELLED, FAILED = Phase
_T = Trigger
_OUT = (COLLECTING, EVALUATING)
_BUSY = (COLLECTING, AGGREGATING, EVALUATING)
_FALLIBLE = (WAITING, COLLECTING, AGGREGATING)
_ON = (WAITING, *_BUSY, PAUSED)

TABLE = (
    row((NEW, WAITING), _T.STARTED, "wait", WAITING, "for devices"),
    row(_OUT, _T.STARTED, "resume", None, "the state survived: ask the edges again"),
    row(AGGREGATING, _T.STARTED, "aggregate", AGGREGATING, "the sum survived: update again"),
    row(PAUSED, _T.STARTED, IGNORE, None, "nothing is under way"),
    row(WAITING, _T.REST_OVER, "look", WAITING, "the last cohort had time to come back"),
    row(WAITING, _T.WAIT_OVER, "settle", WAITING, "with fewer, or not at all"),
    row(WAITING, _T.ENOUGH, "select", COLLECTING, "uniformly; task them through their edges"),
    row(WAITING, _T.ENOUGH_JUDGES, "select", EVALUATING, "uniformly; the newest model is judged"),
    row(WAITING, _T.OTHERS_FIRST, "wait_on", WAITING, "they will come back: no attempt is lost"),
    row(WAITING, _T.TOO_FEW, "fall_short", WAITING, "is it worth another attempt?"),
    row(WAITING, _T.NO_JUDGES, "skip", WAITING, "training goes on without it"),
    row(_OUT, _T.FETCHED, "hear", None, "a sign of life"),
    row(_OUT, _T.PROGRESS, "note", None, "a sign of life, and a count"),
    row(_OUT, _T.TARGET_MET, "flush", None, "ask for the sums now"),
    row(_OUT, _T.SUM, "add", None, "to the running sum"),
    row(_OUT, _T.BAD_SUM, "refuse", None, "the edge's devices count as dropped"),
    row(_ON, _T.SUM_AGAIN, "ack", None, "it is of no more use to the edge"),
    row(_OUT, _T.EDGE_LOST, "lose", None, "what it had is gone"),
    row(_OUT, _T.SILENT, "ask_again", None, "task, request or answer was lost"),
    row(COLLECTING, _T.ALL_IN, "judge", COLLECTING, "is it enough?"),
    row(COLLECTING, _T.TIME_OVER, "judge", COLLECTING, "is it enough?"),
    row(COLLECTING, _T.CLOSE, "aggregate", AGGREGATING, "unmask, decode, update the model"),
    row(_FALLIBLE, _T.SHORT, "try_again", WAITING, "a further attempt"),
    row(_FALLIBLE, _T.GIVE_UP, "give_up", FAILED, "the run ends"),
    row(AGGREGATING, _T.UPDATED, "next_round", WAITING, "with the new weights"),
    row(AGGREGATING, _T.LAST_UPDATED, "end", DONE, "all models are made"),
    row(AGGREGATING, _T.UPDATE_STOPPED, "fall_short", AGGREGATING, "the program failed"),
    row(EVALUATING, _T.ALL_IN, "score", EVALUATING, "decode the metrics"),
    row(EVALUATING, _T.TIME_OVER, "score", EVALUATING, "of those who reported"),
    row((WAITING, EVALUATING), _T.JUDGED, "train_on", WAITING, "the next round"),
    row((WAITING, EVALUATING), _T.LAST_JUDGED, "finish", DONE, "all are made, or none gets better"),
    row(WAITING, _T.PAUSE, "pause", PAUSED, "select nobody"),
    row(_BUSY, _T.PAUSE, "pause_after", None, "what is under way ends first"),
    row(WAITING, _T.HOLD, "hold", PAUSED, "what was under way has ended"),
    row(PAUSED, _T.RESUME, "go_on", WAITING, "where it was"),
    row(_BUSY, _T.RESUME, "go_on_after", None, "it had not paused yet"),
    row(_ON, _T.CANCEL, "cancel", CANCELLED, "drop what is under way; the model stays"),
    row(_ON, _T.WEIGHTS, "take_weights", None, "from the next round on"),
    row(_ON, _T.STALE, IGNORE, None, "count it"),
)


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
        return max(plan.evaluate_selected, plan.pool_min) if self.state.evaluates else plan.enough

    def owes(self, edge: int) -> bool:
        return self.state.phase in _OUT and self._at_hand().owes(edge)

    # ------------------------------------------------ reading events

    def read(self, event: Any) -> tuple[Trigger, Any]:
        match event:
            case Received(_, message):
                return self._read_message(message)
            case TimerFired(name):
                return self._read_timer(name), None
            case ProgramFinished(ticket, outcome):
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
        fits = whole and attempt.fits(message, self._ring(attempt))
        return (_T.SUM if fits else _T.BAD_SUM), message

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if state.phase is WAITING and name == "rest" and self.now >= state.rest_ends_ns:
            return _T.REST_OVER
        if state.phase is WAITING and name == "wait" and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER
        if state.phase in _OUT and name == "round" and self.now >= self._at_hand().ends_ns:
            return _T.TIME_OVER
        if state.phase in _OUT and name == "repeat":
            return _T.SILENT
        return _T.STALE

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        if not isinstance(outcome, NewModel):
            return _T.UPDATE_STOPPED, "the server update failed"
        last = self.state.round >= self.plan.rounds and not self.plan.evaluate_every
        return (_T.LAST_UPDATED if last else _T.UPDATED), outcome

    def _read_offer(self, offer: Offer) -> tuple[Trigger, Any]:
        """How many devices to take, if any."""
        state, plan = self.state, self.plan
        wanted = plan.evaluate_selected if state.evaluates else plan.selected
        least = plan.evaluate_min if state.evaluates else plan.reports_min
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
        if self.state.phase not in _OUT:
            return False
        attempt = self._at_hand()
        return bool(message.round == attempt.round and message.attempt == attempt.attempt)

    # ------------------------------------------------ waiting

    def wait(self, _: object) -> None:
        state, plan = self.state, self.plan
        if state.ordered is not None:
            self._use_ordered()
        if state.pausing:
            self.post(_T.HOLD)
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
        share = self._at_hand().shares[message.edge]
        share.alive = True
        share.counted = max(message.counted, share.counted)
        self._post_if_met()

    def _post_if_met(self) -> None:
        attempt = self._at_hand()
        target = self.plan.evaluate_cohort if attempt.evaluates else self.plan.cohort
        if not attempt.flushed and attempt.counted() + len(attempt.unused) >= target:
            self.post(_T.TARGET_MET)

    def flush(self, _: object) -> None:
        attempt = self._at_hand()
        attempt.flushed = True
        for edge, _share in attempt.owing():
            self._send_flush(attempt, edge, go_on=False)

    def add(self, message: EdgeSum) -> None:
        self._at_hand().add(message)
        self.ack(message)
        self._after_report(message.edge)

    def refuse(self, message: EdgeSum) -> None:
        self.record("refused_sum", edge=message.edge)
        self._at_hand().lose(message.edge)
        self.ack(message)
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
        if len(self._at_hand().reported()) >= self.plan.reports_min:
            self._close(True)
            self.post(_T.CLOSE)
        else:
            self._close(False)
            self.fall_short("too few devices reported")

    def _close(self, succeeded: bool) -> None:
        """Ends the collecting: no more timers, and the edges may forget."""
        self.cancel_timer("round")
        self.cancel_timer("repeat")
        self._release(self._at_hand())
        self._send_closed(self._at_hand(), succeeded)

    def aggregate(self, _: object) -> None:
        state = self.state
        try:
            mean, state.weight = ring.decode(self._unmasked(self._at_hand()), self.plan.ring)
        except ring.RingError as fault:
            self.fall_short(fault.message)
            return
        self._run_program("server_update", (mean, state.weight))

    def fall_short(self, why: str) -> None:
        state = self.state
        self._record_round(why, None)
        state.stopped_by = why
        state.failed += 1
        self.post(_T.SHORT if state.failed < self.plan.attempts_max else _T.GIVE_UP)

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
        attempt = self.state.open[0] if self.state.open else None
        self._record_attempt(
            why,
            model,
            selected=attempt.selected() if attempt else [],
            reported=attempt.reported() if attempt else [],
            refused=dict(sorted(attempt.failures.items())) if attempt else {},
            target_met=attempt is not None and attempt.flushed,
        )

    # ------------------------------------------------ evaluation

    def score(self, _: object) -> None:
        attempt = self._at_hand()
        self._close(False)  # the edges keep the weights: the next round begins from them
        self._score(attempt)
        self.state.open.clear()
        self.state.attempt += 1
        self._after_evaluation()

    def _after_evaluation(self) -> None:
        self.state.evaluates = False
        self.post(_T.LAST_JUDGED if self._is_enough() else _T.JUDGED)

    def train_on(self, _: object) -> None:
        self.wait(None)

    def finish(self, _: object) -> None:
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
        self.state.pausing = False
        self.wait(None)

    def go_on_after(self, _: object) -> None:
        self.state.pausing = False

    def cancel(self, _: object) -> None:
        state = self.state
        state.stopped_by = "cancelled"
        if state.phase is AGGREGATING:
            self.emit(CancelProgram(state.ticket))
        elif state.open:
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
        self._replace_model(state.ordered, None)
        state.ordered = None
        state.worse = 0
        digest = state.weights.digest
        self.record("model_ordered", run=self.plan.run, round=state.round, model=digest)
