"""Several attackers, the author of a bundle among them: each is found out for its reason or is
harmless, and is counted.
"""

from __future__ import annotations

import json

import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.artifacts import manifest
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.simulations.dst import seed_report
from delian.simulations.dst.check import check_seeds
from delian.simulations.dst.hostile import hostile_bundles
from delian.simulations.dst.hostile.attackers import DONE, DRAWN, FOUND, HARMLESS, key
from delian.simulations.dst.hostile.attacks import BUNDLES, Attack
from delian.simulations.dst.hostile.hostile_bundles import EXPOSED, RECORD, REFUSED, opened
from delian.simulations.dst.oracles.edge_book import OracleFailure
from delian.simulations.dst.world import World
from support.mutants.missing import world_of

EDGE = Node(Tier.EDGE, 1)


def run(*attacks):
    one = world_of(*attacks)
    one.run()
    assert sum(book.models for book in one.auditor.runs.values()) == 2, "the run goes on"
    return one.counts


@pytest.mark.parametrize("attack", sorted(REFUSED), ids=lambda p: p.name.lower())
def test_a_hostile_bundle_is_refused_for_its_reason_before_it_runs(attack):
    counts = run((attack, CLOUD))
    assert counts[key(attack, DRAWN)] == counts[key(attack, DONE)] == 1
    assert counts[key(attack, FOUND, REFUSED[attack])] == 1 and not counts[key(attack, HARMLESS)]


def test_a_bundle_that_is_not_in_the_record_is_found_by_its_readers():
    attack = Attack.BUNDLE_UNPUBLISHED
    assert run((attack, CLOUD))[key(attack, FOUND, RECORD)] == 1


def test_a_bundle_that_selects_by_data_passes_all_checks_and_is_not_called_harmless():
    """The sum is one device's update: only noise would bound what it tells."""
    attack = Attack.BUNDLE_BY_DATA
    counts = run((attack, CLOUD))
    assert counts[key(attack, EXPOSED)] == 1 and not counts[key(attack, HARMLESS)]


def test_every_bundle_attack_is_refused_or_explained():
    assert REFUSED.keys() | hostile_bundles.SUBMITTED == BUNDLES
    assert not REFUSED.keys() & hostile_bundles.SUBMITTED


def test_parties_that_attack_together_are_found_out_each_for_its_own_reason():
    counts = run(
        (Attack.BUNDLE_UNPUBLISHED, CLOUD),
        (Attack.FORGED_CONSENTS, CLOUD),
        (Attack.OTHER_MODEL, EDGE),
    )
    assert counts[key(Attack.BUNDLE_UNPUBLISHED, FOUND, RECORD)] == 1
    assert counts[key(Attack.OTHER_MODEL, FOUND, "task signature")] == 1
    assert counts[key(Attack.FORGED_CONSENTS, FOUND, "consent")] == 1


def test_one_party_may_undo_what_another_has_changed():
    counts = run((Attack.UNSIGNED_KEYS, CLOUD), (Attack.UNSIGNED_KEYS, EDGE))
    assert counts[key(Attack.UNSIGNED_KEYS, DONE)] == 2


@pytest.mark.parametrize("attack", [Attack.TWO_ROSTERS, Attack.FOREIGN_KEYS, Attack.OLD_KEYS])
def test_an_edge_lies_beside_an_operator_whose_log_it_does_not_have(attack):
    """Its proofs are then from the true log, which has fewer entries."""
    counts = run((attack, EDGE), (Attack.FORKED_LOG, CLOUD))
    assert counts[key(attack, DONE)] == counts[key(Attack.FORKED_LOG, DONE)] == 1
    assert counts[key(Attack.FORKED_LOG, FOUND, "log fork")] == 1


@pytest.mark.parametrize("seed", [4570, 4648, 4843, 200012, 200482, 300347])
def test_seeds_that_the_simulation_itself_once_failed(seed):
    """4570: an order came before the run whose number it names. 4648, 4843: a second list of
    members that another party had changed, or changed again. 200012: a batch of a buffered run
    failed by an attempt that an operator had changed, and was recorded under another attempt's
    name. 200482: a snapshot held an event that was not yet in the journal. 300347: a log was rolled
    back for a device that had accepted none.
    """
    assert check_seeds([seed], hostile=True).failure is None


