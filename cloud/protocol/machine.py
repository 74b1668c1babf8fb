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
  them ready, and none otherwise. A device is asked for all that some run requires: an
  accepted device can work for each of them. It comes back as soon as the most urgent run says.
- An edge that an operator takes out of service (`Ordered(DrainEdge)`) is not selected from. Its
  Pace says so, and its hellos confirm it. What it had begun goes on. The Pace also has the version
  of the deny list; edges request the list itself.
- A run that is over leaves `state.runs`; a line on each of the newest stays in `state.ended`. Its
  last weights stay in the store: they are the registry's now. Blobs that no active run needs are
  dropped.
- Records: "phase", "round", "evaluation", "evaluation_skipped", "run_failed", "model_ordered",
  "rolled_back", "session" and "session_step" (secure aggregation, without secrets), "outlook" (why
  a run waits: `Outlook.facts`), "barred" and "edge_set_aside" (not selected where there are
  others), "refused_order", "drain", "unanswered" (a sum was not there in time), "edge_lost",
  "refused_sum" (with the devices that have no part in the session), and what every machine records.
  `Run.record_attempt` documents the fields of "round".
"""

from __future__ import annotations

from typing import Any

from ...core.common.errors import DelianError
from ...core.privacy.secagg import messages
from ...core.privacy.secagg.logged import LogCopy
from ...core.privacy.secagg.member_identity import Identity
from ...core.protocol import ports, snapshot
from ...core.protocol.machine import IGNORE, Machine, Output, index, row
from ...core.protocol.run_names import number_of
from ...core.wire.admission_pb2 import EdgeHello
from ...core.wire.blob_pb2 import FetchBlob
from ...core.wire.helper_pb2 import HelpSum
from ...core.wire.journal_pb2 import DeniedVersion, DrainEdge
from ...core.wire.log_pb2 import Checkpoint
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from . import coordinator_state
from .coordinator_triggers import OFFLINE, SERVING, Trigger
from .run import TICKETS, prefix
from .run_plan import DIGEST_BYTES, PlanError, RunPlan
from .runs import LOOK, Runs

#: Numbers of paces are below, and those of devices: they stand in certificates and in rows.
PACE_NUMBER_MAX = DEVICE_NUMBER_MAX = 2**63

_T = Trigger

TABLE = (
    row((OFFLINE, SERVING), _T.STARTED, Runs.start, SERVING, "with every run that is not over"),
    row(SERVING, _T.HELLO, Runs.keep_roster, None, "the ready devices, and their edges"),
    row(SERVING, _T.FETCH, Runs.serve, None, "what an active run names"),
    row(SERVING, _T.OF_RUN, Runs.pass_on, None, "to the run's machine"),
    row(SERVING, _T.LATE_SUM, Runs.ack, None, "it is of no more use to the edge"),
    row(SERVING, _T.LATE_SESSION, Runs.turn_away, None, "the device has no session"),
    row(SERVING, _T.SUBMIT, Runs.submit, None, "begin it"),
    row(SERVING, _T.ORDER, Runs.pass_on, None, "to the run's machine"),
    row(SERVING, _T.BAD_ORDER, Runs.refuse_order, None, "report why"),
    row(SERVING, _T.DRAIN, Runs.drain, None, "its Pace carries it"),
    row(SERVING, _T.DENIED, Runs.keep_denied, None, "the edges' Pace carries it"),
    row(SERVING, _T.LOG_HEAD, Runs.keep_log, None, "later sessions use it"),
    row(SERVING, _T.BLOB_GONE, Runs.miss, None, "runs that need it pause, and report why"),
    row(SERVING, _T.LOOK, Runs.look, None, "fewer are worth waiting for, or a run still waits"),
    row(SERVING, _T.STALE, IGNORE, None, "count it"),
)


class Coordinator(Machine[coordinator_state.CoordinatorState]):
    """The coordinator of all runs."""

    rows = index(TABLE)

    def __init__(
        self,
        state: coordinator_state.CoordinatorState,
        identity: Identity | None = None,
        policy: coordinator_state.CoordinatorPolicy | None = None,
        log: LogCopy | None = None,
        records_orders: bool = False,
    ) -> None:
        """log: its copy of the certificate log, which has all that the head in its state counts."""
        out, policy = Output(), policy or coordinator_state.CoordinatorPolicy()
        self.runs = Runs(state, out, policy, identity, log)
        super().__init__(state, out, self.runs)
        self.node = ports.CLOUD
        self.policy = policy
        self.records_orders = records_orders

    def settle(self) -> None:
        """Offers ready devices to the runs, and sends a changed pace to the edges."""
        self.runs.share()
        self.runs.explain()
        self.runs.plan_look()
        self.runs.keep_pace()
        event = self.out.event
        if self.records_orders and isinstance(event, ports.Ordered):
            order = event.order
            if isinstance(order, RunOrder | DrainEdge):
                about, kind = order_key(order)
                self.runs.record("ordered", about=about, order=kind)

    @property
    def report_bytes_max(self) -> int:
        """Of the largest report that an edge may owe to a run."""
        return max((m.run.plan.report_bytes for m in self.runs.active()), default=0)

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    def check(self, order: RunOrder | DrainEdge) -> None:
        """Whether an order would be followed now. Raises DelianError, which says why not."""
        state = self.state
        if isinstance(order, DrainEdge):
            if len(state.draining) >= ports.EDGES_MAX and order.edge not in state.draining:
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
            if len(state.runs) >= coordinator_state.RUNS_ACTIVE_MAX:
                raise DelianError(
                    f"{len(state.runs)} runs are active",
                    "wait until one is over, or cancel one",
                )
            plan = RunPlan.from_message(order.run, order.submit)
            if plan.secure is not None and self.runs.identity is None:
                raise PlanError(
                    "secure",
                    "without certificates keys cannot be attributed to devices",
                    "start the coordinator without --insecure, or submit the run with --plain",
                )
            return
        run = state.runs.get(order.run)
        if run is None:
            ended = state.ended.get(order.run)
            what = f"is {ended.phase.value}" if ended is not None else "is not active"
            raise DelianError(f"run {order.run} {what}", "`delian run ls` shows all runs")
        if kind == "weights":
            fits = order.weights.size == run.weights.size
            if not fits or len(order.weights.digest) != DIGEST_BYTES:
                raise DelianError(
                    f"{order.weights.size} bytes are no weights of run {order.run}",
                    f"its weights take {run.weights.size} bytes",
                )

    # ------------------------------------------------ reading events

    def read(self, event: ports.Event) -> tuple[Trigger, Any]:
        if isinstance(event, ports.Received):  # most are, and a case takes five times as long
            if event.sender.tier is not ports.Tier.EDGE:
                raise ports.ProtocolError(f"{self.node}: a message from {event.sender}")
            return self._read_message(event.sender, event.message)
        match event:
            case ports.TimerFired(name):
                if name == LOOK:
                    return _T.LOOK, None
                for run in self.state.runs:
                    if name.startswith(prefix(run)):
                        return _T.OF_RUN, (run, ports.TimerFired(name.removeprefix(prefix(run))))
                return _T.STALE, None
            case ports.ProgramFinished(ticket):
                run = ticket // TICKETS
                return (_T.OF_RUN, (run, event)) if run in self.state.runs else (_T.STALE, None)
            case ports.Ordered(order):
                return self._read_order(order)
            case ports.Started():
                return _T.STARTED, event
            case ports.BlobStored(digest, intact):
                return (_T.STALE if intact else _T.BLOB_GONE), digest

    def _read_message(self, sender: ports.Node, message: Any) -> tuple[Trigger, Any]:
        kind, state = type(message), self.state
        if kind is FetchBlob:
            named = any(m.run.names(message.digest) for m in self.runs.active())
            return (_T.FETCH if named else _T.STALE), (sender, message)
        if kind in messages.UP:
            run = self._run_of(message)
            if run is not None:
                return _T.OF_RUN, (run.run, self.out.event)
            return _T.LATE_SESSION, (sender, message)
        if kind not in (EdgeHello, EdgeProgress, EdgeSum, HelpSum):
            raise ports.ProtocolError(f"{self.node}: an edge sends no {kind.__name__}")
        edge = sender.number
        if message.edge != edge:
            raise ports.ProtocolError(f"{self.node}: {sender} names itself edge {message.edge}")
        if kind is EdgeHello:
            if message.protocol < ports.PROTOCOL:
                raise ports.ProtocolError(f"{sender} supports protocol {message.protocol} at most")
            lists = [message.ready, *(away.devices for away in message.away)]
            fits = sum(map(len, lists)) <= ports.DEVICES_PER_EDGE_MAX
            fits = fits and message.pace < PACE_NUMBER_MAX
            fits = fits and max(max(each, default=0) for each in lists) < DEVICE_NUMBER_MAX
            room = edge in state.edges or len(state.edges) < ports.EDGES_MAX
            fresh = fits and room and self.runs.roster().is_new(message)
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

    def _run_of(self, message: Any) -> coordinator_state.RunState | None:
        """The active run that a message is about."""
        run = self.state.runs.get(number_of(message.run))
        return run if run is not None and self.runs.machine_of(run).run.is_about(message) else None

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        if isinstance(order, DeniedVersion):
            return (_T.STALE if order.version == self.state.denied else _T.DENIED), order
        if isinstance(order, Checkpoint):
            known = self.state.log is not None and order == self.state.log.signed
            useless = known or self.runs.identity is None or self.runs.log is None
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


def order_key(order: RunOrder | DrainEdge) -> tuple[str, str]:
    """The subject of an order, and its kind."""
    if isinstance(order, DrainEdge):
        return f"edge {order.edge}", "drain" if order.draining else "serve"
    return f"run {order.run}", order.WhichOneof("order") or ""


def restore(data: bytes) -> coordinator_state.CoordinatorState:
    """The state that `Coordinator.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(coordinator_state.CoordinatorState, data)
