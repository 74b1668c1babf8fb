"""The certificate log in sessions: what a device must be shown of its neighbours' certificates, and
what an operator who has the CA's key can still do.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from delian.core.common.merkle_tree import SIZE_MAX
from delian.core.privacy.secagg.client import ClientSession, ClientState, Phase, Policy
from delian.core.privacy.secagg.logged import ForkError, LogHead, LogRules, update_from
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.wire.secure_pb2 import Cohort
from support.secure_federation import SEED, Federation, make_task, master_of

DEVICES = [5, 8, 11, 14, 17]
ME = 11
RULES = simulated_rules(SEED)
STRICT = Policy(log=RULES)
#: Devices that do not exist: the operator has their keys.
SYBILS = [2**30, 2**30 + 1, 2**30 + 2, 2**30 + 3]


def federation(log: SimulatedLog | None = None, devices=DEVICES, **more) -> Federation:
    log = SimulatedLog(SEED, DEVICES) if log is None else log
    return Federation(list(devices), policy=STRICT, log=log, **more)


def cohort_for_me(log: SimulatedLog | None = None, known: LogHead | None = None):
    """A device that has given its keys, and the true Cohort for it."""
    one = federation(log)
    if known is not None:
        one.clients[ME].state.log = known
    return one.clients[ME], one.give_keys()[ME]


def refuses(client: ClientSession, cohort: Cohort, reason: str) -> SecureError:
    """The session ends for this reason: no secret is left, and nothing was sealed."""
    known = client.state.log
    with pytest.raises(SecureError) as caught:
        client.take_cohort(cohort)
    state = client.state
    assert caught.value.reason == state.reason == reason
    assert state.phase is Phase.FAILED and state.secret == b"" and state.shares is None
    assert state.log == known, "a head that was refused does not count"
    return caught.value


# ---------------------------------------------------------------- honest coordinators


@pytest.mark.parametrize("count", [3, 9, 40])
def test_devices_that_ask_for_proofs_sum_up(count):
    devices = range(100, 100 + count)
    log = SimulatedLog(SEED, [*range(7), *reversed(devices), *range(7, 20)])
    one = federation(log, devices, restored=True)
    assert np.array_equal(one.run(), one.expected())
    assert {client.state.log.size for client in one.clients.values()} == {20 + count}
    assert not one.server.state.refused


def test_a_device_keeps_the_head_and_not_the_proofs():
    client, cohort = cohort_for_me()
    before = cohort.SerializeToString()
    client.take_cohort(cohort)
    assert client.state.log == SimulatedLog(SEED, DEVICES).head()
    assert not client.state.cohort.HasField("log") and cohort.SerializeToString() == before
    assert client.take_cohort(cohort) == client.state.shares, "said again"


def test_the_next_session_continues_the_head_that_the_device_has():
    log = SimulatedLog(SEED, DEVICES)
    known = log.head()
    for device in range(30):
        log.log(1_000 + device)
    client, cohort = cohort_for_me(log, known)
    assert client.state.bundle.log_size == cohort.log.update.old_size == len(DEVICES)
    assert cohort.log.update.consistency
    client.take_cohort(cohort)
    assert client.state.log.size == len(DEVICES) + 30


def test_a_device_that_asks_for_no_proofs_takes_part_without_them():
    one = Federation(list(DEVICES))
    assert np.array_equal(one.run(), one.expected())
    assert one.clients[ME].state.log == LogHead()


class TestWhoIsLeftOut:
    """The coordinator leaves out a device that the others would refuse, or that would refuse."""

    def members(self, one: Federation) -> set[int]:
        return set(one.give_keys())

    def test_of_a_certificate_that_is_not_in_the_log(self):
        one = federation(SimulatedLog(SEED, DEVICES[:-1]))
        assert self.members(one) == set(DEVICES[:-1])
        assert one.server.state.refused == {"log": 1} and not one.server.has_part(DEVICES[-1])

    def test_of_a_certificate_that_is_newer_than_the_head(self):
        log = SimulatedLog(SEED, DEVICES)
        one = federation(log)
        one.server._log = replace(one.server._log, head=log.head(4))
        assert self.members(one) == set(DEVICES[:-1])

    @pytest.mark.parametrize("size", [6, SIZE_MAX, 2**64 - 1])
    def test_a_device_that_knows_a_larger_log(self, size):
        one = federation()
        for client in one.clients.values():
            client.begin(make_task(), master_of(client.state.device))
        one.clients[ME].state.bundle.log_size = size
        assert self.members(one) == {*DEVICES} - {ME}

    def test_too_few_are_left(self):
        one = federation(SimulatedLog(SEED, DEVICES[:2]))
        with pytest.raises(SecureError, match="2 devices gave keys") as caught:
            one.give_keys()
        assert caught.value.reason == "few"


# ---------------------------------------------------------------- sybils


def test_without_the_log_sybils_show_an_update_and_with_it_the_device_ends_the_session():
    """The sum over a device and devices that do not exist, without what these have added."""
    alone = Federation([ME, *SYBILS])
    rest = alone.total(alone.update(sybil) for sybil in SYBILS)
    assert np.array_equal(alone.run() - rest, alone.update(ME))

    devices = [ME, *SYBILS]
    careful = federation(SimulatedLog(SEED, devices), devices)
    cohort = careful.give_keys()[ME]
    true = SimulatedLog(SEED, DEVICES)
    cohort.log.update.CopyFrom(update_from(true.tree(), 0, true.head()))
    refuses(careful.clients[ME], cohort, "log")


def test_no_proof_at_all():
    client, cohort = cohort_for_me()
    cohort.ClearField("log")
    refuses(client, cohort, "log")


def sybils_in_a_fork(witnesses, known: LogHead | None = None):
    """A cohort of a device and sybils, with the proofs of a log that has the sybils: the true log
    goes on after DEVICES in another way.
    """
    fork = SimulatedLog(SEED, [*DEVICES, *SYBILS])
    one = federation(fork, [ME, *SYBILS])
    if known is not None:
        one.clients[ME].state.log = known
    cohort = one.give_keys()[ME]
    cohort.log.update.checkpoint.CopyFrom(fork.head(witnesses=witnesses).signed)
    return one.clients[ME], cohort


@pytest.mark.parametrize("witnesses", [[], [0], [2]])
def test_a_log_that_too_few_witnesses_have_signed(witnesses):
    """The device cannot tell by itself: the fork continues what it knows."""
    refuses(*sybils_in_a_fork(witnesses, SimulatedLog(SEED, DEVICES).head()), "log witnesses")


def test_a_witness_counts_once_and_strangers_do_not_count():
    client, cohort = sybils_in_a_fork([1])
    checkpoint = cohort.log.update.checkpoint
    checkpoint.cosignatures.add().CopyFrom(checkpoint.cosignatures[0])
    other = SimulatedLog(SEED + 1, DEVICES).head().signed
    checkpoint.cosignatures.extend(other.cosignatures)
    refuses(client, cohort, "log witnesses")


def test_a_log_that_all_witnesses_have_signed_and_that_does_not_continue_the_known_one():
    true = SimulatedLog(SEED, [*DEVICES, 1_000, 1_001])
    client, cohort = sybils_in_a_fork(range(3), true.head())
    fault = refuses(client, cohort, "log fork")
    assert isinstance(fault, ForkError)
    assert fault.known.signed == true.head().signed
    assert fault.offered == cohort.log.update


def test_another_log_of_the_same_size():
    log, other = SimulatedLog(SEED, DEVICES), SimulatedLog(SEED, DEVICES[::-1])
    client, cohort = cohort_for_me(log, other.head())
    assert isinstance(refuses(client, cohort, "log fork"), ForkError)


def test_a_smaller_log():
    known = SimulatedLog(SEED, [*DEVICES, 1_000])
    client, cohort = cohort_for_me(SimulatedLog(SEED, [*DEVICES, 1_000]), known.head())
    before = SimulatedLog(SEED, DEVICES).head()
    cohort.log.update.checkpoint.CopyFrom(before.signed)
    assert isinstance(refuses(client, cohort, "log rollback"), ForkError)


@pytest.mark.parametrize("field", ["head", "signature"])
def test_a_head_that_the_authority_has_not_signed(field):
    client, cohort = cohort_for_me()
    checkpoint = cohort.log.update.checkpoint
    value = bytearray(getattr(checkpoint, field))
    value[-1] ^= 1
    setattr(checkpoint, field, bytes(value))
    refuses(client, cohort, "log")


def test_a_head_of_another_federation():
    client, cohort = cohort_for_me()
    cohort.log.update.checkpoint.CopyFrom(SimulatedLog(SEED + 1, DEVICES).head().signed)
    refuses(client, cohort, "log")


def test_an_edge_that_changes_the_size_that_a_device_has_stated_raises_no_alarm():
    known = SimulatedLog(SEED, DEVICES)
    log = SimulatedLog(SEED, [*DEVICES, 1_000])
    one = federation(log)
    one.clients[ME].state.log = known.head()
    bundles = {d: c.begin(make_task(), master_of(d)) for d, c in one.clients.items()}
    bundles[ME].log_size = 3
    fault = refuses(one.clients[ME], one.give_keys()[ME], "log")
    assert not isinstance(fault, ForkError)


def _swap(cohort):
    cohort.log.indices[0], cohort.log.indices[1] = cohort.log.indices[1], cohort.log.indices[0]


def _repeat(cohort):
    cohort.log.indices[0] = cohort.log.indices[1]


def _fewer(cohort):
    del cohort.log.indices[-1]


def _more(cohort):
    cohort.log.indices.append(2)


def _beyond(cohort):
    cohort.log.indices[0] = 2**63


def _shorter(cohort):
    cohort.log.inclusion = cohort.log.inclusion[:-32]


def _longer(cohort):
    cohort.log.inclusion += bytes(32)


def _ragged(cohort):
    cohort.log.inclusion += b"\0"


def _vast(cohort):
    cohort.log.inclusion = bytes(1 << 20)


@pytest.mark.parametrize(
    "change", [_swap, _repeat, _fewer, _more, _beyond, _shorter, _longer, _ragged, _vast]
)
def test_proofs_of_other_certificates_or_places(change):
    client, cohort = cohort_for_me(SimulatedLog(SEED, [*DEVICES, *range(1_000, 1_009)]))
    change(cohort)
    refuses(client, cohort, "log")


def test_no_change_of_a_proof_is_taken():
    """Any bit of what proves the neighbours, in a log whose head the device knows."""
    log = SimulatedLog(SEED, [*DEVICES, *range(1_000, 1_009)])
    rng = random.Random(1)
    for _ in range(24):
        client, cohort = cohort_for_me(log, log.head(6))
        part = rng.choice(("inclusion", "consistency"))
        where = cohort.log if part == "inclusion" else cohort.log.update
        value = bytearray(getattr(where, part))
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        setattr(where, part, bytes(value))
        refuses(client, cohort, "log" if part == "inclusion" else "log fork")


def test_a_device_that_knows_no_head_has_no_fork_to_show():
    client, cohort = cohort_for_me()
    cohort.log.update.consistency = bytes(32)
    assert not isinstance(refuses(client, cohort, "log"), ForkError)


def test_a_checkpoint_that_is_too_large_is_not_read():
    client, cohort = cohort_for_me()
    cohort.log.update.checkpoint.cosignatures.add(signature=bytes(5_000))
    refuses(client, cohort, "log")


def test_rules_without_witnesses_need_the_authority_alone():
    log = SimulatedLog(SEED, DEVICES)
    me = SimulatedIdentity(ME, SEED)
    client = ClientSession(ClientState(ME), me, Policy(log=LogRules(required=True)))
    one = federation(log)
    one.clients[ME] = client
    cohort = one.give_keys()[ME]
    del cohort.log.update.checkpoint.cosignatures[:]
    client.take_cohort(cohort)
    assert client.state.log.size == len(DEVICES)
