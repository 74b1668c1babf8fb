"""What the coordinator does: the actions of `machine`'s table, and what its runs share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ...core.common.errors import DelianError
from ...core.privacy.secagg.logged import LogCopy, LogRules, ServedLog
from ...core.privacy.secagg.member_identity import Identity
from ...core.protocol import ports
from ...core.protocol.machine import Output, Part
from ...core.protocol.random_streams import Streams
from ...core.protocol.run_names import epoch_after, named
from ...core.wire.admission_pb2 import EdgeHello, Pace, Requirements, RetryWindow
from ...core.wire.blob_pb2 import FetchBlob
from ...core.wire.journal_pb2 import DeniedVersion, DrainEdge
from ...core.wire.log_pb2 import Checkpoint
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeSum, EdgeSumAck
from . import coordinator_state
from .buffered_machine import BufferedMachine
from .coordinator_triggers import Trigger
from .outlook import UNBOUNDED, Attendance, Outlook
from .roster import Offer, Roster
from .rounds_machine import RoundsMachine
from .run import EdgeRestarted, Fetched
from .run_context import RunContext
from .run_plan import RunPlan
from .secure_rounds import turned_away

_T = Trigger
#: The coordinator's own timer.
LOOK = "look"
RunMachine: TypeAlias = BufferedMachine | RoundsMachine


class Runs(Part[coordinator_state.CoordinatorState]):
    """What the coordinator does: the actions of its table, and what its runs share."""

    def __init__(
        self,
        state: coordinator_state.CoordinatorState,
        out: Output,
        policy: coordinator_state.CoordinatorPolicy,
        identity: Identity | None,
        log: LogCopy | None,
    ) -> None:
        super().__init__(state, out)
        self.policy = policy
        #: Signs tasks; None: no run has masks.
        self.identity = identity
        #: Its copy of the certificate log.
        self.log = log
        self.machines: dict[int, RunMachine] = {}
        self._pace_of: tuple[Any, ...] = ()  # what the pace was made of
        self._looks: list[int] = []  # when runs that wait want to be looked at

    # ------------------------------------------------ the runs' machines

    def roster(self) -> Roster:
        return Roster(self.state.edges, self.policy.edge_silence_ns, self.state.draining)

    def machine_of(self, run: coordinator_state.RunState) -> RunMachine:
        """The run's machine; made again when the state was read from a snapshot."""
        known = self.machines.get(run.run)
        if known is not None and known.state is run and known.run.roster.edges is self.state.edges:
            context = known.run.context
            context.identity = self.identity  # its certificate is renewed
            context.log, context.denied = self._served(), self.state.denied
            return known
        plan = RunPlan.from_message(run.run, run.plan, stored=True)
        if plan.secure is not None and self.identity is None:
            raise DelianError(
                f"run {run.run} is under way with masks, and keys cannot be attributed to devices",
                "start the coordinator with its CA, without --insecure",
            )
        context = RunContext(
            plan,
            self.roster(),
            Streams(plan.seed),
            self.policy.backoff,
            self.identity,
            self._served(),
            self.state.denied,
            self.policy.names_sums,
            partial(self._busy_elsewhere, run.run),
        )
        kind = BufferedMachine if plan.buffered else RoundsMachine
        machine = self.machines[run.run] = kind(run, context)
        return machine

    def _served(self) -> ServedLog | None:
        head = self.state.log
        return None if head is None or self.log is None else ServedLog(self.log, head)

    def active(self) -> list[RunMachine]:
        return [self.machine_of(run) for run in self.state.runs.values()]

    def _tell(self, machine: RunMachine, event: Any) -> bool:
        """Lets a run handle an event and carries its effects on; gives whether it took devices."""
        state = self.state
        run, before = machine.run, machine.state.phase
        run.took = 0
        for effect in machine.handle(event, self.now):
            self._carry(effect)
        if machine.state.phase is not before:
            self.record("phase", **run.phase_facts())
        # Also when the coordinator's own row was `ignore`.
        self.out.changed = self.out.changed or machine.changed
        if run.took:
            state.turns += 1
            machine.state.turn = state.turns
        if machine.state.phase in coordinator_state.OVER:
            self._forget(machine)
        return run.took > 0

    def _forget(self, machine: RunMachine) -> None:
        """Leaves a line on a run that is over."""
        run, state = machine.run.plan.run, self.state
        del state.runs[run], self.machines[run]
        state.ended[run] = machine.run.summary()
        while len(state.ended) > coordinator_state.RUNS_ENDED_MAX:
            del state.ended[next(iter(state.ended))]
        self.roster().release_all(run)
        if machine.state.memory is not None:
            self._carry(ports.DropBlob(machine.state.memory.digest))

    def _carry(self, effect: ports.Effect) -> None:
        if isinstance(effect, ports.DropBlob) and any(
            m.run.needs(effect.digest) for m in self.active()
        ):
            return
        self.emit(effect)

    # ------------------------------------------------ what runs share

    def share(self) -> None:
        """Offers the ready devices along the line; `roster` has the rule."""
        line = self._line()
        waiting, kept = len(line), 0
        there, look_at = self._there(line)
        for machine in line:
            offer = self._offer(machine, waiting, kept, there)
            if offer is not None and self._tell(machine, offer):
                waiting -= 1
            else:
                kept += machine.wanted(there)
        self._looks = [look_at] if kept and look_at else []

    def _line(self) -> list[RunMachine]:
        """The runs that want devices now, in the order in which they are offered some."""
        line = [m for m in self.active() if m.wanted()]
        return sorted(line, key=lambda m: (m.state.turn, m.run.plan.run))

    def _there(self, line: list[RunMachine]) -> tuple[int, int]:
        """The devices that are worth waiting for, and when they change by themselves (0: never).

        Unbounded where no run of the line asks: those that all get their wish, now or soon, and
        those whose operators say how many devices must be ready. So a large fleet is not counted.
        """
        wishes = [m.wanted() for m in line if m.wanted(0) < m.wanted()]
        if not wishes or self.roster().listed() >= sum(wishes):
            return UNBOUNDED, 0
        there, calm_ns = self.attendance(), self.policy.calm_ns
        return there.bound(self.now, calm_ns), there.changes_ns(self.now, calm_ns)

    def attendance(self) -> Attendance:
        """All devices that are there, as edges and attempts say."""
        at_work = {
            device: machine.run.plan.run
            for machine in self.active()
            for attempt in machine.state.open
            for _, share in attempt.owing()
            for device in share.devices
        }
        return self.roster().attendance(self.now, at_work, self.policy.absence_ns)

    def _offer(self, machine: RunMachine, waiting: int, kept: int, there: int) -> Offer | None:
        """What a run may take now; None where it would take nothing."""
        roster, run = self.roster(), machine.run.plan.run
        bound = roster.at_most() - kept
        if not machine.takes(Offer(bound, bound, 0, there)):
            return None
        ready = len(roster.ready(self.now))
        others = self._busy_elsewhere(run) + min(kept, ready)
        offer = Offer(max(0, ready - kept), -(-ready // waiting), others, there)
        return offer if machine.takes(offer) else None

    def look(self, _: object) -> None:
        self.state.look_at_ns = 0  # `share` and `explain` follow each event

    def plan_look(self) -> None:
        """Sets the time of the next look, where runs wait."""
        at = min(self._looks, default=0)
        if at and at != self.state.look_at_ns:
            self.state.look_at_ns = at
            self.set_timer(LOOK, at)
            self.out.changed = True

    # ------------------------------------------------ why they wait

    def outlook(self, run: int, there: Attendance | None = None) -> Outlook | None:
        """Why a run waits; None: it does not wait for devices, or is not active."""
        state = self.state.runs.get(run)
        own = None if state is None else self.machine_of(state).outlook
        if own is None:
            return None
        there = self.attendance() if there is None else there
        changes_ns = there.changes_ns(self.now, self.policy.calm_ns)
        if changes_ns and there.able >= own.least:
            own = replace(own, next_try_ns=min(own.next_try_ns, changes_ns))
        line = [m.run.plan.run for m in self._line()]
        return own.of(there, tuple(line[: line.index(run)]) if run in line else ())

    def explain(self) -> None:
        """Records why runs wait: once they have waited, and again when something has changed."""
        if not self.policy.explain_ns:
            return
        there = None
        for state in self.state.runs.values():
            if self.machine_of(state).outlook is None:
                state.explained, state.explained_ns = "", -1
                continue
            if state.explained_ns < 0:
                state.explained_ns, self.out.changed = self.now, True
            due = state.explained_ns + (
                self.policy.explain_every_ns if state.explained else self.policy.explain_ns
            )
            if self.now < due:
                self._looks.append(due)
                continue
            there = there or self.attendance()
            self._explain(state, there)

    def _explain(self, state: coordinator_state.RunState, there: Attendance) -> None:
        outlook = self.outlook(state.run, there)
        assert outlook is not None
        facts = outlook.facts()
        if facts["said"] != state.explained:
            self.record("outlook", run=state.run, **facts)
        # Not looked at again before its time: a large fleet takes long to count.
        state.explained, state.explained_ns = facts["said"], self.now
        self.out.changed = True

    def _busy_elsewhere(self, run: int) -> int:
        """Devices that work for other runs."""
        return sum(m.run.working() for m in self.active() if m.run.plan.run != run)

    def keep_pace(self) -> None:
        asks = (self.state.denied, [m.run.plan.run for m in self.active() if m.run.selects])
        if self.state.pace is not None and asks == self._pace_of:
            return  # plans do not change
        self._pace_of = asks
        pace = self._pace()
        if pace != self.state.pace:
            self.out.changed = True
            self.state.pace = pace
            self.state.paced += 1
            for edge in sorted(self.state.edges):
                self._send_pace(edge)

    def _pace(self) -> Pace:
        """The pace that all runs together ask for."""
        policy = self.policy
        plans = [m.run.plan for m in self.active() if m.run.selects]
        after = [p.after_task_ms or policy.after_task_ms for p in plans] or [policy.after_task_ms]
        return Pace(
            ready_max=policy.ready_per_edge_max if plans else 0,
            after_task=_window((min(a for a, _ in after), min(b for _, b in after))),
            after_reject=_window(policy.after_reject_ms),
            lease_ms=policy.lease_ms,
            requirements=combined(p.requirements for p in plans),
            denied_version=self.state.denied,
        )

    def _send_pace(self, edge: int) -> None:
        """The pace is the same for all edges but for `draining`."""
        state = self.state
        assert state.pace is not None, "it is made when the coordinator starts"
        pace = Pace(draining=edge in state.draining, number=state.paced)
        pace.MergeFrom(state.pace)
        self.send(ports.Node(ports.Tier.EDGE, edge), pace)

    # ------------------------------------------------ any time

    def start(self, event: ports.Started) -> None:
        state = self.state
        state.look_at_ns = 0
        if event.unix_ns:
            state.epoch = epoch_after(state.epoch, event.unix_ns)
        for machine in self.active():
            if machine.run.plan.promise is None:
                machine.state.name = named(machine.run.plan.run, state.epoch)
            self._tell(machine, ports.Started())

    def keep_roster(self, message: EdgeHello) -> None:
        restarted = self.roster().keep(message, self.now)
        if message.pace > self.state.paced:
            self.state.paced = message.pace + 1  # of a coordinator before this one
        if message.pace != self.state.paced:
            self._send_pace(message.edge)
        if restarted:
            for machine in self.active():
                if machine.owes(message.edge):
                    self._tell(machine, EdgeRestarted(message.edge))

    def serve(self, subject: tuple[ports.Node, FetchBlob]) -> None:
        sender, message = subject
        self.emit(ports.SendBlob(sender, message.digest))
        for machine in self.active():
            heeds = machine.heeds_fetches and machine.owes(sender.number)
            if heeds and machine.run.names(message.digest):
                self._tell(machine, Fetched(sender.number, message.digest))

    def miss(self, digest: bytes) -> None:
        for machine in self.active():
            if machine.run.needs(digest):
                machine.state.stopped_by = (
                    f"blob {digest.hex()} is gone from the store, or damaged: restore it from a"
                    " backup, then resume the run"
                )
                self._tell(machine, RunOrder(run=machine.run.plan.run, pause=True))

    def pass_on(self, subject: tuple[int, Any]) -> bool:
        run, event = subject
        self._tell(self.machine_of(self.state.runs[run]), event)
        return False  # unless the run's machine changed

    def ack(self, message: EdgeSum) -> bool:
        ack = EdgeSumAck(
            run=message.run, round=message.round, attempt=message.attempt, part=message.part
        )
        self.send(ports.Node(ports.Tier.EDGE, message.edge), ack)
        self.out.ignore(_T.LATE_SUM)
        return False

    def turn_away(self, subject: tuple[ports.Node, Any]) -> bool:
        edge, message = subject
        self.send(edge, turned_away(message))
        self.out.ignore(_T.LATE_SESSION)
        return False

    def submit(self, order: RunOrder) -> None:
        state, plan = self.state, order.submit
        run = coordinator_state.RunState(
            order.run, plan, plan.weights, name=named(order.run, state.epoch)
        )
        state.runs[order.run] = run
        state.newest = order.run
        self._tell(self.machine_of(run), ports.Started())

    def refuse_order(self, subject: tuple[int, str]) -> None:
        run, why = subject
        self.record("refused_order", run=run, why=why)

    def drain(self, order: DrainEdge) -> None:
        state, edge = self.state, order.edge
        if order.draining:
            state.draining[edge] = True
        else:
            del state.draining[edge]
        self.record("drain", edge=edge, draining=order.draining)
        state.paced += 1
        if edge in state.edges:
            self._send_pace(edge)

    def keep_log(self, order: Checkpoint) -> None:
        assert self.identity is not None
        head, known = self.identity.log_head(order, LogRules()), self.state.log
        if known is None or head.size >= known.size:
            self.state.log = head

    def keep_denied(self, order: DeniedVersion) -> None:
        self.state.denied = order.version  # a new pace, which `handle` sends


def combined(asked: Iterable[Requirements]) -> Requirements:
    """What a device must have to be of use to every run."""
    total = Requirements()
    for each in asked:
        total.powered |= each.powered
        total.unmetered |= each.unmetered
        total.idle |= each.idle
        total.fresh |= each.fresh
        total.memory_mib = max(total.memory_mib, each.memory_mib)
        total.storage_mib = max(total.storage_mib, each.storage_mib)
    return total


def _window(ms: tuple[int, int]) -> RetryWindow:
    return RetryWindow(min_ms=ms[0], max_ms=ms[1])
