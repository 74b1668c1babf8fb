"""The coordinator's operator service: roles of operators, and the record of their calls."""

from __future__ import annotations

import contextlib
import hashlib
import time

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.store.database import StoreError
from delian.core.node.identity.authority.approvals import Approval, Wanted
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import Node, Tier
from delian.core.wire import link_pb2
from delian.core.wire.operator_pb2 import (
    ListRequest,
    NodeRequest,
    PromoteRequest,
    RunControl,
    TokenRequest,
)
from support.operator_bench import (
    INVALID,
    as_operator,
    certified,
    recorded,
    refused,
    run,
)


def test_each_role_makes_its_calls_and_no_others(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, _):
            token, run_1 = TokenRequest(tier=link_pb2.NODE_DEVICE), RunControl(run=1, action="no")
            for role, may in ((Role.VIEWER, 1), (Role.RUNNER, 2), (Role.ADMIN, 3)):
                async with as_operator(tmp_path, daemon, role) as (stub, _):
                    await stub.ListRuns(ListRequest())
                    code, _ = await refused(stub.ControlRun(run_1))
                    assert code is (INVALID if may > 1 else grpc.StatusCode.PERMISSION_DENIED)
                    if may == 3:
                        assert (await stub.CreateToken(token)).token
                    else:
                        code, _ = await refused(stub.CreateToken(token))
                        assert code is grpc.StatusCode.PERMISSION_DENIED

    run(main())


def test_every_changing_call_is_recorded_with_its_caller_and_outcome(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, _):
            async with as_operator(tmp_path, daemon, Role.ADMIN) as (stub, own):
                await stub.CreateToken(TokenRequest(tier=link_pb2.NODE_EDGE, valid_s=60))
                nobody = NodeRequest(node=address(Node(Tier.EDGE, 77)))
                assert (await refused(stub.RevokeNode(nobody)))[0] is grpc.StatusCode.NOT_FOUND
                await refused(stub.ControlRun(RunControl(run=9, action="pause")))
                await refused(stub.Rollback(PromoteRequest(alias="serving")))
                found = await recorded(stub, Authority(tmp_path / "ca"))
                who = own.identity()
            made, ok, revoke, no, *_ = found
            assert (made["by"], made["role"]) == (who.common_name, "admin")
            assert made["serial"] == f"{who.serial:x}" and made["method"] == "CreateToken"
            facts = {"tier": "edge", "site": "", "uses": "1", "valid_s": "60", "approval": ""}
            assert made["facts"] == facts
            asked = TokenRequest(tier=link_pb2.NODE_EDGE, valid_s=60)
            digest = hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()
            assert made["request"] == digest
            assert (ok["call"], ok["ok"], ok["why"]) == (made["sequence"], True, "")
            assert revoke["facts"] == {"node": "edge-77"}
            assert (no["ok"], no["why"]) == (False, "there is no edge 77")
            assert [e["method"] for e in found[::2]] == [
                *("CreateToken", "RevokeNode", "ControlRun", "Rollback")
            ]
            assert [e["call"] for e in found[1::2]] == [e["sequence"] for e in found[::2]]

    run(main())


def test_a_call_that_cannot_be_recorded_has_no_effect(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            book, append = daemon.hosted._tokens, daemon.audit.append

            async def broken(make):
                raise StoreError("the store failed")

            daemon.audit.append = broken
            request = TokenRequest(tier=link_pb2.NODE_DEVICE)
            assert (await refused(stub.CreateToken(request)))[0] is grpc.StatusCode.UNAVAILABLE
            assert book.open_tokens() == []
            daemon.audit.append = append
            await stub.CreateToken(request)
            assert len(book.open_tokens()) == 1

    run(main())


def test_nothing_is_acknowledged_whose_outcome_is_not_recorded(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            append, calls = daemon.audit.append, []

            async def breaks_on_the_second(make):
                calls.append(make)
                if len(calls) == 2:
                    raise StoreError("the store failed")
                return await append(make)

            daemon.audit.append = breaks_on_the_second
            request = TokenRequest(tier=link_pb2.NODE_DEVICE)
            assert (await refused(stub.CreateToken(request)))[0] is grpc.StatusCode.UNAVAILABLE
            daemon.audit.append = append
            (call,) = await recorded(stub, Authority(tmp_path / "ca"))
            assert call["kind"] == "call"  # who asked is known all the same

    run(main())


def test_a_token_for_many_needs_another_admin_s_approval(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, _), contextlib.AsyncExitStack() as stack:
            both = [
                await stack.enter_async_context(as_operator(tmp_path, daemon, Role.ADMIN))
                for _ in range(2)
            ]
            (alice, own), (bob, other) = both
            many = TokenRequest(tier=link_pb2.NODE_DEVICE, uses=500, valid_s=3600)
            code, why = await refused(alice.CreateToken(many))
            assert code is INVALID and "needs an approval" in why
            wanted = Wanted.new(own.identity(), Role.DEVICE, 500, 3600, time.time())
            signed = Approval(wanted).approve(other.material(), time.time())
            many.approval = signed.content()
            assert "for admin-2" in (await refused(bob.CreateToken(many)))[1]
            assert (await alice.CreateToken(many)).token
            assert "used before" in (await refused(alice.CreateToken(many)))[1]
            found = await recorded(alice, Authority(tmp_path / "ca"))
            assert [e["ok"] for e in found[1::2]] == [False, False, True, False]
            assert found[-2]["facts"]["approval"] == hashlib.sha256(many.approval).hexdigest()

    run(main())
