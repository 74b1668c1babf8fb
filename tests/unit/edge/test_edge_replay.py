"""What an edge has handled is what it is: the same events give the same state and effects, from the
beginning or from any snapshot. The events are those of a long, disorderly life, in which every sum
is checked.
"""

from __future__ import annotations

import random

import numpy as np
from delian.core.privacy.secagg.logged import prove, update_from
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol.ports import (
    CLOUD,
    MS,
    SECOND,
    BlobStored,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Send,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import Pace, Requirements
from delian.core.wire.blob_pb2 import Blob, BlobRef, FetchBlob
from delian.core.wire.journal_pb2 import DeniedVersion, Drain, Forget, Left, SplitTrained
from delian.core.wire.round_pb2 import (
    EVALUATE,
    OUT_OF_MEMORY,
    TRAIN,
    EdgeSum,
    EdgeSumAck,
    Failure,
    Flush,
    RoundClosed,
    Upload,
)
from delian.core.wire.secure_pb2 import Cohort, Consent
from delian.edge.protocol.collection import Collection
from delian.edge.protocol.edge_state import EdgePolicy, EdgeState, Phase
from delian.edge.protocol.machine import EdgeMachine, restore
from hypothesis import given, settings
from hypothesis import strategies as st
from support import edge_bench as _bench

BUNDLE = _bench.BUNDLE
WEIGHTS = _bench.WEIGHTS
check_in = _bench.check_in
device = _bench.device
edge_task = _bench.edge_task
help_request = _bench.help_request
upload = _bench.upload
vector = _bench.vector

DEVICES = range(1, 9)
HELPER = _bench.helper(rules=simulated_rules(1))
LOG = SimulatedLog(1, range(12))
# Room for two sums of 16 bytes: limits are met often. A sum is kept for a few seconds.
POLICY = EdgePolicy(devices_max=6, sum_bytes_max=32, sum_keep_ns=4 * SECOND, splits=True)


def _attempt(machine, pick):
    """An attempt that is open, closed, next or of another run."""
    known = [*machine.state.collections] * 4 + [*machine.state.closed]
    run, round, attempt = map(int, pick([*known, "1.1.1", "2.1.1"]).split("."))
    return {"run": run, "round": round, "attempt": attempt}


FROZEN = [BlobRef(digest=bytes([n]) * 32, size=n) for n in range(1, 12)]


def _task(machine, pick):
    name = _attempt(machine, pick)
    step = pick([(0, 0), (0, 1), (0, 1), (1, 0), (-1, 0)])
    some = sorted({pick(DEVICES) for _ in range(4)})
    message = edge_task(
        pick([some, some, some, list(DEVICES), some[::-1]]),
        run=name["run"],
        round=name["round"] + step[0],
        attempt=name["attempt"] + step[1],
        weights=pick([WEIGHTS, b"v" * 32]),
        bundle=pick([BUNDLE, b"c" * 32]),
        purpose=pick([TRAIN, EVALUATE]),
        alone=pick([True, False, False]),
        signed=pick([True] * 7 + [False]),
        frozen=pick([(), (), FROZEN, FROZEN[:1]]),
        split=pick([True, False]),
    )
    return Received(CLOUD, message)


def _cloud(machine, pick):
    name = _attempt(machine, pick)
    one = machine.state.collections.get(f"{name['run']}.{name['round']}.{name['attempt']}")
    part = (one.part if one is not None else 0) + pick([0, 0, 0, 1])
    out = [*one.outgoing] if one is not None else []
    return Received(
        pick([CLOUD] * 15 + [Node(Tier.EDGE, 5)]),
        pick(
            [
                Flush(**name, part=part),
                Flush(**name, part=part, go_on=True),
                Flush(**name, part=part, go_on=True),
                EdgeSumAck(**name, part=pick([*out, 0])),
                EdgeSumAck(**name, part=pick([*out, 0])),
                EdgeSumAck(**name, part=pick([*out, 0])),
                RoundClosed(**name, succeeded=pick([True, False])),
                pick([Cohort(**name, device=1), RoundClosed(**name, device=2)]),
                Pace(
                    number=pick([1, 2, 3, 4]),
                    ready_max=pick([0, 3, 9]),
                    requirements=Requirements(idle=pick([True, False])),
                    draining=pick([True, False, False, False]),
                ),
                Failure(**name, device=1),
            ]
        ),
    )


def _answer(machine, pick):
    name, number = _attempt(machine, pick), pick(DEVICES)
    one = machine.state.collections.get(f"{name['run']}.{name['round']}.{name['attempt']}")
    if one is not None and one.waiting and pick([True, True, False]):
        number = pick([*one.waiting, *one.answers])
    whole = one is not None and number in one.trained
    split = pick([b"", *[b"s" * 16] * (6 if whole else 1), b"short"])
    update = upload(number, **name, split=split)
    message = pick([update] * 4 + [Failure(**name, device=number, reason=1)])
    if pick([False] * 7 + [True]):
        message = Consent(**name, device=number)
    if pick([False] * 9 + [True]):
        message = Upload(**name, device=number, vector=b"short")
    return Received(device(pick([number] * 15 + [1])), message)


def _digest(machine, pick):
    return pick([*machine.wanted, *machine.wanted, BUNDLE, WEIGHTS, b"?" * 32])


def _timer(machine, pick):
    names = ["hello", "fetch", "unheard of"]
    for attempt in [*machine.state.collections, *machine.state.closed][:4]:
        names += [f"{attempt}/{n}" for n in ("round", "progress", "repeat", "sum")]
    return TimerFired(pick(names))


def _check_in(machine, pick):
    number = pick(DEVICES)
    newest = machine.state.check_ins.get(number, 0)
    sequence = max(newest + pick([0, 1, 1, -1]), 0)
    return Received(
        device(number), check_in(number, sequence=sequence, consented=pick([True, True, False]))
    )


def _help(machine, pick):
    """A batch, some of it asked for before; or the sum of one's masks, or of none that is made."""
    if pick([True, False]):
        ticket = pick([*machine.state.helping, *machine.state.helping, 999])
        outcome = pick([Outcome(vector(9))] * 3 + [ProgramStopped(OUT_OF_MEMORY)])
        return ProgramFinished(ticket, outcome)
    devices = pick([(1, 2, 3), (4, 5, 6), (2, 3, 4), (7, 8)])
    request = help_request(devices, batch=pick([1, 2, 3]), round=pick([1, 1, 2]))
    known, head = machine.state.ledger.log.size, LOG.head(pick([10, 12, 12]))
    places = b"".join(LOG.index_of(d).to_bytes(8, "little") for d in devices)
    if known <= head.size and pick([True] * 7 + [False]):
        request.log.CopyFrom(prove(LOG.tree(), head, known, places, range(len(devices))))
    return Received(CLOUD, request)


def _notice(machine, pick):
    """Of the deny list, or a head of the certificate log."""
    known = machine.state.ledger.log.size
    head = LOG.head(pick([10, 12]))
    if pick([True, False]) and known <= head.size:
        return Ordered(update_from(LOG.tree(), known, head))
    return Ordered(DeniedVersion(version=pick([0, 1, 2]), issued_s=pick([1, 2, 3])))


def _trained(machine, pick):
    """Devices train with the edge where they may; or it is said of others."""
    name, number = _attempt(machine, pick), pick(DEVICES)
    one = machine.state.collections.get(f"{name['run']}.{name['round']}.{name['attempt']}")
    if one is not None and one.waiting and one.split_begun:
        number = pick(list(one.waiting))
    return Ordered(SplitTrained(**name, device=number, name=b"s" * 16))


def _parts(machine, pick):
    """The sum of what the edge has trained of an attempt; or there is none."""
    tickets = [one.split_ending for one in machine.state.collections.values() if one.split_ending]
    outcome = pick([Outcome(np.zeros(4, np.uint32))] * 3 + [ProgramStopped(OUT_OF_MEMORY)])
    return ProgramFinished(pick([*tickets * 4, 999]), outcome)


MOVES = (
    *(_check_in,) * 5,
    *(_task,) * 3,
    *(_cloud,) * 4,
    *(_answer,) * 5,
    *(_timer,) * 4,
    _help,
    *(_parts,) * 3,
    *(_trained,) * 2,
    _notice,
    lambda m, pick: Received(device(pick(DEVICES)), FetchBlob(digest=_digest(m, pick))),
    lambda m, pick: Received(CLOUD, Blob(digest=_digest(m, pick))),
    *(lambda m, pick: BlobStored(_digest(m, pick), pick([True, True, True, False])),) * 2,
    lambda m, pick: pick(
        [
            Ordered(Forget(device=pick(DEVICES))),
            Ordered(Left(device=pick(DEVICES))),
            Ordered(Drain(draining=True)),
            Ordered(Drain()),
            Ordered(Drain()),
            Started(pick([(), (BUNDLE,), (BUNDLE, WEIGHTS)])),
            Started(pick([(), (BUNDLE,), (BUNDLE, WEIGHTS)])),
        ]
    ),
)


def new(state=None):
    return EdgeMachine(state or EdgeState(4, incarnation=1), POLICY, HELPER, HELPER.identity)


def live(machine, pick, length, seen=None):
    """Leads a machine through so many events; gives them with their times, and what it did."""
    now, events, done = 0, [], []
    for _ in range(length):
        now += pick([0, MS, SECOND])
        event = pick(MOVES)(machine, pick)
        events.append((event, now))
        done.append(handled(machine, event, now, seen))
    return events, done


def handled(machine, event, now, seen=None):
    before = machine.snapshot()
    try:
        effects = machine.handle(event, now)
    except ProtocolError:
        assert machine.snapshot() == before, "what is refused changes nothing"
        return "refused"
    if seen is not None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, EdgeSum):
                check_sum(effect, seen)
    return repr(effects)


