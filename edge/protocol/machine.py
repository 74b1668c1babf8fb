"""The edge's protocol. Everything that decides what an edge does next lives in this file, and, for
one attempt at a round, in `edge.protocol.collection`; it cannot read an update, for it only adds
vectors of the ring, and it does not know what a device trains or which round comes next.

An edge keeps a pool of devices that checked in and tells the cloud who is in it (EdgeHello). A task
from the cloud opens a collection, which tasks the devices, adds up what they answer and sends the
sum. Several are open at once: of runs that share the fleet, and of one run whose attempts overlap;
a device works for one of them. Bundles and weights are fetched once and served to all who ask.

Its own side may take it out of service, and so may the cloud by its Pace. It drains while either
wants it: it sends its pool on to other homes and goes on with what it has begun.

Messages of secure aggregation pass through it, under the name of their device; it keeps none.

An event of an open attempt is handed to its collection, whose name its timers carry. Who answered
is remembered beyond the attempt, so that a repeated answer is told what became of it. Nothing that
is done for one device takes longer in a larger pool.
"""

from __future__ import annotations

from typing import Any

from ...core.privacy.secagg import messages
from ...core.privacy.secagg.helper import Helper
from ...core.privacy.secagg.member_identity import Identity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.signed_task import check
from ...core.protocol import snapshot
from ...core.protocol.machine import index
from ...core.protocol.ports import (
    CLOUD,
    PROTOCOL,
    SECOND,
    BlobStored,
    DropBlob,
    Event,
    Node,
    Ordered,
    ProgramFinished,
    ProtocolError,
    Received,
    SendBlob,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
)
from ...core.protocol.run_names import least_useful
from ...core.wire.admission_pb2 import DRAINING as SENT_ON
from ...core.wire.admission_pb2 import CheckIn, EdgeHello, Pace, Reject
from ...core.wire.blob_pb2 import Blob, FetchBlob
from ...core.wire.helper_pb2 import HelpRequest
from ...core.wire.journal_pb2 import Drain, Forget
from ...core.wire.round_pb2 import (
    COUNTED,
    LATE,
    TRAIN,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    Failure,
    Flush,
    RoundClosed,
    Upload,
)
from . import device_pool
from .collection import (
    Collection,
    ack,
    is_sane,
    name_of,
    needed_bytes,
    status_of,
    sum_bytes,
    upload_bytes,
)
from .edge_state import (
    ANSWERS_REMEMBERED,
    BUNDLES_KEPT,
    CLOSED_MAX,
    CLOSED_PER_RUN,
    COLLECTIONS_MAX,
    IN_SUM,
    RUNS_REMEMBERED,
    WEIGHTS_KEPT,
    Closed,
    CollectionState,
    EdgePolicy,
    EdgeState,
    Stage,
)
from .mask_helper import NOTICES, HelperMachine
from .table import DRAINING, OFFLINE, SERVING
from .table import TABLE as TABLE
from .table import Trigger as Trigger

#: Largest message that an edge takes: from a device that owes no update (a session's are smaller),
#: and from the cloud, whose EdgeTask names up to 100,000 devices.
SMALL_BYTES_MAX = 64 * 1024
CLOUD_BYTES_MAX = 2 * 2**20
#: What an Upload in its envelope, with a trace's context, is longer than its vector, at most.
UPLOAD_HEAD_BYTES = 256

_T = Trigger


