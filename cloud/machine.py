"""The coordinator's protocol for one run. Everything that decides what the run does next lives in
this file; it sees sums of updates and never one device's, and it does not know which algorithm
makes the next model of a mean.

A round waits until enough devices are ready, selects some uniformly, tasks them through their
edges, adds the edges' sums as they come, and closes when it has enough updates, when all edges have
reported or when its time is over. With too few updates it is tried again; after too many attempts
the run gives up and says why. The same seed, plan and events give the same effects.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from ..core import snapshot
from ..core.machine import IGNORE, Machine, index, row
from ..core.ports import (
    CLOUD,
    DEVICES_PER_EDGE_MAX,
    EDGES_MAX,
    MS,
    PROTOCOL,
    DropBlob,
    Event,
    Masker,
    NewModel,
    Node,
    NoMask,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Rng,
    RoundInfo,
    RunProgram,
    SendBlob,
    Started,
    Tier,
    TimerFired,
)
from ..core.privacy import ring
from ..core.wire import round_pb2
from ..core.wire.admission_pb2 import EdgeHello, Pace, RetryWindow
from ..core.wire.blob_pb2 import BlobRef, FetchBlob
from ..core.wire.round_pb2 import (
    EdgeProgress,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    Flush,
    RoundClosed,
    Task,
)
from .plan import CloudState, EdgeView, Phase, RunPlan


class Trigger(StrEnum):
    STARTED = "started"
    HELLO = "EdgeHello, newer"
    REST_OVER = "rest is over"
    WAIT_OVER = "waited long enough"
    ENOUGH = "enough devices are ready"
    FETCH = "FetchBlob"
    PROGRESS = "EdgeProgress"
    TARGET_MET = "enough updates are with the edges"
    SUM = "first EdgeSum of an edge"
    BAD_SUM = "EdgeSum that does not fit"
    SUM_AGAIN = "EdgeSum again, or late"
    EDGE_LOST = "edge has started anew"
    SILENT = "edges still silent"
    ALL_IN = "all edges have reported"
    TIME_OVER = "round's time is over"
    CLOSE = "enough reports"
    SHORT = "too few reports"
    GIVE_UP = "too few reports, too many times"
    UPDATED = "new model"
    LAST_UPDATED = "new model of the last round"
    UPDATE_STOPPED = "no new model"
    STALE = "late, repeated or of no use"


NEW, WAITING, COLLECTING, AGGREGATING, DONE, FAILED = Phase
_T = Trigger
_ON = (WAITING, COLLECTING, AGGREGATING, DONE, FAILED)

TABLE = (
    row((NEW, WAITING), _T.STARTED, "wait", WAITING, "for devices"),
    row(COLLECTING, _T.STARTED, "resume", COLLECTING, "the state survived: ask the edges again"),
    row(AGGREGATING, _T.STARTED, "aggregate", AGGREGATING, "the sum survived: update again"),
    row((DONE, FAILED), _T.STARTED, IGNORE, None, "the run is over"),
    row(_ON, _T.HELLO, "keep_roster", None, "who is ready, and where"),
    row(WAITING, _T.REST_OVER, "look", WAITING, "the last cohort had time to come back"),
    row(WAITING, _T.WAIT_OVER, "settle", WAITING, "with fewer, or not at all"),
    row(WAITING, _T.ENOUGH, "select", COLLECTING, "uniformly; task them through their edges"),
    row(WAITING, _T.SHORT, "try_again", WAITING, "a further attempt"),
    row(WAITING, _T.GIVE_UP, "give_up", FAILED, "there are no devices"),
    row(_ON, _T.FETCH, "serve", None, "bundle or weights"),
    row(COLLECTING, _T.PROGRESS, "note", COLLECTING, "a sign of life, and a count"),
    row(COLLECTING, _T.TARGET_MET, "flush", COLLECTING, "ask for the sums now"),
    row(COLLECTING, _T.SUM, "add", COLLECTING, "to the running sum"),
    row(COLLECTING, _T.BAD_SUM, "refuse", COLLECTING, "the edge's devices count as dropped"),
    row(_ON, _T.SUM_AGAIN, "ack", None, "it is of no more use to the edge"),
    row(COLLECTING, _T.EDGE_LOST, "lose", COLLECTING, "what it had is gone"),
    row(COLLECTING, _T.SILENT, "ask_again", COLLECTING, "task, request or answer was lost"),
    row(COLLECTING, _T.ALL_IN, "judge", COLLECTING, "is it enough?"),
    row(COLLECTING, _T.TIME_OVER, "judge", COLLECTING, "is it enough?"),
    row(COLLECTING, _T.CLOSE, "aggregate", AGGREGATING, "unmask, decode, update the model"),
    row((COLLECTING, AGGREGATING), _T.SHORT, "try_again", WAITING, "a further attempt"),
    row((COLLECTING, AGGREGATING), _T.GIVE_UP, "give_up", FAILED, "the run ends"),
    row(AGGREGATING, _T.UPDATED, "next_round", WAITING, "with the new weights"),
    row(AGGREGATING, _T.LAST_UPDATED, "end", DONE, "send the devices home"),
    row(AGGREGATING, _T.UPDATE_STOPPED, "fall_short", AGGREGATING, "the program failed"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


class CloudMachine(Machine[CloudState]):
    """The coordinator of one run."""

    rows = index(TABLE)

    def __init__(
        self, state: CloudState, plan: RunPlan, rng: Rng, masker: Masker | None = None
    ) -> None:
        super().__init__(state)
        self.node = CLOUD
        self.plan = plan
        self.rng = rng
        self.masker = masker or NoMask()

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                if sender.tier is not Tier.EDGE:
                    raise ProtocolError(f"{self.node}: a message from {sender}")
                return self._read_message(sender, message)
            case TimerFired(name):
                return self._read_timer(name), None
            case ProgramFinished(ticket, outcome):
                if self.state.phase is not AGGREGATING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case Started():
                return _T.STARTED, None
        raise AssertionError(f"the coordinator's blobs are its own: {event}")

    def _read_message(self, sender: Node, message: Any) -> tuple[Trigger, Any]:
        kind, state = type(message), self.state
        if kind is FetchBlob:
            return _T.FETCH, (sender, message)
        if kind not in (EdgeHello, EdgeProgress, EdgeSum):
            raise ProtocolError(f"{self.node}: an edge sends no {kind.__name__}")
        edge = sender.number
        if message.edge != edge:
            raise ProtocolError(f"{self.node}: {sender} names itself edge {message.edge}")
        if kind is EdgeHello:
            view = state.edges.get(edge)
            seen = (0, 0) if view is None else (view.incarnation, view.sequence)
            fresh = (message.incarnation, message.sequence) > seen
            fits = message.protocol >= PROTOCOL and len(message.ready) <= DEVICES_PER_EDGE_MAX
            room = view is not None or len(state.edges) < EDGES_MAX
            return (_T.HELLO if fresh and fits and room else _T.STALE), message
        open_here = self._is_open(message) and edge in state.selected
        if kind is EdgeProgress:
            fits = open_here and edge not in state.reported
            return (_T.PROGRESS if fits else _T.STALE), message
        if not open_here or edge in state.reported:
            return _T.SUM_AGAIN, message
        return (_T.SUM if self._fits(message) else _T.BAD_SUM), message

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if state.phase is WAITING and name == "rest" and self.now >= state.rest_ends_ns:
            return _T.REST_OVER
        if state.phase is WAITING and name == "wait" and self.now >= state.wait_ends_ns:
            return _T.WAIT_OVER
        if state.phase is COLLECTING and name == "round" and self.now >= state.ends_ns:
            return _T.TIME_OVER
        if state.phase is COLLECTING and name == "repeat":
            return _T.SILENT
        return _T.STALE

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        if not isinstance(outcome, NewModel):
            return _T.UPDATE_STOPPED, "the server update failed"
        last = self.state.round >= self.plan.rounds
        return (_T.LAST_UPDATED if last else _T.UPDATED), outcome.weights

    def _is_open(self, message: Any) -> bool:
        """Whether a message belongs to the attempt at hand."""
        state = self.state
        return (
            state.phase is COLLECTING
            and message.run == self.plan.run
            and message.round == state.round
            and message.attempt == state.attempt
        )

    def _fits(self, message: EdgeSum) -> bool:
        """Whether a sum is what its edge may send: of devices that were its own, each once."""
        devices = list(message.devices)
        failed = [f.device for f in message.failures]
        given = set(self.state.selected[message.edge])
        length = self.plan.ring.nbytes if devices else 0
        return (
            message.count == len(devices)
            and all(a < b for a, b in pairwise(devices))
            and all(a < b for a, b in pairwise(failed))
            and given.issuperset(devices)
            and given.issuperset(failed)
            and not set(devices).intersection(failed)
            and len(message.sum) == length
        )

    # ------------------------------------------------ waiting

    def wait(self, _: object) -> None:
        state, plan = self.state, self.plan
        state.rested = False
        # In the first round nobody is on the way back.
        rest_ns = plan.rest_ns if (state.round, state.attempt) != (1, 1) else 0
        state.rest_ends_ns = self.now + rest_ns
        state.wait_ends_ns = self.now + plan.wait_ns
        self.set_timer("rest", state.rest_ends_ns)
        self.set_timer("wait", state.wait_ends_ns)

    def keep_roster(self, message: EdgeHello) -> None:
        state, edge = self.state, message.edge
        before = state.edges.get(edge)
        state.edges[edge] = EdgeView(
            message.incarnation, message.sequence, self.now, list(message.ready)
        )
        if message.asks_pace:
            self._send_pace(edge, over=state.phase in (DONE, FAILED))
        if state.phase is WAITING:
            self.post_if_enough()
        anew = before is not None and message.incarnation > before.incarnation
        if state.phase is COLLECTING and anew and self._owes(edge):
            self.post(_T.EDGE_LOST, edge)

    def look(self, _: object) -> None:
        self.state.rested = True
        self.post_if_enough()

    def post_if_enough(self) -> None:
        if self.state.rested and len(self._ready()) >= self.plan.enough:
            self.post(_T.ENOUGH)

    def settle(self, _: object) -> None:
        if len(self._ready()) >= self.plan.reports_min:
            self.post(_T.ENOUGH)
        else:
            self.fall_short("too few devices are ready")

    def _ready(self) -> dict[int, int]:
        """Device -> its edge, of those that can be selected."""
        oldest = self.now - self.plan.edge_silence_ns
        ready: dict[int, int] = {}
        for edge, view in sorted(self.state.edges.items()):
            if view.heard_ns >= oldest:
                for device in view.ready:
                    ready.setdefault(device, edge)
        return ready

    # ------------------------------------------------ collecting

    def select(self, _: object) -> None:
        state, plan = self.state, self.plan
        ready = self._ready()
        count = min(plan.selected, len(ready))
        chosen = self.rng.sample(
            sorted(ready), count, "select", plan.run, state.round, state.attempt
        )
        state.selected = {}
        for device in sorted(chosen):
            state.selected.setdefault(ready[device], []).append(device)
        for edge, devices in state.selected.items():
            taken = set(devices)
            view = state.edges[edge]
            view.ready = [d for d in view.ready if d not in taken]
        state.alive = dict.fromkeys(state.selected, False)
        state.progress, state.reported, state.failures, state.total = {}, {}, {}, None
        state.flushed = False
        state.opened_ns, state.ends_ns = self.now, self.now + plan.round_ns
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        self.resume(None)

    def resume(self, _: object) -> None:
        self.set_timer("round", self.state.ends_ns)
        self.state.tries = 0
        self.ask_again(None)

    def ask_again(self, _: object) -> None:
        """Tasks the edges that gave no sign of life, and asks the others for their sums where it is
        time for that.
        """
        state, plan = self.state, self.plan
        left_ms = max(0, (state.ends_ns - self.now) // MS)
        for edge, devices in state.selected.items():
            if not self._owes(edge):
                continue
            if not state.alive[edge]:
                self.send(Node(Tier.EDGE, edge), self._edge_task(devices, left_ms))
            elif state.flushed:
                self._send_flush(edge)
        state.tries += 1
        self.set_timer("repeat", self.now + plan.backoff.pause(state.tries))

    def _edge_task(self, devices: list[int], left_ms: int) -> EdgeTask:
        state, plan = self.state, self.plan
        task = Task(
            run=plan.run,
            round=state.round,
            attempt=state.attempt,
            bundle=plan.bundle,
            weights=state.weights,
            ring=round_pb2.RingPlan(
                clip=plan.ring.clip,
                clients_max=plan.ring.clients_max,
                bits=plan.ring.bits,
                dimension=plan.ring.dimension,
            ),
            time_ms=max(0, left_ms - plan.margin_ns // MS),
            rng_key=self.rng.word("round key", plan.run, state.round).to_bytes(8, "little"),
        )
        return EdgeTask(task=task, devices=devices, time_ms=left_ms)

    def note(self, message: EdgeProgress) -> None:
        state = self.state
        state.alive[message.edge] = True
        state.progress[message.edge] = max(message.counted, state.progress.get(message.edge, 0))
        self._post_if_met()

    def _post_if_met(self) -> None:
        if not self.state.flushed and sum(self.state.progress.values()) >= self.plan.cohort:
            self.post(_T.TARGET_MET)

    def flush(self, _: object) -> None:
        self.state.flushed = True
        for edge in self.state.selected:
            if self._owes(edge):
                self._send_flush(edge)

    def _send_flush(self, edge: int) -> None:
        state = self.state
        self.send(
            Node(Tier.EDGE, edge),
            Flush(run=self.plan.run, round=state.round, attempt=state.attempt),
        )

    def add(self, message: EdgeSum) -> None:
        state = self.state
        state.reported[message.edge] = list(message.devices)
        state.progress[message.edge] = message.count
        for failure in message.failures:
            state.failures[failure.device] = failure.reason
        if message.count:
            vector = np.frombuffer(message.sum, "<u4")
            if state.total is None:
                state.total = vector.astype(np.uint32)
            else:
                ring.add(state.total, vector)
        self.ack(message)
        self._after_report()

    def refuse(self, message: EdgeSum) -> None:
        self.record("refused_sum", edge=message.edge)
        self.state.reported[message.edge] = []
        self.ack(message)
        self._after_report()

    def lose(self, edge: int) -> None:
        self.record("edge_lost", edge=edge)
        self.state.reported[edge] = []
        self.state.progress[edge] = 0
        self._after_report()

    def _after_report(self) -> None:
        if not any(self._owes(edge) for edge in self.state.selected):
            self.post(_T.ALL_IN)
        else:
            self._post_if_met()

    def ack(self, message: EdgeSum) -> None:
        self.send(
            Node(Tier.EDGE, message.edge),
            EdgeSumAck(run=message.run, round=message.round, attempt=message.attempt),
        )

    def _owes(self, edge: int) -> bool:
        """Whether an edge was tasked and its sum is not in."""
        return edge in self.state.selected and edge not in self.state.reported

    # ------------------------------------------------ closing

    def judge(self, _: object) -> None:
        if len(self._reported()) >= self.plan.reports_min:
            self._close(True)
            self.post(_T.CLOSE)
        else:
            self._close(False)
            self.fall_short("too few devices reported")

    def _close(self, succeeded: bool) -> None:
        """Ends the collecting: no more timers, and the edges may forget."""
        state = self.state
        self.cancel_timer("round")
        self.cancel_timer("repeat")
        for edge in state.selected:
            self.send(
                Node(Tier.EDGE, edge),
                RoundClosed(
                    run=self.plan.run,
                    round=state.round,
                    attempt=state.attempt,
                    succeeded=succeeded,
                ),
            )

    def aggregate(self, _: object) -> None:
        state, plan = self.state, self.plan
        assert state.total is not None
        info = RoundInfo(
            plan.run, state.round, state.attempt, state.weights.digest, plan.bundle.digest
        )
        total = self.masker.unmask(state.total, info, self._reported())
        try:
            mean, state.weight = ring.decode(total, plan.ring)
        except ring.RingError as fault:
            self.fall_short(fault.message)
            return
        state.ticket += 1
        blobs = (plan.bundle.digest, state.weights.digest)
        self.emit(RunProgram(state.ticket, "server_update", blobs, (mean, state.weight)))

    def fall_short(self, why: str) -> None:
        state = self.state
        self._record_round(False, why)
        state.stopped_by = why
        self.post(_T.SHORT if state.attempt < self.plan.attempts_max else _T.GIVE_UP)

    def try_again(self, _: object) -> None:
        self.state.attempt += 1
        self._clear()
        self.wait(None)

    def next_round(self, weights: BlobRef) -> None:
        state = self.state
        self._replace_model(weights)
        state.round += 1
        state.attempt = 1
        self._clear()
        self.wait(None)

    def end(self, weights: BlobRef) -> None:
        self._replace_model(weights)
        self._clear()
        self._send_home()

    def _replace_model(self, weights: BlobRef) -> None:
        self._record_round(True, "")
        if weights.digest != self.state.weights.digest:
            self.emit(DropBlob(self.state.weights.digest))
        self.state.weights = weights

    def give_up(self, _: object) -> None:
        self._clear()
        for name in ("rest", "wait"):
            self.cancel_timer(name)
        self._send_home()
        self.record("run_failed", why=self.state.stopped_by)

    def _clear(self) -> None:
        state = self.state
        state.selected, state.alive, state.progress = {}, {}, {}
        state.reported, state.failures, state.total = {}, {}, None

    def _send_home(self) -> None:
        for edge in sorted(self.state.edges):
            self._send_pace(edge, over=True)

    def _reported(self) -> list[int]:
        return sorted(d for devices in self.state.reported.values() for d in devices)

    def _record_round(self, succeeded: bool, why: str) -> None:
        """The facts of an attempt. `refused`: devices that answered by a Failure; the others
        neither reported nor answered.
        """
        state = self.state
        self.record(
            "round",
            round=state.round,
            attempt=state.attempt,
            succeeded=succeeded,
            why=why,
            selected=sorted(d for devices in state.selected.values() for d in devices),
            reported=self._reported(),
            refused=dict(sorted(state.failures.items())),
            target_met=state.flushed,
            weight=state.weight if succeeded else 0.0,
            opened_ns=state.opened_ns,
        )

    # ------------------------------------------------ any time

    def serve(self, subject: tuple[Node, FetchBlob]) -> None:
        sender, message = subject
        if message.digest in (self.plan.bundle.digest, self.state.weights.digest):
            self.emit(SendBlob(sender, message.digest))
            if sender.number in self.state.alive:
                self.state.alive[sender.number] = True
        else:
            self.ignore(_T.STALE)

    def _send_pace(self, edge: int, over: bool) -> None:
        plan = self.plan
        self.send(
            Node(Tier.EDGE, edge),
            Pace(
                ready_max=0 if over else plan.ready_per_edge_max,
                after_task=_window(plan.after_task_ms),
                after_reject=_window(plan.after_reject_ms),
                lease_ms=plan.lease_ms,
                requirements=plan.requirements,
            ),
        )


def _window(ms: tuple[int, int]) -> RetryWindow:
    return RetryWindow(min_ms=ms[0], max_ms=ms[1])


def restore(data: bytes) -> CloudState:
    """The state that `CloudMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(CloudState, data)
