"""A submission of a model with frozen leaves: its parts are those of the bundle, and stay."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.nn import Mlp, sgd
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import (
    CloneRequest,
    ListRequest,
    PlanMessage,
    PutPart,
    RunControl,
    RunRequest,
    SubmitRequest,
)
from support.operator_bench import INVALID, calling, daemon_at, plan_of, put, ref_of, refused, run


@pytest.fixture(scope="module")
def partial():
    """The small classification with a frozen first layer."""
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=5.0,
        clients_max=8,
        weight_max=10.0,
        seed=1,
        roles=Roles(frozen=("layers.0.*",)),
    )


def test_a_plan_has_the_parts_of_its_bundles_manifest(tmp_path, partial):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, partial)
            (part,) = partial.frozen_contents()
            assert list(plan.frozen) == [ref_of(part)]
            made = await call("Submit", SubmitRequest(plan=plan))
            told = await call("GetRun", RunRequest(run=made.run))
            assert list(told.plan.frozen) == [ref_of(part)]
            (listed,) = (await call("ListRuns", ListRequest())).runs
            assert not listed.plan.frozen and listed.plan.bundle == plan.bundle
            clone = await call("CloneRun", CloneRequest(run=1, changes=PlanMessage(rounds=7)))
            assert list(clone.plan.frozen) == [ref_of(part)]

    run(main())


def test_any_other_list_is_refused(tmp_path, partial, bundle):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, partial)
            (own,) = plan.frozen
            other = await put(call, b"another model's leaves")
            absent = BlobRef(digest=b"?" * 32, size=own.size)
            wrong = BlobRef(digest=own.digest, size=own.size + 1)
            for parts, words in (
                ([], "0 parts, where the bundle's manifest names 1"),
                ([own, own], "2 parts, where the bundle's manifest names 1"),
                ([other], "number 1 is another"),
                ([absent], r"plan.frozen[0]: no blob 3f3f"),
                ([wrong], "plan.frozen[0]: no blob"),
            ):
                del plan.frozen[:]
                plan.frozen.extend(parts)
                code, text = await refused(call("Submit", SubmitRequest(plan=plan)))
                assert code is INVALID and words in text, text
            trained = await plan_of(call, bundle)
            trained.frozen.append(own)
            code, text = await refused(call("Submit", SubmitRequest(plan=trained)))
            assert code is INVALID and "1 parts, where the bundle's manifest names 0" in text
            assert not (await call("ListRuns", ListRequest())).runs

    run(main())


def test_a_part_that_is_here_is_not_sent_again(tmp_path, partial):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            content = bytes(range(256)) * 4096
            await put(call, content)
            # Were they read, they would be refused.
            bad = [PutPart(blob=ref_of(content)), PutPart(content=b"not these")]
            assert await call("PutBlob", iter(bad)) == ref_of(content)
            assert await daemon.blobs.read(ref_of(content).digest) == content

    run(main())


def test_parts_stay_while_a_run_or_a_kept_model_needs_them(tmp_path, partial):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            plan = await plan_of(call, partial)
            await call("Submit", SubmitRequest(plan=plan))
            (part,) = plan.frozen
            await daemon.blobs.drop(part.digest)
            assert await daemon.blobs.size(part.digest) == part.size, "a run needs it"
        async with daemon_at(tmp_path) as daemon:
            await daemon.blobs.drop(part.digest)
            assert await daemon.blobs.size(part.digest) == part.size, "after a restart, too"
            assert list(daemon.cloud.machine.state.runs[1].plan.frozen) == [part]
            async with calling(daemon) as call:
                await call("ControlRun", RunControl(run=1, action="cancel"))
        async with daemon_at(tmp_path) as daemon:
            assert not daemon.cloud.machine.state.runs
            await daemon.blobs.drop(part.digest)
            assert await daemon.blobs.size(part.digest) == part.size, "its first model is kept"

    run(main())
