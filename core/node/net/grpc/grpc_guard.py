"""Authentication and authorisation of callers: for every gRPC service of this process.

With TLS the caller is the node that its certificate names. Without, which is for one machine alone,
it is the node that it names itself, in the metadata `delian-node` ("device-7"). The policy
(`identity.roles.Guard`) is asked at each call; what it does not allow ends before the service sees
it.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import grpc

from ....protocol.ports import Node
from ...identity.pki import certificates
from ..message_limits import Faults
from .grpc_requests import admitted

#: Metadata that names the caller where there are no certificates.
CLAIM = "delian-node"
_CLAIM = re.compile(r"(device|edge|cloud|operator|viewer|runner|admin)-(0|[1-9][0-9]{0,18})")
_NEVER = 2**62
#: Of a call's name, which its caller writes, in the log.
_CALL_CHARS_MAX = 100
#: Connections of which it is remembered that they have made a call.
_CONNECTIONS_MAX = 20_000

#: Takes a servicer's handlers: `lambda server: add_OperatorServicer_to_server(operator, server)`.
Servicer = Callable[[Any], None]


class Policy(Protocol):
    """What may be called: `identity.roles.Guard`."""

    def refusal(self, peer: certificates.PeerIdentity | None, call: str) -> str | None:
        """Why the peer (None: it showed no certificate) may not make the call; None: it may."""


def claim(who: Node | str) -> tuple[tuple[str, str], ...]:
    """Metadata with which a caller without a certificate names itself.

    An operator has no node: "operator-0".
    """
    name = who if isinstance(who, str) else f"{who.tier.value}-{who.number}"
    return ((CLAIM, name),)


def claimed(name: str, federation: str) -> certificates.PeerIdentity:
    """The node of that name. Raises IdentityError."""
    parts = _CLAIM.fullmatch(name)
    if parts is None or int(parts[2]) > certificates.NUMBER_MAX:
        raise certificates.IdentityError(f"{name[:40]!r} names no node")
    return certificates.PeerIdentity(
        federation, certificates.Role(parts[1]), int(parts[2]), 0, _NEVER, name
    )


# Reading a certificate costs as much as a small upload; a peer shows the same one at every call.
_identity_of = lru_cache(1024)(certificates.identity_of)


class Door:
    """Reads callers' identities and asks the policy.

    federation: of callers without certificates. Without TLS alone; None: with TLS.
    """

    def __init__(self, policy: Policy, faults: Faults, federation: str | None) -> None:
        self._policy = policy
        self._faults = faults
        self._federation = federation
        self.connections: Connections | None = None

    @property
    def secure(self) -> bool:
        return self._federation is None

    def identify(self, context: grpc.aio.ServicerContext) -> certificates.PeerIdentity | None:
        """The caller; None: it does not say. Raises IdentityError."""
        if self._federation is None:
            shown: Mapping[str, Sequence[bytes]] = context.auth_context()
            pem = next(iter(shown.get("x509_pem_cert", ())), None)
            certificates.check_tls(shown)
            return None if pem is None else _identity_of(pem)
        for key, value in context.invocation_metadata() or ():
            if key == CLAIM:
                return claimed(str(value), self._federation)
        return None

    def claimed(self, node: Node) -> certificates.PeerIdentity:
        """A node that names itself in its first message, where that is enough."""
        assert self._federation is not None
        return claimed(f"{node.tier.value}-{node.number}", self._federation)

    def refusal(self, peer: certificates.PeerIdentity | None, call: str) -> str | None:
        return self._policy.refusal(peer, call)

    async def admit(
        self, context: grpc.aio.ServicerContext, call: str
    ) -> certificates.PeerIdentity | None:
        """The caller, if it may call; otherwise the call ends here, counted."""
        if self.connections is not None:
            self.connections.called(context.peer())
        try:
            peer = self.identify(context)
        except certificates.IdentityError as error:
            self._faults.count("no identity", context.peer(), why=error.message)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        reason = self._policy.refusal(peer, call)
        if reason is not None:
            self._faults.count(reason, name_of(peer), call=call)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return peer

    def guarded(self, call: str, handler: grpc.RpcMethodHandler) -> Any:
        """The handler, behind this door."""

        def count(kind: str, context: grpc.aio.ServicerContext) -> None:
            self._faults.count(kind, self.caller(context), call=call)

        return admitted(handler, lambda context: self.admit(context, call), count)

    def caller(self, context: grpc.aio.ServicerContext) -> str:
        """The name of a caller for logs, by its certificate; by its address where it has none."""
        try:
            peer = self.identify(context)
        except certificates.IdentityError:
            peer = None
        return context.peer() if peer is None else name_of(peer)


class Connections:
    """The connections of a server with TLS, and which of them ever made a call.

    gRPC refuses a handshake by itself (another CA, an expired certificate, no TLS at all) without a
    report; all that it does is ask for the server's certificate at each connection. So those that
    never call are counted, whatever the reason, and gRPC's own log has it. Called by gRPC's threads
    for the certificate, else on the loop's.
    """

    def __init__(self, material: Callable[[], certificates.TlsMaterial]) -> None:
        self._material = material
        self._numbers = itertools.count(1)  # counts in one step, from any thread
        self._begun = self._begun_before = self._called = 0
        self._open: OrderedDict[str, None] = OrderedDict()
        self.silent = 0

    def __call__(self) -> certificates.TlsMaterial:
        self._begun = max(self._begun, next(self._numbers))
        return self._material()

    def called(self, address: str) -> None:
        """A call has come from there (`context.peer()`)."""
        if address not in self._open:
            self._called += 1
            self._open[address] = None
            if len(self._open) > _CONNECTIONS_MAX:
                self._open.popitem(last=False)

    def left(self, address: str) -> None:
        """The node there is gone; the address may be another node's next time."""
        self._open.pop(address, None)

    def review(self) -> int:
        """How many more ended, or wait, without a call.

        One may take until the next review to make its first. The settings themselves ask once.
        """
        silent = max(self.silent, self._begun_before - 1 - self._called)
        more, self.silent = silent - self.silent, silent
        self._begun_before = self._begun
        return more


class UnknownCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Counts calls that no service of this server has, by caller.

    An operator's at an edge, a later version's. gRPC answers the same by itself, without a report.
    """

    def __init__(self, door: Door, faults: Faults) -> None:
        self._door, self._faults = door, faults

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def refuse(_: Any, context: grpc.aio.ServicerContext) -> None:
            call = str(details.method)[:_CALL_CHARS_MAX]
            self._faults.count("unknown call", self._door.caller(context), call=call)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this node has no such call")

        return grpc.stream_stream_rpc_method_handler(refuse)


def name_of(peer: certificates.PeerIdentity | None) -> str:
    """A peer's name for logs."""
    return "a peer without a certificate" if peer is None else peer.common_name
