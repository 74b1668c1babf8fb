"""The CA: what it signs, what it remembers, and that a revocation is final."""

from __future__ import annotations

import datetime
import stat
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import verification
from delian.core.identity import authority as a
from delian.core.identity.authority import Authority, issue_to
from delian.core.identity.certificates import (
    IdentityError,
    Role,
    certificate_request,
    identity_of,
    load_certificate,
    new_key,
    requested_key,
)

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
    assert (mode("."), mode(a.KEY), mode(a.CERTIFICATE)) == (0o700, 0o600, 0o644)
    assert mode("issued.jsonl") == mode("denied.jsonl") == 0o600


def test_key_and_certificate_of_two_cas_are_not_mixed(authority, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    (authority.folder / a.KEY).write_bytes((other.folder / a.KEY).read_bytes())
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
    assert a.addresses_of(made) == ["coordinator.example", "10.0.0.1", "::1"]
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
    assert a.addresses_of(made) == ["edge.example"]
    assert made.public_key() == requested_key(wanted) and key


def test_neither_a_revoked_nor_an_expired_certificate_can_be_renewed(authority):
    now = time.time()
    _, expired = issue_to(authority, Role.DEVICE, 1)
    with pytest.raises(IdentityError, match="ended on"):
        authority.renew(request(), expired.identity, expired.chain, now_s=now + 31 * DAY)
    authority.revoke("device-1")
    with pytest.raises(IdentityError, match="was revoked"):
        authority.renew(request(), expired.identity, expired.chain)


def test_a_certificate_of_another_ca_cannot_be_renewed(authority, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    _, foreign = issue_to(other, Role.DEVICE, 1)
    with pytest.raises(IdentityError, match="not signed by this federation's CA"):
        authority.renew(request(), foreign.identity, foreign.chain)


def test_revoking_a_node_denies_all_its_certificates_and_raises_the_version(authority):
    serials = {issue_to(authority, Role.DEVICE, 7)[1].identity.serial for _ in range(3)}
    issue_to(authority, Role.DEVICE, 8)
    before = authority.denied().version
    denied, count = authority.revoke("device-7", "stolen")
    assert denied.serials == serials and count == 3 and denied.version > before
    again, count = authority.revoke("device-7")
    assert again == denied and count == 0
    with pytest.raises(IdentityError, match="no certificate of `device-9`"):
        authority.revoke("device-9")


def test_a_revocation_by_another_process_is_seen_at_once_and_survives(authority):
    _, issued = issue_to(authority, Role.DEVICE, 7)
    beside = Authority(authority.folder)
    beside.revoke(f"{issued.identity.serial:x}")
    assert authority.is_denied(issued.identity.serial)
    assert Authority(authority.folder).is_denied(issued.identity.serial)
    with pytest.raises(IdentityError, match="was revoked"):
        authority.renew(request(), issued.identity, issued.chain)


def restored(authority, backup):
    """The CA as it was when its files were copied."""
    for path, content in backup.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
    return Authority(authority.folder)


def backup_of(authority):
    files = [authority.folder / name for name in ("issued.jsonl", "denied.jsonl")]
    return {path: path.read_bytes() if path.exists() else None for path in files}


def test_what_was_given_out_after_the_backup_can_still_be_revoked(authority):
    issue_to(authority, Role.DEVICE, 1)
    backup = backup_of(authority)
    lost = [issue_to(authority, Role.DEVICE, 7)[1] for _ in range(2)]
    again = restored(authority, backup)
    with pytest.raises(IdentityError, match="no certificate of `device-7`"):
        again.revoke("device-7")
    serial = lost[0].identity.serial
    denied, count = again.revoke(f"{serial:X}")
    assert count == 1 and denied.serials == {serial} and again.revoke(f"{serial:x}")[1] == 0
    with pytest.raises(IdentityError, match="was revoked"):
        again.renew(request(), lost[0].identity, lost[0].chain)
    # One that was renewed since is found by the name, and what it renewed with it.
    newer = again.renew(request(), lost[1].identity, lost[1].chain)
    denied, count = again.revoke("device-7")
    assert count == 2
    assert denied.serials == {serial, lost[1].identity.serial, newer.identity.serial}
    with pytest.raises(IdentityError, match="no certificate of `abcdef"):
        again.revoke("abcdef")


def test_after_a_restore_no_other_list_has_a_version_that_edges_know(authority):
    then = time.time() - DAY
    for number in (1, 2, 3):
        issue_to(authority, Role.DEVICE, number)
    backup = backup_of(authority)
    before, _ = authority.revoke("device-1", now_s=then)
    again = restored(authority, backup)
    after, _ = again.revoke("device-2", now_s=then + 60)
    assert after.serials != before.serials and after.version > before.version


def test_asking_for_the_list_again_reads_no_file(authority, monkeypatch):
    issue_to(authority, Role.DEVICE, 7)
    listed = authority.revoke("device-7")[0]
    monkeypatch.setattr(authority, "_refresh", None)
    assert authority.denied() is authority.denied() == listed


def test_what_has_ended_leaves_the_files_and_the_version_goes_on(authority):
    then = time.time() - 60 * DAY
    for number in range(4):
        authority.issue(request(), Role.DEVICE, number, now_s=then)
        authority.revoke(f"device-{number}", now_s=then)
    _, live = issue_to(authority, Role.DEVICE, 9)
    denied, _ = authority.revoke("device-9")
    assert len(denied.serials) == 5
    opened = Authority(authority.folder)
    assert [e["name"] for e in opened.issued()] == ["device-9"]
    assert opened.denied().serials == {live.identity.serial}
    assert opened.denied().version > denied.version
    assert authority.denied() == opened.denied(), "the other process reads the new file"


def test_a_serial_number_goes_over_the_wire_as_short_as_it_is():
    assert a.serial_bytes(0x1FF) == b"\x01\xff" and a.serial_bytes(1) == b"\x01"


def test_the_root_cannot_make_further_cas(authority):
    root = authority.certificate
    basic = root.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert basic.ca and basic.path_length == 0
    life = root.not_valid_after_utc - root.not_valid_before_utc
    assert life > datetime.timedelta(days=3650)
