"""The CA's key in a token, with SoftHSM (softhsm2), which is a token in software."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.deny_list import verify_head
from delian.core.node.identity.log.log_entries import verify_head as verify_log_head
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    check_issued,
    load_certificate,
)
from delian.core.node.identity.pki.hsm import KeyPlace, TokenKey

MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib/aarch64-linux-gnu/softhsm/libsofthsm2.so",
)
MODULE = next((path for path in MODULES if Path(path).exists()), "")
pytestmark = pytest.mark.skipif(
    not MODULE or shutil.which("softhsm2-util") is None,
    reason="needs SoftHSM: apt-get install softhsm2",
)
pytest.importorskip("pkcs11", reason="needs python-pkcs11: pip install 'delian[hsm]'")


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """The label of a token, and the file with its PIN. The module reads its configuration once in a
    process, so all tests have one token and keys of different labels.
    """
    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    (folder / "conf").write_text(
        f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\n"
    )
    os.environ["SOFTHSM2_CONF"] = str(folder / "conf")
    made = ("--init-token", "--free", "--label", "delian", "--pin", "4711", "--so-pin", "0815")
    subprocess.run(["softhsm2-util", *made], check=True, capture_output=True)
    (folder / "pin").write_text("4711\n")
    yield "delian", folder / "pin"
    del os.environ["SOFTHSM2_CONF"]


@pytest.fixture
def place(token, request):
    return KeyPlace(MODULE, token[0], request.node.name, str(token[1]))


def test_a_ca_issues_and_signs_with_a_key_that_is_only_in_the_token(place, tmp_path):
    made = Authority.create(tmp_path / "ca", "farm", token=place)
    assert not (tmp_path / "ca" / "ca.key").exists()
    for authority in (made, Authority(tmp_path / "ca")):
        issued = issue_to(authority, Role.DEVICE, 5)[1]
        check_issued(load_certificate(issued.chain), authority.certificate)
        now = time.time()
        signed = authority.signed(now_s=now)
        assert verify_head(signed.head, signed.signature, authority.certificate, "farm")
        head = authority.log.checkpoint(now)
        assert verify_log_head(head, authority.certificate, "farm").size == authority.log.tree.size
    check_issued(made.certificate, made.certificate)


def test_the_key_cannot_be_read(place):
    key = TokenKey.generate(place)
    raw, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for reads in (
        lambda: key.private_bytes(serialization.Encoding.PEM, raw, plain),
        key.private_numbers,
        lambda: key.exchange(ec.ECDH(), key.public_key()),
    ):
        with pytest.raises(IdentityError):
            reads()
    from pkcs11 import Attribute

    assert key._private[Attribute.SENSITIVE] and not key._private[Attribute.EXTRACTABLE]
    assert copy.copy(key) is key is copy.deepcopy(key)
    assert key.key_size == 256 and isinstance(key.curve, ec.SECP256R1)


def test_a_session_that_the_token_ended_is_opened_again(place):
    key = TokenKey.generate(place)
    key._session.close()
    signature = key.sign(b"a head", ec.ECDSA(hashes.SHA256()))
    key.public_key().verify(signature, b"a head", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(IdentityError, match="SHA-256 only"):
        key.sign(b"a head", ec.ECDSA(hashes.SHA384()))


def test_a_label_that_is_taken_is_refused(place, tmp_path):
    Authority.create(tmp_path / "one", "farm", token=place)
    with pytest.raises(IdentityError, match="already"):
        Authority.create(tmp_path / "two", "farm", token=place)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("token", "another", "did not open"),
        ("module", "/nowhere.so", "did not open"),
        ("label", "another", "did not find the key"),
        ("pin_file", "/nowhere", "cannot read"),
        ("pin_file", "empty", "has no PIN"),
    ],
)
def test_a_token_that_cannot_be_opened_is_an_error_that_says_why(
    place, tmp_path, field, value, says
):
    (tmp_path / "empty").write_text("\n")
    Authority.create(tmp_path / "ca", "farm", token=place)
    path = tmp_path / "ca" / "ca.token"
    facts = json.loads(path.read_text())
    facts[field] = str(tmp_path / value) if value == "empty" else value
    path.write_text(json.dumps(facts))
    with pytest.raises(IdentityError, match=says):
        Authority(tmp_path / "ca")


def test_a_wrong_pin_is_an_error(place, tmp_path):
    """In a process of its own: a login counts for all sessions of a process."""
    Authority.create(tmp_path / "ca", "farm", token=place)
    Path(place.pin_file).with_name("wrong").write_text("0000\n")
    path = tmp_path / "ca" / "ca.token"
    path.write_text(path.read_text().replace(place.pin_file, place.pin_file[:-3] + "wrong"))
    run = subprocess.run(
        [sys.executable, "-m", "delian.cli", "ca", "show", str(tmp_path / "ca")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2 and "did not open: PinIncorrect" in run.stderr


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"module": 1}', '{"x": "y"}'])
def test_a_damaged_file_is_an_error(place, tmp_path, content):
    Authority.create(tmp_path / "ca", "farm", token=place)
    (tmp_path / "ca" / "ca.token").write_text(content)
    with pytest.raises(IdentityError, match="is damaged"):
        Authority(tmp_path / "ca")


def test_the_token_of_another_ca_is_refused(place, token, tmp_path):
    Authority.create(tmp_path / "ca", "farm", token=place)
    other = KeyPlace(MODULE, token[0], place.label + " other", str(token[1]))
    TokenKey.generate(other)
    other.store(tmp_path / "ca")
    with pytest.raises(IdentityError, match="is not the key of"):
        Authority(tmp_path / "ca")


def test_the_command_makes_a_ca_in_a_token(token, tmp_path, monkeypatch, capsys):
    from delian.cli import main as command

    def delian(*arguments):
        monkeypatch.setattr(sys, "argv", ["delian", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command.main()
        return end.value.code or 0, capsys.readouterr()

    where = ("--pkcs11", MODULE, "--token", token[0], "--pin-file", token[1])
    made = ("ca", "init", tmp_path / "ca", "--federation", "barn")
    code, said = delian(*made, *where[:4])
    assert code == 2 and "--pin-file" in said.err
    assert delian(*made, *where)[0] == 0
    assert delian("ca", "issue", "operator", tmp_path / "op", "--ca", tmp_path / "ca")[0] == 0
    assert KeyPlace.load(tmp_path / "ca").label == "delian barn"


def test_without_the_library_the_error_names_the_extra(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(IdentityError, match="python-pkcs11 is not here") as error:
        TokenKey(place)
    assert "[hsm]" in str(error.value)


def test_a_ca_with_its_key_in_a_token_moves_to_an_authority(place, tmp_path):
    pytest.importorskip("sqlalchemy")
    from delian.cloud.authority.migration import Migration
    from delian.cloud.store.database import Database

    cloud, target = tmp_path / "cloud", tmp_path / "authority"
    Authority.create(cloud / "ca", "farm", token=place)

    async def move():
        await (await Database.open(cloud / "delian.db")).close()
        return await Migration(cloud, target).run()

    assert asyncio.run(move()).federation == "farm"
    assert issue_to(Authority(target / "ca"), Role.DEVICE, 5)[1].identity.number == 5
    assert not (cloud / "ca" / "ca.token").exists()
    with pytest.raises(IdentityError):
        Authority(cloud / "ca")
