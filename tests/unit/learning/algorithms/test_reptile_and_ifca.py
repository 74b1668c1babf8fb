"""Reptile, and IFCA where devices choose unevenly, beside implementations in NumPy that share no
line with them: linear regression, whose gradient is written by hand in float64.
"""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.learning import Ifca, Regression, Reptile, Samples, SampleSet
from delian.core.learning.nn import sgd
from support.exact_rounds import compiled

FEATURES, CAPACITY = 3, 12
ROWS = (12, 5, 7, 3, 9)


def devices(truths: list[Any], noise: float = 0.0) -> list[SampleSet]:
    """Device d has ROWS[d] rows of y = x @ truths[d] + noise, and filling that nobody may read."""
    made = []
    for d, truth in enumerate(truths):
        rng = np.random.default_rng([d, 5])
        x = rng.normal(size=(CAPACITY, FEATURES)).astype(np.float32)
        y = (x @ truth + noise * rng.normal(size=CAPACITY)).astype(np.float32)
        x[ROWS[d] :], y[ROWS[d] :] = 1e6, -1e6
        made.append(SampleSet(x, y, np.array(ROWS[d]), np.array(0)))
    return made


def task(batch_size: int) -> Regression:
    return Regression("linear", first, Samples(batch_size, 1.0))


@dl.module
class Line:
    """x @ w."""

    w: Any

    def __call__(self, x: Any, weight: Any) -> Any:
        return x @ self.w


def first(key: Any) -> Line:
    return Line(dl.random.normal(key, FEATURES))


def loss(w: Any, x: Any, y: Any) -> float:
    return float(np.mean((x @ w - y) ** 2))


def slope(w: Any, x: Any, y: Any) -> Any:
    return 2 * x.T @ (x @ w - y) / len(x)


def real(data: SampleSet) -> tuple[Any, Any]:
    rows = int(data.support)
    return data.x[:rows].astype(np.float64), data.y[:rows].astype(np.float64)


def rounds(algorithm: Any, learnt: Any, state: Any, cohorts: list[list[SampleSet]]) -> Any:
    """The states after each round of these cohorts, by the algorithm's own programs; device d of
    round r has the key (r, d).
    """
    state = dl.tree.map(np.asarray, state)
    memory = dl.tree.map(np.asarray, algorithm.memory(state))
    key = np.zeros(2, np.uint32)
    client = compiled(
        lambda s, d, k: algorithm.client_update(learnt, s, d, k)[:2], state, cohorts[0][0], key
    )
    server = compiled(algorithm.server_update, state, memory, state)
    states = []
    for r, cohort in enumerate(cohorts):
        sent = [client(state, data, np.array([r, d], np.uint32)) for d, data in enumerate(cohort)]
        weights = np.array([float(weight) for _, weight in sent])
        mean = dl.tree.map(
            lambda *parts, weights=weights: np.float32(np.average(parts, axis=0, weights=weights)),
            *(update for update, _ in sent),
        )
        state, memory = server(state, memory, mean)
        states.append(state)
    return states


@pytest.mark.parametrize("epsilon", [1.0, 0.3])
def test_reptile(epsilon: float) -> None:
    """Algorithm 2: k steps on batches of the task, round and round; every task weighs the same; the
    server goes epsilon of the way to the mean of where they end.
    """
    rate, k, batch = 0.05, 7, 4
    data = devices([np.arange(FEATURES) - d for d in range(len(ROWS))], noise=0.3)
    learnt = task(batch)
    cohorts = [data[:3], data[1:], data]
    algorithm = Reptile(inner_steps=k, local=sgd(rate), server=sgd(epsilon))
    start = first(dl.random.key(4))

    phi, wanted = np.asarray(start.w, np.float64), []
    for r, cohort in enumerate(cohorts):
        ends = []
        for d, device in enumerate(cohort):
            x, y = real(device)
            pass_key = dl.random.fold_in(np.array([r, d], np.uint32), 0)
            order = np.asarray(learnt.source.order(device, pass_key))[: len(x)]
            w = phi
            for step in range(k):
                taken = [order[(step * batch + i) % len(x)] for i in range(min(batch, len(x)))]
                w = w - rate * slope(w, x[taken], y[taken])
            ends.append(w)
        phi = phi + epsilon * (np.mean(ends, axis=0) - phi)
        wanted.append(phi)

    found = rounds(algorithm, learnt, start, cohorts)
    for state, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(state.w, right, rtol=2e-5, atol=2e-5)
    assert np.abs(wanted[-1] - wanted[0]).max() > 0.01


def test_ifca_where_devices_choose_unevenly_and_change_their_minds() -> None:
    """Algorithm 1, option II, with three models: in the first round four devices of five choose one
    of them and nobody another; a device that joins later makes the third of use. The mean of those
    who chose a model weighs them by their rows.
    """
    rate, passes = 0.05, 3
    truths = [np.array(t, np.float64) for t in ([2, 0, 0], [2, 1, 0], [2, 0, 1], [-3, 0, 0])]
    data = devices([*truths, np.array([0.0, 8.0, 0.0])], noise=0.1)
    learnt = task(CAPACITY)
    cohorts = [data[:4], data[:4], data, data, data[1:]]
    algorithm = Ifca(epochs=passes, local=sgd(rate), clusters=3)
    start = [np.array(w, np.float32) for w in ([1, 0, 0], [-1, 0, 0], [0, 9, 0])]

    models, wanted, chosen = [w.astype(np.float64) for w in start], [], []
    for cohort in cohorts:
        joined: list[list[tuple[int, Any]]] = [[], [], []]
        for device in cohort:
            x, y = real(device)
            j = int(np.argmin([loss(w, x, y) for w in models]))
            w = models[j]
            for _ in range(passes):
                w = w - rate * slope(w, x, y)
            joined[j].append((len(x), w))
        for j, members in enumerate(joined):
            if members:
                rows = sum(n for n, _ in members)
                models[j] = sum(n * w for n, w in members) / rows
        wanted.append(list(models))
        chosen.append([len(members) for members in joined])
    assert chosen[0] == [3, 1, 0] and chosen[2] == [3, 1, 1]

    state = algorithm.init(learnt, dl.random.key(0))._replace(models=tuple(Line(w) for w in start))
    found = rounds(algorithm, learnt, state, cohorts)
    for state, right in zip(found, wanted, strict=True):
        for model, w in zip(state.models, right, strict=True):
            np.testing.assert_allclose(model.w, w, rtol=5e-5, atol=5e-5)
