"""How an operator's commands call a coordinator."""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ..options import ConfigFile

if TYPE_CHECKING:
    from ...core.node.identity.pki.identity_folder import IdentityFolder
    from ...core.wire.blob_pb2 import BlobRef
    from ...core.wire.enrolment_pb2 import FederationTerms

#: For a call without a blob.
CALL_S = 60.0
#: Pauses before a call that may be repeated is repeated, when no answer came.
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
#: For a blob, in either direction.
BLOB_S = 24 * 3600.0

Address = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="(default: operator.coordinator)"),
]
Identity = Annotated[
    Path | None,
    typer.Option("--identity", help="The operator's identity. (default: operator.identity)"),
]
AuthorityAddress = Annotated[
    str | None,
    typer.Option("--authority", metavar="HOST:PORT", help="(default: operator.authority)"),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS; for a coordinator on this machine alone.")
]


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
        """Puts a blob into the coordinator's store."""
        from ...core.node.net.blob_upload import parts_of

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


@dataclass(frozen=True, slots=True)
class Connect:
    """The options by which a command's user names a coordinator."""

    coordinator: Address = None
    identity: Identity = None
    insecure: Insecure = False
    config: ConfigFile = None

    @contextmanager
    def __call__(self) -> Iterator[Client]:
        """The coordinator as the options and the configuration name it. Raises DelianError."""
        import grpc

        from ...core.wire.operator_pb2_grpc import OperatorStub
        from ..config import load
        from ..programs.artifact_commands import signing_folder

        flags = {
            "operator.coordinator": self.coordinator,
            "operator.identity": self.identity,
            "operator.insecure": self.insecure or None,
        }
        operator = load(self.config, flags).config.operator
        target = operator.coordinator
        if operator.insecure:
            from ...core.node.net.grpc.grpc_guard import claim
            from ...core.node.net.loopback import check_loopback

            check_loopback(target, "the coordinator")
            channel = grpc.insecure_channel(target)
            metadata, terms = claim("operator-0"), None
        else:
            from ...core.node.identity.pki.certificates import channel_credentials, channel_options
            from ...core.protocol.ports import CLOUD

            own = own_identity(operator.identity)
            shown, terms = own.material(), own.terms()
            options = channel_options(shown.identity().federation, CLOUD)
            channel = grpc.secure_channel(target, channel_credentials(shown), options=list(options))
            metadata = ()
        with channel:
            yield Client(target, OperatorStub(channel), metadata, signing_folder(operator), terms)


def own_identity(folder: Path) -> IdentityFolder:
    """The operator's identity. Raises DelianError where there is none."""
    from ...core.node.identity.pki.identity_folder import IdentityFolder

    own = IdentityFolder(folder)
    if not own.exists():
        raise DelianError(
            f"there is no operator's identity in {folder}",
            f"the holder of the CA makes one: delian ca issue operator {folder}; on this machine"
            " alone, without certificates: --insecure",
        )
    return own


def on_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the fields of `Connect` as options, and gets them as `connect`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    options = list(inspect.signature(Connect, eval_str=True).parameters.values())

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(Connect(**{option.name: given.pop(option.name) for option in options}), **given)

    at = len(own) - (own[-1].name == "as_json")
    parameters = [*own[:at], *options, *own[at:]]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def authority_target(config: Path | None, authority: str | None) -> str:
    """The authority's "host:port", as the option or the configuration names it.

    Empty: the coordinator has no separate authority.
    """
    from ..config import load

    return load(config, {"operator.authority": authority}).config.operator.authority


@contextmanager
def connected_authority(
    config: Path | None, target: str, identity: Path | None
) -> Iterator[Client]:
    """The authority at "host:port", as its admin. Raises DelianError."""
    import grpc

    from ...core.node.identity.pki.certificates import authority_options, channel_credentials
    from ...core.wire.authority_pb2_grpc import AuthorityStub
    from ..config import load

    operator = load(config, {"operator.identity": identity}).config.operator
    shown = own_identity(operator.identity).material()
    own = shown.identity()  # an operator asks the authority that issued its certificate
    options = list(authority_options(own.federation, own.authority))
    with grpc.secure_channel(target, channel_credentials(shown), options=options) as channel:
        yield Client(target, AuthorityStub(channel), (), what="authority")