class EdgeMachine(HelperMachine):
    """One edge. Number 0 is the coordinator's own, for devices that speak to the cloud directly.

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
        super().__init__(state)
        self.helper, self.identity = helper, identity
        self.node = Node(Tier.EDGE, state.edge)
        self.policy = policy or EdgePolicy()
        self._tasked: dict[int, Collection] = {}
        self._open = {
            name: Collection(one, state.edge, self.policy, self._tasked)
            for name, one in state.collections.items()
        }

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ what a transport asks

    @property
    def wanted(self) -> dict[bytes, int]:
        """Digest -> size in bytes of the blobs that it would take now."""
        return self._missing()

    def limit(self, sender: Node) -> int:
        """Bytes of the largest message that it would take from a node now."""
        if sender.tier is not Tier.DEVICE:
            return CLOUD_BYTES_MAX
        # A late update is read too, for its device waits for the answer.
        sizes = [c.upload_bytes for c in self._open.values()]
        sizes += [c.upload_bytes for c in self.state.closed.values()]
        return max(SMALL_BYTES_MAX, max(sizes, default=0) + UPLOAD_HEAD_BYTES)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        if isinstance(event, Received):  # most are, and a case takes five times as long
            sender = event.sender
            if sender.tier is Tier.DEVICE:
                return self._read_device(sender, event.message)
            if sender == CLOUD:
                return self._read_cloud(event.message)
            raise ProtocolError(f"{self.node}: a message from {sender}")
        match event:
            case TimerFired(name):
                return self._read_timer(name)
            case BlobStored(digest, intact):
                if digest in self._missing():
                    return (_T.STORED if intact else _T.CORRUPT), digest
                gone = not intact and digest in self.state.have
                return (_T.BLOB_GONE if gone else _T.STALE), digest
            case Started(stored):
                return _T.STARTED, stored
            case Ordered(order):
                return self._read_order(order)
            case ProgramFinished(ticket, outcome):
                return self._read_masks(ticket, outcome)

    def _read_device(self, sender: Node, message: Any) -> tuple[Trigger, Any]:
        kind, device = type(message), sender.number
        if kind is FetchBlob:
            return _T.FETCH, (device, message)
        if kind not in (CheckIn, Upload, Failure, *messages.UP):
            raise ProtocolError(f"{self.node}: a device sends no {kind.__name__}")
        if message.device != device:
            raise ProtocolError(f"{self.node}: {sender} names itself device {message.device}")
        if kind is CheckIn:
            at_work = self._tasked.get(device)
            if at_work is not None and at_work.left_ms(self.now) > 0:
                return _T.ATTEMPT, at_work
            return (_T.STALE if device_pool.is_old(self.state, message) else _T.CHECK_IN), message
        if kind in messages.UP:
            return _T.SESSION_UP, message
        name = name_of(message)
        if name in self._open:
            return _T.ATTEMPT, self._open[name]
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
            return (_T.BLOB if message.digest in self._missing() else _T.STALE), message
        if kind in messages.DOWN or (kind is RoundClosed and message.HasField("device")):
            return _T.SESSION_DOWN, message
        if kind is HelpRequest:
            return self._read_help(message), message
        if kind not in (EdgeTask, Flush, EdgeSumAck, RoundClosed):
            raise ProtocolError(f"{self.node}: the cloud sends no {kind.__name__}")
        about = message.task if kind is EdgeTask else message
        name, at = name_of(about), (about.round, about.attempt)
        collection = self._open.get(name)
        known = collection is not None or name in self.state.closed
        old = not known and at <= self.state.floor.get(about.run, (0, 0))
        if kind is RoundClosed:
            return (_T.STALE if old else _T.CLOSED), message
        if collection is not None:
            # A running sum that starts anew needs room beside the one that goes up.
            anew = kind is Flush and message.go_on and collection.state.counted > 0
            room = not anew or self._has_room(sum_bytes(collection.task))
            return (_T.ATTEMPT if room else _T.STALE), collection
        if kind is EdgeTask and known and self.state.closed[name].turned_down:
            return _T.NO_ROOM, message  # the empty sum was lost, or the task came twice
        if kind is not EdgeTask or known or old or not is_sane(message):
            return _T.STALE, message
        try:
            if self.identity is not None:
                check(message.task, self.identity, self.now // SECOND)
        except SecureError as fault:
            return _T.REFUSED, (message, fault.reason)
        count = len(self._open) - len(self._superseded(message))
        fits = count < COLLECTIONS_MAX and self._has_room(needed_bytes(message), message)
        return (_T.TASK if fits else _T.NO_ROOM), message

    def _read_timer(self, name: str) -> tuple[Trigger, Any]:
        if name == "hello":
            return _T.HELLO_DUE, None
        if name == "fetch":
            return (_T.FETCH_DUE if self._missing() else _T.STALE), None
        collection = self._open.get(name.partition("/")[0])
        return (_T.STALE, None) if collection is None else (_T.ATTEMPT, collection)

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        if isinstance(order, Forget):
            return _T.FORGET, order
        if isinstance(order, NOTICES):
            return self._read_notice(order), order
        if isinstance(order, Drain):
            state = self.state
            if order.draining == state.drained or state.phase is OFFLINE:
                return _T.STALE, order
            if state.phase is SERVING:
                return _T.DRAIN, order
            drains = order.draining or self._told_draining()
            return (_T.DRAIN_TOO if drains else _T.OPEN_AGAIN), order
        raise ProtocolError(f"{self.node}: an edge takes no {type(order).__name__} as an order")

    # ------------------------------------------------ the pool

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.hello(None)

    def restart(self, stored: tuple[bytes, ...]) -> None:
        self.state.helping = {}  # the cloud asks again
        self.start(stored)
        for collection in list(self._open.values()):
            self.pass_on(collection)
        self._fetch_missing()

    def hello(self, _: object) -> None:
        """Tells the cloud who is here. The only work that grows with the pool: it is done once for
        all changes of `hello_delay_ns`.
        """
        state, draining = self.state, self.state.phase is DRAINING
        for device in [d for d, ends in state.pool.items() if ends <= self.now]:
            del state.pool[device]
        state.hello_sequence += 1
        self.send(
            CLOUD,
            EdgeHello(
                edge=state.edge,
                incarnation=state.incarnation,
                sequence=state.hello_sequence,
                protocol=PROTOCOL,
                ready=sorted(state.pool),
                devices_max=0 if draining else self.policy.devices_max,
                asks_pace=state.pace is None,
                told_draining=self._told_draining(),
                pace=0 if state.pace is None else state.pace.number,
                helper=None if self.helper is None else self.helper.card(),
            ),
        )
        self._hello_at(self.policy.heartbeat_ns)

    def keep_pace(self, pace: Pace) -> None:
        told, before = self._told_draining(), self.state.pace
        self.state.pace = pace
        if pace.draining != told:
            self._hello_soon()  # the cloud repeats its pace until it hears this
        if before is not None and not before.ready_max and pace.ready_max and not pace.draining:
            for device, answer in device_pool.called(self.state, self._tasked):
                self.send(Node(Tier.DEVICE, device), answer)

    def admit(self, message: CheckIn) -> None:
        known = message.device in self.state.pool
        answer = device_pool.admit(self.state, self.policy, message, self.now, len(self._tasked))
        self.send(Node(Tier.DEVICE, message.device), answer)
        if isinstance(answer, Reject):
            self.record("rejected", device=message.device, reason=int(answer.reason))
        if known != (message.device in self.state.pool):
            self._hello_soon()

    def drain_by_pace(self, pace: Pace) -> None:
        self.keep_pace(pace)
        self._send_on()

    def drain(self, order: Drain) -> None:
        self.keep_order(order)
        self._send_on()

    def keep_order(self, order: Drain) -> None:
        self.state.drained = order.draining

    def _told_draining(self) -> bool:
        """Whether the cloud wants it out of service."""
        return self.state.pace is not None and self.state.pace.draining

    def _send_on(self) -> None:
        """Sends the devices of the pool to their other homes."""
        state = self.state
        for device in state.pool:
            sequence = state.check_ins.get(device, 0)
            answer = device_pool.reject(state, self.policy, sequence, SENT_ON, self.now)
            self.send(Node(Tier.DEVICE, device), answer)
        self.record("drained", devices=len(state.pool), attempts=len(self._open))
        state.pool = {}
        self._hello_soon()

    def serve_again(self, order: Drain) -> None:
        self.keep_order(order)
        self._hello_soon()

    def devices(self) -> set[int]:
        """The devices that are in the pool, or on their way there, or waited for."""
        state = self.state
        asked = (askers.keys() for askers in state.asked.values())
        waiting = (collection.state.waiting for collection in self._open.values())
        return {*state.pool, *state.check_ins}.union(*asked, *waiting)

    def forget(self, order: Forget) -> None:
        state, device = self.state, order.device
        if self.helper is not None:
            state.ledger.deny(device)
        state.check_ins.pop(device, None)
        for askers in state.asked.values():
            askers.pop(device, None)
        if state.pool.pop(device, None) is not None:
            self._hello_soon()
        # One that came back when its time was over may be waited for by several.
        for collection in list(self._open.values()):
            if device in collection.state.waiting:
                self.pass_on(collection)

    def _hello_soon(self) -> None:
        soon = self.now + self.policy.hello_delay_ns
        if not self.now < self.state.hello_at_ns <= soon:
            self._hello_at(self.policy.hello_delay_ns)

    def _hello_at(self, delay_ns: int) -> None:
        self.state.hello_at_ns = self.now + delay_ns
        self.set_timer("hello", self.state.hello_at_ns)

    # ------------------------------------------------ blobs

    def serve(self, subject: tuple[int, FetchBlob]) -> None:
        device, message = subject
        state, digest = self.state, message.digest
        if device in self._tasked:
            self._tasked[device].hear(device)
        if digest in state.have:
            self.emit(SendBlob(Node(Tier.DEVICE, device), digest))
            return
        askers = state.asked.get(digest, {})
        if digest in self._missing() and len(askers) < self.policy.devices_max:
            state.asked.setdefault(digest, {})[device] = True
        else:
            self.out.ignore(_T.STALE)

    def keep(self, blob: Blob) -> None:
        self.emit(StoreBlob(blob))

    def serve_waiting(self, digest: bytes) -> None:
        state = self.state
        state.have.append(digest)
        for device in state.asked.pop(digest, {}):
            self.emit(SendBlob(Node(Tier.DEVICE, device), digest))
        if not self._missing():
            self.cancel_timer("fetch")

    def refetch(self, digest: bytes) -> None:
        self.state.have.remove(digest)
        self._fetch_missing()

    def _fetch_missing(self) -> None:
        if self._missing():
            self.state.fetch_tries = 0
            self.fetch_again(None)

    def fetch_again(self, _: object) -> None:
        missing = self._missing()
        for digest in missing:
            self.send(CLOUD, FetchBlob(digest=digest))
        self.state.fetch_tries += 1
        pause = self.policy.backoff.pause(self.state.fetch_tries, sum(missing.values()))
        self.set_timer("fetch", self.now + pause)

    def _missing(self) -> dict[bytes, int]:
        """Digest -> size of what open attempts name and the store has not got."""
        refs = (r for c in self._open.values() for r in (c.task.bundle, c.task.weights))
        have = self.state.have
        return {r.digest: r.size for r in refs if r.digest not in have}

    def _sweep(self) -> None:
        """Drops the blobs that are of no use any more, and who asked for them."""
        state = self.state
        wanted = {*state.bundles, *state.weights.values()}
        for collection in self._open.values():
            wanted |= {collection.task.bundle.digest, collection.task.weights.digest}
        for digest in state.have:
            if digest not in wanted:
                self.emit(DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        missing = self._missing()
        state.asked = {d: askers for d, askers in state.asked.items() if d in missing}
        if not missing:
            self.cancel_timer("fetch")

    # ------------------------------------------------ attempts

    def open(self, message: EdgeTask) -> None:
        state, task = self.state, message.task
        at = (task.round, task.attempt)
        if message.alone:
            for older in self._superseded(message):
                over = RoundClosed(run=task.run, round=older.at[0], attempt=older.at[1])
                self.out.effects += older.handle(Received(CLOUD, over), self.now)
                self._retire(older)
            self._raise_floor(task.run, at)
        # One that is not in the pool any more would not answer: it is not waited for.
        ready = [d for d in message.devices if state.pool.pop(d, None) is not None]
        one = CollectionState(message, waiting=dict.fromkeys(ready, False))
        collection = Collection(one, state.edge, self.policy, self._tasked)
        state.collections[collection.name] = one
        self._open[collection.name] = collection
        bundle = task.bundle.digest
        state.bundles = [*(b for b in state.bundles if b != bundle), bundle][-BUNDLES_KEPT:]
        _keep_newest(state.weights, task.run, task.weights.digest, WEIGHTS_KEPT)
        self.pass_on(collection)
        self._sweep()
        self._fetch_missing()
        self._hello_soon()

    def refuse_task(self, subject: tuple[EdgeTask, str]) -> None:
        """Records why, in a fixed word. Devices would refuse the task too."""
        message, reason = subject
        self.record("task_refused", attempt=name_of(message.task), reason=reason)

    def turn_down(self, message: EdgeTask) -> None:
        task = message.task
        name = name_of(task)
        self.record("turned_down", attempt=name, open=len(self._open))
        if name not in self.state.closed:
            # The empty sum is its answer for good: who is tasked later would work for nothing.
            at = (task.round, task.attempt)
            size = upload_bytes(task)
            self._remember(name, Closed(task.run, at, upload_bytes=size, turned_down=True))
        nothing = EdgeSum(
            run=task.run, round=task.round, attempt=task.attempt, edge=self.state.edge
        )
        self.send(CLOUD, nothing)

    def pass_on(self, collection: Collection) -> None:
        """Lets a collection handle the event at hand."""
        assert self.out.event is not None
        collection.out.carries_beside = self.out.carries_beside
        self.out.effects += collection.handle(self.out.event, self.now)
        if collection.state.phase is Stage.OVER:
            self._retire(collection)

    def close(self, message: RoundClosed) -> None:
        state, name = self.state, name_of(message)
        collection = self._open.get(name)
        if collection is not None:
            self.pass_on(collection)
        elif name not in state.closed:
            # Its task is still on the way, and must find it closed.
            self._remember(name, Closed(message.run, (message.round, message.attempt)))
        # After a round that failed the same weights are asked for again.
        weights = state.closed[name].weights
        if message.succeeded and state.weights.get(message.run) == weights:
            del state.weights[message.run]
        self._sweep()

    def ack_again(self, message: Upload | Failure) -> None:
        answer = self.state.closed[name_of(message)].answers[message.device]
        self.emit(ack(message, status_of(answer, message)))
        self.record("duplicate", device=message.device)

    def ack_late(self, message: Upload | Failure) -> None:
        self.emit(ack(message, LATE))
        if isinstance(message, Upload):
            self.record("late", device=message.device, round=message.round, attempt=message.attempt)

    # ------------------------------------------------ sessions

    def pass_up(self, message: Any) -> None:
        device, name = message.device, name_of(message)
        self.hand_on(CLOUD, message)
        if device in self._tasked:
            self.out.changed = self._tasked[device].hear(device)
        known = self.state.collections.get(name) or self.state.closed.get(name)
        if known is not None and known.answers.get(device) == IN_SUM:
            # It waits for its neighbours, maybe for long: somebody is here.
            self.emit(ack(message, COUNTED))

    def pass_down(self, message: Any) -> None:
        self.hand_on(Node(Tier.DEVICE, message.device), message)

    # ------------------------------------------------ which attempts there are

    def _superseded(self, message: EdgeTask) -> list[Collection]:
        """Open attempts that a task says are over."""
        run, at = message.task.run, (message.task.round, message.task.attempt)
        every = self._open.values() if message.alone else ()
        return [c for c in every if c.task.run == run and c.at < at]

    def _has_room(self, more: int, message: EdgeTask | None = None) -> bool:
        """Whether sums may take so many bytes more, once what a task supersedes is gone."""
        gone = [] if message is None else self._superseded(message)
        held = sum(c.bytes_held for c in self._open.values() if c not in gone)
        return held + more <= self.policy.sum_bytes_max

    def _retire(self, collection: Collection) -> None:
        """Forgets an attempt that is over, but for who answered: a repeated answer is not a late
        one.
        """
        name, task = collection.name, collection.task
        del self._open[name], self.state.collections[name]
        weights = task.weights.digest if task.purpose == TRAIN else b""
        answers = collection.state.answers
        closed = Closed(task.run, collection.at, weights, collection.upload_bytes, answers)
        self._remember(name, closed)
        if not self._missing():
            self.cancel_timer("fetch")

    def _remember(self, name: str, closed: Closed) -> None:
        known = self.state.closed
        known[name] = closed
        of_run = [n for n, c in known.items() if c.run == closed.run]
        if len(of_run) > CLOSED_PER_RUN:
            self._forget_closed(of_run[0])
        answers = sum(len(c.answers) for c in known.values())
        while len(known) > 1 and (len(known) > CLOSED_MAX or answers > ANSWERS_REMEMBERED):
            answers -= self._forget_closed(next(iter(known)))

    def _forget_closed(self, name: str) -> int:
        """Gives the number of answers that are forgotten."""
        closed = self.state.closed.pop(name)
        self._raise_floor(closed.run, closed.at)
        return len(closed.answers)

    def _raise_floor(self, run: int, at: tuple[int, int]) -> None:
        floor = self.state.floor
        _keep_newest(floor, run, max(at, floor.get(run, (0, 0))), RUNS_REMEMBERED)


def _keep_newest(table: dict[int, Any], run: int, value: Any, runs: int) -> None:
    """Sets what is known of a run; of more than so many, forgets the one that is of least use."""
    table.pop(run, None)
    table[run] = value
    if len(table) > runs:
        del table[least_useful(table)]


def restore(data: bytes) -> EdgeState:
    """The state that `EdgeMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(EdgeState, data)
