"""Server updates that do not end, crash, take everything, or have taken over their process."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from delian.cloud.service import updates as module
from delian.cloud.service.updates import LIMITS, ServerUpdates
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Builder, DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.node.sandbox import landlock, walls
from delian.core.node.storage.blobs import FolderBlobs
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import NewModel, ProgramStopped, RunProgram
from delian.core.wire.round_pb2 import DEADLINE, OUT_OF_MEMORY, PROGRAM_FAILED
from support import hostile_worker as _hostile

HOSTILE = Path(_hostile.__file__)
REFUSED = {errno.EPERM, errno.EACCES}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


def small(seed: int) -> Bundle:
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=adam(0.01), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=seed,
    )


@pytest.fixture(scope="module")
def good() -> Bundle:
    return small(1)


@pytest.fixture(scope="module")
def endless(good) -> Bundle:
    """A verified bundle whose update loops for ever."""
    function = good.programs["server_update"]
    builder = Builder([p.type for p in function.body.params])
    results = list(builder.inline(function.body, builder.params))
    scalar = TensorType(DType.F32, ())
    goes_on = Builder([scalar])
    condition = goes_on.finish([goes_on("le", goes_on.params[0], goes_on.constant(2.0, DType.F32))])
    step = Builder([scalar])
    body = step.finish([step("mul", step.params[0], step.constant(0.5, DType.F32))])
    start = builder.constant(1.0, DType.F32)
    (spun,) = builder.emit("while", [start], {"consts": 0}, [condition, body])
    first = results[0]
    results[0] = builder("add", first, builder("broadcast", spun, shape=first.type.shape, dims=()))
    spoilt = dataclasses.replace(function, body=builder.finish(results))
    made = dataclasses.replace(good, programs={**good.programs, "server_update": spoilt})
    return dataclasses.replace(made, written={})


async def asked(updates, blobs, bundle, ticket):
    """A job under way."""
    names = [
        (await blobs.put(content)).digest
        for content in (bundle.bare().to_bytes(), bundle.weights.tobytes())
    ]
    mean = np.zeros(bundle.manifest.dimension, np.float32)
    program = RunProgram(ticket, "server_update", tuple(names), (mean, 1.0))
    return asyncio.ensure_future(updates.run(program))


def test_an_update_that_does_not_end_holds_up_no_other_run_and_can_be_cancelled(good, endless):
    async def scene():
        blobs = MemoryBlobs()
        updates = ServerUpdates(blobs)
        stuck = await asked(updates, blobs, endless, 1)
        assert isinstance(await (await asked(updates, blobs, good, 2)), NewModel)
        assert not stuck.done()
        await updates.cancel(1)
        assert await stuck == ProgramStopped(PROGRAM_FAILED)
        await updates.close()

    run(scene())


def test_an_update_that_does_not_end_is_stopped_at_its_limit(endless):
    async def scene(**limits):
        blobs = MemoryBlobs()
        updates = ServerUpdates(blobs, limits=dataclasses.replace(LIMITS, **limits))
        try:
            return await (await asked(updates, blobs, endless, 1))
        finally:
            await updates.close()

    assert run(scene(cpu_s=1)) == ProgramStopped(DEADLINE)
    assert run(scene(wall_s=1)) == ProgramStopped(DEADLINE)


def test_close_ends_an_update_that_does_not(endless):
    async def scene():
        blobs = MemoryBlobs()
        updates = ServerUpdates(blobs)
        stuck = await asked(updates, blobs, endless, 1)
        while not updates._updaters:
            await asyncio.sleep(0)
        await updates.close()
        await updates.close()
        return await stuck

    assert run(scene()) == ProgramStopped(PROGRAM_FAILED)


@pytest.fixture
def taken_over(tmp_path, monkeypatch):
    """Has updates' processes do something else in the program's place."""
    for name in ("identity", "cache/workers", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "identity" / "key.pem").write_text("a secret")
    (tmp_path / "scratch" / "old").write_text("")
    places = {name: str(tmp_path / name) for name in ("identity", "cache", "scratch")}
    plan = tmp_path / "plan.json"
    command = (sys.executable, "-P", str(HOSTILE), str(plan), "delian.cloud.service.update_worker")

    def plant(instead, with_walls=True, blob="/"):
        plan.write_text(
            json.dumps({**places, "blob": blob, "walls": with_walls, "instead": instead})
        )
        monkeypatch.setattr(module, "COMMAND", command)

    return plant


@pytest.mark.parametrize(
    ("instead", "reason"), [("crash", PROGRAM_FAILED), ("allocate", OUT_OF_MEMORY)]
)
def test_what_takes_too_much_takes_its_process_only(good, taken_over, monkeypatch, instead, reason):
    async def scene():
        blobs = MemoryBlobs()
        limits = dataclasses.replace(LIMITS, memory_mib=64)
        updates = ServerUpdates(blobs, "reference", limits)
        taken_over(instead)
        first = await (await asked(updates, blobs, good, 1))
        await updates.close()
        monkeypatch.undo()
        updates = ServerUpdates(blobs, "reference")
        second = await (await asked(updates, blobs, good, 2))
        await updates.close()
        return first, second

    first, second = run(scene())
    assert first == ProgramStopped(reason)
    assert isinstance(second, NewModel)


@pytest.mark.parametrize("with_walls", [True, False])
def test_an_update_that_has_taken_over_its_process_reaches_nothing_else(
    good, taken_over, tmp_path, with_walls
):
    if with_walls and (absent := walls.lacking()):
        pytest.skip(f"this kernel has no {' and no '.join(absent)}")

    async def scene():
        blobs = FolderBlobs(tmp_path / "blobs", 1 << 30)
        weights = await blobs.put(good.weights.tobytes())
        taken_over("try", with_walls, str(blobs.path(weights.digest)))
        updates = ServerUpdates(blobs, "reference")
        outcome = await (await asked(updates, blobs, good, 1))
        await updates.close()
        assert isinstance(outcome, NewModel)
        said = np.frombuffer(await blobs.read(outcome.weights.digest), "<f4")
        await blobs.close()
        return dict(zip(_hostile.NAMES, map(int, said), strict=False))

    said = run(scene())
    assert len(said) == len(_hostile.NAMES)
    if with_walls:
        assert {name: number for name, number in said.items() if number not in REFUSED} == {}
    else:
        assert {name for name, number in said.items() if number == 0} >= _hostile.COMMON


def test_where_a_sandbox_is_required_and_absent_no_update_runs(monkeypatch):
    required = dataclasses.replace(LIMITS, sandbox="require")
    with pytest.raises(DelianError, match="without a sandbox"):
        ServerUpdates(MemoryBlobs(), "torch:cpu", required)
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(DelianError, match="no landlock"):
        ServerUpdates(MemoryBlobs(), "native", required)
