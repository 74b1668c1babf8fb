"""What the coordinator sees says nothing of an update but the sum, and no secret is shown."""

from __future__ import annotations

import base64
import logging

import numpy as np
import pytest
from delian.core.privacy.secagg import client as client_module
from delian.core.privacy.secagg import kdf
from delian.core.privacy.secagg import server as server_module
from delian.core.privacy.secagg.client import ClientState
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerState
from support.secure_federation import Federation, changed, make_task, master_of

DEVICES = [5, 8, 11, 14]
LENGTH = 1 << 15


def masked(updates: dict[int, np.ndarray], seed: int = 1) -> Federation:
    """A session up to the masked updates; nobody drops out."""
    length = len(next(iter(updates.values())))
    federation = Federation(sorted(updates), make_task(dimension=length - 1), seed=seed)
    federation.update = updates.__getitem__
    federation.give_updates(federation.give_shares(federation.give_keys()))
    return federation


# ---------------------------------------------------------------- uniformity


def chi_square(words: np.ndarray) -> float:
    """Of the bytes against the uniform distribution, in standard deviations: chi-square with 255
    degrees of freedom has mean 255 and variance 510.
    """
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return (((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(510)


def kolmogorov(words: np.ndarray) -> float:
    """Of the words against the uniform distribution: D times the root of n. Above 1.95 for one
    uniform sample in a thousand.
    """
    ordered = np.sort(words / 2**32)
    n = len(ordered)
    above = (np.arange(1, n + 1) / n - ordered).max()
    below = (ordered - np.arange(n) / n).max()
    return float(max(above, below) * np.sqrt(n))


def lag(words: np.ndarray) -> float:
    """The correlation of neighbouring words, in standard deviations."""
    centred = words / 2**32 - 0.5
    return float(abs((centred[1:] * centred[:-1]).mean()) * 12 * np.sqrt(len(words)))


@pytest.mark.parametrize("suite", [1, 2])
def test_masked_updates_of_any_content_look_uniform(suite):
    contents = {
        5: np.zeros(LENGTH, np.uint32),
        8: np.full(LENGTH, 2**32 - 1, np.uint32),
        11: np.arange(LENGTH, dtype=np.uint32),
        14: np.tile(np.array([0, 2**31], np.uint32), LENGTH // 2),
    }
    for plain in contents.values():
        assert kolmogorov(plain) > 1.95 and chi_square(plain) > 6, "the tests can tell"
    federation = Federation(DEVICES, make_task(dimension=LENGTH - 1, suite=suite))
    federation.update = contents.__getitem__
    federation.give_updates(federation.give_shares(federation.give_keys()))
    views = list(federation.masked.values())
    # The sum of all but one is what a coordinator could hope to subtract.
    views += [federation.total(views) - one for one in views]
    for view in views:
        assert abs(chi_square(view)) < 5 and kolmogorov(view) < 1.95 and lag(view) < 4


# ---------------------------------------------------------------- indistinguishability


def test_two_updates_exchanged_change_the_masked_ones_by_their_difference_and_nothing_else():
    rng = np.random.default_rng(2)
    updates = {d: rng.integers(0, 2**32, 64, np.uint32) for d in DEVICES}
    exchanged = {**updates, 5: updates[8], 8: updates[5]}
    one, other = masked(updates), masked(exchanged)
    for device in DEVICES:
        difference = other.masked[device] - one.masked[device]
        assert np.array_equal(difference, exchanged[device] - updates[device])
    assert np.array_equal(one.total(one.masked.values()), other.total(other.masked.values()))
    talks = [[m.SerializeToString(deterministic=True) for *_, m in f.said] for f in (one, other)]
    assert talks[0] == talks[1]


def test_over_many_sessions_exchanged_updates_leave_the_view_s_distribution_as_it_is():
    """Two-sample Kolmogorov-Smirnov of each device's first word. D * sqrt(n/2) is above 1.95 for
    one pair of equal distributions in a thousand.
    """
    small, large = np.full(4, 7, np.uint32), np.full(4, 2**30, np.uint32)
    sessions = 100
    views: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for exchanged in views:
        updates = {5: small, 8: large, 11: small}
        if exchanged:
            updates = {5: large, 8: small, 11: small}
        for seed in range(sessions):
            federation = masked(updates, 2 * seed + exchanged)
            views[exchanged].append([federation.masked[d][0] for d in (5, 8, 11)])
    one, other = (np.array(views[e], np.float64).T for e in views)
    for first, second in zip(one, other, strict=True):
        assert two_samples(first, second) * np.sqrt(sessions / 2) < 1.95
    plain = two_samples(np.full(sessions, 7.0), np.full(sessions, 2.0**30))
    assert plain * np.sqrt(sessions / 2) > 1.95, "the test can tell"


def two_samples(one: np.ndarray, other: np.ndarray) -> float:
    both = np.sort(np.concatenate([one, other]))
    places = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (one, other)]
    return float(np.abs(places[0] - places[1]).max())


# ---------------------------------------------------------------- canaries


def forms(secret: bytes) -> list[bytes]:
    """How a secret would look in a text."""
    return [
        secret,
        secret.hex().encode(),
        base64.b64encode(secret)[:-4],
        repr(secret).encode()[2:-1],
        str(list(secret)).encode()[1:-1],
    ]


def secrets_of(federation: Federation) -> dict[str, bytes]:
    found = {}
    for device, session in federation.clients.items():
        secret = session.state.secret
        assert len(secret) == 32
        found |= {
            f"{device} master": master_of(device, federation.seed),
            f"{device} session": secret,
            f"{device} sealing": kdf.sealing_secret(secret),
            f"{device} mask": kdf.mask_secret(secret),
            f"{device} seed": kdf.self_seed(secret),
            f"{device} noise": session.noise_key(),
        }
        for at, (key, _) in enumerate(session._mask_keys()):
            found[f"{device} key {at}"] = key
    return found


def test_no_secret_is_in_a_state_s_text_an_error_a_log_or_a_message(caplog):
    caplog.set_level(logging.DEBUG)
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    deliveries = federation.give_shares(cohorts)
    survivors = federation.give_updates(deliveries)
    secrets = secrets_of(federation)
    assert len(secrets) == 4 * 6 + 4 * 4
    shown: list[bytes] = []

    def look() -> None:
        shown.extend(repr(s.state).encode() for s in federation.clients.values())
        shown.append(repr(federation.server.state).encode())
        shown.append(repr(vars(federation.clients[5])).encode())

    look()
    requests = federation.give_consents(survivors)
    look()
    federation.give_unmasks(requests)
    look()
    shown.extend(m.SerializeToString(deterministic=True) for *_, m in federation.said)
    shown.extend(str(m).encode() for *_, m in federation.said)
    keys = federation.server.keys()
    look()
    for bad in (changed(requests[5], consents=[]), changed(survivors[5], members=b"\x01")):
        with pytest.raises(SecureError) as caught:
            federation.down(bad)
        shown.append(f"{caught.value!r} {caught.value} {caught.value.__dict__}".encode())
    shown.append(caplog.text.encode())
    assert not caplog.records
    for name, secret in {**secrets, **{f"key {i}": k for i, (k, _) in enumerate(keys)}}.items():
        for text in shown:
            assert not any(form in text for form in forms(secret)), name


def test_the_scan_would_find_a_secret():
    state = ClientState(5, secret=b"\x00canary in a mine, 32 bytes long")
    text = f"{state.secret}".encode()
    assert any(form in text for form in forms(state.secret))
    assert not any(form in repr(state).encode() for form in forms(state.secret))


@pytest.mark.parametrize(
    ("module", "state"), [(client_module, ClientState), (server_module, ServerState)]
)
def test_the_fields_that_hold_secrets_are_listed_and_not_shown(module, state):
    fields = {f.name: f for f in state.__dataclass_fields__.values()}
    hidden = {name for name, f in fields.items() if not f.repr}
    assert hidden == set(module.SECRETS)


def test_shares_that_were_given_are_in_no_text():
    federation = Federation(DEVICES)
    federation.run()
    for device, session in federation.clients.items():
        shares = [s.share for s in session.state.unmask.shares]
        assert len(shares) == 3
        for text in (repr(session.state), repr(federation.server.state)):
            assert not any(form in text.encode() for share in shares for form in forms(share)), (
                device
            )
