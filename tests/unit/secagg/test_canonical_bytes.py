"""What is hashed and signed: every field of a task counts, and no two kinds of string are alike."""

from __future__ import annotations

import pytest
from delian.core.privacy.secagg import transcript
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.transcript import Session
from delian.core.wire.round_pb2 import Task
from delian.core.wire.secure_pb2 import KeyBundle


def make_task() -> Task:
    task = Task(run=7, round=3, attempt=1, rng_key=b"roundkey")
    task.weights.digest, task.bundle.digest = b"w" * 32, b"b" * 32
    task.ring.clip, task.ring.clients_max, task.ring.bits, task.ring.dimension = 1.5, 100, 32, 16
    task.secure.suite, task.secure.cohort_min = 1, 3
    task.secure.corrupt, task.secure.dropout = 0.2, 0.1
    return task


def test_there_is_no_session_where_each_device_chooses_its_coordinates():
    task = make_task()
    task.ring.top = 4
    with pytest.raises(SecureError, match="same coordinates"):
        Session.of(task)


#: Each sender has its own time left, and the signature is of all else.
NOT_SIGNED = {"left_ms", "certificate", "signature"}


def leaves_of(message, path=()):
    """The paths of all fields of a message and of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        if field.message_type is None:
            yield here
        elif field.is_repeated:
            yield from leaves_of(field.message_type._concrete_class(), (*here, 0))
        else:
            yield from leaves_of(field.message_type._concrete_class(), here)


PATHS = [path for path in leaves_of(Task()) if path[0] not in NOT_SIGNED]


def full_task() -> Task:
    task = make_task()
    task.secure.helpers.add(edge=4, key=b"k" * 32, certificate=b"c", signature=b"s")
    task.frozen.add(digest=b"f" * 32, size=7)
    return task


def test_the_frozen_parts_of_a_task_are_bound_in_their_order():
    def digest(*names: bytes) -> bytes:
        task = make_task()
        for name in names:
            task.frozen.add(digest=name * 32, size=7)
        return transcript.task_digest(task)

    lists = [(), (b"f",), (b"g",), (b"f", b"g"), (b"g", b"f"), (b"f", b"f")]
    assert len({digest(*names) for names in lists}) == len(lists)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_task_is_signed_and_bound(path):
    """A field that is added to the contract has to be added to the canonical bytes."""
    task, before = full_task(), transcript.task_digest(full_task())
    *way, name = path
    part = task
    for step in way:
        part = part[step] if isinstance(step, int) else getattr(part, step)
    setattr(part, name, other(getattr(part, name), name))
    assert transcript.task_digest(task) != before
    assert transcript.signed_task(task) != transcript.signed_task(full_task())
    if not task.ring.top:
        one, two = Session.of(full_task()), Session.of(task)
        assert transcript.binding(one, bytes(32)) != transcript.binding(two, bytes(32))


@pytest.mark.parametrize("name", sorted(NOT_SIGNED))
def test_what_senders_add_is_not_signed(name):
    task = full_task()
    setattr(task, name, 5 if name == "left_ms" else b"x")
    assert transcript.task_digest(task) == transcript.task_digest(full_task())


def test_a_task_without_masks_is_not_one_with_an_empty_plan():
    task, other_task = make_task(), make_task()
    task.ClearField("secure")
    other_task.secure.Clear()
    other_task.secure.SetInParent()
    assert transcript.task_bytes(task) != transcript.task_bytes(other_task)


@pytest.mark.parametrize(
    "change",
    [
        {"rng_key": b"short"},
        {"purpose": -1},
        {"weights": b"short"},
        {"bundle": b"short"},
        {"frozen": b"short"},
    ],
    ids=str,
)
def test_a_task_that_has_no_canonical_bytes_is_refused(change):
    ((name, value),) = change.items()
    task = make_task()
    if name in ("weights", "bundle"):
        getattr(task, name).digest = value
    elif name == "frozen":
        task.frozen.add(digest=value, size=7)
    else:
        setattr(task, name, value)
    with pytest.raises(SecureError):
        Session.of(task)


def other(value, name=""):
    if name == "digest":
        return b"v" * 32
    if name == "rng_key":
        return b"otherkey"
    if isinstance(value, bytes):
        return value + b"x"
    return not value if isinstance(value, bool) else value + 1


@pytest.mark.parametrize("name", [f.name for f in KeyBundle.DESCRIPTOR.fields])
def test_every_field_of_a_bundle_is_in_its_leaf_but_the_size_of_the_log(name):
    """The size asks the coordinator for a proof; neighbours do not need to agree on it."""
    bundle = KeyBundle(run=1, round=2, attempt=3, device=4, sealing_key=b"s" * 32)
    bundle.mask_key, bundle.certificate, bundle.signature = b"m" * 32, b"c", b"s"
    before = transcript.leaf(bundle)
    value = getattr(bundle, name)
    setattr(bundle, name, value + b"x" if isinstance(value, bytes) else value + 1)
    assert (transcript.leaf(bundle) == before) == (name == "log_size")


def test_bytes_cannot_move_from_one_field_to_the_next():
    one = KeyBundle(device=1, certificate=b"ab", signature=b"c")
    two = KeyBundle(device=1, certificate=b"a", signature=b"bc")
    assert transcript.leaf(one) != transcript.leaf(two)


def test_rosters_differ_in_leaves_and_numbers():
    a, b = b"a" * 32, b"b" * 32
    one = [([a], [1]), ([a], [2]), ([b], [1])]
    lists = [*one, ([a, b], [1, 2]), ([b, a], [1, 2]), ([a, a], [1, 3])]
    assert len({transcript.roster(*one) for one in lists}) == len(lists)


@pytest.mark.parametrize(
    ("leaves", "devices"),
    [
        ([], []),
        ([b"short"], [1]),
        ([b"a" * 32] * (transcript.MEMBERS_MAX + 1), range(transcript.MEMBERS_MAX + 1)),
        ([b"a" * 32, b"b" * 32], [1]),
        ([b"a" * 32], [1, 2]),
        ([b"a" * 32, b"b" * 32], [2, 1]),
        ([b"a" * 32, b"b" * 32], [7, 7]),  # one device in two places
    ],
    ids=lambda value: str(len(value)),
)
def test_a_list_of_members_that_is_none_is_refused(leaves, devices):
    with pytest.raises(SecureError):
        transcript.roster(leaves, devices)


def test_numbers_are_what_they_were_made_of_within_a_limit():
    numbers = (1, 2**32, 2**64 - 1)
    assert transcript.devices_of(transcript.numbers(numbers)) == numbers
    for wrong in (bytes(7), bytes(9), bytes(8 * transcript.MEMBERS_MAX + 8)):
        with pytest.raises(SecureError):
            transcript.devices_of(wrong)


def test_signed_strings_begin_with_names_of_their_own():
    session = Session.of(make_task())
    bundle = transcript.signed_bundle(session, 1, bytes(32), bytes(32))
    consent = transcript.signed_consent(bytes(32), 1, b"\x07")
    assert bundle.startswith(b"delian/bundle/v2") and consent.startswith(b"delian/consent/v1")


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
