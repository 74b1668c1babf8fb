"""Partitions with `draws` of flwr-datasets give the rows that flwr-datasets 0.6.1 gave.

`tests/judges/partitions.py` compares many settings with the package itself; these are some of its
results, of the first rows of 24 examples and of all of the digits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from delian.core.learning.data import Deal, digits
from delian.core.learning.data.partition.partitioners import deal_out

LABELS = (np.arange(24) * 7 % 3).astype(np.int32)

SMALL = [
    (
        {"partition": "iid", "draws": "flwr_shuffled"},
        [
            [16, 15, 18, 19, 9, 7, 17, 23],
            [6, 10, 3, 0, 20, 12, 5, 11],
            [14, 22, 2, 4, 21, 1, 13, 8],
        ],
    ),
    (
        {"alpha": 1.0},
        [
            [2, 0, 1, 5, 3],
            [20, 6, 11, 12, 8, 14, 17, 9],
            [10, 19, 23, 18, 16, 7, 15, 13, 22, 4, 21],
        ],
    ),
    (
        {"partition": "pathological", "labels_each": 2},
        [
            [6, 11, 0, 2, 3, 5, 8],
            [13, 9, 4, 15, 22, 7, 12, 16, 19, 10, 1],
            [21, 18, 23, 20, 17, 14],
        ],
    ),
    (
        {"partition": "shards", "labels_each": 2},
        [
            [13, 19, 10, 16, 1, 22, 7, 4],
            [5, 11, 20, 2, 17, 8, 23, 14],
            [9, 12, 0, 18, 21, 3, 6, 15],
        ],
    ),
    (
        {"partition": "linear"},
        [
            [0, 1, 2, 3],
            [4, 5, 6, 7, 8, 9, 10, 11],
            [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23],
        ],
    ),
    (
        {"partition": "inner_dirichlet", "alpha": 1.0, "sizes": (4, 6, 8)},
        [[21, 11, 15, 12], [17, 8, 23, 20, 14, 4], [7, 10, 1, 18, 13, 19, 16, 22]],
    ),
]
DIGITS = [
    (10, {"alpha": 0.3, "min_examples": 10}, "024d73088fc45baa"),
    (10, {"alpha": 0.3, "self_balancing": True, "draws": "flwr_shuffled"}, "a1980f6e291dd2f1"),
    (
        30,
        {"partition": "pathological", "labels_each": 3, "assignment": "first-deterministic"},
        "607fba6adba23ef3",
    ),
    (
        10,
        {"partition": "shards", "labels_each": 0, "shard_size": 25, "keep_incomplete": True},
        "7d33158263846c12",
    ),
    (5, {"partition": "exponential", "draws": "flwr_shuffled"}, "24d64a9f9183b8af"),
    (5, {"partition": "size", "sizes": (100, 200, 300, 400, 500)}, "5e86df78b32746ac"),
    (
        5,
        {"partition": "inner_dirichlet", "alpha": 0.5, "sizes": (100, 200, 300, 400, 500)},
        "345daea9f170d27e",
    ),
    (20, {"partition": "distribution", "min_examples": 10}, "f49178d7f57de515"),
    (10, {"partition": "continuous", "strictness": 0.5}, "b2cc638f74054c1f"),
]


def rows_of(devices, labels=LABELS, seed=42, **keys):
    keys = {"draws": "flwr", "min_examples": 1} | keys
    return [part.tolist() for part in deal_out(labels, devices, Deal(**keys), seed)]


def digest(parts):
    """A short hash of all rows of all devices, in their order."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("keys", "rows"), SMALL)
def test_three_devices_have_these_rows(keys, rows):
    assert rows_of(3, **keys) == rows


@pytest.mark.parametrize(("devices", "keys", "expected"), DIGITS)
def test_the_digits_lie_on_these_devices(devices, keys, expected):
    pytest.importorskip("sklearn")
    assert digest(rows_of(devices, digits().y, **keys)) == expected
