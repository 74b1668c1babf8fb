"""A synchronous run: its table, and the guards that read events. `rounds` has the theory."""

from __future__ import annotations

from typing import Any

from ...core.privacy.secagg import messages
from ...core.protocol import ports
from ...core.protocol.machine import IGNORE, Machine, Output, index, row
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from .coordinator_state import Attempt, RunState
from .outlook import UNBOUNDED, Outlook
from .roster import Offer
from .rounds import Rounds
from .rounds_triggers import (
    AGGREGATING,
    BUSY,
    CANCELLED,
    COLLECTING,
    DONE,
    EVALUATING,
    FAILED,
    FALLIBLE,
    IN_SESSION,
    JUDGING,
    NEW,
    ON,
    OUT,
    PAUSED,
    UNMASKING,
    WAITING,
    Trigger,
)
from .run import EdgeRestarted, Fetched, Run, prefix
from .run_context import RunContext
from .secure_rounds import timer_of
from .update_failures import why_stopped

_T = Trigger

TABLE = (
    row((NEW, WAITING), _T.STARTED, Rounds.wait, WAITING, "for devices"),
    row(OUT, _T.STARTED, Rounds.resume, None, "the state survived: ask the edges again"),
    row(AGGREGATING, _T.STARTED, Rounds.aggregate, AGGREGATING, "the sum survived: update again"),
    row(PAUSED, _T.STARTED, IGNORE, None, "nothing is under way"),
    row(WAITING, _T.REST_OVER, Rounds.look, WAITING, "the last cohort had time to come back"),
    row(WAITING, _T.WAIT_OVER, Rounds.settle, WAITING, "with fewer, or not at all"),
    row(WAITING, _T.ENOUGH, Rounds.select, COLLECTING, "uniformly; task them through their edges"),
    row(WAITING, _T.ENOUGH_JUDGES, Rounds.select, EVALUATING, "uniformly; they evaluate"),
    row(WAITING, _T.OTHERS_FIRST, Rounds.wait_on, WAITING, "no attempt is lost"),
    row(WAITING, _T.TOO_FEW, Rounds.fall_short, WAITING, "decide whether to try again"),
    row(WAITING, _T.NO_JUDGES, Rounds.skip, WAITING, "training goes on without it"),
    row(OUT, _T.FETCHED, Rounds.mark_alive, None, "a sign of life"),
    row(OUT, _T.PROGRESS, Rounds.note, None, "a sign of life, and a count"),
    row(OUT, _T.TARGET_MET, Rounds.flush, None, "ask for the sums now"),
    row(OUT, _T.SUM, Rounds.add, None, "to the running sum"),
    row(OUT, _T.BAD_SUM, Rounds.refuse, None, "the edge's devices count as dropped"),
    row(ON, _T.SUM_AGAIN, Rounds.ack, None, "it is of no more use to the edge"),
    row(OUT, _T.EDGE_LOST, Rounds.lose, None, "the sums that it held are lost"),
    row(OUT, _T.SILENT, Rounds.ask_again, None, "task, request or answer was lost"),
    row(COLLECTING, _T.ALL_IN, Rounds.judge, COLLECTING, "count the updates"),
    row(COLLECTING, _T.TIME_OVER, Rounds.judge, COLLECTING, "count the updates"),
    row(UNMASKING, _T.STARTED, Rounds.resume_unmasking, UNMASKING, "the shares survived"),
    row(IN_SESSION, _T.SESSION, Rounds.attend, None, "keep it, and send what comes next"),
    row(ON, _T.SESSION_OVER, Rounds.turn_away, None, "the device has no session"),
    row(IN_SESSION, _T.STEP_OVER, Rounds.step, None, "keys, shares, consents"),
    row(OUT, _T.UNMASK, Rounds.unmask, UNMASKING, "decide which updates are in the sum"),
    row(UNMASKING, _T.SHARES_IN, Rounds.open_sum, UNMASKING, "a program removes the masks"),
    row((COLLECTING, UNMASKING), _T.OPENED, Rounds.use_sum, None, "as if there had been no masks"),
    row(IN_SESSION, _T.SESSION_FAILED, Rounds.fail_session, None, "the sum cannot be read"),
    row((COLLECTING, UNMASKING), _T.CLOSE, Rounds.aggregate, AGGREGATING, "update the model"),
    row(FALLIBLE, _T.SHORT, Rounds.try_again, WAITING, "a further attempt"),
    row(FALLIBLE, _T.GIVE_UP, Rounds.give_up, FAILED, "the run ends"),
    row(AGGREGATING, _T.UPDATED, Rounds.next_round, WAITING, "with the new weights"),
    row(AGGREGATING, _T.LAST_UPDATED, Rounds.end, DONE, "all models are made"),
    row(AGGREGATING, _T.UPDATE_STOPPED, Rounds.fall_short, AGGREGATING, "the program failed"),
    row(EVALUATING, _T.ALL_IN, Rounds.score, EVALUATING, "decode the metrics"),
    row(EVALUATING, _T.TIME_OVER, Rounds.score, EVALUATING, "of the devices that reported"),
    row(JUDGING, _T.JUDGED, Rounds.train_on, WAITING, "the next round"),
    row(JUDGING, _T.LAST_JUDGED, Rounds.finish, DONE, "last model, or none gets better"),
    row(WAITING, _T.PAUSE, Rounds.pause, PAUSED, "select no device"),
    row(BUSY, _T.PAUSE, Rounds.pause_after, None, "what is under way ends first"),
    row(WAITING, _T.HOLD, Rounds.hold, PAUSED, "what was under way has ended"),
    row(PAUSED, _T.RESUME, Rounds.go_on, WAITING, "where it was"),
    row(BUSY, _T.RESUME, Rounds.go_on_after, None, "it had not paused yet"),
    row(ON, _T.CANCEL, Rounds.cancel, CANCELLED, "drop what is under way; the model stays"),
    row(ON, _T.WEIGHTS, Rounds.take_weights, None, "from the next round on"),
    row(ON, _T.STALE, IGNORE, None, "count it"),
)


