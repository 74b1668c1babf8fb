"""An organisation's own authority, made by the commands of both sides."""

from __future__ import annotations

import pytest
from delian.cli import doctor_checks
from delian.cli.identity import certificate_log_commands
from delian.cli.settings import Config
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.tokens import parse
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.identity.pki.local_identity import operator_identity

pytest.importorskip("sqlalchemy")

FEDERATION = ("--federation", "farm")
NORTHS = 1 << 40


@pytest.fixture
def root(tmp_path, delian):
    assert delian("ca", "init", tmp_path / "root", *FEDERATION)[0] == 0
    return tmp_path / "root"


@pytest.fixture
def north(tmp_path, delian, root):
    """The folder of authority-1, after the ceremony."""
    folder = tmp_path / "north"
    request, answer = folder / "request.pem", tmp_path / "answer.pem"
    code, told, _ = delian("authority", "request", folder, *FEDERATION, "--site", "north", "--json")
    assert code == 0 and told["request"] == str(request)
    domain = ("--domain", "north.example")
    delegate = ("ca", "delegate", request, "--site", "north", *domain, "--ca", root)
    code, told, _ = delian(*delegate, "--out", answer, "--json")
    assert code == 0
    assert (told["name"], told["domains"]) == ("authority-1", ["north.example"])
    fingerprint = ("--fingerprint", told["fingerprint"])
    code, told, _ = delian("authority", "accept", folder, answer, *fingerprint, "--json")
    assert code == 0 and (told["number"], told["site"]) == (1, "north")
    return folder


def test_each_side_is_told_the_next_step(tmp_path, delian, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = delian("authority", "request", "north", *FEDERATION, "--site", "north")
    assert code == 0 and "delian ca delegate request.pem --site north" in out
    request = tmp_path / "north" / "request.pem"
    code, out, _ = delian("ca", "delegate", request, "--site", "north", "--ca", root)
    assert code == 0 and "delian authority accept FOLDER authority-1.pem" in out
    fingerprint = delian("ca", "show", root, "--json")[1]["fingerprint"]
    assert fingerprint in out
    accept = ("authority", "accept", "north", "authority-1.pem", "--fingerprint")
    code, _, err = delian(*accept, "00" * 32)
    assert code == 2 and fingerprint in err
    code, out, _ = delian(*accept, fingerprint)
    assert code == 0 and "delian authority run" in out and "authority.superior" in out


def test_the_private_key_stays_in_its_folder(tmp_path, delian, root, north):
    assert (north / "ca.key").stat().st_mode & 0o077 == 0
    assert b"PRIVATE" not in (north / "request.pem").read_bytes()
    assert b"PRIVATE" not in (tmp_path / "answer.pem").read_bytes()
    assert not (root / "request.pem").exists()


def test_the_root_lists_and_revokes_authorities(delian, root, north):
    code, told, _ = delian("ca", "list", "--ca", root, "--json")
    (only,) = told["authorities"]
    assert (only["name"], only["site"], only["state"]) == ("authority-1", "north", "")
    assert "authority-1  north" in delian("ca", "list", "--ca", root)[1]
    assert delian("ca", "revoke", "authority-1", "--ca", root)[0] == 0
    assert delian("ca", "list", "--ca", root, "--json")[1]["authorities"][0]["state"] == "revoked"
    again = ("ca", "delegate", north / "request.pem", "--site", "north", "--number", 1)
    code, _, err = delian(*again, "--ca", root)
    assert code == 2 and "revoked" in err


def test_its_folder_is_shown_and_makes_tokens_for_its_site(tmp_path, delian, root, north):
    code, told, _ = delian("ca", "show", north, "--json")
    assert (told["authority"], told["site"]) == (1, "north")
    assert told["fingerprint"] == delian("ca", "show", root, "--json")[1]["fingerprint"]
    assert "authority-1 for the site north" in delian("ca", "show", north)[1]
    at = ("--address", "north.example:7444")
    code, told, _ = delian("token", "--ca", north, *at, "--json")
    token = parse(told["token"])
    assert code == 0 and token.issuer and token.issuer != token.authority
    assert delian("token", "--ca", root, *at, "--json")[0] == 0
    code, _, err = delian("token", "--ca", north, "--tier", "cloud", *at)
    assert code == 2 and "root" in err


def test_without_its_root_it_issues_nothing_and_says_what_is_missing(tmp_path, delian, north):
    issue = ("ca", "issue", "operator", tmp_path / "owner", "--ca", north)
    code, _, err = delian(*issue)
    assert code == 2 and "authority.superior" in err
    code, _, err = delian(*issue, "--superior", "127.0.0.1:9")
    assert code == 2 and "the root authority at 127.0.0.1:9 does not answer" in err
    revoke = ("ca", "revoke", f"device-{NORTHS + 1}", "--ca", north, "--superior", "127.0.0.1:9")
    code, _, err = delian(*revoke)
    assert code == 2 and "does not answer" in err
    code, _, err = delian(
        "authority", "run", "--state", tmp_path / "state", "--set", f"authority.ca={north}"
    )
    assert code == 2 and "its root is not named" in err


def test_the_log_is_filtered_by_issuer(tmp_path, delian, root, north):
    assert delian("ca", "issue", "operator", tmp_path / "admin", "--ca", root)[0] == 0
    entries = delian("log", "show", root, "--json")[1]["entries"]
    assert [(e["name"], e["issuer"]) for e in entries] == [("CA of authority-1", 1), ("admin-1", 0)]
    for issuer in (0, 1):
        found = delian("log", "show", root, "--issuer", issuer, "--json")[1]["entries"]
        assert [entry["issuer"] for entry in found] == [issuer]
    assert delian("log", "show", root, "--issuer", 2, "--json")[1]["entries"] == []


@pytest.mark.parametrize(("superior", "states"), [("", {"wrong", "ok"}), ("root:7445", {"ok"})])
def test_doctor_looks_at_an_issuing_authority(delian, north, superior, states):
    config = Config.model_validate({"authority": {"ca": north, "superior": superior}})
    found = [f for f in doctor_checks.check_authority(config) if f.name in ("ca", "root authority")]
    assert {f.state.value for f in found} == states
    assert any("authority-1 of farm" in f.text for f in found)


class Above:
    """The root in this process."""

    def __init__(self, folder):
        self.root = Authority(folder)

    def append(self, chain):
        self.root.append(chain)

    def revoke(self, name, why):
        return self.root.revoke(name, why)

    def denied(self):
        return self.root.denied()


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), ("cloud:7443", False)),  # the configured authority is the organisation's own
        (("--authority", "root:7445"), ("root:7445", True)),
    ],
)
def test_an_owner_watches_the_root_s_log(
    tmp_path, delian, root, north, monkeypatch, options, asked
):
    owner = tmp_path / "owner"
    operator_identity(Authority(north, Above(root)), owner, Role.OWNER)
    told = []

    async def follow(copy, own, source, every_s, tell_new):
        told.append(source)

    monkeypatch.setattr(certificate_log_commands, "_follow", follow)
    (tmp_path / "delian.toml").write_text(
        '[operator]\nauthority = "north:7445"\ncoordinator = "cloud:7443"\n'
    )
    watch = ("log", "watch", tmp_path / "copy", "--identity", owner, "--once")
    code, _, err = delian(*watch, *options, "--config", tmp_path / "delian.toml")
    assert code == 0, err
    assert told == [asked]
