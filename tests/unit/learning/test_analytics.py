"""Queries over devices' data against NumPy on all of the data in one place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples, SampleSet
from delian.core.learning.analytics import HeavyHitters, Histogram, Moments, Quantiles
from delian.core.learning.build.bundle_builder import build

ROWS, CAPACITY, FEATURES, CLASSES = (7, 20, 13), 20, 4, 5


def devices(seed: int = 0, items: int = CLASSES) -> list[SampleSet]:
    rng = np.random.default_rng(seed)
    made = []
    for rows in ROWS:
        x = np.full((CAPACITY, FEATURES), 99.0, np.float32)  # beyond the rows nobody may look
        y = np.full(CAPACITY, CLASSES - 1, np.int32)
        x[:rows] = rng.uniform(0, 1, (rows, FEATURES))
        y[:rows] = rng.integers(0, items, rows)
        made.append(SampleSet(x, y, np.array(rows - 2), np.array(2)))
    return made


def ask(query: Any, data: list[SampleSet], rounds: int = 1) -> Any:
    """The state after some rounds of all devices, with exact means."""
    task = query.task(Classification("count", lambda key: np.zeros(1, np.float32), Samples(4, 1.0)))
    state = dl.tree.map(np.asarray, query.init(task, dl.random.key(0)))
    key = dl.random.key(1)

    def compiled(f: Any, *examples: Any) -> Any:
        traced = dl.trace(f, *examples)
        run = compile_function(traced.function, "reference")
        return lambda *a: dl.tree.unflatten(
            traced.out_structure, [np.asarray(r) for r in run(*map(np.asarray, dl.tree.leaves(a)))]
        )

    client = compiled(lambda s, d, k: query.client_update(task, s, d, k), state, data[0], key)
    server = compiled(lambda s, m: query.server_update(s, (), m)[0], state, state)
    for _ in range(rounds):
        results = [client(state, d, key) for d in data]
        weights = [float(r.weight) for r in results]
        mean = dl.tree.map(
            lambda *p, weights=weights: np.asarray(
                np.average(p, axis=0, weights=weights), np.float32
            ),
            *(r.update for r in results),
        )
        state = server(state, mean)
    return state


def everything(data: list[SampleSet]) -> tuple[Any, Any]:
    x = np.concatenate([d.x[:r] for d, r in zip(data, ROWS, strict=True)])
    return x, np.concatenate([d.y[:r] for d, r in zip(data, ROWS, strict=True)])


def test_moments_are_those_of_all_rows() -> None:
    data = devices()
    x, _ = everything(data)
    found = ask(Moments(features=FEATURES), data)
    np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.square - found.mean**2, x.var(axis=0), rtol=1e-3)


def test_histograms_of_labels_and_of_values() -> None:
    data = devices()
    x, y = everything(data)
    labels = ask(Histogram(classes=CLASSES), data)
    np.testing.assert_allclose(labels, np.bincount(y, minlength=CLASSES) / len(y), rtol=1e-5)
    values = ask(Histogram(of="x", bins=6, low=0.2, high=0.8), data)
    counted, _ = np.histogram(np.clip(x, 0.2, 0.8 - 1e-6), 6, (0.2, 0.8))
    np.testing.assert_allclose(values, counted / x.size, atol=1e-5)


def test_quantiles_by_bisection() -> None:
    data = devices()
    x, _ = everything(data)
    found = ask(Quantiles(wanted=(0.1, 0.5, 0.9)), data, rounds=14)
    assert np.all(found.high - found.low < 1e-4)
    ranked = np.sort(x.reshape(-1))
    for low, high, q in zip(found.low, found.high, (0.1, 0.5, 0.9), strict=True):
        place = int(np.ceil(q * len(ranked) - 1e-6)) - 1
        assert low - 1e-6 <= ranked[place] <= high + 1e-6


def test_heavy_hitters_among_very_many_integers() -> None:
    rng = np.random.default_rng(3)
    data, frequent = [], [70_001, 12, 1_048_575]
    for d in devices():
        rows = int(d.support + d.query)
        y = rng.integers(0, 2**20, CAPACITY).astype(np.int32)
        y[: rows // 2] = rng.choice(frequent, rows // 2, p=[0.5, 0.3, 0.2])
        data.append(d._replace(y=y))
    _, y = everything(data)
    most = Counter(y.tolist()).most_common(3)
    found = ask(HeavyHitters(most=12, bits=20, step=4), data, rounds=5)
    assert float(found.level) == 20
    pairs = sorted(zip(found.found, found.shares, strict=True), key=lambda p: -p[1])
    for (item, count), (prefix, part) in zip(most, pairs, strict=False):
        assert int(prefix) == item and part == pytest.approx(count / len(y), rel=1e-4)


def test_nobody_is_frequent_who_is_not_frequent_enough() -> None:
    found = ask(HeavyHitters(most=4, bits=4, step=4, least=0.9), devices(), rounds=1)
    assert np.all(found.found == -1.0) and np.all(found.shares == 0.0)


def test_a_query_is_a_bundle_like_any_other() -> None:
    task = Classification("count", lambda key: np.zeros(1, np.float32), Samples(4, 1.0))
    made = build(
        task,
        Histogram(classes=CLASSES),
        devices()[0],
        example=TensorType(DType.F32, (2, FEATURES)),
        clip=1.0,
        clients_max=8,
        weight_max=20.0,
        seed=0,
    )
    assert made.manifest.algorithm == "Histogram" and made.manifest.dimension == CLASSES