class RoundsMachine(Machine[RunState]):
    """A run in rounds, each of one cohort or of several."""

    rows = index(TABLE)

    def __init__(self, state: RunState, context: RunContext) -> None:
        out = Output(prefix(state.run))
        self.run = Run(state, out, context)
        self.rounds = Rounds(self.run)
        super().__init__(state, out, self.rounds)
        self.node = ports.CLOUD

    @property
    def heeds_fetches(self) -> bool:
        """Whether a FetchBlob is a sign of life. It does not name the attempt that it is for."""
        return self.rounds.cohorts is None

    # ------------------------------------------------ what the coordinator asks

    def wanted(self, there: int = UNBOUNDED) -> int:
        state = self.state
        if state.phase is not WAITING or not (state.rested or state.settling):
            return 0
        return self._enough(there)

    def takes(self, offer: Offer) -> bool:
        return self.state.settling or offer.devices >= self._enough(offer.there)

    @property
    def outlook(self) -> Outlook | None:
        """What it needs, while it waits for devices."""
        state, plan = self.state, self.run.plan
        if state.phase is not WAITING:
            return None
        next_ns = state.wait_ends_ns if state.rested else state.rest_ends_ns
        wanted = max(self._selects(), plan.round.pool_min or 0)
        return Outlook(wanted, self._least(), state.evaluates, next_try_ns=next_ns)

    def _selects(self) -> int:
        plan = self.run.plan
        return plan.evaluation_selected if self.state.evaluates else plan.selected

    def _least(self) -> int:
        plan = self.run.plan
        return plan.evaluation_min if self.state.evaluates else plan.reports_min

    def _enough(self, there: int) -> int:
        """So many ready devices begin a round at once; `there` can be ready, now or soon."""
        worth_waiting = max(self._least(), min(self._selects(), there))
        return max(worth_waiting, self.run.plan.round.pool_min or 0)

    def owes(self, edge: int) -> bool:
        return self.state.phase in OUT and any(a.owes(edge) for a in self.state.open)

    # ------------------------------------------------ reading events

    def read(self, event: Any) -> tuple[Trigger, Any]:
        match event:
            case ports.Received(sender, message):
                if type(message) in messages.UP:
                    open_still = self._has_session(message)
                    trigger = _T.SESSION if open_still else _T.SESSION_OVER
                    return trigger, (sender.number, message)
                return self._read_message(message)
            case ports.TimerFired(name):
                return self._read_timer(name)
            case ports.ProgramFinished(ticket, outcome):
                if self.rounds.cut is not None:
                    cohort = next((c for c in self._sessions() if c.book.ticket == ticket), None)
                    return (_T.STALE if cohort is None else _T.OPENED), (cohort, outcome)
                if self.state.phase is UNMASKING and ticket == self.rounds.at_hand.book.ticket:
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
            case ports.Started():
                return _T.STARTED, None
        raise AssertionError(f"no event of a run: {event}")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        attempt = self._open(message) if self.state.phase in OUT else None
        is_owed = attempt is not None and attempt.owes(message.edge)
        if type(message) is EdgeProgress:
            return (_T.PROGRESS if is_owed and not message.part else _T.STALE), message
        assert type(message) is EdgeSum
        if attempt is None or not is_owed:
            return _T.SUM_AGAIN, message
        whole = not message.part and not message.more
        good = whole and self.run.sums.is_good(attempt, message)
        return (_T.SUM if good else _T.BAD_SUM), message

    def _read_timer(self, name: str) -> tuple[Trigger, Any]:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if state.phase is WAITING and name == "rest" and self.now >= state.rest_ends_ns:
            return _T.REST_OVER, None
        if state.phase is WAITING and name == "wait" and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER, None
        if state.phase in OUT and name == "round" and self.now >= self.rounds.at_hand.ends_ns:
            return _T.TIME_OVER, None
        if state.phase in OUT and name == "repeat":
            return _T.SILENT, None
        if name.startswith("session/") and state.phase in IN_SESSION:
            attempt = next((a for a in self._sessions() if name == timer_of(a)), None)
            return (_T.STALE if attempt is None else _T.STEP_OVER), attempt
        return _T.STALE, None

    def _read_outcome(
        self, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped
    ) -> tuple[Trigger, Any]:
        if not isinstance(outcome, ports.NewModel):
            return _T.UPDATE_STOPPED, why_stopped(outcome)
        last = self.state.round >= self.run.plan.rounds and not self.run.plan.evaluation.every
        return (_T.LAST_UPDATED if last else _T.UPDATED), outcome

    def _read_offer(self, offer: Offer) -> tuple[Trigger, Any]:
        """How many devices to take, if any."""
        state, least = self.state, self._least()
        count = min(self._selects(), offer.devices)
        if offer.devices < self._enough(offer.there):
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

    def _open(self, message: Any) -> Attempt | None:
        """The attempt that a message names: the one at hand, or a cohort of the round."""
        at = (message.round, message.attempt)
        return next((a for a in self.state.open if (a.round, a.attempt) == at), None)

    def _sessions(self) -> list[Attempt]:
        """The attempts that are not over."""
        return [attempt for attempt in self.state.open if attempt.session is not None]

    def _has_session(self, message: Any) -> bool:
        """Whether a message belongs to an open session."""
        attempt = self._open(message) if self.state.phase in IN_SESSION else None
        return attempt is not None and attempt.session is not None
