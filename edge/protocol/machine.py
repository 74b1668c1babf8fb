"""The edge's protocol: its table, and the guards that read events.

`edge_actions` has the actions, `collection` the table of one attempt at a round, `mask_helper` the
actions of a helper. An edge cannot read an update, for it only adds vectors of the ring. It does
not know what a device trains or which round comes next.

An edge keeps a pool of devices that checked in and reports them to the cloud (EdgeHello). A task
from the cloud opens a collection, which tasks the devices, adds up what they answer and sends the
sum. Several are open at once: of runs that share the fleet, and of one run whose attempts overlap;
a device works for one of them. Bundles and weights are fetched once and served to all devices
that ask.

Its own side may take it out of service, and so may the cloud by its Pace. It drains while either
wants it: it sends its pool on to other homes and goes on with what it has begun.

Messages of secure aggregation pass through it, under the name of their device; it keeps none.

An event of an open attempt is handed to its collection, whose name its timers carry. The answers
are kept beyond the attempt, so that a repeated answer gets the same status. Nothing that is done
for one device takes longer in a larger pool.
"""

from __future__ import annotations

from typing import Any

from ...core.privacy.secagg import messages
from ...core.privacy.secagg.helper import Helper
from ...core.privacy.secagg.member_identity import Identity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.signed_task import check
from ...core.protocol import ports, snapshot
from ...core.protocol.machine import IGNORE, Machine, Output, index, row
from ...core.wire.admission_pb2 import CheckIn, Pace
from ...core.wire.blob_pb2 import Blob, FetchBlob
from ...core.wire.helper_pb2 import HelpRequest
from ...core.wire.journal_pb2 import DeniedVersion, Drain, Forget, Left, SplitTrained
from ...core.wire.log_pb2 import LogUpdate
from ...core.wire.round_pb2 import EdgeSumAck, EdgeTask, Failure, Flush, RoundClosed, Upload
from . import device_pool
from .collection import is_sane, name_of, needed_bytes, sum_bytes
from .edge_actions import Edge
from .edge_state import COLLECTIONS_MAX, HELPING_MAX, EdgePolicy, EdgeState, Phase
from .edge_triggers import DRAINING, OFFLINE, ON, SERVING, Trigger
from .mask_helper import NOTICES

#: Largest message that an edge takes: from a device that owes no update (a session's are smaller),
#: and from the cloud, whose EdgeTask names up to 100,000 devices.
SMALL_BYTES_MAX = 64 * 1024
CLOUD_BYTES_MAX = 2 * 2**20
#: What an Upload in its envelope, with a trace's context, is longer than its vector, at most.
UPLOAD_HEAD_BYTES = 256

_T = Trigger

