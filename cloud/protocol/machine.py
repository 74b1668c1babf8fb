"""The coordinator: the edges it knows, the devices that are ready, and the runs that share them.

    coordinator = Coordinator(CoordinatorState())        # or Coordinator(restore(snapshot))
    effects = coordinator.handle(event, now)             # Started first

What is here is what no single run can decide: how fast devices come (Pace), which run takes how
many of them (`roster` has the rule), whose an event is, and which blobs an edge may have. A run's
own protocol is in `rounds` and `buffered`.

- A run begins and ends by `Ordered(RunOrder)`; ask `check` first, which says in words why an order
  would be refused. Its number is higher than every earlier one's.
- Events are passed on by name: a run's timers begin with "run/<number>/", its tickets are
  `number * 2**32 + count`, its messages carry its name on the wire (`core/protocol/run_names.py`).
  With each start runs get other names, for what is begun from then on; but for those that promise
  privacy, which keep theirs: a coordinator that was restored has forgotten what they have paid
  since, and so no device may do their rounds again for it.
- The pace is one for all runs. While some run selects devices, edges keep `ready_per_edge_max` of
  them ready, and none otherwise. A device is asked for all that some run requires: whoever is
  accepted can work for each of them. It comes back as soon as the run in the greatest hurry says.
- An edge that an operator takes out of service (`Ordered(DrainEdge)`) is not selected from; it
  hears so by its Pace, and says by its hellos that it has heard. What it had begun goes on. By the
  Pace edges also hear that the deny list has changed; what is on it they ask for themselves.
- A run that is over leaves `state.runs`; a line on each of the newest stays in `state.ended`. Its
  last weights stay in the store: they are the registry's now. Blobs that no active run needs are
  dropped.
- Records: "phase" (run, phase, why), "round" (run, round, attempt, succeeded, why, selected,
  reported, refused, target_met, weight, opened_ns, parent, model, model_size), of runs that promise
  something both with `privacy` (what is spent), "evaluation" (run, round, model, metrics, devices),
  "evaluation_skipped" (run, round, why), "run_failed" (run, why),
  "model_ordered" (run, round, model), "session" (run, round, attempt, why, asked, members,
  shared, summed, unmasked, refused, seconds: of secure aggregation, without secrets), "barred"
  (run, devices: their updates spoilt a masked sum),
  "refused_order" (run, why), "drain" (edge, draining), "unanswered" (edge: its sum was not there
  in time), "edge_lost" (edge), "refused_sum" (edge, strangers: devices without which it would have
  been taken), "edge_set_aside" (run, edge: not selected from where there are others), "rolled_back"
  (run, round, model, left, to, loss, best, accuracy, best_accuracy), "session_step" (run, round,
  attempt, phase, devices, silent: a session goes on with so many, and without those); and what
  every machine records.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Any

from ...core.common.errors import DelianError
from ...core.privacy.secagg import messages
from ...core.privacy.secagg.logged import LogCopy, LogRules, ServedLog
from ...core.privacy.secagg.member_identity import Identity
from ...core.protocol import snapshot
from ...core.protocol.machine import IGNORE, ActingMachine, index, row
from ...core.protocol.ports import (
    CLOUD,
    DEVICES_PER_EDGE_MAX,
    EDGES_MAX,
    PROTOCOL,
    BlobStored,
    DropBlob,
    Effect,
    Event,
    Node,
    Ordered,
    ProgramFinished,
    ProtocolError,
    Received,
    SendBlob,
    Started,
    Tier,
    TimerFired,
)
from ...core.protocol.random_streams import Streams
from ...core.protocol.run_names import epoch_after, named, number_of
from ...core.wire.admission_pb2 import EdgeHello, Pace, Requirements, RetryWindow
from ...core.wire.blob_pb2 import FetchBlob
from ...core.wire.helper_pb2 import HelpSum
from ...core.wire.journal_pb2 import DeniedVersion, DrainEdge
from ...core.wire.log_pb2 import Checkpoint
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum, EdgeSumAck
from .buffered import BufferedMachine
from .cohorts import CohortsMachine
from .coordinator_state import (
    OVER,
    RUNS_ACTIVE_MAX,
    RUNS_ENDED_MAX,
    CoordinatorPolicy,
    CoordinatorState,
    RunState,
    Serving,
)
from .roster import Offer, Roster
from .rounds import RoundsMachine
from .run import TICKETS, EdgeRestarted, Fetched, RunMachine, prefix
from .run_plan import DIGEST_BYTES, PlanError, RunPlan
from .secure_rounds import turned_away

#: Numbers of paces are below, and those of devices: they stand in certificates and in rows.
PACE_NUMBER_MAX = DEVICE_NUMBER_MAX = 2**63


class Trigger(StrEnum):
    STARTED = "started"
    HELLO = "EdgeHello, newer"
    FETCH = "FetchBlob"
    OF_RUN = "message, timer or program of an active run"
    LATE_SUM = "EdgeSum of a run that is over"
    LATE_SESSION = "message of a session of a run that is over"
    SUBMIT = "order: a new run"
    ORDER = "order to an active run"
    BAD_ORDER = "order that cannot be followed"
    DRAIN = "order: an edge drains, or no more"
    DENIED = "another deny list"
    LOG_HEAD = "another head of the certificate log"
    BLOB_GONE = "blob that is gone or damaged"
    STALE = "late, repeated or of no use"


OFFLINE, SERVING = Serving
_T = Trigger

TABLE = (
    row((OFFLINE, SERVING), _T.STARTED, "start", SERVING, "and every run that is not over"),
    row(SERVING, _T.HELLO, "keep_roster", None, "who is ready, and where"),
    row(SERVING, _T.FETCH, "serve", None, "what an active run names"),
    row(SERVING, _T.OF_RUN, "pass_on", None, "to the run's machine"),
    row(SERVING, _T.LATE_SUM, "ack", None, "it is of no more use to the edge"),
    row(SERVING, _T.LATE_SESSION, "turn_away", None, "nobody waits for the device"),
    row(SERVING, _T.SUBMIT, "submit", None, "begin it"),
    row(SERVING, _T.ORDER, "pass_on", None, "to the run's machine"),
    row(SERVING, _T.BAD_ORDER, "refuse_order", None, "say why"),
    row(SERVING, _T.DRAIN, "drain", None, "tell it by its pace"),
    row(SERVING, _T.DENIED, "keep_denied", None, "tell the edges by their pace"),
    row(SERVING, _T.LOG_HEAD, "keep_log", None, "sessions that begin later go by it"),
    row(SERVING, _T.BLOB_GONE, "miss", None, "runs that need it pause, and say why"),
    row(SERVING, _T.STALE, IGNORE, None, "count it"),
)


class Coordinator(ActingMachine[CoordinatorState]):
    """The coordinator of all runs."""

    rows = index(TABLE)

    def __init__(
        self,
        state: CoordinatorState,
        identity: Identity | None = None,
        policy: CoordinatorPolicy | None = None,
        log: LogCopy | None = None,
    ) -> None:
        """log: its copy of the certificate log, which has all that the head in its state counts."""
        super().__init__(state)
        self.log = log
        self.node = CLOUD
        self.identity = identity
        self.policy = policy or CoordinatorPolicy()
        self._machines: dict[int, RunMachine] = {}
        self._pace_of: tuple[Any, ...] = ()  # what the pace was made of

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    def check(self, order: RunOrder | DrainEdge) -> None:
        """Whether an order would be followed now. Raises DelianError, which says why not."""
        state = self.state
        if isinstance(order, DrainEdge):
            if len(state.draining) >= EDGES_MAX and order.edge not in state.draining:
                raise DelianError(
                    f"{len(state.draining)} edges are out of service already",
                    "put some back into service: delian fleet drain EDGE --undo",
                )
            return
        kind = order.WhichOneof("order")
        if kind is None:
            raise DelianError("an order that orders nothing", "submit, pause, resume, cancel")
        if kind == "submit":
            if order.run <= state.newest:
                raise DelianError(
                    f"run {order.run} cannot begin after run {state.newest}",
                    "numbers are handed out in increasing order",
                )
            if len(state.runs) >= RUNS_ACTIVE_MAX:
                raise DelianError(
                    f"{len(state.runs)} runs are active",
                    "wait until one is over, or cancel one",
                )
            plan = RunPlan.from_message(order.run, order.submit)
            if plan.secure is not None and self.identity is None:
                raise PlanError(
                    "secure",
                    "without certificates nobody could tell whose keys are whose",
                    "start the coordinator without --insecure, or submit the run with --plain",
                )
            return
        run = state.runs.get(order.run)
        if run is None:
            ended = state.ended.get(order.run)
            what = f"is {ended.phase.value}" if ended is not None else "is not active"
            raise DelianError(f"run {order.run} {what}", "`delian run list` shows all runs")
        if kind == "weights":
            fits = order.weights.size == run.weights.size
            if not fits or len(order.weights.digest) != DIGEST_BYTES:
                raise DelianError(
                    f"{order.weights.size} bytes are no weights of run {order.run}",
                    f"its weights take {run.weights.size} bytes",
                )

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        if isinstance(event, Received):  # most are, and a case takes five times as long
            if event.sender.tier is not Tier.EDGE:
                raise ProtocolError(f"{self.node}: a message from {event.sender}")
            return self._read_message(event.sender, event.message)
        match event:
            case TimerFired(name):
                for run in self.state.runs:
                    if name.startswith(prefix(run)):
                        return _T.OF_RUN, (run, TimerFired(name.removeprefix(prefix(run))))
                return _T.STALE, None
            case ProgramFinished(ticket):
                run = ticket // TICKETS
                return (_T.OF_RUN, (run, event)) if run in self.state.runs else (_T.STALE, None)
            case Ordered(order):
                return self._read_order(order)
            case Started():
                return _T.STARTED, event
            case BlobStored(digest, intact):
                return (_T.STALE if intact else _T.BLOB_GONE), digest

    def _read_message(self, sender: Node, message: Any) -> tuple[Trigger, Any]:
        kind, state = type(message), self.state
        if kind is FetchBlob:
            named = any(m.names(message.digest) for m in self._active())
            return (_T.FETCH if named else _T.STALE), (sender, message)
        if kind in messages.UP:
            run = self._run_of(message)
            if run is not None:
                return _T.OF_RUN, (run.run, self.out.event)
            return _T.LATE_SESSION, (sender, message)
        if kind not in (EdgeHello, EdgeProgress, EdgeSum, HelpSum):
            raise ProtocolError(f"{self.node}: an edge sends no {kind.__name__}")
        edge = sender.number
        if message.edge != edge:
            raise ProtocolError(f"{self.node}: {sender} names itself edge {message.edge}")
        if kind is EdgeHello:
            if message.protocol < PROTOCOL:
                raise ProtocolError(f"{sender} speaks protocol {message.protocol} at most")
            fits = len(message.ready) <= DEVICES_PER_EDGE_MAX
            fits = fits and message.pace < PACE_NUMBER_MAX
            fits = fits and max(message.ready, default=0) < DEVICE_NUMBER_MAX
            room = edge in state.edges or len(state.edges) < EDGES_MAX
            fresh = fits and room and self._roster().is_new(message)
            return (_T.HELLO if fresh else _T.STALE), message
        if kind is HelpSum:
            number = number_of(message.run)
            secure = state.runs[number].plan.secure if number in state.runs else None
            asked = secure is not None and len(secure.helpers) > 0
            return (_T.OF_RUN if asked else _T.STALE), (number, self.out.event)
        run = self._run_of(message)
        if run is not None:
            return _T.OF_RUN, (run.run, self.out.event)
        return (_T.LATE_SUM if kind is EdgeSum else _T.STALE), message

    def _run_of(self, message: Any) -> RunState | None:
        """The active run that a message is about."""
        run = self.state.runs.get(number_of(message.run))
        return run if run is not None and self._machine(run).is_about(message) else None

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        if isinstance(order, DeniedVersion):
            return (_T.STALE if order.version == self.state.denied else _T.DENIED), order
        if isinstance(order, Checkpoint):
            known = self.state.log is not None and order == self.state.log.signed
            useless = known or self.identity is None or self.log is None
            return (_T.STALE if useless else _T.LOG_HEAD), order
        known = type(order) in (RunOrder, DrainEdge)
        assert known, f"no order for the coordinator: {type(order).__name__}"
        try:
            self.check(order)
        except DelianError as fault:
            if isinstance(order, DrainEdge):
                return _T.STALE, order
            return _T.BAD_ORDER, (order.run, fault.message)
        if isinstance(order, DrainEdge):
            drains = order.edge in self.state.draining
            return (_T.STALE if drains == order.draining else _T.DRAIN), order
        if order.HasField("submit"):
            return _T.SUBMIT, order
        return _T.ORDER, (order.run, order)

    # ------------------------------------------------ the runs' machines

    def _roster(self) -> Roster:
        return Roster(self.state.edges, self.policy.edge_silence_ns, self.state.draining)

    def _machine(self, run: RunState) -> RunMachine:
        """The run's machine; made anew when the state was read from a snapshot."""
        known = self._machines.get(run.run)
        if known is not None and known.state is run and known.roster.edges is self.state.edges:
            known.identity = self.identity  # its certificate is renewed
            known.log, known.denied = self._served(), self.state.denied
            return known
        plan = RunPlan.from_message(run.run, run.plan, stored=True)
        if plan.secure is not None and self.identity is None:
            raise DelianError(
                f"run {run.run} is under way with masks, and nobody can tell whose keys are whose",
                "start the coordinator with its CA, without --insecure",
            )
        several = CohortsMachine if plan.cohorts > 1 else RoundsMachine
        kind = BufferedMachine if plan.buffered else several
        rng, backoff = Streams(plan.seed), self.policy.backoff
        elsewhere = partial(self._busy_elsewhere, run.run)
        machine = kind(run, plan, self._roster(), rng, self.identity, backoff, elsewhere)
        machine.names_sums = self.policy.names_sums
        machine.log, machine.denied = self._served(), self.state.denied
        self._machines[run.run] = machine
        return machine

    def _served(self) -> ServedLog | None:
        head = self.state.log
        return None if head is None or self.log is None else ServedLog(self.log, head)

    @property
    def report_bytes_max(self) -> int:
        """Of the largest report that an edge may owe to a run."""
        return max((m.plan.report_bytes for m in self._active()), default=0)

    def _active(self) -> list[RunMachine]:
        return [self._machine(run) for run in self.state.runs.values()]

    def _tell(self, machine: RunMachine, event: Any) -> bool:
        """Lets a run handle an event and carries its effects on; gives whether it took devices."""
        state = self.state
        for effect in machine.handle(event, self.now):
            self._carry(effect)
        # Also when the coordinator's own row was `ignore`.
        self.out.changed = self.changed or machine.changed
        if machine.took:
            state.turns += 1
            machine.state.turn = state.turns
        if machine.state.phase in OVER:
            self._forget(machine)
        return machine.took > 0

    def _forget(self, machine: RunMachine) -> None:
        """Leaves a line on a run that is over."""
        run, state = machine.plan.run, self.state
        del state.runs[run], self._machines[run]
        state.ended[run] = machine.summary()
        while len(state.ended) > RUNS_ENDED_MAX:
            del state.ended[next(iter(state.ended))]
        self._roster().release_all(run)
        if machine.state.memory is not None:
            self._carry(DropBlob(machine.state.memory.digest))

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, DropBlob) and any(m.needs(effect.digest) for m in self._active()):
            return
        self.emit(effect)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """As every machine's. Then the runs that want devices are offered what is ready, and the
        edges are told the pace where it has changed.
        """
        effects = super().handle(event, now)
        self.out.effects = effects
        self._share()
        self._keep_pace()
        self.out.effects = []
        return effects

    # ------------------------------------------------ what runs share

    def _share(self) -> None:
        """Offers the ready devices along the line; `roster` has the rule."""
        line = [m for m in self._active() if m.wanted()]
        line.sort(key=lambda m: (m.state.turn, m.plan.run))
        waiting, kept = len(line), 0
        for machine in line:
            offer = self._offer(machine, waiting, kept)
            if offer is not None and self._tell(machine, offer):
                waiting -= 1
            else:
                kept += machine.wanted()

    def _offer(self, machine: RunMachine, waiting: int, kept: int) -> Offer | None:
        """What a run may take now; None where it would take nothing."""
        roster, run = self._roster(), machine.plan.run
        bound = roster.at_most() - kept
        if not machine.takes(Offer(bound, bound, 0)):
            return None
        ready = len(roster.ready(self.now))
        others = self._busy_elsewhere(run) + min(kept, ready)
        offer = Offer(max(0, ready - kept), -(-ready // waiting), others)
        return offer if machine.takes(offer) else None

    def _busy_elsewhere(self, run: int) -> int:
        """Devices that work for other runs."""
        return sum(m.working() for m in self._active() if m.plan.run != run)

    def _keep_pace(self) -> None:
        asks = (self.state.denied, [m.plan.run for m in self._active() if m.selects])
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
        plans = [m.plan for m in self._active() if m.selects]
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
        self.send(Node(Tier.EDGE, edge), pace)

    # ------------------------------------------------ any time

    def start(self, event: Started) -> None:
        state = self.state
        if event.unix_ns:
            state.epoch = epoch_after(state.epoch, event.unix_ns)
        for machine in self._active():
            if machine.plan.promise is None:
                machine.state.name = named(machine.plan.run, state.epoch)
            self._tell(machine, Started())

    def keep_roster(self, message: EdgeHello) -> None:
        anew = self._roster().keep(message, self.now)
        if message.pace > self.state.paced:
            self.state.paced = message.pace + 1  # of a coordinator before this one
        if message.pace != self.state.paced:
            self._send_pace(message.edge)
        if anew:
            for machine in self._active():
                if machine.owes(message.edge):
                    self._tell(machine, EdgeRestarted(message.edge))

    def serve(self, subject: tuple[Node, FetchBlob]) -> None:
        sender, message = subject
        self.emit(SendBlob(sender, message.digest))
        for machine in self._active():
            heeds = machine.heeds_fetches and machine.owes(sender.number)
            if heeds and machine.names(message.digest):
                self._tell(machine, Fetched(sender.number, message.digest))

    def miss(self, digest: bytes) -> None:
        for machine in self._active():
            if machine.needs(digest):
                machine.state.stopped_by = (
                    f"blob {digest.hex()} is gone from the store, or damaged: restore it from a"
                    " backup, then resume the run"
                )
                self._tell(machine, RunOrder(run=machine.plan.run, pause=True))

    def pass_on(self, subject: tuple[int, Any]) -> bool:
        run, event = subject
        self._tell(self._machine(self.state.runs[run]), event)
        return False  # unless the run's machine changed

    def ack(self, message: EdgeSum) -> bool:
        ack = EdgeSumAck(
            run=message.run, round=message.round, attempt=message.attempt, part=message.part
        )
        self.send(Node(Tier.EDGE, message.edge), ack)
        self.out.ignore(_T.LATE_SUM)
        return False

    def turn_away(self, subject: tuple[Node, Any]) -> bool:
        edge, message = subject
        self.send(edge, turned_away(message))
        self.out.ignore(_T.LATE_SESSION)
        return False

    def submit(self, order: RunOrder) -> None:
        state, plan = self.state, order.submit
        run = RunState(order.run, plan, plan.weights, name=named(order.run, state.epoch))
        state.runs[order.run] = run
        state.newest = order.run
        self._tell(self._machine(run), Started())

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


def restore(data: bytes) -> CoordinatorState:
    """The state that `Coordinator.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(CoordinatorState, data)
