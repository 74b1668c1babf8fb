"""Judges partitions by flwr-datasets: the same rows, in the same order, on the same device.

    python tests/judges/partitions.py

Needs flwr-datasets (0.6.1) and scikit-learn, whose digits are dealt out. Each of its horizontal
partitioners is compared for several settings and seeds, in the file's order and after the shuffle
that `FederatedDataset` makes first; one partition is by a `FederatedDataset` itself, which reads
a local file (HF_HUB_OFFLINE=1). Prints a line a partitioner; exits with 1 where a row differs.
Without flwr-datasets nothing is judged.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from delian.core.learning.data import Deal, digits
from delian.core.learning.data.partition import amounts, label_mixtures, label_skew
from delian.core.learning.data.partition.partitioners import deal_out
from numpy.typing import NDArray

SEEDS = (0, 1, 42, 2024)
DEVICES = (3, 10, 30)
ROW, LABEL, OWNER, NUMBER = "row", "label", "owner", "number"
Rows = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One partition by both."""

    name: str
    """The class of flwr-datasets."""
    settings: dict[str, Any]
    """Its arguments."""
    ours: Callable[[Rows, int, str], list[Rows]]
    """Of a column's values, a seed, and `draws`."""
    column: str = LABEL
    """What ours sees."""
    seeds: tuple[int, ...] = SEEDS


def dealt(devices: int, **keys: Any) -> Callable[[Rows, int, str], list[Rows]]:
    """What a scenario with these keys deals out."""
    return lambda y, seed, draws: deal_out(y, devices, Deal(draws=draws, **keys), seed)


def in_order(function: Callable[..., list[Rows]], *arguments: Any) -> Any:
    """A partitioner with arguments that scenarios do not have: a list of alphas, given weights."""

    def ours(y: Rows, seed: int, draws: str) -> list[Rows]:
        order = np.arange(len(y))
        if draws == "flwr_shuffled":
            order = np.random.default_rng(seed).permutation(len(y))
        parts = function(y[order], *arguments, np.random.default_rng(seed))
        return [order[part] for part in parts]

    return ours


def natural(group: int) -> Callable[[Rows, int, str], list[Rows]]:
    """The data's own devices in groups."""

    def ours(y: Rows, seed: int, draws: str) -> list[Rows]:
        order = np.arange(len(y))
        if draws == "flwr_shuffled":
            order = np.random.default_rng(seed).permutation(len(y))
        names, owners = np.unique(y[order], return_inverse=True)
        parts = amounts.natural(owners, [str(name) for name in names])
        joined, _ = amounts.grouped(parts, [str(name) for name in names], group)
        return [order[part] for part in joined]

    return ours


