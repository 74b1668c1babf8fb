"""The actions of an edge; `mask_helper` has those of a helper, `collection` of one attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.privacy.secagg.helper import Helper
from ...core.protocol import ports
from ...core.protocol.machine import Output, Part
from ...core.protocol.run_names import least_useful
from ...core.protocol.task_blobs import kept_with, refs_of, sizes_of, window
from ...core.wire import round_pb2
from ...core.wire.admission_pb2 import DRAINING as SENT_ON
from ...core.wire.admission_pb2 import CheckIn, EdgeHello, Pace, Reject, RejectReason
from ...core.wire.blob_pb2 import Blob, FetchBlob
from ...core.wire.helper_pb2 import HelpRequest
from ...core.wire.journal_pb2 import DeniedVersion, Drain, Forget, Left
from ...core.wire.log_pb2 import LogUpdate
from . import device_pool
from .collection import Collection, ack, name_of, status_of, upload_bytes
from .edge_state import (
    ANSWERS_REMEMBERED,
    BUNDLES_KEPT,
    CLOSED_MAX,
    CLOSED_PER_RUN,
    FETCHES_MAX,
    IN_SUM,
    RUNS_REMEMBERED,
    WEIGHTS_KEPT,
    Closed,
    CollectionState,
    EdgePolicy,
    EdgeState,
    Stage,
)
from .edge_triggers import DRAINING, Trigger
from .mask_helper import MaskHelper

_T = Trigger


class Edge(Part[EdgeState]):
    """The actions of an edge."""

    def __init__(
        self, state: EdgeState, out: Output, policy: EdgePolicy, helper: Helper | None
    ) -> None:
        super().__init__(state, out)
        self.policy = policy
        self.mask_helper = MaskHelper(state, out, policy, helper)
        #: Device -> the attempt that it works for.
        self.tasked: dict[int, str] = {}
        #: The open attempts, by name.
        self.attempts = {
            name: Collection(one, state.edge, policy, self.tasked)
            for name, one in state.collections.items()
        }

    def at_work(self, device: int) -> Collection | None:
        """The attempt that a device works for."""
        return self.attempts.get(self.tasked.get(device, ""))

    # ------------------------------------------------ the pool

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.hello(None)

    def restart(self, stored: tuple[bytes, ...]) -> None:
        self.state.helping = {}  # the cloud asks again
        self.start(stored)
        for collection in list(self.attempts.values()):
            # What devices trained with this edge was in its memory.
            collection.state.split_begun = collection.state.split_ending = 0
            collection.state.trained = {}
            self.pass_on(collection)
        self._begin_splits()
        self._fetch_missing()

    def hello(self, _: object) -> None:
        """Sends the pool to the cloud.

        This is the only work that grows with the pool: all changes of `hello_delay_ns` are one.
        """
        state, now, draining = self.state, self.now, self.state.phase is DRAINING
        for device in [d for d, ends in state.pool.items() if ends <= now]:
            del state.pool[device]
        for device in [d for d, (_, ends) in state.away.items() if ends <= now]:
            del state.away[device]
        state.hello_sequence += 1
        self.send(
            ports.CLOUD,
            EdgeHello(
                edge=state.edge,
                incarnation=state.incarnation,
                sequence=state.hello_sequence,
                protocol=ports.PROTOCOL,
                ready=sorted(state.pool),
                devices_max=0 if draining else self.policy.devices_max,
                asks_pace=state.pace is None,
                told_draining=self.cloud_drains,
                pace=0 if state.pace is None else state.pace.number,
                helper=None if self.mask_helper.helper is None else self.mask_helper.helper.card(),
                away=device_pool.absent(state),
            ),
        )
        self._hello_at(self.policy.heartbeat_ns)

    def keep_pace(self, pace: Pace) -> None:
        told, before = self.cloud_drains, self.state.pace
        self.state.pace = pace
        if pace.draining != told:
            self._hello_soon()  # the cloud repeats its pace until then
        if before is not None and not before.ready_max and pace.ready_max and not pace.draining:
            for device, answer in device_pool.called(self.state, self.tasked):
                self.send(ports.Node(ports.Tier.DEVICE, device), answer)

    def admit(self, message: CheckIn) -> None:
        before = self._place_of(message.device)
        answer = device_pool.admit(self.state, self.policy, message, self.now, len(self.tasked))
        self.send(ports.Node(ports.Tier.DEVICE, message.device), answer)
        if isinstance(answer, Reject):
            self.record("rejected", device=message.device, reason=int(answer.reason))
        if before != self._place_of(message.device):
            self._hello_soon()

    def _place_of(self, device: int) -> int | None:
        """Where an EdgeHello names a device: in the pool, by the reason against it, or nowhere."""
        if device in self.state.pool:
            return RejectReason.REJECT_UNSPECIFIED
        known = self.state.away.get(device)
        return None if known is None else known[0]

    def drain_by_pace(self, pace: Pace) -> None:
        self.keep_pace(pace)
        self._send_on()

    def drain(self, order: Drain) -> None:
        self.keep_order(order)
        self._send_on()

    def keep_order(self, order: Drain) -> None:
        self.state.drained = order.draining

    @property
    def cloud_drains(self) -> bool:
        """Whether the cloud wants it out of service."""
        return self.state.pace is not None and self.state.pace.draining

    def _send_on(self) -> None:
        """Sends the devices of the pool to their other homes."""
        state = self.state
        for device in state.pool:
            sequence = state.check_ins.get(device, 0)
            answer = device_pool.reject(state, self.policy, sequence, SENT_ON, self.now)
            self.send(ports.Node(ports.Tier.DEVICE, device), answer)
        self.record("drained", devices=len(state.pool), attempts=len(self.attempts))
        state.pool, state.away = {}, {}
        self._hello_soon()

    def serve_again(self, order: Drain) -> None:
        self.keep_order(order)
        self._hello_soon()

    def forget(self, order: Forget) -> None:
        state, device = self.state, order.device
        if self.mask_helper.helper is not None:
            state.ledger.deny(device)
        state.check_ins.pop(device, None)
        state.away.pop(device, None)
        for askers in state.asked.values():
            askers.pop(device, None)
        if state.pool.pop(device, None) is not None:
            self._hello_soon()
        # One that came back when its time was over may be waited for by several.
        for collection in list(self.attempts.values()):
            if device in collection.state.waiting:
                self.pass_on(collection)

    def leave_out(self, order: Left) -> None:
        self.state.pool.pop(order.device, None)
        self.state.away.pop(order.device, None)
        self._hello_soon()

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
        at_work = self.at_work(device)
        if at_work is not None:
            at_work.hear(device)
        if digest in state.have:
            self.emit(ports.SendBlob(ports.Node(ports.Tier.DEVICE, device), digest))
            return
        askers = state.asked.get(digest, {})
        if digest in self.missing() and len(askers) < self.policy.devices_max:
            state.asked.setdefault(digest, {})[device] = True
        else:
            self.out.ignore(_T.STALE)

    def keep(self, blob: Blob) -> None:
        self.emit(ports.StoreBlob(blob))

    def serve_waiting(self, digest: bytes) -> None:
        state = self.state
        before = window(self.missing(), FETCHES_MAX)
        state.have.append(digest)
        for device in state.asked.pop(digest, {}):
            self.emit(ports.SendBlob(ports.Node(ports.Tier.DEVICE, device), digest))
        self._begin_splits()
        missing = self.missing()
        if not missing:
            self.cancel_timer("fetch")
            return
        after = window(missing, FETCHES_MAX)
        if more := [d for d in after if d not in before]:
            state.fetch_tries = 0
            self._ask(more, sum(after.values()))

    def refetch(self, digest: bytes) -> None:
        self.state.have.remove(digest)
        self._fetch_missing()

    def _fetch_missing(self) -> None:
        if self.missing():
            self.state.fetch_tries = 0
            self.fetch_again(None)

    def fetch_again(self, _: object) -> None:
        asked = window(self.missing(), FETCHES_MAX)
        self._ask(list(asked), sum(asked.values()))

    def _ask(self, digests: list[bytes], size: int) -> None:
        """Asks the cloud for blobs. size: bytes of all that it has been asked for."""
        for digest in digests:
            self.send(ports.CLOUD, FetchBlob(digest=digest))
        self.state.fetch_tries += 1
        pause = self.policy.backoff.pause(self.state.fetch_tries, size)
        self.set_timer("fetch", self.now + pause)

    def missing(self) -> dict[bytes, int]:
        """Digest -> size of what open attempts name and the store has not got."""
        if not self.attempts:
            return {}
        have = set(self.state.have)
        return {d: size for d, size in self._needed().items() if d not in have}

    def _needed(self, gone: Sequence[Collection] = ()) -> dict[bytes, int]:
        """Digest -> size of what open attempts name. gone: of these those that are over."""
        every = [c.task for c in self.attempts.values() if c not in gone]
        return sizes_of(ref for task in every for ref in refs_of(task))

    def _sweep(self) -> None:
        """Drops blobs that are not needed any more, and the requests for them."""
        state = self.state
        weights = {*state.weights.values()}
        state.weight_sizes = {d: n for d, n in state.weight_sizes.items() if d in weights}
        wanted = {*state.kept, *weights, *self._needed()}
        for digest in state.have:
            if digest not in wanted:
                self.emit(ports.DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        missing = self.missing()
        state.asked = {d: askers for d, askers in state.asked.items() if d in missing}
        if not missing:
            self.cancel_timer("fetch")

    # ------------------------------------------------ attempts

    def open(self, message: round_pb2.EdgeTask) -> None:
        state, task = self.state, message.task
        at = (task.round, task.attempt)
        if message.alone:
            for older in self.superseded(message):
                over = round_pb2.RoundClosed(run=task.run, round=older.at[0], attempt=older.at[1])
                self.delegate(older, ports.Received(ports.CLOUD, over))
                self._end_split(older)
                self._retire(older)
            self._raise_floor(task.run, at)
        # One that is not in the pool any more would not answer: it is not waited for.
        ready = [d for d in message.devices if state.pool.pop(d, None) is not None]
        one = CollectionState(message, waiting=dict.fromkeys(ready, False))
        collection = Collection(one, state.edge, self.policy, self.tasked)
        state.collections[collection.name] = one
        self.attempts[collection.name] = collection
        self._keep_blobs(task)
        _keep_newest(state.weights, task.run, task.weights.digest, WEIGHTS_KEPT)
        state.weight_sizes[task.weights.digest] = task.weights.size
        self.pass_on(collection)
        self._sweep()
        self._begin_splits()
        self._fetch_missing()
        self._hello_soon()

    def _begin_splits(self) -> None:
        """Lets devices train with this edge, where it is to and has what that takes."""
        have = set(self.state.have)
        for collection in self.attempts.values() if self.policy.splits else ():
            one, task = collection.state, collection.task
            blobs = tuple(ref.digest for ref in refs_of(task))
            due = task.split and one.phase is Stage.COLLECTING and not one.split_begun
            if due and have.issuperset(blobs):
                self.state.tickets += 1
                one.split_begun = self.state.tickets
                named = (collection.name,)
                self.emit(ports.RunProgram(one.split_begun, "split_begin", blobs, named, task))

    def _end_split(self, collection: Collection) -> None:
        """Asks for the sum of what this edge trained of an attempt's updates; or ends that."""
        one = collection.state
        owes = collection.attempt.owes_parts
        if (owes and not one.split_ending) or (one.phase is Stage.OVER and one.split_begun):
            self.state.tickets += 1
            one.split_ending = self.state.tickets
            parts = sorted(one.splits.items()) if owes else []
            given = (collection.name, parts)
            self.emit(ports.RunProgram(one.split_ending, "split_end", (), given, collection.task))
            one.split_begun = 0

    def of_program(self, ticket: int) -> Collection | None:
        """The attempt that waits for a program's end."""
        waiting = (c for c in self.attempts.values() if c.state.split_ending == ticket)
        return next(waiting, None)

    def _keep_blobs(self, task: round_pb2.Task) -> None:
        """Keeps bundle and frozen parts for later tasks, and lets go of the least used ones."""
        state, bundle = self.state, task.bundle.digest
        bundles = [*(b for b in state.bundles if b != bundle), bundle]
        over = bundles[:-BUNDLES_KEPT]
        # A snapshot of a former version has no sizes of bundles.
        before = {d: 0 for d in bundles if d not in state.kept} | state.kept
        before = {d: size for d, size in before.items() if d not in over}
        needed = {**state.weight_sizes, **self._needed()}
        state.kept = kept_with(task, before, needed, self.policy.blobs_bytes_max)
        state.bundles = [b for b in bundles if b in state.kept]

    def refuse_task(self, subject: tuple[round_pb2.EdgeTask, str]) -> None:
        """Records why, in a fixed word. Devices would refuse the task too."""
        message, reason = subject
        self.record("task_refused", attempt=name_of(message.task), reason=reason)

    def turn_down(self, message: round_pb2.EdgeTask) -> None:
        task = message.task
        name = name_of(task)
        self.record("turned_down", attempt=name, open=len(self.attempts))
        if name not in self.state.closed:
            # The empty sum is its final answer: a device tasked later would work for nothing.
            at = (task.round, task.attempt)
            size = upload_bytes(task)
            self._remember(name, Closed(task.run, at, upload_bytes=size, turned_down=True))
        nothing = round_pb2.EdgeSum(
            run=task.run, round=task.round, attempt=task.attempt, edge=self.state.edge
        )
        self.send(ports.CLOUD, nothing)

    def pass_on(self, collection: Collection) -> None:
        """Lets a collection handle the event at hand."""
        self.delegate(collection, self.out.event)
        self._end_split(collection)
        if collection.state.phase is Stage.OVER:
            self._retire(collection)

    def close(self, message: round_pb2.RoundClosed) -> None:
        state, name = self.state, name_of(message)
        collection = self.attempts.get(name)
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

    def ack_again(self, message: round_pb2.Upload | round_pb2.Failure) -> None:
        answer = self.state.closed[name_of(message)].answers[message.device]
        self.emit(ack(message, status_of(answer, message)))
        self.record("duplicate", device=message.device)

    def ack_late(self, message: round_pb2.Upload | round_pb2.Failure) -> None:
        self.emit(ack(message, round_pb2.LATE))
        if isinstance(message, round_pb2.Upload):
            self.record("late", device=message.device, round=message.round, attempt=message.attempt)

    # ------------------------------------------------ sessions

    def pass_up(self, message: Any) -> bool:
        device, name = message.device, name_of(message)
        self.send(ports.CLOUD, message)
        at_work = self.at_work(device)
        first = at_work is not None and at_work.hear(device)
        known = self.state.collections.get(name) or self.state.closed.get(name)
        if known is not None and known.answers.get(device) == IN_SUM:
            # It waits for its neighbours, maybe for long: its home is here.
            self.emit(ack(message, round_pb2.COUNTED))
        return first

    def pass_down(self, message: Any) -> bool:
        self.send(ports.Node(ports.Tier.DEVICE, message.device), message)
        return False

    # ------------------------------------------------ an edge that helps

    def help(self, message: HelpRequest) -> None:
        self.mask_helper.help(message)

    def give(self, subject: tuple[int, Any]) -> None:
        self.mask_helper.give(*subject)

    def keep_denied(self, order: DeniedVersion) -> None:
        self.mask_helper.keep_denied(order)

    def keep_log(self, update: LogUpdate) -> None:
        self.mask_helper.keep_log(update)

    # ------------------------------------------------ which attempts there are

    def superseded(self, message: round_pb2.EdgeTask) -> list[Collection]:
        """Open attempts that a task says are over."""
        run, at = message.task.run, (message.task.round, message.task.attempt)
        every = self.attempts.values() if message.alone else ()
        return [c for c in every if c.task.run == run and c.at < at]

    def has_room(self, more: int, message: round_pb2.EdgeTask | None = None) -> bool:
        """Whether sums may take so many bytes more, once what a task supersedes is gone."""
        gone = [] if message is None else self.superseded(message)
        held = sum(c.bytes_held for c in self.attempts.values() if c not in gone)
        return held + more <= self.policy.sum_bytes_max

    def has_blob_room(self, message: round_pb2.EdgeTask) -> bool:
        """Whether the store takes what a task names, with what open attempts need of it."""
        needed = self._needed(self.superseded(message)) | sizes_of(refs_of(message.task))
        return sum(needed.values()) <= self.policy.blobs_bytes_max

    def _retire(self, collection: Collection) -> None:
        """Drops an attempt that is over, but keeps the answers: a repeated one is not late."""
        name, task = collection.name, collection.task
        del self.attempts[name], self.state.collections[name]
        weights = task.weights.digest if task.purpose == round_pb2.TRAIN else b""
        answers = collection.state.answers
        closed = Closed(task.run, collection.at, weights, collection.upload_bytes, answers)
        self._remember(name, closed)
        if not self.missing():
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
    """Sets the value of a run; drops the least useful of more than `runs`."""
    table.pop(run, None)
    table[run] = value
    if len(table) > runs:
        del table[least_useful(table)]
