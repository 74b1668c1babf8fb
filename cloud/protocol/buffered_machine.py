"""A buffered run: its table, and the guards that read events. `buffered` has the theory."""

from __future__ import annotations

from typing import Any

from ...core.privacy.secagg import messages
from ...core.protocol import ports
from ...core.protocol.machine import IGNORE, Machine, Output, index, row
from ...core.wire.helper_pb2 import OTHER_HEAD, HelpSum
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from .buffered import Buffered
from .buffered_triggers import (
    AGGREGATING,
    CANCELLED,
    COLLECTING,
    DONE,
    EVALUATING,
    FAILED,
    NEW,
    ON,
    OUT,
    PAUSED,
    Trigger,
)
from .coordinator_state import RunState
from .helpers import TIMER
from .outlook import UNBOUNDED, Outlook
from .roster import Offer
from .run import EdgeRestarted, Run, prefix
from .run_context import RunContext
from .update_failures import why_stopped

#: Open waves of a run. An edge keeps a running sum for each.
WAVES_MAX = 16
#: A wave begins at once when this share of the devices at work is free and ready.
WAVE_SHARE = 8

_T = Trigger

TABLE = (
    row(NEW, _T.STARTED, Buffered.begin, COLLECTING, "with the first model"),
    row(OUT, _T.STARTED, Buffered.restart, None, "the state survived: ask the edges again"),
    row(PAUSED, _T.STARTED, IGNORE, None, "nothing is under way"),
    row(OUT, _T.REST_OVER, Buffered.look, None, "take the devices that are ready"),
    row(COLLECTING, _T.WAIT_OVER, Buffered.starve, COLLECTING, "a failed attempt"),
    row(OUT, _T.JUDGES_LATE, Buffered.skip, None, "training goes on without it"),
    row(COLLECTING, _T.OFFER, Buffered.open_wave, COLLECTING, "uniformly; from the newest model"),
    row((COLLECTING, EVALUATING), _T.JUDGES, Buffered.open_wave, None, "uniformly; they evaluate"),
    row(OUT, _T.PROGRESS, Buffered.note, None, "a sign of life, and a count"),
    row(OUT, _T.SUM, Buffered.add, None, "to the wave's sum"),
    row(OUT, _T.BAD_SUM, Buffered.refuse, None, "the edge's devices count as dropped"),
    row(ON, _T.SUM_AGAIN, Buffered.ack, None, "it is of no more use to the edge"),
    row(OUT, _T.EDGE_LOST, Buffered.lose, None, "the sums that it held are lost"),
    row(OUT, _T.SILENT, Buffered.ask_again, None, "task, request or answer was lost"),
    row(OUT, _T.WAVE_OVER, Buffered.end_wave, None, "devices that have not answered are late"),
    row(OUT, _T.SESSION, Buffered.attend, None, "keep it, and send what comes next"),
    row(ON, _T.SESSION_OVER, Buffered.turn_away, None, "the device has no session"),
    row(OUT, _T.STEP_OVER, Buffered.step, None, "keys, shares, consents"),
    row(OUT, _T.OPENED, Buffered.use_sum, None, "as if there had been no masks"),
    row(AGGREGATING, _T.UNMASKED, Buffered.unmask, None, "remove these masks from the batch"),
    row(AGGREGATING, _T.NOT_UNMASKED, Buffered.note_refusal, COLLECTING, "these updates are lost"),
    row(AGGREGATING, _T.HELP_AGAIN, Buffered.prove_again, None, "from the helper's head"),
    row(AGGREGATING, _T.HELP_DUE, Buffered.ask_helpers, None, "request or answer was lost"),
    row(AGGREGATING, _T.HELP_OVER, Buffered.end_help, COLLECTING, "these updates are lost"),
    row(COLLECTING, _T.AT_EDGES, Buffered.flush, COLLECTING, "request them where there are some"),
    row(COLLECTING, _T.FULL, Buffered.fill, AGGREGATING, "decode, weigh, update the model"),
    row((COLLECTING, EVALUATING), _T.AGAIN, Buffered.see, None, "check whether there is enough"),
    row(AGGREGATING, _T.UPDATED, Buffered.next_model, COLLECTING, "waves begin from it"),
    row(AGGREGATING, _T.LAST_UPDATED, Buffered.last_model, DONE, "all models are made"),
    row(AGGREGATING, _T.LAST_TO_JUDGE, Buffered.last_model, EVALUATING, "all models are made"),
    row(AGGREGATING, _T.UPDATE_STOPPED, Buffered.fall_short, COLLECTING, "these updates are lost"),
    row((COLLECTING, AGGREGATING), _T.GIVE_UP, Buffered.give_up, FAILED, "the run ends"),
    row(OUT, _T.LAST_JUDGED, Buffered.finish, DONE, "last model, or none gets better"),
    row(OUT, _T.PAUSE, Buffered.pause, None, "begin no wave"),
    row((COLLECTING, EVALUATING), _T.HOLD, Buffered.hold, PAUSED, "all waves are over"),
    row(PAUSED, _T.RESUME, Buffered.go_on, COLLECTING, "with the newest model"),
    row(PAUSED, _T.RESUME_JUDGING, Buffered.go_on, EVALUATING, "with the last model"),
    row(OUT, _T.RESUME, Buffered.go_on, None, "it had not paused yet"),
    row(ON, _T.CANCEL, Buffered.finish, CANCELLED, "drop what is under way; the model stays"),
    row(ON, _T.WEIGHTS, Buffered.take_weights, None, "what began from others is dropped"),
    row(ON, _T.STALE, IGNORE, None, "count it"),
)


