"""iMAML: a quadratic's implicit gradient by hand, and a network's by finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_function
from delian.core.learning import Batch, Classification, IMaml, Samples, SampleSet
from delian.core.learning.nn import Mlp, sgd

START = (np.array([3.0], np.float32), np.array([1.0], np.float32))
CURVATURE, MINIMUM, PENALTY = np.array([1.0, 4.0]), np.array([0.5, -2.0]), 2.0


@dataclass(frozen=True)
class Bowl(Classification):
    """1/2 sum of x (w - y)^2, the mean over rows: curvatures x and a minimum at y, both f32[2]."""

    def loss(self, model: Any, batch: Batch) -> Any:
        w = np.concatenate(model)
        rows = 0.5 * np.sum(batch.x * (w - batch.y) ** 2, axis=1)
        return np.sum(rows * batch.weight) / np.maximum(np.sum(batch.weight), 1.0)


TASK = Bowl("bowl", lambda key: START, Samples(4, 1.0))


def device(minimum: np.ndarray) -> SampleSet:
    x, y = (np.tile(each.astype(np.float32), (4, 1)) for each in (CURVATURE, minimum))
    return SampleSet(x, y, np.array(4), np.array(0))


def run(function: Any, *arguments: Any) -> Any:
    traced = dl.trace(function, *arguments)
    program = compile_function(traced.function, "reference")
    results = program(*(np.asarray(leaf) for leaf in dl.tree.leaves(arguments)))
    return dl.tree.unflatten(traced.out_structure, [np.asarray(each) for each in results])


def update(algorithm: IMaml, data: SampleSet) -> Any:
    return run(
        lambda s, d, k: algorithm.client_update(TASK, s, d, k), START, data, dl.random.key(0)
    )


def test_the_gradient_of_a_quadratic_is_that_through_its_minimum() -> None:
    """phi = (c y + lambda theta) / (c + lambda), and d phi / d theta = lambda / (c + lambda)."""
    theta = np.concatenate(START)
    phi = (CURVATURE * MINIMUM + PENALTY * theta) / (CURVATURE + PENALTY)
    slope = CURVATURE * (phi - MINIMUM)
    wanted = slope * PENALTY / (CURVATURE + PENALTY)
    algorithm = IMaml(
        local=sgd(0.1), inner_steps=100, inner_learning_rate=0.15, penalty=PENALTY, cg_steps=2
    )
    found = update(algorithm, device(MINIMUM))
    np.testing.assert_allclose(np.concatenate(found.update), -0.1 * wanted, rtol=1e-5)
    np.testing.assert_allclose(
        found.loss, 0.5 * np.sum(CURVATURE * (phi - MINIMUM) ** 2), rtol=1e-5
    )


def test_one_step_of_conjugate_gradients_is_along_the_slope() -> None:
    algorithm = IMaml(local=sgd(0.1), inner_steps=100, inner_learning_rate=0.15, cg_steps=1)
    theta = np.concatenate(START)
    phi = (CURVATURE * MINIMUM + PENALTY * theta) / (CURVATURE + PENALTY)
    slope = CURVATURE * (phi - MINIMUM)
    length = slope @ slope / (slope @ ((1 + CURVATURE / PENALTY) * slope))
    found = update(algorithm, device(MINIMUM))
    np.testing.assert_allclose(np.concatenate(found.update), -0.1 * length * slope, rtol=1e-5)


def test_at_the_minimum_nothing_moves() -> None:
    found = update(IMaml(local=sgd(0.1)), device(np.concatenate(START)))
    np.testing.assert_array_equal(np.concatenate(found.update), [0.0, 0.0])


def test_a_network_s_gradient_is_that_of_the_loss_after_its_adaptation() -> None:
    """Along a random direction, by a difference of query losses after converged adaptations."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)
    support, query = (Batch(x[i], y[i], np.ones(4, np.float32)) for i in (slice(4), slice(4, 8)))
    task = Classification("few", lambda key: Mlp.init(key, 3, (5,), 3), Samples(4, 1.0))
    algorithm = IMaml(inner_steps=100, inner_learning_rate=0.2, penalty=2.0, cg_steps=20)
    start = task.init(dl.random.key(3))
    direction = dl.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), dl.tree.map(np.asarray, start)
    )

    def after(at: Any) -> Any:
        return task.loss(algorithm.adapt(task, at, support), query)

    def implicit(at: Any) -> Any:
        model = algorithm.adapt(task, at, support)
        return algorithm.implicit(task, model, support, dl.grad(task.loss)(model, query))

    slope = run(implicit, start)
    size = np.float32(1e-2)

    def at(length: np.float32) -> float:
        return float(run(after, dl.tree.map(lambda w, d: w + length * d, start, direction)))

    pairs = zip(dl.tree.leaves(slope), dl.tree.leaves(direction), strict=True)
    along = sum(float(np.sum(a * b)) for a, b in pairs)
    np.testing.assert_allclose(along, (at(size) - at(-size)) / (2 * size), rtol=1e-2)


def test_there_is_no_first_order_form() -> None:
    with pytest.raises(DelianError, match="no first-order form"):
        IMaml(first_order=True)
