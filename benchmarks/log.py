"""What the proofs of the certificate log cost: `core.common.merkle_tree` on one core.

    python benchmarks/log.py --json

In logs of 1,000, 100,000 and 1,000,000 certificates, for one certificate and for a hundred at once
(the neighbours of a device in a masked session):

- `check_ms`: a device computes the root from the leaves and the proof, and compares it.
- `cut_ms`: a coordinator cuts the proof from paths that it prepared for the cohort; `prepare_ms` is
  that preparation, once a cohort.
- `bytes`: the proof's size.

Leaves are hashes of random entries at random places. A figure is the processor time of one call,
the best of some rounds of calls: other work on the machine only adds. Building the largest tree
takes some seconds and 64 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from delian.core.common.merkle_tree import Paths, Tree, check_consistency, leaf_hash, root_of

SIZES = (1_000, 100_000, 1_000_000)
LEAVES = (1, 100)
#: ms to check that one certificate is in the log, in the largest one.
GOAL_CHECK_MS = 1.0
ROUND_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the best counts")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    result: dict[str, Any] = {"rows": measure(args.repeat), "cores": os.cpu_count()}
    result["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
    result["targets"] = targets(result["rows"])
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    for row in result["rows"]:
        print("  ".join(f"{name} {value:g}" for name, value in row.items()))
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"{target['name']}: {target['measured']:g} (goal {target['goal']:g}): {mark}")


def measure(repeat: int) -> list[dict[str, Any]]:
    """A row for each size and number of leaves."""
    draw = random.Random(1)
    tree, rows = Tree(), []
    for size in SIZES:
        while tree.size < size:
            tree.append(leaf_hash(draw.randbytes(57)))
        for count in LEAVES:
            rows.append(_row(tree, size, sorted(draw.sample(range(size), count)), repeat))
    return rows


def _row(tree: Tree, size: int, indices: list[int], repeat: int) -> dict[str, Any]:
    root, proof = tree.root(size), tree.inclusion(indices, size)
    leaves, paths = {i: tree.leaf(i) for i in indices}, Paths(tree, indices, size)
    old = size * 9 // 10
    old_root, consistency = tree.root(old), tree.consistency(old, size)

    def check() -> None:
        if root_of(leaves, size, proof) != root:
            raise AssertionError("the proof does not hold")

    return {
        "size": size,
        "leaves": len(indices),
        "bytes": len(proof),
        "check_ms": _ms(check, repeat),
        "cut_ms": _ms(lambda: paths.proof(indices), repeat),
        "prepare_ms": _ms(lambda: Paths(tree, indices, size), repeat),
        "consistency_ms": _ms(
            lambda: check_consistency(old, old_root, size, root, consistency), repeat
        ),
    }


def _ms(call: Callable[[], object], repeat: int) -> float:
    """Processor time of one call, ms: the best of some rounds."""
    once = _timed(call, 1)
    calls = max(1, int(ROUND_S / max(once, 1e-7)))
    return round(min(_timed(call, calls) for _ in range(repeat)) / calls * 1e3, 4)


def _timed(call: Callable[[], object], calls: int) -> float:
    begin = time.process_time()
    for _ in range(calls):
        call()
    return time.process_time() - begin


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, and was."""
    one = next(row for row in rows if row["size"] == SIZES[-1] and row["leaves"] == 1)
    measured = one["check_ms"]
    name = f"check_ms of one certificate in {SIZES[-1]}"
    met = measured <= GOAL_CHECK_MS
    return [{"name": name, "goal": GOAL_CHECK_MS, "measured": measured, "met": met}]


if __name__ == "__main__":
    main()
