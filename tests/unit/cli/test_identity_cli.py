"""`delian ca`, `token` and `join`, as an operator and a new node use them."""

from __future__ import annotations

import pytest


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
        ("token --coordinator 127.0.0.1:1", "there is no operator's identity in"),
        ("token --ca ca --tier person", "Invalid value for '--tier'"),
        ("join delian1.AAAA", "the token is cut short or mistyped"),
        ("join nonsense", "this is no token"),
    ],
)
def test_mistakes_are_told_with_what_to_do(delian, arguments, says):
    delian("ca", "init", "ca", "--federation", "farm")
    code, out, err = delian(*arguments.split())
    assert code == 2 and not out and says in err, err


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
