"""Signatures by a federation's certificates: whose are believed, and whose are not."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from delian.core.node.identity.authority.authority import LIFE_S, Authority, issue_to
from delian.core.node.identity.authority.deny_list import DenyList
from delian.core.node.identity.pki import signing
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    certificate_request,
    identity_of,
    key_pem,
    new_key,
)
from delian.core.node.identity.pki.leaf_certificate import DAY_S
from delian.core.node.identity.pki.signing import CertificateIdentity
from delian.core.privacy.secagg.member_identity import (
    CERTIFICATE_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
    SimulatedIdentity,
)

TEXT = b"what is signed"


@pytest.fixture
def identity(material):
    """Makes a device's identity; keywords go to CertificateIdentity."""

    def make(number=5, **more):
        return CertificateIdentity(material(Role.DEVICE, number), **more)

    return make


def test_a_device_s_signature_is_believed_with_its_certificate(identity):
    five, eight = identity(5), identity(8)
    signature = five.sign(TEXT)
    assert eight.verify(5, five.certificate, TEXT, signature)
    assert five.verify(5, five.certificate, TEXT, signature)
    assert len(five.certificate) <= CERTIFICATE_BYTES_MAX
    assert len(signature) <= SIGNATURE_BYTES_MAX


def test_the_same_message_gets_the_same_signature(identity):
    five = identity()
    assert five.sign(TEXT) == five.sign(TEXT) != five.sign(b"another")


def test_another_message_device_certificate_or_signature_is_not_believed(identity):
    five, eight = identity(5), identity(8)
    signature, der = five.sign(TEXT), five.certificate
    assert not eight.verify(5, der, b"another", signature)
    assert not eight.verify(8, der, TEXT, signature)
    assert not eight.verify(5, eight.certificate, TEXT, signature)
    assert not eight.verify(8, eight.certificate, TEXT, signature)
    for wrong in (b"", signature[:-1], signature + b"\0", b"x" * 70, b"x" * 10_000):
        assert not eight.verify(5, der, TEXT, wrong)


def test_malformed_and_oversized_certificates_are_not_believed(identity):
    five, eight = identity(5), identity(8)
    signature, der = five.sign(TEXT), five.certificate
    padded = der + bytes(CERTIFICATE_BYTES_MAX)
    for wrong in (b"", b"certificate", der[:-1], der + b"\0", padded, b"\x30" * 2048):
        assert not eight.verify(5, wrong, TEXT, signature)
    # What the CA has signed; the frame around it has bits that mean nothing.
    signed = 4 + len(x509.load_der_x509_certificate(der).tbs_certificate_bytes)
    for position in range(0, signed, 3):
        bent = bytearray(der)
        bent[position] ^= 1
        assert not eight.verify(5, bytes(bent), TEXT, signature), position


