"""`delian log` and `delian witness`, and the terms of the log."""

from __future__ import annotations

import json
import shutil

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log.log_copy import KnownLog
from delian.core.node.identity.log.witness import Witness
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.wire.log_pb2 import CosignAsk

DAY_2030 = 1_900_000_000 - 1_900_000_000 % 86_400


@pytest.fixture
def ca(delian, tmp_path):
    assert delian("ca", "init", "ca", "--federation", "farm")[0] == 0
    assert delian("ca", "issue", "operator", "op", "--ca", "ca")[0] == 0
    made = Authority(tmp_path / "ca")
    issue_to(made, Role.DEVICE, 5)
    issue_to(made, Role.DEVICE, 5, now_s=DAY_2030 + 7200)
    issue_to(made, Role.DEVICE, 6)
    return made


def test_the_log_of_a_folder_is_listed_by_name_and_day(delian, ca):
    code, shown, _ = delian("log", "show", "ca", "--json")
    assert code == 0 and [e["name"] for e in shown["entries"]] == [
        "admin-1",
        "device-5",
        "device-5",
        "device-6",
    ]
    _, of_five, _ = delian("log", "show", "ca", "--name", "device-5", "--json")
    assert [e["index"] for e in of_five["entries"]] == [1, 2]
    _, on_day, _ = delian("log", "show", "ca", "--day", "2030-03-17", "--json")
    assert [e["index"] for e in on_day["entries"]] == [2]
    code, text, _ = delian("log", "show", "ca", "--name", "device-6")
    assert code == 0 and "device-6" in text and "device-5" not in text
    assert delian("log", "show", "ca", "--day", "yesterday")[0] == 2
    assert delian("log", "show", "op")[0] == 2


def test_watch_keeps_a_verified_copy_and_prints_what_is_new(delian, coordinator, ca, tmp_path):
    with coordinator(ca.folder) as (port, _):
        asked = ("log", "watch", "copy", "--once", "--identity", "op", "--coordinator")
        where = f"127.0.0.1:{port}"
        code, text, err = delian(*asked, where, "--name", "device-5")
        assert code == 0, err
        assert text.count("device-5") == 2 and "device-6" not in text
        assert delian(*asked, where) == (0, "", "")
        issue_to(ca, Role.DEVICE, 7)
        code, text, _ = delian(*asked, where)
        assert code == 0 and text.count("device-") == 1 and "device-7" in text
    code, facts, _ = delian("ca", "restored", "--ca", "ca", "--log", "copy", "--json")
    assert code == 0 and facts["log_entries"] == 0
    assert delian("ca", "restored", "--ca", "ca", "--log", "nowhere")[0] == 2
    code, facts, _ = delian("log", "verify", "copy", "--json")
    assert code == 0 and [h["result"] for h in facts["heads"]] == ["in this log"]
    assert facts["root"] == ca.log.tree.root().hex()
    code, _, err = delian(*asked, where)
    assert code == 2 and "did not give the certificate log" in err


def test_a_copy_is_of_one_ca(delian, ca, tmp_path):
    (tmp_path / "copy").mkdir()
    other = Authority.create(tmp_path / "other", "farm")
    (tmp_path / "copy" / "ca.pem").write_bytes(other.pem)
    asked = ("log", "watch", "copy", "--once", "--identity", "op", "--coordinator", "localhost:1")
    code, _, err = delian(*asked)
    assert code == 2 and "another CA" in err


def test_verify_finds_the_head_of_another_log(delian, ca, tmp_path):
    """What an owner does with the evidence of a fork: one of its heads is not of the log."""
    shutil.copytree(tmp_path / "ca", tmp_path / "twin")
    twin = Authority(tmp_path / "twin")
    issue_to(ca, Role.DEVICE, 7)
    issue_to(twin, Role.DEVICE, 8)
    known = KnownLog(IdentityFolder(tmp_path / "op"))
    known.take(ca.log.update(0, DAY_2030))
    known.take(twin.log.update(known.size(), DAY_2030))
    evidence = tmp_path / "op" / "log.fork"
    asked = ("log", "verify", "ca", "--json", "--head")
    code, facts, _ = delian(*asked, tmp_path / "op" / "log.head")
    assert code == 0 and facts["heads"][0]["result"] == "in this log"
    code, facts, _ = delian(*asked, evidence)
    assert code == 1
    assert [h["result"] for h in facts["heads"]] == ["in this log", "NOT OF THIS LOG"]
    code, facts, _ = delian(*asked, evidence, "--quorum", 1)
    assert code == 1 and "0 cosignatures" in facts["heads"][0]["result"]
    for bad in (b"{}", b"\xff\xff", b"[1]"):
        (tmp_path / "bad").write_bytes(bad)
        assert delian("log", "verify", "ca", "--head", "bad")[0] == 2


def test_a_witness_is_made_named_in_the_terms_and_shown(delian, ca, tmp_path):
    code, made, _ = delian("witness", "init", "w", "--json")
    assert code == 0
    code, added, _ = delian("witness", "add", "w", "ca/ca.pem", "--json")
    assert code == 0 and added == {"federation": "farm", "fingerprint": ca.fingerprint}
    code, terms, _ = delian(
        "ca", "terms", "ca", "--witness", "w/witness.pub", "--quorum", 1, "--json"
    )
    assert code == 0 and terms["log_required"] is True
    assert (terms["witnesses"], terms["quorum"]) == ([made["key"]], 1)
    assert "1 of 1 witnesses" in delian("ca", "terms", "ca")[1]
    code, text, _ = delian("witness", "show", "w")
    assert code == 0 and text.strip() == "farm  no head yet"
    reply = Witness(tmp_path / "w").cosign(
        CosignAsk(update={"checkpoint": ca.log.checkpoint(DAY_2030), "old_size": 0})
    )
    assert reply.size == 4
    _, shown, _ = delian("witness", "show", "w", "--json")
    assert shown["federations"]["farm"]["size"] == 4
    signed = ca.log.checkpoint(DAY_2030)
    signed.cosignatures.append(reply.cosignature)
    ca.log.publish(signed)
    asked = ("log", "verify", "ca", "--witness", "w/witness.pub", "--quorum", 1, "--json")
    code, facts, _ = delian(*asked)
    assert code == 0 and facts["heads"][0]["witnesses"] == 1
    code, terms, _ = delian("ca", "terms", "ca", "--no-log", "--quorum", 0, "--json")
    assert code == 0 and terms["log_required"] is False and terms["quorum"] == 0
    assert delian("ca", "terms", "ca", "--quorum", 2)[0] == 2
    code, terms, _ = delian("ca", "terms", "ca", "--epsilon", 8, "--delta", 1e-7, "--json")
    assert code == 0 and (terms["epsilon"], terms["delta"]) == (8.0, 1e-7)
    code, terms, _ = delian("ca", "terms", "ca", "--epsilon", 0, "--json")
    assert code == 0 and terms["epsilon"] is None
    assert json.dumps(delian("witness", "init", "w")[0]) == "2"
