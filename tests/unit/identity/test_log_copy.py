"""The certificate log at nodes: the newest head, a whole copy, and the evidence of a fork."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from delian.core.node.identity.authority import terms
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.enrolment.kept_deny_list import KnownDenied, page_of
from delian.core.node.identity.log import certificate_log as cl
from delian.core.node.identity.log.log_copy import FORK_FILE, KnownLog, LogCopy
from delian.core.node.identity.log.log_entries import (
    LogError,
    LogFork,
    LogRollback,
    WitnessError,
    cosign,
    read_head,
    verify_head,
)
from delian.core.node.identity.pki.certificates import IdentityError, Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.wire.link_pb2 import DeniedAsk
from delian.core.wire.log_pb2 import LogUpdate

NOW = 1_900_000_000


@pytest.fixture
def own(authority, tmp_path):
    """A device's identity folder."""
    key, issued = issue_to(authority, Role.DEVICE, 7)
    folder = IdentityFolder(tmp_path / "own")
    folder.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=60)
    return folder


@pytest.fixture
def twin(authority, tmp_path):
    """The CA's folder as it was, opened elsewhere: it shows another log from now on."""
    shutil.copytree(authority.folder, tmp_path / "twin")
    return Authority(tmp_path / "twin")


def grow(authority, *numbers):
    for number in numbers:
        issue_to(authority, Role.DEVICE, number)


def source(authority, now=NOW, change=lambda page: page):
    async def ask(asked):
        page = authority.log.page(asked, now)
        change(page)
        return page

    return ask


def fetched(copy, ask):
    return asyncio.run(copy.fetch(ask))


def copy_of(authority, tmp_path, **settings):
    return LogCopy(tmp_path / "copy", authority.certificate, "farm", **settings)


# ---------------------------------------------------------------- a node's head


def test_a_node_takes_heads_that_continue_the_known_one_also_after_a_restart(authority, own):
    known = KnownLog(own)
    assert known.size() == 0
    known.take(authority.log.update(0, NOW))
    assert known.size() == 1
    grow(authority, 8, 9)
    again = KnownLog(own)
    again.take(authority.log.update(1, NOW))
    assert again.size() == KnownLog(own).size() == 3
    # The same size, signed later: it says that nothing has changed since.
    again.take(authority.log.update(3, NOW + 7200))
    assert KnownLog(own).head.issued_s == NOW + 7200
    again.take(authority.log.update(3, NOW + 3600))
    assert again.head.issued_s == NOW + 7200
    assert not (own.folder / FORK_FILE).exists()


@pytest.mark.parametrize("grown", [[(8,), (9,)], [(8,), (8, 9)], [(8, 9), (8,)]])
def test_two_logs_of_one_ca_are_a_fork_and_the_signed_heads_are_kept(
    authority, own, twin, grown, caplog
):
    grow(authority, *grown[0])
    grow(twin, *grown[1])
    known = KnownLog(own)
    known.take(authority.log.update(0, NOW))
    head = known.head
    known.take(twin.log.update(known.size(), NOW + 1))
    assert known.head == head == KnownLog(own).head
    assert "log_fork" in caplog.text
    evidence = json.loads((own.folder / FORK_FILE).read_text())
    for said, ca in [(evidence["known"], authority), (evidence["offered"], twin)]:
        signed = ca.log.checkpoint(NOW + 1)
        assert said["root"] == read_head(signed.head).root.hex()
        assert bytes.fromhex(said["head"]) == signed.head
        signed.signature = bytes.fromhex(said["signature"])
        verify_head(signed, authority.certificate, "farm")


def test_the_first_evidence_of_a_fork_stays(authority, own, twin):
    known = KnownLog(own)
    grow(authority, 8)
    grow(twin, 9)
    known.take(authority.log.update(0, NOW))
    known.take(twin.log.update(2, NOW))
    first = (own.folder / FORK_FILE).read_bytes()
    known.take(twin.log.update(2, NOW + 7200))
    assert (own.folder / FORK_FILE).read_bytes() == first