class BufferedMachine(Machine[RunState]):
    """A run without rounds."""

    rows = index(TABLE)
    #: A FetchBlob does not name the wave that it is for: it is no sign of life.
    heeds_fetches = False

    def __init__(self, state: RunState, context: RunContext) -> None:
        out = Output(prefix(state.run))
        self.run = Run(state, out, context)
        self.buffered = Buffered(self.run)
        super().__init__(state, out, self.buffered)
        self.node = ports.CLOUD

    # ------------------------------------------------ what the coordinator asks

    def wanted(self, there: int = UNBOUNDED) -> int:
        """there: without meaning here: a wave takes what there is."""
        state = self.state
        if state.pausing or state.phase not in (COLLECTING, EVALUATING):
            return 0
        if state.evaluates:
            return self.run.plan.evaluation_selected
        if (
            state.phase is EVALUATING
            or len(state.open) >= WAVES_MAX
            or self.buffered.helpers.missing_helper()
        ):
            return 0
        return self._places()

    @property
    def outlook(self) -> Outlook | None:
        """What it needs, while no device works for it."""
        state, plan = self.state, self.run.plan
        if state.open or not self.wanted():
            return None
        if state.evaluates:
            return Outlook(plan.evaluation_selected, plan.evaluation_min, True)
        least = 1 if self.run.helped else max(1, plan.cohort_min)
        return Outlook(self._places(), least, next_try_ns=state.wait_ends_ns)

    def takes(self, offer: Offer) -> bool:
        return self._count(offer) > 0

    def owes(self, edge: int) -> bool:
        return any(a.owes(edge) for a in self.state.open)

    def _places(self) -> int:
        """Devices that can begin now."""
        working = sum(a.working() for a in self.state.open if not a.evaluates)
        return max(0, self.run.plan.concurrency - working)

    def _count(self, offer: Offer) -> int:
        """How many of the offered devices to take."""
        state, plan = self.state, self.run.plan
        if state.evaluates:
            count = min(plan.evaluation_selected, offer.devices)
            if count < plan.evaluation_selected:
                count = min(count, max(offer.part, plan.evaluation_min))
            least = plan.evaluation_min if state.rested else plan.evaluation_selected
        else:
            count = min(self._places(), offer.devices, offer.part)
            share = -(-plan.concurrency // WAVE_SHARE)
            least = 1 if state.rested else share
            if not self.run.helped:
                least = max(least, plan.cohort_min)
        return count if count >= least and not (state.cooling and not state.rested) else 0

    # ------------------------------------------------ reading events

    def read(self, event: Any) -> tuple[Trigger, Any]:
        match event:
            case ports.Received(sender, message):
                if type(message) in messages.UP:
                    return self._read_session(sender.number, message)
                return self._read_message(message)
            case ports.TimerFired(name):
                return self._read_timer(name)
            case ports.ProgramFinished(ticket, outcome):
                for wave in self.state.open:
                    if wave.session is not None and wave.session.ticket == ticket:
                        return _T.OPENED, (wave, outcome)
                if self.state.phase is not AGGREGATING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case Offer():
                judges = self.state.evaluates
                return (_T.JUDGES if judges else _T.OFFER), self._count(event)
            case EdgeRestarted(edge):
                return _T.EDGE_LOST, edge
            case RunOrder():
                return self._read_order(event)
            case ports.Started():
                return _T.STARTED, None
        raise AssertionError(f"no event of a run: {event}")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        if type(message) is HelpSum:
            return self._read_help(message)
        wave = self.buffered.waves.at(message.round, message.attempt)
        if type(message) is EdgeProgress:
            if wave is None or not wave.owes(message.edge):
                return _T.STALE, message
            ahead = message.part - wave.shares[message.edge].part
            return (_T.PROGRESS if ahead in (0, 1) else _T.STALE), message
        assert type(message) is EdgeSum
        share = None if wave is None else wave.shares.get(message.edge)
        if wave is None or share is None or share.over or message.part < share.part:
            return _T.SUM_AGAIN, message
        if message.part > share.part:
            # It overtook the part before it: it is not acknowledged, so it comes again.
            return _T.STALE, message
        good = self.run.sums.is_good(wave, message) and self.buffered.helpers.has_seeds(
            wave, message
        )
        return (_T.SUM if good else _T.BAD_SUM), message

    def _read_help(self, message: HelpSum) -> tuple[Trigger, Any]:
        if self.state.phase is not AGGREGATING or self.buffered.helpers.batch_of(message) is None:
            return _T.STALE, message
        if message.refusal == OTHER_HEAD:
            known = self.state.help_logs.get(message.edge, 0)
            return (_T.STALE if message.log_size == known else _T.HELP_AGAIN), message
        why = self.buffered.helpers.refusal(message)
        return (_T.NOT_UNMASKED, (message, why)) if why else (_T.UNMASKED, message)

    def _read_session(self, edge: int, message: Any) -> tuple[Trigger, Any]:
        wave = self.buffered.waves.at(message.round, message.attempt)
        if wave is None or wave.session is None or self.state.phase not in OUT:
            return _T.SESSION_OVER, (edge, message)
        return _T.SESSION, (wave, edge, message)

    def _read_timer(self, name: str) -> tuple[Trigger, Any]:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state, (kind, *numbers) = self.state, name.split("/")
        if kind in ("wave", "repeat", "session") and len(numbers) == 2:
            wave = self.buffered.waves.at(int(numbers[0]), int(numbers[1]))
            if wave is None:
                return _T.STALE, None
            if kind == "repeat":
                return _T.SILENT, wave
            if kind == "session":
                return (_T.STALE if wave.session is None else _T.STEP_OVER), wave
            return (_T.WAVE_OVER if self.now >= wave.ends_ns else _T.STALE), wave
        if name == TIMER and state.phase is AGGREGATING and state.opening:
            if self.now < state.help_ends_ns:
                return _T.HELP_DUE, None
            return _T.HELP_OVER, f"edge {self.buffered.helpers.owing()[0]} does not unmask"
        out = state.phase in OUT and not state.pausing
        if name == "rest" and out and self.now >= state.rest_ends_ns:
            return _T.REST_OVER, None
        if name == "wait" and state.phase is COLLECTING and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER, None
        if name == "judges" and state.evaluates and state.phase in OUT:
            return _T.JUDGES_LATE, "too few devices are ready"
        return _T.STALE, None

    def _read_outcome(
        self, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped
    ) -> tuple[Trigger, Any]:
        if not isinstance(outcome, ports.NewModel):
            return _T.UPDATE_STOPPED, why_stopped(outcome)
        if self.state.round < self.run.plan.rounds:
            return _T.UPDATED, outcome
        return (_T.LAST_TO_JUDGE if self.run.plan.evaluation.every else _T.LAST_UPDATED), outcome

    def _read_order(self, order: RunOrder) -> tuple[Trigger, Any]:
        state = self.state
        if order.HasField("weights"):
            return _T.WEIGHTS, order.weights
        if order.HasField("cancel"):
            return _T.CANCEL, "cancelled"
        paused = state.pausing or state.phase is PAUSED
        if order.HasField("pause"):
            return (_T.STALE if paused else _T.PAUSE), None
        if not paused:
            return _T.STALE, None
        last = state.phase is PAUSED and state.round > self.run.plan.rounds
        return (_T.RESUME_JUDGING if last else _T.RESUME), None
