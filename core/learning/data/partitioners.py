"""Partitioners: which examples lie on which device. Each returns one array of row numbers a device.

They see labels or names only, never examples, and the same seed gives the same partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .federated_data import PARTITION_STREAM

Parts = list[NDArray[np.int64]]


def iid(examples: int, devices: int, seed: int) -> Parts:
    """Shuffled and dealt out evenly: the easy case that every other partition is compared with."""
    _check_enough(examples, devices, 1)
    rng = np.random.default_rng([seed, PARTITION_STREAM])
    return [np.sort(part) for part in np.array_split(rng.permutation(examples), devices)]


def dirichlet(
    labels: NDArray[np.int32], devices: int, alpha: float, seed: int, min_examples: int = 2
) -> Parts:
    """Label skew: devices' proportions of each label are drawn from Dirichlet(alpha)."""
    _check_enough(len(labels), devices, min_examples)
    rng = np.random.default_rng([seed, PARTITION_STREAM])
    classes = int(labels.max()) + 1
    piles: list[list[list[int]]] = [[[] for _ in range(classes)] for _ in range(devices)]
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(devices, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for device, part in enumerate(np.split(rows, cuts)):
            piles[device][label] = [int(row) for row in part]
    _top_up(piles, min_examples)
    return [
        np.sort(np.array([row for pile in device for row in pile], dtype=np.int64))
        for device in piles
    ]


def shards(
    labels: NDArray[np.int32], devices: int, labels_each: int, seed: int, min_examples: int = 2
) -> Parts:
    """Pathological label skew (McMahan et al. 2017, section 3).

    Rows sorted by label are cut into devices x `labels_each` shards of one size, and each device
    draws so many. A shard may hold the end of one label and the start of the next.
    """
    pieces = devices * labels_each
    _check_enough(len(labels), devices, max(min_examples, labels_each))
    rng = np.random.default_rng([seed, PARTITION_STREAM])
    # Shuffled first, so that which rows of a label lie together is chance.
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(ordered, pieces)
    drawn = rng.permutation(pieces).reshape(devices, labels_each)
    return [np.sort(np.concatenate([cut[i] for i in row])) for row in drawn]


def quantity(examples: int, devices: int, alpha: float, seed: int, min_examples: int = 2) -> Parts:
    """Quantity skew by Dirichlet(alpha) (Li et al. 2022), at least `min_examples` each."""
    _check_enough(examples, devices, min_examples)
    rng = np.random.default_rng([seed, PARTITION_STREAM])
    order = rng.permutation(examples)
    spare = examples - devices * min_examples
    shares = rng.dirichlet(np.full(devices, alpha))
    ends = np.round(np.cumsum(shares) * spare).astype(np.int64) + min_examples * np.arange(
        1, devices + 1
    )
    return [np.sort(part) for part in np.split(order, ends[:-1])]


def shift_features(
    x: NDArray[np.float32], parts: Sequence[NDArray[np.int64]], sigma: float, seed: int
) -> NDArray[np.float32]:
    """Feature skew: noise of variance sigma * (i + 1) / n (Li et al. 2022). A new array."""
    shifted = x.copy()
    for i, part in enumerate(parts):
        rng = np.random.default_rng([seed, PARTITION_STREAM, i + 1])
        deviation = np.sqrt(sigma * (i + 1) / len(parts))
        noise = rng.normal(0.0, deviation, (len(part), *x.shape[1:]))
        shifted[part] += noise.astype(np.float32)
    return shifted


def _top_up(piles: list[list[list[int]]], min_examples: int) -> None:
    """Moves examples, one at a time, until every device has `min_examples`."""
    counts = np.array([[len(pile) for pile in device] for device in piles], dtype=np.int64)
    while (sizes := counts.sum(axis=1)).min() < min_examples:
        poor = int(sizes.argmin())
        spare = sizes > min_examples
        # Labels in the order of how much the poor device has of them; the first that a device can
        # spare.
        for label in np.argsort(-counts[poor], kind="stable"):
            donors = np.where(spare & (counts[:, label] > 0), sizes, -1)
            if donors.max() > 0:
                break
        rich = int(donors.argmax())
        piles[poor][label].append(piles[rich][label].pop())
        counts[poor, label] += 1
        counts[rich, label] -= 1


def natural(owners: NDArray[np.int64], names: Sequence[str]) -> Parts:
    """The data's own devices: `owners[i]` has example i. Raises for a device without examples."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(owners, minlength=len(names)))
    parts = np.split(order, ends[:-1])
    for name, part in zip(names, parts, strict=True):
        if len(part) == 0:
            raise DelianError(
                f"device `{name}` has no samples", "leave it out of the file's devices"
            )
    return parts


def _check_enough(examples: int, devices: int, min_examples: int) -> None:
    if examples < devices * min_examples:
        raise DelianError(
            f"{examples} examples cannot give {devices} devices at least {min_examples} each",
            f"use at most {max(1, examples // min_examples)} devices, or lower data.min_examples",
        )
