"""The signed deny list, and how a node fetches, verifies and keeps it."""

from __future__ import annotations

import asyncio
import time

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.deny_list import (
    ENTRY_BYTES,
    FOR_GOOD,
    HEAD_BYTES_MAX,
    DenyList,
    DenyListError,
    SignedList,
    read_entries,
    sign_list,
    verify_head,
)
from delian.core.node.identity.enrolment import kept_deny_list as d
from delian.core.node.identity.enrolment.kept_deny_list import KnownDenied, page_of
from delian.core.node.identity.pki.certificates import IdentityError, Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.protocol.ports import Node, Tier

NAMES = {(Role.DEVICE, 5): FOR_GOOD, (Role.EDGE, 2): FOR_GOOD, (Role.CLOUD, 0): 1_900_000_000}
LISTED = DenyList(7, NAMES, 1_900_000_100)


def signed_by(authority, listed=LISTED, issued_s=1_900_000_100, federation="farm"):
    return sign_list(authority._ca.key, federation, listed, issued_s)


def opened(authority, signed):
    head = verify_head(signed.head, signed.signature, authority.certificate, "farm")
    return read_entries(head, signed.entries)


def test_a_signed_list_says_what_was_signed(authority):
    signed = signed_by(authority)
    assert opened(authority, signed) == LISTED
    assert signed_by(authority, DenyList(7, dict(reversed(NAMES.items())))).head == signed.head
    assert len(signed.entries) == 3 * ENTRY_BYTES and len(signed.head) <= HEAD_BYTES_MAX
    assert opened(authority, signed_by(authority, DenyList(), 5)) == DenyList(0, {}, 5)


def test_the_bytes_are_laid_down(authority):
    """Whoever implements the format by the module's docstring finds these."""
    signed = signed_by(authority)
    assert signed.head[:25] == b"delian/deny-list/v1\0\x04farm"
    assert signed.head[25:45].hex() == "000000000000000700000000713fb36400000003"
    assert signed.entries.hex() == (
        "00" "0000000000000005" "7fffffffffffffff"
        "01" "0000000000000002" "7fffffffffffffff"
        "02" "0000000000000000" "00000000713fb300"
    )  # fmt: skip


def test_a_list_of_another_ca_or_federation_does_not_count(authority, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    with pytest.raises(DenyListError, match="not signed by this federation's CA"):
        opened(authority, signed_by(other))
    with pytest.raises(DenyListError, match="of the federation barn, not of ours"):
        opened(authority, signed_by(authority, federation="barn"))


def test_no_byte_of_a_list_can_be_changed(authority):
    signed = signed_by(authority)
    for part in ("head", "signature", "entries"):
        whole = getattr(signed, part)
        for at in range(len(whole)):
            bad = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            parts = {"head": signed.head, "signature": signed.signature, "entries": signed.entries}
            with pytest.raises(DenyListError):
                opened(authority, SignedList(7, **{**parts, part: bad}))
    with pytest.raises(DenyListError):
        opened(authority, SignedList(7, signed.head, signed.signature, signed.entries[:-1]))


@pytest.mark.parametrize(
    "entries",
    [
        b"\x01" + b"\0" * 16 + b"\x00" + b"\0" * 16,  # not in order
        b"\0" * 34,  # one name twice
        b"\x09" + b"\0" * 16,  # no role
        b"\x00" + b"\xff" * 8 + b"\0" * 8,  # no number
    ],
)
def test_entries_that_no_ca_makes_are_refused_though_they_are_signed(authority, entries):
    import dataclasses
    import hashlib

    signed = signed_by(authority)
    head = verify_head(signed.head, signed.signature, authority.certificate, "farm")
    made = dataclasses.replace(
        head, entries=len(entries) // ENTRY_BYTES, digest=hashlib.sha256(entries).digest()
    )
    with pytest.raises(DenyListError, match="entries are malformed"):
        read_entries(made, entries)


def test_a_list_longer_than_a_federation_has_names_is_refused_before_it_is_fetched(authority):
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    head = signed_by(authority).head
    long = head[:41] + (2**22 + 1).to_bytes(4, "big") + head[45:]
    signature = authority._ca.key.sign(long, ec.ECDSA(hashes.SHA256()))
    with pytest.raises(DenyListError, match="4194305 entries is too long"):
        verify_head(long, signature, authority.certificate, "farm")


# ---------------------------------------------------------------- a node that keeps it


class Source:
    """Somebody who has a list, and hands it out as a page of `PAGE_BYTES` each."""

    def __init__(self, signed):
        self.signed, self.asked = signed, []
        self.change = lambda page: page

    async def __call__(self, asked):
        self.asked.append((asked.version, asked.offset))
        return self.change(page_of(self.signed(), asked))


@pytest.fixture
def folder(authority, tmp_path):
    key, issued = issue_to(authority, Role.EDGE, 3)
    made = IdentityFolder(tmp_path / "edge")
    made.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=1)
    return made


