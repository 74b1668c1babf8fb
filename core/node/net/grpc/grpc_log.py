"""The call for a page of the certificate log, at a coordinator or an authority (`Identity.Log`)."""

from __future__ import annotations

import grpc

from ....common.merkle_tree import CONSISTENCY_BYTES_MAX
from ....protocol.ports import CLOUD
from ....wire import enrolment_pb2_grpc
from ....wire.log_pb2 import LogAsk, LogPage
from ...identity.log.certificate_log import PAGE_ENTRIES
from ...identity.log.log_entries import CHECKPOINT_BYTES_MAX, ENTRY_BYTES
from ...identity.pki.certificates import (
    IdentityError,
    TlsMaterial,
    authority_options,
    channel_credentials,
    channel_options,
)
from . import grpc_core

CALL_S = 30.0
_REPLY_BYTES_MAX = PAGE_ENTRIES * ENTRY_BYTES + CHECKPOINT_BYTES_MAX + CONSISTENCY_BYTES_MAX + 256


async def log_call(
    material: TlsMaterial, target: str, asked: LogAsk, *, authority: bool = False
) -> LogPage:
    """Asks the coordinator at "host:port", or the authority.

    material: whose certificate is shown. Raises IdentityError.
    """
    grpc_core.hold()
    federation = material.identity().federation
    named = authority_options(federation) if authority else channel_options(federation, CLOUD)
    options = [
        *named,
        ("grpc.max_receive_message_length", _REPLY_BYTES_MAX),
    ]
    credentials = channel_credentials(material)
    async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
        try:
            reply: LogPage = await enrolment_pb2_grpc.IdentityStub(channel).Log(
                asked, timeout=CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise IdentityError(
                f"{target} did not give the certificate log ({error.code().name.lower()}):"
                f" {(error.details() or '')[:200]}",
                "is it running, and is this its address?",
            ) from None
    return reply
