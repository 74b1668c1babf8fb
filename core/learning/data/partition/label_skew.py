"""Partitioners by label: devices that have some labels more than others.

Each takes labels i32 [n] and gives one array of row numbers a device, in the order in which it
drew them. Those that name a class of flwr-datasets draw what that class draws from a generator of
one seed, in the same order, so that they give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .deal import Assignment

Labels = NDArray[np.int32]
Parts = list[NDArray[np.int64]]

#: Draws of a Dirichlet partition until each device has enough; as many as flwr-datasets has.
TRIES = 11


def topped_up_dirichlet(
    labels: Labels,
    devices: int,
    alpha: float,
    rng: np.random.Generator,
    min_examples: int = 2,
    self_balancing: bool = False,
) -> Parts:
    """Devices' proportions of each label are drawn from Dirichlet(alpha) (Hsu et al. 2019).

    A device that is left with too few gets rows of others, so that any alpha can be had. Row
    numbers are sorted.
    """
    classes = int(labels.max()) + 1
    piles: list[list[list[int]]] = [[[] for _ in range(classes)] for _ in range(devices)]
    held = np.zeros(devices, np.int64)
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(devices, alpha))
        if self_balancing:
            shares = _without_full(shares, held, len(labels) / devices)
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for device, part in enumerate(np.split(rows, cuts)):
            piles[device][label] = [int(row) for row in part]
            held[device] += len(part)
    _top_up(piles, min_examples)
    return [
        np.sort(np.array([row for pile in device for row in pile], dtype=np.int64))
        for device in piles
    ]


def redrawn_dirichlet(
    labels: Labels,
    devices: int,
    alpha: float | Sequence[float],
    rng: np.random.Generator,
    min_examples: int = 10,
    self_balancing: bool = False,
) -> Parts:
    """`DirichletPartitioner`: as above; all is drawn again where a device has too few.

    alpha: one number, or one a device. self_balancing: a device with more than the average gets no
    rows of further labels (Yurochkin et al. 2019).

    Raises:
        DelianError: a device has fewer than `min_examples` in each of `TRIES` draws.
    """
    concentration = np.broadcast_to(np.asarray(alpha, np.float64), (devices,))
    least = 0
    for _ in range(TRIES):
        piles: list[list[NDArray[np.int64]]] = [[] for _ in range(devices)]
        held = np.zeros(devices, np.int64)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            shares = rng.dirichlet(concentration)
            if self_balancing:
                shares = _without_full(shares, held, len(labels) / devices)
            cuts = (np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
            for device, part in enumerate(np.split(rows, cuts)):
                piles[device].append(part)
                held[device] += len(part)
        least = max(least, int(held.min()))
        if held.min() >= min_examples:
            return shuffled([np.concatenate(pile) for pile in piles], rng)
    raise DelianError(
        f"in {TRIES} draws of Dirichlet({np.min(concentration):g}) a device had at most {least} of"
        f" the {min_examples} examples that each must have",
        "raise data.alpha, or lower data.min_examples or fleet.devices; data.draws = delian moves"
        " rows to such devices",
    )


def pathological(
    labels: Labels,
    devices: int,
    labels_each: int,
    assignment: Assignment,
    rng: np.random.Generator,
) -> Parts:
    """`PathologicalPartitioner`: exactly `labels_each` labels a device (Li et al. 2022).

    assignment: `deterministic`: device d has the labels d, d+1, ..., around all of them;
    `first-deterministic`: label d, and others by chance; `random`: all by chance. The rows of a
    label are cut evenly among its devices. A label that is on no device has its rows left out.

    Raises:
        DelianError: there are fewer labels than that, or fewer rows of one than devices with it.
    """
    known = np.unique(labels)
    if not 1 <= labels_each <= len(known):
        raise DelianError(
            f"a pathological partition of {labels_each} labels a device, and the data has "
            f"{len(known)}",
            f"set data.labels_each to 1 to {len(known)}",
        )
    owners: dict[int, list[int]] = {int(label): [] for label in known}
    for device in range(devices):
        for label in _labels_of(device, known, labels_each, assignment, rng):
            owners[label].append(device)
    piles: list[list[NDArray[np.int64]]] = [[] for _ in range(devices)]
    for label, having in owners.items():
        rows = np.flatnonzero(labels == label)
        if len(having) > len(rows):
            raise DelianError(
                f"label {label} is on {len(having)} devices, and has {len(rows)} examples",
                "lower fleet.devices or data.labels_each, or set data.assignment = deterministic,"
                " which spreads labels evenly",
            )
        for device, part in zip(having, np.array_split(rows, max(1, len(having))), strict=False):
            piles[device].append(part)
    return shuffled([np.concatenate(pile) for pile in piles], rng)


def _labels_of(
    device: int,
    known: Labels,
    labels_each: int,
    assignment: Assignment,
    rng: np.random.Generator,
) -> set[int]:
    """The labels of one device of a pathological partition."""
    if assignment == "random":
        return {int(label) for label in rng.choice(known, size=labels_each, replace=False)}
    if assignment == "deterministic":
        return {int(known[(device + i) % len(known)]) for i in range(labels_each)}
    owned = {int(known[device % len(known)])}
    while len(owned) < labels_each:
        owned.add(int(rng.choice(known, size=1)[0]))
    return owned


def even_shards(labels: Labels, devices: int, labels_each: int, rng: np.random.Generator) -> Parts:
    """Pathological label skew (McMahan et al. 2017, section 3).

    Rows sorted by label are cut into devices x `labels_each` shards of one size, or of one row
    more, and each device draws so many. A shard may hold the end of one label and the start of the
    next.

    Raises:
        DelianError: there are more shards than rows.
    """
    pieces = devices * labels_each
    if pieces > len(labels):
        raise DelianError(
            f"{len(labels)} examples make no {pieces} shards, {labels_each} for each of {devices} "
            "devices",
            f"set data.labels_each to at most {len(labels) // devices}",
        )
    cut = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), pieces)
    drawn = rng.permutation(pieces).reshape(devices, labels_each)
    return [np.concatenate([cut[i] for i in row]) for row in drawn]


def sized_shards(
    labels: Labels,
    devices: int,
    labels_each: int,
    rng: np.random.Generator,
    size: int = 0,
    keep_incomplete: bool = False,
) -> Parts:
    """`ShardPartitioner`: shards of one size; rows that fill no shard are left out.

    labels_each: shards a device; 0: all shards are dealt out, and first devices may have one more.
    size: rows of a shard; 0: as many as fit. keep_incomplete: whether the last, smaller one counts.

    Raises:
        DelianError: there are fewer shards than devices, or than are asked for.
    """
    examples = len(labels)
    if not size:
        size = examples // (devices * labels_each) if labels_each else 0
        counted = keep_incomplete
    else:
        counted = keep_incomplete and not labels_each
    usable = (-(-examples // size) if counted else examples // size) if size else 0
    each = np.full(devices, labels_each or usable // devices)
    if not labels_each:
        each[: usable % devices] += 1
    if usable < max(devices, int(each.sum())):
        raise DelianError(
            f"{examples} examples make {usable} shards of {size}, for {devices} devices with "
            f"{labels_each or 'at least one'} each",
            "lower data.shard_size, data.labels_each or fleet.devices",
        )
    drawn = rng.permutation(usable)[: each.sum()]
    ordered = np.argsort(labels, kind="stable").astype(np.int64)
    return shuffled(
        [
            np.concatenate([ordered[i * size : (i + 1) * size] for i in own])
            for own in np.split(drawn, np.cumsum(each)[:-1])
        ],
        rng,
    )


def _without_full(
    shares: NDArray[np.float64], held: NDArray[np.int64], average: float
) -> NDArray[np.float64]:
    """The shares of devices that hold at most the average, which sum to one."""
    left = np.where(held > average, 0.0, shares)
    # Summed in order, as flwr-datasets does: another order has other last bits.
    total = np.add.accumulate(left)[-1]
    if not total > 0:
        raise DelianError(
            "devices with room for more rows have a share of zero", "raise data.alpha"
        )
    return np.asarray(left / total)


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


def shuffled(parts: Parts, rng: np.random.Generator) -> Parts:
    """Each device's rows in random order, one device after the other."""
    done = []
    for part in parts:
        # A list: NumPy shuffles arrays by other draws.
        rows = part.tolist()
        rng.shuffle(rows)
        done.append(np.array(rows, np.int64))
    return done
