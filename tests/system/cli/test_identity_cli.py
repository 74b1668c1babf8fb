"""The tests of `test_identity_cli` that need a process, a socket or a clock."""

from __future__ import annotations

import io
import sys
import time


def test_a_federation_is_made_and_a_node_joins_with_nothing_but_a_token(
    delian, coordinator, tmp_path
):
    code, made, _ = delian("ca", "init", "ca", "--federation", "farm", "--json")
    assert code == 0 and made["federation"] == "farm" and len(made["fingerprint"]) == 95
    with coordinator(tmp_path / "ca") as (links, enrolment):
        address = f"127.0.0.1:{enrolment}"
        code, token, _ = delian("token", "--ca", "ca", "--address", address, "--json")
        assert code == 0 and (token["tier"], token["uses"]) == ("device", 1)
        (tmp_path / "token").write_text(token["token"] + "\n")
        given = ("--token-file", "token")
        code, joined, err = delian("join", *given, "--label", "room=north", "--json")
        assert (
            code == 0
            and not err
            and joined["name"] == "device-1"
            and joined["federation"] == "farm"
        )
        assert joined["folder"] == str(tmp_path / "state" / "delian" / "device" / "identity")
        assert joined["homes"] == [{"node": "cloud-0", "grpc": f"127.0.0.1:{links}", "mqtt": ""}]
        code, out, err = delian("join", *given, "--identity", "second")
        assert code == 2 and not out
        assert err.startswith("error: cannot join: the token is not valid")
        assert "hint: ask your operator for a new token" in err
    code, shown, _ = delian("ca", "show", "ca", "--json")
    assert {"cloud-0", "authority-0", "device-1"} == {e["name"] for e in shown["issued"]}
    assert shown["tokens"] == [] and shown["denied"] == {"version": 1, "names": []}
    before = int(time.time())
    code, revoked, _ = delian("ca", "revoke", "device-1", "--ca", "ca", "--json")
    assert (code, revoked["revoked"]) == (0, True)
    assert before <= revoked["version"] <= time.time()
    code, shown, _ = delian("ca", "show", "ca", "--json")
    assert shown["denied"] == {"version": revoked["version"], "names": ["device-1"]}
    code, _, _ = delian("ca", "revoke", "device-7", "--ca", "ca")
    assert code == 2
    code, after, _ = delian("ca", "restored", "--ca", "ca", "--json")
    assert code == 0 and after["last"]["device"] == 10_001 and after["last"]["edge"] == 10_000
    code, revoked, _ = delian("ca", "revoke", "device-7", "--ca", "ca", "--json")
    assert (code, revoked["revoked"]) == (0, True)


def test_an_edge_s_token_makes_an_edge_and_its_text_may_come_by_stdin(
    delian, coordinator, tmp_path, monkeypatch
):
    delian("ca", "init", "ca", "--federation", "farm")
    with coordinator(tmp_path / "ca") as (_, enrolment):
        address = f"127.0.0.1:{enrolment}"
        options = ["--tier", "edge", "--node-address", "edge.example"]
        code, text, err = delian("token", "--ca", "ca", "--address", address, *options)
        assert code == 0 and text.startswith("delian1.") and "lets one edge in" in err
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code, out, _ = delian("join", "-", "--identity", "edge")
    assert code == 0
    assert out.splitlines()[0] == "this is edge-1 of the federation farm"
    assert "next      delian edge run" in out


def test_a_coordinator_that_is_not_there_is_told_and_the_key_waits_for_the_next_try(
    delian, tmp_path
):
    delian("ca", "init", "ca", "--federation", "farm")
    token = delian("token", "--ca", "ca", "--address", "127.0.0.1:9", "--json")[1]["token"]
    code, _, err = delian("join", token, "--identity", "own")
    assert code == 2 and "cannot reach the authority at 127.0.0.1:9" in err
    assert [p.name for p in (tmp_path / "own").iterdir()] == ["pending.pem"]
    assert (tmp_path / "own" / "pending.pem").stat().st_mode & 0o777 == 0o600
