"""Bugs that are planted one at a time, and what finds each: oracles of `delian dst`, or a test.

    cd tests; python -m support.planted [--seeds 150] [--json]

One row a bug: its kind, where it was found, and how many seeds that took from seed 0 on. Exits 1
when one is not found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from delian.simulations.dst.check import Failure, check_seed

from support import mutants
from support.mutants.missing import CHECKS, found

_TESTS = Path(__file__).parents[1]
#: Seeds within which an oracle finds each.
SEEDS = 150
#: Begins the line that names the mutants whose tests fail.
_FAIL = "fail:"
#: Kind of bug -> the name of a mutant, or of a check of `missing` that is left out.
KINDS = {
    "dropped journal write": "journals_one_entry_less",
    "write not synced": "does_not_sync",
    "state change not journaled": "journals_too_little",
    "effect before durable (batches)": "acknowledges_before_it_is_durable",
    "effect before durable (event loop)": "does_not_wait_for_the_append",
    "stale snapshot": "checkpoints_before_the_batch",
    "double count at an edge": "counts_twice",
    "double use at the coordinator": "uses_a_batch_twice",
    "wrong weight": "weighs_ages_off_by_one",
    "lost survivor": "unmasks_for_others",
    "skipped signature of neighbours": "verifies_no_neighbour",
    "unsigned plan": "the signature of a task",
    "threshold of consents": "the threshold of consents",
    "threshold of shares off by one": "needs_one_share_less",
    "timer lost by the driver": "loses_a_timer_that_is_set_again",
    "timer lost by the coordinator": "waits_for_ever_after_restart",
    "cancelled timer fires": "fires_cancelled_timers",
    "answer of a stale round": "counts_late",
    "stale update": "keeps_stale_updates",
    "old weights": "forgets_ordered_weights",
    "state not cleared": "carries_over_a_failed_sum",
    "attempts_max not cleared": "counts_failures_for_ever",
    "attempts_max off by one": "tries_once_more",
    "stall taken for silence": "counts_its_own_stall",
    "write-ahead log cut (journal)": "takes_a_cut_for_a_torn_end",
    "write-ahead log cut (SQLite)": "trusts_sqlite_to_have_all",
    "ledger of the CA cut": "takes_a_shorter_ledger",
    "bit flipped in a pack": "trusts_packs",
    "blob flipped on disk": "trusts_the_names_of_blobs",
    "blob flipped on its way": "does_not_check_digests",
    "blob flipped on its way (daemon)": "keeps_whatever_arrives",
}


@dataclass(frozen=True)
class Row:
    """What became of one bug.

    by: the oracle, or the test; "": not found.
    seeds: how many seeds were run, that which found it included; None: a test found it.
    """

    kind: str
    name: str
    by: str
    seeds: int | None


def row(kind: str, seeds: int) -> Row:
    """Plants the bug of a kind and looks for it."""
    name = KINDS[kind]
    module = mutants
    for mutant in module.MUTANTS:
        if mutant.name == name:
            return _by_oracle(kind, mutant, seeds)
    for mutant in module.STORE_MUTANTS:
        if mutant.name == name:
            return Row(kind, name, mutant.test if test_fails(mutant) else "", None)
    (check,) = (check for check in CHECKS if check.name == name)
    failure = found(check, range(seeds))
    if failure is None:
        return Row(kind, f"without {name}", "", seeds)
    return Row(kind, f"without {name}", f"{failure.oracle} (hostile)", failure.seed + 1)


def _by_oracle(kind: str, mutant: Any, seeds: int) -> Row:
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        for seed in range(seeds):
            failure = check_seed(seed)
            if isinstance(failure, Failure) and failure.oracle in mutant.oracles:
                return Row(kind, mutant.name, failure.oracle, seed + 1)
    return Row(kind, mutant.name, "", seeds)


def test_fails(mutant: Any) -> bool:
    """Whether a mutant's test passes without the bug, and fails with it."""
    return mutant.name in failing([mutant.name])


def failing(names: Sequence[str]) -> set[str]:
    """Those of the mutants of stores whose test passes without the bug, and fails with it.

    All in one process beside this one, which imports the tests once.
    """
    command = [sys.executable, "-m", "support.planted", "--test", ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=_TESTS)
    *_, last = ["", *done.stdout.splitlines()]
    return set(last.removeprefix(_FAIL).split()) if last.startswith(_FAIL) else set()


def _run_tests(names: Sequence[str]) -> None:
    """Runs the tests of mutants, and prints those that only the bug fails."""
    found = []
    for mutant in mutants.STORE_MUTANTS:
        if mutant.name in names:
            sound, planted = (_run_test(mutant, plant) for plant in (False, True))
            if (sound, planted) == (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                found.append(mutant.name)
    print(_FAIL, *found)


def _run_test(mutant: Any, plant: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        if plant:
            mutant.plant(patch)
        return pytest.main(["-q", "-x", "-p", "no:cacheprovider", mutant.path])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds each, at most")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    parser.add_argument("--test", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.test:
        _run_tests(asked.test.split(","))
        return 0
    rows = []
    if not asked.json:
        print(f"{'kind':36}{'seeds':>6}  {'planted':36}found by")
    for kind in KINDS:
        rows.append(one := row(kind, asked.seeds))
        if not asked.json:
            seeds = "-" if one.seeds is None else one.seeds
            print(f"{kind:36}{seeds:>6}  {one.name:36}{one.by or 'NOT FOUND'}", flush=True)
    missed = [one.kind for one in rows if not one.by]
    if asked.json:
        print(json.dumps({"rows": [asdict(one) for one in rows], "missed": missed}))
    else:
        print(f"{len(rows) - len(missed)} of {len(rows)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
