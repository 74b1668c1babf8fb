"""A synchronous run whose rounds are cut into several masked cohorts.

Waiting, evaluations, models and orders are those of a round of one cohort (`rounds`).

A cohort is an attempt of its round with a number of its own, and so a session of its own: keys,
members, sum and unmasking. It goes through its steps by itself while the run is COLLECTING, and is
over when its masks are out of its sum or when it fails. A cohort that fails takes no other with it:
when all are over, the round succeeds if the others have the reports and, for a rule in the mean's
place, the cohorts that the plan asks for. Sums without masks are added in the ring, weights with
them, so a round is the same whether it was cut or not; or the plan's rule is used on their means.

Devices are dealt out by the run's seed: edges in a random order, the devices of each in a random
order, and that list is cut into equal parts. An edge then has devices in hardly more cohorts than
it must, so a task and a sum more for each edge is all that cutting costs; and an edge that vanishes
takes few cohorts with it. The coordinator reads a sum of each cohort, so how small one may be is
not for it to say: no device takes part in fewer than `cohort_min` of its own owner's policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.learning.aggregate import robust
from ...core.privacy.mechanisms import ring
from ...core.privacy.secagg.limits import MEMBERS_MAX
from ...core.privacy.secagg.server import Phase as SessionPhase
from ...core.protocol import ports
from ...core.protocol.machine import Part
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from .coordinator_state import Attempt, RunState
from .rounds_triggers import Trigger
from .run import Run, digest_of
from .run_context import ring_of

_T = Trigger


class Cohorts(Part[RunState]):
    """The cohorts of a round, while devices train."""

    def __init__(self, run: Run, fall_short: Callable[[str], None]) -> None:
        super().__init__(run.state, run.out)
        self.run = run
        self.plan = run.plan
        self.sums = run.sums
        self.sessions = run.sessions
        self.fall_short = fall_short

    def of(self, message: Any) -> Attempt:
        """The cohort that a message names."""
        at = (message.round, message.attempt)
        return next(c for c in self.state.open if (c.round, c.attempt) == at)

    def _sessions(self) -> list[Attempt]:
        """The cohorts that are not over."""
        return [cohort for cohort in self.state.open if cohort.session is not None]

    # ------------------------------------------------ collecting

    def select(self, count: int) -> None:
        state = self.state
        # As many as all fit into cohorts that may be read: 1,500 are no two of 800, nor one.
        count = min(count, count // self.plan.cohort_min * MEMBERS_MAX)
        parts = self._dealt(self.run.choose(count, state.attempt), self._parts(count))
        for number, chosen in enumerate(parts):
            state.attempt += number > 0
            self.run.open_with(chosen, False)

    def _parts(self, count: int) -> int:
        """Number of cohorts of `count` devices: the planned one, within the bounds of size."""
        room = count // self.plan.cohort_min
        return max(min(self.plan.cohorts, room), -(-count // MEMBERS_MAX))

    def _dealt(self, chosen: dict[int, list[int]], parts: int) -> list[dict[int, list[int]]]:
        """Devices by edge -> the same for each cohort, which differ by one device at most."""
        state, edges = self.state, sorted(chosen)
        names = (self.plan.run, state.round, state.attempt)
        line = [
            (device, edge)
            for edge in self.run.rng.sample(edges, len(edges), "cohort edges", *names)
            for device in self.run.rng.sample(
                chosen[edge], len(chosen[edge]), "cohort devices", *names, edge
            )
        ]
        found = []
        for part in range(parts):
            own = line[part * len(line) // parts : (part + 1) * len(line) // parts]
            by_edge: dict[int, list[int]] = {}
            for device, edge in sorted(own):
                by_edge.setdefault(edge, []).append(device)
            found.append(by_edge)
        return found

    def resume(self) -> None:
        for cohort in self._sessions():
            if cohort.book.ticket:
                self._open_or_fail(cohort)
            else:
                self.sessions.resume(cohort)
        self.set_out()
        self._look()

    def set_out(self) -> None:
        first = self.state.open[0]
        self.set_timer("round", first.ends_ns)
        first.tries = 0
        self.ask_again()

    def ask_again(self) -> None:
        cohorts = self.state.open
        for cohort in cohorts:
            for edge, share in cohort.owing():
                if not share.alive:
                    self.run.send_task(cohort, edge)
                elif cohort.flushed:
                    self.run.send_flush(cohort, edge, go_on=False)
        if any(any(cohort.owing()) for cohort in cohorts):
            cohorts[0].tries += 1
            self.set_timer("repeat", self.now + self.run.context.backoff.pause(cohorts[0].tries))

    def note(self, message: EdgeProgress) -> None:
        self.of(message).hear(message.edge, message.counted)
        self._look()

    def add(self, message: EdgeSum) -> None:
        self.sums.add(self.of(message), message)
        self._free(self.of(message), message.edge)
        self._look()

    def refuse(self, message: EdgeSum) -> None:
        self.sums.refuse(self.of(message), message)
        self._free(self.of(message), message.edge)
        self._look()

    def lose(self, edge: int) -> None:
        self.record("edge_lost", edge=edge)
        for cohort in self.state.open:
            if cohort.owes(edge):
                cohort.lose(edge)
                self._free(cohort, edge)
        self._look()

    def _free(self, cohort: Attempt, edge: int) -> None:
        self.run.free(cohort, edge)

    def judge(self) -> None:
        """The round's time is over: of each cohort what is there is taken."""
        for cohort in self.state.open:
            for edge, _share in list(cohort.owing()):
                self.record("unanswered", edge=edge)
                cohort.lose(edge)
        self._look()

    # ------------------------------------------------ what follows

    def _look(self) -> None:
        """Each cohort goes on as far as it can; when all are over, so is the round."""
        for cohort in self._sessions():
            if cohort.book.server.phase is SessionPhase.UNMASKING:
                continue
            if not any(cohort.owing()):
                self._unmask(cohort)
            elif not cohort.flushed and self._is_met(cohort):
                cohort.flushed = True
                for edge, _share in cohort.owing():
                    self.run.send_flush(cohort, edge, go_on=False)
        if not self._sessions():
            self._decide()

    def _is_met(self, cohort: Attempt) -> bool:
        """Whether a cohort has its part of the updates that the round aims at."""
        everybody = sum(len(c.selected()) for c in self.state.open)
        wanted = -(-self.plan.cohort * len(cohort.selected()) // everybody)
        there = cohort.counted() + len(cohort.unused)
        return there >= self.sessions.target(cohort, wanted)

    def _unmask(self, cohort: Attempt) -> None:
        """All sums of a cohort are in."""
        few = len(cohort.reported()) < self.plan.cohort_min
        why = "too few devices reported" if few else self.run.ask_survivors(cohort)
        if why:
            self._fail(cohort, why)
        else:
            self._leave(cohort)

    def _leave(self, cohort: Attempt) -> None:
        """Its devices may work for others, and its edges forget it; the weights may be needed."""
        self.run.release(cohort)
        self.run.send_closed(cohort, False)

    def _fail(self, cohort: Attempt, why: str) -> None:
        """Nothing comes of a cohort."""
        is_out = cohort.book.server.phase is not SessionPhase.UNMASKING
        self.sessions.end(cohort, why)
        cohort.why, cohort.total, cohort.unused = why, None, []
        for edge, share in cohort.shares.items():
            cohort.lose(edge)
            share.reported = []
        if is_out:
            self._leave(cohort)

    def _decide(self) -> None:
        """All cohorts are over: is it enough?"""
        cohorts, plan = self.state.open, self.plan
        for name in ("round", "repeat"):
            self.cancel_timer(name)
        opened = self._with_sums()
        reported = sum(len(cohort.unused) for cohort in opened)
        if len(opened) >= plan.cohorts_min and reported >= plan.reports_min:
            for cohort in opened:
                self.run.send_closed(cohort, True)
            self.post(_T.CLOSE)
            return
        reasons = [cohort.why for cohort in cohorts if cohort.why]
        why = f"{len(opened)} of {len(cohorts)} cohorts gave a sum, of {reported} devices in all"
        self.fall_short(f"{why}: {reasons[0]}" if reasons else why)

    # ------------------------------------------------ masks

    def attend(self, edge: int, message: Any) -> None:
        cohort = self.of(message)
        end = self.run.attend(cohort, edge, message)
        if end is True:
            self._open_or_fail(cohort)
        elif end:
            self._fail(cohort, end)
        self._look()

    def step(self, cohort: Attempt) -> None:
        why = self.run.step(cohort)
        if why:
            self._fail(cohort, why)
        self._look()

    def use_sum(self, cohort: Attempt, outcome: Any) -> None:
        why = self.run.opened(cohort, outcome)
        if why:
            self._fail(cohort, why)
        self._look()

    def _open_or_fail(self, cohort: Attempt) -> None:
        why = self.run.open_sum(cohort)
        if why:
            self._fail(cohort, why)

    # ------------------------------------------------ the next model

    def made(self) -> tuple[Any, float]:
        """The mean of all cohorts' devices, or the plan's rule over the cohorts' means."""
        plan = self.plan
        if plan.by_rule:
            opened = self._with_sums()
            totals = [self.run.total(cohort) for cohort in opened]
            sizes = [len(cohort.unused) for cohort in opened]
            return robust.Combination.of(
                totals, plan.ring, plan.aggregation, plan.round.hostile, sizes
            )
        any_one = self._with_sums()[0]
        return ring.result(
            self.total(), ring_of(self.plan, self.state, any_one), self.run.key_bytes(any_one)
        )

    def total(self) -> ports.Vector:
        """The sum over all cohorts' devices."""
        opened = self._with_sums()
        total = ring.zeros(ring_of(self.plan, self.state, opened[0]))
        for cohort in opened:
            ring.add(total, self.run.total(cohort))
        return total

    def _with_sums(self) -> list[Attempt]:
        """Of cohorts that are all over, those that gave a sum."""
        return [cohort for cohort in self.state.open if not cohort.why]

    def sum_digest(self) -> bytes:
        if self.plan.by_rule or not self.run.context.names_sums:
            return b""
        return digest_of(ring.settled(self.total(), self.plan.ring))

    # ------------------------------------------------ orders

    def cancel(self) -> None:
        for cohort in self._sessions():
            if cohort.book.ticket:
                self.emit(ports.CancelProgram(cohort.book.ticket))
            self._fail(cohort, "cancelled")
        for name in ("round", "repeat"):
            self.cancel_timer(name)
