"""Regression: errors by hand, what a bundle of it judges by, and algorithms that know it only as a
task.
"""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Batch, Classification, FedAvg, Maml, Regression, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime
from delian.core.learning.task import Task

KEY = np.array([0, 7], np.uint32)


@dl.module
class Line:
    """x @ w."""

    w: Any

    def __call__(self, x: Any, weight: Any) -> Any:
        return x @ self.w


def line(outputs: int) -> Regression:
    return Regression("line", lambda key: Line(np.ones((2, outputs), np.float32)), Samples(4, 1.0))


def test_the_loss_is_the_mean_squared_error_of_the_rows_that_count() -> None:
    x = np.array([[1, 2], [0, 1], [5, 5]], np.float32)
    batch = Batch(x, np.array([2, 4, 0], np.float32), np.array([1, 1, 0], np.float32))
    model = Line(np.ones((2, 1), np.float32))  # gives 3, 1, 10
    task = line(1)
    assert float(task.loss(model, batch)) == (1 + 9) / 2
    judged = task.metrics(model, batch)
    assert [float(v) for v in judged[:3]] == [10.0, 1 + 3, 2.0]
    assert judged.more == ()


def test_a_row_of_several_numbers_counts_as_one() -> None:
    x = np.array([[1, 0], [0, 2]], np.float32)
    y = np.array([[0, 3, 1], [2, 2, 2]], np.float32)
    batch, task = Batch(x, y, np.ones(2, np.float32)), line(3)
    model = Line(np.ones((2, 3), np.float32))  # gives three 1 and three 2
    squares, absolutes, rows, _ = task.metrics(model, batch)
    np.testing.assert_allclose(float(squares), (1 + 4 + 0) / 3)
    np.testing.assert_allclose(float(absolutes), (1 + 2 + 0) / 3)
    assert float(rows) == 2
    np.testing.assert_allclose(float(task.loss(model, batch)), (5 / 3) / 2)


def test_no_row_gives_no_loss() -> None:
    batch = Batch(np.ones((2, 2), np.float32), np.ones(2, np.float32), np.zeros(2, np.float32))
    assert float(line(1).loss(Line(np.ones((2, 1), np.float32)), batch)) == 0.0


def sinusoid_rows(support: int, query: int) -> SampleSet:
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, (16, 1)).astype(np.float32)
    return SampleSet(x, np.sin(x[:, 0]), np.array(support), np.array(query))


def test_a_bundle_of_a_regression_learns_and_judges_by_errors() -> None:
    data = sinusoid_rows(10, 6)
    task = Regression("sine", lambda key: Mlp.init(key, 1, (16,), 1), Samples(10, 1.0))
    bundle = build(
        task,
        FedAvg(epochs=300, local=sgd(0.1)),
        data,
        example=TensorType(DType.F32, (4, 1)),
        clip=100.0,
        clients_max=2,
        weight_max=10.0,
        seed=1,
    )
    runtime = Runtime(bundle, "reference")
    before = runtime.evaluate(bundle.weights, data, KEY)
    rows = slice(10, 16)
    said = np.asarray(
        runtime.programs["infer"](
            *runtime.views(bundle.weights, bundle.manifest.state), data.x[rows][:4]
        )[0]
    )
    assert said.shape == (4, 1)
    assert before.count == 6
    own = runtime.personalise(bundle.weights, data, KEY)
    assert runtime.evaluate(own, data, KEY).loss < before.loss
    update = runtime.client_update(bundle.weights, data, KEY)
    assert update.finite and update.loss < 0.2


def test_maml_of_a_regression_is_the_derivative_through_the_adaptation() -> None:
    """w' = w - a dL(w); the slope of L(w') with respect to w, by hand: x and y are numbers."""
    task = Regression("one", lambda key: Line(np.ones((1, 1), np.float32)), Samples(1, 1.0))
    data = SampleSet(
        np.array([[2.0], [3.0]], np.float32),
        np.array([1.0, 5.0], np.float32),
        np.array(2),
        np.array(0),
    )
    order = task.source.order(data, KEY)
    (i, j), a, w = np.asarray(order)[:2], 0.01, 1.0
    (xi, yi), (xj, yj) = [(float(data.x[k, 0]), float(data.y[k])) for k in (i, j)]
    adapted = w - a * 2 * xi * (xi * w - yi)
    wanted = 2 * xj * (xj * adapted - yj) * (1 - a * 2 * xi * xi)
    algorithm = Maml(inner_learning_rate=a)
    state = task.init(KEY)
    loss, found = dl.compile(lambda s: algorithm.gradient(task, s, s, data, order, 0))(state)
    np.testing.assert_allclose(float(loss), (xj * adapted - yj) ** 2, rtol=1e-5)
    np.testing.assert_allclose(float(found.w[0, 0]), wanted, rtol=1e-5)


def test_both_tasks_keep_the_protocol() -> None:
    kept: list[Task] = [line(1), Classification("c", line(1).init, Samples(4, 1.0))]
    assert [task.name for task in kept] == ["line", "c"]
