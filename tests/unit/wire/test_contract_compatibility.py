"""Old peers go on understanding new ones: the contract is compared with the one that was committed.

`DELIAN_GOLDEN=1` writes the present contract down, when it only grew.
"""

import os
from pathlib import Path

import pytest
from support import wire_contract as contract

COMMITTED = Path(__file__).resolve().parents[2] / "golden" / "contract.txt"


def test_the_contract_only_grew_since_it_was_committed():
    now = contract.lines()
    if not COMMITTED.exists() and os.environ.get("DELIAN_GOLDEN"):
        COMMITTED.write_text("\n".join(now) + "\n")
    committed = COMMITTED.read_text().splitlines()
    assert not contract.breaks(committed, now)
    if os.environ.get("DELIAN_GOLDEN"):
        COMMITTED.write_text("\n".join(now) + "\n")
    assert COMMITTED.read_text().splitlines() == now, "run with DELIAN_GOLDEN=1 and commit"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["a.M 1 x: uint32"], []),
        (["a.M 1 x: uint32"], ["a.M 1 x: uint64"]),
        (["a.M 1 x: uint32"], ["a.M 2 x: uint32"]),
        (["a.M 1 x: uint32"], ["a.M 1 x: repeated uint32"]),
        (["a.M 1 x: uint32"], ["a.M 1 x: uint32 of choice"]),
        (["a.M 1 x: uint32"], ["a.M 1 y: uint64"]),
        (["a.E 1 FULL: value"], ["a.E 1 EMPTY: value"]),
        (["a.S - Get: a.M -> a.N"], ["a.S - Get: a.M -> stream a.N"]),
    ],
)
def test_what_an_old_peer_would_stumble_over_is_told(old, new):
    assert len(contract.breaks(old, new)) == 1


def test_a_new_name_of_a_field_breaks_nothing():
    assert contract.breaks(["a.M 1 x: uint32"], ["a.M 1 y: uint32"]) == []


def test_names_that_change_places_break_both_fields():
    old = ["a.M 1 x: uint32", "a.M 2 y: uint32"]
    assert len(contract.breaks(old, ["a.M 1 y: uint32", "a.M 2 x: uint32"])) == 2


def test_what_is_added_breaks_nothing():
    old = ["a.M 1 x: uint32", "a.S - Get: a.M -> a.N"]
    new = [*old, "a.M 2 y: string", "a.S - Put: a.M -> a.N", "b.E 0 NONE: value"]
    assert contract.breaks(old, new) == []


def test_every_file_of_the_contract_is_compared():
    proto = Path(__file__).resolve().parents[3] / "proto"
    assert {f.name.rpartition("/")[2] for f in contract.files()} == {
        p.name for p in proto.glob("*.proto")
    }
