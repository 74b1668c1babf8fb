"""Segments, the largest, embeddings and dropout: eager and compiled alike, against plain loops."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import ops as ops

RNG = np.random.default_rng(3)
DATA = RNG.normal(size=(9, 2))
#: Nobody is in segment 2; two rows are in none.
SEGMENTS = np.array([3, 0, -1, 3, 1, 9, 0, 3, 1])
COUNT = 4


def run(f: Any, *args: Any) -> Any:
    """Compiled, after checking that it equals eager."""
    got = dl.compile(f, backend="reference")(*args)
    want = f(*args)
    for x, y in zip(dl.tree.leaves(got), dl.tree.leaves(want), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=1e-6)
    return got


def plain(f: Any, empty: float) -> Any:
    rows = [DATA[i == SEGMENTS] for i in range(COUNT)]
    return np.array([f(r) if len(r) else np.full(2, empty) for r in rows])


@pytest.mark.parametrize(
    "ours, theirs, empty",
    [
        (ops.segment_sum, lambda r: r.sum(0), 0.0),
        (ops.segment_mean, lambda r: r.mean(0), 0.0),
        (ops.segment_max, lambda r: r.max(0), -np.inf),
    ],
    ids=["sum", "mean", "max"],
)
def test_segments(ours, theirs, empty):
    def f(data, segments):
        return ours(data, segments, COUNT)

    np.testing.assert_allclose(run(f, DATA, SEGMENTS), plain(theirs, empty), rtol=1e-12)
    weights = RNG.normal(size=(COUNT, 2))

    def weighed(data):
        out = ours(data, SEGMENTS, COUNT)
        return np.sum(np.where(np.isfinite(out), out, 0) * weights)

    slope, v, h = dl.grad(weighed)(DATA), RNG.normal(size=DATA.shape), 1e-6
    along = (weighed(DATA + h * v) - weighed(DATA - h * v)) / (2 * h)
    np.testing.assert_allclose(np.sum(slope * v), along, rtol=1e-7)
    np.testing.assert_array_equal(slope[[2, 5]], 0)


def test_segments_of_vectors_and_whole_numbers():
    ones = np.ones(9, np.int32)
    got = run(lambda x, s: ops.segment_sum(x, s, COUNT), ones, SEGMENTS.astype(np.int32))
    np.testing.assert_array_equal(got, [2, 2, 0, 3])
    least = np.iinfo(np.int32).min
    got = run(
        lambda x, s: ops.segment_max(x, s, COUNT, least), 1 + np.arange(9, dtype=np.int32), SEGMENTS
    )
    np.testing.assert_array_equal(got, [7, 9, least, 8])


def test_top_k_takes_the_first_of_equals():
    x = np.array([[1.0, 5.0, 5.0, 2.0], [-1.0, -4.0, -2.0, -1.0]])
    values, places = run(lambda x: ops.top_k(x, 3), x)
    np.testing.assert_array_equal(values, [[5, 5, 2], [-1, -1, -2]])
    np.testing.assert_array_equal(places, [[1, 2, 3], [0, 3, 2]])
    values, _ = run(lambda x: ops.top_k(x, 2), np.array([3, 250, 7], np.uint8))
    np.testing.assert_array_equal(values, [250, 7])
    slope = dl.grad(lambda x: np.sum(ops.top_k(x, 2)[0] * np.array([1.0, 3.0])))(x[0])
    np.testing.assert_array_equal(slope, [0, 1, 3, 0])
    with pytest.raises(ValueError, match="from 1 to 4"):
        ops.top_k(x, 5)


def test_an_embedding_s_gradient_adds_up_where_symbols_repeat():
    table, symbols = RNG.normal(size=(4, 3)), np.array([[1, 1], [3, 1]])
    np.testing.assert_array_equal(run(ops.embedding, table, symbols), table[symbols])
    slope = dl.grad(lambda t: np.sum(ops.embedding(t, symbols)))(table)
    np.testing.assert_array_equal(slope[:, 0], [0, 3, 0, 1])


def test_put_add_moves_indices_into_range():
    got = run(
        lambda x, i, u: ops.put_add(x, i, u, 1),
        np.zeros((2, 3)),
        np.array([7, -1, 7]),
        np.ones((2, 3)),
    )
    np.testing.assert_array_equal(got, [[1, 0, 2]] * 2)


def test_dropout_drops_the_same_elements_for_the_same_key():
    x, key = np.ones((100, 50), np.float32), dl.random.key(3)
    got = run(lambda x, key: ops.dropout(x, 0.25, key), x, key)
    assert set(np.unique(got)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(np.mean(got == 0) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / x.size)
    assert not np.array_equal(got, ops.dropout(x, 0.25, dl.random.key(4)))
    assert ops.dropout(x, 0.0, key) is x
    slope = dl.grad(lambda x: np.sum(ops.dropout(x, 0.25, key)))(x)
    np.testing.assert_array_equal(slope, got)
    with pytest.raises(ValueError, match="rate"):
        ops.dropout(x, 1.0, key)


def test_a_primitive_s_misuse_is_refused_eagerly_too():
    with pytest.raises(dl.DelianError, match="rank 4"):
        ops.conv(np.zeros((1, 2, 2)), np.zeros((1, 1, 1, 1)), (1, 1), ((0, 0), (0, 0)))