def many(authority, count):
    authority.note_number(Role.DEVICE, count)
    for number in range(1, count + 1):
        authority.revoke(f"device-{number}")


def fetched(known, source):
    return asyncio.run(known.fetch(source))


def test_a_node_fetches_the_list_page_by_page_and_remembers_it(authority, folder, monkeypatch):
    monkeypatch.setattr(d, "PAGE_BYTES", 4 * ENTRY_BYTES)
    source, told = Source(authority.signed), []
    known = KnownDenied(folder, told.append)
    assert known() == DenyList() and known.signed is None
    many(authority, 10)
    assert fetched(known, source)
    assert [offset for _, offset in source.asked] == [0, 4 * ENTRY_BYTES, 8 * ENTRY_BYTES]
    assert known().revoked(Node(Tier.DEVICE, 10)) and not known().revoked(Node(Tier.DEVICE, 11))
    assert known().version == authority.denied().version and told == [known()]
    again = KnownDenied(folder)
    assert again() == known() and again.signed == known.signed == authority.signed()


def test_a_list_that_was_only_signed_again_costs_one_page_and_makes_the_known_one_younger(
    authority, folder
):
    now, known = time.time(), KnownDenied(folder)
    many(authority, 3)
    fetched(known, Source(lambda: authority.signed(now_s=now)))
    source = Source(lambda: authority.signed(now_s=now + 7200))
    assert not fetched(known, source)
    assert len(source.asked) == 1 and len(known().names) == 3
    assert known().issued_s == KnownDenied(folder)().issued_s == int(now) + 7200
    assert not fetched(known, Source(lambda: authority.signed(now_s=now)))
    assert known().issued_s == int(now) + 7200, "an older signature makes it no older"


def test_an_older_list_is_refused_also_after_a_restart(authority, folder):
    old = authority.signed()
    many(authority, 1)
    known = KnownDenied(folder)
    fetched(known, Source(authority.signed))
    for node in (known, KnownDenied(folder)):
        with pytest.raises(DenyListError, match=r"version 1 was offered; version \d+ is known"):
            fetched(node, Source(lambda: old))
        assert node().revoked(Node(Tier.DEVICE, 1))


def test_a_forged_list_is_refused_before_its_entries_are_asked_for(authority, folder, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    many(other, 3)
    known, source = KnownDenied(folder), Source(other.signed)
    with pytest.raises(DenyListError, match="not signed by this federation's CA"):
        fetched(known, source)
    assert len(source.asked) == 1 and known() == DenyList()


def test_entries_that_were_changed_on_the_way_are_refused(authority, folder):
    many(authority, 2)
    known, source = KnownDenied(folder), Source(authority.signed)

    def change(page):
        page.entries = bytes(len(page.entries))
        return page

    source.change = change
    with pytest.raises(DenyListError, match="not those that the CA signed"):
        fetched(known, source)
    assert known() == KnownDenied(folder)() == DenyList()


def test_a_list_that_changes_while_it_is_read_is_read_again(authority, folder, monkeypatch):
    monkeypatch.setattr(d, "PAGE_BYTES", 4 * ENTRY_BYTES)
    many(authority, 6)
    authority.note_number(Role.DEVICE, 100)
    source, known = Source(authority.signed), KnownDenied(folder)

    def once(page):
        if len(source.asked) == 1:
            authority.revoke("device-7")
        return page

    source.change = once
    assert fetched(known, source) and len(known().names) == 7 and len(source.asked) == 4

    def always(page):
        authority.revoke(f"device-{len(authority.denied().names) + 1}")
        return page

    source.change = always
    authority.revoke("device-8")
    with pytest.raises(IdentityError, match="again and again"):
        fetched(known, source)


@pytest.mark.parametrize("how", ["none", "short", "long", "too large", "elsewhere"])
def test_pages_that_do_not_fit_together_are_refused(authority, folder, how):
    many(authority, 2)
    source, known = Source(authority.signed), KnownDenied(folder)

    def change(page):
        match how:
            case "none":
                page.entries = b""
            case "short" if page.offset:
                page.entries = b""
            case "short":
                page.entries = page.entries[:5]
            case "long":
                page.entries += b"x"
            case "too large":
                page.entries = bytes(d.PAGE_BYTES + 1)
            case "elsewhere":
                page.offset += 1
        return page

    source.change = change
    with pytest.raises(IdentityError, match="do not fit together"):
        fetched(known, source)
    assert known() == DenyList()


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"{", b"\xff" * 300])
def test_a_damaged_file_is_told(authority, folder, content):
    many(authority, 1)
    fetched(KnownDenied(folder), Source(authority.signed))
    whole = folder.denied_path.read_bytes()
    for bad in (content, whole[:-1], whole[:-1] + b"x"):
        folder.denied_path.write_bytes(bad)
        with pytest.raises(IdentityError, match=r"denied\.list is damaged.*\n  hint: delete it"):
            KnownDenied(folder)
