"""First weights: what their papers say of their moments, the same eager and compiled."""

from __future__ import annotations

import math

import delian as dl
import numpy as np
import pytest
from delian.core.learning.nn import initialise

KEY = dl.random.key(5)
SHAPE, INPUTS, OUTPUTS = (3, 3, 40, 60), 9 * 40, 9 * 60
#: name -> standard deviation, largest magnitude.
MOMENTS = {
    "glorot_uniform": (np.sqrt(2 / (INPUTS + OUTPUTS)), np.sqrt(6 / (INPUTS + OUTPUTS))),
    "glorot_normal": (np.sqrt(2 / (INPUTS + OUTPUTS)), np.inf),
    "he_uniform": (np.sqrt(2 / INPUTS), np.sqrt(6 / INPUTS)),
    "he_normal": (np.sqrt(2 / INPUTS), np.inf),
    "lecun_normal": (np.sqrt(1 / INPUTS), 2 * np.sqrt(1 / INPUTS) / 0.8796),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name):
    make = getattr(initialise, name)
    drawn = make(KEY, SHAPE, INPUTS, OUTPUTS)
    deviation, largest = MOMENTS[name]
    count = drawn.size
    assert drawn.dtype == np.float32 and drawn.shape == SHAPE
    assert abs(drawn.mean()) < 4 * deviation / np.sqrt(count)
    assert abs(drawn.std() / deviation - 1) < 4 / np.sqrt(count)
    assert np.abs(drawn).max() <= largest
    other = make(dl.random.key(6), SHAPE, INPUTS, OUTPUTS)
    assert not np.array_equal(drawn, other)


def test_truncated_normal_has_the_distribution_between_its_bounds():
    drawn = np.sort(initialise.truncated_normal(KEY, (20_000,), 0.5)) / 0.5
    assert np.abs(drawn).max() <= 2.0
    below = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in (-2.0, *drawn.tolist(), 2.0)])
    wanted = (below[1:-1] - below[0]) / (below[-1] - below[0])
    # Kolmogorov and Smirnov's distance: larger for one seed in a hundred.
    distance = np.abs(np.arange(1, len(drawn) + 1) / len(drawn) - wanted).max()
    assert distance < 1.63 / math.sqrt(len(drawn))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (3, 3, 4, 20), (1, 4)])
def test_orthogonal(shape):
    made = initialise.orthogonal(KEY, shape, 0, 0)
    matrix = made.reshape(-1, shape[-1]).astype(np.float64)
    few = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(few @ few.T, np.eye(len(few)), atol=1e-6)


def test_compiled_equals_eager():
    def draw(key):
        keys = dl.random.split(key, 5)
        return (
            initialise.uniform(keys[0], (4, 3), -2.0, 3.0),
            initialise.normal(keys[1], (4, 3), 0.5),
            initialise.truncated_normal(keys[2], (4, 3)),
            initialise.orthogonal(keys[3], (6, 4), 6, 4),
            initialise.he_normal(keys[4], (6, 4), 6, 4),
        )

    for x, y in zip(dl.compile(draw, backend="reference")(KEY), draw(KEY), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
