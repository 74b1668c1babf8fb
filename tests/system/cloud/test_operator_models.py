"""The coordinator's operator service: blobs and models."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import (
    ListRequest,
    ModelRequest,
    PromoteRequest,
    PutPart,
    SubmitRequest,
)
from support.operator_bench import (
    calling,
    daemon_at,
    plan_of,
    put,
    ref_of,
    refused,
    run,
)


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
