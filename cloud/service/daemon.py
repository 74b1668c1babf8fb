"""The coordinator's process: the cloud's node and its built-in edge 0.

It serves edges, devices and operators.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ...core.node.driver.driver import Driver, DriverLimits, StateMachine
from ...core.node.driver.log_deduplication import RecordLog
from ...core.node.driver.traces import At, Opened, Spans, Traces
from ...core.node.identity.authority.deny_list import DenyList
from ...core.node.identity.pki.certificates import IdentityError, PeerIdentity
from ...core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from ...core.node.identity.pki.local_identity import coordinator_identity
from ...core.node.identity.pki.roles import Guard
from ...core.node.identity.pki.signing import CertificateIdentity
from ...core.node.net.grpc.grpc_server import GrpcHub
from ...core.node.net.grpc.grpc_witness import witnessing_of
from ...core.node.net.loopback import INSECURE, check_loopback
from ...core.node.net.mqtt.mqtt_link import MqttHub, MqttIdentity
from ...core.node.net.switch import Switch
from ...core.node.net.transfer import Intake
from ...core.node.sandbox import walls
from ...core.node.service.departures import Departures
from ...core.node.service.health import HealthServer
from ...core.node.service.hosting import Tasks, run_daemon
from ...core.node.service.process_memory import collect_seldom, keep_freed_memory
from ...core.node.storage.blobs import FolderBlobs
from ...core.placement.subgraphs.parts_host import host_top
from ...core.protocol.ports import CLOUD, BlobStored, Event, Node, Ordered, Received, Record, Tier
from ...core.protocol.run_names import number_of
from ...core.wire import enrolment_pb2_grpc, operator_pb2_grpc
from ...core.wire.admission_pb2 import CheckIn
from ...core.wire.blob_pb2 import FetchBlob
from ...core.wire.journal_pb2 import DeniedVersion, Forget, Left
from ...core.wire.operator_pb2 import BUFFERED, RunOrder
from ...core.wire.round_pb2 import Upload
from ..authority.authorities import Authorities, learn_nodes
from ..authority.hosted import HostedAuthority
from ..authority.port import AuthorityPort
from ..protocol.coordinator_state import CoordinatorState
from ..protocol.machine import Coordinator, restore
from ..store import records
from ..store.database import Database
from ..store.database_journal import DatabaseJournal
from ..store.packs import FolderPacks, Packs
from .audit_log import AuditLog
from .coordinator_settings import CloudSettings
from .fleet_registry import Fleet, live
from .identity_service import IdentityService
from .log_orders import follow
from .objects import NodeBlobs, ObjectBlobs, ObjectPacks, connect, is_url
from .operator import OperatorService
from .operator_orders import Orders
from .registry import Registry
from .relay_service import RelayService
from .telemetry import Telemetry
from .trust import Trust, remake
from .updates import ServerUpdates

log = logging.getLogger("delian.cloud")

EDGE_0 = Node(Tier.EDGE, 0)
#: What an edge may send in addition to a sum: an EdgeHello of 100,000 devices, a sum's lists of
#: them.
EDGE_BYTES_MAX = 2 * 2**20
#: Bytes of updates and sums in a journal before a snapshot takes their place: no more packs than a
#: folder keeps spares of, which are written over and over.
CHECKPOINT_BYTES = 128 * 2**20
#: How long a check-in waits for others, to be journaled in one transaction: of ten thousand idle
#: devices a hundred and more come back each second.
CHECK_IN_PATIENCE_S = 0.05
#: Likewise while there is no run, and no operator waits for a device.
IDLE_PATIENCE_S = 0.25
#: How long an update waits for those that are on their way in, likewise; not when it is the last.
UPLOAD_PATIENCE_S = 0.03
#: How long a request for a blob waits for others: a task's devices all ask at once.
FETCH_PATIENCE_S = 0.003
#: How often it is recorded which nodes were seen.
OBSERVE_S = 30.0
#: How often old models are let go of, at most.
RETIRE_EVERY_S = 2.0
#: A device's certificate must still be valid for so long when it gives its keys: its neighbours
#: look at it later, by their own clocks.
VERIFY_MARGIN_S = 600.0
#: When connected nodes are to come back after an orderly end.
RETRY_MS = 2_000


class Gatherer(StateMachine, Protocol):
    """The machine of the coordinator's own edge."""

    def limit(self, sender: Node) -> int:
        """Bytes of the largest message that it would take from a node now."""

    def devices(self) -> set[int]:
        """The devices that it has something to do with now."""


