"""What devices have of their own in their data: noise, a rotation, another meaning of labels.

Each returns a new array; parts are the devices' row numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..federated_data import PARTITION_STREAM

Parts = Sequence[NDArray[np.int64]]

#: The streams of labels' permutations come after those of devices' noise.
CONCEPT_STREAM = 1 << 32
QUARTERS = 4


def add_noise(x: NDArray[np.float32], parts: Parts, sigma: float, seed: int) -> NDArray[np.float32]:
    """Feature skew: noise of variance sigma * (i + 1) / n (Li et al. 2022)."""
    shifted = x.copy()
    for i, part in enumerate(parts):
        rng = np.random.default_rng([seed, PARTITION_STREAM, i + 1])
        deviation = np.sqrt(sigma * (i + 1) / len(parts))
        noise = rng.normal(0.0, deviation, (len(part), *x.shape[1:]))
        shifted[part] += noise.astype(np.float32)
    return shifted


def rotate(x: NDArray[Any], parts: Parts, rotations: int) -> NDArray[Any]:
    """Feature skew: the images of device i are turned by (i mod `rotations`) / `rotations`.

    Rotated MNIST of Ghosh et al. 2020. x: [n, side, side, ...]; rotations: 1, 2 or 4 quarters of a
    whole turn, counter-clockwise.

    Raises:
        DelianError: the examples are no square images.
    """
    if x.ndim < 3 or x.shape[1] != x.shape[2]:
        shape = " x ".join(map(str, x.shape[1:]))
        raise DelianError(
            f"data.rotations turns square images, and an example has the shape {shape}",
            "leave out data.rotations",
        )
    turned = x.copy()
    for i, part in enumerate(parts):
        quarters = i % rotations * (QUARTERS // rotations)
        turned[part] = np.rot90(x[part], quarters, axes=(1, 2))
    return turned


def permute_labels(
    y: NDArray[np.int32], parts: Parts, concepts: int, classes: int, seed: int
) -> NDArray[np.int32]:
    """Concept shift: the labels of device i are permuted, by (i mod `concepts`).

    Devices of the number 0 keep their labels; others share a permutation that is drawn by the seed
    (Sattler et al. 2021).
    """
    permuted = y.copy()
    tables = [np.arange(classes, dtype=np.int32)]
    for concept in range(1, concepts):
        rng = np.random.default_rng([seed, PARTITION_STREAM, CONCEPT_STREAM + concept])
        tables.append(rng.permutation(tables[0]))
    for i, part in enumerate(parts):
        permuted[part] = tables[i % concepts][y[part]]
    return permuted
