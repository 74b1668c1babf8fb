"""A cohort of devices as one program gives what each device gives alone."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from delian.core import learning
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.compiler.backends import Backend
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.cohort_program import Cohort, GatheringRuntime, Member
from delian.core.learning.runtime import Runtime

CAPACITY, CLASSES = 12, 3


def data(seed: int, examples: int) -> SampleSet:
    """Some examples, and room for more."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(CAPACITY, 6, 6, 1)).astype(np.float32)
    y = rng.integers(0, CLASSES, CAPACITY)
    return SampleSet(x, y, np.array(examples, np.int64), np.array(0, np.int64))


@functools.cache
def bundle(model: str, kept: bool = False) -> Any:
    def init(key: Any) -> Any:
        if model == "mlp":
            return nn.Mlp.init(key, 36, (8,), CLASSES)
        return nn.FedAvgCnn.init(key, 6, 6, 1, CLASSES)

    return build(
        Classification("cohort", init, Samples(4, 1.0)),
        learning.Scaffold() if kept else learning.FedAvg(),
        data(0, CAPACITY),
        example=TensorType(DType.F32, (4, 6, 6, 1)),
        clip=10.0,
        clients_max=8,
        weight_max=float(CAPACITY),
        seed=3,
    )


def agree(made: Any, backend: Backend, alone: Backend = "native", **how: Any) -> None:
    runtime = Runtime(made, alone)
    cohort = Cohort(runtime, 3, backend, **how)
    # Of different sizes, so that lanes end at different steps; five are two calls.
    members = [Member(data(k, 12 - 2 * k), random.key(k)) for k in range(5)]
    found = cohort.updates(made.weights, members)
    assert len(found) == len(members)
    for update, member in zip(found, members, strict=True):
        own = runtime.client_update(made.weights, member.data, member.key)
        assert update.finite and own.finite
        np.testing.assert_allclose(update.loss, own.loss, rtol=1e-5)
        apart = (update.vector - own.vector).astype(np.int32) / runtime.ring.scale
        np.testing.assert_allclose(apart, 0, atol=1e-4)
        np.testing.assert_allclose(update.kept, own.kept, atol=1e-4)


@pytest.mark.parametrize("convolutions", ["patches", "grouped", "loop"])
def test_lanes_of_a_cnn_on_the_reference(convolutions: Any) -> None:
    agree(bundle("cnn"), "reference", "reference", convolutions=convolutions)


def test_a_device_s_result_does_not_depend_on_the_others() -> None:
    made = bundle("mlp")
    cohort = Cohort(Runtime(made, "reference"), 3, "reference")
    members = [Member(data(k, 12 - 2 * k), random.key(k)) for k in range(3)]
    together = cohort.updates(made.weights, members)
    (alone,) = cohort.updates(made.weights, members[:1])
    assert together[0].vector.tobytes() == alone.vector.tobytes()


def test_lanes_of_a_cnn_by_torch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    agree(bundle("cnn"), "torch:cpu", "reference")


def test_lanes_that_keep_a_client_state_by_torch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    agree(bundle("mlp", kept=True), "torch:cpu", "reference")


def test_threads_that_ask_at_once_are_one_cohort() -> None:
    made = bundle("mlp")
    gathering = GatheringRuntime(made, "reference", size=4, rest="reference")
    ran: list[int] = []
    updates = gathering._cohort.updates
    gathering._cohort.updates = lambda state, members: (  # type: ignore[method-assign]
        ran.append(len(members)) or updates(state, members)  # type: ignore[func-returns-value]
    )
    alone = Runtime(made, "reference")
    members = [Member(data(k, 12 - k), random.key(k)) for k in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(lambda m: gathering.client_update(made.weights, m.data, m.key), members)
        )
    for update, member in zip(found, members, strict=True):
        own = alone.client_update(made.weights, member.data, member.key)
        apart = (update.vector - own.vector).astype(np.int32) / alone.ring.scale
        np.testing.assert_allclose(apart, 0, atol=1e-4)
    assert sum(ran) == 6 and len(ran) < 6 and max(ran) <= 4


def test_what_fails_in_a_cohort_is_told_to_each_that_waits() -> None:
    made = bundle("mlp")
    gathering = GatheringRuntime(made, "reference", size=2, rest="reference")
    with pytest.raises(DelianError, match="a state of"):
        gathering.client_update(made.weights[:-1], data(0, 12), random.key(0))
    fine = gathering.client_update(made.weights, data(0, 12), random.key(0))
    assert fine.finite


def test_lanes_by_cuda() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA GPU here")
    agree(bundle("cnn"), "torch:cuda+graphs", "reference")
