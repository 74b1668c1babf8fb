"""Partitioners that do not look at labels: how many rows a device has, and by which order.

Each gives one array of row numbers a device. Those that name a class of flwr-datasets give the
same rows; but `continuous` they draw nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .label_skew import Parts, shuffled

Law = Callable[[NDArray[np.float64]], NDArray[np.float64]]

#: By partition, how a device's amount grows with its number, counted from 1.
LAWS: dict[str, Law] = {"linear": lambda i: i, "square": np.square, "exponential": np.exp}
#: The least deviation of values that can be put into an order.
DEVIATION_MIN = 1e-6


def even(examples: int, devices: int) -> Parts:
    """`IidPartitioner`: as many rows each; the first devices have one more where it must be."""
    return np.array_split(np.arange(examples, dtype=np.int64), devices)


def dirichlet_amounts(
    examples: int, devices: int, alpha: float, rng: np.random.Generator, min_examples: int
) -> Parts:
    """Quantity skew by Dirichlet(alpha) (Li et al. 2022), at least `min_examples` each."""
    spare = examples - devices * min_examples
    shares = rng.dirichlet(np.full(devices, alpha))
    least = min_examples * np.arange(1, devices + 1)
    ends = np.round(np.cumsum(shares) * spare).astype(np.int64) + least
    return np.split(np.arange(examples, dtype=np.int64), ends[:-1])


def by_law(examples: int, devices: int, law: Law) -> Parts:
    """`LinearPartitioner`, `SquarePartitioner`, `ExponentialPartitioner`: amounts by a law.

    Rows that rounding down leaves over are the last device's.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        units = law(np.arange(1.0, devices + 1))
        shares = units / units.sum()
    if not np.isfinite(shares).all():
        raise DelianError(
            f"an exponential partition of {devices} devices needs e^{devices} examples",
            "lower fleet.devices",
        )
    amounts = (shares * examples).astype(np.int64)
    amounts[-1] += examples - amounts.sum()
    return by_sizes(examples, amounts.tolist())


def most_devices(examples: int, law: Law, least: int) -> int:
    """How many devices a law can give at least so many examples each; the first has fewest."""
    with np.errstate(over="ignore"):
        units = law(np.arange(1.0, examples + 1))
        first = (units[0] / np.cumsum(units) * examples).astype(np.int64)
    return int(np.count_nonzero(first >= least))


def by_sizes(examples: int, sizes: Sequence[int]) -> Parts:
    """`SizePartitioner`: so many rows each, one device's after the other's.

    Raises:
        DelianError: there are fewer rows.
    """
    if sum(sizes) > examples:
        raise DelianError(
            f"data.sizes sum to {sum(sizes)}, and there are {examples} examples",
            "lower the sizes",
        )
    return np.split(np.arange(examples, dtype=np.int64), np.cumsum(sizes))[:-1]


def continuous(
    values: NDArray[Any], devices: int, strictness: float, rng: np.random.Generator
) -> Parts:
    """`ContinuousPartitioner`: devices have different ranges of a number.

    Rows are sorted by `strictness` x the standardised value + (1 - strictness) x noise, and cut
    evenly. values: [n].

    Raises:
        DelianError: the values are all the same.
    """
    numbers = values.astype(np.float32)
    deviation = np.std(numbers)
    if deviation < DEVIATION_MIN:
        raise DelianError(
            "a continuous partition sorts by what is learnt, and all its values are the same",
            "set data.partition = iid",
        )
    standard = (numbers - np.mean(numbers)) / deviation
    noise = rng.normal(loc=0, scale=1, size=len(standard))
    order = np.argsort(strictness * standard + (1 - strictness) * noise)
    return shuffled(np.array_split(order.astype(np.int64), devices), rng)


def natural(owners: NDArray[np.int64], names: Sequence[str]) -> Parts:
    """`NaturalIdPartitioner`: the data's own devices, in the order of their names.

    `owners[i]`, an index into names, has example i.

    Raises:
        DelianError: a device has no examples.
    """
    order = np.argsort(owners, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(owners, minlength=len(names)))
    parts = np.split(order, ends[:-1])
    for name, part in zip(names, parts, strict=True):
        if len(part) == 0:
            raise DelianError(
                f"device `{name}` has no samples", "leave it out of the file's devices"
            )
    return parts


def grouped(parts: Parts, names: Sequence[str], group: int) -> tuple[Parts, tuple[str, ...]]:
    """`GroupedNaturalIdPartitioner`: so many devices after each other become one.

    The last one may have fewer. Its name is that of the first, and how many more there are.
    """
    starts = range(0, len(parts), group)
    joined = [np.concatenate(parts[i : i + group]) for i in starts]
    more = (len(names[i : i + group]) - 1 for i in starts)
    titles = (f"{names[i]} +{n}" if n else names[i] for i, n in zip(starts, more, strict=True))
    return joined, tuple(titles)
