"""A whole federation in one process.

The tiers' own state machines, under a virtual clock and a seeded network.

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
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...cloud.protocol.coordinator_state import Phase
from ...cloud.protocol.machine import Coordinator
from ...cloud.protocol.machine import restore as restore_cloud
from ...cloud.protocol.run import TICKETS
from ...core.learning.aggregate.robust import update_of
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg import native
from ...core.protocol import ports
from ...core.protocol.machine import Machine
from ...core.protocol.random_streams import Streams
from ...core.wire.operator_pb2 import RunOrder
from ...core.wire.round_pb2 import EdgeTask
from ...device.protocol.device_state import DeviceState
from ...edge.protocol.edge_state import EdgeState
from ..resume.history import UNKEPT, History
from ..scenario.federation_plan import FederationPlan
from .attendance import Attendance
from .dormant import REST_MIN_NS, Dormant, may_sleep
from .energy import Energy
from .helping import TAKES_NS, edge_of, helpers_of, sum_of
from .model_blobs import Models, ref_of
from .network import OVERHEAD_BYTES, Channel, LinkProfile
from .nodes import Devices, Host, Stored, coordinator_of
from .process_tuning import keep_freed_memory, undisturbed
from .round_records import Evaluation, Result, RoundRecord, Tally, count
from .speculation import Foresight, name_of
from .timer_schedule import Action, Timers
from .trace import Trace
from .training import Awaited, Job, Jobs, Trained, Training
from .virtual_time import Schedule

#: The number of the run that is simulated.
RUN = 1


class Federation:
    """One run of a plan. `run` once; `stop` from anywhere, a signal handler too.

    observer: called with (virtual ns, host, event) before each event is handled. beside: whether
    vectors are passed next to their messages, uncopied; False: in them, as between daemons.
    history: of what was computed, for a run to be resumed by.
    """

    def __init__(
        self,
        plan: FederationPlan,
        training: Training,
        seed: int,
        threads: int = 1,
        observer: Callable[[int, Host, ports.Event], None] | None = None,
        beside: bool = True,
        history: History = UNKEPT,
    ) -> None:
        self.plan = plan
        self.training, self._splits = training, training.split
        self.seed = seed
        self.streams = Streams(seed)
        self.schedule: Schedule[Action] = Schedule()
        self._timers = Timers(self.schedule, self._fire)
        self._attendance = Attendance(plan.fleet, self.streams)
        self._energy = Energy(plan.fleet, self.streams)
        self._devices = Devices(plan, self.streams, seed, self._energy.exhausted)
        self.trace = Trace()
        self.records: list[RoundRecord] = []
        self.evaluations: list[Evaluation] = []
        self.counts: Counter[str] = Counter()
        self.updates = 0
        self.hosts: dict[ports.Node, Host] = {}  # of devices, those that are awake
        self._dormant = Dormant(plan.fleet.devices)
        self._resting: int | None = None  # until when the device at hand is to rest
        self._observer, self._beside = observer, beside
        self._jobs = Jobs(threads, training.ahead)
        self._foresight = Foresight(training, self._jobs, self.hosts, plan.fleet, self.streams)
        self._tally = Tally()
        self._stopping = threading.Event()
        self.models = Models(plan.ring.dimension)
        self._history = history
        self._handled: dict[type, Callable[[Host, Any], None]] = {
            ports.Send: self._on_send,
            ports.SendBlob: self._on_send_blob,
            ports.StoreBlob: self._on_store_blob,
            ports.DropBlob: self._on_drop_blob,
            ports.SetTimer: self._on_set_timer,
            ports.CancelTimer: self._on_cancel_timer,
            ports.RunProgram: self._on_run_program,
            ports.CancelProgram: self._on_cancel_program,
            ports.Record: self._on_record,
        }
        self._pending: list[tuple[Host, ports.Event]] = []
        self._rounds_to_tell: list[RoundRecord] = []
        self._build()

    # ------------------------------------------------ what users call

    @property
    def weights(self) -> ports.Floats:
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
            return self.so_far()
        finally:
            self._jobs.cancel_all()

    def so_far(self) -> Result:
        """What there is of the run."""
        ended = self.hosts[ports.CLOUD].machine.state.ended.get(RUN)
        failed = ended is not None and ended.phase is Phase.FAILED
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
        cloud, pop, stopping = self.hosts[ports.CLOUD], self.schedule.pop, self._stopping
        jobs, to_tell = self._jobs, self._rounds_to_tell
        while not stopping.is_set():
            state = cloud.machine.state
            if not state.runs and RUN in state.ended:
                break
            sequence, (action, arguments) = pop()
            action(sequence, *arguments)
            del action, arguments  # they may hold a vector
            if jobs.results:
                jobs.tend()
            while to_tell:
                record = to_tell.pop(0)
                self.records.append(record)
                if on_round is not None:
                    on_round(record)

    def order(self, at_ns: int, order: RunOrder) -> None:
        """Has the coordinator's operator give an order at a moment of virtual time.

        A further run is over the same blobs as run `RUN`, to which records, weights and result
        belong; `run` ends when all runs are over.
        """
        self._at(at_ns, self._order, self.hosts[ports.CLOUD], order)

    def stop(self) -> None:
        """Ends `run` before the next event; it returns what there is."""
        self._stopping.set()

    # ------------------------------------------------ building

    def _build(self) -> None:
        plan, fleet = self.plan, self.plan.fleet
        if plan.secure is not None:
            native.library()  # shares are made before masks, by then it is there
        bundle = self.models.blob(self.training.bundle)
        parts = [self.models.part(ref) for ref in plan.frozen]
        self._lasting = {bundle.digest, *(part.blob.digest for part in parts)}
        weights = self._made(self.models.weights(self.training.initial()))
        cloud = coordinator_of(plan, self.seed)
        host = self._add(cloud, ports.CLOUD, LinkProfile(), 0)
        host.store = {b.blob.digest: b for b in (Stored(bundle), weights, *parts)}
        self._at(0, self._come_up, host)
        self.message = plan.message(ref_of(bundle), ref_of(weights.blob), self.seed)
        order = RunOrder(run=RUN, submit=self.message)
        cloud.check(order)  # one that it does not follow begins no run, and so none would end
        self.order(0, order)
        for edge in sorted({*range(fleet.edges), *helpers_of(plan.secure)}):
            state = EdgeState(edge, incarnation=1)
            machine = edge_of(state, plan.edge_policy, plan.secure, self.seed)
            self._at(0, self._come_up, self._add(machine, machine.node, plan.edge_link, 1))
        for device in range(fleet.devices):
            self._lay(device, self._attendance.first(device))
        self._plan_faults()

    def _add(
        self, machine: Machine[Any], node: ports.Node, link: LinkProfile, hop_number: int
    ) -> Host:
        ids = (hop_number, node.number)
        host = Host(
            node,
            machine,
            Channel(link, link.up_mbps, self.streams, (*ids, 0)),
            Channel(link, link.down_mbps, self.streams, (*ids, 1)),
        )
        machine.out.carries_vectors = self._beside
        self.hosts[node] = host
        return host

    # ------------------------------------------------ sleepers

    def _lay(self, device: int, wakes_ns: int) -> None:
        begins = self._dormant.lay(device, wakes_ns)
        if begins is not None:
            self._at(begins, self._open_slot, begins)

    def _open_slot(self, _: int, begins_ns: int) -> None:
        devices, more = self._dormant.open(begins_ns)
        for device in devices:
            self._wake(device)
        for begins in more:
            self._at(begins, self._open_slot, begins)

    def _wake(self, device: int) -> Host:
        """The host of a sleeper, as it was when it lay down, or before it first comes up."""
        plan, woken = self.plan, self._dormant.wake(device)
        profile = plan.fleet.profile(device, self.streams)
        state = DeviceState(device) if isinstance(woken, int) else woken[0]
        machine = self._devices.machine(state, profile)
        host = self._add(machine, machine.node, plan.fleet.link, 2)
        host.profile = profile
        if isinstance(woken, int):
            self._at(woken, self._arrive, host, 1)
        else:
            _, (host.up.sent, host.down.sent), at = woken
            host.online = True
            self._timers.set(host, "retry", at)
        return host

    def _lull(self, host: Host, wakes_ns: int) -> None:
        """Suspends a device that comes back later, if only its counters would be lost."""
        machine, profile = host.machine, host.profile
        assert profile is not None
        if (
            host.coming
            or list(host.timers) != ["retry"]
            or host.store
            or profile.traits.availability < 1
            or not may_sleep(machine.state)
        ):
            return
        self._dormant.remember(machine.state, (host.up.sent, host.down.sent))
        self._timers.clear(host)
        # What is left of it are timers that were called off, until they are swept.
        del self.hosts[host.node], host.machine, host.up, host.down, host.store
        self._lay(host.node.number, wakes_ns)

    def _plan_faults(self) -> None:
        for silence in self.plan.faults.silences:
            host = self.hosts[ports.Node(ports.Tier.EDGE, silence.edge)]
            self._at(round(silence.from_s * ports.SECOND), self._mute, host, True)
            self._at(round(silence.to_s * ports.SECOND), self._mute, host, False)
        for crash in self.plan.faults.crashes:
            host = self.hosts[ports.Node(ports.Tier.EDGE, crash.edge)]
            self._at(round(crash.at_s * ports.SECOND), self._crash_edge, host)
            self._at(round(crash.back_s * ports.SECOND), self._come_up, host)
        for seconds in self.plan.faults.restarts_s:
            self._at(round(seconds * ports.SECOND), self._restart_cloud)

    # ------------------------------------------------ events

    def _at(self, time: int, action: Callable[..., None], *arguments: Any) -> int:
        """Lets `action(number, *arguments)` happen at `time`."""
        return self.schedule.at(time, (action, arguments))

    def _dispatch(self, host: Host, event: ports.Event) -> None:
        """Passes an event to a machine and carries out its effects, and the events they cause."""
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

    def _deliver(self, _: int, host: Host, event: ports.Received) -> None:
        host.coming -= 1
        if host.online and not host.muted:
            self._resting = None
            self._dispatch(host, event)
            if self._resting is not None:
                self._lull(host, self._resting)
        else:
            self._tally.lost += 1

    def _fire(self, host: Host, name: str) -> None:
        self._dispatch(host, ports.TimerFired(name))

    def _finish(self, _: int, host: Host, ticket: int, job: Job, trained: bool) -> None:
        if host.job != (ticket, job):
            return
        host.job = None
        self._energy.ends(host.node.number, self.schedule.now)
        outcome = self._jobs.result(job)
        self._history.computed(host, outcome)
        if trained:
            self.updates += 1
            self._tally.trained(host.node.number, outcome)
            if isinstance(outcome, Trained) and outcome.put_down is not None:
                outcome.put_down()
        ended: ports.Outcome | ports.ProgramStopped = outcome
        if self._splits is not None and trained:
            ended, told = self._splits.ended(host.node.number, outcome)
            for node, event in told:
                self._dispatch(self.hosts[node], event)
        self._dispatch(host, ports.ProgramFinished(ticket, ended))

    def _update(self, _: int, host: Host, effect: ports.RunProgram) -> None:
        if effect.ticket not in host.updates:
            return
        host.updates.remove(effect.ticket)
        _bundle, weights, *memories = (host.store[digest] for digest in effect.blobs)
        made, weight = effect.arguments
        assert weights.weights is not None
        before, memory = weights.weights, memories[0].blob.content if memories else b""

        def make() -> list[Stored]:
            mean = update_of(made)
            after, remembered = self.training.server_update(before, memory, mean, weight)
            blobs = [self.models.weights(after)]
            return blobs + ([Stored(self.models.blob(remembered))] if remembered else [])

        blobs = self._history.model(self.models, make)
        self._made(blobs[0], effect.ticket // TICKETS)
        host.store.update((stored.blob.digest, stored) for stored in blobs)
        model = ports.NewModel(*(ref_of(stored.blob) for stored in blobs))
        self._dispatch(host, ports.ProgramFinished(effect.ticket, model))

    def _made(self, weights: Stored, run: int = RUN) -> Stored:
        """A model of run `RUN` is its newest."""
        if run == RUN:
            assert weights.weights is not None
            self._weights = weights.weights
        return weights

    def _answer(self, _: int, host: Host, effect: ports.RunProgram) -> None:
        if effect.ticket in host.updates:
            host.updates.remove(effect.ticket)
            outcome = sum_of(effect, host, self._history, self._splits, self.streams)
            self._dispatch(host, ports.ProgramFinished(effect.ticket, outcome))

    def _order(self, _: int, host: Host, order: RunOrder) -> None:
        self._dispatch(host, ports.Ordered(order))

    # ------------------------------------------------ coming and going

    def _come_up(self, _: int, host: Host) -> None:
        host.online = True
        self._dispatch(host, ports.Started(tuple(host.store)))

    def _go_down(self, host: Host) -> None:
        """The node's volatile part is gone: timers, and the program that it runs."""
        host.online = False
        self._timers.clear(host)
        if host.job is not None:
            self._jobs.cancel(host.job[1])
            self._energy.ends(host.node.number, self.schedule.now)
        host.job = None
        host.updates.clear()
        self.trace.note(self.schedule.now, host.node, b"down")

    def _arrive(self, number: int, host: Host, visit: int) -> None:
        """A device's stay begins; where devices are not always there, its end is drawn."""
        assert host.profile is not None
        traits = host.profile.traits
        if traits.availability < 1:
            stay = self._attendance.stay(host.profile, visit)
            self._at(self.schedule.now + stay, self._leave, host, visit)
        if not host.online:
            self._come_up(number, host)

    def _leave(self, _: int, host: Host, visit: int) -> None:
        assert host.profile is not None
        if host.online:
            self._vanish(host)
        back = self.schedule.now + self._attendance.gap(host.profile, visit)
        self._at(back, self._arrive, host, visit + 1)

    def _drop_out(self, _: int, host: Host, ticket: int) -> None:
        """A device vanishes while it trains, and comes back with what it had stored."""
        if host.job is None or host.job[0] != ticket:
            return
        self._vanish(host)
        assert host.profile is not None
        away = self._attendance.outage(host.profile, ticket)
        self._at(self.schedule.now + away, self._return, host)

    def _exhaust(self, _: int, device: int) -> None:
        """A device has spent its battery: its owner lets it take part no more."""
        host = self.hosts.get(ports.Node(ports.Tier.DEVICE, device)) or self._wake(device)
        order = self._devices.withdrawal(host.machine.state)
        if host.online:
            self._dispatch(host, ports.Ordered(order))
        else:
            host.machine.state.eligibility = order.eligibility

    def _return(self, number: int, host: Host) -> None:
        if not host.online:
            self._come_up(number, host)

    def _vanish(self, host: Host) -> None:
        self._go_down(host)
        # It keeps its bundle. Weights would be as many copies of old models as devices are away.
        host.store = {d: b for d, b in host.store.items() if d in self._lasting}
        self._tally.vanished.add(host.node.number)

    def _mute(self, _: int, host: Host, muted: bool) -> None:
        host.muted = muted
        self.trace.note(self.schedule.now, host.node, b"silent" if muted else b"heard")

    def _crash_edge(self, _: int, host: Host) -> None:
        self._go_down(host)
        host.store.clear()
        if self._splits is not None:
            self._splits.crash(host.node.number)
        old: EdgeState = host.machine.state
        state = EdgeState(old.edge, incarnation=old.incarnation + 1)
        host.machine = edge_of(state, self.plan.edge_policy, self.plan.secure, self.seed)
        host.machine.out.carries_vectors = self._beside

    def _restart_cloud(self, number: int) -> None:
        host = self.hosts[ports.CLOUD]
        old = host.machine
        assert isinstance(old, Coordinator)
        self._go_down(host)
        host.machine = Coordinator(
            restore_cloud(old.snapshot()), old.runs.identity, old.policy, old.runs.log
        )
        self._come_up(number, host)

    # ------------------------------------------------ effects

    def _on_send(self, host: Host, effect: ports.Send) -> None:
        message = effect.message
        if (
            type(message) is EdgeTask
            and not self._history.replays
            and self._foresight.look(message, host.store)
        ):
            self._at(self.schedule.now, self._foresight.begin)
        size = effect.size or message.ByteSize()
        self._carry(
            host, effect.to, ports.Received(host.node, message, b"", b"", effect.vector), size
        )

    def _on_send_blob(self, host: Host, effect: ports.SendBlob) -> None:
        blob, weights = host.store[effect.digest]
        event = ports.Received(host.node, blob, vector=None if weights is None else weights.data)
        self._carry(host, effect.to, event, self.models.sizes[effect.digest])

    def _carry(self, host: Host, to: ports.Node, event: ports.Received, size: int) -> None:
        tally, schedule = self._tally, self.schedule
        now = schedule.now
        other = self.hosts.get(to) or self._wake(to.number)
        if to.tier is ports.Tier.CLOUD or host.node.tier is ports.Tier.DEVICE:
            channel, way = host.up, host.ways[0]
        else:
            channel, way = other.down, other.ways[1]
        tally.bytes[way] += size
        tally.messages[way] += 1
        if (profile := host.profile or other.profile) is not None:
            self._energy.moved(profile, size)
        if host.muted or other.muted:
            tally.lost += 1
            return
        arrivals = channel.carry(now, size + OVERHEAD_BYTES)
        if not arrivals:
            tally.lost += 1
        for arrival in arrivals:
            tally.travel_ns[way] += arrival - now
            other.coming += 1
            schedule.at(arrival, (self._deliver, (other, event)))

    def _on_store_blob(self, host: Host, effect: ports.StoreBlob) -> None:
        blob = effect.blob
        digest = blob.digest
        # The network changes no bytes: what was hashed when it was made is hashed only once.
        intact = digest in self.models.sizes or hashlib.sha256(blob.content).digest() == digest
        if intact:
            host.store[digest] = Stored(blob, self.models.arrays.get(digest))
        self._pending.append((host, ports.BlobStored(digest, intact)))

    def _on_drop_blob(self, host: Host, effect: ports.DropBlob) -> None:
        host.store.pop(effect.digest, None)

    def _on_set_timer(self, host: Host, effect: ports.SetTimer) -> None:
        if effect.name == "retry" and effect.at - self.schedule.now >= REST_MIN_NS:
            self._resting = effect.at
        self._timers.set(host, effect.name, effect.at)

    def _on_cancel_timer(self, host: Host, effect: ports.CancelTimer) -> None:
        self._timers.cancel(host, effect.name)

    def _on_run_program(self, host: Host, effect: ports.RunProgram) -> None:
        if effect.program not in ("client_update", "evaluate"):
            host.updates.add(effect.ticket)
            work = self._update if effect.program == "server_update" else self._answer
            self._at(self.schedule.now + TAKES_NS[effect.program], work, host, effect)
            return
        assert host.profile is not None
        device, now, profile = host.node.number, self.schedule.now, host.profile
        task = host.machine.state.task
        flops = self.training.flops(device, effect.program)
        duration = profile.duration_ns(flops, self.streams, task.round, task.attempt)
        weights = host.store[effect.blobs[1]].weights
        assert weights is not None
        start, name = self._start(effect, device, weights), name_of(device, effect)
        if self._splits is not None and effect.program == "client_update":
            shared = self._splits.begun(host, weights, effect.arguments[0], self.plan.fleet.link)
            if shared is not None:
                duration = round((profile.traits.startup_s + shared.seconds) * ports.SECOND)
                start, name = shared.start, None
                self._tally.exchanged(host.ways, shared.up, shared.down)
                self._energy.moved(profile, shared.up + shared.down)
        job = self._jobs.add(now + duration, start, name)
        host.job = (effect.ticket, job)
        self._tally.compute_ns += duration
        self._energy.begins(profile, now, duration, flops)
        trained = effect.program == "client_update"
        self._at(now + duration, self._finish, host, effect.ticket, job, trained)
        chance = self.plan.fleet.dropout_of(profile)
        # By ticket, not by round: a device that came back and trains again has a fresh chance.
        if chance and self.streams.unit("dropout", device, effect.ticket) < chance:
            share = self.streams.unit("dropout when", device, effect.ticket)
            self._at(now + int(share * duration), self._drop_out, host, effect.ticket)

    def _start(
        self, effect: ports.RunProgram, device: int, weights: ports.Floats
    ) -> Callable[[], Awaited]:
        """What begins a device's program on the thread pool."""
        key, ring = effect.arguments
        if effect.program == "client_update":
            start: Callable[[], Awaited] = partial(self.training.submit, device, weights, key)
        else:
            assert effect.program == "evaluate"
            plan = RingPlan.of(ring)
            start = partial(self.training.evaluate, device, weights, key, plan)
        return partial(self._history.launch, device, effect.blobs[1], weights, start)

    def _on_cancel_program(self, host: Host, effect: ports.CancelProgram) -> None:
        host.updates.discard(effect.ticket)
        if host.job is not None and host.job[0] == effect.ticket:
            self._jobs.cancel(host.job[1])
            self._energy.ends(host.node.number, self.schedule.now)
            host.job = None

    def _on_record(self, host: Host, effect: ports.Record) -> None:
        if effect.kind in ("round", "evaluation", "rolled_back") and effect.fields["run"] != RUN:
            return
        if effect.kind == "round":
            self._jobs.forget_foreseen()
            away = {d for d in effect.fields["selected"] if not self._is_there(d)}
            self._tally.vanished |= away
            now, energy = self.schedule.now, self._energy
            for device in energy.round_over(effect.fields, now):
                self._at(now, self._exhaust, device)
            self._rounds_to_tell.append(self._tally.record(effect.fields, now, energy))
            self._tally = self._tally.next(effect.fields, overlap=self.plan.plan.buffered)
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
        host = self.hosts.get(ports.Node(ports.Tier.DEVICE, device))
        return self._dormant.is_up(device) if host is None else host.online
