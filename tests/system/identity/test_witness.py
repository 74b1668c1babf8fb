"""The tests of `test_witness` that need a process, a socket or a clock."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.node.identity.log.log_entries import (
    verify_head,
)
from delian.core.node.identity.log.witness import Witness
from delian.core.node.identity.pki.certificates import IdentityError
from delian.core.node.net.grpc.grpc_witness import BURST, WitnessService, cosign_call, serve_witness
from delian.core.wire.log_pb2 import Checkpoint, CosignAsk

NOW = 1_900_000_000


@pytest.fixture
def witness(authority, tmp_path):
    made = Witness.create(tmp_path / "witness")
    assert made.add(authority.pem) == "farm"
    return made


def ask_of(authority, old_size, now=NOW):
    return CosignAsk(update=authority.log.update(old_size, now))


def check_signed(reply, witness, authority, now=NOW):
    made = Checkpoint()
    made.CopyFrom(authority.log.checkpoint(now))
    made.cosignatures.append(reply.cosignature)
    assert verify_head(made, authority.certificate, "farm", [witness.public], 1)


def test_a_witness_answers_over_grpc_within_its_limits(authority, witness):
    async def scenario():
        service = WitnessService(witness)
        server, port = await serve_witness("127.0.0.1:0", service)
        try:
            at = f"127.0.0.1:{port}"
            reply = await cosign_call(at, ask_of(authority, 0))
            check_signed(reply, witness, authority)
            with pytest.raises(IdentityError, match="invalid_argument"):
                await cosign_call(at, CosignAsk())
            large = ask_of(authority, 0)
            large.update.consistency = bytes(8192)
            with pytest.raises(IdentityError, match="resource_exhausted"):
                await cosign_call(at, large)
            while service.counts["refused"] < 2:
                await asyncio.sleep(0)
            for _ in range(BURST):
                service._callers.take("ipv4:127.0.0.1", 1e12)
            with pytest.raises(IdentityError, match="too many calls"):
                await cosign_call(at, ask_of(authority, 0))
            assert service.counts == {"signed": 1, "behind": 0, "refused": 2, "limited": 1}
        finally:
            await server.stop(None)
        with pytest.raises(IdentityError, match="did not co-sign"):
            await cosign_call(at, ask_of(authority, 0), timeout_s=5)

    asyncio.run(asyncio.wait_for(scenario(), 120))
