"""What an authority's operator sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .hosted import NEWS_S, HostingSettings


@dataclass(frozen=True, slots=True)
class AuthoritySettings:
    """What an authority's operator sets. Addresses are "host:port"; port 0: any."""

    #: For all that it stores besides the CA.
    folder: Path
    #: The CA's folder; None: `ca` in the folder.
    ca: Path | None = None
    #: The store's file or URL; empty: SQLite in the folder.
    store: str = ""
    #: Of an issuing authority: the root authority.
    superior: str = ""
    #: Mutual TLS: the coordinator and admins.
    listen: str = "127.0.0.1:7445"
    #: Of an issuing authority: where the coordinator reaches `listen`; empty: `listen`.
    public: str = ""
    #: Nodes without a certificate.
    enrolment: str = "127.0.0.1:7444"
    #: What tokens name; empty: `enrolment`.
    public_enrolment: str = ""
    #: For its certificate.
    addresses: tuple[str, ...] = ()
    #: HTTP; empty: none.
    health: str = ""
    #: "host:port" of the certificate log's witnesses.
    witnesses: tuple[str, ...] = ()
    certificate_days: int = 30
    enrolments_per_minute: float = 60.0
    #: Devices that admins may let in by tokens in a day without an approval.
    token_uses: int = 20
    #: How often it asks for revocations by another process (`delian ca revoke`) or by the root.
    news_s: float = NEWS_S

    def hosting(self) -> HostingSettings:
        """What is served of the CA's folder."""
        return HostingSettings(
            ca=self.ca or self.folder / "ca",
            enrolment=self.enrolment,
            public_enrolment=self.public_enrolment,
            addresses=self.addresses,
            certificate_days=self.certificate_days,
            enrolments_per_minute=self.enrolments_per_minute,
            token_uses=self.token_uses,
            superior=self.superior,
            public=self.public or self.listen,
            news_s=self.news_s,
        )
