"""Bundles of runs with noise: their programs keep the plan that the promise takes."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning import bundle as bundles
from delian.core.learning.aggregate import chains
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime
from delian.core.privacy.mechanisms import noise_mechanism, ring
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget

KEY = random.key(5)
PROMISE = PrivacyTarget(epsilon=4.0, delta=1e-6, releases=10, survivors=6, corrupt=0.1)


def rows(count):
    rng = np.random.default_rng(count)
    x, y = rng.normal(size=(40, 8)), rng.integers(0, 3, 40)
    return SampleSet(x.astype(np.float32), y.astype(np.int32), np.int64(count), np.int64(0))


def make(promise=None, rotated=False):
    turned = "rotate |" if rotated else ""
    noised = f"noise({promise.epsilon}, {promise.delta}) | mask(corrupt=0.1) |" if promise else ""
    task = Classification("tiny", lambda key: Mlp.init(key, 8, (), 3), Samples(8, 1.0))
    return build(
        task,
        FedAvg(epochs=3, local=sgd(0.5)),
        rows(1),
        example=TensorType(DType.F32, (2, 8)),
        chain=chains.read(f"clip(0.5) | {turned} quantise | {noised} mean"),
        clients_max=8,
        weight_max=40.0,
        seed=1,
        releases=PROMISE.releases,
        survivors=PROMISE.survivors,
    )


@pytest.mark.parametrize("rotated", [False, True])
def test_updates_of_a_run_with_noise_pass_the_device_s_own_check(rotated):
    made = bundles.parse(make(PROMISE, rotated).to_bytes())
    plan = made.manifest.ring
    assert PROMISE.is_kept(plan) and plan.rotated == rotated
    runtime = Runtime(made)
    for count in (1, 5, 40):
        update = runtime.client_update(made.weights, rows(count), KEY)
        assert update.vector.shape == (plan.length,)
        noise_mechanism.guard(update.vector, plan)


def test_without_a_promise_there_is_no_noise_and_weights_count():
    made = make()
    assert made.manifest.ring == ring.RingPlan(0.5, 8, made.manifest.dimension)
    few, many = (Runtime(made).client_update(made.weights, rows(n), KEY).vector for n in (10, 40))
    assert int(few[-1]) * 4 == int(many[-1])


def test_the_noised_mean_of_real_updates_is_what_the_server_gets():
    made = make(PROMISE, rotated=True)
    runtime, plan = Runtime(made), made.manifest.ring
    exact, noised = ring.zeros(plan), ring.zeros(plan)
    for device in range(8):
        vector = runtime.client_update(made.weights, rows(device + 1), KEY).vector
        ring.add(exact, vector)
        noise_mechanism.add(vector, plan, bytes([device]) * 32)
        ring.add(noised, vector)
    truth, _ = ring.decode(exact, plan)
    mean, weight = ring.decode(noised, plan)
    assert weight == 8 and mean.shape == (made.manifest.dimension,)
    deviation = plan.clip * plan.noise / np.sqrt(8)
    assert 0.5 < np.std(mean - truth) / deviation < 2.0


def test_a_manifest_of_before_there_was_noise_is_read():
    made = make()
    with zipfile.ZipFile(io.BytesIO(made.to_bytes())) as archive:
        body = json.loads(archive.read("manifest.json"))
    for name in ("noise", "central", "rotated"):
        del body[name]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {"manifest.json": json.dumps(body).encode(), **made.parts()}.items():
            archive.writestr(name, content)
    assert bundles.parse(buffer.getvalue()).manifest == made.manifest
