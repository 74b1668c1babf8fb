"""The server update as the coordinator runs it: the same bytes as the runtime, or a reason."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from delian.cloud.service.updates import ServerUpdates
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, Scaffold
from delian.core.learning.aggregate.robust import Combination
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.learning.runtime import Runtime
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.privacy.secagg import masks
from delian.core.protocol.ports import NewModel, Outcome, ProgramStopped, RunProgram
from delian.core.wire.operator_pb2 import MEDIAN
from delian.core.wire.round_pb2 import BAD_BUNDLE, NON_FINITE, PROGRAM_FAILED


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return made(FedAvg(local=sgd(0.1), server=adam(0.01), personal_steps=1, epochs=1))


def made(algorithm) -> Bundle:
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        algorithm,
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )


async def updated(bundle, means, *, content=None, backend="reference", weight=1.0):
    """The outcome of one update after another, each from what the one before gave."""
    blobs = MemoryBlobs()
    updates = ServerUpdates(blobs, backend)
    programs = await blobs.put(bundle.bare().to_bytes() if content is None else content)
    weights, memory, outcomes = await blobs.put(bundle.weights.tobytes()), None, []
    for ticket, mean in enumerate(means):
        names = [programs.digest, weights.digest, *([memory.digest] if memory else [])]
        outcome = await updates.run(
            RunProgram(ticket, "server_update", tuple(names), (mean, weight))
        )
        outcomes.append(outcome)
        if isinstance(outcome, NewModel):
            weights, memory = outcome.weights, outcome.memory
    await updates.close()
    return outcomes, blobs


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


def test_updates_in_a_row_are_those_of_the_runtime(bundle):
    rng = np.random.default_rng(1)
    means = [rng.random(bundle.manifest.dimension, np.float32) - 0.5 for _ in range(3)]
    outcomes, blobs = run(updated(bundle, means))
    runtime = Runtime(bundle, "reference")
    state, memory = bundle.weights, runtime.memory()
    for mean, outcome in zip(means, outcomes, strict=True):
        state, memory = runtime.server_update(state, memory, mean)
        assert blobs.contents[outcome.weights.digest] == state.tobytes()
        assert blobs.contents[outcome.memory.digest] == runtime.memory_bytes(memory)
    again, _ = run(updated(bundle, means))
    assert again == outcomes


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_an_update_is_told_the_sum_of_weights(weight):
    bundle = made(Scaffold(fleet=40))
    mean = np.full(bundle.manifest.dimension, 0.25, np.float32)
    (outcome,), blobs = run(updated(bundle, [mean], weight=weight))
    runtime = Runtime(bundle, "reference")
    state, _ = runtime.server_update(bundle.weights, runtime.memory(), mean, weight=weight)
    assert blobs.contents[outcome.weights.digest] == state.tobytes()


def test_a_rule_in_the_mean_s_place_is_worked_out_on_the_update_s_thread(bundle, monkeypatch):
    plan, threads = RingPlan(10.0, 8, bundle.manifest.dimension), []
    vectors = [np.full(plan.length, step, np.uint32) for step in (1000, 2000, 9000)]
    for vector in vectors:
        vector[-1] = int(plan.weight_scale)
    combination, _ = Combination.of(vectors, plan, MEDIAN, 0.0)
    plain = Combination.update

    def noted(self):
        threads.append(threading.current_thread())
        return plain(self)

    monkeypatch.setattr(Combination, "update", noted)
    mean = np.full(bundle.manifest.dimension, 2000 / plan.scale, np.float32)
    by_rule, _ = run(updated(bundle, [combination]))
    by_mean, _ = run(updated(bundle, [mean]))
    assert by_rule == by_mean
    assert threads and threading.main_thread() not in threads


def test_a_bundle_that_does_not_verify_stops_the_update(bundle):
    mean = np.zeros(bundle.manifest.dimension, np.float32)
    damaged = bytearray(bundle.bare().to_bytes())
    damaged[len(damaged) // 2] ^= 1
    for content in (b"no bundle", bytes(damaged)):
        outcomes, _ = run(updated(bundle, [mean], content=content))
        assert outcomes == [ProgramStopped(BAD_BUNDLE)]


def test_a_mean_that_does_not_fit_or_is_not_finite_gives_no_model(bundle):
    short = np.zeros(bundle.manifest.dimension - 1, np.float32)
    endless = np.full(bundle.manifest.dimension, np.inf, np.float32)
    outcomes, blobs = run(updated(bundle, [short, endless]))
    assert outcomes == [ProgramStopped(PROGRAM_FAILED), ProgramStopped(NON_FINITE)]
    assert len(blobs.contents) == 2


@pytest.mark.parametrize("suite", [1, 2])
def test_it_takes_masks_out_of_a_sum_and_leaves_the_masked_one(suite):
    plain = np.arange(7, dtype=np.uint32)
    keys = [(bytes([number]) * 32, sign) for number, sign in ((1, 1), (2, -1), (3, 1))]
    total = plain.copy()
    masks.add(total, [(key, -sign) for key, sign in keys], suite)
    before = total.copy()

    async def unmasked():
        updates = ServerUpdates(MemoryBlobs(), "reference")
        outcome = await updates.run(RunProgram(1, "unmask", (), (total, keys, suite)))
        await updates.close()
        return outcome

    outcome = asyncio.run(unmasked())
    assert isinstance(outcome, Outcome)
    np.testing.assert_array_equal(outcome.vector, plain)
    np.testing.assert_array_equal(total, before)
