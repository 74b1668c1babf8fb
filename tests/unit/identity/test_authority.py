"""The CA: what it signs, what it remembers, and that a revocation is final."""

from __future__ import annotations

import datetime
import json
import stat
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import verification
from delian.core.node.identity.authority import authority_book as a
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.authority_folder import CERTIFICATE, KEY
from delian.core.node.identity.authority.deny_list import ENTRY_BYTES
from delian.core.node.identity.authority.revoked import SKIPPED
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    addresses_of,
    certificate_request,
    identity_of,
    load_certificate,
    new_key,
    requested_key,
)
from delian.core.protocol.ports import Node, Tier

DAY = 86400


def request():
    return certificate_request(new_key())


def test_a_ca_is_made_once_and_opened_again(tmp_path):
    made = Authority.create(tmp_path / "ca", "farm")
    opened = Authority(tmp_path / "ca")
    assert opened.federation == "farm" and opened.fingerprint == made.fingerprint
    with pytest.raises(IdentityError, match="holds a CA already"):
        Authority.create(tmp_path / "ca", "farm")
    with pytest.raises(IdentityError, match=r"holds no CA: there is no ca\.key"):
        Authority(tmp_path / "nowhere")
    with pytest.raises(IdentityError, match="cannot name a federation"):
        Authority.create(tmp_path / "b", "My Farm")


def test_the_key_is_for_its_owner_alone(authority):
    def mode(name):
        return stat.S_IMODE((authority.folder / name).stat().st_mode)

    issue_to(authority, Role.DEVICE, 1)
    authority.revoke("device-1")
    assert (mode("."), mode(KEY), mode(CERTIFICATE)) == (0o700, 0o600, 0o644)
    assert mode("issued.jsonl") == mode("denied.jsonl") == 0o600


