"""A node's identity on its disk: whole or the one before, and never the wrong one."""

from __future__ import annotations

import shutil
import stat

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
)
from delian.core.node.identity.pki.identity_folder import (
    HomeAddress,
    IdentityFolder,
    check_reply,
    home_message,
)
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import enrolment_pb2, link_pb2

HOMES = (
    HomeAddress(Node(Tier.EDGE, 2), "edge.example:7402"),
    HomeAddress(CLOUD, "coordinator.example:7400", "mqtts://broker.example:8883"),
)


@pytest.fixture
def folder(tmp_path):
    return IdentityFolder(tmp_path / "identity")


def reply(authority, key, number=5, role=Role.DEVICE):
    issued = authority.issue(certificate_request(key), role, number)
    return enrolment_pb2.EnrolReply(
        node=link_pb2.Address(tier=link_pb2.NODE_DEVICE, number=number),
        federation="farm",
        certificate=issued.chain,
        authority=authority.pem,
        renew_after_s=issued.renew_after_s,
        homes=[home_message(home) for home in HOMES],
    )


def test_a_node_knows_who_it_is_and_where_to_go(folder, authority):
    assert not folder.exists()
    key = folder.pending_key()
    identity = folder.accept(key, reply(authority, key))
    again = IdentityFolder(folder.folder)
    assert again.exists() and again.identity() == identity
    facts = again.facts()
    assert (facts.federation, facts.role, facts.number) == ("farm", "device", 5)
    assert facts.homes == HOMES and facts.renew_at < facts.not_after == identity.not_after
    assert again.material().identity() == identity


def test_a_home_that_cannot_be_dialled_is_left_out(folder, authority):
    key = folder.pending_key()
    answer = reply(authority, key)
    for grpc, mqtt in (("unix:/run/x", ""), ("host", ""), ("", "http://host:1"), ("a:1\x1b", "")):
        answer.homes.append(home_message(HomeAddress(Node(Tier.EDGE, 3), grpc, mqtt)))
    folder.accept(key, answer)
    assert folder.facts().homes == HOMES


def test_the_folder_and_the_keys_are_for_their_owner_alone(folder, authority):
    key = folder.pending_key()
    assert stat.S_IMODE((folder.folder / "pending.pem").stat().st_mode) == 0o600
    folder.accept(key, reply(authority, key))
    assert stat.S_IMODE(folder.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.files().key.stat().st_mode) == 0o600
    assert not (folder.folder / "pending.pem").exists()


def test_a_request_that_was_not_answered_is_repeated_with_the_same_key(folder):
    assert key_pem(folder.pending_key()) == key_pem(IdentityFolder(folder.folder).pending_key())


def test_a_renewal_changes_key_and_certificate_together_and_keeps_the_ones_before(
    folder, authority
):
    for _ in range(4):
        before = folder.files() if folder.exists() else None
        key = folder.pending_key()
        folder.accept(key, reply(authority, key))
        files = folder.files()
        assert files.read().key == key_pem(key)
        if before is not None:
            assert before.key.exists(), "somebody may be reading it"
    assert len(list(folder.folder.glob("g*"))) == 2


def test_a_crash_before_the_last_step_leaves_the_old_identity(folder, authority, monkeypatch):
    key = folder.pending_key()
    first = folder.accept(key, reply(authority, key))
    from pathlib import Path

    def crash(self, target):
        raise OSError("no power")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "symlink_to", crash)
        with pytest.raises(OSError, match="no power"):
            folder.accept(key := folder.pending_key(), reply(authority, key))
    assert folder.identity() == first
    key = folder.pending_key()
    assert folder.accept(key, reply(authority, key)).serial != first.serial


@pytest.mark.parametrize("name", ["key.pem", "cert.pem", "ca.pem"])
def test_a_damaged_file_of_an_identity_is_named(folder, authority, name):
    key = folder.pending_key()
    folder.accept(key, reply(authority, key))
    path = folder.folder / "live" / name
    content = path.read_bytes()
    other = key_pem(new_key()) if name == "key.pem" else b""
    for damaged in (content[: len(content) // 2], other):
        path.write_bytes(damaged)
        with pytest.raises(IdentityError, match="is damaged: ") as caught:
            folder.material()
        assert str(folder.folder) in caught.value.message and "backup" in caught.value.hint


def test_a_copy_that_has_followed_links_is_an_identity_and_is_renewed(folder, authority, tmp_path):
    key = folder.pending_key()
    first = folder.accept(key, reply(authority, key))
    copy = IdentityFolder(shutil.copytree(folder.folder, tmp_path / "copy"))
    assert not (copy.folder / "live").is_symlink()
    assert copy.exists() and copy.identity() == first and copy.facts().number == 5
    for _ in range(2):
        key = copy.pending_key()
        renewed = copy.accept(key, reply(authority, key))
        assert renewed.serial != first.serial and copy.identity() == renewed
        assert (copy.folder / "live").is_symlink()


def test_what_the_coordinator_answers_is_checked(folder, authority, tmp_path):
    key = folder.pending_key()
    other = Authority.create(tmp_path / "other", "farm")

    def changed(**changes):
        made = reply(authority, key)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    wrong_node = reply(authority, key)
    wrong_node.node.number = 6
    foreign = issue_to(other, Role.DEVICE, 5)[1].chain
    for answer, message in (
        (reply(authority, new_key()), "for another key"),
        (wrong_node, "names another node"),
        (changed(federation="other"), "names another node"),
        (changed(certificate=foreign), "not signed by"),
        (changed(authority=other.pem), "not signed by"),
        (changed(authority=foreign), "not signed by"),
        (changed(authority=b""), "no X.509"),
        (changed(certificate=b"x" * 20_000), "too large"),
    ):
        with pytest.raises(IdentityError, match=message):
            folder.accept(key, answer)
    assert not folder.exists()
    with pytest.raises(IdentityError, match="not the token's"):
        check_reply(key, reply(authority, key), new_key().public_key())


def test_an_identity_of_one_ca_is_not_replaced_by_one_of_another(folder, authority, tmp_path):
    key = folder.pending_key()
    folder.accept(key, reply(authority, key))
    other = Authority.create(tmp_path / "other", "farm")
    with pytest.raises(IdentityError, match="answered for another CA"):
        folder.accept(key := folder.pending_key(), reply(other, key))


def test_an_operator_has_a_folder_too(folder, authority):
    key, issued = issue_to(authority, Role.OPERATOR, 1)
    folder.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=60)
    assert folder.facts().role == "operator" and folder.identity().node is None


def test_a_folder_without_an_identity_says_how_to_get_one(folder):
    with pytest.raises(IdentityError, match=r"there is no identity in .*\n.*delian join -"):
        folder.material()


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b"[]", b"x" * 70_000])
def test_a_damaged_file_is_told(folder, authority, content):
    key = folder.pending_key()
    folder.accept(key, reply(authority, key))
    (folder.folder / "live" / "node.json").write_bytes(content)
    with pytest.raises(IdentityError, match=r"node\.json is damaged"):
        folder.facts()
