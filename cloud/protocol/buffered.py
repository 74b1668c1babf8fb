"""The actions of a buffered-asynchronous run; `buffered_machine` has its table.

FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated learning with buffered
asynchronous aggregation", AISTATS 2022, Algorithm 1), over sums instead of single updates.

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
  Where helpers unmask, a wave does not wait for its devices: see `helpers`.
- No update for as long as a round and a wait take together is a failed attempt, and so are updates
  that no model can be made of; after too many of either in a row the run gives up.
- An evaluation is a wave too, from the newest model; there is one at a time. After the last model
  the others end, and it alone is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...core.privacy.mechanisms import ring
from ...core.protocol import ports
from ...core.protocol.machine import Part
from ...core.wire.helper_pb2 import HelpSum
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from . import staleness
from .buffered_triggers import AGGREGATING, COLLECTING, EVALUATING, Trigger
from .coordinator_state import Attempt, RunState
from .helpers import Helpers
from .refusal_texts import explained
from .run import Run
from .waves import Waves, can_flush, heard

_T = Trigger


class Buffered(Part[RunState]):
    """The actions of a run without rounds; `RunState.round` is t + 1, the next model."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.state, run.out)
        self.run = run
        self.plan = run.plan
        self.sessions = run.sessions
        self.waves = Waves(run)
        self.helpers = Helpers(run)

    # ------------------------------------------------ waves

    def begin(self, _: object) -> None:
        self.waves.begin()

    def restart(self, _: object) -> None:
        self.waves.restart()
        if self.state.phase is AGGREGATING:
            self._aggregate()
        else:
            self.waves.patience()
        self.waves.wait_for_judges()

    def look(self, _: object) -> None:
        self.state.rested = True

    def starve(self, _: object) -> None:
        why = self.helpers.missing_helper()
        self.waves.patience()
        if why:
            self.fall_short(why)
        elif self.state.open or not self.run.context.busy_elsewhere():
            self.fall_short("no updates come")

    def open_wave(self, count: int) -> None:
        self.waves.open(count)

    def ask_again(self, wave: Attempt) -> None:
        self.waves.ask_again(wave)

    def flush(self, _: object) -> None:
        self.waves.flush()

    def note(self, message: EdgeProgress) -> None:
        self.waves.note(message)
        self._look()

    def add(self, message: EdgeSum) -> None:
        self.waves.add(message)
        self._look()

    def refuse(self, message: EdgeSum) -> None:
        self.waves.refuse(message)
        self._look()

    def ack(self, message: EdgeSum) -> None:
        self.run.sums.ack(message)

    def lose(self, edge: int) -> None:
        self.waves.lose(edge)
        self._look()

    def end_wave(self, wave: Attempt) -> None:
        self.waves.end(wave)
        self._look()

    def attend(self, subject: tuple[Attempt, int, Any]) -> None:
        self.waves.attend(*subject)
        self._look()

    def turn_away(self, subject: tuple[int, Any]) -> None:
        self.run.turn_away(*subject)

    def step(self, wave: Attempt) -> None:
        self.waves.step(wave)
        self._look()

    def use_sum(self, subject: tuple[Attempt, Any]) -> None:
        self.waves.use_sum(*subject)
        self._look()

    # ------------------------------------------------ helpers

    def ask_helpers(self, _: object) -> None:
        self.helpers.ask()

    def prove_again(self, message: HelpSum) -> None:
        self.helpers.prove_again(message)

    def unmask(self, message: HelpSum) -> None:
        self.helpers.unmask(message)
        if not self.helpers.owing():
            self._aggregate()

    def note_refusal(self, subject: tuple[HelpSum, str]) -> None:
        message, why = subject
        self.helpers.note_refusal(message)
        self.fall_short(why)

    def end_help(self, why: str) -> None:
        self.fall_short(self.helpers.unproved() or why)

    # ------------------------------------------------ what follows

    def _look(self) -> None:
        """Ends the waves that are over; then sees whether there is enough for a model."""
        state, plan = self.state, self.plan
        for wave in list(state.open):
            if wave.session is not None and not any(wave.owing()):
                self.waves.unmask(wave)
            if wave.session is None and not any(wave.owing()):
                self.waves.close(wave)
                if wave.evaluates:
                    self.run.score(wave)
                    if self.run.is_enough():
                        self.post(_T.LAST_JUDGED)
                        return
            elif not wave.flushed and heard(wave) >= self._target(wave):
                self.waves.flush_whole(wave)
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
        """Updates of a wave that are enough to release its other devices; without masks: never."""
        if wave.evaluates:
            return self.sessions.target(wave, self.plan.evaluation_cohort)
        everybody = len(wave.selected())
        return everybody + 1 if wave.session is None else self.sessions.target(wave, 0)

    def _training(self) -> Iterator[Attempt]:
        """Waves with updates that are in no model, or to come."""
        return (w for w in (*self.state.parked, *self.state.open) if not w.evaluates)

    def _can_be_read(self) -> bool:
        """Whether a sum of what is here may be read: with helpers, one of enough devices."""
        return not self.run.helped or bool(
            self.helpers.groups(w for w in self._training() if w.usable)
        )

    def _drop_stale(self) -> None:
        state = self.state
        for wave in self._training():
            old = state.round - wave.round > self.plan.round.staleness_max
            if wave.usable and (old or self.helpers.is_outdated(wave)):
                self.record("stale", round=wave.round, attempt=wave.attempt, count=len(wave.unused))
                state.stale.extend(wave.unused)
                staleness.drop(wave)
        state.parked = [w for w in state.parked if w.unused]

    # ------------------------------------------------ the next model

    def fill(self, _: object) -> None:
        """Takes all that is here for the next model; with helpers, all that may be read."""
        state = self.state
        usable = [w for w in self._training() if w.usable]
        groups = self.helpers.groups(usable) if self.run.helped else [usable]
        taken = [[staleness.take(w) for w in group] for group in groups]
        state.batch = [piece for pieces in taken for piece in pieces]
        state.opening = (
            [self.helpers.new_batch(pieces) for pieces in taken] if self.run.helped else []
        )
        state.parked = [w for w in state.parked if w.unused]
        self.cancel_timer("wait")
        self._aggregate()

    def _aggregate(self) -> None:
        state = self.state
        if self.helpers.owing():
            self.helpers.begin()
            return
        try:
            if state.opening:
                step, state.weight = staleness.step_of(self.helpers.sums_opened(), self.plan.ring)
            else:
                step, state.weight = staleness.delta(state.batch, state.round, self.plan.ring)
        except ring.RingError as fault:
            self.post(_T.UPDATE_STOPPED, fault.message)
            return
        self.run.run_program("server_update", (step, state.weight))

    def next_model(self, model: ports.NewModel) -> None:
        state = self.state
        self._take(model)
        if state.ordered is not None:
            self._use_ordered()
        if self.run.is_due(state.round - 1):
            if any(w.evaluates for w in state.open):
                self.run.skip("the one before it is not over")
            else:
                self._judge_next()
        self.waves.patience()
        self.post(_T.AGAIN)

    def see(self, _: object) -> None:
        self._look()

    def last_model(self, model: ports.NewModel) -> None:
        self._take(model)
        self._end_waves("the last model is made")
        if self.plan.evaluation.every:
            if self.state.ordered is not None:
                self._use_ordered()
            self._judge_next()
            self.post(_T.AGAIN)

    def _judge_next(self) -> None:
        self.state.evaluates = True
        self.waves.rest()
        self.waves.wait_for_judges()

    def _take(self, model: ports.NewModel) -> None:
        state = self.state
        self._record_round("", model)
        state.batch, state.opening = [], []
        self.run.replace_model(model.weights, model.memory)
        state.round += 1
        state.attempt = 0
        state.failed = state.spoilt = 0
        state.opened_ns = self.now

    def fall_short(self, why: str) -> None:
        state = self.state
        why = explained(why, state.failures.values())
        self._record_round(why, None)
        self.helpers.forget()
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
            self.waves.patience()
            self.post(_T.AGAIN)

    def _record_round(self, why: str, model: ports.NewModel | None) -> None:
        """Records the facts of a model, or of why there is none.

        selected: devices whose part ended since the last such record; a device may have had
        several. staleness: tau -> updates.
        """
        state = self.state
        reported = sorted({d for piece in state.batch for d in piece.unused})
        ages = Counter[int]()
        for piece in state.batch:
            ages[state.round - piece.round] += len(piece.unused)
        others = set(state.resolved).union(state.stale).difference(reported)
        self.run.record_attempt(
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
        self.run.skip(why)
        self.state.evaluates = False
        if self.run.is_enough():
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
            self.emit(ports.CancelProgram(state.ticket))
        self._end_waves("the run is over")
        self.helpers.forget()
        state.batch = []

    def _end_waves(self, why: str) -> None:
        """Drops all that is out, and what came of it."""
        state = self.state
        for wave in list(state.open):
            if wave.session is not None:
                if wave.session.ticket:
                    self.emit(ports.CancelProgram(wave.session.ticket))
                self.waves.fail(wave, why)
            self.waves.close(wave)
            if wave.evaluates:
                self.run.skip(why)
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
        self.waves.set_out()

    def take_weights(self, weights: Any) -> None:
        self.state.ordered = weights
        if self.state.phase is not AGGREGATING:
            # After the last model it is this one that is judged.
            self.state.evaluates |= self.state.phase is EVALUATING
            self._use_ordered()
            self._look()

    def _use_ordered(self) -> None:
        """Makes the ordered weights the model; drops open waves and the optimiser's memory."""
        state = self.state
        assert state.ordered is not None
        self._end_waves("other weights are ordered")
        self.run.replace_model(state.ordered, None)
        state.ordered = None
        state.worse = 0
        digest = state.weights.digest
        self.record("model_ordered", run=self.plan.run, round=state.round, model=digest)
        if not state.pausing:
            self.waves.set_out()
