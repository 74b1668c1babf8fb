"""The coordinator's front desk, over a loopback channel to a daemon of this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
import types
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.audit import Report, verify
from delian.cloud.daemon import CloudDaemon, CloudSettings
from delian.cloud.fleet import _info
from delian.cloud.store.database import StoreError
from delian.core.identity.approvals import Approval, Wanted
from delian.core.identity.authority import Authority
from delian.core.identity.certificates import Role, channel_credentials, channel_options
from delian.core.identity.folder import IdentityFolder
from delian.core.identity.joining import join
from delian.core.identity.local import operator_identity
from delian.core.ir import DType, TensorType
from delian.core.learn import Classification, FedAvg, Samples, SampleSet
from delian.core.learn.build import build
from delian.core.net.grpc_guard import claim
from delian.core.nn import Mlp, sgd
from delian.core.node.codec import address
from delian.core.ports import CLOUD, Node, Received, Tier
from delian.core.privacy.noising import FAILURE, Promise, planned, release
from delian.core.wire import link_pb2
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import (
    AuditRequest,
    CloneRequest,
    FleetRequest,
    ListRequest,
    ModelRequest,
    NodeRequest,
    PlanMessage,
    PromoteRequest,
    PutPart,
    RunControl,
    RunRequest,
    SubmitRequest,
    TokenRequest,
    WatchRequest,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.edge.machine import EdgeMachine, restore
from delian.edge.state import EdgeState
from delian.edge.state import Phase as EdgePhase

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


@pytest.fixture(scope="module")
def bundle():
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )


@contextlib.asynccontextmanager
async def daemon_at(folder, **changes):
    values = {
        "listen": "127.0.0.1:0",
        "enrolment": "",
        "health": "127.0.0.1:0",
        "insecure": True,
        "backend": "reference",
        **changes,
    }
    daemon = CloudDaemon(CloudSettings(folder, **values), gatherer)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.close()


@contextlib.asynccontextmanager
async def certified(folder):
    """A daemon with certificates, and an operator's stub."""
    ca = folder / "ca"
    authority = Authority(ca) if ca.exists() else Authority.create(ca, "farm")
    operator_identity(authority, folder / "operator")
    changes = {"insecure": False, "enrolment": "127.0.0.1:0", "addresses": ("127.0.0.1",)}
    changes |= {"authority": folder / "ca", "public_enrolment": "127.0.0.1:1"}
    async with daemon_at(folder / "cloud", **changes) as daemon:
        credentials = channel_credentials(IdentityFolder(folder / "operator").material())
        options = list(channel_options("farm", CLOUD))
        target = f"127.0.0.1:{daemon.ports['grpc']}"
        async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
            yield daemon, OperatorStub(channel)


@contextlib.asynccontextmanager
async def calling(daemon, name="operator-0"):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.ports['grpc']}") as channel:
        stub = OperatorStub(channel)
        yield lambda call, request, **o: getattr(stub, call)(request, metadata=claim(name), **o)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


def ref_of(content) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))


async def put(call, content, ref=None) -> BlobRef:
    half = len(content) // 2
    parts = [PutPart(blob=ref or ref_of(content)), PutPart(content=content[:half])]
    return await call("PutBlob", iter([*parts, PutPart(content=content[half:])]))


async def plan_of(call, bundle, **changes) -> PlanMessage:
    manifest = bundle.manifest
    plan = PlanMessage(name="small", rounds=2, cohort=2, over_selection=1.0)
    plan.bundle.CopyFrom(await put(call, bundle.bare().to_bytes()))
    plan.weights.CopyFrom(await put(call, bundle.weights.tobytes()))
    plan.ring.clip, plan.ring.clients_max = manifest.clip, manifest.clients_max
    plan.ring.bits, plan.ring.dimension = 32, manifest.dimension
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


async def refused(awaitable) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code(), caught.value.details()


# ---------------------------------------------------------------- runs


