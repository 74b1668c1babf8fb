"""A row of a table a partitioner, `deal_out`, which deals by one, and what differs between devices.

A partitioner sees rows in a random order, which is the file's where draws are those of
flwr-datasets. Same seed, same partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ....common.nouns import counted
from ..federated_data import PARTITION_STREAM
from . import amounts, label_mixtures, label_skew, shifts
from .deal import BY_LABEL, Deal
from .label_skew import Parts


@dataclass(frozen=True, slots=True)
class Undealt:
    """What a partitioner sees."""

    y: NDArray[Any]
    """Labels i32 [n], or numbers f32 [n] or [n, k], in the order in which rows are dealt out."""
    devices: int
    deal: Deal
    seed: int
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Partitioner:
    """One way of dealing examples out."""

    parts: Callable[[Undealt], Parts]
    """The row numbers of each device."""
    words: Callable[[Deal], str]
    """What a report says of it."""


def _dirichlet(rows: Undealt) -> Parts:
    deal = rows.deal
    return (
        label_skew.topped_up_dirichlet if deal.draws == "delian" else label_skew.redrawn_dirichlet
    )(rows.y, rows.devices, deal.alpha, rows.rng, deal.min_examples, deal.self_balancing)


def _shards(rows: Undealt) -> Parts:
    deal = rows.deal
    if deal.draws == "delian" and deal.labels_each and not deal.shard_size:
        return label_skew.even_shards(rows.y, rows.devices, deal.labels_each, rows.rng)
    size, keep = deal.shard_size, deal.keep_incomplete
    return label_skew.sized_shards(rows.y, rows.devices, deal.labels_each, rows.rng, size, keep)


def _pathological(rows: Undealt) -> Parts:
    each, assignment = rows.deal.labels_each, rows.deal.assignment
    return label_skew.pathological(rows.y, rows.devices, each, assignment, rows.rng)


def _sizes(rows: Undealt) -> tuple[int, ...]:
    sizes = rows.deal.sizes or tuple(map(len, amounts.even(len(rows.y), rows.devices)))
    if len(sizes) != rows.devices:
        raise DelianError(
            f"data.sizes has {len(sizes)} sizes, and there are {rows.devices} devices",
            f"set fleet.devices={len(sizes)}, or a size for each device",
        )
    amounts.by_sizes(len(rows.y), sizes)  # checks their sum
    return sizes


def _distribution(rows: Undealt) -> Parts:
    deal, each = rows.deal, rows.deal.labels_each
    shape = label_mixtures.columns_of(rows.y, rows.devices, each)
    rng = rows.rng if deal.draws == "delian" else np.random.default_rng(rows.seed)
    weights = rng.lognormal(0.0, deal.sigma, shape)
    least = -(-deal.min_examples // each)
    return label_mixtures.distribution(rows.y, rows.devices, each, weights, least, rows.rng)


def _continuous(rows: Undealt) -> Parts:
    if rows.y.ndim != 1:
        raise DelianError(
            f"a continuous partition sorts by one number, and {rows.y.shape[1]} are learnt",
            "set data.partition = iid",
        )
    return amounts.continuous(rows.y, rows.devices, rows.deal.strictness, rows.rng)


def _law(name: str) -> Partitioner:
    return Partitioner(
        lambda rows: amounts.by_law(len(rows.y), rows.devices, amounts.LAWS[name]),
        lambda deal: f"amounts {name} in the device's number",
    )


#: Every partition but the natural one, which needs owners (docs/scenarios.md has the papers).
PARTITIONERS: dict[str, Partitioner] = {
    "dirichlet": Partitioner(
        _dirichlet,
        lambda deal: (
            f"label skew, Dirichlet({deal.alpha:g})"
            f"{', self-balancing' if deal.self_balancing else ''}"
            f", at least {deal.min_examples} each"
        ),
    ),
    "iid": Partitioner(
        lambda rows: amounts.even(len(rows.y), rows.devices),
        lambda deal: "even shares, in order" if deal.draws == "flwr" else "even shares, shuffled",
    ),
    "shards": Partitioner(
        _shards,
        lambda deal: (
            f"sorted by label, {deal.labels_each} shards each"
            if deal.labels_each
            else f"sorted by label, shards of {deal.shard_size}"
        ),
    ),
    "quantity": Partitioner(
        lambda rows: amounts.dirichlet_amounts(
            len(rows.y), rows.devices, rows.deal.alpha, rows.rng, rows.deal.min_examples
        ),
        lambda deal: f"amounts by Dirichlet({deal.alpha:g}), at least {deal.min_examples} each",
    ),
    "pathological": Partitioner(
        _pathological,
        lambda deal: f"{deal.labels_each} labels each ({deal.assignment})",
    ),
    "inner_dirichlet": Partitioner(
        lambda rows: label_mixtures.inner_dirichlet(
            rows.y, _sizes(rows), rows.deal.alpha, rows.rng
        ),
        lambda deal: (
            f"{'given' if deal.sizes else 'even'} amounts, labels by Dirichlet({deal.alpha:g})"
        ),
    ),
    "distribution": Partitioner(
        _distribution,
        lambda deal: f"{deal.labels_each} labels each, amounts log-normal({deal.sigma:g})",
    ),
    **{name: _law(name) for name in amounts.LAWS},
    "size": Partitioner(
        lambda rows: amounts.by_sizes(len(rows.y), _sizes(rows)),
        lambda deal: "given amounts" if deal.sizes else "even amounts",
    ),
    "continuous": Partitioner(
        _continuous,
        lambda deal: f"sorted by what is learnt, strictness {deal.strictness:g}",
    ),
}


def deal_out(y: NDArray[Any], devices: int, deal: Deal, seed: int) -> Parts:
    """The row numbers of each device, of any partition but the natural one.

    y: labels i32 [n], or numbers f32 [n] or [n, k].

    Raises:
        DelianError: there are too few rows for that many devices, or what the partitioner raises.
    """
    least = 1 if deal.partition == "iid" else deal.min_examples
    if len(y) < devices * least:
        raise DelianError(
            f"{counted(len(y), 'example', 'examples')} cannot give {devices} devices at least"
            f" {least} each",
            f"use at most {counted(max(1, len(y) // least), 'device', 'devices')}, or lower"
            " data.min_examples",
        )
    assert deal.partition not in BY_LABEL or y.dtype != np.float32, "numbers have no labels"
    order, rng = np.arange(len(y)), np.random.default_rng(seed)
    if deal.draws == "flwr_shuffled":
        order = np.random.default_rng(seed).permutation(len(y))
    elif deal.draws == "delian":
        rng = np.random.default_rng([seed, PARTITION_STREAM])
        # This one shuffles the rows of each label.
        order = order if deal.partition == "dirichlet" else rng.permutation(len(y))
    parts = [
        order[part]
        for part in PARTITIONERS[deal.partition].parts(Undealt(y[order], devices, deal, seed, rng))
    ]
    _check_least(parts, len(y), least, deal)
    return [np.sort(part) for part in parts] if deal.draws == "delian" else parts


def _check_least(parts: Parts, examples: int, least: int, deal: Deal) -> None:
    """Raises DelianError for a device with fewer examples than each must have."""
    device = min(range(len(parts)), key=lambda i: len(parts[i]))
    if len(parts[device]) >= least:
        return
    law = amounts.LAWS.get(deal.partition)
    fitting = amounts.most_devices(examples, law, least) if law else 0
    fewer = f"set fleet.devices to at most {fitting}" if fitting else "lower fleet.devices"
    raise DelianError(
        f"the {deal.partition} partition gives device {device} {len(parts[device])} of {examples} "
        f"examples, and each must have {least}",
        f"{fewer}, lower data.min_examples, or choose another data.partition",
    )


def words(deal: Deal) -> str:
    """How `deal_out` deals, for a report."""
    said = PARTITIONERS[deal.partition].words(deal)
    return said if deal.draws == "delian" else f"{said}; drawn as flwr-datasets draws"


def shifted(
    x: NDArray[Any], y: NDArray[Any], parts: Parts, deal: Deal, classes: int, seed: int
) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Examples and labels with what devices have of their own, and that in words."""
    said = ""
    if deal.rotations > 1:
        x = shifts.rotate(x, parts, deal.rotations)
        said += f"; images turned by {deal.rotations} angles"
    if deal.feature_noise:
        x = x.astype(np.float32)
        variance = deal.feature_noise * float(x.std()) ** 2
        x = shifts.add_noise(x, parts, variance, seed)
        said += f"; noise of up to {deal.feature_noise:g} of the data's variance"
    if deal.concepts > 1:
        assert y.dtype != np.float32, "numbers have no labels to permute"
        y = shifts.permute_labels(y, parts, deal.concepts, classes, seed)
        said += f"; {deal.concepts} meanings of labels"
    return x, y, said