#: Makes edge 0: of its snapshot, or of None a new one.
GathererFactory = Callable[[bytes | None], Gatherer]


async def serve(
    settings: CloudSettings,
    gatherer_factory: GathererFactory,
    stop: asyncio.Event | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda facts: None,
    spans: Spans | None = None,
) -> None:
    """Runs a coordinator until `stop` is set, or SIGTERM or SIGINT comes.

    ready: called once with its addresses. spans: records the spans of its traces.

    Raises DelianError for what its operator can mend, and StoreError when the store is lost.
    """
    await run_daemon(
        lambda: CloudDaemon(settings, gatherer_factory, spans), settings.folder, stop, ready
    )


class CloudDaemon:
    """The parts of a running coordinator."""

    def __init__(
        self,
        settings: CloudSettings,
        gatherer_factory: GathererFactory,
        spans: Spans | None = None,
    ) -> None:
        self.settings = settings
        self._spans = spans
        self._log_record = RecordLog(log)
        self.tasks = Tasks()
        self.telemetry = Telemetry()
        self.switch = Switch()
        self.intake = Intake()  # one, so that its bounds hold for both links together
        self.serving = False
        self.trust: Trust | None = None
        self.hosted: HostedAuthority | None = None  # the CA's folder, where that is here
        self.authority: AuthorityPort | None = None
        self._factory = gatherer_factory
        self._closers = contextlib.AsyncExitStack()
        self._retiring: asyncio.Queue[int] = asyncio.Queue()
        self.ports: dict[str, int] = {}

    # ------------------------------------------------ start and end

    async def start(self) -> None:
        """Recovers both nodes and serves. Raises DelianError."""
        settings = self.settings
        keep_freed_memory()
        collect_seldom()
        walls.tell_lacking()
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if settings.insecure:
            for target in filter(None, (settings.listen, settings.broker)):
                check_loopback(target, "the address")
        else:
            self.trust = await asyncio.to_thread(self._open_trust)
        await self._open_store()
        self._make_nodes()
        for name, driver in (("the cloud", self.cloud), ("edge 0", self.gatherer)):
            self.tasks.start(name, driver.run())
        for driver in (self.cloud, self.gatherer):
            await driver.started()
        for digest in await self.cloud_blobs.missing():
            self.cloud.post(BlobStored(digest, intact=False))
        for run, plan in await self.registry.unbegun(self._state().newest):
            await self.audit.publish(run, plan)
            self.cloud.post(Ordered(RunOrder(run=run, submit=plan)))
        await self._open_doors()
        self.tasks.start("the fleet's book", self._observe())
        self.tasks.start("the models' keeper", self._retire())
        self.tasks.start("the store's watch", self.database.until_lost())
        self.tasks.start("the audit log", self.audit.run())
        if self.trust is not None and self.authority is not None:
            # Nodes that join from now on get this address.
            await self.trust.sync(self.authority, self._home(), self._state().draining)
            self.tasks.start("the authority's news", self._follow(self.trust, self.authority))
            following = follow(self.trust.log, lambda head: self.cloud.post(Ordered(head)))
            self.tasks.start("the certificate log", following)
        if self.hosted is not None and self.settings.witnesses:
            witnessing = witnessing_of(self.hosted.ca, self.settings.witnesses)
            self.tasks.start("the log's witnesses", witnessing.run())
        self.serving = True
        log.info("the coordinator serves", extra=self.facts())

    async def close(self) -> None:
        """Ends in order: nothing new comes in, states are put away, the store is closed."""
        self.serving = False
        await self._closers.aclose()

    def facts(self) -> dict[str, Any]:
        """Where it serves."""
        return {
            "federation": self._federation,
            "ports": dict(self.ports),
            "folder": str(self.settings.folder),
        }

    def _open_trust(self) -> Trust:
        """Reads the coordinator's identity. On the CA's machine it makes it. Blocks."""
        settings = self.settings
        folder = settings.identity or settings.folder / "identity"
        if settings.authority:
            return Trust(IdentityFolder(folder), settings.folder)
        self.hosted = HostedAuthority(settings.hosting())
        ca = self.hosted.ca
        return Trust(coordinator_identity(ca, folder, settings.addresses)[0], folder, ca.log)

    async def _open_authority(self, trust: Trust) -> AuthorityPort:
        """The authorities: the root in this process or another, others as they register.

        Raises DelianError where this coordinator has no deny list yet and cannot get one.
        """
        settings, hosted = self.settings, self.hosted
        authority: AuthorityPort
        if hosted is None:
            authority = federated = Authorities.at(
                settings.authority, trust, self.fleet, self._certified, settings.news_s
            )
            self._closers.push_async_callback(federated.close)
            self.tasks.start("renewal", trust.renew(authority, self._renewed))
        else:
            authority = local = hosted.authority(self.fleet)
            numbers, revoked = await self.fleet.last_numbers(), await self.fleet.revoked()
            await asyncio.to_thread(local.reconcile, numbers, revoked)
            if port := await hosted.open_enrolment(local, self._closers):
                self.ports["enrolment"] = port
                self.telemetry.sources.refusals["enrolment"] = hosted.refused
            self.tasks.start("the authority's certificate", hosted.keep_identity())
            self.tasks.start("renewal", remake(self._remake, self._renewed))
        if not await trust.sync(authority, None) and trust.signed() is None:
            raise IdentityError(
                "this coordinator has no deny list yet, and the authority did not give one",
                f"is `delian authority run` running at {settings.authority or 'all'}?",
            )
        return authority

    def _remake(self, now_s: float) -> bool:
        hosted, trust = self.hosted, self.trust
        assert hosted is not None and trust is not None
        addresses = self.settings.addresses
        return coordinator_identity(hosted.ca, trust.own.folder, addresses, now_s=now_s)[1]

    async def _certified(self, node: Node, made: PeerIdentity) -> None:
        """A node's renewal was passed on."""
        now = time.time_ns() // 1_000_000
        await self.fleet.certified(node, made.serial, made.not_after, now, make=False)

    async def _open_store(self) -> None:
        settings, closers = self.settings, self._closers
        self.database = await Database.open(settings.store or settings.folder / "delian.db")
        closers.push_async_callback(self.database.close)
        self.database.on_write = self.telemetry.written
        self.packs: Packs
        if is_url(settings.objects):
            store = connect(settings.objects)
            cache = FolderBlobs(settings.folder / "blobs", settings.cache_bytes_max)
            closers.push_async_callback(cache.close)
            self.blobs: FolderBlobs | ObjectBlobs = await ObjectBlobs.open(store, cache)
            self.packs = ObjectPacks(store)
        else:
            folder = Path(settings.objects) if settings.objects else settings.folder / "blobs"
            # Without a cap: the registry says what goes.
            self.blobs = FolderBlobs(folder, 2**62)
            self.packs = packs = FolderPacks(settings.folder / "packs")
            closers.push_async_callback(packs.close)
        closers.push_async_callback(self.blobs.close)
        self.registry = Registry(
            self.database, self.blobs, settings.models_kept, lambda: _needed(self._state())
        )
        await self.registry.open()
        trust = self.trust
        own = None if trust is None else (lambda: trust.own.material())
        self.audit = AuditLog(self.database, own)
        self.updates = ServerUpdates(
            self.blobs, settings.backend, settings.worker, on_update=self.telemetry.updated
        )
        closers.push_async_callback(self.updates.close)

    def _make_nodes(self) -> None:
        switch, telemetry = self.switch, self.telemetry
        self._closers.push_async_callback(switch.close)
        self.orders = Orders(lambda: self.cloud)

        def journal(node: Node, keep: Any) -> DatabaseJournal:
            told = telemetry.appended(str(node))
            return DatabaseJournal(self.database, self.packs, node, keep, told)

        self.cloud_blobs = NodeBlobs(self.blobs, lambda: _needed(self._state()))
        self.cloud = Driver(
            self._make_desk,
            journal(CLOUD, records.keep),
            switch,
            self.cloud_blobs,
            self.updates,
            on_record=self._recorded,
            limits=DriverLimits(checkpoint_bytes=CHECKPOINT_BYTES),
            traces=Traces(CLOUD, self._spans, self._opened),
        )
        edge_blobs = NodeBlobs(self.blobs)
        self.gatherer = Driver(
            self._factory,
            journal(EDGE_0, None),
            switch,
            edge_blobs,
            self.updates,
            on_record=self._log_record,
            limits=DriverLimits(checkpoint_bytes=CHECKPOINT_BYTES),
            traces=Traces(EDGE_0, self._spans),
            patience=self._patience,
        )
        switch.attach(CLOUD, self.cloud.post, self.cloud_blobs, self._limit, self.cloud.offer)
        switch.attach(EDGE_0, self.gatherer.post, edge_blobs, self._edge_limit, self.gatherer.offer)
        # Tasks first, then the nodes: a node that ends in good order is no task's failure.
        self._closers.push_async_callback(self.tasks.close)
        self._closers.push_async_callback(self.cloud.close)
        self._closers.push_async_callback(self.gatherer.close)
        sources = telemetry.sources
        sources.state = self._state
        sources.attendance = lambda: self.cloud.machine.runs.attendance()  # type: ignore[attr-defined]
        for node, driver in ((CLOUD, self.cloud), (EDGE_0, self.gatherer)):
            sources.drivers[str(node)] = driver
        sources.refusals["switch"] = lambda: switch.faults.counts
        sources.traffic = switch.traffic

    async def _open_doors(self) -> None:
        settings, trust = self.settings, self.trust
        self.fleet = Fleet(self.database, self._home(), lambda: self._state().draining, bool(trust))
        servicers: list[Callable[[Any], None]] = []
        if trust is not None:
            authority = self.authority = await self._open_authority(trust)
            identity = IdentityService(authority, trust.guard, trust.page, trust.log_page)
            self.telemetry.sources.refusals["identity"] = lambda: _refused(identity.counts)
            servicers.append(
                lambda s: enrolment_pb2_grpc.add_IdentityServicer_to_server(identity, s)
            )
            relayed = RelayService(self.switch, authority, trust.page)
            self._closers.push_async_callback(relayed.close)
            self.telemetry.sources.refusals["errands"] = lambda: relayed.faults.counts
        self.operator = OperatorService(
            self.registry,
            self.fleet,
            self.blobs,
            self.orders,
            lambda: self.cloud,
            lambda: self.gatherer,
            self._send_away,
            policy=settings.policy,
            authority=self.authority,
            terms=trust.terms if trust else None,
            audit=self.audit,
        )
        self._closers.push_async_callback(self.operator.close)
        self.telemetry.sources.refusals["operator"] = lambda: _refused(self.operator.counts)
        servicers.append(
            lambda s: operator_pb2_grpc.add_OperatorServicer_to_server(self.operator, s)
        )
        await self._open_hubs(servicers)
        if settings.health:
            health = HealthServer(settings.health, self._why_not_ready, self.telemetry.page)
            await health.start()
            self._closers.push_async_callback(health.close)
            self.ports["health"] = health.port

    async def _open_hubs(self, servicers: list[Callable[[Any], None]]) -> None:
        settings, trust, sources = self.settings, self.trust, self.telemetry.sources
        guard = trust.guard if trust else Guard(self._federation, Tier.CLOUD)
        own = (self._federation, trust is not None, self.switch.traffic)
        if parts := await host_top(settings.serve, guard, *own):
            parts.attach(servicers, self.tasks, sources, self.switch, self._closers)
        departures = Departures(
            self._peers,
            lambda node: self.gatherer.post(Ordered(Left(device=node.number))),
        )
        self._closers.callback(departures.close)
        self.mqtt: MqttHub | None = None
        self.hub = GrpcHub(
            self.switch,
            settings.listen,
            trust.own.material if trust else None,
            guard,
            servicers=servicers,
            federation=self._federation,
            intake=self.intake,
            times=settings.times,
            on_peer=departures.peer,
        )
        self.ports["grpc"] = await self.hub.start()
        self.fleet.cloud = self._home()
        self._closers.push_async_callback(self.hub.close, retry_ms=RETRY_MS)
        self.switch.add_link(self.hub)
        sources.refusals["grpc"] = lambda: self.hub.faults.counts
        sources.peers["grpc"] = lambda: self.hub.peers
        if settings.broker:
            files = trust.own.files if trust else None
            who = MqttIdentity(
                self._federation, CLOUD, files, guard.distrust, settings.broker_authority
            )
            mqtt = self.mqtt = MqttHub(self.switch, who, settings.broker, intake=self.intake)
            mqtt.start()
            self._closers.push_async_callback(mqtt.close)
            self.switch.add_link(mqtt)
            sources.refusals["mqtt"] = lambda: mqtt.faults.counts
            sources.peers["mqtt"] = lambda: mqtt.peers

    def _home(self) -> HomeAddress:
        """Where nodes reach the coordinator."""
        settings = self.settings
        listen = settings.listen
        if listen.endswith(":0"):  # the system has chosen
            listen = f"{listen.removesuffix(':0')}:{self.ports.get('grpc', 0)}"
        broker = settings.public_broker or settings.broker
        return HomeAddress(CLOUD, settings.public or listen, broker)

    # ------------------------------------------------ nodes

    def _make_desk(self, snapshot: bytes | None) -> Coordinator:
        state = CoordinatorState() if snapshot is None else restore(snapshot)
        log_file = None if self.trust is None else self.trust.log.file
        policy = self.settings.policy
        coordinator = Coordinator(state, policy=policy, log=log_file, records_orders=True)
        coordinator.runs.identity = self._identity_of(coordinator)
        return coordinator

    def _identity_of(self, coordinator: Coordinator) -> CertificateIdentity | None:
        """Signs tasks with the newest certificate.

        By the machine's own time, and no list that changes: a journal that is handled again takes
        the keys that it took. Doors keep revoked nodes out.
        """
        if self.trust is None:
            return None
        return CertificateIdentity(
            self.trust.own.material(),
            clock=lambda: coordinator.now / 1e9,
            margin_s=VERIFY_MARGIN_S,
        )

    def _state(self) -> CoordinatorState:
        state: CoordinatorState = self.cloud.machine.state  # type: ignore[attr-defined]
        return state

    def _opened(self, at: At) -> Opened | None:
        """What a trace of an attempt begins with."""
        run = self._state().runs.get(number_of(at.run))
        for attempt in run.open if run is not None else ():
            name = attempt.name or number_of(at.run)
            if at == (name, attempt.round, attempt.attempt):
                if attempt.evaluates:
                    return Opened(attempt.opened_ns, "evaluation")
                buffered = run is not None and run.plan.mode == BUFFERED
                return Opened(attempt.opened_ns, "closed" if buffered else "round")
        return None

    def _limit(self, sender: Node) -> int:
        machine: Any = self.cloud.machine
        return EDGE_BYTES_MAX + int(machine.report_bytes_max)

    def _edge_limit(self, sender: Node) -> int:
        machine: Any = self.gatherer.machine
        return int(machine.limit(sender))

    def _patience(self, event: Event) -> float:
        """How long an event of the edge's may wait for others, s."""
        if not isinstance(event, Received):
            return 0.0
        match event.message:
            case CheckIn():
                return CHECK_IN_PATIENCE_S if self._state().runs else IDLE_PATIENCE_S
            case Upload():
                return UPLOAD_PATIENCE_S if len(self.intake) else 0.0
            case FetchBlob():
                return FETCH_PATIENCE_S
        return 0.0

    def _recorded(self, record: Record) -> None:
        self.telemetry.recorded(record)
        self.orders.recorded(record)
        self._log_record(record)
        if record.kind in records.FACTS:
            run = int(record.fields["run"])
            if record.kind == "round" and record.fields["succeeded"]:
                self.registry.keep(record.fields["model"])
            self.registry.tell(run)
            if record.kind in records.AUDITED:
                self.audit.grown()
            if record.kind in ("round", "phase"):
                self._retiring.put_nowait(run)

    # ------------------------------------------------ other than nodes

    @property
    def _federation(self) -> str:
        if self.trust is not None:
            return self.trust.federation
        return self.settings.federation or INSECURE

    def _why_not_ready(self) -> str | None:
        if self.database.lost.is_set():
            return f"the store is lost: {self.database.why_lost}"
        return None if self.serving else "starting or ending"

    async def _send_away(self, node: Node, reason: str) -> None:
        if self.trust is not None and self.authority is not None:
            # First, or the node would be let in again at once.
            await self.trust.sync(self.authority, self._home(), self._state().draining)
            self._tell_denied(self.trust.denied())
        self._end_links(node, reason)

    def _end_links(self, node: Node, reason: str) -> None:
        self.hub.forget(node, reason)
        if self.mqtt is not None:
            self.mqtt.forget(node)

    def _end_revoked(self, listed: DenyList) -> None:
        """Closes the connections of revoked nodes, and of nodes whose authority is revoked."""
        machine: Any = self.gatherer.machine
        devices = {Node(Tier.DEVICE, number) for number in machine.devices()}
        gone = sorted(filter(listed.revoked, devices | self._peers()))
        for node in gone:
            if node in devices:
                self.gatherer.post(Ordered(Forget(device=node.number)))
            self._end_links(node, "revoked")
        if gone:
            self.hub.review()

    def _peers(self) -> set[Node]:
        """The nodes that are connected now."""
        return {*self.hub.peers, *(self.mqtt.peers if self.mqtt is not None else ())}

    def _renewed(self) -> None:
        """Uses the new certificate: gRPC by itself, tasks are signed with it, MQTT reconnects."""
        coordinator: Any = self.cloud.machine
        coordinator.runs.identity = self._identity_of(coordinator)
        if self.mqtt is not None:
            self.mqtt.redial()

    def _tell_denied(self, listed: DenyList) -> None:
        """Notifies the edges that there is another list; they ask for it."""
        if listed.version != self._state().denied:
            self.cloud.post(Ordered(DeniedVersion(version=listed.version)))

    async def _observe(self) -> None:
        """Records which node was seen where."""
        while True:
            await asyncio.sleep(OBSERVE_S)
            await self.fleet.observe(live(self._state(), self.cloud.now, self.settings.policy))

    async def _retire(self) -> None:
        """Lets go of old models, one run after the other, and not after each short round."""
        while True:
            runs = {await self._retiring.get()}
            while not self._retiring.empty():
                runs.add(self._retiring.get_nowait())
            for run in sorted(runs):
                await self.registry.retire(run)
            await asyncio.sleep(RETIRE_EVERY_S)

    async def _follow(self, trust: Trust, authority: AuthorityPort) -> None:
        """Exchanges news with the authority, and carries out all revocations."""
        known, ended = frozenset(await self.fleet.revoked()), -1
        while True:
            listed = trust.denied()
            self._tell_denied(listed)
            if listed.version != ended:
                revoked = frozenset(listed.nodes())
                await self.fleet.follow_revoked(revoked - known, listed.authorities())
                self._end_revoked(listed)
                known, ended = revoked, listed.version
            await asyncio.sleep(self.settings.news_s)
            await trust.sync(authority, self._home(), self._state().draining)
            with contextlib.suppress(IdentityError):  # `sync` has logged that it is away
                await learn_nodes(self.fleet, authority, 0)


def _needed(state: CoordinatorState) -> Iterator[bytes]:
    """The blobs that the coordinator's machine counts on."""
    for run in state.runs.values():
        refs = [run.plan.bundle, run.weights, run.memory, run.ordered, run.best_weights]
        refs += [attempt.weights for attempt in (*run.open, *run.parked, *run.batch)]
        refs += run.plan.frozen
        yield from (ref.digest for ref in refs if ref is not None)


def _refused(counts: dict[str, int]) -> dict[str, int]:
    """Of a service's counts those that are refusals."""
    good = ("enrolled", "renewed", "denied_asked", "orders", "blobs in", "blobs out")
    return {kind: count for kind, count in counts.items() if kind not in good}
