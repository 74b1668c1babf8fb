"""The edge: a coordinator to its devices, a device to its cloud.

It hosts the edge's state machine with its journal and a cache of bundles and weights, serves its
devices over gRPC and MQTT, and connects to the cloud, with an outbox for the times when there is
none. It fetches the deny list from the coordinator and disconnects the nodes on it, also when it
has been started again while there is no coordinator: from time to time, when it is connected again,
and at once when the coordinator's Pace names another list than it has.

    FOLDER/journal    what the edge has promised       FOLDER/blobs    the cache
    FOLDER/outbox.db  what waits for the cloud         FOLDER/holders  whose certificate is whose
    FOLDER/helper.key what devices seal their seeds to, where it helps
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.node.driver.driver import Driver
from ...core.node.driver.log_deduplication import RecordLog
from ...core.node.driver.traces import Spans, Traces
from ...core.node.identity.authority.deny_list import DenyList
from ...core.node.identity.authority.terms import rules_of
from ...core.node.identity.enrolment.kept_deny_list import KnownDenied
from ...core.node.identity.enrolment.kept_deny_list import LogSink as Heads
from ...core.node.identity.log.log_copy import KnownLog
from ...core.node.identity.pki.identity_folder import HomeAddress
from ...core.node.identity.pki.ledger import write_file
from ...core.node.identity.pki.roles import Guard
from ...core.node.identity.pki.signing import CertificateIdentity
from ...core.node.net.grpc.grpc_guard import Servicer
from ...core.node.net.loopback import check_loopback
from ...core.node.net.message_limits import PeerTimes
from ...core.node.net.switch import Switch
from ...core.node.service.departures import Departures
from ...core.node.service.health import HealthServer
from ...core.node.service.hosting import Tasks, Who, run_daemon, who_is
from ...core.node.service.known_log import LogSink, keep_fork
from ...core.node.service.prometheus import Family, Sources, gauge, text
from ...core.node.service.uplinks import Hubs, Transport, Uplinks, keep_denied
from ...core.node.storage.blobs import FolderBlobs
from ...core.node.storage.journal import FileJournal
from ...core.privacy.secagg.helper import Helper
from ...core.privacy.secagg.kdf import KEY_BYTES
from ...core.privacy.secagg.limits import BATCH_MAX
from ...core.protocol import ports
from ...core.protocol.run_names import shown
from ...core.wire.admission_pb2 import Pace, RejectReason
from ...core.wire.helper_pb2 import HelpRequest
from ...core.wire.journal_pb2 import DeniedVersion, Drain, Forget, Left
from ..protocol.edge_state import EdgePolicy, EdgeState
from ..protocol.machine import EdgeMachine, restore
from .edge_programs import EdgePrograms
from .outbox import Outbox
from .outlink import OutboxLink

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ...core.placement.subgraphs.frames.stream_service import SubgraphService
    from ...core.placement.subgraphs.parts_host import PartsHost
    from .split_host import SplitHost

log = logging.getLogger("delian.edge")


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What an edge's operator sets."""

    folder: Path
    """Where the edge keeps everything."""
    identity: Path | None = None
    """What `delian join` wrote."""
    listen: str = "127.0.0.1:7451"
    """Host:port for its devices over gRPC; empty: none."""
    broker: str = ""
    """"mqtts://host:port" for devices over MQTT; empty: none."""
    broker_authority: Path | None = None
    """PEM of the CA of the broker's certificate, where that is not the federation's CA."""
    cloud: HomeAddress | None = None
    """Where the coordinator is; None: where enrolment said."""
    transport: Transport = "auto"
    health: str = ""
    """Host:port for HTTP; empty: none."""
    policy: EdgePolicy = field(default_factory=EdgePolicy)
    times: PeerTimes = field(default_factory=PeerTimes)
    outbox_bytes_max: int = 256 << 20
    helps: bool = False
    """Whether it holds what unmasks for runs that name it, of sums of `helps_min` devices or more.
    """
    helps_min: int = 0
    serve: tuple[Path, ...] = ()
    """Bundles with weights of which it runs parts for its devices."""
    insecure: bool = False
    """Without an identity, on loopback alone."""
    number: int | None = None
    """The edge's number, where it has no identity."""
    federation: str = ""
    """The federation's name, where it has no identity."""


