"""Windows of pooling by the rule, element by element: any padding, also beyond the window."""

from __future__ import annotations

import itertools
import math

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import ops

GEOMETRIES = [
    geometry
    for geometry in itertools.product(
        (1, 2, 5), (1, 3, 7), (1, 4, 10), (0, 1, 6), (0, 5), (1, 4), (False, True)
    )
    if (geometry[1] - 1) * geometry[5] + 1 <= geometry[0] + geometry[3] + geometry[4]
]
#: Windows that lie in the padding, that reach beyond the axis, and that begin behind it.
SOME = [(5, 3, 10, 6, 2, 2, False), (2, 7, 1, 6, 5, 1, True), (5, 3, 4, 1, 5, 1, True)]


def windows(length, size, stride, before, after, apart, ceil):
    """The places of the elements of each window."""
    beyond = length + before + after - (size - 1) * apart - 1
    count = (math.ceil(beyond / stride) if ceil else beyond // stride) + 1
    if ceil and (count - 1) * stride >= length + before:
        count -= 1
    return [[i * stride - before + j * apart for j in range(size)] for i in range(count)]


def largest(x, *geometry):
    inside = [[x[k] for k in each if 0 <= k < len(x)] for each in windows(len(x), *geometry)]
    return np.array([max(each, default=-np.inf) for each in inside], np.float32)


def pooled(size, stride, before, after, apart, ceil):
    return lambda x: ops.max_pool(x, size, stride, [(before, after)], apart, ceil)


def test_the_largest_of_each_window():
    rng = np.random.default_rng(1)
    for length, *geometry in GEOMETRIES:
        x = rng.normal(size=length).astype(np.float32)
        got = pooled(*geometry)(x[None, :, None])[0, :, 0]
        np.testing.assert_array_equal(got, largest(x, *geometry), err_msg=f"{length}, {geometry}")


def test_the_mean_of_each_window():
    rng = np.random.default_rng(2)
    for length, size, stride, before, after, apart, ceil in GEOMETRIES:
        x = rng.normal(size=length).astype(np.float32)
        places = windows(length, size, stride, before, after, 1, ceil) if apart == 1 else []
        for counted in (False, True):
            low, high = (-before, length + after) if counted else (0, length)
            counts = [sum(low <= k < high for k in each) for each in places]
            if not places or not all(counts):
                continue
            sums = [sum(x[k] for k in each if 0 <= k < length) for each in places]
            got = ops.avg_pool(x[None, :, None], size, stride, [(before, after)], counted, ceil)
            np.testing.assert_allclose(got[0, :, 0], np.divide(sums, counts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("geometry", SOME)
def test_compiled_windows_are_the_same(geometry):
    x = np.random.default_rng(3).normal(size=geometry[0]).astype(np.float32)
    got = dl.compile(pooled(*geometry[1:]))(x[None, :, None])[0, :, 0]
    np.testing.assert_array_equal(got, largest(x, *geometry[1:]))


def test_a_window_of_any_size_takes_the_memory_of_the_axis():
    x = np.arange(8, dtype=np.float32)[None, :, None]
    got = ops.max_pool(x, 2**62, 1, [(2**61, 2**61)])
    assert got.shape == (1, 9, 1) and got.max() == 7
