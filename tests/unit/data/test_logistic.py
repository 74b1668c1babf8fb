"""Synthetic(alpha, beta): the published data come back, and its two knobs do what they say."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import logistic
from delian.core.learning.data.logistic_rows import CLASSES, FEATURES, _rows


def test_the_published_federation_comes_back():
    """205,795 rows: what the authors' script makes with 100 devices and its seed."""
    data = logistic(devices=100, alpha=0.5, beta=0.5, multiple=5)
    assert data.x.shape == (205_795, 60) and data.x.dtype == np.float32
    sizes = np.bincount(data.owners)
    assert len(sizes) == 100 and sizes.min() >= 250 and np.all(sizes % 5 == 0)
    assert set(np.unique(data.y)) == set(range(10))


def test_the_same_draw_gives_the_same_rows_and_another_gives_others():
    one, same, other = (logistic(devices=4, alpha=1.0, beta=1.0, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(one.x, same.x)
    np.testing.assert_array_equal(one.y, same.y)
    assert one.x.shape != other.x.shape or np.any(one.x != other.x)


def test_rows_are_those_of_numpy_s_multivariate_normal():
    """Which is what the published script calls."""
    rng, centre = np.random.RandomState(5), np.linspace(-1, 1, FEATURES)
    deviations = np.arange(1, FEATURES + 1, dtype=np.float64) ** -0.6
    x, y = _rows(rng, 0.3, centre, deviations, 40)
    same = np.random.RandomState(5)
    weights, bias = same.normal(0.3, 1, (FEATURES, CLASSES)), same.normal(0.3, 1, CLASSES)
    wanted = same.multivariate_normal(centre, np.diag(deviations**2), 40)
    np.testing.assert_allclose(x, wanted, rtol=1e-12)
    np.testing.assert_array_equal(y, np.argmax(wanted @ weights + bias, axis=1))


def test_beta_spreads_the_data_and_features_fall_off():
    spread = []
    for beta in (0.0, 20.0):
        data = logistic(devices=30, alpha=0.0, beta=beta)
        means = np.array([data.x[data.owners == d].mean() for d in range(30)])
        spread.append(means.std())
    assert spread[1] > 10 * spread[0]
    first = data.x[data.owners == 0]
    assert first[:, 0].std() == pytest.approx(1.0, rel=0.2)
    assert first[:, 59].std() == pytest.approx(60**-0.6, rel=0.3)


def test_too_many_rows_are_refused_before_they_are_made():
    with pytest.raises(DelianError, match="rows"):
        logistic(devices=100_000, alpha=0.5, beta=0.5, multiple=10)