def check_sum(effect, seen):
    """A sum is exact, does not change when it is repeated, and counts nobody twice."""
    message = effect.message
    expected = sum((vector(d) for d in message.devices), np.zeros(4, np.uint32))
    assert message.sum == (expected.tobytes() if message.devices else b"")
    assert message.count == len(message.devices)
    assert effect.size in (0, message.ByteSize())
    attempt = seen.setdefault((message.run, message.round, message.attempt), {})
    assert attempt.setdefault(message.part, message) == message
    told = [d for m in attempt.values() for d in [*m.devices, *(f.device for f in m.failures)]]
    assert len(told) == len(set(told))


class Taken(dict):
    """A table's index that notes which of its places were looked up."""

    def __init__(self, rows):
        super().__init__(rows)
        self.places = set()

    def get(self, place, default=None):
        self.places.add(place)
        return super().get(place, default)


def test_a_long_life_takes_every_row_in_every_phase_and_every_sum_is_exact(monkeypatch):
    edge, attempt = Taken(EdgeMachine.rows), Taken(Collection.rows)
    monkeypatch.setattr(EdgeMachine, "rows", edge)
    monkeypatch.setattr(Collection, "rows", attempt)
    for seed in range(80):
        live(new(), random.Random(seed).choice, 400, seen={})
        never = {(str(p), str(t)) for rows in (edge, attempt) for p, t in rows.keys() - rows.places}
        if seed >= 20 and not never:
            break
    assert not never
    # Before it has started, whatever comes is refused.
    unread = {p for p in edge.places - edge.keys() if p[0] is not Phase.OFFLINE}
    assert not unread and not attempt.places - attempt.keys()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 150), st.integers(0, 149))
def test_replayed_it_is_the_same_and_does_the_same(seed, length, cut):
    first = new()
    beginning = first.snapshot()
    events, done = live(first, random.Random(seed).choice, length)
    for keep in (0, min(cut, length)):
        again = new(restore(beginning))
        did = [handled(again, event, now) for event, now in events[:keep]]
        again = new(restore(again.snapshot()))
        did += [handled(again, event, now) for event, now in events[keep:]]
        assert did == done
        assert again.snapshot() == first.snapshot()
