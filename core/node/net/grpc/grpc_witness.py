"""The port of a witness, and the call to one (`identity.witness`, `identity.witnessing`).

Heads are public and signed, and a witness verifies all that it signs, so the port asks for no
certificate. Everything that a caller may use has a limit: bytes of a call, calls at once, calls
from one address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import grpc

from ....common.merkle_tree import CONSISTENCY_BYTES_MAX
from ....wire import log_pb2_grpc
from ....wire.log_pb2 import CosignAsk, CosignReply
from ...identity.authority.authority import Authority
from ...identity.log.log_entries import CHECKPOINT_BYTES_MAX, LogFork
from ...identity.log.witness import Witness
from ...identity.log.witnessing import Witnessing
from ...identity.pki.certificates import IdentityError
from ..loop_clock import now_s
from ..message_limits import Buckets, Faults
from . import grpc_core
from .grpc_requests import serve_all

log = logging.getLogger("delian.witness")

CALL_BYTES_MAX: Final = CHECKPOINT_BYTES_MAX + CONSISTENCY_BYTES_MAX + 256
CALLS_AT_ONCE: Final = 16
#: Calls from one address at once, and then a second.
BURST, PER_S = 20, 1.0
IDLE_MS: Final = 30_000
CALL_S: Final = 10.0


class WitnessService(log_pb2_grpc.WitnessServicer):
    """Serves `Witness`. counts: "signed", "behind", "refused", "limited"."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._callers = Buckets(BURST, PER_S)
        self._faults = Faults("witness")
        self.counts = {"signed": 0, "behind": 0, "refused": 0, "limited": 0}

    async def Cosign(self, request: CosignAsk, context: Any) -> CosignReply:
        """A cosignature, or the size of the head that the witness has."""
        caller = context.peer().rpartition(":")[0]
        if not self._callers.take(caller, now_s()):
            self.counts["limited"] += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        try:
            reply = await asyncio.to_thread(self._witness.cosign, request)
        except LogFork as error:
            self.counts["refused"] += 1
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        except IdentityError as error:
            self.counts["refused"] += 1
            log.warning("a head was refused: %s", error.message, extra={"peer": caller})
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        self.counts["signed" if reply.HasField("cosignature") else "behind"] += 1
        return reply

    def unreadable(self, kind: str, context: Any) -> None:
        """A request that is too large for gRPC, does not parse, or did not come."""
        self.counts["refused"] += 1
        self._faults.count(kind, context.peer().rpartition(":")[0])


async def serve_witness(address: str, service: WitnessService) -> tuple[grpc.aio.Server, int]:
    """Starts a witness's server; gives it and its port.

    The caller stops it. Raises IdentityError.
    """
    return await serve_all(
        address,
        partial(log_pb2_grpc.add_WitnessServicer_to_server, service),
        service.unreadable,
        bytes_max=CALL_BYTES_MAX,
        calls_max=CALLS_AT_ONCE,
        idle_ms=IDLE_MS,
    )


async def cosign_call(address: str, asked: CosignAsk, timeout_s: float = CALL_S) -> CosignReply:
    """Asks a witness. Raises IdentityError where it refuses or does not answer."""
    grpc_core.hold()
    options = [("grpc.max_receive_message_length", CALL_BYTES_MAX)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        try:
            reply: CosignReply = await log_pb2_grpc.WitnessStub(channel).Cosign(
                asked, timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise IdentityError(
                f"the witness {address} did not co-sign ({error.code().name.lower()}):"
                f" {(error.details() or '')[:200]}"
            ) from None
    return reply


def witnessing_of(authority: Authority, addresses: Sequence[str]) -> Witnessing:
    """What sends the heads of a CA's log to witnesses, by their addresses, "host:port"."""
    return Witnessing(authority, {at: partial(cosign_call, at) for at in addresses})
