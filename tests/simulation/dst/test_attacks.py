"""A coordinator or an edge that attacks, with the keys of some devices: honest devices end the
session and say why, no second share leaves, and the run goes on when it is over.

What must never happen (a second share, a second set, an update without masks) the auditor watches
in all of them; `OracleFailure` would end a test. That it would is shown too, with devices that have
one check less.
"""

from __future__ import annotations

import pytest
from delian.core.privacy.secagg.client import ClientSession
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.device.protocol.acceptance import Acceptance
from delian.device.protocol.secure_session import Sessions
from delian.simulations.dst.hostile.attacks import BUNDLES, LOGGED, Attack
from delian.simulations.dst.hostile.hostile_bundles import Gates
from delian.simulations.dst.oracles import found_out
from delian.simulations.dst.oracles.edge_book import OracleFailure
from delian.simulations.dst.oracles.found_out import ANSWERS, ELSEWHERE, LATER
from delian.simulations.dst.swarm import (
    ATTACK_AT,
    ATTACK_EVERY,
    draw,
)
from delian.simulations.dst.world import World
from support.mutants.missing import world_of

ROUNDS = 2
EDGE = Node(Tier.EDGE, 1)
#: Those that are about messages of a session.
ATTACKS = [attack for attack in Attack if attack not in BUNDLES]
#: What devices record of each when the coordinator does it to all of them.
REASONS = {
    Attack.NO_MASKS: {"unmasked"},
    Attack.SMALL_PLAN: {"policy"},
    Attack.LARGE_NOISE_PLAN: {"noise"},
    Attack.OTHER_MODEL: {"signature"},
    Attack.OTHER_PLAN: {"signature"},
    Attack.OTHER_KEY: {"signature"},
    Attack.UNSIGNED_KEYS: {"signature"},
    Attack.FOREIGN_KEYS: {"signature"},
    Attack.OLD_KEYS: {"bundle"},
    Attack.TWO_SEATS: {"roster"},
    Attack.SMALL_COHORT: {"small"},
    Attack.SECOND_ROSTER: {"equivocation"},
    Attack.WITHHELD_SHARES: {"few"},
    Attack.TWO_SURVIVORS: {"consent"},
    Attack.SECOND_SURVIVORS: {"equivocation", "consent"},
    Attack.BOTH_SHARES: {"equivocation"},
    Attack.SMALL_SUM: {"small"},
    Attack.FORGED_CONSENTS: {"consent"},
    Attack.UNLOGGED_SYBILS: {"log"},
    Attack.WITHHELD_DENY_LIST: {"deny list"},
    Attack.OTHER_PROOFS: {"log"},
    Attack.ROLLED_BACK_LOG: {"log rollback"},
    Attack.FORKED_LOG: {"log fork"},
    Attack.UNWITNESSED_LOG: {"log witnesses"},
}
#: Devices of different lists do not know one another: none answers, and none notices. A message
#: that is sent again is stale.
UNNOTICED = {Attack.TWO_ROSTERS, Attack.REPLAY}
#: The attempt gives a model.
NOTHING_LOST = {Attack.REPLAY}
#: It does where enough shares for the first set came before devices noticed the second.
EITHER_WAY = {Attack.BOTH_SHARES}


def world(attack: Attack | None, where: Node = CLOUD, sessions: int = 1) -> World:
    attacks = () if attack is None else ((attack, where),)
    return world_of(*attacks, sessions=sessions, rounds=ROUNDS)


def reasons(one: World) -> set[str]:
    return {kind.partition(" ")[2] for kind in one.counts if kind.startswith("session ")}


def models(one: World) -> int:
    return sum(book.models for book in one.auditor.runs.values())


def test_every_attack_has_an_answer():
    assert REASONS.keys() | UNNOTICED == set(ATTACKS)
    assert ANSWERS.keys() | ELSEWHERE.keys() == set(ATTACKS)
    assert all(reasons == REASONS[attack] for attack, reasons in LATER.items())
    assert not ANSWERS.keys() & ELSEWHERE.keys()
    assert all(REASONS[attack] <= reasons for attack, reasons in ANSWERS.items())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda p: p.name.lower())
def test_a_coordinator_that_attacks_is_found_out_and_the_next_round_goes_on(attack):
    one = world(attack)
    one.run()
    assert reasons(one) == REASONS.get(attack, set())
    assert models(one) == ROUNDS
    assert one.attackers.attacked
    assert bool(one.attackers.found) == (attack in ANSWERS), "the oracle has seen it found out"
    whole = one.counts["round"] == ROUNDS
    expected = whole if attack in EITHER_WAY else attack in NOTHING_LOST
    assert whole == expected, "an attempt more where one has failed"


@pytest.mark.parametrize(
    "attack",
    [
        Attack.NO_MASKS,
        Attack.OTHER_MODEL,
        Attack.OTHER_KEY,
        Attack.UNSIGNED_KEYS,
        Attack.TWO_SURVIVORS,
        Attack.SECOND_ROSTER,
    ],
    ids=lambda p: p.name.lower(),
)
def test_an_edge_that_attacks_gets_no_further(attack):
    one = world(attack, EDGE, sessions=2)
    one.run()
    assert models(one) == ROUNDS and one.attackers.attacked
    assert bool(one.attackers.found) == (attack in ANSWERS)


