"""Devices of two organisations, each enrolled by its own authority, in one masked sum; then one
organisation is revoked.
"""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import numpy as np
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.data.rows import DataSettings
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.node.identity.pki.certificates import channel_credentials, channel_options
from delian.core.privacy.secagg.limits import SUITES
from delian.core.protocol.ports import CLOUD
from delian.core.wire.authority_pb2 import RevokeRequest
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage, PutPart, SubmitRequest
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.device.agent import daemon as devices
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.owner_limits import WorkerSettings
from support.organisations import NORTHS, SOUTH, SOUTHS, within
from support.waiting import until

EACH = 3


def bundle():
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=adam(0.01), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )


async def submitted(operator) -> int:
    """A masked run that takes all devices that there are."""
    made, refs = bundle(), []
    for content in (made.bare().to_bytes(), made.weights.tobytes()):
        ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
        refs.append(await operator.PutBlob(iter([PutPart(blob=ref), PutPart(content=content)])))
    plan = PlanMessage(
        name="together",
        rounds=100,
        cohort=2 * EACH,
        over_selection=1.0,
        reports_min=EACH,
        bundle=refs[0],
        weights=refs[1],
        timeout_ms=20_000,
        attempts_max=50,
        wait_ms=5_000,  # then it takes those that are there
        seed=7,
    )
    plan.ring.clip, plan.ring.clients_max = made.manifest.clip, made.manifest.clients_max
    plan.ring.bits, plan.ring.dimension = 32, made.manifest.dimension
    plan.secure.suite, plan.secure.cohort_min = SUITES[0], EACH
    plan.secure.corrupt, plan.secure.dropout = 0.05, 0.1
    return (await operator.Submit(SubmitRequest(plan=plan))).run


async def started(world, organisation, name):
    """A device that an organisation has let in, while the stack lasts."""
    own = await organisation.join(name)
    data = own.folder / "data.npz"
    rng = np.random.default_rng(own.identity().number)
    np.savez(data, x=rng.random((8, 4), np.float32), y=rng.integers(0, 2, 8, np.int32))
    settings = devices.DeviceSettings(
        folder=own.folder / "state",
        identity=own.folder,
        worker=WorkerSettings(data=DataSettings(str(data)), backend="reference"),
        conditions=ConditionSettings(powered=True, unmetered=True, idle=True, consented=True),
        signed=False,
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(devices.serve(settings, stop, lambda facts: ready.set()))

    async def end():
        stop.set()
        await asyncio.gather(task, return_exceptions=True)

    world.stack.push_async_callback(end)
    await ready.wait()


def test_two_organisations_share_masked_sums_until_one_is_revoked(tmp_path):
    async def scenario(world):
        world.south.found()
        await world.south.start()
        for organisation in (world.north, world.south):
            for index in range(EACH):
                await started(world, organisation, f"device-{index}")
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{world.ports['cloud']}",
            channel_credentials(world.admin.material()),
            options=list(channel_options("farm", CLOUD)),
        )
        operator = OperatorStub(await world.stack.enter_async_context(channel))
        ours = set(range(NORTHS + 1, NORTHS + 1 + EACH))
        theirs = set(range(SOUTHS + 1, SOUTHS + 1 + EACH))
        sums = listening(world.cloud)
        await submitted(operator)
        await until(lambda: ours | theirs in sums)
        stub = await world.at_root(world.admin.material())
        assert (await stub.Revoke(RevokeRequest(name=f"authority-{SOUTH}"))).changed
        await until(lambda: world.cloud.trust.denied().authorities() == [SOUTH])
        await until(lambda: not theirs & world.cloud.gatherer.machine.devices())
        # A round that had begun before may still have them; the run goes on without.
        before = len(sums)
        await until(lambda: sums[before:].count(ours) == 2)
        assert all(not devices & theirs for devices in sums[before + 1 :])

    within(tmp_path, scenario, every_s=1.0)


def listening(cloud):
    """The devices of each sum from now on, as the coordinator records them."""
    sums, recorded = [], cloud.telemetry.recorded

    def listen(record):
        recorded(record)
        if record.kind == "round" and record.fields["succeeded"]:
            sums.append(set(record.fields["reported"]))

    cloud.telemetry.recorded = listen
    return sums
