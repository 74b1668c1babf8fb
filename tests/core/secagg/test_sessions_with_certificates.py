"""Sessions as daemons have them: who signs is told by the federation's certificates."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.identity.authority import Authority, issue_to
from delian.core.identity.certificates import Role, TlsMaterial
from delian.core.identity.signing import CertificateIdentity
from delian.core.secagg import transcript
from delian.core.secagg.client import ClientSession, ClientState
from delian.core.secagg.errors import SecureError
from delian.core.secagg.server import ServerSession, ServerState
from delian.core.secagg.transcript import Session
from secure_federation import Federation, changed, cohort_of, make_task, master_of

DEVICES = [5, 8, 11, 14, 17]


class Certified(Federation):
    """Everybody has a certificate of one CA; the coordinator one of its own."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.identities = {d: self.identity(Role.DEVICE, d) for d in DEVICES}
        super().__init__(DEVICES)
        self.server = ServerSession(ServerState(), self.identity(Role.CLOUD, 0))
        self.server.begin(self.task, DEVICES)

    def identity(self, role: Role, number: int) -> CertificateIdentity:
        key, issued = issue_to(self.authority, role, number)
        return CertificateIdentity(TlsMaterial(key, issued.chain, self.authority.pem))

    def client(self, device: int) -> ClientSession:
        return ClientSession(ClientState(device), self.identities[device], self.policy)


@pytest.fixture
def federation(tmp_path):
    return Certified(Authority.create(tmp_path / "ca", "farm"))


def test_a_sum_is_exact_with_a_device_that_drops_out(federation):
    total = federation.run({8: "masks"})
    assert np.array_equal(total, federation.expected()) and len(federation.masked) == 4
    bundle = federation.clients[5].state.bundle
    assert 300 < len(bundle.certificate) <= 2048 and len(bundle.signature) <= 72


def test_a_device_of_another_federation_is_left_out_and_the_others_go_on(federation, tmp_path):
    stranger = Certified(Authority.create(tmp_path / "other", "farm"))
    federation.clients[8] = stranger.clients[8]
    cohorts = federation.give_keys()
    assert sorted(cohorts) == [5, 11, 14, 17]
    assert federation.server.state.refused == {"signature": 1}
    deliveries = federation.give_shares(cohorts)
    federation.give_unmasks(federation.give_consents(federation.give_updates(deliveries)))
    assert np.array_equal(federation.unmasked(), federation.expected())


@pytest.mark.parametrize("role", [Role.CLOUD, Role.EDGE, Role.OPERATOR])
def test_no_certificate_but_a_device_s_own_puts_keys_in_its_place(federation, role):
    """Of this federation's CA, and with the right number: a coordinator's, an edge's or an
    operator's is no device's.
    """
    session = Session.of(make_task())
    bundles = [federation.clients[d].begin(federation.task, master_of(d)) for d in DEVICES]
    victim, forger = (
        federation.clients[5],
        federation.identity(role, 0 if role is Role.CLOUD else 8),
    )
    middle = bundles[4]
    signed = transcript.signed_bundle(session, 8, middle.sealing_key, middle.mask_key)
    bundles[1] = changed(
        middle, device=8, certificate=forger.certificate, signature=forger.sign(signed)
    )
    with pytest.raises(SecureError) as caught:
        victim.take_cohort(cohort_of(federation.task, bundles, 5))
    assert caught.value.reason == "signature" and victim.state.secret == b""
    assert not federation.server.add_bundle(bundles[1])


def test_a_device_ends_a_session_with_a_neighbour_that_it_knows_to_be_revoked(federation):
    """A coordinator that seats it all the same gets no shares from its neighbours."""
    for identity in federation.identities.values():
        identity._denied = federation.authority.denied
    cohorts = federation.give_keys()
    federation.authority.revoke("device-8")
    for number in (5, 11, 14, 17):
        with pytest.raises(SecureError, match="device 8 has not signed") as caught:
            federation.clients[number].take_cohort(cohorts[number])
        state = federation.clients[number].state
        assert caught.value.reason == "signature" and state.secret == b"" and state.shares is None


def test_a_neighbour_that_is_revoked_before_consents_adds_none(federation):
    """Only what comes to a device by certificate counts: its consent is void with its name."""
    for identity in federation.identities.values():
        identity._denied = federation.authority.denied
    deliveries = federation.give_shares(federation.give_keys())
    survivors = federation.give_updates(deliveries)
    federation.authority.revoke("device-8")
    consents = federation.give_consents(survivors)
    request = consents[5]
    with pytest.raises(SecureError):
        federation.clients[5].take_unmask(request)
    assert federation.clients[5].state.unmask is None


def test_a_revoked_device_is_left_out(federation):
    identity = federation.server._identity
    identity._denied = federation.authority.denied
    federation.authority.revoke("device-8")
    assert sorted(federation.give_keys()) == [5, 11, 14, 17]
