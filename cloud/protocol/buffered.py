"""A buffered-asynchronous run: FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba:
"Federated learning with buffered asynchronous aggregation", AISTATS 2022, Algorithm 1), over sums
instead of single updates. Everything that decides what such a run does next lives in this file.

In the paper's letters: the server is at model w_t; M devices (`concurrency`) are at work, each from
the model that was the newest when it began; an update Delta_i of a device that began at w_(t - tau)
has staleness tau and counts s(tau) = 1 / sqrt(1 + tau). K updates (`buffer`) make the next model:

    delta    <-  1/K * sum over i of s(tau_i) * Delta_i
    w_(t+1)  <-  server_update(w_t, delta)

Here device i weighs w_i, the ring's last coordinate, and 1/K becomes 1 / sum of w_i: with equal
weights it is the paper's. All devices that began at one model have one tau, so their sum in the
ring is enough: with mean m_v and sum of weights W_v over those that began at model v,

    delta  =  sum over v of s(t - v) * W_v * m_v  /  sum over v of W_v

and the cloud sees no single update. Updates older than `staleness_max` are dropped and counted.

- A **wave** is an attempt: devices that begin together, from the newest model. Its round is t + 1,
  its attempt counts the waves of that model, its key is its own. A wave begins as soon as an eighth
  of M is free and ready, or some are and the run has rested.
- The edges say how many updates they have (EdgeProgress). When these and those that are here make
  K, the edges that have some are asked for a part of their sums and go on with the others
  (Flush.go_on). As soon as K updates are here the next model is made; what comes meanwhile counts
  for the one after it.
- A wave is over when all its devices have answered or its time is over. What came of it before that
  stays. A model's weights are kept while a wave from it is open.
- With masks a wave is taken whole, and counts once they are out of its sum; `waves` has more.
  Where helpers hold what unmasks, nothing waits for anybody: see `helpers`.
- No update for as long as a round and a wait take together is a failed attempt, and so are updates
  that no model can be made of; after too many of either in a row the run gives up.
- An evaluation is a wave beside the others, from the newest model; there is one at a time. After
  the last model the others end, and it alone is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...core.privacy.mechanisms import ring
from ...core.privacy.secagg import messages
from ...core.protocol.machine import index
from ...core.protocol.ports import (
    CancelProgram,
    NewModel,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Started,
    TimerFired,
)
from ...core.wire.helper_pb2 import OTHER_HEAD, HelpSum
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from ..service.refusal_texts import explained
from ..service.update_failures import why_stopped
from . import staleness
from .buffered_table import (
    AGGREGATING,
    COLLECTING,
    EVALUATING,
    OUT,
    PAUSED,
    TABLE,
    Trigger,
)
from .coordinator_state import Attempt
from .helpers import TIMER, HelpedMachine
from .roster import Offer
from .run import EdgeRestarted
from .waves import can_flush, heard

#: Open waves of a run. An edge keeps a running sum for each.
WAVES_MAX = 16
#: A wave begins at once when this share of the devices at work is free and ready.
WAVE_SHARE = 8


_T = Trigger


class BufferedMachine(HelpedMachine):
    """A run without rounds; `RunState.round` is t + 1, the model that is being made."""

    rows = index(TABLE)

    # ------------------------------------------------ what the coordinator asks

    def wanted(self) -> int:
        state = self.state
        if state.pausing or state.phase not in (COLLECTING, EVALUATING):
            return 0
        if state.evaluates:
            return self.plan.evaluation_selected
        if state.phase is EVALUATING or len(state.open) >= WAVES_MAX or self.missing_helper():
            return 0
        return self._places()

    def takes(self, offer: Offer) -> bool:
        return self._count(offer) > 0

    def owes(self, edge: int) -> bool:
        return any(a.owes(edge) for a in self.state.open)

    def _places(self) -> int:
        """Devices that can begin now."""
        working = sum(a.working() for a in self.state.open if not a.evaluates)
        return max(0, self.plan.concurrency - working)

    def _count(self, offer: Offer) -> int:
        """How many of the offered devices to take."""
        state, plan = self.state, self.plan
        if state.evaluates:
            count = min(plan.evaluation_selected, offer.devices)
            if count < plan.evaluation_selected:
                count = min(count, max(offer.part, plan.evaluation_min))
            least = plan.evaluation_min if state.rested else plan.evaluation_selected
        else:
            count = min(self._places(), offer.devices, offer.part)
            share = -(-plan.concurrency // WAVE_SHARE)
            least = 1 if state.rested else share
            if not self.helped:
                least = max(least, plan.cohort_min)
        return count if count >= least and not (state.cooling and not state.rested) else 0

    # ------------------------------------------------ reading events

    def read(self, event: Any) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                if type(message) in messages.UP:
                    return self._read_session(sender.number, message)
                return self._read_message(message)
            case TimerFired(name):
                return self._read_timer(name)
            case ProgramFinished(ticket, outcome):
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
            case Started():
                return _T.STARTED, None
        raise AssertionError(f"no event of a run: {event}")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        if type(message) is HelpSum:
            return self._read_help(message)
        wave = self._wave(message.round, message.attempt)
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
        good = self.sums.is_good(wave, message) and self._has_seeds(wave, message)
        return (_T.SUM if good else _T.BAD_SUM), message

    def _read_help(self, message: HelpSum) -> tuple[Trigger, Any]:
        if self.state.phase is not AGGREGATING or self._batch_of(message) is None:
            return _T.STALE, message
        if message.refusal == OTHER_HEAD:
            known = self.state.help_logs.get(message.edge, 0)
            return (_T.STALE if message.log_size == known else _T.HELP_AGAIN), message
        why = self.refusal(message)
        return (_T.NOT_UNMASKED, (message, why)) if why else (_T.UNMASKED, message)

    def _read_session(self, edge: int, message: Any) -> tuple[Trigger, Any]:
        wave = self._wave(message.round, message.attempt)
        if wave is None or wave.session is None or self.state.phase not in OUT:
            return _T.SESSION_OVER, (edge, message)
        return _T.SESSION, (wave, edge, message)

    def _read_timer(self, name: str) -> tuple[Trigger, Any]:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state, (kind, *numbers) = self.state, name.split("/")
        if kind in ("wave", "repeat", "session") and len(numbers) == 2:
            wave = self._wave(int(numbers[0]), int(numbers[1]))
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
            return _T.HELP_OVER, f"edge {self._owing_helpers()[0]} does not unmask"
        out = state.phase in OUT and not state.pausing
        if name == "rest" and out and self.now >= state.rest_ends_ns:
            return _T.REST_OVER, None
        if name == "wait" and state.phase is COLLECTING and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER, None
        if name == "judges" and state.evaluates and state.phase in OUT:
            return _T.JUDGES_LATE, "too few devices are ready"
        return _T.STALE, None

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        if not isinstance(outcome, NewModel):
            return _T.UPDATE_STOPPED, why_stopped(outcome)
        if self.state.round < self.plan.rounds:
            return _T.UPDATED, outcome
        return (_T.LAST_TO_JUDGE if self.plan.evaluation.every else _T.LAST_UPDATED), outcome

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
        last = state.phase is PAUSED and state.round > self.plan.rounds
        return (_T.RESUME_JUDGING if last else _T.RESUME), None

    # ------------------------------------------------ what follows

    def _look(self) -> None:
        """Ends the waves that are over; then sees whether there is enough for a model."""
        state, plan = self.state, self.plan
        for wave in list(state.open):
            if wave.session is not None and not any(wave.owing()):
                self._unmask(wave)
            if wave.session is None and not any(wave.owing()):
                self._close(wave)
                if wave.evaluates:
                    self._score(wave)
                    if self._is_enough():
                        self.post(_T.LAST_JUDGED)
                        return
            elif not wave.flushed and heard(wave) >= self._target(wave):
                self._flush_whole(wave)
        if state.phase is COLLECTING:
            self._drop_stale()
            here = sum(len(w.usable) for w in self._training())
            plain = [w for w in self._training() if w.session is None]
            at_edges = [s for w in plain for _, s in w.owing()]
            if here >= plan.buffer and self._can_be_read():
                self.post(_T.FULL)
                return
            enough = here + sum(s.counted for s in at_edges) >= plan.buffer
            if enough and any(can_flush(s) for s in at_edges):
                self.post(_T.AT_EDGES)
                return
        if state.pausing and not state.open and state.phase in (COLLECTING, EVALUATING):
            self.post(_T.HOLD)

    def _target(self, wave: Attempt) -> int:
        """Updates of a wave that are enough to let its other devices go. Of one that trains without
        masks that is never done.
        """
        if wave.evaluates:
            return self.sessions.target(wave, self.plan.evaluation_cohort)
        everybody = len(wave.selected())
        return everybody + 1 if wave.session is None else self.sessions.target(wave, 0)

    def _training(self) -> Iterator[Attempt]:
        """Waves with updates that are in no model, or to come."""
        return (w for w in (*self.state.parked, *self.state.open) if not w.evaluates)

    def _can_be_read(self) -> bool:
        """Whether a sum of what is here may be read: with helpers, one of enough devices."""
        return not self.helped or bool(self._groups(w for w in self._training() if w.usable))

    def _drop_stale(self) -> None:
        state = self.state
        for wave in self._training():
            old = state.round - wave.round > self.plan.round.staleness_max
            if wave.usable and (old or self._is_outdated(wave)):
                self.record("stale", round=wave.round, attempt=wave.attempt, count=len(wave.unused))
                state.stale.extend(wave.unused)
                staleness.drop(wave)
        state.parked = [w for w in state.parked if w.unused]

    # ------------------------------------------------ the next model

    def fill(self, _: object) -> None:
        """Takes all that is here for the next model; with helpers, all that may be read."""
        state = self.state
        usable = [w for w in self._training() if w.usable]
        groups = self._groups(usable) if self.helped else [usable]
        taken = [[staleness.take(w) for w in group] for group in groups]
        state.batch = [piece for pieces in taken for piece in pieces]
        state.opening = [self._batch(pieces) for pieces in taken] if self.helped else []
        state.parked = [w for w in state.parked if w.unused]
        self.cancel_timer("wait")
        self._aggregate()

    def _aggregate(self) -> None:
        state = self.state
        if self._owing_helpers():
            self._ask_helpers()
            return
        try:
            if state.opening:
                step, state.weight = staleness.step_of(self._opened_sums(), self.plan.ring)
            else:
                step, state.weight = staleness.delta(state.batch, state.round, self.plan.ring)
        except ring.RingError as fault:
            self.post(_T.UPDATE_STOPPED, fault.message)
            return
        self._run_program("server_update", (step, state.weight))

    def next_model(self, model: NewModel) -> None:
        state = self.state
        self._take(model)
        if state.ordered is not None:
            self._use_ordered()
        if self._is_due(state.round - 1):
            if any(w.evaluates for w in state.open):
                self._skip("the one before it is not over")
            else:
                self._judge_next()
        self._patience()
        self.post(_T.AGAIN)

    def see(self, _: object) -> None:
        self._look()

    def last_model(self, model: NewModel) -> None:
        self._take(model)
        self._end_waves("the last model is made")
        if self.plan.evaluation.every:
            if self.state.ordered is not None:
                self._use_ordered()
            self._judge_next()
            self.post(_T.AGAIN)

    def _judge_next(self) -> None:
        self.state.evaluates = True
        self._rest()
        self._wait_for_judges()

    def _take(self, model: NewModel) -> None:
        state = self.state
        self._record_round("", model)
        state.batch, state.opening = [], []
        self._replace_model(model.weights, model.memory)
        state.round += 1
        state.attempt = 0
        state.failed = state.spoilt = 0
        state.opened_ns = self.now

    def fall_short(self, why: str) -> None:
        state = self.state
        why = explained(why, state.failures.values())
        self._record_round(why, None)
        self._forget_batches()
        state.batch = []
        state.stopped_by = why
        # Updates that come end a famine; that no model can be made of them, only a model does.
        if state.phase is AGGREGATING:
            state.spoilt += 1
        else:
            state.failed += 1
        if max(state.failed, state.spoilt) >= self.plan.round.attempts_max:
            self.post(_T.GIVE_UP)
        elif state.phase is AGGREGATING:
            self._patience()
            self.post(_T.AGAIN)

    def _record_round(self, why: str, model: NewModel | None) -> None:
        """The facts of a model, or of why there is none. `selected`: devices whose part ended since
        the last such record; a device may have had several. `staleness`: tau -> updates.
        """
        state = self.state
        reported = sorted({d for piece in state.batch for d in piece.unused})
        ages = Counter[int]()
        for piece in state.batch:
            ages[state.round - piece.round] += len(piece.unused)
        others = set(state.resolved).union(state.stale).difference(reported)
        self._record_attempt(
            why,
            model,
            selected=sorted(others.union(reported)),
            reported=reported,
            refused={d: r for d, r in sorted(state.failures.items()) if d in others},
            target_met=False,
            staleness=dict(sorted(ages.items())),
            stale=len(state.stale),
        )
        state.resolved, state.stale, state.failures = [], [], {}

    # ------------------------------------------------ ending

    def skip(self, why: str) -> None:
        self._skip(why)
        self.state.evaluates = False
        if self._is_enough():
            self.post(_T.LAST_JUDGED)

    def give_up(self, _: object) -> None:
        self._end_all()
        self.record("run_failed", run=self.plan.run, why=self.state.stopped_by)

    def finish(self, why: str | None) -> None:
        if why is not None:
            self.state.stopped_by = why
        self._end_all()

    def _end_all(self) -> None:
        state = self.state
        if state.phase is AGGREGATING:
            self.emit(CancelProgram(state.ticket))
        self._end_waves("the run is over")
        self._forget_batches()
        state.batch = []

    def _end_waves(self, why: str) -> None:
        """Drops all that is out, and what came of it."""
        state = self.state
        for wave in list(state.open):
            if wave.session is not None:
                if wave.session.ticket:
                    self.emit(CancelProgram(wave.session.ticket))
                self._fail(wave, why)
            self._close(wave)
            if wave.evaluates:
                self._skip(why)
        state.parked = []
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        for name in ("rest", "wait", "judges"):
            self.cancel_timer(name)

    # ------------------------------------------------ orders

    def pause(self, _: object) -> None:
        self.state.pausing = True
        self._cancel_timers()
        self._look()

    def hold(self, _: object) -> None:
        self._cancel_timers()

    def go_on(self, _: object) -> None:
        self.state.pausing, self.state.stopped_by = False, ""
        self._set_out()

    def take_weights(self, weights: Any) -> None:
        self.state.ordered = weights
        if self.state.phase is not AGGREGATING:
            # After the last model it is this one that is judged.
            self.state.evaluates |= self.state.phase is EVALUATING
            self._use_ordered()
            self._look()

    def _use_ordered(self) -> None:
        """The ordered weights are the model now. What began from others, and what the optimiser
        remembers, is of no use to it.
        """
        state = self.state
        assert state.ordered is not None
        self._end_waves("other weights are ordered")
        self._replace_model(state.ordered, None)
        state.ordered = None
        state.worse = 0
        digest = state.weights.digest
        self.record("model_ordered", run=self.plan.run, round=state.round, model=digest)
        if not state.pausing:
            self._set_out()
