"""A device with an identity begins only tasks that the federation's coordinator has signed."""

from __future__ import annotations

import pytest
from delian.core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from delian.core.privacy.secagg.signed_task import CLOCK_ERROR_S, sign
from delian.core.protocol.ports import SECOND, Record
from delian.core.wire.round_pb2 import EVALUATE, TASK_NOT_SIGNED, Failure
from delian.core.wire.secure_pb2 import KeyBundle
from delian.device.protocol.machine import Phase
from support import device_bench as _bench

SECURE, Bench, make_task = _bench.SECURE, _bench.Bench, _bench.make_task


def altered(change):
    """A signed task with masks, as it comes from an edge that changes it."""
    task = make_task(secure=SECURE)
    change(task)
    return task


ALTERED = {
    "no masks": lambda t: t.ClearField("secure"),
    "smaller sums": lambda t: setattr(t.secure, "cohort_min", 4),
    "fewer corrupt": lambda t: setattr(t.secure, "corrupt", 0.3),
    "another suite": lambda t: setattr(t.secure, "suite", 2),
    "helpers": lambda t: t.secure.helpers.add(edge=1, key=b"\x09" * 32, signature=b"s"),
    "the deny list": lambda t: setattr(t.secure, "denied_version", 3),
    "planned noise": lambda t: setattr(t.secure, "noise_survivors", 3),
    "another clip": lambda t: setattr(t.ring, "clip", 2.0),
    "noise": lambda t: setattr(t.ring, "noise", 1.0),
    "few coordinates": lambda t: setattr(t.ring, "kept", 1),
    "another bundle": lambda t: setattr(t.bundle, "digest", b"x" * 32),
    "another model": lambda t: setattr(t.weights, "digest", b"x" * 32),
    "another size": lambda t: setattr(t.weights, "size", 13),
    "another key": lambda t: setattr(t, "rng_key", b"otherkey"),
    "a manifest": lambda t: setattr(t, "manifest", b"m"),
    "another purpose": lambda t: setattr(t, "purpose", EVALUATE),
    "another run": lambda t: setattr(t, "run", 2),
    "another round": lambda t: setattr(t, "round", 2),
    "another attempt": lambda t: setattr(t, "attempt", 2),
    "more time": lambda t: setattr(t, "time_ms", 20_000),
    "a later end": lambda t: setattr(t, "expires_s", t.expires_s + 1),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_task_that_was_altered_on_its_way_is_refused(name):
    bench = Bench(policy=_bench.PLAIN).ready()
    refused(bench.gets(altered(ALTERED[name])), "task signature")


def test_an_unsigned_task_is_refused():
    refused(Bench().ready().gets(altered(lambda t: t.ClearField("signature"))), "unsigned task")


@pytest.mark.parametrize(
    "signer",
    [
        simulated_coordinator(2),
        SimulatedIdentity(0, 1),
        SimulatedIdentity(2, 1, "edge"),
        SimulatedIdentity(7, 1),
    ],
    ids=["another federation", "device 0", "an edge", "a device"],
)
def test_a_signature_of_anybody_else_is_refused(signer):
    refused(Bench().ready().gets(make_task(secure=SECURE, signer=signer)), "task signature")


@pytest.mark.parametrize("field", ["certificate", "signature"])
def test_a_signature_or_certificate_beyond_its_limit_is_refused(field):
    refused(
        Bench().ready().gets(altered(lambda t: setattr(t, field, bytes(4096)))), "task signature"
    )


def test_a_task_is_good_until_it_expires_and_not_after():
    last_ns = (60 + CLOCK_ERROR_S) * SECOND
    bench = Bench().ready()
    bench.now = last_ns
    assert bench.gets(make_task(secure=SECURE, ends_s=60)).phase is Phase.FETCHING
    bench = Bench().ready()
    bench.now = last_ns + SECOND
    refused(bench.gets(make_task(secure=SECURE, ends_s=60)), "expired task")


def test_after_a_forged_task_the_true_one_is_taken():
    bench = Bench().ready().gets(altered(ALTERED["no masks"]))
    assert bench.gets(make_task(secure=SECURE)).phase is Phase.FETCHING
    assert [m for m in bench.said if isinstance(m, KeyBundle)]


def test_what_is_left_of_the_time_may_differ_by_copy_and_never_exceeds_what_was_signed():
    for left_ms, expected_ms in ((4_000, 4_000), (10**6, 10_000), (0, 0)):
        bench = Bench().ready()
        bench.gets(altered(lambda t, ms=left_ms: setattr(t, "left_ms", ms)))
        assert bench.phase is Phase.FETCHING
        assert bench.machine.state.ends_ns == bench.now + expected_ms * SECOND // 1000


def test_a_plain_task_must_be_signed_too():
    task = make_task()
    task.ring.clip = 0.5
    refused(Bench(policy=_bench.PLAIN).ready().gets(task), "task signature")
    sign(task, simulated_coordinator(1), ends_s=60)
    assert Bench(policy=_bench.PLAIN).ready().gets(task).phase is Phase.FETCHING


def test_a_device_without_an_identity_cannot_tell():
    task = make_task()
    for name in ("certificate", "signature", "expires_s"):
        task.ClearField(name)
    assert Bench(policy=_bench.PLAIN, identity=None).ready().gets(task).phase is Phase.FETCHING


def refused(bench, reason):
    """It says so, records why, has made no keys, and goes on."""
    assert bench.phase is Phase.READY and bench.machine.state.task is None
    assert [r.fields["reason"] for r in bench.of(Record) if r.kind == "session"] == [reason]
    (said,) = bench.said
    assert isinstance(said, Failure) and said.reason == TASK_NOT_SIGNED
    assert bench.machine.state.secret == b"s" * 32
    good = make_task(secure=SECURE, round=9, attempt=9, run=9, ends_s=10**6)
    assert bench.gets(good).phase is Phase.FETCHING
