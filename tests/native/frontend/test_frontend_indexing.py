"""`x[...]` compiled: NumPy's values and shapes."""

from __future__ import annotations

import numpy as np
import pytest

RNG = np.random.default_rng(1)
X = RNG.normal(size=(4, 5, 6)).astype(np.float32)
ROWS = np.array([3, 0, -1], np.int32)
COLUMNS = np.array([0, -2, 4])

STATIC = [
    lambda x: x[0],
    lambda x: x[-1, 2],
    lambda x: x[1, -1, 3],
    lambda x: x[1:3],
    lambda x: x[:, ::2],
    lambda x: x[::-1],
    lambda x: x[::-2, 4:0:-1],
    lambda x: x[5:],
    lambda x: x[3:1],
    lambda x: x[None],
    lambda x: x[:, None, 2],
    lambda x: x[..., 0],
    lambda x: x[..., None],
    lambda x: x[1, ..., -1],
    lambda x: x[-3:-1, :, -2:],
    lambda x: x[()],
    lambda x: x[np.int64(2)],
    lambda x: x[0][1][2],
    lambda x: x[[0, 2]],
    lambda x: x[[0, 2], [1, 3]],
    lambda x: x[np.array([1, 1])],
    lambda x: x[slice(1, 3)],
    lambda x: x[range(3)],
    lambda x: x[range(2), range(1, 3)],
    lambda x: x[..., (0, 2)],
    lambda x: x[:, (0, -1), None],
    lambda x: x[True.__class__(1) + 1],
]


@pytest.mark.parametrize("k", range(len(STATIC)))
def test_static_indices(k, agree):
    agree(STATIC[k], X)


DYNAMIC = [
    lambda x, i, r, c: x[i],
    lambda x, i, r, c: x[-i],
    lambda x, i, r, c: x[:, i],
    lambda x, i, r, c: x[i, i],
    lambda x, i, r, c: x[i, :, i],
    lambda x, i, r, c: x[..., i],
    lambda x, i, r, c: x[i, None, 1:3],
    lambda x, i, r, c: x[r],
    lambda x, i, r, c: x[:, c],
    lambda x, i, r, c: x[..., c],
    lambda x, i, r, c: x[r, c],
    lambda x, i, r, c: x[r[:, None], c],
    lambda x, i, r, c: x[r, :, c],
    lambda x, i, r, c: x[:, r, c],
    lambda x, i, r, c: x[0, r],
    lambda x, i, r, c: x[0, :, c],
    lambda x, i, r, c: x[r, 1:3],
    lambda x, i, r, c: x[1:, r, 0],
    lambda x, i, r, c: x[r, None],
    lambda x, i, r, c: x[i + np.arange(2)],
    lambda x, i, r, c: x[[i, 0]],
    lambda x, i, r, c: np.take(x, r, axis=1),
    lambda x, i, r, c: x.take(i),
    lambda x, i, r, c: x[x[0, 0].argsort()[:3]],
]


@pytest.mark.parametrize("k", range(len(DYNAMIC)))
def test_indices_of_the_running_program(k, agree):
    agree(DYNAMIC[k], X, np.int32(2), ROWS, COLUMNS)


def test_constant_arrays_are_indexed_by_the_program(agree):
    table = np.arange(12.0).reshape(3, 4)
    agree(lambda i: table[i, 1:], np.int64(-1))


def test_an_index_that_cannot_be_negative_is_not_wrapped():
    from delian.core.compiler.frontend import trace

    def f(x, n):
        total = 0.0
        for i in range(n):
            total = total + x[i * 2 + np.arange(2)].sum()
        return total

    names = [op.name for op in trace(f, X[0, 0], np.int32(3)).function.body.walk()]
    assert "take" in names
    assert "select" not in names


def test_what_needs_the_length_of_a_selection_is_refused(refusal):
    def f(x):
        return np.fft.fft(x[x > 0])

    assert "which the data decide" in refusal(f, X)


def test_indices_out_of_range_are_refused(refusal):
    def f(x):
        return x[1, 5]

    text = refusal(f, X)
    assert "index 5 is out of range for axis 1 of f32[4,5,6]" in text
    assert "^^^^^^^" in text


def test_too_many_indices_are_refused(refusal):
    assert "4 indices for f32[4,5,6]" in refusal(lambda x: x[0, 0, 0, 0], X)


def test_slices_with_bounds_of_the_running_program_are_refused_with_a_way_out(refusal):
    text = refusal(lambda x, i: x[i : i + 2], X, np.int32(1))
    assert "x[start + np.arange(size)]" in text


def test_items_of_containers(agree):
    def f(x):
        pair = (x, x * 2)
        table = {"a": x, "b": pair}
        rows = [x + k for k in range(4)]
        return pair[-1], table["b"][0], rows[1:3], pair[::-1]

    agree(f, X)


def test_an_index_of_the_running_program_into_a_tuple_is_refused(refusal):
    assert "np.stack" in refusal(lambda x, i: (x, x)[i], X, np.int32(1))


def test_ranges_and_tuples_are_places_that_are_written(agree):
    def f(x):
        y = x.copy()
        y[range(2), (1, 3)] = 7.0
        y[..., (0, 2)] *= 2.0
        y[range(3)] -= 1.0
        return y

    agree(f, X)
