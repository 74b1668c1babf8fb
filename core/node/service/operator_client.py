"""A coordinator's or an authority's server, as an operator calls it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.errors import DelianError
from ...common.printable import escaped

if TYPE_CHECKING:
    from ...wire.blob_pb2 import BlobRef
    from ...wire.enrolment_pb2 import FederationTerms
    from ..identity.pki.identity_folder import IdentityFolder

#: For a call without a blob.
CALL_S = 60.0
#: Pauses before a call that may be repeated is repeated, when no answer came.
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
#: For a blob, in either direction.
BLOB_S = 24 * 3600.0
#: A server, as messages name it -> its group of commands.
_RUNS = {"coordinator": "cloud", "authority": "authority"}


class Unreachable(DelianError):
    """The coordinator does not answer. `delian` exits with 3."""

    exit_code = 3


class Client:
    """A coordinator, as its operator.

    Made by `connected`. artifacts: the folder of the key that signs bundles, where there is one.
    terms: the federation's, where the operator has them. what: the server, in messages.
    """

    def __init__(
        self,
        target: str,
        stub: Any,
        metadata: Sequence[tuple[str, str]],
        artifacts: Path | None = None,
        terms: FederationTerms | None = None,
        what: str = "coordinator",
    ) -> None:
        self.what = what
        self.target, self.artifacts, self.terms = target, artifacts, terms
        self._stub, self._metadata = stub, metadata

    def call(self, name: str, request: Any) -> Any:
        """One question, one answer. Raises DelianError, Unreachable."""
        with self._told():
            ask = getattr(self._stub, name)
            return ask(request, timeout=CALL_S, metadata=self._metadata)

    def call_again(self, name: str, request: Any) -> Any:
        """As `call`, for a request that carries an id of its own.

        It is repeated while no answer comes, and is followed once.
        """
        for pause in PAUSES_S:
            try:
                return self.call(name, request)
            except Unreachable:
                time.sleep(pause)
        return self.call(name, request)

    def stream(self, name: str, request: Any) -> Iterator[Any]:
        """One question, many answers."""
        with self._told():
            ask = getattr(self._stub, name)
            yield from ask(request, metadata=self._metadata)

    def put(self, content: bytes) -> BlobRef:
        """Puts a blob into the coordinator's store. One that is there already is not sent again."""
        from ..net.blob_upload import parts_of

        ref, parts = parts_of(content)
        with self._told():
            self._stub.PutBlob(parts, timeout=BLOB_S, metadata=self._metadata)
        return ref

    def get(self, ref: BlobRef) -> bytes:
        """A blob of the coordinator's store, checked."""
        content = b"".join(part.content for part in self.stream("GetBlob", ref))
        if hashlib.sha256(content).digest() != ref.digest:
            raise DelianError(f"the blob {ref.digest.hex()[:16]} came damaged", "try again")
        return content

    @contextmanager
    def _told(self) -> Iterator[None]:
        import grpc

        try:
            yield
        except grpc.RpcError as fault:
            code, text = fault.code(), fault.details() or ""
            message, hint = map(escaped, text.partition("\n")[::2])
            gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            if code in gone and "the store" not in message:
                raise Unreachable(
                    f"the {self.what} at {self.target} does not answer: {message}",
                    f"is it running (`delian {_RUNS[self.what]} run`), and is this its address?",
                ) from None
            if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                hint = hint or "an operator's identity is made with: delian ca issue operator"
            raise DelianError(message or code.name, hint) from None


@contextmanager
def connected(target: str, identity: Path | None, artifacts: Path | None) -> Iterator[Client]:
    """The coordinator at "host:port", as its operator. Raises DelianError.

    identity: the operator's folder; None: without TLS, on this machine alone. artifacts: the folder
    of the key that signs bundles.
    """
    import grpc

    from ...wire.operator_pb2_grpc import OperatorStub

    metadata: Sequence[tuple[str, str]] = ()
    terms: FederationTerms | None = None
    if identity is None:
        from ..net.grpc.grpc_guard import claim
        from ..net.loopback import check_loopback

        check_loopback(target, "the coordinator")
        channel = grpc.insecure_channel(target)
        metadata = claim("operator-0")
    else:
        from ...protocol.ports import CLOUD
        from ..identity.pki.certificates import channel_credentials, channel_options

        own = own_identity(identity)
        shown, terms = own.material(), own.terms()
        options = channel_options(shown.identity().federation, CLOUD)
        channel = grpc.secure_channel(target, channel_credentials(shown), options=list(options))
    with channel:
        yield Client(target, OperatorStub(channel), metadata, artifacts, terms)


def own_identity(folder: Path) -> IdentityFolder:
    """The operator's identity. Raises DelianError where there is none."""
    from ..identity.pki.identity_folder import IdentityFolder

    own = IdentityFolder(folder)
    if not own.exists():
        raise DelianError(
            f"there is no operator's identity in {folder}",
            f"the holder of the CA makes one: delian ca issue operator {folder}; on this machine"
            " alone, without certificates: --insecure",
        )
    return own
