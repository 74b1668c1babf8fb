"""The authority's process: the CA's key, and nothing that runs programs or talks to devices.

    FOLDER/ca         the CA (`core/node/identity/authority/authority.py`), with the authority's
                      own identity
    FOLDER/delian.db  the nodes, and the signed record of calls (or PostgreSQL, by URL)
    FOLDER/announced  where nodes reach the coordinator, as it last said

An issuing authority's folder (`delian authority accept`) is served in the same way: it registers at
the root authority, and has each certificate in the root's log before it hands it out.

It serves enrolment on one port, and to the coordinator and to admins `Identity` and `Authority` on
another, over mutual TLS. While it is away no node joins, no certificate is renewed and no name is
revoked; everything else goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from ...core.node.identity.pki.certificates import IdentityError, Role
from ...core.node.identity.pki.identity_folder import HomeAddress, home_message, homes_of
from ...core.node.identity.pki.ledger import write_file
from ...core.node.identity.pki.roles import Guard
from ...core.node.net.grpc.grpc_server import GrpcHub
from ...core.node.net.grpc.grpc_witness import witnessing_of
from ...core.node.net.switch import Switch
from ...core.node.service.health import HealthServer
from ...core.node.service.hosting import Tasks, run_daemon
from ...core.protocol.ports import CLOUD
from ...core.wire import authority_pb2_grpc, enrolment_pb2_grpc
from ...core.wire.authority_pb2 import Announcement
from ..service.audit_log import AuditLog
from ..service.fleet_registry import Fleet
from ..service.identity_service import IdentityService
from ..store.database import Database
from .authority_service import AuthorityService
from .authority_settings import AuthoritySettings
from .hosted import HostedAuthority

log = logging.getLogger("delian.cloud.authority")

ANNOUNCED = "announced"
_ANNOUNCED_BYTES_MAX = 64 * 1024


async def serve(
    settings: AuthoritySettings,
    stop: asyncio.Event | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda facts: None,
) -> None:
    """Runs an authority until `stop` is set, or SIGTERM or SIGINT comes.

    ready: called once with its addresses. Raises DelianError for what its operator can mend.
    """
    await run_daemon(lambda: AuthorityDaemon(settings), settings.folder, stop, ready)


class AuthorityDaemon:
    """The parts of a running authority."""

    def __init__(self, settings: AuthoritySettings) -> None:
        self.settings = settings
        self.tasks = Tasks()
        self.ports: dict[str, int] = {}
        self.serving = False
        self._closers = contextlib.AsyncExitStack()
        self._draining: frozenset[int] = frozenset()

    async def start(self) -> None:
        """Raises DelianError."""
        settings, closers = self.settings, self._closers
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.hosted = await asyncio.to_thread(HostedAuthority, settings.hosting())
        self.database = await Database.open(settings.store or settings.folder / "delian.db")
        closers.push_async_callback(self.database.close)
        closers.push_async_callback(self.tasks.close)
        self.fleet = Fleet(
            self.database, await asyncio.to_thread(self._known_home), lambda: self._draining
        )
        self.audit = AuditLog(self.database, self.hosted.own.material)
        self.authority = self.hosted.authority(self.fleet, self._announced)
        numbers = await self.fleet.last_numbers(self.hosted.ca.number)
        revoked = await self.fleet.revoked()
        await asyncio.to_thread(self.authority.reconcile, numbers, revoked)
        if port := await self.hosted.open_enrolment(self.authority, closers):
            self.ports["enrolment"] = port
        await self._open_hub()
        if settings.health:
            health = HealthServer(settings.health, self._why_not_ready, self._metrics)
            await health.start()
            closers.push_async_callback(health.close)
            self.ports["health"] = health.port
        self.tasks.start("the authority's certificate", self.hosted.keep_identity())
        self.tasks.start("the root authority's news", self.hosted.follow_superior())
        self.tasks.start("the audit log", self.audit.run())
        self.tasks.start("the deny list", self._watch_denied())
        if settings.witnesses:
            witnessing = witnessing_of(self.hosted.ca, settings.witnesses)
            self.tasks.start("the log's witnesses", witnessing.run())
        self.tasks.start("the store's watch", self.database.until_lost())
        self.serving = True
        log.info("the authority serves", extra=self.facts())

    async def close(self) -> None:
        """Ends in order. May be called twice."""
        self.serving = False
        await self._closers.aclose()

    def facts(self) -> dict[str, Any]:
        """Where it serves."""
        return {
            "federation": self.hosted.ca.federation,
            "authority": self.hosted.ca.number,
            "ports": dict(self.ports),
            "folder": str(self.settings.folder),
        }

    async def _open_hub(self) -> None:
        ca = self.hosted.ca
        guard = Guard(ca.federation, Role.AUTHORITY, ca.denied, authority=ca.number)
        self.identity = IdentityService(
            self.authority, guard, self.authority.page, self.authority.log_page
        )
        self.service = AuthorityService(self.authority, self.fleet, self.audit)
        # Its door counts refusals and handshakes that fail; nodes have no links here.
        self.hub = GrpcHub(
            Switch(),
            self.settings.listen,
            self.hosted.own.material,
            guard,
            servicers=[
                lambda s: enrolment_pb2_grpc.add_IdentityServicer_to_server(self.identity, s),
                lambda s: authority_pb2_grpc.add_AuthorityServicer_to_server(self.service, s),
            ],
            federation=ca.federation,
        )
        self.ports["grpc"] = await self.hub.start()
        self._closers.push_async_callback(self.hub.close)

    # ------------------------------------------------ what the coordinator has said

    def _announced(self, home: HomeAddress, draining: frozenset[int]) -> None:
        if (home, draining) == (self.fleet.cloud, self._draining):
            return
        message = Announcement(home=home_message(home), draining=sorted(draining))
        write_file(self.settings.folder / ANNOUNCED, message.SerializeToString(), 0o600)
        self.fleet.cloud, self._draining = home, draining
        log.info("the coordinator has announced itself", extra={"grpc": home.grpc})

    def _known_home(self) -> HomeAddress:
        path = self.settings.folder / ANNOUNCED
        try:
            with path.open("rb") as file:
                message = Announcement.FromString(file.read(_ANNOUNCED_BYTES_MAX))
            homes = homes_of([message.home])
        except FileNotFoundError:
            return HomeAddress(CLOUD)
        except (DecodeError, IdentityError):
            log.warning("%s is damaged; the coordinator announces itself again", path)
            return HomeAddress(CLOUD)
        self._draining = frozenset(message.draining)
        return homes[0] if homes else HomeAddress(CLOUD)

    # ------------------------------------------------ other than calls

    async def _watch_denied(self) -> None:
        """Marks the nodes that another process has revoked."""
        known = frozenset(await self.fleet.revoked())
        while True:
            listed = await asyncio.to_thread(self.hosted.ca.denied)
            revoked = frozenset(listed.nodes())
            await self.fleet.follow_revoked(revoked - known, listed.authorities())
            known = revoked
            await asyncio.sleep(self.settings.news_s)

    def _why_not_ready(self) -> str | None:
        if self.database.lost.is_set():
            return f"the store is lost: {self.database.why_lost}"
        if not self.hosted.reached:
            return "the root authority does not answer: nothing is issued"
        return None if self.serving else "starting or ending"

    def _metrics(self) -> bytes:
        """Counts by service and kind, in the text format of Prometheus."""
        enrolment = self.hosted.enrolment
        counts = {
            "enrolment": {} if enrolment is None else enrolment.counts,
            "identity": self.identity.counts,
            "authority": self.service.counts,
            "door": dict(self.hub.faults.counts),
        }
        lines = ["# TYPE delian_authority_calls_total counter"]
        for where, kinds in counts.items():
            for kind, count in sorted(kinds.items()):
                labels = f'where="{where}",kind="{kind}"'
                lines.append(f"delian_authority_calls_total{{{labels}}} {count}")
        return ("\n".join(lines) + "\n").encode()
