"""The certificate log: entries, heads, cosignatures, and the log of a CA's folder."""

from __future__ import annotations

import hashlib
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from delian.core.common.merkle_tree import EMPTY_ROOT, Tree, root_of
from delian.core.node.identity.authority import terms
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log import certificate_log as cl
from delian.core.node.identity.log import log_entries as lg
from delian.core.node.identity.log.log_entries import (
    ENTRY_BYTES,
    LogEntry,
    LogError,
    LogFork,
    LogRollback,
    WitnessError,
    check_update,
    cosign,
    entry_of,
    leaf_of,
    read_entry,
    read_head,
    sign_head,
    verify_head,
    witness_id,
)
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    certificate_request,
    load_certificate,
    new_key,
)
from delian.core.wire.log_pb2 import Checkpoint, Cosignature, LogAsk, LogUpdate

NOW = 1_900_000_000


def witness(n):
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)
    return key, key.public_key().public_bytes_raw()


def certificate_of(issued):
    return load_certificate(issued.chain)


def head_of(authority, size=3, root=bytes([7]) * 32, federation="farm", issued_s=NOW):
    return sign_head(authority.sign, federation, size, root, issued_s)


# ---------------------------------------------------------------- entries


def test_an_entry_names_the_holder_the_times_and_the_certificate(authority):
    issued = issue_to(authority, Role.DEVICE, 5)[1]
    certificate = certificate_of(issued)
    der = certificate.public_bytes(serialization.Encoding.DER)
    entry = entry_of(certificate)
    assert entry == entry_of(der) == entry_of(issued.chain)
    assert len(entry) == ENTRY_BYTES == 57
    assert read_entry(entry) == LogEntry(
        Role.DEVICE,
        5,
        issued.identity.not_before,
        issued.identity.not_after,
        hashlib.sha256(der).digest(),
    )
    assert entry[:9].hex() == "000000000000000005" and read_entry(entry).name == "device-5"
    assert leaf_of(der) == hashlib.sha256(b"\0" + entry).digest()


def test_a_certificate_of_a_server_that_is_no_node_has_an_entry_too(authority):
    pem = authority.issue_server(certificate_request(new_key()), ["broker.example"])
    entry = read_entry(entry_of(pem))
    assert entry.role is None and entry.name == "server" and entry.number == 0
    assert authority.log.file.entries(0, 9) == [entry_of(pem)]


@pytest.mark.parametrize("entry", [b"", bytes(56), bytes(58), b"\x63" + bytes(56)])
def test_an_entry_that_no_ca_writes_is_refused(entry):
    with pytest.raises(LogError):
        read_entry(entry)


# ---------------------------------------------------------------- heads


def test_the_bytes_of_a_head_are_laid_down(authority):
    signed = head_of(authority)
    assert signed.head == (
        b"delian/log/v1\0\x04farm"
        + bytes.fromhex("000000000000000300000000713fb300")
        + bytes([7]) * 32
    )
    head = verify_head(signed, authority.certificate, "farm")
    assert head == read_head(signed.head) == lg.LogHead("farm", 3, NOW, bytes([7]) * 32)
    assert verify_head(signed, authority.key, "farm") == head
    longest = sign_head(authority.sign, "f" * 63, 3, bytes(32), NOW)
    assert len(longest.head) == lg.HEAD_BYTES_MAX


def test_a_head_that_was_changed_or_is_of_another_ca_or_federation_is_refused(authority, tmp_path):
    signed = head_of(authority)
    other = Authority.create(tmp_path / "other", "farm")
    changed = Checkpoint(head=signed.head[:-1] + b"\0", signature=signed.signature)
    with pytest.raises(LogError, match="not signed"):
        verify_head(changed, authority.certificate, "farm")
    with pytest.raises(LogError, match="not signed"):
        verify_head(signed, other.certificate, "farm")
    with pytest.raises(LogError, match="federation"):
        verify_head(signed, authority.certificate, "barn")
    with pytest.raises(LogError, match="too large"):
        verify_head(Checkpoint(head=bytes(200)), authority.certificate, "farm")
    for head in (b"", signed.head[:-1], signed.head + b"\0", b"x" + signed.head[1:]):
        malformed = Checkpoint(head=head, signature=authority.sign(head))
        with pytest.raises(LogError, match="malformed"):
            verify_head(malformed, authority.certificate, "farm")


