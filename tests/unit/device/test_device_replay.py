"""What a device has handled is what it is: the same events give the same state and effects, from
the beginning or from any snapshot. The events are those of a long, disorderly life.
"""

from __future__ import annotations

import random

from delian.core.privacy.secagg.client import Policy
from delian.core.privacy.secagg.logged import update_from
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol.ports import (
    CLOUD,
    BlobStored,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import (
    DRAINING,
    EDGE_FULL,
    POOL_FULL,
    WORK_CAME,
    Accept,
    DeviceFacts,
    Eligibility,
    Reject,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import Blob, BlobRef
from delian.core.wire.journal_pb2 import Conditions, Connected, DeniedVersion, Homes
from delian.core.wire.link_pb2 import NODE_EDGE, Address
from delian.core.wire.round_pb2 import COUNTED, EVALUATE, LATE, TRAIN, RoundClosed, UploadAck
from delian.core.wire.secure_pb2 import Cohort, SecurePlan, Survivors
from delian.device.protocol.device_state import DevicePolicy
from delian.device.protocol.machine import DeviceMachine, restore
from hypothesis import given, settings
from hypothesis import strategies as st
from support import device_bench as _bench

BUNDLE = _bench.BUNDLE
VECTOR = _bench.VECTOR
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
Neighbours = _bench.Neighbours
SECURE = _bench.SECURE
make_task = _bench.make_task

HOMES = (Node(Tier.EDGE, 2), Node(Tier.EDGE, 5))
TIMERS = ("retry", "repeat", "repeat", "lease", "task", *("session",) * 3, "unheard of")
SESSIONS = {}  # by the signature of the device's keys
REASONS = (POOL_FULL, DRAINING, EDGE_FULL, WORK_CAME)
OUTCOMES = (
    Outcome(VECTOR),
    Outcome(VECTOR),
    Outcome(VECTOR, finite=False),
    Outcome(VECTOR[1:]),
    ProgramStopped(4),
)

FROZEN = [BlobRef(digest=bytes([n]) * 32, size=n) for n in range(1, 7)]
LOG = SimulatedLog(1, range(30))
#: Of a device that asks for proofs of the certificate log.
LOGGED = DevicePolicy(secure_required=False, floor=Policy(log=simulated_rules(1)))


def say(machine, message, pick):
    """Mostly its home speaks; sometimes one that was or may be its home, or a stranger."""
    sender = pick([machine.state.home_node] * 12 + [*HOMES, Node(Tier.EDGE, 7), CLOUD])
    return Received(sender, message)


def _accept(machine, pick):
    sequence = machine.state.sequence - pick([0, 0, 0, 1])
    window = RetryWindow(min_ms=1, max_ms=pick([1, 3000]))
    return say(machine, Accept(sequence=max(sequence, 0), lease_ms=9, after_task=window), pick)


def _reject(machine, pick):
    answer = Reject(sequence=machine.state.sequence, reason=pick(REASONS))
    if pick([True, False]):
        answer.retry.max_ms = 5_000
    return say(machine, answer, pick)


def _task(machine, pick):
    run = pick([1, 2])
    round, attempt = machine.state.done.get(run, (0, 1))
    step, again = pick([(1, 0), (1, 0), (0, 1), (0, 0), (-1, 0)])
    task = make_task(
        run=run,
        round=max(round + step, 0),
        attempt=attempt + again,
        purpose=pick([TRAIN, EVALUATE]),
        bundle=pick([BUNDLE, b"c" * 32]),
        time_ms=pick([1, 10_000, 60_000, 60_000]),
        secure=pick([None, SECURE, SECURE, _newer(machine)]),
        frozen=pick([()] * 6 + [FROZEN, FROZEN[:1]]),
    )
    return say(machine, task, pick)


def _newer(machine):
    """Masks by a newer deny list than the device's."""
    secure = SecurePlan(denied_version=machine.state.denied_version + 1)
    secure.MergeFrom(SECURE)
    return secure


def _digest(machine, pick):
    return pick([*machine.wanted, *machine.wanted, BUNDLE, WEIGHTS, b"?" * 32])


def _about_the_task(machine, pick):
    task = machine.state.task or make_task()
    name = {"run": task.run, "round": task.round, "attempt": task.attempt + pick([0, 0, 1])}
    if pick([True, False]):
        return say(machine, RoundClosed(**name), pick)
    ack = UploadAck(**name, device=pick([7, 7, 7, 8]), status=pick([COUNTED, COUNTED, LATE]))
    return say(machine, ack, pick)


def _of_the_session(machine, pick):
    """Mostly the next word of its session; sometimes that it is out, or nonsense."""
    task, session = machine.state.task, machine.state.session
    word = None
    if session is not None and session.bundle is not None:
        known = SESSIONS.get(session.bundle.signature)
        if known is None:
            known = SESSIONS[session.bundle.signature] = Neighbours(task, session.bundle)
        word = known.next(session)
    if word is None or pick([True] + [False] * 14):
        task = task or make_task()
        name = {"run": task.run, "round": task.round, "attempt": task.attempt}
        word = pick([Cohort, Survivors])(**name, device=pick([7, 7, 7, 8]))
    return say(machine, word, pick)


def _order(machine, pick):
    if pick([True] + [False] * 4):
        home = Address(tier=NODE_EDGE, number=pick([2, 5, 9]))
        return Ordered(Connected(home=home))
    if pick([True] + [False] * 4):
        known = machine.state.denied_version, machine.state.denied_issued_s
        later = pick([0, 1, 1])
        return Ordered(DeniedVersion(version=known[0] + later, issued_s=known[1] + later))
    if pick([True, False]):
        some = pick([(2, 5), (5,), (2,), (9, 2), (5, 2), ()])
        return Ordered(Homes(homes=[Address(tier=NODE_EDGE, number=n) for n in some]))
    consented = pick([True, True, False])
    allowed = Eligibility(consented=consented, idle=pick([True, False]))
    return Ordered(Conditions(facts=DeviceFacts(memory_mib=512), eligibility=allowed))


def _log_head(machine, pick):
    known = machine.state.log.size
    size = min(known + pick([0, 1, 2]), LOG.tree().size)
    return Ordered(update_from(LOG.tree(), known, LOG.head(size)))


def _finished(machine, pick):
    return ProgramFinished(machine.state.ticket - pick([0, 0, 0, 1]), pick(OUTCOMES))


MOVES = (
    *(lambda m, pick: TimerFired(pick(TIMERS)),) * 4,
    *(_accept,) * 4,
    _reject,
    *(_task,) * 4,
    lambda m, pick: say(m, Blob(digest=_digest(m, pick)), pick),
    *(lambda m, pick: BlobStored(_digest(m, pick), pick([True, True, True, False])),) * 4,
    *(_finished,) * 4,
    _about_the_task,
    *(_of_the_session,) * 6,
    _order,
    _log_head,
    lambda m, pick: Started(tuple(sorted(set(pick([(), (BUNDLE,), (BUNDLE, WEIGHTS)]))))),
)


def live(machine, pick, length):
    """Leads a machine through so many events; gives them with their times, and what it did."""
    now, events, done = 0, [], []
    for _ in range(length):
        now += pick([0, 1_000_000, 2_000_000_000] * 9 + [10**12])
        event = pick(MOVES)(machine, pick)
        events.append((event, now))
        done.append(handled(machine, event, now))
    return events, done


def late_in_a_session(way):
    bench = getattr(Bench(homes=HOMES), way)()
    SESSIONS[bench.session.bundle.signature] = bench.near
    return bench.machine


def handled(machine, event, now):
    before = machine.snapshot()
    try:
        return repr(machine.handle(event, now))
    except ProtocolError:
        assert machine.snapshot() == before, "what is refused changes nothing"
        return "refused"


class Taken(dict):
    """A table's index that notes which of its places were looked up."""

    def __init__(self, rows):
        super().__init__(rows)
        self.places = set()

    def get(self, place, default=None):
        self.places.add(place)
        return super().get(place, default)


def test_a_long_life_takes_every_row_in_every_phase():
    rows = Taken(DeviceMachine.rows)

    def never():
        return {(str(p), str(t)) for p, t in rows.keys() - rows.places}

    for seed in range(60):
        machine = Bench(homes=HOMES).machine
        machine.rows = rows
        machine.owner.policy = machine.owner.policy if seed % 2 else LOGGED
        live(machine, random.Random(seed).choice, 400)
        for late in range(10 * seed, 10 * seed + 10):
            machine = late_in_a_session(("sealing", "unmasking")[late % 2])
            machine.rows = rows
            machine.owner.policy = machine.owner.policy if late % 4 < 2 else LOGGED
            live(machine, random.Random(late).choice, 24)
        if seed >= 5 and not never():
            break
    assert not never()
    assert not rows.places - rows.keys(), "nothing that can be read is missing from the table"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.integers(0, 119))
def test_replayed_it_is_the_same_and_does_the_same(seed, length, cut):
    first = Bench(homes=HOMES).machine
    beginning = first.snapshot()
    events, done = live(first, random.Random(seed).choice, length)
    for keep in (0, min(cut, length)):
        again = Bench(restore(beginning), homes=(Node(Tier.EDGE, 77),)).machine
        did = [handled(again, event, now) for event, now in events[:keep]]
        again = Bench(restore(again.snapshot()), homes=(Node(Tier.EDGE, 77),)).machine
        did += [handled(again, event, now) for event, now in events[keep:]]
        assert did == done
        assert again.snapshot() == first.snapshot()
