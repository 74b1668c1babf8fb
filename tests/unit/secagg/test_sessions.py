"""Whole sessions: sums are exact, whoever falls silent, or there is none."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.secagg.client import ClientState
from delian.core.privacy.secagg.client import Phase as ClientPhase
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerState
from delian.core.protocol import snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.secure_federation import STEPS, Federation, Shuffled, make_task


def spread(count: int) -> list[int]:
    """Device numbers with gaps: an index is not a number."""
    return [5 + 3 * i for i in range(count)]


@pytest.mark.parametrize("count", [3, 4, 5, 12, 40])
def test_the_sum_of_everybody_is_exact(count):
    federation = Federation(spread(count))
    assert np.array_equal(federation.run(), federation.expected())
    assert sorted(federation.masked) == federation.devices
    assert federation.server.state.refused == {}


def test_a_suite_with_chacha_gives_the_same_sum():
    federation = Federation(spread(5), make_task(suite=2))
    assert np.array_equal(federation.run(), federation.expected())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", [4, 12, 40])
def test_one_that_falls_silent_at_any_step_does_no_harm(count, step):
    federation = Federation(spread(count))
    total = federation.run({federation.devices[1]: step})
    assert np.array_equal(total, federation.expected())
    inside = step in ("consent", "unmask")
    assert len(federation.masked) == count - (not inside)


def test_silence_at_every_step_at_once_does_no_harm():
    federation = Federation(spread(40))
    silent = dict(zip(federation.devices[::8], STEPS, strict=False))
    assert len(silent) == len(STEPS)
    assert np.array_equal(federation.run(silent), federation.expected())
    assert len(federation.masked) == 37


def test_in_three_devices_nobody_can_be_done_without_once_shares_are_sent():
    for step in ("masks", "consent", "unmask"):
        with pytest.raises(SecureError) as caught:
            Federation(spread(3)).run({5: step})
        assert caught.value.reason == "few"


SILENCE = st.dictionaries(st.integers(0, 11), st.sampled_from(STEPS), max_size=9)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(count=st.sampled_from([5, 8, 12]), silence=SILENCE, seed=st.integers(0, 2**16))
def test_whoever_is_silent_the_sum_is_exact_or_there_is_none(count, silence, seed):
    devices = spread(count)
    silent = {devices[i]: step for i, step in silence.items() if i < count}
    federation = Federation(devices)
    # In cohorts as small as these all are neighbours: t = floor((k + floor(g n)) / 2) + 1.
    members = count - sum(step == "keys" for step in silent.values())
    threshold = (members - 1 + members // 10) // 2 + 1
    inside = [d for d in devices if silent.get(d) in (None, "consent", "unmask")]
    to_the_end = count - len(silent)
    if len(inside) >= 3 and to_the_end > threshold:
        assert np.array_equal(Shuffled(federation, seed, silent).run(), federation.expected())
        assert sorted(federation.masked) == inside
        return
    with pytest.raises(SecureError) as caught:
        Shuffled(federation, seed, silent).run()
    assert caught.value.reason == "few"


@pytest.mark.parametrize("count", [4, 9])
def test_a_restart_before_any_message_changes_no_byte(count):
    silent = {5: "shares", 8: "unmask"} if count > 4 else {}
    plain, restored = Federation(spread(count)), Federation(spread(count), restored=True)
    assert np.array_equal(plain.run(silent), restored.run(silent))
    assert len(plain.said) == len(restored.said)
    for one, other in zip(sorted_talk(plain), sorted_talk(restored), strict=True):
        assert one == other
    for device in plain.devices:
        assert np.array_equal(plain.masked.get(device), restored.masked.get(device))


def sorted_talk(federation: Federation) -> list[tuple[int, str, str, bytes]]:
    return sorted(
        (device, way, type(m).__name__, m.SerializeToString(deterministic=True))
        for device, way, m in federation.said
    )


@pytest.mark.parametrize("seed", range(12))
def test_messages_in_any_order_and_repeated_give_the_same_answers_and_sum(seed):
    federation = Federation(spread(8), restored=seed % 3 == 0)
    total = Shuffled(federation, seed, {8: "masks"} if seed % 2 else {}).run()
    assert np.array_equal(total, federation.expected())
    assert set(federation.server.state.refused) <= {"untimely"}


def test_states_survive_being_written_down():
    federation = Federation(spread(5))
    cohorts = federation.give_keys()
    deliveries = federation.give_shares(cohorts)
    survivors = federation.give_updates(deliveries)
    federation.give_consents(survivors)
    for state, cls in (
        (federation.server.state, ServerState),
        (federation.clients[5].state, ClientState),
    ):
        written = snapshot.dump(state)
        assert snapshot.load(cls, written) == state
        assert snapshot.dump(snapshot.load(cls, written)) == written


def test_a_device_says_again_what_the_coordinator_still_waits_for():
    federation = Federation(spread(4))
    client = federation.clients[5]
    assert client.waiting is None
    cohorts = federation.give_keys()
    assert client.waiting == client.state.bundle
    deliveries = federation.give_shares(cohorts)
    assert client.waiting == client.state.shares
    federation.down(deliveries[5])
    assert client.waiting is None, "it trains"
    survivors = federation.give_updates(deliveries)
    assert client.waiting == client.state.shares
    requests = federation.give_consents(survivors)
    assert client.waiting == client.state.consent
    federation.give_unmasks(requests)
    assert client.waiting == client.state.unmask


def test_the_coordinator_answers_each_with_what_it_waits_for():
    federation = Federation(spread(4))
    server = federation.server
    assert server.answer(5) is None
    cohorts = federation.give_keys(federation.devices[:])
    assert server.answer(5) == cohorts[5]
    federation.up(federation.down(cohorts[5]))
    assert server.answer(5) is None, "the others' shares are waited for"
    deliveries = federation.give_shares(cohorts)
    assert server.answer(5) == deliveries[5]
    survivors = federation.give_updates(deliveries)
    assert server.answer(5) == survivors[5]
    federation.up(federation.down(survivors[5]))
    assert server.answer(5) is None, "the others' consents are waited for"
    requests = federation.give_consents(survivors)
    assert server.answer(5) == requests[5]
    federation.up(federation.down(requests[5]))
    assert server.answer(5) is None


def test_who_is_left_out_is_told_apart_from_who_has_a_part():
    federation = Federation(spread(7))
    server = federation.server
    assert server.has_part(5) and not server.has_part(6)
    cohorts = federation.give_keys(federation.devices[1:])
    assert not server.has_part(5) and server.answer(5) is None
    deliveries = federation.give_shares(cohorts, but=[8])
    assert not server.has_part(8) and server.answer(8) is None and server.has_part(11)
    federation.give_updates(deliveries, but=[11])
    assert not server.has_part(11) and server.answer(11) is None
    assert [d for d in federation.devices if server.has_part(d)] == [14, 17, 20, 23]


def test_who_is_still_missing_is_told_at_each_step():
    federation = Federation(spread(4))
    server = federation.server
    assert server.missing() == [5, 8, 11, 14]
    cohorts = federation.give_keys()
    federation.up(federation.down(cohorts[5]))
    assert server.missing() == [8, 11, 14]
    assert server.explain() == "no word from devices 8, 11, 14 (shares)"
    survivors = federation.give_updates(federation.give_shares(cohorts))
    requests = federation.give_consents(survivors, but=[5])
    federation.give_unmasks({8: requests[8]})
    assert server.missing() == [5, 11, 14]
    assert "no consent from device 5" in server.explain()
    assert "no shares from devices 11, 14" in server.explain()


def test_after_the_session_a_device_has_no_secret_left():
    federation = Federation(spread(5))
    cohorts = federation.give_keys()
    assert all(len(client.state.secret) == 32 for client in federation.clients.values())
    survivors = federation.give_updates(federation.give_shares(cohorts))
    federation.give_unmasks(federation.give_consents(survivors))
    for client in federation.clients.values():
        state = client.state
        assert state.phase is ClientPhase.ENDED
        assert (state.secret, state.cohort, state.delivery) == (b"", None, None)