def test_a_head_counts_with_a_quorum_of_different_witnesses(authority):
    keys = [witness(n) for n in (1, 2, 3)]
    named = [public for _, public in keys]
    signed = head_of(authority)
    signed.cosignatures.append(cosign(keys[0][0], signed.head))
    verify_head(signed, authority.certificate, "farm", named, 1)
    with pytest.raises(WitnessError, match="1 cosignatures"):
        verify_head(signed, authority.certificate, "farm", named, 2)
    # Nothing of these is a second cosignature.
    another = head_of(authority, size=4)
    signed.cosignatures.extend(
        [
            cosign(keys[0][0], signed.head),  # the same witness
            cosign(witness(9)[0], signed.head),  # a witness that the terms do not name
            cosign(keys[1][0], another.head),  # of another head
            Cosignature(witness=witness_id(named[2]), signature=bytes(64)),
            Cosignature(witness=witness_id(named[2]), signature=b"short"),
        ]
    )
    with pytest.raises(WitnessError, match="1 cosignatures"):
        verify_head(signed, authority.certificate, "farm", named, 2)
    signed.cosignatures.append(cosign(keys[1][0], signed.head))
    verify_head(signed, authority.certificate, "farm", named, 2)
    assert signed.ByteSize() <= lg.CHECKPOINT_BYTES_MAX
    signed.cosignatures.extend([Cosignature()] * lg.WITNESSES_MAX)
    with pytest.raises(LogError, match="cosignatures"):
        verify_head(signed, authority.certificate, "farm", named, 2)


def test_a_cosignature_is_no_signature_of_anything_else(authority):
    """The witness's key signs the head under a domain of its own."""
    key, public = witness(1)
    signed = head_of(authority)
    signed.cosignatures.append(
        Cosignature(witness=witness_id(public), signature=key.sign(signed.head))
    )
    with pytest.raises(WitnessError):
        verify_head(signed, authority.certificate, "farm", [public], 1)


# ---------------------------------------------------------------- updates


def tree(*leaves):
    made = Tree()
    for leaf in leaves:
        made.append(hashlib.sha256(leaf.encode()).digest())
    return made


def head(of, size, issued_s=NOW):
    return lg.LogHead("farm", size, issued_s, of.root(size))


def test_an_update_continues_the_known_head_or_is_refused():
    one, other = tree(*"abcdefg"), tree(*"abxdefg")

    def update(of, old, size):
        return LogUpdate(old_size=old, consistency=of.consistency(old, size))

    check_update(None, LogUpdate(), head(one, 5))
    check_update(head(one, 3), update(one, 3, 7), head(one, 7))
    check_update(head(one, 5), update(one, 5, 5), head(one, 5))
    with pytest.raises(LogFork):  # the log was rewritten
        check_update(head(one, 3), update(other, 3, 7), head(other, 7))
    with pytest.raises(LogFork):  # two heads of one size
        check_update(head(one, 5), update(other, 5, 5), head(other, 5))
    with pytest.raises(LogRollback):
        check_update(head(one, 5), LogUpdate(old_size=5), head(one, 4))
    with pytest.raises(LogError, match="starts at 3"):
        check_update(head(one, 5), update(one, 3, 7), head(one, 7))


# ---------------------------------------------------------------- the CA's log


def test_every_certificate_is_in_the_log_before_it_is_given_out(authority):
    given = [issue_to(authority, Role.DEVICE, n)[1] for n in (1, 2, 3)]
    given.append(issue_to(authority, Role.CLOUD, 0)[1])
    entries = [entry_of(issued.chain) for issued in given]
    assert authority.log.file.entries(0, 99) == entries
    signed = authority.log.checkpoint(NOW)
    found = verify_head(signed, authority.certificate, "farm")
    assert found.size == 4
    for index, issued in enumerate(given):
        proof = authority.log.tree.inclusion([index], 4)
        assert root_of({index: leaf_of(issued.chain)}, 4, proof) == found.root
        assert authority.log.file.place(leaf_of(issued.chain)) == index
    assert authority.log.file.place(bytes(32)) is None


def test_a_certificate_is_not_given_out_if_its_entry_cannot_be_written(authority, monkeypatch):
    def full(entry, at_least):
        raise LogError("no space left")

    monkeypatch.setattr(authority.log, "append", full)
    with pytest.raises(LogError):
        issue_to(authority, Role.DEVICE, 1)
    assert authority.issued() == []


def test_a_refused_certificate_is_not_in_the_log(authority):
    issue_to(authority, Role.DEVICE, 1)
    authority.revoke("device-1")
    with pytest.raises(IdentityError):
        issue_to(authority, Role.DEVICE, 1)
    assert authority.log.file.size() == 1


def test_another_process_sees_what_was_added(authority):
    other = Authority(authority.folder)
    issue_to(authority, Role.DEVICE, 1)
    assert other.log.tree.size == 1
    issue_to(other, Role.DEVICE, 2)
    issue_to(authority, Role.DEVICE, 3)
    assert authority.log.tree.root() == other.log.tree.root()
    assert authority.log.tree.size == 3


