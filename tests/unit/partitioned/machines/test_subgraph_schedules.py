"""Whatever comes, in whatever order: each request is answered once, and nothing is left behind."""

from __future__ import annotations

import math
from collections import Counter

from delian.core.placement.subgraphs.machines.asker import Asker, AskerSettings
from delian.core.placement.subgraphs.machines.part_ports import (
    Answer,
    CancelRequest,
    Course,
    CutClosed,
    CutOpened,
    CutRefused,
    Drop,
    Failure,
    Leg,
    Link,
    OpenAsked,
    PeerGone,
    Prepared,
    ProbeAnswered,
    Refuse,
    Reply,
    ReplyFailed,
    ReplyReceived,
    RequestCancelled,
    Requested,
    RequestReceived,
    Run,
    RunFinished,
    SendRequest,
    Taken,
    Unprepared,
    UpperBack,
    UpperGone,
)
from delian.core.placement.subgraphs.machines.part_server import Server, ServerSettings
from delian.core.placement.subgraphs.machines.request_table import Local
from delian.core.protocol.ports import MS, SECOND, SetTimer, TimerFired
from hypothesis import given, settings
from hypothesis import strategies as st

CUTS = (b"1" * 32, b"2" * 32)
COURSES = (
    Course(CUTS[0], 0, None, (0.010, 0.005), (Leg(20_000, 100),), 0.09),
    Course(CUTS[1], None, None, (0.0, 0.010), (Leg(90_000, 100),), math.inf),
)
LINK = Link(1e6, 1e6, 0.005)

tickets = st.integers(1, 12)
cuts = st.sampled_from(CUTS)
failures = st.sampled_from(list(Failure))
upwards = st.one_of(
    st.builds(CutOpened, cuts),
    st.builds(CutRefused, cuts, failures),
    st.builds(ReplyReceived, tickets, st.integers(0, SECOND)),
    st.builds(ReplyFailed, tickets, failures),
    st.builds(ProbeAnswered, st.integers(1, 5)),
    st.builds(Taken, st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, SECOND)),
    st.just(UpperGone()),
    st.just(UpperBack()),
    st.just(TimerFired("subgraphs")),
)
# "run" ends the oldest run under way, "fail" too; "new" is a request with a fresh ticket.
steps = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.one_of(st.sampled_from(["run", "run", "fail", "new", "new"]), upwards),
    ),
    max_size=80,
)


class Book:
    """Plays a driver: keeps runs under way, and who was answered how often."""

    def __init__(self, machine):
        self.machine, self.now = machine, 0
        self.runs, self.answers, self.asked, self.timer = [], Counter(), 0, None

    def hear(self, event):
        effects = self.machine.handle(event, self.now)
        over = set()
        for e in effects:
            if isinstance(e, Run):
                assert len({*e.tickets}) == len(e.tickets)
                assert not over & {*e.tickets}, "a run for what has its answer"
                self.runs.append(e)
            elif isinstance(e, Answer | Refuse | Reply | Drop):
                self.answers[e.ticket] += 1
                over.add(e.ticket)
            elif isinstance(e, SendRequest):
                assert e.time > 0 and e.ticket not in over
            elif isinstance(e, CancelRequest):
                assert e.ticket <= self.asked
            elif isinstance(e, SetTimer):
                assert e.at > self.now
                self.timer = e.at
        return effects

    def step(self, what):
        if what in ("run", "fail"):
            if self.runs:
                failure = Failure.FAILED if what == "fail" else None
                self.hear(RunFinished(self.runs.pop(0).run, failure))
        else:
            self.hear(what)

    def drain(self):
        """Nothing more comes from outside: runs end, and time passes."""
        for _ in range(2_000):
            if not len(self.machine):
                break
            if self.runs:
                self.now += MS
                self.step("run")
            else:
                assert self.timer is not None, "it waits for nothing"
                self.now = max(self.now + MS, self.timer)
                self.hear(TimerFired("subgraphs"))
        assert not len(self.machine)
        assert self.answers == Counter(range(1, self.asked + 1))


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([Local(0.1), Local(0.1, 0.02), Local()]), st.integers(1, 3))
def test_an_asker_answers_each_request_once_whatever_happens(schedule, local, under_way):
    book = Book(Asker(COURSES, local, LINK, settings=AskerSettings(under_way, waiting=6)))
    for wait_ms, what in schedule:
        book.now += wait_ms * MS
        if what == "new":
            book.asked += 1
            book.hear(Requested(book.asked, book.now + 500 * MS))
        else:
            book.step(what)
        assert len(book.machine) <= under_way + 6 + book.asked * (local.whole < math.inf)
    book.drain()


serving = st.one_of(
    upwards,
    st.builds(OpenAsked, st.integers(1, 3), cuts),
    st.sampled_from([Prepared(c) for c in COURSES]),
    st.builds(Unprepared, cuts, failures),
    st.builds(RequestCancelled, st.integers(1, 3), st.integers(1, 9)),
    st.builds(PeerGone, st.integers(1, 3)),
    st.builds(CutClosed, st.integers(1, 3), cuts),
    st.tuples(st.integers(1, 3), st.integers(1, 9), cuts, st.sampled_from([20, 300])),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.one_of(st.sampled_from(["run", "run", "fail"]), serving)),
        max_size=80,
    ),
    st.integers(1, 3),
    st.integers(0, 10 * MS),
)
def test_a_server_settles_each_request_once_whatever_happens(schedule, lanes, wait):
    book = Book(Server(ServerSettings(lanes, wait, requests=5, requests_per_peer=3), LINK))
    # Two askers have both cuts open, so that requests are taken.
    for peer in (1, 2):
        for course in COURSES:
            book.hear(OpenAsked(peer, course.cut))
    book.hear(UpperBack())
    for course in COURSES:
        book.hear(Prepared(course))
        book.hear(CutOpened(course.cut))
    cut_of = {}
    for wait_ms, what in schedule:
        book.now += wait_ms * MS
        if isinstance(what, tuple):
            peer, sequence, cut, time_ms = what
            book.asked += 1
            cut_of[book.asked] = cut
            deadline = book.now + time_ms * MS
            book.hear(RequestReceived(book.asked, peer, sequence, cut, deadline))
        else:
            book.step(what)
        assert len(book.machine) <= 5
        for run in book.runs:
            assert {cut_of[t] for t in run.tickets} == {run.cut}
            assert len(run.tickets) <= lanes
    book.drain()
