"""Sessions as daemons have them: who signs is told by the federation's certificates."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.identity.pki.signing import CertificateIdentity
from delian.core.privacy.secagg import transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState, Phase, Policy
from delian.core.privacy.secagg.logged import LogRules, ServedLog, update_from
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.privacy.secagg.transcript import Session
from support.secure_federation import Federation, changed, cohort_of, make_task, master_of

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


class TestCertificateLog:
    """The CA's log in sessions."""

    @pytest.fixture
    def logged(self, federation):
        """The same, in which devices require the log."""
        federation.policy = Policy(log=LogRules(required=True))
        federation.clients = {d: federation.client(d) for d in DEVICES}
        return federation

    def serve(self, federation, log):
        """log: a CA's, from which the coordinator gives proofs."""
        identity = federation.server._identity
        head = identity.log_head(log.checkpoint(time.time()), LogRules())
        state = federation.server.state
        federation.server = ServerSession(state, identity, ServedLog(log.file, head))

    def test_a_sum_is_exact_over_devices_whose_certificates_are_in_the_log(self, logged):
        self.serve(logged, logged.authority.log)
        assert np.array_equal(logged.run(), logged.expected()) and len(logged.masked) == 5
        head = logged.clients[5].state.log
        assert head.size == logged.authority.log.tree.size == 6, "devices and the coordinator"

    def test_a_certificate_that_the_ca_s_key_has_signed_in_another_place_is_refused(
        self, logged, tmp_path
    ):
        """The CA's folder was copied. The copy issues certificates for the attacker's keys."""
        shutil.copytree(logged.authority.folder, tmp_path / "stolen")
        true, logged.authority = logged.authority, Authority(tmp_path / "stolen")
        sybils = {d: logged.identity(Role.DEVICE, d) for d in DEVICES if d != 11}
        logged.identities.update(sybils)
        for device in sybils:
            logged.clients[device] = logged.client(device)
        assert logged.authority.log.tree.size == true.log.tree.size + len(sybils)
        self.serve(logged, logged.authority.log)
        cohort = logged.give_keys()[11]
        honest = true.log.checkpoint(time.time())
        with pytest.raises(SecureError) as caught:
            victim = ClientState(11, log=logged.identities[11].log_head(honest, LogRules()))
            victim.phase, victim.session = Phase.KEYS, logged.clients[11].state.session
            victim.bundle = logged.clients[11].state.bundle
            cohort.log.update.CopyFrom(update_from(true.log.tree, 6, victim.log))
            ClientSession(victim, logged.identities[11], logged.policy).take_cohort(cohort)
        assert caught.value.reason == "log" and victim.shares is None

    def test_the_head_must_be_of_this_ca_and_signed_by_witnesses_that_the_terms_name(
        self, logged, tmp_path
    ):
        other = Authority.create(tmp_path / "other", "farm")
        me, now = logged.identities[5], time.time()
        for checkpoint, rules, reason in (
            (other.log.checkpoint(now), LogRules(), "log"),
            (
                logged.authority.log.checkpoint(now),
                LogRules(True, (b"w" * 32,), 1),
                "log witnesses",
            ),
        ):
            with pytest.raises(SecureError) as caught:
                me.log_head(checkpoint, rules)
            assert caught.value.reason == reason
        good = me.log_head(logged.authority.log.checkpoint(now), LogRules())
        assert good.root == logged.authority.log.tree.root()
