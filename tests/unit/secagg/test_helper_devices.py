"""Which devices a helper counts: none that is revoked, and none whose certificate is not proved to
be in the certificate log, where its federation requires the log.
"""

from __future__ import annotations

import copy

import pytest
from delian.core.privacy.secagg.helper import DENIED_MAX, Helper, Ledger, leaves_of
from delian.core.privacy.secagg.logged import FORK, LOG, WITNESSES, ForkError, LogRules, prove
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol import snapshot
from delian.core.wire.helper_pb2 import BAD_SEEDS, HELP_GIVEN, NOT_LOGGED, OTHER_HEAD
from support.secure_federation import SEED
from unit.secagg.test_helper import DEVICES, private_of, request

LOGGED = SimulatedLog(SEED, range(30))


class Outsider(SimulatedIdentity):
    """Knows one device whose certificate is not the CA's."""

    def log_leaf(self, device, certificate):
        if device == 8:
            raise SecureError(LOG, "the certificate is not of this CA")
        return super().log_leaf(device, certificate)

    def verify(self, device, certificate, message, signature):
        return device != 8 and super().verify(device, certificate, message, signature)


def careful(rules=None, identity=SimulatedIdentity) -> Helper:
    rules = simulated_rules(SEED) if rules is None else rules
    return Helper(4, private_of(4), identity(4, SEED, "edge"), rules=rules)


def proved(asked, old_size=0, size=30, log=LOGGED, identity=SimulatedIdentity, **head):
    """The request with the proof of its devices from the log, as the coordinator makes it."""
    leaves = [leaf for _, leaf in leaves_of(asked, identity(4, SEED, "edge"))]
    places = b"".join(log.place(leaf).to_bytes(8, "little") for leaf in leaves)
    proof = prove(log.tree(), log.head(size, **head), old_size, places, range(len(leaves)))
    asked.log.CopyFrom(proof)
    return asked


def test_a_batch_whose_devices_are_logged_is_helped_and_its_head_is_kept():
    ledger = Ledger()
    assert careful().answer(proved(request()), ledger).refusal == HELP_GIVEN
    assert ledger.log == LOGGED.head(30)
    again = snapshot.load(Ledger, snapshot.dump(ledger))
    assert careful().answer(proved(request(batch=2, round=9), 30), again).refusal == HELP_GIVEN


def test_a_device_in_two_parts_is_proved_once():
    asked = request()
    asked.parts.add().CopyFrom(request(round=9).parts[0])
    assert len(leaves_of(asked, SimulatedIdentity(4, SEED, "edge"))) == len(DEVICES)
    assert careful().answer(proved(asked), Ledger()).refusal == HELP_GIVEN


@pytest.mark.parametrize("sybils", [1, len(DEVICES) - 1])
def test_a_batch_with_devices_that_are_not_in_the_log_is_refused_and_nothing_is_opened(sybils):
    ledger, asked = Ledger(), request()
    real = DEVICES[sybils:]
    places = b"".join(LOGGED.index_of(d).to_bytes(8, "little") for d in real)
    asked.log.CopyFrom(prove(LOGGED.tree(), LOGGED.head(30), 0, places, range(len(real))))
    answer = careful().answer(asked, ledger)
    assert (answer.refusal, answer.keys, answer.fault.reason) == (NOT_LOGGED, (), LOG)
    assert not ledger.runs


def test_the_proof_is_of_the_devices_of_the_batch():
    asked = request()
    other = [d + 1 for d in DEVICES]
    places = b"".join(LOGGED.index_of(d).to_bytes(8, "little") for d in other)
    asked.log.CopyFrom(prove(LOGGED.tree(), LOGGED.head(30), 0, places, range(len(other))))
    assert careful().answer(asked, Ledger()).refusal == NOT_LOGGED


def test_without_a_proof_a_batch_is_refused_where_the_log_is_required_and_only_there():
    assert careful().answer(request(), Ledger()).refusal == NOT_LOGGED
    assert careful(LogRules()).answer(request(), Ledger()).refusal == HELP_GIVEN


def test_a_head_needs_the_quorum_of_witnesses():
    answer = careful().answer(proved(request(), witnesses=(0,)), Ledger())
    assert (answer.refusal, answer.fault.reason) == (NOT_LOGGED, WITNESSES)


def test_a_proof_from_another_head_is_asked_for_again_from_the_one_that_is_known():
    ledger, helper = Ledger(), careful()
    assert helper.answer(proved(request(), size=20), ledger).refusal == HELP_GIVEN
    later = request(batch=2, round=9)
    assert helper.answer(proved(later), ledger).refusal == OTHER_HEAD
    assert 9 not in ledger.runs[7].opened, "it is not burnt by that"
    assert helper.answer(proved(later, 20), ledger).refusal == HELP_GIVEN


def test_a_forked_log_is_refused_with_its_evidence():
    ledger, helper = Ledger(), careful()
    assert helper.answer(proved(request(), size=20), ledger).refusal == HELP_GIVEN
    fork = SimulatedLog(SEED, [*reversed(range(30))])
    answer = helper.answer(proved(request(batch=2, round=9), 20, log=fork), ledger)
    assert answer.refusal == NOT_LOGGED and isinstance(answer.fault, ForkError)
    assert answer.fault.reason == FORK and ledger.log == LOGGED.head(20)


def test_a_certificate_that_is_not_the_ca_s_needs_no_proof_and_is_named_as_bad():
    asked = proved(request(), identity=Outsider)
    answer = careful(identity=Outsider).answer(asked, Ledger())
    assert (answer.refusal, answer.bad) == (BAD_SEEDS, (8,))


def test_a_revoked_device_is_named_and_the_batch_gets_no_sum():
    ledger = Ledger()
    ledger.deny(11)
    answer = careful().answer(proved(request()), ledger)
    assert (answer.refusal, answer.bad, answer.keys) == (BAD_SEEDS, (11,), ())


def test_what_was_known_of_revocations_is_in_the_ledger_and_gives_the_same_answer_again():
    ledger = Ledger()
    ledger.deny(11)
    again = snapshot.load(Ledger, snapshot.dump(ledger))
    asked = proved(request())
    assert careful().answer(asked, copy.deepcopy(ledger)) == careful().answer(asked, again)


def test_the_oldest_revocations_are_forgotten_beyond_the_limit():
    ledger = Ledger()
    for device in (1, 2, 1, *range(3, DENIED_MAX + 2)):
        ledger.deny(device)
    assert len(ledger.denied) == DENIED_MAX and 2 not in ledger.denied and 1 in ledger.denied
