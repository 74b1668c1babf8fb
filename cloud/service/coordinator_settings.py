"""What a coordinator's operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...core.compiler.backends import Backend
from ...core.node.net.message_limits import PeerTimes
from ...core.node.sandbox.process_limits import WorkerLimits
from ..authority.hosted import NEWS_S, HostingSettings
from ..protocol.coordinator_state import CoordinatorPolicy
from .registry import MODELS_KEPT
from .updates import LIMITS


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """What a coordinator's operator sets. Addresses are "host:port"; port 0: any."""

    folder: Path
    """For all that it keeps."""
    store: str = ""
    """A file or URL of the database; empty: in the folder."""
    objects: str = ""
    """A folder or URL for blobs; empty: in the folder.

    With an object store the journal's packs are kept there too, and the folder is a cache of
    cache_bytes_max.
    """
    cache_bytes_max: int = 16 * 2**30
    authority: str = ""
    """"host:port" of the authority.

    Empty: the CA's folder is here, and the coordinator's operator has its key.
    """
    ca: Path | None = None
    """The CA's folder; None: in the folder."""
    identity: Path | None = None
    """The folder of the coordinator's identity; None: in the folder."""
    listen: str = "127.0.0.1:7443"
    """Where it serves gRPC."""
    enrolment: str = "127.0.0.1:7444"
    """Where it enrols nodes, if the CA's folder is here."""
    health: str = "127.0.0.1:7790"
    """Empty: none."""
    public: str = ""
    """Where nodes reach `listen`; empty: there."""
    public_enrolment: str = ""
    """Where nodes reach `enrolment`; empty: there."""
    addresses: tuple[str, ...] = ()
    """For its certificate."""
    broker: str = ""
    """"mqtts://host:port"; empty: no MQTT."""
    broker_authority: Path | None = None
    public_broker: str = ""
    """Where nodes reach `broker`; empty: there."""
    certificate_days: int = 30
    enrolments_per_minute: float = 60.0
    token_uses: int = 20
    models_kept: int = MODELS_KEPT
    """Of each run, the newest."""
    serve: tuple[Path, ...] = ()
    """Bundles of which it runs parts for others."""
    witnesses: tuple[str, ...] = ()
    """"host:port" of the certificate log's."""
    backend: Backend = "native"
    worker: WorkerLimits = LIMITS
    """Limits of a server update."""
    policy: CoordinatorPolicy = field(default_factory=CoordinatorPolicy)
    times: PeerTimes = field(default_factory=PeerTimes)
    news_s: float = NEWS_S
    """How often the authority is asked for news: revocations, terms, nodes that joined."""
    insecure: bool = False
    """No certificates, on loopback only."""
    federation: str = ""

    def hosting(self) -> HostingSettings:
        """What is served of the CA's folder, where that is here."""
        return HostingSettings(
            ca=self.ca or self.folder / "ca",
            enrolment=self.enrolment,
            public_enrolment=self.public_enrolment,
            addresses=self.addresses,
            certificate_days=self.certificate_days,
            enrolments_per_minute=self.enrolments_per_minute,
            token_uses=self.token_uses,
        )
