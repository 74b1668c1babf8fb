"""The root authority as an issuing authority has it: another process, asked over mutual TLS.

    FOLDER/denied.list   the deny list, as the root signed it
    FOLDER/terms         the federation's terms, as the root signed them

Nothing is handed out before the root has it in the certificate log, so while the root is away an
issuing authority makes no certificate and says why. What it knows of the deny list and the terms is
kept, as every node keeps it. Calls block: `core/node/identity/authority/authority.py` makes them on
threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ...core.common.printable import escaped
from ...core.node.identity.authority import terms
from ...core.node.identity.authority.authority import Authority
from ...core.node.identity.authority.authority_book import TooMany
from ...core.node.identity.authority.authority_folder import superior_of
from ...core.node.identity.authority.deny_list import DenyList, SignedList
from ...core.node.identity.authority.superior import Away
from ...core.node.identity.enrolment.kept_deny_list import PAGE_BYTES, DeniedFile, KnownDenied
from ...core.node.identity.pki.certificates import (
    IdentityError,
    TlsMaterial,
    authority_options,
    channel_credentials,
)
from ...core.node.identity.pki.root_certificate import federation_of
from ...core.node.net.grpc import grpc_core
from ...core.wire.authority_pb2 import AppendRequest, RegisterRequest, RevokeRequest
from ...core.wire.authority_pb2_grpc import AuthorityStub
from ...core.wire.enrolment_pb2_grpc import IdentityStub
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage

log = logging.getLogger("delian.cloud.authority")

#: For one answer: less than a coordinator waits for a renewal (`remote.CALL_S`).
CALL_S = 10.0
#: A connection shows a certificate that was made for it; after so long it is made again.
SHOWN_S = 3600.0
REPLY_BYTES_MAX = PAGE_BYTES + 64 * 1024
DENIED_FILE = "denied.list"
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Refused(IdentityError):
    """The root trusts this authority no more: it was revoked, or its certificate has ended."""


class RootAuthority:
    """A `core.node.identity.authority.superior.Superior`.

    address: "host:port" of the root. root: its CA certificate. folder: the issuing authority's.
    """

    def __init__(
        self,
        address: str,
        root: x509.Certificate,
        federation: str,
        folder: Path,
    ) -> None:
        """Raises IdentityError where the copy of the deny list is damaged."""
        self.address, self._federation, self._folder = address, federation, folder
        self._root = root
        self._known = KnownDenied(DeniedFile(root, federation, folder / DENIED_FILE))
        self._lock = threading.Lock()
        self._channel: tuple[grpc.Channel, float] | None = None  # and when it was made
        #: Makes the key and certificate to show; set once the folder is open.
        self.material: Callable[[], TlsMaterial] | None = None

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            before, self._channel = self._channel, None
        if before is not None:
            before[0].close()

    # ------------------------------------------------ the port

    def append(self, chain: bytes) -> None:
        """Adds a certificate to the log; durable on return.

        chain: DER of it, then of the issuing authority's. Raises Away while the root does not
        answer, TooMany beyond its limits, Refused, and IdentityError.
        """
        self._call(AuthorityStub, "Append", AppendRequest(certificate=chain))

    def revoke(self, name: str, why: str) -> tuple[DenyList, bool]:
        """The deny list that has the name, and whether it was new. Raises what `append` does."""
        reply = self._call(AuthorityStub, "Revoke", RevokeRequest(name=name, why=why))
        self._fetch_denied()
        return self.denied(), bool(reply.changed)

    def denied(self) -> DenyList:
        """The list as it was a moment ago; quick."""
        return self._known()

    # ------------------------------------------------ news

    def signed(self) -> SignedList | None:
        """The deny list as it is passed on; None: not fetched yet."""
        return self._known.signed

    def refresh(self, public: str) -> None:
        """Registers at the root, and takes its deny list and terms; durable on return.

        public: "host:port" where the coordinator reaches this authority; empty: it only asks.
        Raises what `append` does.
        """
        told = self._call(AuthorityStub, "Register", RegisterRequest(address=public))
        if told.terms:
            key = self._root.public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            terms.take(self._folder, told.terms, key, self._federation, owned=False)
        self._fetch_denied()

    def _fetch_denied(self) -> None:
        async def ask(asked: DeniedAsk) -> DeniedPage:
            page = await asyncio.to_thread(self._call, IdentityStub, "Denied", asked)
            assert isinstance(page, DeniedPage)
            return page

        asyncio.run(self._known.fetch(ask))

    # ------------------------------------------------ parts

    def _call(self, stub: Callable[[Any], Any], name: str, request: Any) -> Any:
        channel = self._open()
        try:
            return getattr(stub(channel), name)(request, timeout=CALL_S)
        except grpc.RpcError as error:
            code, detail = error.code(), escaped((error.details() or "no reason given")[:200])
            if code in _AWAY:
                raise Away(
                    f"the root authority at {self.address} does not answer: {detail}",
                    "nothing is issued without it: every certificate is in its log first",
                ) from None
            if code is grpc.StatusCode.PERMISSION_DENIED:
                raise Refused(
                    f"the root authority at {self.address} refuses this authority: {detail}",
                    "its operator revoked it, or its certificate has ended: delian ca list there",
                ) from None
            kind = TooMany if code is grpc.StatusCode.RESOURCE_EXHAUSTED else IdentityError
            what = code.name.lower().replace("_", " ")
            raise kind(f"the root authority at {self.address}: {detail} ({what})") from None

    def _open(self) -> grpc.Channel:
        with self._lock:
            now, before = time.monotonic(), self._channel
            if before is not None and now - before[1] < SHOWN_S:
                return before[0]
            assert self.material is not None
            grpc_core.hold()
            options = [
                *authority_options(self._federation),
                ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
            ]
            credentials = channel_credentials(self.material())
            made = grpc.secure_channel(self.address, credentials, options=options)
            # The one before is closed by gRPC when the last call on it has ended.
            self._channel = made, now
            return made


def open_authority(folder: Path, address: str) -> tuple[Authority, RootAuthority | None]:
    """The authority of a folder, of either kind, and the root above it.

    address: "host:port" of the root, of an issuing authority. Raises IdentityError.
    """
    root = superior_of(folder)
    if root is None:
        if address:
            raise IdentityError(
                f"{folder} is a root authority, which has none above it",
                "leave authority.superior out",
            )
        return Authority(folder), None
    if not address:
        raise IdentityError(
            f"{folder} is an issuing authority, and its root is not named",
            "set authority.superior to HOST:PORT of the root's `delian authority run`",
        )
    above = RootAuthority(address, root, federation_of(root), folder)
    made = Authority(folder, above)
    above.material = made.visitor
    return made, above
