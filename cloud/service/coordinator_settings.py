"""What a coordinator's operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...core.compiler.backends import Backend
from ...core.node.sandbox.process_limits import WorkerLimits
from ..authority.hosted import HostingSettings
from ..protocol.coordinator_state import CoordinatorPolicy
from .registry import MODELS_KEPT
from .updates import LIMITS


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """What a coordinator's operator sets. Addresses are "host:port"; port 0: any.

    folder: for all that it keeps. store: a file or URL of the database; empty: in the folder.
    objects: a folder or URL for blobs; empty: in the folder. With an object store the journal's
    packs are kept there too, and the folder is a cache of cache_bytes_max. authority: "host:port"
    of the authority; empty: the CA's folder is here, and the coordinator's operator has its key.
    ca, identity: folders; None: in the folder. public, public_enrolment, public_broker: where nodes
    reach `listen`, `enrolment` and `broker`. addresses: for its certificate. broker: "mqtts://host:port";
    empty: no MQTT. health: empty: none. models_kept: of each run, the newest. serve: bundles of
    which it runs parts for others. witnesses: "host:port" of the certificate log's. worker: limits
    of a server update. insecure: no certificates, on loopback only.
    """

    folder: Path
    store: str = ""
    objects: str = ""
    cache_bytes_max: int = 16 * 2**30
    authority: str = ""
    ca: Path | None = None
    identity: Path | None = None
    listen: str = "127.0.0.1:7443"
    enrolment: str = "127.0.0.1:7444"
    health: str = "127.0.0.1:7790"
    public: str = ""
    public_enrolment: str = ""
    addresses: tuple[str, ...] = ()
    broker: str = ""
    broker_authority: Path | None = None
    public_broker: str = ""
    certificate_days: int = 30
    enrolments_per_minute: float = 60.0
    token_uses: int = 20
    models_kept: int = MODELS_KEPT
    serve: tuple[Path, ...] = ()
    witnesses: tuple[str, ...] = ()
    backend: Backend = "native"
    worker: WorkerLimits = LIMITS
    policy: CoordinatorPolicy = field(default_factory=CoordinatorPolicy)
    insecure: bool = False
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
