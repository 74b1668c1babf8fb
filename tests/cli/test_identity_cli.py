"""`delian ca`, `token` and `join`, as an operator and a new node use them."""

from __future__ import annotations

import io
import sys
import time

import pytest


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


def test_a_token_among_the_arguments_is_warned_about_and_comes_from_one_place(delian, tmp_path):
    text = "delian1.AAAA"
    code, _, err = delian("join", text)
    assert code == 2 and err.startswith("warning: other users of this machine can read a token")
    assert text not in err
    (tmp_path / "token").write_text(text)
    for arguments in ((), ("-", "--token-file", "token")):
        code, _, err = delian("join", *arguments)
        assert code == 2 and "delian join - reads it from stdin; or --token-file" in err
    code, _, err = delian("join", "--token-file", "none")
    assert code == 2 and "cannot read none" in err


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


def test_identities_beside_the_ca(delian, tmp_path):
    delian("ca", "init", "ca", "--federation", "farm")
    assert delian("ca", "issue", "operator", "op", "--ca", "ca")[0] == 0

    def own(address):
        where = ["--ca", "ca", "--address", address]
        return delian("ca", "issue", "cloud", "own", *where, "--json")

    code, made, _ = own("c.example")
    assert code == 0 and made["new"] and made["name"] == "cloud-0"
    again = own("c.example")
    assert again[1]["new"] is False
    other = own("d.example")
    assert other[1]["new"] is True, "another address needs another certificate"
    assert delian("ca", "issue", "broker", "br", "--ca", "ca", "--address", "b.example")[0] == 0
    assert {p.name for p in (tmp_path / "br").iterdir()} == {"key.pem", "cert.pem", "ca.pem"}
    assert (tmp_path / "br" / "key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("ca init ca --federation farm", "ca holds a CA already"),
        ("ca init b --federation My_Farm", "`My_Farm` cannot name a federation"),
        ("ca show nowhere", "nowhere holds no CA: there is no ca.key"),
        ("ca show", "delian ca init"),
        ("ca revoke device-9 --ca ca", "no certificate of `device-9` is known here"),
        ("ca issue operator op --ca ca --address x", "an operator has no address"),
        ("ca issue broker br --ca ca", "a server's certificate needs an address"),
        ("ca issue broker br --ca ca --address *", "neither a host name nor an IP address"),
        ("token --ca ca --valid soon", "`soon` is no time"),
        ("token --ca ca --valid 90d", "at most"),
        ("token --ca ca --address here", "`here` is no address"),
        ("token --ca ca --node-address x", "a device's certificate carries no addresses"),
        ("token --ca ca --coordinator h:1", "a server that is asked knows neither --ca"),
        ("token --coordinator 127.0.0.1:1", "there is no identity in"),
        ("token --ca ca --tier person", "Invalid value for '--tier'"),
        ("join delian1.AAAA", "the token is cut short or mistyped"),
        ("join nonsense", "this is no token"),
    ],
)
def test_mistakes_are_told_with_what_to_do(delian, arguments, says):
    delian("ca", "init", "ca", "--federation", "farm")
    code, out, err = delian(*arguments.split())
    assert code == 2 and not out and says in err, err


def test_a_coordinator_that_is_not_there_is_told_and_the_key_waits_for_the_next_try(
    delian, tmp_path
):
    delian("ca", "init", "ca", "--federation", "farm")
    token = delian("token", "--ca", "ca", "--address", "127.0.0.1:9", "--json")[1]["token"]
    code, _, err = delian("join", token, "--identity", "own")
    assert code == 2 and "cannot reach the authority at 127.0.0.1:9" in err
    assert [p.name for p in (tmp_path / "own").iterdir()] == ["pending.pem"]
    assert (tmp_path / "own" / "pending.pem").stat().st_mode & 0o777 == 0o600


def test_bad_labels_are_told_before_anything_is_asked(delian):
    delian("ca", "init", "ca", "--federation", "farm")
    token = delian("token", "--ca", "ca", "--address", "127.0.0.1:9", "--json")[1]["token"]
    code, _, err = delian("join", token, "--label", "north")
    assert code == 2 and "--label north: this is not name=value" in err


@pytest.mark.parametrize("role", ["viewer", "runner", "admin"])
def test_an_operator_s_identity_has_the_role_that_was_asked_for(delian, role):
    delian("ca", "init", "ca", "--federation", "farm")
    for number in (1, 2):
        options = ("--ca", "ca", "--role", role, "--json")
        code, made, _ = delian("ca", "issue", "operator", f"op{number}", *options)
        assert code == 0 and made["name"] == f"{role}-{number}"


def test_an_operator_is_an_admin_by_default_and_no_other_holder_has_a_role(delian):
    delian("ca", "init", "ca", "--federation", "farm")
    code, made, _ = delian("ca", "issue", "operator", "op", "--ca", "ca", "--json")
    assert code == 0 and made["name"] == "admin-1"
    code, _, err = delian("ca", "issue", "cloud", "own", "--ca", "ca", "--role", "viewer")
    assert code == 2 and "only an operator has a --role" in err