class TestWithoutACheckOfTheGate:
    def broken(self, attack: Attack) -> str:
        with pytest.raises(OracleFailure) as caught:
            run((attack, CLOUD))
        assert caught.value.oracle == "attack"
        return caught.value.what

    def test_the_analysis_of_keys(self, monkeypatch):
        opened.cache_clear()
        monkeypatch.setattr(hostile_bundles, "check_keys", lambda bundle: bundle)
        try:
            assert "the device runs it" in self.broken(Attack.BUNDLE_BY_KEY)
        finally:
            opened.cache_clear()

    @pytest.mark.parametrize(
        ("check", "attack"),
        [("check_bundle", Attack.BUNDLE_REPLACED), ("check_task", Attack.BUNDLE_LESS_NOISE)],
        ids=str,
    )
    def test_what_a_manifest_fixes(self, monkeypatch, check, attack):
        monkeypatch.setattr(manifest, check, lambda *told: None)
        assert "the device runs it" in self.broken(attack)

    def test_the_record(self, monkeypatch):
        monkeypatch.setattr(hostile_bundles.Gates, "unpublished", lambda self: {(1, 1, 9)})
        assert "not in the record" in self.broken(Attack.BUNDLE_UNPUBLISHED)


# ---------------------------------------------------------------- reports


def test_hostile_seeds_hold_and_their_attacks_are_counted():
    told = check_seeds(range(6), hostile=True)
    assert not told.failures, told.failures
    rows = seed_report.attacks_of(told)
    assert sum(row[DRAWN] for row in rows.values()) >= 6
    assert any(row[FOUND] for row in rows.values())
    assert "found out by reason" in seed_report.table(told)


def test_a_run_in_parts_gives_the_report_of_one_run(tmp_path, capsys):
    file = tmp_path / "report.json"

    def facts(seeds, resume=None):
        asked = seed_report.Asked(range(4, 4 + seeds), 14, 2, hostile=True, resume=resume)
        assert seed_report.main(asked, as_json=True) == 0
        said = json.loads(capsys.readouterr().out)
        return {k: v for k, v in said.items() if k not in ("cpu_seconds", "slowest")}

    first = facts(1, file)
    assert first["seeds"] == 1
    whole = facts(2, file)
    assert whole["seeds"] == 2 and whole == facts(2)
    assert facts(2, file) == whole, "nothing is left to run"


def test_a_file_of_other_seeds_or_of_something_else_is_refused(tmp_path):
    file = tmp_path / "report.json"
    assert seed_report.main(seed_report.Asked(range(0, 1), 4, 2, resume=file), as_json=True) == 0
    with pytest.raises(DelianError, match="a report of other seeds: first 0, devices 4"):
        seed_report.main(seed_report.Asked(range(0, 1), 5, 2, resume=file), as_json=True)
    for content in (b"", b"[]", b"{" * 10_000, b"\xff", b'{"form": "delian dst report 2"}'):
        file.write_bytes(content)
        with pytest.raises(DelianError, match="is no report of seeds"):
            seed_report.main(seed_report.Asked(range(0, 1), 4, 2, resume=file), as_json=True)


def test_a_run_in_parts_goes_on_after_a_failure_and_keeps_it(tmp_path, monkeypatch, capsys):
    class Broken(World):
        def note(self, node, event):
            super().note(node, event)
            self.check(self.seed != 1 or self.events < 5, "progress", "it was to be")

    monkeypatch.setattr("delian.simulations.dst.check.World", Broken)
    file = tmp_path / "report.json"
    asked = seed_report.Asked(range(0, 3), 4, 2, resume=file)
    for _ in range(2):
        assert seed_report.main(asked, as_json=True) == 1
        said = json.loads(capsys.readouterr().out)
        assert said["seeds"] == 3 and [f["seed"] for f in said["failures"]] == [1]