def test_a_head_is_signed_again_when_it_changed_and_every_hour(authority):
    first = authority.log.checkpoint(NOW)
    assert read_head(first.head).root == EMPTY_ROOT
    assert authority.log.checkpoint(NOW + cl.RESIGN_S - 1) == first
    later = authority.log.checkpoint(NOW + cl.RESIGN_S)
    assert read_head(later.head).issued_s == NOW + cl.RESIGN_S
    issue_to(authority, Role.DEVICE, 1)
    assert read_head(authority.log.checkpoint(NOW + cl.RESIGN_S).head).size == 1
    # A clock that was turned back does not keep the head of the future.
    assert read_head(authority.log.checkpoint(NOW).head).issued_s == NOW


def test_an_entry_that_was_half_written_is_removed(authority):
    issue_to(authority, Role.DEVICE, 1)
    root = authority.log.tree.root()
    path = authority.folder / "log"
    whole = path.read_bytes()
    for torn in (whole + b"\0\1\2", whole + bytes(64)):  # short; or its blocks were never written
        path.write_bytes(torn)
        again = Authority(authority.folder)
        assert again.log.tree.size == 1 and again.log.tree.root() == root
    issue_to(again, Role.DEVICE, 2)
    assert path.stat().st_size == 64 * 3
    assert Authority(authority.folder).log.tree.size == 2


def test_a_damaged_log_stops_the_ca(authority):
    for number in (1, 2, 3):
        issue_to(authority, Role.DEVICE, number)
    path = authority.folder / "log"
    content = bytearray(path.read_bytes())
    content[64 + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogError, match="damaged at entry 0"):
        Authority(authority.folder).log.checkpoint(NOW)
    path.write_bytes(b"something else".ljust(128))
    with pytest.raises(LogError, match="no certificate log"):
        issue_to(Authority(authority.folder), Role.DEVICE, 4)


@pytest.mark.parametrize(
    "lost", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:128])]
)
def test_a_log_that_lost_entries_takes_no_other(authority, lost):
    for number in (1, 2):
        issue_to(authority, Role.DEVICE, number)
    lost(authority.folder / "log")
    with pytest.raises(LogError, match="2 were written"):
        issue_to(Authority(authority.folder), Role.DEVICE, 3)


def test_a_ca_that_is_older_than_the_log_begins_one(authority):
    issue_to(authority, Role.DEVICE, 1)
    (authority.folder / "log").unlink()
    ledger = authority.folder / "issued.jsonl"
    lines = [line.rpartition(" ")[0] for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(line.replace('"log":0,', "") + "\n" for line in lines))
    ledger.with_name("issued.jsonl.mark").unlink()
    older = Authority(authority.folder)
    assert older.log.tree.size == 0
    issue_to(older, Role.DEVICE, 1)
    assert older.log.tree.size == 1


# ---------------------------------------------------------------- heads that are handed out


def ask_for_a_quorum(authority, quorum=1):
    named = terms.made("farm", now_s=NOW, witnesses=[witness(1)[1]], quorum=quorum)
    terms.publish(authority.folder, authority.sign, named)


def test_with_a_quorum_the_head_that_witnesses_have_signed_is_handed_out(authority):
    ask_for_a_quorum(authority)
    with pytest.raises(LogError, match="co-signed"):
        authority.log.published(NOW)
    first = authority.log.checkpoint(NOW)
    first.cosignatures.append(cosign(witness(1)[0], first.head))
    authority.log.publish(first)
    issue_to(authority, Role.DEVICE, 1)
    assert authority.log.published(NOW) == Authority(authority.folder).log.published(NOW) == first
    second = authority.log.checkpoint(NOW)
    authority.log.publish(second)
    authority.log.publish(first)  # late
    assert authority.log.published(NOW) == second
    authority.log.file.cut(0)
    with pytest.raises(LogError, match="shorter"):
        authority.log.published(NOW)


def test_without_a_quorum_the_newest_head_is_handed_out(authority):
    ask_for_a_quorum(authority)
    authority.log.publish(authority.log.checkpoint(NOW))
    issue_to(authority, Role.DEVICE, 1)
    ask_for_a_quorum(authority, 0)
    assert read_head(authority.log.published(NOW).head).size == 1


def test_a_reader_gets_the_log_in_pages_that_fit(authority):
    entries = [bytes([0]) + n.to_bytes(8, "big") + bytes(48) for n in range(2 * cl.PAGE_ENTRIES)]
    authority.log.file.append(entries)
    now = time.time()
    found = []
    while len(found) < len(entries):
        page = authority.log.page(LogAsk(first=len(found), old_size=5), now)
        assert page.first == len(found) and 0 < len(page.entries) <= 48 * 1024
        found += [page.entries[at : at + 57] for at in range(0, len(page.entries), 57)]
    assert found == entries
    check_update(head(authority.log.tree, 5), page.update, read_head(page.update.checkpoint.head))
    for first, old_size in [(len(found), 0), (2**64 - 1, 2**64 - 1)]:
        page = authority.log.page(LogAsk(first=first, old_size=old_size), now)
        assert page.entries == page.update.consistency == b""
