"""Waves of a buffered run: how one begins, goes on and ends. `buffered` decides when.

A wave whose updates are masked is taken whole: its sum is of no use before the masks are out, which
needs all that are in it. So its edges are asked for no parts; it waits for its devices, but for the
few that its session can do without (`secure_rounds`), and stays open until its sum can be read.
"""

from __future__ import annotations

from typing import Any

from ...core.privacy.secagg.server import Phase as SessionPhase
from ...core.protocol.machine import Part
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from .buffered_triggers import COLLECTING
from .coordinator_state import Attempt, RunState, Share
from .run import Run


class Waves(Part[RunState]):
    """The waves of a buffered run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.state, run.out)
        self.run = run
        self.plan = run.plan
        self.sums = run.sums
        self.sessions = run.sessions

    def at(self, round: int, attempt: int) -> Attempt | None:
        """The open wave of a name."""
        for wave in self.state.open:
            if (wave.round, wave.attempt) == (round, attempt):
                return wave
        return None

    # ------------------------------------------------ beginning, and time

    def begin(self) -> None:
        state = self.state
        state.attempt = 0  # waves of this model
        state.opened_ns = self.now
        self.rest()
        self.patience()

    def restart(self) -> None:
        for wave in self.state.open:
            self.set_timer(f"wave/{name_of(wave)}", wave.ends_ns)
            wave.tries = 0
            self.ask_again(wave)
            if wave.session is not None and wave.session.ticket:
                self._open_or_fail(wave)
            else:
                self.sessions.resume(wave)
        self.rest()

    def set_out(self) -> None:
        self.rest()
        self.patience()
        self.wait_for_judges()

    def wait_for_judges(self) -> None:
        if self.state.evaluates:
            self.set_timer("judges", self.now + self.plan.wait_ns)

    def rest(self, at_least_ns: int = 0) -> None:
        """A pause in which devices gather; a longer one also delays a wave with enough devices."""
        state, pause = self.state, max(self.plan.rest_ns, at_least_ns)
        state.cooling, state.rested = at_least_ns > 0, pause == 0
        state.rest_ends_ns = self.now + pause
        if pause:
            self.set_timer("rest", state.rest_ends_ns)

    def patience(self) -> None:
        """From now on an update must come within so long."""
        self.state.wait_ends_ns = self.now + self.plan.wait_ns + self.plan.timeout_ns
        self.set_timer("wait", self.state.wait_ends_ns)

    # ------------------------------------------------ waves

    def open(self, count: int) -> None:
        state = self.state
        state.attempt += 1
        wave = self.run.open(count, state.evaluates)
        state.evaluates = False
        if wave.evaluates:
            self.cancel_timer("judges")
        self.set_timer(f"wave/{name_of(wave)}", wave.ends_ns)
        self.ask_again(wave)
        self.rest()

    def ask_again(self, wave: Attempt) -> None:
        """Tasks the edges that gave no sign of life, and repeats what others were asked for."""
        asked = False
        for edge, share in wave.owing():
            if not share.alive:
                self.run.send_task(wave, edge)
                asked = True
            elif share.flushed:
                self.run.send_flush(wave, edge, go_on=not _is_whole(wave))
                asked = True
        if asked:
            wave.tries += 1
            pause = self.run.context.backoff.pause(wave.tries)
            self.set_timer(f"repeat/{name_of(wave)}", self.now + pause)

    def note(self, message: EdgeProgress) -> None:
        wave = self.of(message)
        later = message.part != wave.shares[message.edge].part
        wave.hear(message.edge, message.counted, later)

    def add(self, message: EdgeSum) -> None:
        state, wave = self.state, self.of(message)
        self.sums.add(wave, message)
        answered = [*message.devices, *(f.device for f in message.failures)]
        self.run.roster.release(self.plan.run, message.edge, answered, answered, self.now)
        if message.count and not _is_whole(wave):
            state.failed = 0
            self.patience()

    def refuse(self, message: EdgeSum) -> None:
        self.sums.refuse(self.of(message), message)

    def lose(self, edge: int) -> None:
        self.record("edge_lost", edge=edge)
        for wave in self.state.open:
            if wave.owes(edge):
                wave.lose(edge)

    def end(self, wave: Attempt) -> None:
        for edge, _share in list(wave.owing()):
            self.record("unanswered", edge=edge)
            wave.lose(edge)

    def flush(self) -> None:
        for wave in self.state.open:
            fresh = [] if _is_whole(wave) else [s for _, s in wave.owing() if can_flush(s)]
            for share in fresh:
                share.flushed = True
            if fresh:
                self._ask(wave)

    def flush_whole(self, wave: Attempt) -> None:
        """Asks for the sums as they are, and for no others."""
        wave.flushed = True
        for _, share in wave.owing():
            share.flushed = True
        self._ask(wave)

    def _ask(self, wave: Attempt) -> None:
        wave.tries = 0
        self.ask_again(wave)

    def of(self, message: Any) -> Attempt:
        wave = self.at(message.round, message.attempt)
        assert wave is not None
        return wave

    # ------------------------------------------------ masks

    def attend(self, wave: Attempt, edge: int, message: Any) -> None:
        end = self.run.attend(wave, edge, message)
        if end is True:
            self._open_or_fail(wave)
        elif end:
            self.fail(wave, end)

    def step(self, wave: Attempt) -> None:
        why = self.run.step(wave)
        if why:
            self.fail(wave, why)

    def use_sum(self, wave: Attempt, outcome: Any) -> None:
        why = self.run.opened(wave, outcome)
        if why:
            self.fail(wave, why)
        elif not wave.evaluates:
            self.state.failed = 0
            self.patience()

    def unmask(self, wave: Attempt) -> None:
        """All sums of a masked wave are in."""
        if wave.book.server.phase is SessionPhase.UNMASKING:
            return
        least = self.plan.evaluation_min if wave.evaluates else self.plan.cohort_min
        few = len(wave.unused) < least
        why = "too few devices reported" if few else self.run.ask_survivors(wave)
        if why:
            self.fail(wave, why)

    def _open_or_fail(self, wave: Attempt) -> None:
        why = self.run.open_sum(wave)
        if why:
            self.fail(wave, why)

    def fail(self, wave: Attempt, why: str) -> None:
        """Nothing comes of a wave."""
        self.sessions.end(wave, why)
        for edge, share in wave.shares.items():
            wave.lose(edge)
            share.reported = []
        wave.total, wave.unused = None, []

    # ------------------------------------------------ the end of a wave

    def close(self, wave: Attempt) -> None:
        """Ends a wave: its edges may drop it, and its weights if nothing else needs them.

        The updates that it gave stay.
        """
        state = self.state
        state.open.remove(wave)
        for kind in ("wave", "repeat"):
            self.cancel_timer(f"{kind}/{name_of(wave)}")
        self.run.release(wave)
        # Of the newest model more waves may begin: the edges keep its weights.
        self.run.send_closed(wave, succeeded=wave.round < state.round)
        self.run.drop(wave.weights.digest)
        if wave.evaluates:
            return
        there = set(wave.reported())
        state.resolved.extend(d for d in wave.selected() if d not in there)
        state.failures.update(wave.failures)
        if wave.unused:
            state.parked.append(wave)
        if not there and state.phase is COLLECTING:
            # Whatever was wrong, it is not to be tried again at once.
            self.rest(self.run.context.backoff.first_ns)


def name_of(wave: Attempt) -> str:
    """In the names of its timers."""
    return f"{wave.round}/{wave.attempt}"


def _is_whole(wave: Attempt) -> bool:
    """Whether its sum is of no use in parts."""
    return wave.evaluates or wave.session is not None


def heard(wave: Attempt) -> int:
    """Updates that are here or with the edges."""
    return wave.counted() + len(wave.unused)


def can_flush(share: Share) -> bool:
    """Whether an edge's part has updates and was not requested."""
    return share.counted > 0 and not share.flushed and not share.over
