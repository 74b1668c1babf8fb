"""Layers, schedules and chained optimisers inside the programs of a bundle: a small federation of
two devices, its server on Yogi, trains a normalised convolution network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
from delian import nn
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning import bundle as bundles
from delian.core.learning.algorithm import ClientResult
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.runtime import Runtime
from delian.core.privacy.mechanisms import ring


def model(key: Any) -> Any:
    keys = dl.random.split(key, 4)
    relu = nn.Function(dl.ops.relu)
    body = nn.Sequential((nn.DepthwiseConv.init(keys[1], 3, 8), nn.GroupNorm.init(8, 2), relu))
    stem = nn.Conv.init(keys[0], 3, 1, 8, stride=2, weights=nn.initialise.he_normal)
    head = nn.Dense.init(keys[2], 8, 3)
    return nn.Sequential((stem, nn.BatchNorm.init(8), nn.Residual(body), nn.GlobalAvgPool(), head))


def device(seed: int) -> SampleSet:
    """Rows whose label is where they are bright."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 16)
    x = rng.integers(0, 60, (16, 6, 6, 1)).astype(np.uint8)
    for row, label in enumerate(y):
        x[row, 2 * label : 2 * label + 2, ::2] += 150
    return SampleSet(x, y.astype(np.int32), np.array(12), np.array(4))


@dataclass(frozen=True)
class FedBn(FedAvg):
    """Normalisation stays on the device (Li et al. 2021)."""

    def client_state(self, task: Any, state: Any) -> Any:
        return self.personal(state)

    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        marks = nn.within(state, nn.BatchNorm, nn.GroupNorm)
        start = dl.tree.map(lambda shared, own, on: own if on else shared, state, kept, marks)
        end, loss = self.descend(task, start, start, data, key)
        change = dl.tree.map(lambda a, b, on: np.zeros_like(a) if on else a - b, end, start, marks)
        return ClientResult(change, self.weight(data), loss, self.personal(end))

    def personal(self, model: Any) -> Any:
        """The model with zeros where it is shared."""
        marks = nn.within(model, nn.BatchNorm, nn.GroupNorm)
        return dl.tree.map(lambda p, on: p if on else np.zeros_like(p), model, marks)


def test_normalisation_may_stay_on_the_device():
    data = device(3)
    made = build(
        Classification("bright", model, Samples(4, 1 / 255)),
        FedBn(epochs=1, local=nn.adam(0.01)),
        data,
        example=TensorType(DType.F32, (2, 6, 6, 1)),
        clip=50.0,
        clients_max=1,
        weight_max=12.0,
        seed=1,
    )
    runtime = Runtime(made, "reference")
    key = dl.random.key(0)
    first = runtime.client_update(made.weights, data, key)
    change, _ = ring.decode(first.vector, runtime.ring)
    first_model = model(dl.random.key(1))
    marks = dl.tree.leaves(nn.within(first_model, nn.BatchNorm, nn.GroupNorm))
    sizes = [leaf.size for leaf in dl.tree.leaves(first_model)]
    personal = np.repeat(marks, sizes)
    assert not change[personal].any() and change[~personal].any()
    moved = first.kept != runtime.client_state(made.weights)
    assert moved[personal].all() and not moved[~personal].any()


def test_a_federation_of_two_devices_learns():
    local = nn.chain(
        nn.clip_by_global_norm(1.0),
        nn.adamw(nn.schedules.warm_up(2, nn.schedules.cosine(0.01, 20)), 0.01),
    )
    devices = [device(1), device(2)]
    made = build(
        Classification("bright", model, Samples(4, 1 / 255)),
        FedAvg(epochs=2, local=local, server=nn.yogi(0.02)),
        devices[0],
        example=TensorType(DType.F32, (2, 6, 6, 1)),
        clip=5.0,
        clients_max=4,
        weight_max=12.0,
        seed=1,
    )
    runtime = Runtime(bundles.parse(made.to_bytes()), "reference")
    state, memory, losses = made.weights, runtime.memory(), []
    for round_ in range(4):
        key = dl.random.key(round_)
        updates = [runtime.client_update(state, data, key) for data in devices]
        assert all(u.finite for u in updates)
        losses.append(sum(u.loss for u in updates))
        total = sum((u.vector for u in updates), np.zeros_like(updates[0].vector))
        mean, _ = ring.decode(total, runtime.ring)
        state, memory = runtime.server_update(state, memory, mean)
    assert losses[-1] < 0.9 * losses[0]
