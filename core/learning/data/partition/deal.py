"""How examples are dealt out: the values that `partitioners.deal_out` takes.

Scenarios derive their keys from here, and are read without NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Partition = Literal[
    "dirichlet",
    "iid",
    "shards",
    "quantity",
    "pathological",
    "inner_dirichlet",
    "distribution",
    "linear",
    "square",
    "exponential",
    "size",
    "continuous",
]
AnyPartition = Literal[Partition, "natural"]
#: Partitions of labels; others can deal out numbers that are learnt.
BY_LABEL = frozenset(("dirichlet", "shards", "pathological", "inner_dirichlet", "distribution"))
Assignment = Literal["random", "first-deterministic", "deterministic"]
Draws = Literal["delian", "flwr", "flwr_shuffled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """How examples are dealt out to devices, and what devices have of their own in them."""

    partition: AnyPartition = "dirichlet"
    """How examples are dealt out: a name of `partitioners.PARTITIONERS`, or `natural`."""
    draws: Draws = "delian"
    """`flwr`: the rows that flwr-datasets gives by the same seed; `flwr_shuffled`: the same after
    the shuffle of `FederatedDataset`; `delian`: rows in random order, and in a `dirichlet`
    partition devices with too few get rows of others.
    """
    alpha: float = 0.3
    """Skew of a `dirichlet`, `inner_dirichlet` or `quantity` partition: small is skewed, 100 nearly
    even.
    """
    labels_each: int = 2
    """Labels on a device, of a `pathological` or `distribution` partition; shards on a device, of a
    `shards` partition, about so many labels. 0 shards: all of `shard_size`.
    """
    assignment: Assignment = "random"
    """Which labels a device of a `pathological` partition has: all by chance, all but the first, or
    none (device d has the labels d, d + 1, ...).
    """
    self_balancing: bool = False
    """Whether a device of a `dirichlet` partition with more rows than the average gets no more."""
    sizes: tuple[int, ...] = ()
    """Each device's examples, of a `size` or `inner_dirichlet` partition; none: as many each."""
    shard_size: int = 0
    """Examples in a shard, of a `shards` partition; 0: as many as fit."""
    keep_incomplete: bool = False
    """Whether a last shard with fewer examples is dealt out too."""
    sigma: float = 2.0
    """Deviation of the logarithm of a device's amount of a label, of a `distribution` partition."""
    strictness: float = 1.0
    """How far a `continuous` partition goes by what is learnt: 0 not at all, 1 by it alone."""
    group_size: int = 1
    """So many of the data's own devices are one device, of a `natural` partition."""
    min_examples: int = 2
    """Every device has at least this many examples; natural devices with fewer are left out."""
    feature_noise: float = 0.0
    """Variance of the noise on the last device's examples, in variances of the data; the first has
    least.
    """
    rotations: int = 1
    """Square images of device i are turned by (i mod `rotations`) / `rotations`: 1, 2 or 4."""
    concepts: int = 1
    """So many groups of devices differ in what a label means: all but the first permute them."""