TABLE = (
    row(OFFLINE, _T.STARTED, Edge.start, SERVING, "send an EdgeHello"),
    row(ON, _T.STARTED, Edge.restart, None, "the state survived: set the timers again"),
    row(ON, _T.CHECK_IN, Edge.admit, None, "Accept or Reject"),
    row(ON, _T.PACE, Edge.keep_pace, None, "how many devices, and when they come back"),
    row(SERVING, _T.PACE_DRAINS, Edge.drain_by_pace, DRAINING, "release the devices"),
    row(DRAINING, _T.PACE_OPENS, Edge.keep_pace, SERVING, "take devices again"),
    row(ON, _T.HELLO_DUE, Edge.hello, None, "the pool changed, or a heartbeat"),
    row(ON, _T.FETCH, Edge.serve, None, "send it, now or when it is here"),
    row(ON, _T.BLOB, Edge.keep, None, "store it"),
    row(ON, _T.STORED, Edge.serve_waiting, None, "send it to all devices that asked"),
    row(ON, _T.BLOB_GONE, Edge.refetch, None, "ask for it again where a task names it"),
    row(ON, _T.CORRUPT, IGNORE, None, "the next repetition asks again"),
    row(ON, _T.FETCH_DUE, Edge.fetch_again, None, "request or blob was lost"),
    row(ON, _T.TASK, Edge.open, None, "a collection of its own"),
    row(ON, _T.NO_ROOM, Edge.turn_down, None, "an empty sum, so that the cloud does not wait"),
    row(ON, _T.REFUSED, Edge.refuse_task, None, "record why; devices would refuse it too"),
    row(ON, _T.ATTEMPT, Edge.pass_on, None, "its collection handles it"),
    row(ON, _T.ANSWER_AGAIN, Edge.ack_again, None, "the UploadAck was lost"),
    row(ON, _T.LATE_ANSWER, Edge.ack_late, None, "it is in no sum"),
    row(ON, _T.CLOSED, Edge.close, None, "its weights may be of no use any more"),
    row(ON, _T.SESSION_UP, Edge.pass_up, None, "to the cloud, from whichever device"),
    row(ON, _T.SESSION_DOWN, Edge.pass_down, None, "to the device that it names"),
    row(ON, _T.HELP, Edge.help, None, "open the seeds, once only, and add up their masks"),
    row(ON, _T.HELPED, Edge.give, None, "to the cloud"),
    row(tuple(Phase), _T.LOG_UPDATE, Edge.keep_log, None, "take it if it continues the known one"),
    row(tuple(Phase), _T.DENIED, Edge.keep_denied, None, "needed to help"),
    row(SERVING, _T.DRAIN, Edge.drain, DRAINING, "release the devices; open attempts continue"),
    row(DRAINING, _T.OPEN_AGAIN, Edge.serve_again, SERVING, "take devices again"),
    row(DRAINING, _T.DRAIN_TOO, Edge.keep_order, None, "the cloud's Pace drains it too, or still"),
    row(ON, _T.FORGET, Edge.forget, None, "its answer is not waited for"),
    row(SERVING, _T.LEFT, Edge.leave_out, None, "it can be given no task; one that it has goes on"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


class EdgeMachine(Machine[EdgeState]):
    """One edge. Number 0 is the coordinator's own, for devices that connect to the cloud directly.

    helper: holds what unmasks for runs that name this edge; None: it does not help.
    identity: verifies the coordinator's signature on tasks; None: it passes them on unseen.
    """

    rows = index(TABLE)

    def __init__(
        self,
        state: EdgeState,
        policy: EdgePolicy | None = None,
        helper: Helper | None = None,
        identity: Identity | None = None,
    ) -> None:
        policy, out = policy or EdgePolicy(), Output()
        self.edge = Edge(state, out, policy, helper)
        super().__init__(state, out, self.edge)
        self.node = ports.Node(ports.Tier.EDGE, state.edge)
        self.policy = policy
        self.identity = identity

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ what a transport asks

    @property
    def wanted(self) -> dict[bytes, int]:
        """Digest -> size in bytes of the blobs that it would take now."""
        return self.edge.missing()

    def limit(self, sender: ports.Node) -> int:
        """Bytes of the largest message that it would take from a node now."""
        if sender.tier is not ports.Tier.DEVICE:
            return CLOUD_BYTES_MAX
        # A late update is read too, for its device waits for the answer.
        sizes = [c.upload_bytes for c in self.edge.attempts.values()]
        sizes += [c.upload_bytes for c in self.state.closed.values()]
        return max(SMALL_BYTES_MAX, max(sizes, default=0) + UPLOAD_HEAD_BYTES)

    # ------------------------------------------------ reading events

    def read(self, event: ports.Event) -> tuple[Trigger, Any]:
        if isinstance(event, ports.Received):  # most are, and a case takes five times as long
            sender = event.sender
            if sender.tier is ports.Tier.DEVICE:
                return self._read_device(sender, event.message)
            if sender == ports.CLOUD:
                return self._read_cloud(event.message)
            raise ports.ProtocolError(f"{self.node}: a message from {sender}")
        match event:
            case ports.TimerFired(name):
                return self._read_timer(name)
            case ports.BlobStored(digest, intact):
                if digest in self.edge.missing():
                    return (_T.STORED if intact else _T.CORRUPT), digest
                gone = not intact and digest in self.state.have
                return (_T.BLOB_GONE if gone else _T.STALE), digest
            case ports.Started(stored):
                return _T.STARTED, stored
            case ports.Ordered(order):
                return self._read_order(order)
            case ports.ProgramFinished(ticket, outcome):
                return self._read_masks(ticket, outcome)

    def _read_device(self, sender: ports.Node, message: Any) -> tuple[Trigger, Any]:
        kind, device = type(message), sender.number
        if kind is FetchBlob:
            return _T.FETCH, (device, message)
        if kind not in (CheckIn, Upload, Failure, *messages.UP):
            raise ports.ProtocolError(f"{self.node}: a device sends no {kind.__name__}")
        if message.device != device:
            raise ports.ProtocolError(f"{self.node}: {sender} names itself device {message.device}")
        if kind is CheckIn:
            at_work = self.edge.at_work(device)
            if at_work is not None and at_work.attempt.left_ms(self.now) > 0:
                return _T.ATTEMPT, at_work
            return (_T.STALE if device_pool.is_old(self.state, message) else _T.CHECK_IN), message
        if kind in messages.UP:
            return _T.SESSION_UP, message
        name = name_of(message)
        if name in self.edge.attempts:
            return _T.ATTEMPT, self.edge.attempts[name]
        closed = self.state.closed.get(name)
        known = closed is not None and device in closed.answers
        return (_T.ANSWER_AGAIN if known else _T.LATE_ANSWER), message

    def _read_cloud(self, message: Any) -> tuple[Trigger, Any]:
        kind = type(message)
        if kind is Pace:
            if self.state.pace is not None and message.number <= self.state.pace.number:
                return _T.STALE, message
            drains = message.draining or self.state.drained
            if drains and self.state.phase is SERVING:
                return _T.PACE_DRAINS, message
            opens = not drains and self.state.phase is DRAINING
            return (_T.PACE_OPENS if opens else _T.PACE), message
        if kind is Blob:
            return (_T.BLOB if message.digest in self.edge.missing() else _T.STALE), message
        if kind in messages.DOWN or (kind is RoundClosed and message.HasField("device")):
            return _T.SESSION_DOWN, message
        if kind is HelpRequest:
            return self._read_help(message), message
        if kind not in (EdgeTask, Flush, EdgeSumAck, RoundClosed):
            raise ports.ProtocolError(f"{self.node}: the cloud sends no {kind.__name__}")
        about = message.task if kind is EdgeTask else message
        name, at = name_of(about), (about.round, about.attempt)
        collection = self.edge.attempts.get(name)
        known = collection is not None or name in self.state.closed
        old = not known and at <= self.state.floor.get(about.run, (0, 0))
        if kind is RoundClosed:
            return (_T.STALE if old else _T.CLOSED), message
        if collection is not None:
            # A running sum that starts again needs room besides the one that goes up.
            restarts = kind is Flush and message.go_on and collection.state.counted > 0
            room = not restarts or self.edge.has_room(sum_bytes(collection.task))
            return (_T.ATTEMPT if room else _T.STALE), collection
        if kind is EdgeTask and known and self.state.closed[name].turned_down:
            return _T.NO_ROOM, message  # the empty sum was lost, or the task came twice
        if kind is not EdgeTask or known or old or not is_sane(message):
            return _T.STALE, message
        try:
            if self.identity is not None:
                check(message.task, self.identity, self.now // ports.SECOND)
        except SecureError as fault:
            return _T.REFUSED, (message, fault.reason)
        count = len(self.edge.attempts) - len(self.edge.superseded(message))
        fits = count < COLLECTIONS_MAX and self.edge.has_room(needed_bytes(message), message)
        fits = fits and self.edge.has_blob_room(message)
        return (_T.TASK if fits else _T.NO_ROOM), message

    def _read_timer(self, name: str) -> tuple[Trigger, Any]:
        if name == "hello":
            return _T.HELLO_DUE, None
        if name == "fetch":
            return (_T.FETCH_DUE if self.edge.missing() else _T.STALE), None
        collection = self.edge.attempts.get(name.partition("/")[0])
        return (_T.STALE, None) if collection is None else (_T.ATTEMPT, collection)

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        if isinstance(order, Forget):
            return _T.FORGET, order
        if isinstance(order, Left):
            known = order.device in self.state.pool or order.device in self.state.away
            return (_T.LEFT if known and self.state.phase is SERVING else _T.STALE), order
        if isinstance(order, SplitTrained):
            attempt = self.edge.attempts.get(name_of(order))
            return (_T.STALE, order) if attempt is None else (_T.ATTEMPT, attempt)
        if isinstance(order, NOTICES):
            return self._read_notice(order), order
        if isinstance(order, Drain):
            state = self.state
            if order.draining == state.drained or state.phase is OFFLINE:
                return _T.STALE, order
            if state.phase is SERVING:
                return _T.DRAIN, order
            drains = order.draining or self.edge.cloud_drains
            return (_T.DRAIN_TOO if drains else _T.OPEN_AGAIN), order
        raise ports.ProtocolError(
            f"{self.node}: an edge takes no {type(order).__name__} as an order"
        )

    def _read_help(self, message: HelpRequest) -> Trigger:
        asked = (message.run, message.batch)
        busy = self.state.helping.values()
        if self.edge.mask_helper.helper is None or asked in [(one.run, one.batch) for one in busy]:
            return _T.STALE
        # More are asked for again when these are done.
        return _T.HELP if len(busy) < HELPING_MAX else _T.STALE

    def _read_masks(self, ticket: int, outcome: Any) -> tuple[Trigger, Any]:
        if ticket in self.state.helping:
            return _T.HELPED, (ticket, outcome)
        waiting = self.edge.of_program(ticket)
        return (_T.STALE, None) if waiting is None else (_T.ATTEMPT, waiting)

    def _read_notice(self, order: DeniedVersion | LogUpdate) -> Trigger:
        state = self.state
        if isinstance(order, DeniedVersion):
            known = state.denied_version, state.denied_issued_s
            newer = (order.version, order.issued_s) > known if order.version else known == (0, 0)
            return _T.DENIED if newer else _T.STALE
        helper = self.edge.mask_helper.helper
        logged = helper is not None and helper.rules.required
        fits = logged and order.old_size == state.ledger.log.size
        return _T.LOG_UPDATE if fits else _T.STALE

    def devices(self) -> set[int]:
        """The devices that are in the pool, or on their way there, or waited for."""
        state = self.state
        asked = (askers.keys() for askers in state.asked.values())
        waiting = (collection.state.waiting for collection in self.edge.attempts.values())
        return {*state.pool, *state.check_ins}.union(*asked, *waiting)


def restore(data: bytes) -> EdgeState:
    """The state that `EdgeMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(EdgeState, data)
