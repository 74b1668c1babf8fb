"""A whole federation in one process: the tiers' own state machines, under a virtual clock and a
seeded network.

The driver does for machines what daemons do: it carries messages, fires timers, keeps blobs and
runs programs. It takes the earliest thing from one heap, hands it to its machine as an event and
carries the effects out. Training really happens, on a thread pool; how long it takes is the device
profile's affair (see `training`). The same plan and seed give the same rounds and the same trace
hash, for any number of threads.

    federation = Federation(plan, training, seed=1, threads=2)
    result = federation.run(on_round=print)
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..cloud.machine import Coordinator
from ..cloud.machine import restore as restore_cloud
from ..cloud.run import TICKETS
from ..cloud.state import CoordinatorState
from ..cloud.state import Phase as CloudPhase
from ..core.learn.robust import update_of
from ..core.machine import Machine
from ..core.ports import (
    CLOUD,
    SECOND,
    BlobStored,
    CancelProgram,
    CancelTimer,
    DropBlob,
    Event,
    Floats,
    NewModel,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    Received,
    Record,
    RunProgram,
    Send,
    SendBlob,
    SetTimer,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
)
from ..core.privacy import noising
from ..core.privacy.ring import RingPlan
from ..core.secagg import masks, native
from ..core.secagg.helper import masks_of
from ..core.secagg.identity import Identity, SimulatedIdentity
from ..core.streams import Streams
from ..core.wire.admission_pb2 import DeviceFacts, Eligibility
from ..core.wire.blob_pb2 import Blob, BlobRef
from ..core.wire.operator_pb2 import RunOrder
from ..device.machine import DeviceMachine, DeviceState
from ..edge.state import EdgeState
from .clock import Schedule
from .fleet import DeviceProfile
from .helping import edge_of, helpers_of, trust_in
from .memory import keep_freed_memory, undisturbed
from .network import OVERHEAD_BYTES, Channel, LinkProfile
from .nodes import Host
from .plan import FederationPlan
from .records import HOP, UPWARDS, Evaluation, Result, RoundRecord, Tally, count
from .trace import Trace
from .training import Awaited, Job, Jobs, Trained, Training, ahead_of

#: The number of the run that is simulated.
RUN = 1
#: What a server update takes in virtual time.
SERVER_UPDATE_NS = SECOND // 10
#: What a helper takes to add a batch's masks up, likewise.
MASKS_NS = SECOND // 20
#: In the first so many seconds of virtual time all devices come up.
START_SPREAD_S = 2.0
#: So few timers that were called off are not worth a look at the whole schedule.
SWEPT_MIN = 1024

#: What happens, `action(number, *arguments)`: its number in the schedule comes first.
Action: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


class Federation:
    """One run of a plan. `run` once; `stop` from anywhere, a signal handler too.

    observer: called with (virtual ns, host, event) before each event is handled. beside: whether
    vectors go beside their messages, uncopied; False: in them, as between daemons.
    """

    def __init__(
        self,
        plan: FederationPlan,
        training: Training,
        seed: int,
        threads: int = 1,
        observer: Callable[[int, Host, Event], None] | None = None,
        beside: bool = True,
    ) -> None:
        self.plan = plan
        self.training = training
        self.seed = seed
        self.streams = Streams(seed)
        self.schedule: Schedule[Action] = Schedule()
        self._called_off = 0  # timers in the schedule that will do nothing
        self.trace = Trace()
        self.records: list[RoundRecord] = []
        self.evaluations: list[Evaluation] = []
        self.counts: Counter[str] = Counter()
        self.updates = 0
        self.hosts: dict[Node, Host] = {}
        self._observer, self._beside = observer, beside
        self._jobs = Jobs(threads, ahead_of(plan.ring.nbytes))
        self._tally = Tally()
        self._stopping = threading.Event()
        self._sizes: dict[bytes, int] = {}
        self._arrays: dict[bytes, Floats] = {}
        self._handled: dict[type, Callable[[Host, Any], None]] = {
            Send: self._on_send,
            SendBlob: self._on_send_blob,
            StoreBlob: self._on_store_blob,
            DropBlob: self._on_drop_blob,
            SetTimer: self._on_set_timer,
            CancelTimer: self._on_cancel_timer,
            RunProgram: self._on_run_program,
            CancelProgram: self._on_cancel_program,
            Record: self._on_record,
        }
        self._fired: Callable[..., None] = self._fire  # one object, by which timers are known
        self._pending: list[tuple[Host, Event]] = []
        self._rounds_to_tell: list[RoundRecord] = []
        self._build()

    # ------------------------------------------------ what users call

    @property
    def weights(self) -> Floats:
        """The global model's weights now, f32[D]."""
        return self._weights

    def run(self, on_round: Callable[[RoundRecord], None] | None = None) -> Result:
        """Runs to the last round, or until the coordinator gives up or `stop` is called.

        on_round: called after each attempt at a round; `weights` are the new ones. In a run in
        rounds nothing trains then.
        """
        keep_freed_memory()
        try:
            with undisturbed():
                self._go(on_round)
        finally:
            self._jobs.cancel_all()
        ended = self.hosts[CLOUD].machine.state.ended.get(RUN)
        failed = ended is not None and ended.phase is CloudPhase.FAILED
        return Result(
            rounds=tuple(self.records),
            trace_hash=self.trace.hexdigest(),
            virtual_ns=self.schedule.now,
            events=self.trace.events,
            updates=self.updates,
            stopped=self._stopping.is_set(),
            failed=ended.why if ended is not None and failed else "",
            early=ended.why if ended is not None and not failed else "",
            evaluations=tuple(self.evaluations),
            counts=dict(sorted(self.counts.items())),
        )

    def _go(self, on_round: Callable[[RoundRecord], None] | None) -> None:
        cloud, schedule, stopping = self.hosts[CLOUD], self.schedule, self._stopping
        while not stopping.is_set():
            state = cloud.machine.state
            if not state.runs and RUN in state.ended:
                break
            sequence, (action, arguments) = schedule.pop()
            action(sequence, *arguments)
            while self._rounds_to_tell:
                record = self._rounds_to_tell.pop(0)
                self.records.append(record)
                if on_round is not None:
                    on_round(record)

    def order(self, at_ns: int, order: RunOrder) -> None:
        """Has the coordinator's operator give an order at a moment of virtual time. A further run
        is over the same blobs as run `RUN`, to which records, weights and result belong; `run` ends
        when all runs are over.
        """
        self._at(at_ns, self._order, self.hosts[CLOUD], order)

    def stop(self) -> None:
        """Ends `run` before the next event; it returns what there is."""
        self._stopping.set()

    # ------------------------------------------------ building

    def _build(self) -> None:
        plan, fleet = self.plan, self.plan.fleet
        if plan.secure is not None:
            native.library()  # shares are made before masks, by then it is there
        bundle = self._blob(self.training.bundle)
        self._bundle = bundle.digest
        weights = self._weights_blob(self.training.initial())
        cloud = Coordinator(CoordinatorState(), self._coordinator_identity(), plan.policy())
        host = self._add(cloud, CLOUD, LinkProfile(), 0)
        host.store = {bundle.digest: bundle, weights.digest: weights}
        self._at(0, self._come_up, host)
        self.message = plan.message(self._ref(bundle), self._ref(weights), self.seed)
        self.order(0, RunOrder(run=RUN, submit=self.message))
        for edge in sorted({*range(fleet.edges), *helpers_of(plan.secure)}):
            state = EdgeState(edge, incarnation=1)
            machine = edge_of(state, plan.edge_policy, plan.secure, self.seed)
            self._at(0, self._come_up, self._add(machine, machine.node, plan.edge_link, 1))
        for device in range(fleet.devices):
            self._add_device(device)
        self._plan_faults()

    def _add(self, machine: Machine[Any], node: Node, link: LinkProfile, hop_number: int) -> Host:
        ids = (hop_number, node.number)
        host = Host(
            node,
            machine,
            Channel(link, link.up_mbps, self.streams, (*ids, 0)),
            Channel(link, link.down_mbps, self.streams, (*ids, 1)),
        )
        machine.carries_beside = self._beside
        self.hosts[node] = host
        return host

    def _add_device(self, device: int) -> None:
        fleet, streams = self.plan.fleet, self.streams
        profile = fleet.profile(device, streams)
        machine = DeviceMachine(
            DeviceState(device),
            (Node(Tier.EDGE, profile.edge),),
            streams,
            DeviceFacts(memory_mib=profile.traits.memory_mib),
            Eligibility(powered=True, unmetered=True, idle=True, consented=True),
            replace(self.plan.device_policy, helpers=trust_in(self.plan.secure)),
            self._secret(device),
            SimulatedIdentity(device, self.seed) if self.plan.secure is not None else None,
        )
        host = self._add(machine, machine.node, fleet.link, 2)
        host.profile = profile
        at = round(streams.unit("start", device) * START_SPREAD_S * SECOND)
        if streams.unit("there", device, 0) < profile.traits.availability:
            self._at(at, self._arrive, host, 1)
        else:
            self._at(at + self._away_ns(profile, 0), self._arrive, host, 1)

    def _coordinator_identity(self) -> Identity | None:
        """It signs nothing, and can tell whose keys are whose."""
        return SimulatedIdentity(0, self.seed) if self.plan.secure is not None else None

    def _secret(self, device: int) -> bytes:
        """A device's master secret: of the seed, so that a simulation can be repeated."""
        return hashlib.sha256(f"delian simulated secret {self.seed} {device}".encode()).digest()

    def _plan_faults(self) -> None:
        for silence in self.plan.faults.silences:
            host = self.hosts[Node(Tier.EDGE, silence.edge)]
            self._at(round(silence.from_s * SECOND), self._mute, host, True)
            self._at(round(silence.to_s * SECOND), self._mute, host, False)
        for crash in self.plan.faults.crashes:
            host = self.hosts[Node(Tier.EDGE, crash.edge)]
            self._at(round(crash.at_s * SECOND), self._crash_edge, host)
            self._at(round(crash.back_s * SECOND), self._come_up, host)
        for seconds in self.plan.faults.restarts_s:
            self._at(round(seconds * SECOND), self._restart_cloud)

    def _blob(self, content: bytes) -> Blob:
        digest = hashlib.sha256(content).digest()
        blob = Blob(digest=digest, size=len(content), content=content)
        self._sizes[digest] = blob.ByteSize()
        return blob

    def _weights_blob(self, weights: Floats, run: int = RUN) -> Blob:
        weights = np.ascontiguousarray(weights, dtype="<f4")
        assert weights.shape == (self.plan.ring.dimension,)
        blob = self._blob(weights.tobytes())
        if run == RUN:
            # One array for all devices: the server's own, which nothing writes to.
            self._weights, self._arrays = weights, {blob.digest: weights}
        return blob

    @staticmethod
    def _ref(blob: Blob) -> BlobRef:
        return BlobRef(digest=blob.digest, size=blob.size)

    # ------------------------------------------------ events

    def _at(self, time: int, action: Callable[..., None], *arguments: Any) -> int:
        """Lets `action(number, *arguments)` happen at `time`."""
        return self.schedule.at(time, (action, arguments))

    def _dispatch(self, host: Host, event: Event) -> None:
        """Hands an event to a machine and carries the effects out, and those of what they cause at
        once.
        """
        now, pending, handled = self.schedule.now, self._pending, self._handled
        while True:
            self.trace.add(now, host.node, event)
            if self._observer is not None:
                self._observer(now, host, event)
            for effect in host.machine.handle(event, now):
                handled[type(effect)](host, effect)
            if not pending:
                return
            host, event = pending.pop(0)

    def _deliver(self, _: int, host: Host, event: Received) -> None:
        if host.online and not host.muted:
            self._dispatch(host, event)
        else:
            self._tally.lost += 1

    def _fire(self, number: int, host: Host, name: str) -> None:
        if host.timers.get(name) == number:
            del host.timers[name]
            self._dispatch(host, TimerFired(name))
        else:
            self._called_off -= 1

    def _finish(self, _: int, host: Host, ticket: int, job: Job, trained: bool) -> None:
        if host.job != (ticket, job):
            return
        host.job = None
        outcome = self._jobs.result(job)
        if trained:
            self.updates += 1
            self._tally.trained(host.node.number, outcome)
            if isinstance(outcome, Trained) and outcome.put_down is not None:
                outcome.put_down()
        self._dispatch(host, ProgramFinished(ticket, outcome))

    def _update(self, _: int, host: Host, effect: RunProgram) -> None:
        if effect.ticket not in host.updates:
            return
        host.updates.remove(effect.ticket)
        _bundle, weights, *memories = (host.store[digest] for digest in effect.blobs)
        made, weight = effect.arguments
        mean = update_of(made)
        memory = memories[0].content if memories else b""
        after, memory = self.training.server_update(self._array(weights), memory, mean, weight)
        blobs = [self._weights_blob(after, effect.ticket // TICKETS)]
        blobs += [self._blob(memory)] if memory else []
        host.store.update((blob.digest, blob) for blob in blobs)
        model = NewModel(*map(self._ref, blobs))
        self._dispatch(host, ProgramFinished(effect.ticket, model))

    def _unmask(self, _: int, host: Host, effect: RunProgram) -> None:
        if effect.ticket not in host.updates:
            return
        host.updates.remove(effect.ticket)
        total, keys, suite, *noised = effect.arguments
        plain = np.array(total, np.uint32)
        masks.add(plain, keys, suite)
        for plan in noised:
            words = [self.streams.word("central noise", effect.ticket, i) for i in range(4)]
            noising.add(plain, plan, struct.pack("<4Q", *words))
        self._dispatch(host, ProgramFinished(effect.ticket, Outcome(plain)))

    def _masks(self, _: int, host: Host, effect: RunProgram) -> None:
        if effect.ticket in host.updates:
            host.updates.remove(effect.ticket)
            total = masks_of(*effect.arguments)
            self._dispatch(host, ProgramFinished(effect.ticket, Outcome(total)))

    def _order(self, _: int, host: Host, order: RunOrder) -> None:
        self._dispatch(host, Ordered(order))

    # ------------------------------------------------ coming and going

    def _come_up(self, _: int, host: Host) -> None:
        host.online = True
        self._dispatch(host, Started(tuple(host.store)))

    def _go_down(self, host: Host) -> None:
        """The node's volatile part is gone: timers, and the program that it runs."""
        host.online = False
        gone = len(host.timers)
        host.timers.clear()
        self._call_off(gone)
        if host.job is not None:
            self._jobs.cancel(host.job[1])
        host.job = None
        host.updates.clear()
        self.trace.note(self.schedule.now, host.node, b"down")

    def _arrive(self, number: int, host: Host, visit: int) -> None:
        """A device's stay begins; where devices are not always there, its end is drawn."""
        assert host.profile is not None
        traits = host.profile.traits
        if traits.availability < 1:
            stay = self._exponential(traits.stay_s, "stay", host.node.number, visit)
            self._at(self.schedule.now + stay, self._leave, host, visit)
        if not host.online:
            self._come_up(number, host)

    def _leave(self, _: int, host: Host, visit: int) -> None:
        assert host.profile is not None
        if host.online:
            self._vanish(host)
        back = self.schedule.now + self._away_ns(host.profile, visit)
        self._at(back, self._arrive, host, visit + 1)

    def _drop_out(self, _: int, host: Host, ticket: int) -> None:
        """A device vanishes while it trains, and comes back with what it had stored."""
        if host.job is None or host.job[0] != ticket:
            return
        self._vanish(host)
        assert host.profile is not None
        away = self._exponential(host.profile.traits.away_s, "away", host.node.number, ticket)
        self._at(self.schedule.now + away, self._return, host)

    def _return(self, number: int, host: Host) -> None:
        if not host.online:
            self._come_up(number, host)

    def _vanish(self, host: Host) -> None:
        self._go_down(host)
        # It keeps its bundle. Weights would be as many copies of old models as devices are away.
        host.store = {d: b for d, b in host.store.items() if d == self._bundle}
        self._tally.vanished.add(host.node.number)

    def _away_ns(self, profile: DeviceProfile, visit: int) -> int:
        traits = profile.traits
        mean = traits.stay_s * (1 - traits.availability) / traits.availability
        return self._exponential(mean, "gone", profile.device, visit)

    def _exponential(self, mean_s: float, purpose: str, *ids: int) -> int:
        return round(-math.log(1.0 - self.streams.unit(purpose, *ids)) * mean_s * SECOND)

    def _mute(self, _: int, host: Host, muted: bool) -> None:
        host.muted = muted
        self.trace.note(self.schedule.now, host.node, b"silent" if muted else b"heard")

    def _crash_edge(self, _: int, host: Host) -> None:
        self._go_down(host)
        host.store.clear()
        old: EdgeState = host.machine.state
        state = EdgeState(old.edge, incarnation=old.incarnation + 1)
        host.machine = edge_of(state, self.plan.edge_policy, self.plan.secure, self.seed)
        host.machine.carries_beside = self._beside

    def _restart_cloud(self, number: int) -> None:
        host = self.hosts[CLOUD]
        old = host.machine
        assert isinstance(old, Coordinator)
        self._go_down(host)
        host.machine = Coordinator(restore_cloud(old.snapshot()), old.identity, old.policy)
        self._come_up(number, host)

    # ------------------------------------------------ effects

    def _on_send(self, host: Host, effect: Send) -> None:
        message = effect.message
        size = effect.size or message.ByteSize()
        self._carry(host, effect.to, Received(host.node, message, vector=effect.beside), size)

    def _on_send_blob(self, host: Host, effect: SendBlob) -> None:
        blob = host.store[effect.digest]
        self._carry(host, effect.to, Received(host.node, blob), self._sizes[effect.digest])

    def _carry(self, host: Host, to: Node, event: Received, size: int) -> None:
        tally, other, now = self._tally, self.hosts[to], self.schedule.now
        way = HOP[host.node.tier, to.tier]
        tally.bytes[way] += size
        tally.messages[way] += 1
        if host.muted or other.muted:
            tally.lost += 1
            return
        channel = host.up if way in UPWARDS else other.down
        arrivals = channel.carry(now, size + OVERHEAD_BYTES)
        if not arrivals:
            tally.lost += 1
        for arrival in arrivals:
            tally.travel_ns[way] += arrival - now
            self.schedule.at(arrival, (self._deliver, (other, event)))

    def _on_store_blob(self, host: Host, effect: StoreBlob) -> None:
        blob = effect.blob
        digest = blob.digest
        # The network changes no bytes: what was hashed when it was made is hashed only once.
        intact = digest in self._sizes or hashlib.sha256(blob.content).digest() == digest
        if intact:
            host.store[digest] = blob
        self._pending.append((host, BlobStored(digest, intact)))

    def _on_drop_blob(self, host: Host, effect: DropBlob) -> None:
        host.store.pop(effect.digest, None)

    def _on_set_timer(self, host: Host, effect: SetTimer) -> None:
        name, timers = effect.name, host.timers
        if name in timers:
            self._call_off(1)
        timers[name] = self.schedule.at(effect.at, (self._fired, (host, name)))

    def _on_cancel_timer(self, host: Host, effect: CancelTimer) -> None:
        if host.timers.pop(effect.name, None) is not None:
            self._call_off(1)

    def _call_off(self, timers: int) -> None:
        """Counts timers that will do nothing, and sweeps when most of what is scheduled is such."""
        self._called_off += timers
        if self._called_off > max(SWEPT_MIN, len(self.schedule) // 2):
            self.schedule.sweep(self._is_wanted)
            self._called_off = 0

    def _is_wanted(self, number: int, item: Action) -> bool:
        action, arguments = item
        if action is not self._fired:
            return True
        host, name = arguments
        return bool(host.timers.get(name) == number)

    def _on_run_program(self, host: Host, effect: RunProgram) -> None:
        works = {"server_update": self._update, "unmask": self._unmask, "masks": self._masks}
        work = works.get(effect.program)
        if work is not None:
            host.updates.add(effect.ticket)
            takes = MASKS_NS if effect.program == "masks" else SERVER_UPDATE_NS
            self._at(self.schedule.now + takes, work, host, effect)
            return
        assert host.profile is not None
        device, now, profile = host.node.number, self.schedule.now, host.profile
        task = host.machine.state.task
        flops = self.training.flops(device, effect.program)
        duration = profile.duration_ns(flops, self.streams, task.round, task.attempt)
        weights = self._array(host.store[effect.blobs[1]])
        start = self._start(effect, device, weights)
        job = self._jobs.add(now + duration, start)
        host.job = (effect.ticket, job)
        self._tally.compute_ns += duration
        trained = effect.program == "client_update"
        self._at(now + duration, self._finish, host, effect.ticket, job, trained)
        chance = self.plan.fleet.dropout_of(profile)
        # By ticket, not by round: a device that came back and trains again has a fresh chance.
        if chance and self.streams.unit("dropout", device, effect.ticket) < chance:
            share = self.streams.unit("dropout when", device, effect.ticket)
            self._at(now + int(share * duration), self._drop_out, host, effect.ticket)

    def _start(self, effect: RunProgram, device: int, weights: Floats) -> Callable[[], Awaited]:
        """What begins a device's program on the thread pool."""
        key, ring = effect.arguments
        if effect.program == "client_update":
            return partial(self.training.submit, device, weights, key)
        assert effect.program == "evaluate"
        return partial(self.training.evaluate, device, weights, key, RingPlan.of(ring))

    def _array(self, blob: Blob) -> Floats:
        """A blob's weights, read-only. Those of an earlier round serve a device that is late."""
        array = self._arrays.get(blob.digest)
        return np.frombuffer(blob.content, "<f4") if array is None else array

    def _on_cancel_program(self, host: Host, effect: CancelProgram) -> None:
        host.updates.discard(effect.ticket)
        if host.job is not None and host.job[0] == effect.ticket:
            self._jobs.cancel(host.job[1])
            host.job = None

    def _on_record(self, host: Host, effect: Record) -> None:
        if effect.kind in ("round", "evaluation", "rolled_back") and effect.fields["run"] != RUN:
            return
        if effect.kind == "round":
            away = {d for d in effect.fields["selected"] if not self._is_there(d)}
            self._tally.vanished |= away
            self._rounds_to_tell.append(self._tally.record(effect.fields, self.schedule.now))
            self._tally = self._tally.next(effect.fields, overlap=self.plan.buffer is not None)
            return
        if effect.kind == "evaluation":
            self.evaluations.append(Evaluation.of(effect.fields))
            return
        if effect.kind == "rolled_back":
            self.evaluations[-1] = replace(self.evaluations[-1], rolled_back_to=effect.fields["to"])
        if effect.kind == "duplicate":
            self._tally.duplicates += 1
        if effect.kind != "phase":
            count(self.counts, effect.kind, effect.fields)

    def _is_there(self, device: int) -> bool:
        return self.hosts[Node(Tier.DEVICE, device)].online
