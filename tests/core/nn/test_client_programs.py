"""Layers, schedules and chained optimisers inside the programs of a bundle: a small federation of
two devices, its server on Yogi, trains a normalised convolution network.
"""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
from delian import nn
from delian.core import bundle as bundles
from delian.core.ir import DType, TensorType
from delian.core.learn import Classification, FedAvg, Samples, SampleSet
from delian.core.learn.build import build
from delian.core.privacy import ring
from delian.core.runtime import Runtime


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
    runtime = Runtime(bundles.parse(made.to_bytes()))
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