def test_another_authority_s_certificate_is_not_believed(identity, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    key, issued = issue_to(other, Role.DEVICE, 5)
    stranger = CertificateIdentity(TlsMaterial(key, issued.chain, other.pem))
    assert not identity(8).verify(5, stranger.certificate, TEXT, stranger.sign(TEXT))


def test_only_devices_sign(material, identity):
    """An edge with a device's number is no device."""
    edge = CertificateIdentity(material(Role.EDGE, 5))
    assert not identity(8).verify(5, edge.certificate, TEXT, edge.sign(TEXT))


def test_a_certificate_counts_from_its_beginning_to_its_end_on_the_clock_that_is_given(identity):
    now = [time.time()]
    five = identity(5)
    eight = identity(8, clock=lambda: now[0])
    signature = five.sign(TEXT)

    def believed() -> bool:
        return eight.verify(5, five.certificate, TEXT, signature)

    assert believed()
    now[0] += LIFE_S + DAY_S
    assert not believed(), "remembered, but over"
    now[0] -= LIFE_S + 3 * DAY_S
    assert not believed(), "not begun"
    now[0] += 2 * DAY_S
    assert believed()


def test_a_coordinator_asks_for_certificates_that_stay_valid_for_a_while(identity):
    """Else its devices, who come later and whose clocks differ, would find one that has ended."""
    five, end = identity(5), time.time() + LIFE_S
    signature = five.sign(TEXT)
    for left_s, believed in ((2 * DAY_S, True), (DAY_S / 2, False)):
        now = end - left_s
        device = identity(8, clock=lambda t=now: t)
        coordinator = identity(9, clock=lambda t=now: t, margin_s=DAY_S)
        assert device.verify(5, five.certificate, TEXT, signature)
        assert coordinator.verify(5, five.certificate, TEXT, signature) is believed


def test_a_denied_certificate_is_believed_no_more(identity, authority):
    five = identity(5)
    eight = identity(8, denied=authority.denied)
    signature = five.sign(TEXT)
    assert eight.verify(5, five.certificate, TEXT, signature)
    authority.revoke("device-5")
    assert not eight.verify(5, five.certificate, TEXT, signature)
    begins = identity_of(five.certificate).not_before
    own = DenyList(1, {(Role.DEVICE, 5): begins + 1})
    assert not identity(8, denied=lambda: own).verify(5, five.certificate, TEXT, signature)
    later = DenyList(1, {(Role.DEVICE, 5): begins, (Role.EDGE, 5): begins + 1})
    assert identity(8, denied=lambda: later).verify(5, five.certificate, TEXT, signature)


def test_after_a_renewal_both_certificates_are_believed_each_with_its_own_key(identity):
    first, second, eight = identity(5), identity(5), identity(8)
    assert eight.verify(5, first.certificate, TEXT, first.sign(TEXT))
    assert eight.verify(5, second.certificate, TEXT, second.sign(TEXT))
    assert not eight.verify(5, second.certificate, TEXT, first.sign(TEXT))


def test_certificates_are_verified_once_and_remembered_within_a_limit(identity, monkeypatch):
    monkeypatch.setattr(signing, "VERIFIED_MAX", 3)
    read = []
    true = signing.read_chain
    monkeypatch.setattr(signing, "read_chain", lambda der: (read.append(der), true(der))[1])
    peers = [identity(number) for number in range(5)]
    eight = identity(8)

    def ask(peer) -> int:
        before = len(read)
        number = peers.index(peer)
        assert eight.verify(number, peer.certificate, TEXT, peer.sign(TEXT))
        assert len(eight._verified) <= 3
        return len(read) - before

    assert [ask(peer) for peer in peers] == [1] * 5
    assert [ask(peer) for peer in peers[2:]] == [0] * 3
    assert ask(peers[0]) == 1
    assert [ask(peer) for peer in (peers[3], peers[4])] == [0, 0]
    assert ask(peers[2]) == 1


def test_a_coordinator_verifies_however_many_addresses_its_own_certificate_has(authority, identity):
    addresses = [f"{'a' * 60}.{'b' * 60}.{'c' * 60}.example{i}.org" for i in range(14)]
    key, issued = issue_to(authority, Role.CLOUD, 0, addresses)
    coordinator = CertificateIdentity(TlsMaterial(key, issued.chain, authority.pem))
    assert len(coordinator.certificate) > CERTIFICATE_BYTES_MAX
    five = identity(5)
    assert coordinator.verify(5, five.certificate, TEXT, five.sign(TEXT))
    signature = coordinator.sign(TEXT)
    assert five.verify_coordinator(coordinator.certificate, TEXT, signature)


def test_malformed_material_is_refused(material, authority):
    good = material()
    for bad in (
        TlsMaterial(b"no key", good.certificate, good.authority),
        TlsMaterial(good.key, b"no certificate", good.authority),
        TlsMaterial(good.key, good.certificate, b"no authority"),
        TlsMaterial(good.key, authority.pem, good.authority),
    ):
        with pytest.raises(IdentityError):
            CertificateIdentity(bad)


def test_the_key_is_in_no_text(material):
    made = material()
    assert made.key.decode() not in repr(CertificateIdentity(made).__dict__)


def test_what_a_device_shows_is_its_own_certificate_without_the_root(authority, identity):
    key = new_key()
    issued = authority.issue(certificate_request(key), Role.DEVICE, 2**40 - 1)
    far = CertificateIdentity(TlsMaterial(key_pem(key), issued.chain, authority.pem))
    der = x509.load_pem_x509_certificate(issued.chain).public_bytes(Encoding.DER)
    assert far.certificate == der
    assert identity(8).verify(2**40 - 1, der, TEXT, far.sign(TEXT))


def test_a_simulated_identity_proves_its_number_to_those_with_the_same_seed():
    five, eight = SimulatedIdentity(5, 1), SimulatedIdentity(8, 1)
    signature = five.sign(TEXT)
    assert signature == SimulatedIdentity(5, 1).sign(TEXT) != five.sign(b"another")
    assert len(signature) <= SIGNATURE_BYTES_MAX
    assert eight.verify(5, b"", TEXT, signature)
    assert not eight.verify(8, b"", TEXT, signature)
    assert not eight.verify(5, b"", b"another", signature)
    assert not eight.verify(5, b"certificate", TEXT, signature)
    assert not SimulatedIdentity(8, 2).verify(5, b"", TEXT, signature)
    assert not eight.verify(5, b"", TEXT, b"x" * 81)


def test_a_coordinator_s_signature_is_believed_with_its_certificate_alone(identity, material):
    coordinator = CertificateIdentity(material(Role.CLOUD, 0))
    device, edge = identity(5), CertificateIdentity(material(Role.EDGE, 5))
    signature = coordinator.sign(TEXT)
    assert device.verify_coordinator(coordinator.certificate, TEXT, signature)
    assert not device.verify_coordinator(coordinator.certificate, b"another", signature)
    assert not device.verify(0, coordinator.certificate, TEXT, signature)
    assert not device.verify_edge(0, coordinator.certificate, TEXT, signature)
    for other in (device, edge):
        assert not device.verify_coordinator(other.certificate, TEXT, other.sign(TEXT))


def test_a_denied_expired_or_foreign_coordinator_is_not_believed(material, tmp_path):
    own = material(Role.CLOUD, 0)
    coordinator = CertificateIdentity(own)
    signature, der = coordinator.sign(TEXT), coordinator.certificate
    begins = int(x509.load_der_x509_certificate(der).not_valid_before_utc.timestamp())
    device, listed = material(Role.DEVICE, 5), DenyList(1, {(Role.CLOUD, 0): begins + 1})
    denied = CertificateIdentity(device, denied=lambda: listed)
    late = CertificateIdentity(device, clock=lambda: time.time() + LIFE_S + DAY_S)
    assert not denied.verify_coordinator(der, TEXT, signature)
    assert not late.verify_coordinator(der, TEXT, signature)
    other = Authority.create(tmp_path / "other", "farm")
    key, issued = issue_to(other, Role.CLOUD, 0)
    foreign = CertificateIdentity(TlsMaterial(key, issued.chain, other.pem))
    assert not CertificateIdentity(device).verify_coordinator(
        foreign.certificate, TEXT, foreign.sign(TEXT)
    )