def test_an_older_head_is_late_and_no_evidence(authority, own):
    known, older = KnownLog(own), authority.log.update(0, NOW)
    grow(authority, 8)
    known.take(authority.log.update(0, NOW + 1))
    known.take(older)
    assert known.size() == 2 and not (own.folder / FORK_FILE).exists()


def test_a_head_of_another_ca_or_without_a_quorum_changes_nothing(authority, own, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    known = KnownLog(own)
    known.take(other.log.update(0, NOW))
    known.take(LogUpdate())
    assert known.size() == 0
    key = ed25519.Ed25519PrivateKey.generate()
    named = terms.made("farm", now_s=NOW, witnesses=[key.public_key().public_bytes_raw()], quorum=1)
    own.take_terms(terms.signed(authority.sign, named), authority.pem, "farm")
    update = authority.log.update(0, NOW)
    known.take(update)
    assert known.size() == 0
    update.checkpoint.cosignatures.append(cosign(key, update.checkpoint.head))
    known.take(update)
    assert known.size() == KnownLog(own).size() == 1


def test_a_damaged_head_is_an_error_and_not_its_absence(authority, own):
    KnownLog(own).take(authority.log.update(0, NOW))
    path = own.folder / "log.head"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    for bad in (bytes(content), b"\xff" * 9):
        path.write_bytes(bad)
        with pytest.raises(IdentityError, match="damaged"):
            KnownLog(own)


def test_the_head_comes_with_the_deny_list(authority, own):
    known = KnownLog(own)
    denied, asked = KnownDenied(own, log=known), []

    async def ask(message):
        asked.append(message.log_size)
        return page_of(authority.signed(), message, lambda size: authority.log.update(size, NOW))

    asyncio.run(denied.fetch(ask))
    grow(authority, 8)
    asyncio.run(denied.fetch(ask))
    assert known.size() == 2 and asked == [0, 1]


def test_the_deny_list_counts_without_a_head_and_with_a_forked_one(authority, own, twin):
    grow(authority, 8)
    grow(twin, 9)
    known = KnownLog(own)
    known.take(twin.log.update(0, NOW))
    denied = KnownDenied(own, log=known)
    authority.revoke("device-8")

    def update(size):
        return authority.log.update(size, NOW)

    async def ask(message):
        return page_of(authority.signed(), message, update)

    assert asyncio.run(denied.fetch(ask))
    assert (own.folder / FORK_FILE).exists() and known.size() == 2

    def fails(size):
        raise LogError("no head is co-signed yet")

    page = page_of(authority.signed(), DeniedAsk(), fails)
    assert not page.HasField("log") and page.head
    assert not page_of(authority.signed(), DeniedAsk(offset=9), update).HasField("log")


# ---------------------------------------------------------------- a copy


def test_a_copy_has_what_the_ca_has_and_goes_on_after_a_restart(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(cl, "PAGE_ENTRIES", 2)
    grow(authority, *range(1, 6))
    copy = copy_of(authority, tmp_path)
    with pytest.raises(LogError, match="no copy"):
        copy.update(0)
    assert fetched(copy, source(authority)) and not fetched(copy, source(authority))
    grow(authority, 6)
    again = copy_of(authority, tmp_path)
    assert again.head.size == 5 and fetched(again, source(authority))
    assert again.tree.root() == authority.log.tree.root() and again.head.size == 6
    assert again.file.entries(0, 9) == authority.log.file.entries(0, 9)
    leaf = authority.log.tree.leaf(5)
    assert again.place(leaf) == authority.log.place(leaf) == 5
    assert again.update(3) == authority.log.update(3, NOW)
    # A copy serves others.
    third = LogCopy(tmp_path / "third", authority.certificate, "farm")

    async def ask(asked):
        return again.page(asked)

    assert fetched(third, ask) and third.head == again.head


@pytest.mark.parametrize(
    "change",
    [
        lambda page: setattr(page, "first", page.first + 1),
        lambda page: setattr(page, "entries", b""),
        lambda page: setattr(page, "entries", page.entries[:-1]),
        lambda page: setattr(page, "entries", bytes(57) * (cl.PAGE_ENTRIES + 1)),
        lambda page: setattr(page, "entries", page.entries[:57] * 3),
    ],
)
def test_a_copy_takes_no_entries_that_are_not_the_head_s(authority, tmp_path, change):
    grow(authority, 1)
    copy = copy_of(authority, tmp_path)
    fetched(copy, source(authority))
    grow(authority, 2, 3, 4)
    with pytest.raises(LogError):
        fetched(copy, source(authority, change=change))
    assert copy.head.size == copy_of(authority, tmp_path).head.size == 1
    assert fetched(copy, source(authority))
    assert copy.tree.root() == authority.log.tree.root()


def test_a_copy_that_was_cut_short_during_a_fetch_goes_on(authority, tmp_path):
    grow(authority, 1, 2)
    copy = copy_of(authority, tmp_path)
    fetched(copy, source(authority))
    copy.file.append([bytes(57)])  # its head never came
    again = copy_of(authority, tmp_path)
    assert again.tree.size == 2
    copy.file.cut(1)
    with pytest.raises(LogError, match="is not what its head says"):
        copy_of(authority, tmp_path)


def test_a_copy_refuses_a_fork_and_a_rollback(authority, twin, tmp_path):
    grow(authority, 1, 2)
    grow(twin, 3, 4, 5)
    copy = copy_of(authority, tmp_path)
    fetched(copy, source(authority))
    with pytest.raises(LogFork):
        fetched(copy, source(twin))
    assert (copy.folder / FORK_FILE).exists() and copy.head.size == 2
    (copy.folder / FORK_FILE).unlink()
    twin.log.file.cut(1)
    with pytest.raises(LogRollback):
        fetched(copy, source(Authority(twin.folder), NOW + 9))
    assert (copy.folder / FORK_FILE).exists()  # the CA has signed a smaller log later


def test_a_copy_goes_by_the_terms(authority, tmp_path):
    named = terms.made("farm", now_s=NOW, witnesses=[bytes(32)], quorum=1)
    copy = copy_of(authority, tmp_path, terms=lambda: named)
    with pytest.raises(WitnessError):
        fetched(copy, source(authority))


# ---------------------------------------------------------------- after a restore


def test_a_restored_ca_takes_its_log_back_from_the_newest_copy(authority, twin, own, tmp_path):
    """twin: the CA's folder as a backup has it."""
    known = KnownLog(own)
    grow(authority, 8, 9)
    known.take(authority.log.update(0, NOW))
    copy = copy_of(authority, tmp_path)
    fetched(copy, source(authority))
    assert twin.log.take_back(copy.folder) == 3 and twin.log.take_back(copy.folder) == 0
    grow(twin, 10)
    known.take(twin.log.update(known.size(), NOW + 1))
    assert known.size() == 4 and not (own.folder / FORK_FILE).exists()


def test_a_log_takes_nothing_back_that_is_not_its_own(authority, twin, tmp_path):
    grow(authority, 8, 9)
    copy = copy_of(authority, tmp_path)
    with pytest.raises(LogError, match="no copy"):
        twin.log.take_back(copy.folder)
    fetched(copy, source(authority))
    grow(twin, 10)  # issued since the restore
    with pytest.raises(LogError, match="does not have"):
        twin.log.take_back(copy.folder)
    with pytest.raises(LogError, match="not signed"):
        Authority.create(tmp_path / "false", "farm").log.take_back(copy.folder)
    copy.file.cut(1)
    with pytest.raises(LogError, match="not what its head says"):
        authority.log.take_back(copy.folder)
