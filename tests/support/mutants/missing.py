"""Checks that attacks rely on, each of which can be left out: whether hostile seeds then fail.

    python -m support.mutants.missing [--seeds 40]

For each check the seeds are run, with nothing else changed, until one fails: a check that no seed
needs is one that nothing shows to be there. For tests and for people; nothing else imports it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from delian.core.node.identity.artifacts import manifest
from delian.core.privacy.secagg.client import ClientSession
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.device.protocol import acceptance, releases
from delian.device.protocol.acceptance import Acceptance
from delian.simulations.dst.check import Failure, check_seed
from delian.simulations.dst.draws import Rng
from delian.simulations.dst.hostile import hostile_bundles
from delian.simulations.dst.hostile.attacks import Attack, Scheme
from delian.simulations.dst.swarm import FaultPlan, attacked, colluders, draw
from delian.simulations.dst.world import World

#: Seeds within which each must show.
SEEDS: Final = 150


@dataclass(frozen=True, slots=True)
class Check:
    """A check that is left out."""

    name: str
    """What it checks."""
    owner: Any
    """The module or class that has it."""
    at: str
    """Its name there."""
    instead: Callable[..., Any]
    """What stands in its place."""
    attacks: tuple[Attack, ...]
    """Some that it finds out."""
    where: Node = CLOUD
    """The node whose attacks they are."""
    seed: int = 0
    """A hostile seed that fails without it."""


def _nothing(*told: Any, **more: Any) -> None:
    """Checks nothing."""


def _as_given(given: Any) -> Any:
    return given


_check_neighbour = ClientSession._check_neighbour


def _any_number(session: ClientSession, bundle: Any, device: int, leaf: bytes) -> None:
    """Lets a certificate stand under another's number."""
    _check_neighbour(session, bundle, bundle.device, leaf)


CHECKS: Final = (
    Check(
        "the signature of a task",
        acceptance,
        "check",
        _nothing,
        (Attack.OTHER_KEY, Attack.OTHER_MODEL),
        Node(Tier.EDGE, 1),
        seed=8,
    ),
    Check("noise and survivors", releases, "check", _nothing, (Attack.LARGE_NOISE_PLAN,), seed=64),
    Check(
        "the age of the deny list",
        Acceptance,
        "knows_too_little",
        lambda self: False,
        (Attack.WITHHELD_DENY_LIST,),
        seed=1,
    ),
    Check("masks", Acceptance, "lacks_masks", lambda *told: False, (Attack.NO_MASKS,), seed=23),
    Check(
        "the owner's floors", ClientSession, "_check_policy", _nothing, (Attack.SMALL_PLAN,), seed=7
    ),
    Check(
        "the threshold of consents",
        ClientSession,
        "_check_consents",
        _nothing,
        (Attack.TWO_SURVIVORS, Attack.FORGED_CONSENTS),
        seed=4,
    ),
    Check(
        "neighbours' keys",
        ClientSession,
        "_check_neighbour",
        _nothing,
        (Attack.UNSIGNED_KEYS,),
        seed=5,
    ),
    Check(
        "numbers in the list of members",
        ClientSession,
        "_check_neighbour",
        _any_number,
        (Attack.TWO_SEATS,),
        seed=16,
    ),
    Check(
        "the certificate log",
        ClientSession,
        "_check_log",
        lambda self, cohort: self.state.log,
        (Attack.UNLOGGED_SYBILS, Attack.FORKED_LOG),
        seed=25,
    ),
    Check(
        "the number of survivors",
        ClientSession,
        "_check_survivors",
        _nothing,
        (Attack.SMALL_SUM,),
        seed=10,
    ),
    Check(
        "the bundle of a manifest",
        manifest,
        "check_bundle",
        _nothing,
        (Attack.BUNDLE_REPLACED,),
        seed=52,
    ),
    Check(
        "the facts of a manifest",
        manifest,
        "check_task",
        _nothing,
        (Attack.BUNDLE_LARGE_CLIP, Attack.BUNDLE_LESS_NOISE, Attack.BUNDLE_LOW_FLOOR),
        seed=7,
    ),
    Check(
        "the uses of a key",
        hostile_bundles,
        "check_keys",
        _as_given,
        (Attack.BUNDLE_BY_KEY,),
        seed=11,
    ),
)


def world_of(*attacks: tuple[Attack, Node], sessions: int = 2, rounds: int = 2) -> World:
    """Twelve devices at two edges, masked rounds, the attackers among them, and no other fault."""
    shape = replace(
        attacked(Rng(7, "plots"), draw(0, 12, 2)[0]),
        secure=True,
        cohort=8,
        orders=(),
        rounds=rounds,
        attempts_max=500,
        evaluate_every=0,
        buffer=0,
        concurrency=0,
        pool_min=0,
        patience=0,
        round_s=16.0,
    )
    own = colluders(Rng(8, "plots"), shape)
    schemes = tuple(Scheme(attack, where, sessions, own) for attack, where in attacks)
    first = schemes[0] if schemes else None
    return World(3, shape, FaultPlan(heal_s=200.0, scheme=first, together=schemes[1:]))


@contextmanager
def without(check: Check) -> Iterator[None]:
    """Runs without a check."""
    hostile_bundles.opened.cache_clear()  # what was found with it
    try:
        with patch.object(check.owner, check.at, check.instead):
            yield
    finally:
        hostile_bundles.opened.cache_clear()


def found(check: Check, seeds: Iterable[int]) -> Failure | None:
    """The first hostile seed that fails without the check."""
    with without(check):
        runs = (check_seed(seed, hostile=True) for seed in seeds)
        return next((one for one in runs if isinstance(one, Failure)), None)


def main() -> int:
    """Prints what each check that is left out leads to; 1 where one leads to nothing."""
    parser = argparse.ArgumentParser(prog="python -m support.mutants.missing")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds each")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    asked = parser.parse_args()
    seeds, missed = range(asked.first, asked.first + asked.seeds), 0
    for check in CHECKS:
        failure = found(check, seeds)
        missed += failure is None
        told = "NOT FOUND"
        if failure is not None:
            told = f"seed {failure.seed}: {failure.oracle}: {failure.what}"
        print(f"without {check.name}: {told}"[:160], flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