async def serve(
    settings: EdgeSettings,
    stop: asyncio.Event | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda facts: None,
    spans: Spans | None = None,
) -> None:
    """Runs an edge until `stop` is set, or SIGTERM or SIGINT comes.

    ready: called once when devices are served. Raises DelianError for what its operator can mend.
    """
    await run_daemon(lambda: EdgeDaemon(settings, spans), settings.folder, stop, ready)


class Trust:
    """Which nodes may connect to this edge: the role table and the deny list.

    changed: called from another thread with each newer list. heads: takes heads of the certificate
    log; None: a file does.
    """

    def __init__(
        self, who: Who, changed: Callable[[DenyList], None], heads: Heads | None = None
    ) -> None:
        self.denied: KnownDenied | None = None
        if who.identity is not None:
            self.denied = KnownDenied(who.identity, changed, heads or KnownLog(who.identity))
        self._guard = Guard(who.federation, ports.Tier.EDGE, self.denied or DenyList)
        self.refusal = self._guard.refusal
        self.distrust = self._guard.distrust


class EdgeDaemon:
    """The parts of a running edge. Made on a thread: it reads files."""

    def __init__(self, settings: EdgeSettings, spans: Spans | None = None) -> None:
        self.settings, self._spans = settings, spans
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.who = who_is(
            ports.Tier.EDGE,
            settings.identity,
            insecure=settings.insecure,
            number=settings.number,
            federation=settings.federation,
        )
        if not settings.listen and not settings.broker:
            raise DelianError("this edge serves no devices", "give edge.listen, or edge.broker")
        if self.who.identity is None:
            for target in filter(None, (settings.listen, settings.broker)):
                check_loopback(target, "the address")
        if settings.helps and self.who.identity is None:
            raise DelianError(
                "an edge without a certificate cannot help: its key cannot be verified",
                "leave edge.helps out, or edge.insecure",
            )
        self.cloud = settings.cloud or _cloud_of(self.who)
        self.tasks = Tasks()
        self.blobs = FolderBlobs(settings.folder / "blobs", settings.policy.blobs_bytes_max)
        self.outbox = Outbox(settings.folder / "outbox.db", settings.outbox_bytes_max)
        self.split = _split_host(settings, self.blobs, self._order)
        self._programs = EdgePrograms(self.split)
        self.driver: Driver | None = None
        self.hubs: Hubs | None = None
        self.parts: PartsHost | None = None
        self.uplinks: Uplinks | None = None
        self.out: OutboxLink | None = None
        self.health: HealthServer | None = None
        self._lines: SubgraphService
        self.switch = Switch()
        self._departures = Departures(
            lambda: () if self.hubs is None else self.hubs.peers,
            lambda node: self._order(Left(device=node.number)),
        )
        self._denied_asked = asyncio.Event()
        self._log_record = RecordLog(log, _named)
        self.sources = Sources(traffic=self.switch.traffic)

    # ------------------------------------------------ start and end

    async def start(self) -> None:
        settings, node = self.settings, self.who.node
        self._loop = asyncio.get_running_loop()
        self.driver = driver = Driver(
            self._make,
            FileJournal(settings.folder / "journal"),
            self.switch,
            self.blobs,
            self._programs,
            on_record=self._recorded,
            traces=Traces(node, self._spans),
        )
        self.trust = Trust(self.who, self._denied_changed, self._heads())
        self._tell_denied()
        servicers: list[Servicer] = []
        if settings.serve:
            from ...core.placement.subgraphs.parts_host import host_below

            self.parts = await host_below(
                settings.serve, self.who, self.trust, self.cloud.grpc, self.switch.traffic
            )
            self.parts.attach(servicers, self.tasks, self.sources, self.switch)
        if self.split is not None:
            self._attach_split(self.split, servicers)
        self.switch.attach(node, self._inbox, self.blobs, self._limit, self._offer)
        self.uplinks = Uplinks(
            self.switch,
            self.who,
            [self.cloud],
            settings.transport,
            settings.broker_authority,
            on_connected=self._connected,
            on_renewed=self._renewed,
            denied=self.trust.denied,
            distrust=self.trust.distrust,
        )
        self.out = OutboxLink(node, self.uplinks, self.outbox)
        self.hubs = Hubs(
            self.switch,
            self.who,
            self.trust,
            listen=settings.listen,
            broker=settings.broker,
            broker_authority=settings.broker_authority,
            distrust=self.trust.distrust,
            servicers=servicers,
            times=settings.times,
            on_peer=self._departures.peer,
        )
        # The outbox first: the switch asks links in this order.
        self.switch.add_link(self.out)
        self.sources.drivers[str(node)] = driver
        self.sources.refusals["switch"] = lambda: self.switch.faults.counts
        self.hubs.tell(self.sources)
        own, denied, relayed = self.who.identity, self.trust.denied, self.uplinks.relayed
        if relayed is not None:
            self.sources.refusals["errands"] = lambda: relayed.faults.counts
        self.tasks.start("the edge", driver.run())
        await driver.started()
        await self.hubs.start()
        # A life before this one may have ended between storing the list and acting on it.
        self._review()
        self.uplinks.start(add=False)
        self.tasks.start("the outbox", self.out.run())
        self.out.connected()
        self.tasks.start("renewal", self.uplinks.keep_identity())
        if own is not None and denied is not None and relayed is not None:
            keeping = keep_denied(own, denied, self._denied_asked, relayed)
            self.tasks.start("the deny list", keeping)
        if settings.health:
            self.health = HealthServer(settings.health, self._why_not_ready, self.metrics)
            await self.health.start()
        log.info("%s serves", node, extra=self.facts())

    async def close(self) -> None:
        """Ends in order: nothing new comes in, then the state is put away."""
        self._departures.close()
        for part in (self.health, self.parts, self.split, self.hubs, self.uplinks, self.driver):
            if part is not None:
                await part.close()
        await self.tasks.close()
        if self.out is not None:
            await self.out.close()
        else:
            self.outbox.close()
        await self._programs.close()
        await self.switch.close()
        await self.blobs.close()

    def _attach_split(self, split: SplitHost, servicers: list[Servicer]) -> None:
        from ...core.placement.subgraphs.frames.stream_service import SubgraphService

        shown = None if self.who.identity is not None else self.who.federation
        self._lines = SubgraphService(split, self.trust, shown, traffic=self.switch.traffic)
        servicers.append(self._lines.add)
        self.tasks.start("split training", self._lines.keep_reviewing())
        self.tasks.start("idle trainings", split.keep_expiring())
        self.sources.refusals["split training"] = lambda: self._lines.faults.counts + split.counts

    def drain(self, draining: bool = True) -> None:
        """Takes the edge out of service, or puts it back."""
        assert self.driver is not None
        self.driver.post(ports.Ordered(Drain(draining=draining)))

    def _make(self, snapshot: bytes | None) -> EdgeMachine:
        node, policy = self.who.node, self.settings.policy
        if snapshot is None:
            # A disk that was wiped must not look like the one before it, or an older one: what the
            # cloud holds of that edge is lost. TLS needs a clock that is set anyway.
            state = EdgeState(node.number, time.time_ns() // 1_000_000)
        else:
            state = restore(snapshot)
        if state.edge != node.number:
            raise DelianError(
                f"{self.settings.folder} belongs to edge {state.edge}, and this is {node}",
                "give each edge a folder of its own",
            )
        machine = EdgeMachine(state, policy)
        own = self.who.identity
        if own is not None:
            # Certificates are verified by the machine's time, as on devices.
            machine.identity = CertificateIdentity(own.material(), clock=lambda: machine.now / 1e9)
            machine.edge.mask_helper.helper = self._helper_of(machine)
        return machine

    def _helper_of(self, machine: EdgeMachine) -> Helper | None:
        """Its part as a helper; None: it does not help. Blocks."""
        own, settings = self.who.identity, self.settings
        if own is None or not settings.helps:
            return None
        # Without the deny list: the machine receives the revoked devices before each request
        # (`_hear`), so that a journal that is handled again has the same answers.
        identity = CertificateIdentity(own.material(), clock=lambda: machine.now / 1e9)
        private = _helper_key(settings.folder / "helper.key")
        rules = rules_of(own.terms())
        return Helper(self.who.node.number, private, identity, settings.helps_min, rules)

    def _heads(self) -> LogSink | None:
        """Takes heads of the certificate log to the machine, where it helps; it has one head."""
        if not self.settings.helps:
            return None
        return LogSink(lambda: self._machine.state.ledger.log.size, self._order_soon)

    @property
    def _machine(self) -> EdgeMachine:
        assert self.driver is not None
        machine = self.driver.machine
        assert isinstance(machine, EdgeMachine)
        return machine

    # ------------------------------------------------ what happens

    def _inbox(self, event: ports.Event, traceparent: str = "", size: int = 0) -> None:
        assert self.driver is not None
        self._hear(event)
        self.driver.post(event, traceparent, size)

    async def _offer(self, event: ports.Event, traceparent: str = "", size: int = 0) -> bool:
        assert self.driver is not None
        self._hear(event)
        return await self.driver.offer(event, traceparent, size)

    def _hear(self, event: ports.Event) -> None:
        """What a message of the cloud contains that the machine does not read."""
        assert self.out is not None
        if not isinstance(event, ports.Received) or event.sender != ports.CLOUD:
            return
        self.out.connected()  # a node that sends can be sent to
        if isinstance(event.message, HelpRequest):
            self._tell_revoked(event.message)
        if isinstance(event.message, Pace) and self.trust.denied is not None:
            version = event.message.denied_version
            if version and version != self.trust.denied().version:
                self.trust.denied.wanted = version
                self._denied_asked.set()

    def _tell_revoked(self, request: HelpRequest) -> None:
        """Orders the machine to forget a batch's revoked devices, before it reads the request."""
        if self.trust.denied is None or not self.settings.helps:
            return
        listed = self.trust.denied()
        shown = itertools.chain.from_iterable(part.devices for part in request.parts)
        for one in itertools.islice(shown, BATCH_MAX):
            if listed.revoked(ports.Node(ports.Tier.DEVICE, one.device)):
                self._order(Forget(device=one.device))

    def _tell_denied(self) -> None:
        """Orders the machine to go by the age of the deny list; without one, by the first start."""
        listed = DenyList() if self.trust.denied is None else self.trust.denied()
        issued_s = listed.issued_s if listed.version else int(time.time())
        self._order(DeniedVersion(version=listed.version, issued_s=issued_s))

    def _denied_changed(self, listed: DenyList) -> None:
        """From the thread that writes the deny list."""
        self._order_soon(DeniedVersion(version=listed.version, issued_s=listed.issued_s))
        self._loop.call_soon_threadsafe(self._review)

    def _order(self, order: Message) -> None:
        assert self.driver is not None
        self.driver.post(ports.Ordered(order))

    def _order_soon(self, order: Message) -> None:
        self._loop.call_soon_threadsafe(self._order, order)

    def _recorded(self, record: ports.Record) -> None:
        if record.kind == "log_fork":
            assert self.who.identity is not None
            keep_fork(self.who.identity.folder, record.fields)
            return
        self._log_record(record)

    def _connected(self, home: ports.Node) -> None:
        assert self.out is not None
        self.out.connected()
        self._denied_asked.set()

    def _renewed(self) -> None:
        assert self.hubs is not None
        machine = self._machine
        machine.edge.mask_helper.helper = self._helper_of(
            machine
        )  # signed with the newest certificate
        self.hubs.redial()
        if self.parts is not None:
            self.parts.redial()

    def _limit(self, sender: ports.Node) -> int:
        return self._machine.limit(sender)

    def _review(self) -> None:
        """Closes the connections of revoked nodes, and of nodes whose authority is revoked."""
        assert self.driver is not None and self.hubs is not None
        denied = self.trust.denied
        if denied is None or not denied().names:
            return
        revoked = denied().revoked
        devices = {ports.Node(ports.Tier.DEVICE, number) for number in self._machine.devices()}
        for node in sorted(filter(revoked, devices.union(self.hubs.peers))):
            log.warning("a certificate was revoked", extra={"node": str(node)})
            if node in devices:
                self.driver.post(ports.Ordered(Forget(device=node.number)))
            self.hubs.forget(node)
        if self.parts is not None:
            self.parts.review(revoked)

    # ------------------------------------------------ what it says of itself

    def facts(self) -> dict[str, Any]:
        """For the one line that a daemon says when it serves."""
        return {
            "node": str(self.who.node),
            "pid": os.getpid(),
            "folder": str(self.settings.folder),
            "grpc": None if self.hubs is None else self.hubs.port,
            "mqtt": self.settings.broker or None,
            "health": None if self.health is None else self.health.port,
            "cloud": self.cloud.grpc or self.cloud.mqtt,
        }

    def _why_not_ready(self) -> str | None:
        if self.uplinks is None or not self.uplinks.reaches(ports.CLOUD):
            return "the cloud cannot be reached"
        return None

    def metrics(self) -> bytes:
        """The page of metrics."""
        return text([*self.sources.families(), *self._families()])

    def _families(self) -> Iterator[Family]:
        """What an edge alone has."""
        assert self.driver is not None and self.out is not None
        machine = self.driver.machine
        assert isinstance(machine, EdgeMachine)
        state, out, outbox = machine.state, self.out, self.outbox
        yield gauge("delian_edge_devices", "Devices that are ready.", len(state.pool))
        yield gauge("delian_edge_attempts", "Attempts under way.", len(state.collections))
        up = self._why_not_ready() is None
        yield gauge("delian_edge_cloud_up", "Whether the cloud is reached.", float(up))
        yield gauge(
            "delian_edge_blobs_bytes", "Bundles and weights that are kept.", self.blobs.used
        )
        fates = {
            "kept": out.kept,
            "sent": out.sent_late,
            "dropped": out.dropped,
            "evicted": outbox.evicted,
            "expired": outbox.expired,
        }
        yield Family(
            "delian_outbox_messages",
            "counter",
            "Messages for a cloud that was away.",
            [({"fate": fate}, count) for fate, count in fates.items()],
        )


def _split_host(
    settings: EdgeSettings, blobs: FolderBlobs, order: Callable[[Message], None]
) -> SplitHost | None:
    """Lets devices train with the edge, where its operator does. Raises DelianError."""
    if not settings.policy.splits:
        return None
    if settings.serve or not settings.listen:
        raise DelianError(
            "devices train with an edge over gRPC, on a port that serves no parts of bundles",
            "give edge.listen and leave edge.serve out, or leave edge.split out",
        )
    from .split_host import SplitHost

    return SplitHost(blobs.path, order)


def _named(record: ports.Record) -> dict[str, object]:
    """A record's fields, why a device was sent away by its name in the protocol."""
    fields: dict[str, object] = shown(record.fields)
    if record.kind == "rejected":
        fields["reason"] = RejectReason.Name(record.fields["reason"])
    return fields


def _helper_key(path: Path) -> bytes:
    """The edge's X25519 key, made when it is asked for the first time."""
    if not path.exists():
        write_file(path, os.urandom(KEY_BYTES), 0o600)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise DelianError(
            f"{path} is no key of {KEY_BYTES} bytes", "restore it, or remove it for a new one"
        )
    return key


def _cloud_of(who: Who) -> HomeAddress:
    """Where enrolment said that the coordinator is."""
    for home in who.homes:
        if home.node == ports.CLOUD:
            return home
    raise DelianError(
        "this edge does not know where the coordinator is", "name it with --coordinator host:port"
    )