def cases() -> Iterator[Case]:
    by = {"partition_by": LABEL}
    for n in DEVICES:
        own = {"num_partitions": n}
        yield Case("IidPartitioner", own, dealt(n, partition="iid"))
        for alpha, balanced, least in itertools.product((0.3, 1.0, 10.0), (False, True), (0, 2)):
            yield Case(
                "DirichletPartitioner",
                own
                | by
                | {"alpha": alpha, "self_balancing": balanced, "min_partition_size": least},
                dealt(n, alpha=alpha, self_balancing=balanced, min_examples=least),
            )
        alphas = np.linspace(0.5, 2.0, n).tolist()
        yield Case(
            "DirichletPartitioner",
            own | by | {"alpha": alphas, "min_partition_size": 1},
            in_order(lambda y, n, a, rng: label_skew.redrawn_dirichlet(y, n, a, rng, 1), n, alphas),
        )
        for each, how in itertools.product(
            (1, 2, 5), ("random", "first-deterministic", "deterministic")
        ):
            yield Case(
                "PathologicalPartitioner",
                own | by | {"num_classes_per_partition": each, "class_assignment_mode": how},
                dealt(n, partition="pathological", labels_each=each, assignment=how),
            )
        for each, size, keep in (
            (2, None, False),
            (3, None, True),
            (2, 20, False),
            (None, 16, False),
            (None, 25, True),
        ):
            yield Case(
                "ShardPartitioner",
                own
                | by
                | {
                    "num_shards_per_partition": each,
                    "shard_size": size,
                    "keep_incomplete_shard": keep,
                },
                dealt(
                    n,
                    partition="shards",
                    labels_each=each or 0,
                    shard_size=size or 0,
                    keep_incomplete=keep,
                ),
            )
        for law in ("linear", "square") + (("exponential",) if n < 10 else ()):
            yield Case(f"{law.title()}Partitioner", own, dealt(n, partition=law, min_examples=1))
        sizes = (np.arange(1, n + 1) * 1797 // (n * (n + 1) // 2)).tolist()
        yield Case(
            "SizePartitioner",
            {"partition_sizes": sizes},
            dealt(n, partition="size", sizes=tuple(sizes)),
        )
        for alpha, amount in itertools.product((0.5, 1.0, 10.0), (sizes, [1797 // n // 2] * n)):
            yield Case(
                "InnerDirichletPartitioner",
                {"partition_sizes": amount, **by, "alpha": alpha},
                dealt(n, partition="inner_dirichlet", sizes=tuple(amount), alpha=alpha),
            )
        for strict in (0.0, 0.5, 1.0):
            yield Case(
                "ContinuousPartitioner",
                own | {"partition_by": NUMBER, "strictness": strict},
                dealt(n, partition="continuous", strictness=strict),
                NUMBER,
            )
        for each, least in ((2, 1), (5, 3)):
            if n % 10 == 0:
                weights = np.random.default_rng(7).lognormal(0, 2, (10, each * n // 10))
                yield Case(
                    "DistributionPartitioner",
                    own
                    | by
                    | {
                        "distribution_array": weights,
                        "num_unique_labels_per_partition": each,
                        "preassigned_num_samples_per_label": least,
                    },
                    in_order(label_mixtures.distribution, n, each, weights, least),
                )
    for n, least in ((10, 2), (20, 10), (50, 10)):
        # A scenario draws the weights from a generator of the same seed.
        for seed in SEEDS:
            yield Case(
                "DistributionPartitioner",
                {
                    "num_partitions": n,
                    **by,
                    "distribution_array": np.random.default_rng(seed).lognormal(
                        0, 2, (10, 2 * n // 10)
                    ),
                    "num_unique_labels_per_partition": 2,
                    "preassigned_num_samples_per_label": least // 2,
                },
                dealt(n, partition="distribution", min_examples=least),
                seeds=(seed,),
            )
    yield Case("NaturalIdPartitioner", {"partition_by": OWNER}, natural(1), OWNER)
    for group in (2, 4, 50):
        yield Case(
            "GroupedNaturalIdPartitioner",
            {"partition_by": OWNER, "group_size": group, "sort_unique_ids": True},
            natural(group),
            OWNER,
        )


def flower_parts(case: Case, table: Any, seed: int) -> list[Rows] | None:
    """The rows by flwr-datasets; None: it refuses the settings."""
    import flwr_datasets.partitioner as flower

    kind = getattr(flower, case.name)
    seeded = "seed" in kind.__init__.__code__.co_varnames
    made = kind(**case.settings, **({"seed": seed} if seeded else {}))
    made.dataset = table
    try:
        return [np.array(made.load_partition(i)[ROW]) for i in range(made.num_partitions)]
    except ValueError:
        return None


def ours_parts(case: Case, values: Rows, seed: int, draws: str) -> list[Rows] | None:
    from delian.core.common.errors import DelianError

    try:
        return case.ours(values, seed, draws)
    except DelianError:
        return None


def judge(case: Case, table: Any, seed: int, draws: str) -> str:
    """`equal`, `refused` (by both), or what differs."""
    mixed = table.shuffle(seed=seed) if draws == "flwr_shuffled" else table
    theirs = flower_parts(case, mixed, seed)
    ours = ours_parts(case, np.array(table[case.column]), seed, draws)
    if theirs is None or ours is None:
        return "refused" if theirs is ours else f"refused by {'ours' if ours is None else 'flwr'}"
    same = len(ours) == len(theirs)
    same = same and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return "equal" if same else "different"


def judge_whole(rows: Any) -> str:
    """A partition of a file that `FederatedDataset` reads and shuffles, by its shuffle's seed."""
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import DirichletPartitioner

    made = DirichletPartitioner(10, LABEL, 0.5, seed=SEEDS[-1])
    with tempfile.TemporaryDirectory() as folder:
        rows.to_parquet(f"{folder}/train.parquet")
        whole = FederatedDataset(
            dataset=folder, partitioners={"train": made}, shuffle=True, seed=SEEDS[-1]
        )
        theirs = [list(whole.load_partition(i)[ROW]) for i in range(10)]
    deal = Deal(alpha=0.5, min_examples=10, draws="flwr_shuffled")
    ours = deal_out(np.array(rows[LABEL]), 10, deal, SEEDS[-1])
    return "equal" if [part.tolist() for part in ours] == theirs else "different"


def main() -> int:
    if importlib.util.find_spec("flwr_datasets") is None:
        print("flwr-datasets is not installed: nothing is judged")
        return 0
    import datasets

    datasets.disable_progress_bars()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(5)
    rows = digits()
    table = datasets.Dataset.from_dict(
        {
            ROW: np.arange(len(rows.y)),
            LABEL: rows.y.astype(np.int64),
            OWNER: [f"w{n:02d}" for n in rng.integers(0, 43, len(rows.y))],
            NUMBER: rows.x.reshape(len(rows.y), -1).mean(axis=1),
        }
    )
    verdicts: dict[str, dict[str, int]] = {"FederatedDataset": {judge_whole(table): 1}}
    for case in cases():
        for seed, draws in itertools.product(case.seeds, ("flwr", "flwr_shuffled")):
            verdict = judge(case, table, seed, draws)
            counts = verdicts.setdefault(case.name, {})
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict not in ("equal", "refused"):
                shown = {k: v for k, v in case.settings.items() if k != "distribution_array"}
                print(f"{case.name} {shown}, seed {seed}, {draws}: {verdict}")
    for name, counts in verdicts.items():
        print(f"{name:32}", ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    return int(any(set(counts) - {"equal", "refused"} for counts in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
