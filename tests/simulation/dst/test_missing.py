"""Each check that attacks rely on can be left out: hostile seeds then fail."""

from __future__ import annotations

import pytest
from delian.simulations.dst.oracles.edge_book import OracleFailure
from support.mutants.missing import CHECKS, SEEDS, found, without, world_of


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_without_a_check_one_of_its_attacks_fails(check):
    """In one small federation; the seeds that `delian dst` draws are in the slow test."""
    for attack in check.attacks:
        with without(check), pytest.raises(OracleFailure) as caught:
            world_of((attack, check.where)).run()
        assert caught.value.oracle in ("attack", "ledger"), caught.value


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_without_a_check_hostile_seeds_fail(check):
    # Where a machine has changed since, another seed fails; its own saves the search.
    failure = found(check, [check.seed, *range(SEEDS)])
    assert failure is not None and failure.oracle in ("attack", "ledger", "sum", "machine")