def test_a_run_is_submitted_watched_paused_cloned_and_cancelled(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            made = await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            assert (made.run, made.phase, made.round) == (1, "waiting", 1)
            stream = call("WatchRun", WatchRequest(run=1))
            first = await anext(aiter(stream))
            assert (first.sequence, json.loads(first.facts)["phase"]) == (1, "waiting")
            seen = asyncio.ensure_future(anext(aiter(stream)))
            paused = await call("ControlRun", RunControl(run=1, action="pause"))
            assert paused.phase == "paused"
            assert json.loads((await seen).facts)["phase"] == "paused"
            assert (await call("ControlRun", RunControl(run=1, action="pause"))).phase == "paused"
            assert (await call("ControlRun", RunControl(run=1, action="resume"))).phase == "waiting"
            changes = PlanMessage(rounds=7, name="again")
            clone = await call("CloneRun", CloneRequest(run=1, changes=changes))
            assert (clone.run, clone.plan.rounds, clone.plan.cohort) == (2, 7, 2)
            over = await call("ControlRun", RunControl(run=1, action="cancel"))
            assert over.phase == "cancelled" and over.ended_ms > 0
            rest = [event async for event in stream]  # it ends with the run
            assert [json.loads(e.facts)["phase"] for e in rest] == ["waiting", "cancelled"]
            runs = await call("ListRuns", ListRequest())
            assert [r.run for r in runs.runs] == [2, 1]
            assert [r.run for r in (await call("ListRuns", ListRequest(before=2))).runs] == [1]
            code, text = await refused(call("ControlRun", RunControl(run=1, action="resume")))
            assert code is grpc.StatusCode.INVALID_ARGUMENT and "cancelled" in text

    run(main())


def test_a_run_that_promises_something_is_told_with_what_is_spent(tmp_path, bundle):
    promise = Promise(epsilon=4.0, delta=1e-6, releases=2, survivors=8, corrupt=0.1)

    async def main():
        async with certified(tmp_path) as (daemon, stub):

            def call(name, request):
                return getattr(stub, name)(request)

            ring = planned(bundle.manifest.ring, promise)
            noisy = replace(bundle, manifest=replace(bundle.manifest, noise=ring.noise))
            plan = await plan_of(call, noisy, cohort=8, reports_min=8)
            plan.ring.CopyFrom(ring.message())
            plan.privacy.epsilon, plan.privacy.delta, plan.privacy.corrupt = 4.0, 1e-6, 0.1
            plan.secure.suite, plan.secure.cohort_min = 1, 8
            plan.secure.corrupt = plan.secure.dropout = 0.1
            await call("Submit", SubmitRequest(plan=plan))
            spent = (await call("GetRun", RunRequest(run=1))).privacy_spent
            assert (spent.epsilon, spent.delta, spent.releases) == (0.0, 1e-6, 0)
            state = daemon.cloud.machine.state.runs[1]
            state.budget = promise.budget()
            state.budget.spend(release(ring, 8, 0.1), FAILURE)
            spent = (await call("GetRun", RunRequest(run=1))).privacy_spent
            assert spent.releases == 1 and spent.epsilon == state.budget.epsilon_spent > 0
            over = await call("ControlRun", RunControl(run=1, action="cancel"))
            assert over.phase == "cancelled" and over.privacy_spent == spent
            (listed,) = (await call("ListRuns", ListRequest())).runs
            assert not listed.HasField("privacy_spent")

    run(main())


def test_what_no_run_can_keep_is_refused_before_it_is_journaled(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            good = await plan_of(call, bundle)
            wrong = []
            for name, value in (("rounds", 0), ("cohort", 9), ("over_selection", 0.5)):
                plan = PlanMessage()
                plan.CopyFrom(good)
                setattr(plan, name, value)
                wrong.append((plan, "plan."))
            missing = PlanMessage()
            missing.CopyFrom(good)
            missing.bundle.digest = b"x" * 32
            wrong.append((missing, "plan.bundle"))
            other = PlanMessage()
            other.CopyFrom(good)
            other.ring.clip = 2.0
            wrong.append((other, "plan.ring"))
            for named, said in (("f1", "where the bundle has none"), ("Loss", "called 'Loss'")):
                judged = PlanMessage()
                judged.CopyFrom(good)
                judged.own_metrics.append(named)
                wrong.append((judged, said))
            no_bundle = PlanMessage()
            no_bundle.CopyFrom(good)
            no_bundle.bundle.CopyFrom(await put(call, b"no bundle at all"))
            wrong.append((no_bundle, "plan.bundle"))
            before = daemon.cloud.counters["entries"]
            for plan, part in wrong:
                code, text = await refused(call("Submit", SubmitRequest(plan=plan)))
                assert code is grpc.StatusCode.INVALID_ARGUMENT and part in text, text
            assert daemon.cloud.counters["entries"] == before
            assert not (await call("ListRuns", ListRequest())).runs
            assert (await refused(call("GetRun", RunRequest(run=4))))[0] is (
                grpc.StatusCode.NOT_FOUND
            )

    run(main())


def test_a_bundle_that_compares_a_devices_key_is_refused(tmp_path, bundle, peeking):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, peeking(bundle))
            code, text = await refused(call("Submit", SubmitRequest(plan=plan)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "client_update compares a random key by `eq`" in text
            assert not (await call("ListRuns", ListRequest())).runs

    run(main())


async def on_record(daemon) -> Report:
    ca = daemon.trust and daemon.trust.authority.certificate
    return verify((await daemon.audit.page(0))[0], ca)


def test_the_bundle_of_a_run_is_on_the_signed_record_before_the_run_begins(tmp_path, bundle):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            give, seen = daemon.orders.give, []

            async def watched(order):
                seen.append(await on_record(daemon))
                await give(order)

            daemon.orders.give = watched

            def call(name, request):
                return getattr(stub, name)(request)

            plan = await plan_of(call, bundle, manifest=b"signed")
            await call("Submit", SubmitRequest(plan=plan))
            (report,) = seen
            assert report.good and report.signed == report.entries
            told = report.bundles[1]
            assert told["bundle"] == plan.bundle.digest.hex() and not told["secure"]
            assert told["manifest"] == hashlib.sha256(b"signed").hexdigest()

    run(main())


def test_a_run_whose_order_was_lost_is_on_record_when_it_begins(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan)  # and then the process died
        async with daemon_at(tmp_path) as daemon:
            report = await on_record(daemon)
            assert report.bundles[1]["bundle"] == plan.bundle.digest.hex()

    run(main())


def test_a_run_whose_order_was_lost_begins_at_the_next_start(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan)  # and then the process died
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            async for event in call("WatchRun", WatchRequest(run=1)):
                assert json.loads(event.facts)["phase"] == "waiting"
                break
            assert (await call("GetRun", RunRequest(run=1))).phase == "waiting"

    run(main())


def test_a_request_that_is_repeated_makes_one_run(tmp_path, bundle):
    async def main():
        one, two, three = (bytes([n]) * 16 for n in range(3))
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            request = SubmitRequest(plan=plan, request_id=one)
            made = await asyncio.gather(*(call("Submit", request) for _ in range(3)))
            assert [m.run for m in made] == [1, 1, 1] and made[0].phase == "waiting"
            clone = CloneRequest(run=1, request_id=two)
            assert [(await call("CloneRun", clone)).run for _ in range(2)] == [2, 2]
            assert (await call("Submit", SubmitRequest(plan=plan))).run == 3
            assert (await call("Submit", SubmitRequest(plan=plan))).run == 4, "without an id"
            bad = SubmitRequest(plan=PlanMessage(), request_id=three)
            await refused(call("Submit", bad))
            good = SubmitRequest(plan=plan, request_id=three)
            assert (await call("Submit", good)).run == 5, "nothing was made of it before"
            for length in (1, 15, 17):
                wrong = SubmitRequest(plan=plan, request_id=b"x" * length)
                assert (await refused(call("Submit", wrong)))[0] is INVALID
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            assert (await call("Submit", request)).run == 1
            assert (await call("CloneRun", clone)).run == 2
            assert len((await call("ListRuns", ListRequest())).runs) == 5

    run(main())


def test_a_caller_that_is_gone_finds_its_run_begun(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            request = SubmitRequest(plan=await plan_of(call, bundle), request_id=b"r" * 16)
            at, on = asyncio.Event(), asyncio.Event()
            give = daemon.orders.give

            async def slowly(order):
                at.set()
                await on.wait()
                await give(order)

            daemon.orders.give = slowly
            first = call("Submit", request)
            await asyncio.wait_for(at.wait(), 120)
            first.cancel()
            again = asyncio.ensure_future(call("Submit", request))
            on.set()
            made = await again
            assert (made.run, made.phase) == (1, "waiting")
            assert len((await call("ListRuns", ListRequest())).runs) == 1

    run(main())


def test_a_request_that_is_repeated_after_a_crash_finds_the_run_that_begins_anew(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            await daemon.registry.add_run(plan, request=b"r" * 16)  # and then the process died
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            made = await call("Submit", SubmitRequest(plan=plan, request_id=b"r" * 16))
            assert (made.run, made.phase) == (1, "waiting")

    run(main())


def test_runs_and_models_are_there_after_a_restart(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, bundle)
            before = await call("Submit", SubmitRequest(plan=plan))
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            assert await call("GetRun", RunRequest(run=1)) == before
            model = await call("GetModel", ModelRequest(run=1, round=0))
            assert model.weights == plan.weights and model.bundle == plan.bundle

    run(main())


# ---------------------------------------------------------------- blobs and models


def test_blobs_come_and_go_whole_or_not_at_all(tmp_path):
    content = bytes(range(256)) * 2 * 4096

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            ref = await put(call, content)
            assert await put(call, content) == ref
            parts = [part async for part in call("GetBlob", ref)]
            assert b"".join(p.content for p in parts) == content and len(parts) == 2
            for bad in (
                [PutPart(content=b"x")],
                [PutPart(blob=ref_of(b"abc")), PutPart(content=b"abd")],
                [PutPart(blob=ref_of(b"abc")), PutPart(content=b"abcd")],
                [PutPart(blob=ref_of(b"abc")), PutPart(content=b"ab")],
                [PutPart(blob=BlobRef(digest=b"short", size=3)), PutPart(content=b"abc")],
            ):
                code, _ = await refused(call("PutBlob", iter(bad)))
                assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE)
            gone = call("GetBlob", ref_of(b"abc"))
            assert (await refused(anext(aiter(gone))))[0] is grpc.StatusCode.NOT_FOUND

    run(main())


def test_blobs_and_packs_may_be_in_an_object_store(tmp_path, bundle):
    pytest.importorskip("obstore")

    async def main():
        async with daemon_at(tmp_path, objects="memory:///") as daemon, calling(daemon) as call:
            made = await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            parts = [part.content async for part in call("GetBlob", made.plan.weights)]
            assert b"".join(parts) == bundle.weights.tobytes()
            assert made.plan.bundle.digest in await daemon.blobs.digests()
            assert not (tmp_path / "packs").exists()

    run(main())


def test_an_alias_is_promoted_and_rolled_back(tmp_path, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            for seed in (1, 2):
                plan = await plan_of(call, bundle, seed=seed)
                await call("Submit", SubmitRequest(plan=plan))

            async def promote(number):
                model = ModelRequest(run=number)
                return await call("Promote", PromoteRequest(model=model, alias="serving"))

            assert (await promote(1)).run == 1
            assert (await promote(2)).aliases == ["serving"]
            assert (await call("GetModel", ModelRequest(alias="serving"))).run == 2
            assert (await call("Rollback", PromoteRequest(alias="serving"))).run == 1
            assert (await call("GetModel", ModelRequest(alias="serving"))).run == 1
            assert (await refused(call("Rollback", PromoteRequest(alias="serving"))))[0] is (
                grpc.StatusCode.NOT_FOUND
            )
            moves = await daemon.registry.history("serving")
            assert [m["action"] for m in moves] == ["rollback", "promote", "promote"]
            assert {m["by"] for m in moves} == {"operator-0"}
            models = (await call("ListModels", ListRequest())).models
            assert [m.run for m in models] == [2, 1]
            wrong = PromoteRequest(model=ModelRequest(run=1), alias="No Name")
            assert (await refused(call("Promote", wrong)))[0] is grpc.StatusCode.INVALID_ARGUMENT

    run(main())


# ---------------------------------------------------------------- the fleet


def test_nodes_are_listed_with_what_they_do(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            edge = Node(Tier.EDGE, 3)
            hello = EdgeHello(edge=3, incarnation=1, sequence=1, protocol=1, ready=[5, 6, 9])
            daemon.cloud.post(Received(edge, hello))
            await until(lambda: 3 in daemon.cloud.machine.state.edges)
            nodes = (await call("ListNodes", FleetRequest())).nodes
            told = {(n.node.tier, n.node.number): (n.state, n.home.number) for n in nodes}
            assert told[link_pb2.NODE_EDGE, 3] == ("ready", 0)
            assert told[link_pb2.NODE_EDGE, 0] == ("ready", 0)
            assert told[link_pb2.NODE_DEVICE, 5] == ("ready", 3)
            pages, after = [], 0
            while page := (
                await call(
                    "ListNodes", FleetRequest(tier=link_pb2.NODE_DEVICE, limit=2, after=after)
                )
            ).nodes:
                pages.append([n.node.number for n in page])
                after = page[-1].node.number
            assert pages == [[5, 6], [9]]
            one = await call("GetNode", NodeRequest(node=address(edge)))
            assert one.state == "ready" and one.seen_ms > 0
            nobody = NodeRequest(node=address(Node(Tier.DEVICE, 77)))
            assert (await refused(call("GetNode", nobody)))[0] is grpc.StatusCode.NOT_FOUND

    run(main())


def test_who_has_joined_and_not_come_yet_is_not_gone():
    def state(**row):
        facts = {"tier": "device", "number": 4, "home": None, "state": "", "labels": {}}
        return _info(
            types.SimpleNamespace(**facts, **row, certificate_ends_ms=1, seen_ms=0), None
        ).state

    assert state(enrolled_ms=int(time.time() * 1000)) == "enrolled"
    assert state(enrolled_ms=1) == "gone"


def test_any_edge_is_drained_and_put_back(tmp_path):
    own, other = Node(Tier.EDGE, 0), Node(Tier.EDGE, 3)

    async def state(call, node, name="GetNode", **request):
        return (await call(name, NodeRequest(node=address(node), **request))).state

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            hello = EdgeHello(edge=3, incarnation=1, sequence=1, protocol=1, ready=[5])
            daemon.cloud.post(Received(other, hello))
            await until(lambda: 3 in daemon.cloud.machine.state.edges)
            for node in (own, other):
                assert await state(call, node, "DrainNode") == "draining"
                assert await state(call, node, "DrainNode") == "draining"
            # The coordinator's own edge hears of it as any other does, and says so.
            await until(lambda: daemon.gatherer.machine.state.phase is EdgePhase.DRAINING)
            views = daemon.cloud.machine.state.edges
            await until(lambda: views[0].told_draining)
            assert await state(call, own) == "drained"
            told = {"incarnation": 1, "protocol": 1, "told_draining": True}
            daemon.cloud.post(Received(other, EdgeHello(edge=3, sequence=2, **told)))
            await until(lambda: views[3].told_draining)
            assert await state(call, other) == "drained"
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            assert await state(call, other) == "drained"
            assert await state(call, own, "DrainNode", undo=True) in ("draining", "ready")
            await until(lambda: daemon.gatherer.machine.state.phase is EdgePhase.SERVING)
            assert await state(call, own) == "ready"
            await state(call, other, "DrainNode", undo=True)
            assert not daemon.cloud.machine.state.draining

    run(main())


def test_what_is_no_edge_is_not_drained_and_it_is_said_what_to_do(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            for node, words in (
                (Node(Tier.DEVICE, 5), "delian device consent no"),
                (CLOUD, "pause its runs"),
            ):
                code, text = await refused(call("DrainNode", NodeRequest(node=address(node))))
                assert code is grpc.StatusCode.INVALID_ARGUMENT and words in text
            nobody = NodeRequest(node=address(Node(Tier.EDGE, 77)))
            assert (await refused(call("DrainNode", nobody)))[0] is grpc.StatusCode.NOT_FOUND

    run(main())


def test_only_operators_are_served(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon:
            for name in ("device-1", "edge-1", "cloud-0"):
                async with calling(daemon, name) as call:
                    code, _ = await refused(call("ListRuns", ListRequest()))
                    assert code is grpc.StatusCode.PERMISSION_DENIED

    run(main())


def test_with_certificates_nodes_join_by_token_and_are_revoked(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            request = TokenRequest(tier=link_pb2.NODE_DEVICE)
            token = (await stub.CreateToken(request)).token
            address_now = f"127.0.0.1:{daemon.ports['enrolment']}"
            own = IdentityFolder(tmp_path / "device")
            await join(token, own.folder, labels={"host": "barn"}, address=address_now)
            node = NodeRequest(node=address(Node(Tier.DEVICE, 1)))
            found = await stub.GetNode(node)
            assert found.labels["host"] == "barn" and found.certificate_ends_ms > 0
            await stub.RevokeNode(node)
            assert (await stub.GetNode(node)).state == "revoked"
            assert Authority(tmp_path / "ca").denied().denies(own.identity())
            plain = grpc.aio.insecure_channel(f"127.0.0.1:{daemon.ports['grpc']}")
            code, _ = await refused(OperatorStub(plain).ListRuns(ListRequest(), timeout=60))
            assert code is grpc.StatusCode.UNAVAILABLE
            await plain.close()

    run(main())


def test_what_the_ca_or_the_store_lost_in_a_restore_the_other_still_knows(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, _):
            for number in (1, 2):
                await daemon.fleet.register(Tier.DEVICE, {}, 1)
                daemon.trust.authority.give_number(Role.DEVICE, number)
            await daemon.fleet.mark(Node(Tier.DEVICE, 1), "revoked")
        for name in ("numbers.jsonl", "denied.jsonl"):
            (tmp_path / "ca" / name).unlink(missing_ok=True)
        Authority(tmp_path / "ca").note_number(Role.DEVICE, 2)
        Authority(tmp_path / "ca").revoke("device-2")
        (tmp_path / "ca" / "numbers.jsonl").unlink()
        (tmp_path / "operator").rename(tmp_path / "before")
        async with certified(tmp_path) as (daemon, _):
            both = {Node(Tier.DEVICE, number) for number in (1, 2)}
            await until(lambda: set(daemon.trust.denied().nodes()) == both)
            while set(await daemon.fleet.revoked()) != both:
                await asyncio.sleep(0.01)
            assert daemon.trust.authority.last_number(Role.DEVICE) == 2

    run(main())


# ---------------------------------------------------------------- roles, and the record of calls


@contextlib.asynccontextmanager
async def as_operator(folder, daemon, role):
    """A stub with a new identity of that role."""
    own = IdentityFolder(folder / f"operator-{time.monotonic_ns()}")
    operator_identity(Authority(folder / "ca"), own.folder, role)
    options = list(channel_options("farm", CLOUD))
    target = f"127.0.0.1:{daemon.ports['grpc']}"
    credentials = channel_credentials(own.material())
    async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
        yield OperatorStub(channel), own


async def recorded(stub, authority):
    """The entries about calls, of a record that holds."""
    lines = [each.line async for each in stub.Audit(AuditRequest())]
    entries = []
    report = verify(lines, authority.certificate, on_entry=entries.append)
    assert report.good and report.signed == report.entries
    return [entry for entry in entries if entry["kind"] in ("call", "outcome")]


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
            assert made["facts"] == {"tier": "edge", "uses": "1", "valid_s": "60", "approval": ""}
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
            book, append = daemon.operator._tokens, daemon.audit.append

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


# ---------------------------------------------------------------- health


def test_health_readiness_and_metrics_are_served(tmp_path, bundle):
    async def ask(daemon, path, method="GET"):
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.ports["health"])
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            await call("Submit", SubmitRequest(plan=await plan_of(call, bundle)))
            assert await ask(daemon, "/healthz") == (200, "alive\n")
            assert await ask(daemon, "/readyz") == (200, "ready\n")
            assert (await ask(daemon, "/nothing"))[0] == 404
            assert (await ask(daemon, "/metrics", "POST"))[0] == 405
            status, page = await ask(daemon, "/metrics")
            assert status == 200
            assert 'delian_runs{phase="waiting"} 1.0' in page
            assert 'delian_inbox_events{node="cloud"} 0.0' in page
            assert "delian_journal_append_seconds_count" in page
            daemon.serving = False
            assert (await ask(daemon, "/readyz"))[0] == 503

    run(main())


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)
