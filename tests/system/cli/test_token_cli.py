"""`delian token --request` and `delian approve`, as two admins use them."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def admins(delian):
    """A CA and the folders of two admins."""
    delian("ca", "init", "ca", "--federation", "farm")
    for name in ("alice", "bob"):
        assert delian("ca", "issue", "operator", name, "--ca", "ca")[0] == 0


def test_a_request_is_written_shown_and_signed_by_another_admin(delian, admins, tmp_path):
    options = ("--uses", "500", "--valid", "7d", "--identity", "alice", "--request", "wanted.json")
    code, out, _ = delian("token", *options)
    assert code == 0 and "lets in     500 nodes of the tier device" in out
    assert "delian approve wanted.json" in out
    assert "signature" not in json.loads((tmp_path / "wanted.json").read_text())
    code, _, err = delian("approve", "wanted.json", "--identity", "alice", "--yes")
    assert code == 2 and "cannot approve it" in err
    code, facts, _ = delian("approve", "wanted.json", "--identity", "bob", "--yes", "--json")
    assert code == 0 and facts["approved"]
    assert (facts["requester"], facts["uses"], facts["valid_s"]) == ("admin-1", 500, 7 * 86400)
    assert "signature" in json.loads((tmp_path / "wanted.json").read_text())


def test_it_is_asked_before_it_is_signed(delian, admins, tmp_path, monkeypatch):
    delian("token", "--uses", "500", "--identity", "alice", "--request", "wanted.json")
    before = (tmp_path / "wanted.json").read_bytes()
    asked = []
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text))
    code, _, err = delian("approve", "wanted.json", "--identity", "bob")
    assert code == 1 and asked == ["Sign this?"]
    assert "asked by    admin-1" in err and "500 nodes" in err
    assert (tmp_path / "wanted.json").read_bytes() == before


def test_only_an_admin_approves(delian, admins):
    delian("token", "--uses", "500", "--identity", "alice", "--request", "wanted.json")
    delian("ca", "issue", "operator", "carol", "--ca", "ca", "--role", "runner")
    code, _, err = delian("approve", "wanted.json", "--identity", "carol", "--yes")
    assert code == 2 and "runner-1 is no admin" in err


@pytest.mark.parametrize("content", ["", "{}", '{"request": {"uses": 1}}'])
def test_a_file_that_is_no_request_is_told(delian, admins, tmp_path, content):
    (tmp_path / "wanted.json").write_text(content)
    for arguments in (("approve", "wanted.json", "--yes"), ("token", "--approval", "wanted.json")):
        code, _, err = delian(*arguments, "--identity", "bob")
        assert code == 2 and "no request for a token" in err


def test_a_configured_authority_is_asked_unless_a_folder_is_named(delian, admins, tmp_path):
    (tmp_path / "delian.toml").write_text(
        '[operator]\nauthority = "127.0.0.1:1"\nidentity = "alice"\n'
    )
    code, _, err = delian("token")
    assert code == 3 and "the authority at 127.0.0.1:1 does not answer" in err
    for options in ((), ("--tier", "cloud")):
        assert delian("token", "--ca", "ca", *options)[0] == 0
