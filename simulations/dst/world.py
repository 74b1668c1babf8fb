"""A federation that meets a seed's faults: its nodes, virtual time, and operators' orders.

One heap of (time, tie, number, what): two things at one moment come in a drawn order. The
coordinator's process hosts the cloud's machine and edge 0; every other node is a process of its
own. Faults are on until the faults heals; then every node that is not gone for good comes back,
what was ordered off is ordered on again, and all runs must come to their end.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from ...cloud.protocol.coordinator_state import CoordinatorPolicy, CoordinatorState
from ...cloud.protocol.coordinator_state import Phase as RunPhase
from ...cloud.protocol.machine import Coordinator
from ...cloud.protocol.machine import restore as restore_cloud
from ...core.node.storage.disk import Disk
from ...core.node.storage.segments import Segments
from ...core.privacy.secagg.client import Policy
from ...core.privacy.secagg.logged import LogHead, LogRules
from ...core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from ...core.privacy.secagg.simulated_log import simulated_rules
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import CLOUD, MS, SECOND, Event, Node, Ordered, Tier
from ...core.protocol.random_streams import Streams
from ...core.wire.admission_pb2 import DeviceFacts, Eligibility
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.journal_pb2 import Conditions, DeniedVersion, Drain, DrainEdge, Forget, Homes
from ...core.wire.link_pb2 import NODE_CLOUD, NODE_EDGE, Address
from ...core.wire.operator_pb2 import BUFFERED, SYNCHRONOUS, PlanMessage, RunOrder
from ...core.wire.round_pb2 import RingPlan
from ...core.wire.secure_pb2 import SecurePlan
from ...device.protocol.device_state import DevicePolicy, DeviceState
from ...device.protocol.machine import DeviceMachine
from ...device.protocol.machine import restore as restore_device
from ...edge.protocol.edge_state import EdgePolicy, EdgeState
from ...edge.protocol.machine import EdgeMachine
from ...edge.protocol.machine import restore as restore_edge
from ..federation.helping import edge_of, trust_in
from ..federation.trace import Trace
from . import frozen_parts
from .draws import Rng
from .faulty_network import Network
from .hostile.attackers import Attackers
from .hostile.attacks import BUNDLES, Attack, Credulous, give_deny_lists
from .hostile.federation_log import FederationLog
from .hostile.hostile_bundles import Gates
from .node_work import Work
from .oracles import bounds
from .oracles.auditor import Auditor
from .oracles.edge_book import OracleFailure
from .simulated_node import Host, Process
from .swarm import BUFFERED_RUN, DIMENSION, ROUNDS_RUN, FaultPlan, Order, Shape

#: No clock may show a time before the beginning.
_BEGINNING_NS = 1_000_000 * SECOND
#: An order that was not accepted is given again.
_ORDER_AGAIN_NS = 3 * SECOND
#: From the healing to the end of all runs, at most; and from then until all is at rest.
PROGRESS_NS = 1_200 * SECOND
SETTLE_NS = 90 * SECOND
#: A node that is up and answers is seen so often, with all its repetitions.
_SILENCE_NS = 60 * SECOND
#: Events that are shown before a failure; and of which nothing but an endless loop needs more.
LAST_EVENTS = 400
EVENTS_MAX = 2_000_000
#: How old a device's deny list may be, in worlds where it is withheld.
_DENIED_AGE_NS = 7 * 24 * 3600 * SECOND
_HEARTBEAT_NS = 10 * SECOND
_CAPABLE = Eligibility(powered=True, unmetered=True, idle=True, consented=True)
_UNPLUGGED = Eligibility(powered=False, unmetered=True, idle=True, consented=True)
_UNWILLING = Eligibility(powered=True, unmetered=True, idle=True, consented=False)
_EDGE_BACKOFF = Backoff(2 * SECOND, 20 * SECOND, 64 * 1024)
_DEVICE_BACKOFF = Backoff(SECOND, 20 * SECOND, 16 * 1024)


class World:
    """One seed's. `run` once."""

    def __init__(self, seed: int, shape: Shape, faults: FaultPlan) -> None:
        self.seed, self.shape, self.faults = seed, shape, faults
        self.now = 0
        self.faulty = faults.heal_s > 0
        self.rng = Rng(seed, "world")
        self.streams = Streams(seed)
        self.counts: Counter[str] = Counter()
        self.trace = Trace()
        self.last: deque[tuple[int, Node, Event]] = deque(maxlen=LAST_EVENTS)
        self.events = 0
        self.healed_ns = int(faults.heal_s * SECOND)
        self.auditor = Auditor(self)
        self.work = Work(self, seed)
        self._heap: list[tuple[int, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._tie = Rng(seed, "ties").unit
        self._salt = 0
        self.attackers = Attackers(self, faults.schemes) if faults.schemes else None
        self.gates = Gates(self) if faults.schemes else None
        self.log = FederationLog(self) if shape.secure else None
        self.withholds = any(s.attack is Attack.WITHHELD_DENY_LIST for s in faults.schemes)
        self.network = Network(self, seed)
        self.hosts: dict[Node, Host] = {}
        self._orders: dict[Node, list[Any]] = {}
        self._orders_left = 0
        self.bundle, self.frozen = b"programs" * 16, frozen_parts.parts_of(seed)
        self._build()

    # ------------------------------------------------ time

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        """Lets `action(*arguments)` happen at `time`, or now where that is past."""
        self._number = number = self._number + 1
        time = time if time > self.now else self.now
        heappush(self._heap, (time, self._tie(), number, action, arguments))

    def after(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (self.now + delay, self._tie(), number, action, arguments))

    def token(self) -> int:
        """A number above zero that no other has."""
        self._number += 1
        return self._number

    def run(self) -> None:
        """Runs to the end of all runs, or raises OracleFailure."""
        heap = self._heap
        end = 0
        while heap:
            self.now, _, _, action, arguments = heappop(heap)
            action(*arguments)
            if end:
                if self.now >= end:
                    break
            elif self._is_over():
                end = self.now + 1
                if self.faults.settle:
                    end = max(self.now, self.healed_ns) + SETTLE_NS
            elif self.now > self.healed_ns + PROGRESS_NS:
                self._stuck()
        self._look_at_end()
        if self.attackers is not None:
            self.attackers.count(self.counts)

    def note(self, node: Node, event: Event) -> None:
        """A machine is about to handle an event."""
        self.events += 1
        self.trace.add(self.now, node, event)
        self.last.append((self.now, node, event))
        self.check(self.events < EVENTS_MAX, "progress", "no end of events")

    def check(self, holds: bool, oracle: str, what: str) -> None:
        if not holds:
            raise OracleFailure(oracle, what)

    # ------------------------------------------------ building

    def _build(self) -> None:
        shape, faults = self.shape, self.faults
        written = {
            *faults.mortal,
            *(n for _, n in faults.kills),
            *(n for _, n, _ in faults.full),
        }
        home = Process()
        cloud = self._add(CLOUD, self._make_cloud, home, CLOUD in written)
        for edge in range(shape.edges + shape.helpers):
            node = Node(Tier.EDGE, edge)
            process = home if edge == 0 else Process()
            named = CLOUD if edge == 0 else node
            self._add(node, self._edge_maker(edge), process, named in written)
        for device in range(shape.devices):
            node = Node(Tier.DEVICE, device)
            self._add(node, self._device_maker(device), Process(), node in written)
        for content in (self.bundle, *self.frozen):
            cloud.blobs[hashlib.sha256(content).digest()] = content
        for host in self.hosts.values():
            is_device = host.node.tier is Tier.DEVICE
            spread = 3 * SECOND if is_device else 0
            late = self.healed_ns if is_device and host.node.number in faults.asleep else 0
            if host is host.process.hosts[0]:
                self.at(late + int(self.rng.unit() * spread), self._come_up, host.process)
        self._plan_faults()
        self._plan_orders()

    def _add(
        self, node: Node, make: Callable[[bytes | None], Any], process: Process, journaled: bool
    ) -> Host:
        host = self.hosts[node] = Host(self, node, make, process, journaled)
        faults, rng = self.faults, self.rng
        drift = rng.whole(-faults.drift_ppm, faults.drift_ppm)
        host.clock.offset_ns = _BEGINNING_NS + self._offset_ns()
        host.clock.drift_ppm = drift
        return host

    def _offset_ns(self) -> int:
        return int(self.rng.between(-1, 1) * self.faults.offset_s * SECOND)

    def _make_cloud(self, snapshot: bytes | None) -> Coordinator:
        shape = self.shape
        policy = CoordinatorPolicy(
            ready_per_edge_max=shape.ready_per_edge_max,
            after_task_ms=(200, 1_000),
            after_reject_ms=(4_000, 15_000),
            lease_ms=int(shape.lease_s * 1000),
            edge_silence_ns=3 * _HEARTBEAT_NS,
            backoff=_EDGE_BACKOFF,
        )
        state = CoordinatorState() if snapshot is None else restore_cloud(snapshot)
        if self.log is None:
            return Coordinator(state, None, policy)
        if state.log is None:
            state.log = self.log.first
        own, schemes = simulated_coordinator(self.seed), self.faults.schemes
        attacks = any(s.where == CLOUD and s.attack not in BUNDLES for s in schemes)
        return Coordinator(state, Credulous(own) if attacks else own, policy, self.log.copy)

    def attacker_at(self, node: Node) -> Attackers | None:
        """The attackers between a node and the network."""
        there = self.attackers is not None and self.attackers.stands_at(node)
        return self.attackers if there else None

    def _identity(self, device: int) -> SimulatedIdentity | None:
        return SimulatedIdentity(device, self.seed) if self.shape.secure else None

    def _edge_maker(self, edge: int) -> Callable[[bytes | None], EdgeMachine]:
        shape = self.shape
        helping = self._masks(True) if shape.secure else None
        lives = 0
        policy = EdgePolicy(
            backoff=_EDGE_BACKOFF,
            devices_max=shape.devices_max,
            heartbeat_ns=_HEARTBEAT_NS,
            sum_bytes_max=shape.sum_bytes_max,
            after_reject_ms=(4_000, 15_000),
            lease_ms=int(shape.lease_s * 1000),
        )

        def make(snapshot: bytes | None) -> EdgeMachine:
            nonlocal lives
            if snapshot is None:
                lives += 1
            state = EdgeState(edge, lives) if snapshot is None else restore_edge(snapshot)
            return edge_of(state, policy, helping, self.seed)

        return make

    def _device_maker(self, device: int) -> Callable[[bytes | None], DeviceMachine]:
        policy = DevicePolicy(
            backoff=_DEVICE_BACKOFF,
            retry_ms=(4_000, 15_000),
            unmask_ns=60 * SECOND,
            secure_required=self.shape.secure,
            floor=Policy(
                cohort_min=self.shape.sum_min,
                log=simulated_rules(self.seed) if self.shape.secure else LogRules(),
            ),
            helpers=trust_in(self._masks(True)),
            denied_age_ns=_DENIED_AGE_NS if self.withholds else 0,
        )
        homes = tuple(Node(Tier.EDGE, e) for e in self.shape.homes[device])
        facts = DeviceFacts(memory_mib=512)
        secret = hashlib.sha256(f"{self.seed} {device}".encode()).digest()
        identity = self._identity(device)
        # A device that has seen no head trusts the first one: attacks are for devices that have.
        known = self.log.first if self.log is not None and self.attackers is not None else LogHead()

        def make(snapshot: bytes | None) -> DeviceMachine:
            state = DeviceState(device, log=known) if snapshot is None else restore_device(snapshot)
            return DeviceMachine(
                state, homes, self.streams, facts, _CAPABLE, policy, secret, identity
            )

        return make

    # ------------------------------------------------ faults

    def _plan_faults(self) -> None:
        faults = self.faults
        if not self.faulty:
            return
        for at_s, node in faults.kills:
            self.at(int(at_s * SECOND), self.crash, self.hosts[node].process)
        for at_s, edge in faults.wipes:
            self.at(int(at_s * SECOND), self._wipe, self.hosts[Node(Tier.EDGE, edge)])
        for at_s, edge in faults.gone:
            self.at(int(at_s * SECOND), self._take_away, self.hosts[Node(Tier.EDGE, edge)])
        for at_s, node, until_s in faults.full:
            host = self.hosts[node]
            self.at(int(at_s * SECOND), self._fill, host)
            self.at(int(until_s * SECOND), self._make_room, host)
        self.at(self.healed_ns, self._heal)

    def crash_point(self, host: Host) -> float:
        """Where in its batch a node's process ends, from 0 to 1; above: it does not."""
        if host.mortal and self.faulty and self.rng.chance(self.faults.crash):
            return self.rng.unit()
        return 2.0

    def crash(self, process: Process) -> None:
        """The process ends, and comes back after a while."""
        if not process.up:
            return
        process.up = False
        self.counts["crashes"] += 1
        powerless = self.rng.chance(self.faults.power)
        for host in process.hosts:
            host.fall()
            if powerless:
                host.disk.crash(self.streams)
            self.trace.note(self.now, host.node, b"down")
        down = MS + self.rng.exponential_ns(self.faults.down_s)
        self.after(min(down, 60 * SECOND), self._come_up, process)

    def _come_up(self, process: Process) -> None:
        if process.up or process.gone:
            return
        process.up = True
        for host in process.hosts:
            if process.up:
                host.start()

    def _wipe(self, host: Host) -> None:
        self.crash(host.process)
        host.wipe()
        self.auditor.draining.pop(host.node.number, None)

    def _take_away(self, host: Host) -> None:
        self.crash(host.process)
        host.process.gone = True

    def _fill(self, host: Host) -> None:
        host.disk.bytes_max = 0

    def _make_room(self, host: Host) -> None:
        host.disk.bytes_max = None

    def set_clock(self, host: Host) -> None:
        """A node starts; its clock may have been set."""
        if host.life > 1 and self.faulty and self.rng.chance(self.faults.clock_set):
            host.clock.offset_ns = _BEGINNING_NS + self._offset_ns()

    def segments(self, disk: Disk) -> Segments:
        """A journal over a disk; its salts are the world's."""
        return Segments(disk, self._salt_bytes, segment_bytes_max=8 * 1024)

    def _salt_bytes(self, count: int) -> bytes:
        self._salt += 1
        return hashlib.shake_128(f"{self.seed} {self._salt}".encode()).digest(count)

    def _heal(self) -> None:
        self.faulty = False
        give_deny_lists(self)
        for host in self.hosts.values():
            host.disk.bytes_max = None
            if not host.process.up and host is host.process.hosts[0]:
                self.after(self.rng.below(SECOND), self._come_up, host.process)
        for run in self.runs:
            self.order(CLOUD, RunOrder(run=run, resume=True))
        for edge in range(self.shape.edges):
            self.order(Node(Tier.EDGE, edge), Drain(draining=False))
            self.order(CLOUD, DrainEdge(edge=edge, draining=False))

    # ------------------------------------------------ orders

    @property
    def runs(self) -> tuple[int, ...]:
        return (ROUNDS_RUN, BUFFERED_RUN) if self.shape.buffer else (ROUNDS_RUN,)

    def _plan_orders(self) -> None:
        self._orders_left = len(self.shape.orders)
        self.order(CLOUD, RunOrder(run=ROUNDS_RUN, submit=self._submitted(ROUNDS_RUN)))
        if self.shape.buffer:
            at = int(self.rng.unit() * 10 * SECOND)
            self._orders_left += 1
            self.at(at, self._submit_second)
        for order in self.shape.orders:
            self.at(int(order.at_s * SECOND), self._give, order)
        if self.log is not None:
            self.log.plan()

    def _submit_second(self) -> None:
        if ROUNDS_RUN not in self.auditor.runs:
            self.after(SECOND, self._submit_second)  # numbers are handed out upwards
            return
        self._orders_left -= 1
        self.order(CLOUD, RunOrder(run=BUFFERED_RUN, submit=self._submitted(BUFFERED_RUN)))

    def order(self, who: Node, order: Any) -> None:
        """Gives an order until it is durable there, as an operator without an answer does.

        One after the other.
        """
        self._orders_left += 1
        waiting = self._orders.setdefault(who, [])
        waiting.append(order)
        if len(waiting) == 1:
            self._order_again(who)

    def _order_again(self, who: Node) -> None:
        host, waiting = self.hosts[who], self._orders[who]
        if self.auditor.is_settled(waiting[0]) or host.process.gone:
            self._orders_left -= 1
            waiting.pop(0)
            if waiting:
                self._order_again(who)
            return
        if host.up:
            host.post(Ordered(waiting[0]))
        self.after(_ORDER_AGAIN_NS, self._order_again, who)

    def _give(self, order: Order) -> None:
        self._orders_left -= 1
        what, _, number = order.what.partition(" ")
        device = order.who.number
        run = RunOrder(run=int(number) if number.isdigit() else 0)
        if what == "pause" and self.now < self.healed_ns:
            run.pause = True
        elif what in ("resume", "pause"):
            run.resume = True
        elif what == "cancel":
            run.cancel = True
        elif what == "weights":
            content = hashlib.shake_128(f"{self.seed} {self.now}".encode()).digest(4 * DIMENSION)
            digest = hashlib.sha256(content).digest()
            self.hosts[CLOUD].blobs[digest] = content
            run.weights.CopyFrom(BlobRef(digest=digest, size=len(content)))
        elif what == "nonsense":  # a number that is taken
            run.run = run.run if run.run in self.auditor.runs else ROUNDS_RUN
            run.submit.CopyFrom(self._plan(ROUNDS_RUN))
        elif what in ("drain", "serve"):
            draining = what == "drain" and self.now < self.healed_ns
            self.order(order.who, Drain(draining=draining))
            return
        elif what in ("withdraw", "readmit"):
            draining = what == "withdraw" and self.now < self.healed_ns
            self.order(CLOUD, DrainEdge(edge=int(number), draining=draining))
            return
        elif what == "deny":
            self.order(CLOUD, DeniedVersion(version=int(number)))
            return
        elif what == "forget":
            self.order(order.who, Forget(device=int(number)))
            return
        elif what == "homes":
            self.order(order.who, _homes(self.rng, self.shape.edges))
            return
        else:
            facts = DeviceFacts(memory_mib=512 + device)
            eligibility = {"unplugged": _UNPLUGGED, "no": _UNWILLING}.get(what, _CAPABLE)
            self.order(order.who, Conditions(facts=facts, eligibility=eligibility))
            return
        self.order(CLOUD, run)

    def _submitted(self, run: int) -> PlanMessage:
        """A run's plan, with a signed bundle where devices want one."""
        plan = self._plan(run)
        return plan if self.gates is None else self.gates.publish(run, plan)

    def _plan(self, run: int) -> PlanMessage:
        shape = self.shape
        buffered = run == BUFFERED_RUN
        first = hashlib.shake_128(f"first {run}".encode()).digest(4 * DIMENSION)
        digest = hashlib.sha256(first).digest()
        self.hosts[CLOUD].blobs[digest] = first
        bundle = hashlib.sha256(self.bundle).digest()
        return PlanMessage(
            name="dst",
            mode=BUFFERED if buffered else SYNCHRONOUS,
            rounds=shape.rounds,
            cohort=0 if buffered else shape.cohort,
            bundle=BlobRef(digest=bundle, size=len(self.bundle)),
            weights=BlobRef(digest=digest, size=len(first)),
            frozen=frozen_parts.refs_of(self.frozen),
            ring=RingPlan(clip=1.0, clients_max=256, bits=shape.bits, dimension=DIMENSION),
            over_selection=shape.over_selection,
            reports_min=min(shape.reports_min, shape.buffer) if buffered else shape.reports_min,
            attempts_max=shape.attempts_max,
            timeout_ms=int(shape.round_s * 1000),
            wait_ms=int(shape.wait_s * 1000),
            rest_ms=int(shape.rest_s * 1000),
            pool_min=0 if buffered else shape.pool_min,
            evaluation_every=shape.evaluate_every,
            patience=shape.patience,
            buffer=shape.buffer if buffered else 0,
            concurrency=shape.concurrency if buffered else 0,
            staleness_max=shape.staleness_max,
            seed=self.seed,
            secure=self._masks(buffered) if shape.secure else None,
            cohorts=0 if buffered else shape.cohorts,
        )

    def _masks(self, helped: bool) -> SecurePlan:
        """helped: of a run that helpers unmask, where there are some."""
        shape = self.shape
        least, corrupt = shape.sum_min, shape.corrupt
        plan = SecurePlan(suite=1, cohort_min=least, corrupt=corrupt, dropout=0.2)
        for number in range(shape.helpers if helped else 0):
            plan.helpers.add(edge=shape.edges + number)
        return plan

    # ------------------------------------------------ the end

    def _is_over(self) -> bool:
        """All that was to be ordered was, and all runs are over, durably."""
        if self._orders_left:
            return False
        books = self.auditor.runs
        return len(books) == len(self.runs) and all(b.over for b in books.values())

    def _stuck(self) -> None:
        state = self.hosts[CLOUD].machine.state
        phases = {
            r: (s.phase.value, s.round, s.attempt, s.stopped_by) for r, s in state.runs.items()
        }
        self.check(False, "progress", f"runs do not end: {phases}, orders: {self._orders_left}")

    def _look_at_end(self) -> None:
        cloud = self.hosts[CLOUD]
        for number, book in self.auditor.runs.items():
            ended = cloud.machine.state.ended[number]
            known = ended.weights.digest == book.weights
            self.check(known, "lost", f"run {number} ends with another model")
            if ended.phase is RunPhase.DONE and not ended.why:
                made = book.models == book.plan.rounds
                self.check(made, "progress", f"run {number} is done with {book.models} models")
            if ended.phase is RunPhase.FAILED:
                self.counts["runs failed"] += 1
                told = bool(ended.why) and self.shape.attempts_max < 100
                self.check(told, "progress", f"run {number} gives up: {ended.why!r}")
            cancelled = ended.phase is RunPhase.CANCELLED
            self.check(not cancelled or book.cancelled, "order", f"run {number} is cancelled")
        for host in self.hosts.values():
            self.look_at(host)
        if self.log is not None:
            self.log.look_at_end()
        self._replay_all()
        if self.faults.settle:
            self._look_at_rest()

    def look_at(self, host: Host) -> None:
        """Whether a node's state keeps its bounds."""
        if host.up and host.is_quiet:
            what = bounds.broken(host)
            self.check(not what, "bounds", f"{host.node}: {what}")

    def _replay_all(self) -> None:
        """What a node has written down gives the state that it has."""
        for host in self.hosts.values():
            if host.journaled and host.up and host.is_quiet:
                again = host.replay()
                same = again == host.machine.snapshot()
                self.check(same, "journal", f"{host.node}: its journal gives another state")

    def _look_at_rest(self) -> None:
        """Long after all runs: nothing is held for them, and all reachable nodes are seen."""
        views = self.hosts[CLOUD].machine.state.edges
        cloud_now = self.hosts[CLOUD].now
        for host in self.hosts.values():
            if not host.up:
                continue
            state = host.machine.state
            if host.node.tier is Tier.EDGE:
                left = list(state.collections)
                self.check(not left, "progress", f"{host.node} still holds {left}")
                silent = cloud_now - views[host.node.number].heard_ns
                self.check(silent < _SILENCE_NS, "progress", f"{host.node} has not answered")
            elif host.node.tier is Tier.DEVICE:
                self._look_at_device(host)

    def _look_at_device(self, host: Host) -> None:
        state = host.machine.state
        # A task that was under way for long may come at any time; it ends by itself.
        works = state.task is not None and host.now > state.ends_ns + SECOND
        self.check(not works, "progress", f"{host.node} still works")
        if host.node.number in self.faults.liars:
            return  # it may have said that a later check-in of its own is old
        homes = (self.hosts[Node(Tier.EDGE, h)] for h in state.homes)
        if any(not h.process.gone for h in homes):
            silence = self.now - host.answered_ns
            allowed = _SILENCE_NS + int(self.shape.lease_s * SECOND)
            self.check(silence < allowed, "progress", f"{host.node} is not answered")


def _homes(rng: Rng, edges: int) -> Homes:
    """Some homes, the cloud's own among them."""
    numbers = list(range(edges))
    rng.shuffle(numbers)
    chosen = numbers[: rng.whole(min(2, edges), edges)]
    return Homes(
        homes=[
            Address(tier=NODE_CLOUD) if n == 0 else Address(tier=NODE_EDGE, number=n)
            for n in chosen
        ]
    )
