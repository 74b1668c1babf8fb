"""What is hashed and signed: every field of a task counts, and no two kinds of string are alike."""

from __future__ import annotations

import pytest
from delian.core.secagg import transcript
from delian.core.secagg.errors import SecureError
from delian.core.secagg.transcript import Session
from delian.core.wire.round_pb2 import EVALUATE, RingPlan, Task
from delian.core.wire.secure_pb2 import KeyBundle, SecurePlan


def make_task() -> Task:
    task = Task(run=7, round=3, attempt=1, rng_key=b"roundkey")
    task.weights.digest, task.bundle.digest = b"w" * 32, b"b" * 32
    task.ring.clip, task.ring.clients_max, task.ring.bits, task.ring.dimension = 1.5, 100, 32, 16
    task.secure.suite, task.secure.cohort_min = 1, 3
    task.secure.corrupt, task.secure.dropout = 0.2, 0.1
    return task


def test_a_session_is_142_bytes():
    assert len(Session.of(make_task()).canonical()) == 142


def test_there_is_no_session_where_each_device_chooses_its_coordinates():
    task = make_task()
    task.ring.top = 4
    with pytest.raises(SecureError, match="same coordinates"):
        Session.of(task)


@pytest.mark.parametrize(
    "field", [f for f in RingPlan.DESCRIPTOR.fields if f.name != "top"], ids=lambda f: f.name
)
def test_every_field_of_a_ring_plan_is_bound(field):
    changes(lambda task: setattr(task.ring, field.name, other(getattr(task.ring, field.name))))


@pytest.mark.parametrize(
    # Where there are helpers there is no session.
    "field",
    [f for f in SecurePlan.DESCRIPTOR.fields if f.name != "helpers"],
    ids=lambda f: f.name,
)
def test_every_field_of_a_secure_plan_is_bound(field):
    changes(lambda task: setattr(task.secure, field.name, other(getattr(task.secure, field.name))))


@pytest.mark.parametrize("name", ["run", "round", "attempt"])
def test_the_attempt_is_bound(name):
    changes(lambda task: setattr(task, name, getattr(task, name) + 1))


def test_model_bundle_and_purpose_are_bound():
    changes(lambda task: setattr(task.weights, "digest", b"v" * 32))
    changes(lambda task: setattr(task.bundle, "digest", b"v" * 32))
    changes(lambda task: setattr(task, "purpose", EVALUATE))


def test_the_key_that_chooses_coordinates_is_bound_where_it_chooses_any():
    def with_key(key, **ring):
        task = make_task()
        task.rng_key = key
        for name, value in ring.items():
            setattr(task.ring, name, value)
        return Session.of(task)

    one, two = b"roundkey", b"otherkey"
    assert with_key(one, kept=5).digest() != with_key(two, kept=5).digest()
    assert with_key(one) == with_key(two) and with_key(one, within=1.0) == with_key(two, within=1.0)
    lengths = [len(with_key(one, **r).canonical()) for r in ({"kept": 5}, {"within": 1.0})]
    assert lengths == [166, 158]
    with pytest.raises(SecureError, match="8 bytes"):
        with_key(b"short", kept=5)


def other(value):
    return not value if isinstance(value, bool) else value + 1


def changes(change) -> None:
    before, task = Session.of(make_task()), make_task()
    change(task)
    after, roster = Session.of(task), bytes(32)
    assert before.digest() != after.digest()
    assert transcript.binding(before, roster) != transcript.binding(after, roster)


@pytest.mark.parametrize("name", [f.name for f in KeyBundle.DESCRIPTOR.fields])
def test_every_field_of_a_bundle_is_in_its_leaf(name):
    bundle = KeyBundle(run=1, round=2, attempt=3, device=4, sealing_key=b"s" * 32)
    bundle.mask_key, bundle.certificate, bundle.signature = b"m" * 32, b"c", b"s"
    before = transcript.leaf(bundle)
    value = getattr(bundle, name)
    setattr(bundle, name, value + b"x" if isinstance(value, bytes) else value + 1)
    assert transcript.leaf(bundle) != before


def test_bytes_cannot_move_from_one_field_to_the_next():
    one = KeyBundle(device=1, certificate=b"ab", signature=b"c")
    two = KeyBundle(device=1, certificate=b"a", signature=b"bc")
    assert transcript.leaf(one) != transcript.leaf(two)


def test_rosters_differ_in_order_and_number():
    a, b = b"a" * 32, b"b" * 32
    found = {transcript.roster(x) for x in ([a], [b], [a, b], [b, a], [a, a])}
    assert len(found) == 5
    for wrong in ([], [b"short"], [a] * (transcript.MEMBERS_MAX + 1)):
        with pytest.raises(SecureError):
            transcript.roster(wrong)


def test_signed_strings_begin_with_names_of_their_own():
    session = Session.of(make_task())
    bundle = transcript.signed_bundle(session, 1, bytes(32), bytes(32))
    consent = transcript.signed_consent(bytes(32), 1, b"\x07")
    assert bundle.startswith(b"delian/bundle/v1") and consent.startswith(b"delian/consent/v1")


def test_a_bitmap_is_what_it_was_made_of_and_has_one_form():
    assert transcript.bitmap([0, 9], 10) == b"\x01\x02"
    assert transcript.indices(b"\x01\x02", 10) == [0, 9]
    for members in (1, 7, 8, 9, 1000):
        some = list(range(0, members, 3))
        assert transcript.indices(transcript.bitmap(some, members), members) == some
    for bitmap in (b"", b"\x01", b"\x01\x04", b"\x01\x00\x00"):
        with pytest.raises(SecureError):
            transcript.indices(bitmap, 10)
    for index in (-1, 10):
        with pytest.raises(SecureError):
            transcript.bitmap([index], 10)


def test_a_task_whose_blobs_have_no_digest_is_refused():
    task = make_task()
    task.weights.digest = b"short"
    with pytest.raises(SecureError):
        Session.of(task)