def test_key_and_certificate_of_two_cas_are_not_mixed(authority, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    (authority.folder / KEY).write_bytes((other.folder / KEY).read_bytes())
    with pytest.raises(IdentityError, match="is not the key of"):
        Authority(authority.folder)


def test_a_device_s_certificate_is_a_client_s_and_names_nothing_else(authority):
    key = new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cloud-0")])
    wish = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("delian://farm/cloud/0")])
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .add_extension(wish, critical=False)
        .sign(key, hashes.SHA256())
    )
    issued = authority.issue(csr.public_bytes(serialization.Encoding.PEM), Role.DEVICE, 5)
    made = load_certificate(issued.chain)
    assert issued.identity.uri == "delian://farm/device/5"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [n.value for n in names] == ["delian://farm/device/5"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert issued.chain.count(b"BEGIN CERTIFICATE") == 2


def test_a_certificate_passes_a_strict_verifier(authority):
    for role in (Role.DEVICE, Role.EDGE):
        issued = authority.issue(request(), role, 5)
        store = verification.Store([authority.certificate])
        verifier = verification.PolicyBuilder().store(store).build_client_verifier()
        shown = verifier.verify(load_certificate(issued.chain), [])
        assert shown.chain[-1] == authority.certificate


def test_a_server_s_certificate_carries_its_identity_as_a_name_and_its_addresses(authority):
    issued = authority.issue(
        request(), Role.CLOUD, 0, addresses=["Coordinator.example", "10.0.0.1", "::1"]
    )
    made = load_certificate(issued.chain)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "cloud-0.farm.delian.internal",
        "edge-0.farm.delian.internal",
        "coordinator.example",
    ]
    assert addresses_of(made) == ["coordinator.example", "10.0.0.1", "::1"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert x509.ExtendedKeyUsageOID.SERVER_AUTH in usage


@pytest.mark.parametrize(
    ("role", "addresses", "message"),
    [
        (Role.EDGE, ["cloud-0.farm.delian.internal"], "the CA itself hands out"),
        (Role.EDGE, ["CLOUD-0.farm.Delian.internal"], "the CA itself hands out"),
        (Role.EDGE, ["a"] * 17, "at most 16"),
        (Role.EDGE, ["*"], "neither a host name"),
        (Role.DEVICE, ["example.org"], "carries no addresses"),
    ],
)
def test_addresses_that_a_certificate_must_not_carry_are_refused(
    authority, role, addresses, message
):
    with pytest.raises(IdentityError, match=message):
        authority.issue(request(), role, 3, addresses=addresses)
    assert authority.issued() == []


def test_a_broker_s_certificate_names_nobody(authority):
    chain = authority.issue_server(request(), ["broker.example", "127.0.0.1"])
    with pytest.raises(IdentityError, match="names 0 holders"):
        identity_of(chain)
    with pytest.raises(IdentityError, match="needs an address"):
        authority.issue_server(request(), [])


def test_a_certificate_begins_early_and_ends_in_thirty_days_but_not_after_the_ca(tmp_path):
    ca = Authority.create(tmp_path / "ca", "farm", life_s=40 * DAY)
    now = time.time()
    issued = ca.issue(request(), Role.DEVICE, 1, now_s=now)
    made = load_certificate(issued.chain)
    assert made.not_valid_before_utc.timestamp() == int(now) - a.BACKDATE_S
    assert issued.identity.not_after == int(now) + 30 * DAY
    assert issued.renew_after_s == 20 * DAY
    late = ca.issue(request(), Role.DEVICE, 1, now_s=now + 35 * DAY)
    assert late.identity.not_after == int(ca.certificate.not_valid_after_utc.timestamp())
    with pytest.raises(IdentityError, match="CA's own certificate has ended"):
        ca.issue(request(), Role.DEVICE, 1, now_s=now + 41 * DAY)


def test_serial_numbers_differ_and_are_written_down_before_the_certificate_is_given(authority):
    serials = {authority.issue(request(), Role.DEVICE, 1).identity.serial for _ in range(8)}
    assert len(serials) == 8
    again = Authority(authority.folder)
    assert {int(e["serial"], 16) for e in again.issued()} == serials


def test_a_renewal_keeps_the_names_and_takes_a_new_key(authority):
    key, first = issue_to(authority, Role.EDGE, 3, ["edge.example"])
    wanted = request()
    second = authority.renew(wanted, first.identity, first.chain)
    made = load_certificate(second.chain)
    assert second.identity.uri == first.identity.uri
    assert second.identity.serial != first.identity.serial
    assert addresses_of(made) == ["edge.example"]
    assert made.public_key() == requested_key(wanted) and key


def test_neither_a_revoked_nor_an_expired_certificate_can_be_renewed(authority):
    now = time.time()
    _, expired = issue_to(authority, Role.DEVICE, 1)
    with pytest.raises(IdentityError, match="ended on"):
        authority.renew(request(), expired.identity, expired.chain, now_s=now + 31 * DAY)
    authority.revoke("device-1")
    with pytest.raises(a.Revoked, match="was revoked"):
        authority.renew(request(), expired.identity, expired.chain)


def test_a_certificate_of_another_ca_cannot_be_renewed(authority, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    _, foreign = issue_to(other, Role.DEVICE, 1)
    with pytest.raises(IdentityError, match="not signed by this federation's CA"):
        authority.renew(request(), foreign.identity, foreign.chain)


def test_revoking_a_node_voids_all_its_certificates_and_no_other_node_s(authority):
    own = [issue_to(authority, Role.DEVICE, 7)[1] for _ in range(3)]
    _, other = issue_to(authority, Role.DEVICE, 8)
    before = authority.denied().version
    denied, fresh = authority.revoke("device-7", "stolen")
    assert fresh and denied.version > before and list(denied.nodes()) == [Node(Tier.DEVICE, 7)]
    assert all(denied.denies(issued.identity) for issued in own)
    assert not denied.denies(other.identity)
    again, fresh = authority.revoke("device-7")
    assert again == denied and not fresh
    for name in ("device-9", "device-0", "edge-7", "cloud-1", "nobody", "device-07"):
        with pytest.raises(IdentityError, match=f"no certificate of `{name}`"):
            authority.revoke(name)


def test_a_revoked_name_gets_no_certificate_whoever_asks(authority):
    _, issued = issue_to(authority, Role.DEVICE, 7)
    Authority(authority.folder).revoke("device-7")  # by another process
    with pytest.raises(a.Revoked, match="device-7 was revoked"):
        authority.issue(request(), Role.DEVICE, 7)
    with pytest.raises(a.Revoked, match="device-7 was revoked"):
        authority.renew(request(), issued.identity, issued.chain)
    assert Authority(authority.folder).denied().denies(issued.identity)


def test_a_certificate_that_nobody_wrote_down_is_void_as_well(authority):
    """A renewal that raced with a crash, or was given out after the backup."""
    _, issued = issue_to(authority, Role.DEVICE, 7)
    (authority.folder / "issued.jsonl").unlink()
    denied, _ = Authority(authority.folder).revoke("device-7")
    assert denied.denies(issued.identity)


def test_a_name_has_only_so_many_certificates_and_can_still_be_revoked(authority):
    now = time.time()
    issued = authority.issue(request(), Role.DEVICE, 7, now_s=now)
    for _ in range(a.CERTIFICATES_MAX - 1):
        issued = authority.renew(request(), issued.identity, issued.chain, now_s=now)
    for opened in (authority, Authority(authority.folder)):
        with pytest.raises(a.TooMany, match="device-7 has 32 certificates"):
            opened.renew(request(), issued.identity, issued.chain, now_s=now)
        with pytest.raises(a.TooMany):
            opened.issue(request(), Role.DEVICE, 7, now_s=now)
    authority.issue(request(), Role.DEVICE, 8, now_s=now)
    authority.issue(request(), Role.DEVICE, 7, now_s=now + 31 * DAY)  # those have ended
    assert authority.revoke("device-7")[1]
    assert len(authority.signed().entries) == ENTRY_BYTES


def test_the_coordinator_s_certificates_are_void_up_to_a_time_and_the_next_one_counts(authority):
    now = time.time()
    _, old = issue_to(authority, Role.CLOUD, 0, now_s=now)
    denied, _ = authority.revoke("cloud-0", now_s=now)
    assert denied.denies(old.identity)
    _, new = issue_to(authority, Role.CLOUD, 0, now_s=now)
    assert not authority.denied().denies(new.identity)
    with pytest.raises(IdentityError, match="set this machine's clock"):
        issue_to(authority, Role.CLOUD, 0, now_s=now - 2 * a.BACKDATE_S)


# ---------------------------------------------------------------- numbers


def copy_of(authority, *names):
    return {authority.folder / n: (authority.folder / n).read_bytes() for n in names}


def restored(authority, backup):
    """The CA as it was when its files were copied."""
    for path in authority.folder.glob("*.jsonl*"):
        path.unlink()
    for path, content in backup.items():
        path.write_bytes(content)
    return Authority(authority.folder)


@pytest.mark.parametrize("lost", ["numbers.jsonl", "issued.jsonl", "denied.jsonl"])
def test_a_number_stays_taken_when_a_file_is_lost(authority, lost):
    authority.give_number(Role.DEVICE, 7)
    issue_to(authority, Role.DEVICE, 7)
    authority.revoke("device-7")
    (authority.folder / lost).unlink()
    again = Authority(authority.folder)
    assert again.last_number(Role.DEVICE) == 7 and again.last_number(Role.EDGE) == 0
    with pytest.raises(IdentityError, match="device-7 was given out before"):
        again.give_number(Role.DEVICE, 7)


def test_a_damaged_file_of_numbers_is_told_and_gives_nothing_out(authority):
    authority.give_number(Role.DEVICE, 7)
    (authority.folder / "numbers.jsonl").write_text("{}\n")
    with pytest.raises(IdentityError, match=r"numbers\.jsonl is damaged"):
        Authority(authority.folder)


def test_after_a_restore_the_numbers_since_the_backup_are_left_out(authority):
    authority.give_number(Role.DEVICE, 1)
    issue_to(authority, Role.DEVICE, 1)
    backup = copy_of(
        authority, *(f"{n}.jsonl{mark}" for n in ("issued", "numbers") for mark in ("", ".mark"))
    )
    authority.give_number(Role.DEVICE, 2)
    _, lost = issue_to(authority, Role.DEVICE, 2)
    now = time.time() + 60
    seen, _ = authority.revoke("device-1", now_s=now)
    again = restored(authority, backup)
    with pytest.raises(IdentityError, match="delian ca restored"):
        again.revoke("device-2")
    again.restored(now_s=now + 60)
    assert again.last_number(Role.DEVICE) == 1 + SKIPPED
    assert again.denied().version > seen.version, "nodes take it though they have seen a newer one"
    assert again.revoke("device-2")[0].denies(lost.identity)


def test_the_file_of_numbers_stays_short(authority):
    for number in range(1, 40):
        authority.give_number(Role.DEVICE, number)
    again = Authority(authority.folder)
    assert len((authority.folder / "numbers.jsonl").read_bytes().splitlines()) == 2
    assert authority.last_number(Role.DEVICE) == again.last_number(Role.DEVICE) == 39
    with pytest.raises(IdentityError, match="has no more"):
        again.give_number(Role.EDGE, 2**22)


# ---------------------------------------------------------------- the list


def test_asking_for_the_list_again_reads_no_file(authority, monkeypatch):
    issue_to(authority, Role.DEVICE, 7)
    listed = authority.revoke("device-7")[0]
    monkeypatch.setattr(authority, "_refresh", None)
    assert authority.denied() is authority.denied() == listed


def test_the_list_is_signed_again_when_it_changes_and_every_hour(authority):
    now = time.time()
    issue_to(authority, Role.DEVICE, 7)
    first = authority.signed(now_s=now)
    assert authority.signed(now_s=now + a.RESIGN_S - 1) is first
    later = authority.signed(now_s=now + a.RESIGN_S)
    assert later.head != first.head and later.version == first.version
    Authority(authority.folder).revoke("device-7")
    changed = authority.signed(now_s=now + a.RESIGN_S)
    assert changed.version > later.version and changed.entries


def test_a_list_of_serial_numbers_becomes_one_of_names(authority):
    now = int(time.time())
    _, bad = issue_to(authority, Role.DEVICE, 7)
    _, half = issue_to(authority, Role.EDGE, 2)
    _, good = issue_to(authority, Role.DEVICE, 8)
    _, cloud = issue_to(authority, Role.CLOUD, 0, now_s=now - 60)
    _, newer = issue_to(authority, Role.CLOUD, 0, now_s=now + 60)
    rows = [(bad, "device-7"), (half, "edge-2"), (cloud, "cloud-0")]
    lines = [
        {"serial": f"{i.identity.serial:x}", "name": name, "not_after": now + DAY, "version": 9}
        | {"at": now, "why": "stolen"}
        for i, name in rows
    ]
    lines.append({**lines[0], "serial": "1", "name": "broker"})
    text = "".join(json.dumps(line) + "\n" for line in [{"version": 9}, *lines])
    (authority.folder / "denied.jsonl").write_text(text)
    (authority.folder / "numbers.jsonl").unlink()
    for _ in range(2):
        listed = Authority(authority.folder).denied()
        assert all(listed.denies(i.identity) for i in (bad, half, cloud))
        assert not any(listed.denies(i.identity) for i in (good, newer))
        assert listed.version > 9 and len(listed.names) == 3
    assert "serial" not in (authority.folder / "denied.jsonl").read_text()


def test_a_serial_number_without_a_name_is_not_forgotten_in_silence(authority):
    line = {"serial": "ab", "name": "unknown", "not_after": 2**40, "version": 9, "at": 1}
    (authority.folder / "denied.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(IdentityError, match="certificate ab, whose holder it does not name"):
        Authority(authority.folder)


def test_below_the_root_there_is_one_more_ca_at_most(authority):
    root = authority.certificate
    basic = root.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert basic.ca and basic.path_length == 1
    life = root.not_valid_after_utc - root.not_valid_before_utc
    assert life > datetime.timedelta(days=3650)