def test_without_a_attack_nobody_complains():
    one = world(None)
    one.run()
    assert not reasons(one) and models(one) == ROUNDS and one.counts["round"] == ROUNDS


class TestWithoutTheCheckTheAuditorSeesIt:
    def broken(self, attack: Attack) -> str:
        with pytest.raises(OracleFailure) as caught:
            world(attack).run()
        assert caught.value.oracle == "ledger"
        return caught.value.what

    def test_masks_that_the_owner_wants(self, monkeypatch):
        monkeypatch.setattr(Acceptance, "lacks_masks", lambda self, task: False)
        monkeypatch.setattr(found_out, "check", lambda *told: frozenset())
        monkeypatch.setattr(Gates, "refusal", lambda *told: "")  # signed were masks
        assert "shows its update" in self.broken(Attack.NO_MASKS)

    def test_consents_of_the_same_set(self, monkeypatch):
        monkeypatch.setattr(ClientSession, "_check_consents", lambda self, request: None)
        assert "two sets" in self.broken(Attack.TWO_SURVIVORS)

    def test_one_set_a_device(self, monkeypatch):
        take = Sessions.take

        def forgetful(self, message):
            self.state.session.heard.pop("Survivors", None)
            if type(message).__name__ == "Survivors" and self.state.session.consent is not None:
                self.state.session.phase = type(self.state.session.phase).MASKED
            return take(self, message)

        monkeypatch.setattr(Sessions, "take", forgetful)
        assert "signs two sets" in self.broken(Attack.SECOND_SURVIVORS)


#: A check that is missing on devices, and the attacks that show it.
MISSING = {
    "the coordinator's signature": (
        Acceptance,
        "check",
        [(Attack.OTHER_MODEL, EDGE), (Attack.OTHER_KEY, EDGE), (Attack.LARGE_NOISE_PLAN, CLOUD)],
    ),
    "neighbours' keys": (
        ClientSession,
        "_check_neighbour",
        [
            (Attack.UNSIGNED_KEYS, CLOUD),
            (Attack.FOREIGN_KEYS, CLOUD),
            (Attack.OLD_KEYS, CLOUD),
            (Attack.TWO_SEATS, CLOUD),
            (Attack.OTHER_MODEL, CLOUD),
            (Attack.OTHER_KEY, CLOUD),
        ],
    ),
    "neighbours' consents": (ClientSession, "_check_consents", [(Attack.FORGED_CONSENTS, CLOUD)]),
    "masks that the owner wants": (Acceptance, "check", [(Attack.NO_MASKS, EDGE)]),
    "the survivors": (ClientSession, "_check_survivors", [(Attack.SMALL_SUM, CLOUD)]),
    "the plan": (ClientSession, "_check_policy", [(Attack.SMALL_PLAN, CLOUD)]),
}


@pytest.mark.parametrize(
    ("missing", "attack", "where"),
    [(name, *one) for name, (_, _, attacks) in MISSING.items() for one in attacks],
    ids=str,
)
def test_a_device_without_a_check_takes_a_changed_message_and_the_oracle_sees_it(
    monkeypatch, missing, attack, where
):
    owner, check, _ = MISSING[missing]
    monkeypatch.setattr(owner, check, lambda self, *rest: None)
    with pytest.raises(OracleFailure) as caught:
        world(attack, where, sessions=2).run()
    assert caught.value.oracle == "attack", caught.value


@pytest.mark.parametrize("where", [CLOUD, EDGE], ids=str)
@pytest.mark.parametrize("attack", sorted(LOGGED), ids=lambda p: p.name.lower())
def test_a_device_that_does_not_look_at_the_log_takes_sybils_and_the_oracle_sees_it(
    monkeypatch, attack, where
):
    monkeypatch.setattr(ClientSession, "_check_log", lambda self, cohort: self.state.log)
    with pytest.raises(OracleFailure, match="the device took it") as caught:
        world(attack, where, sessions=2).run()
    assert caught.value.oracle == "attack"


@pytest.mark.parametrize("attack", [None, Attack.SMALL_SUM, Attack.FORKED_LOG])
def test_devices_that_refuse_the_true_log_are_a_failure(attack):
    one = world(attack)
    one.log.look_at_end()
    one.counts["session log fork"] += 1
    if attack is Attack.FORKED_LOG:
        one.log.look_at_end()
        return
    with pytest.raises(OracleFailure, match="refuse the true log: log fork") as caught:
        one.log.look_at_end()
    assert caught.value.oracle == "log"


def test_every_eighth_seed_attacks_each_thing_in_time():
    drawn = [draw(seed, 64, 3)[1].scheme for seed in range(8 * 300)]
    for seed, scheme in enumerate(drawn):
        assert (scheme is not None) == (seed % ATTACK_EVERY == ATTACK_AT and seed % 10 > 0)
    schemes = [s for s in drawn if s is not None]
    assert {s.attack for s in schemes} == set(Attack)
    assert {s.where == CLOUD for s in schemes} == {True, False}
    assert all(len(s.colluders) == 2 for s in schemes)
