"""Partitioners by label with given amounts: mixtures of labels, and a distribution over devices.

As in `label_skew`, those that name a class of flwr-datasets give the same rows by the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .label_skew import Labels, Parts, shuffled


def inner_dirichlet(
    labels: Labels, sizes: Sequence[int], alpha: float | Sequence[float], rng: np.random.Generator
) -> Parts:
    """`InnerDirichletPartitioner`: each device's mixture of labels is drawn from Dirichlet(alpha).

    Amounts are given (Acar et al. 2021, section 4). alpha: one number, or one a label. Rows are
    drawn one by one: a device with room left, then a label by its mixture. A label without rows
    left is taken out of all mixtures.

    Raises:
        DelianError: a device has no room for the rows that are left of its labels.
    """
    known = np.unique(labels)
    concentration = np.broadcast_to(np.asarray(alpha, np.float64), (len(known),))
    mixtures = rng.dirichlet(concentration, size=len(sizes))
    rows = [np.flatnonzero(labels == label) for label in known]
    left, room = [len(own) for own in rows], list(sizes)
    parts = [np.zeros(size, np.int64) for size in sizes]
    unfilled, missing = list(range(len(sizes))), sum(sizes)
    while missing:
        device = unfilled[int(rng.integers(0, len(unfilled)))]
        if not room[device]:
            unfilled.remove(device)
            continue
        room[device] -= 1
        while not left[label := _label_of(device, mixtures, rng)]:
            mixtures[:, label] = 0
            total = mixtures.sum(axis=1, keepdims=True)
            mixtures = mixtures / np.where(total > 0, total, 1.0)
        left[label] -= 1
        parts[device][room[device]] = rows[label][left[label]]
        missing -= 1
    return shuffled(parts, rng)


def _label_of(device: int, mixtures: NDArray[np.float64], rng: np.random.Generator) -> int:
    if not mixtures[device].any():
        raise DelianError(
            f"device {device} draws labels of which no examples are left",
            "raise data.alpha, so that devices have more labels, or lower data.sizes",
        )
    return int(rng.choice(mixtures.shape[1], p=mixtures[device]))


def distribution(
    labels: Labels,
    devices: int,
    labels_each: int,
    weights: NDArray[np.float64],
    least_each: int,
    rng: np.random.Generator,
) -> Parts:
    """`DistributionPartitioner`: how much devices have of a label is given (Li et al. 2020).

    Device d has the labels d, d+1, ..., around all of them, so each label has the same number of
    devices; it gives them `least_each` rows each, and the others in the ratio of its row of
    weights. What rounding leaves over goes to one of them.

    weights: [labels, `columns_of` them].

    Raises:
        DelianError: a label has too few rows.
    """
    known = np.unique(labels)
    columns = weights.shape[1]
    counts = np.array([np.count_nonzero(labels == label) for label in known], np.float64)
    spare = counts - int(least_each * columns)
    if (spare < columns).any():
        scarce = int(np.argmin(spare))
        raise DelianError(
            f"label {known[scarce]} has {int(counts[scarce])} examples, and {columns} devices have"
            f" it, with at least {least_each + 1} each",
            "lower data.min_examples, data.labels_each or fleet.devices",
        )
    shares = weights / np.sum(weights, axis=-1, keepdims=True)
    amounts = np.floor(shares * spare[:, None]).astype(np.int64) + least_each
    cut = []
    for label, amount in zip(known, amounts, strict=True):
        *pieces, rest = np.split(np.flatnonzero(labels == label), np.cumsum(amount))
        lucky = int(rng.integers(0, columns))
        pieces[lucky] = np.append(pieces[lucky], rest)
        cut.append(iter(pieces))
    owned = (np.roll(np.arange(len(known)), -device)[:labels_each] for device in range(devices))
    return shuffled([np.concatenate([next(cut[i]) for i in own]) for own in owned], rng)


def columns_of(labels: Labels, devices: int, labels_each: int) -> tuple[int, int]:
    """The shape of a distribution's weights: labels, and devices with each of them.

    Raises:
        DelianError: labels cannot be on the same number of devices.
    """
    known = len(np.unique(labels))
    if not 1 <= labels_each <= known or devices % known:
        raise DelianError(
            f"a distribution of {known} labels over {devices} devices with {labels_each} each: "
            "each label must be on as many devices",
            f"set fleet.devices to a multiple of {known}, and data.labels_each to 1 to {known}",
        )
    return known, labels_each * devices // known
