"""Adapters on a frozen base in few bits, as a bundle's programs train them."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.ops import QuantisedWeight
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, adapters
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.runtime import Runtime

SYMBOLS, STEPS, WIDTH = 100, 6, 64
KEY = np.array([1, 2], np.uint32)


def device() -> SampleSet:
    x = np.random.default_rng(0).integers(0, SYMBOLS, (6, STEPS)).astype(np.int32)
    return SampleSet(x, np.roll(x, -1, 1), np.array(4, np.int64), np.array(2, np.int64))


def runtime(base: Any) -> Runtime:
    model = dl.lora(base, 2, ("query", "value"), 4.0)
    made = build(
        Classification("decoder", lambda key: model, Samples(2, 1.0)),
        FedAvg(local=nn.sgd(0.1)),
        device(),
        example=TensorType(DType.I32, (2, STEPS)),
        clients_max=2,
        weight_max=8.0,
        seed=0,
        clip=1.0,
        roles=Roles(frozen=adapters.adapter_roles(model)),
    )
    return Runtime(made, "reference")


def expanded(model: Any) -> Any:
    """The same model with its weights in f32."""
    nodes, structure = dl.tree.flatten(model, lambda node: isinstance(node, QuantisedWeight))
    wide = [np.asarray(n.expanded()) if isinstance(n, QuantisedWeight) else n for n in nodes]
    return dl.tree.unflatten(structure, wide)


@pytest.mark.parametrize(("kind", "dtype"), [("i8", "i8"), ("i4", "u8"), ("bf16", "bf16")])
def test_they_train_as_on_the_same_numbers_in_f32(kind: str, dtype: str) -> None:
    base = nn.quantised(nn.decoder(dl.random.key(0), SYMBOLS, WIDTH, 1, 4), kind)
    few, wide = runtime(base), runtime(expanded(base))
    assert dtype in {leaf.dtype for leaf in few.manifest.frozen}
    assert [leaf.name for leaf in few.manifest.state] == [leaf.name for leaf in wide.manifest.state]
    size = [sum(part.size for part in each.manifest.frozen_parts) for each in (few, wide)]
    assert size[0] < 0.6 * size[1]
    found, wanted = (r.client_update(r.bundle.weights, device(), KEY) for r in (few, wide))
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    # The same up to the rounding of sums in another order, and that into the ring.
    scale = few.ring.scale
    np.testing.assert_allclose(
        found.vector.view(np.int32) / scale, wanted.vector.view(np.int32) / scale, atol=2e-5
    )
    assert np.any(found.vector)
