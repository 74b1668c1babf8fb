"""An edge's and the cloud's machine: opening, batches, limits, and what is forwarded."""

from __future__ import annotations

import math

from delian.core.placement.subgraphs.machines.part_ports import (
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
    OpenCut,
    Opened,
    PeerGone,
    Prepare,
    Prepared,
    Probe,
    Refuse,
    Reply,
    ReplyFailed,
    ReplyReceived,
    RequestCancelled,
    RequestReceived,
    Run,
    RunFinished,
    SendRequest,
    Unprepare,
    Unprepared,
    UpperBack,
    UpperGone,
    Work,
)
from delian.core.placement.subgraphs.machines.part_server import (
    ANSWERED_MAX,
    Server,
    ServerSettings,
)
from delian.core.protocol.ports import MS, SECOND, SetTimer, TimerFired

CUT, OTHER = b"c" * 32, b"o" * 32
HERE = Course(CUT, 0, None, (0.010,), (), 0.0)
ON = Course(CUT, 0, None, (0.010, 0.020), (Leg(1000, 100),), 0.1)
LINK = Link(1e6, 1e6, 0.005)


def plain(effects):
    return [e for e in effects if not isinstance(e, SetTimer | Probe)]


def opened(peers=(1,), course=HERE, **settings):
    server = Server(ServerSettings(**settings))
    for peer in peers:
        server.handle(OpenAsked(peer, course.cut), 0)
    server.handle(Prepared(course), 0)
    return server


def request(server, ticket, peer=1, sequence=None, cut=CUT, deadline=SECOND, now=MS):
    sequence = ticket if sequence is None else sequence
    return plain(server.handle(RequestReceived(ticket, peer, sequence, cut, deadline), now))


def test_a_cut_is_prepared_once_and_every_asker_is_told():
    server = Server()
    assert plain(server.handle(OpenAsked(1, CUT), 0)) == [Prepare(CUT)]
    assert plain(server.handle(OpenAsked(2, CUT), 1)) == []
    told = plain(server.handle(Prepared(HERE), 2))
    assert told == [Opened(1, CUT, None), Opened(2, CUT, None)]
    assert plain(server.handle(OpenAsked(3, CUT), 3)) == [Opened(3, CUT, None)]


def test_a_cut_that_cannot_be_prepared_is_refused_and_its_requests_are_unknown():
    server = Server()
    server.handle(OpenAsked(1, CUT), 0)
    assert plain(server.handle(Unprepared(CUT, Failure.MISFIT), 1)) == [
        Opened(1, CUT, Failure.MISFIT)
    ]
    assert request(server, 1) == [Refuse(1, Failure.UNKNOWN)]


def test_a_request_of_an_asker_that_has_not_opened_the_cut_is_unknown():
    assert request(opened(), 1, peer=2) == [Refuse(1, Failure.UNKNOWN)]


def test_those_that_wait_together_run_together_and_cuts_are_not_mixed():
    server = opened((1, 2, 3), lanes=2)
    server.handle(OpenAsked(1, OTHER), 0)
    server.handle(Prepared(Course(OTHER, 0, None, (0.01,), (), 0.0)), 0)
    (first,) = request(server, 1)
    assert (first.work, first.part, first.tickets) == (Work.PART, 0, (1,))
    assert request(server, 2, peer=2) == []
    assert request(server, 3, peer=3) == []
    assert request(server, 4, peer=1, cut=OTHER) == []
    effects = plain(server.handle(RunFinished(first.run), 11 * MS))
    assert effects[0] == Reply(1, 10 * MS, None)
    assert [e.tickets for e in effects[1:]] == [(2, 3)]
    effects = plain(server.handle(RunFinished(effects[1].run), 25 * MS))
    assert effects[:2] == [Reply(2, 24 * MS, None), Reply(3, 24 * MS, None)]
    assert [(e.cut, e.tickets) for e in effects[2:]] == [(OTHER, (4,))]


def test_an_idle_server_may_wait_a_little_for_others():
    server = opened((1, 2), lanes=4, wait_ns=5 * MS)
    assert request(server, 1, now=MS) == []
    assert request(server, 2, peer=2, now=3 * MS) == []
    (run,) = plain(server.handle(TimerFired("subgraphs"), 6 * MS))
    assert run.tickets == (1, 2)


def test_it_does_not_wait_for_others_where_the_deadline_is_near():
    server = opened((1,), lanes=4, wait_ns=500 * MS)
    (run,) = request(server, 1, deadline=11 * MS, now=MS)
    assert isinstance(run, Run)


def test_the_more_urgent_of_two_queues_goes_first():
    server = opened((1,), lanes=4)
    server.handle(OpenAsked(1, OTHER), 0)
    server.handle(Prepared(Course(OTHER, 0, None, (0.01,), (), 0.0)), 0)
    (first,) = request(server, 1)
    request(server, 2, deadline=900 * MS)
    request(server, 3, cut=OTHER, deadline=300 * MS)
    effects = plain(server.handle(RunFinished(first.run), 11 * MS))
    assert [e.tickets for e in effects if isinstance(e, Run)] == [(3,)]


def test_a_request_that_comes_twice_is_taken_once():
    server = opened()
    (run,) = request(server, 1, sequence=5)
    assert request(server, 2, sequence=5) == [Drop(2)]
    assert plain(server.handle(RunFinished(run.run), 11 * MS)) == [Reply(1, 10 * MS, None)]
    assert request(server, 3, sequence=5, now=12 * MS) == [Drop(3)]


def test_too_much_is_refused_as_busy_and_one_asker_cannot_take_all():
    server = opened((1, 2), requests_per_peer=1, requests=2)
    request(server, 1)
    assert request(server, 2) == [Refuse(2, Failure.BUSY)]
    assert request(server, 3, peer=2) == []
    assert request(server, 4, peer=2) == [Refuse(4, Failure.BUSY)]


def test_what_could_not_be_ready_is_refused_at_once():
    server = opened((1, 2))
    assert request(server, 1, deadline=MS) == [Refuse(1, Failure.LATE)]
    # Ten milliseconds each, one after the other: there is time for three.
    taken = [request(server, ticket, deadline=35 * MS) for ticket in range(2, 7)]
    assert [Refuse(t, Failure.LATE) in e for t, e in zip(range(2, 7), taken, strict=True)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_what_is_past_its_deadline_is_not_computed():
    server = opened((1,))
    (run,) = request(server, 1)
    request(server, 2, deadline=40 * MS)
    # The first run takes far longer than was predicted.
    late = plain(server.handle(TimerFired("subgraphs"), 50 * MS))
    assert late == [Refuse(2, Failure.LATE)]
    assert plain(server.handle(RunFinished(run.run), 60 * MS)) == [Reply(1, 59 * MS, None)]
    assert len(server) == 0


def test_what_the_asker_calls_off_is_dropped():
    server = opened((1,))
    request(server, 1)
    request(server, 2)
    assert plain(server.handle(RequestCancelled(1, 2), 2 * MS)) == [Drop(2)]
    assert plain(server.handle(RequestCancelled(1, 77), 2 * MS)) == []
    assert len(server) == 1


def test_an_asker_that_goes_leaves_nothing_behind():
    server = opened((1, 2))
    (run,) = request(server, 1)
    request(server, 2)
    request(server, 3, peer=2)
    gone = plain(server.handle(PeerGone(1), 2 * MS))
    assert [e.ticket for e in gone if isinstance(e, Drop)] == [1, 2]
    (second,) = plain(server.handle(RunFinished(run.run), 11 * MS))
    assert isinstance(second, Run) and second.tickets == (3,)
    assert request(server, 4, peer=1, now=12 * MS) == [Refuse(4, Failure.UNKNOWN)]


def test_prepared_cuts_make_room_only_where_nobody_has_them_open():
    server = opened((1,), cuts=1)
    assert plain(server.handle(OpenAsked(1, OTHER), 1)) == [Opened(1, OTHER, Failure.BUSY)]
    server.handle(PeerGone(1), 2)
    assert plain(server.handle(OpenAsked(2, OTHER), 3)) == [Unprepare(CUT), Prepare(OTHER)]


def test_a_failed_run_refuses_all_of_its_batch():
    server = opened((1, 2), lanes=2)
    (first,) = request(server, 1)
    request(server, 2)
    request(server, 3, peer=2)
    (_, batch) = plain(server.handle(RunFinished(first.run), 11 * MS))
    effects = plain(server.handle(RunFinished(batch.run, Failure.FAILED), 20 * MS))
    assert effects == [Refuse(2, Failure.FAILED), Refuse(3, Failure.FAILED)]


def test_what_is_remembered_does_not_grow_with_what_was_served():
    server = opened((1,))
    for ticket in range(1, 2_001):
        now = ticket * 20 * MS
        (run,) = request(server, ticket, deadline=now + SECOND, now=now)
        server.handle(RunFinished(run.run), now + 10 * MS)
    (peer,) = server._peers.values()
    assert len(server) == len(server._of) == len(peer.tickets) == 0
    assert len(peer.answered) == ANSWERED_MAX


# ---------------------------------------------------------------- with a tier above


def edge(course=ON):
    server = Server(upper=LINK)
    server.handle(UpperBack(), 0)
    server.handle(OpenAsked(1, CUT), 0)
    assert plain(server.handle(Prepared(course), 0)) == [OpenCut(CUT)]
    return server


def test_a_cut_that_goes_on_is_open_when_it_is_open_above():
    server = edge()
    assert plain(server.handle(CutOpened(CUT), MS)) == [Opened(1, CUT, None)]
    (run,) = request(server, 1)
    assert plain(server.handle(RunFinished(run.run), 11 * MS)) == [
        SendRequest(1, CUT, SECOND - 11 * MS)
    ]
    (reply,) = plain(server.handle(ReplyReceived(1, 20 * MS), 43 * MS))
    assert (reply.ticket, reply.spent) == (1, 42 * MS)
    assert reply.above is not None, "how its own link upwards is"


def test_a_node_without_a_part_passes_requests_on():
    server = edge(Course(CUT, None, None, (0.0, 0.02), (Leg(1000, 100),), math.inf))
    server.handle(CutOpened(CUT), MS)
    assert request(server, 1) == [SendRequest(1, CUT, SECOND - MS)]


def test_when_the_tier_above_goes_it_runs_the_rest_itself():
    server = edge()
    server.handle(CutOpened(CUT), MS)
    (run,) = request(server, 1)
    server.handle(RunFinished(run.run), 11 * MS)
    (rest,) = plain(server.handle(UpperGone(), 20 * MS))
    assert rest.work is Work.REST and rest.tickets == (1,)
    (reply,) = plain(server.handle(RunFinished(rest.run), 120 * MS))
    assert isinstance(reply, Reply)


def test_where_it_cannot_the_request_is_lost_and_so_is_the_opening():
    course = Course(CUT, 0, None, (0.010, 0.020), (Leg(1000, 100),), math.inf)
    server = edge(course)
    server.handle(CutOpened(CUT), MS)
    (run,) = request(server, 1)
    server.handle(RunFinished(run.run), 11 * MS)
    assert plain(server.handle(UpperGone(), 20 * MS)) == [Refuse(1, Failure.LOST)]
    assert plain(server.handle(OpenAsked(2, CUT), 30 * MS)) == [Opened(2, CUT, Failure.LOST)]


def test_a_cut_refused_above_is_open_where_the_rest_can_run_here():
    server = edge()
    assert plain(server.handle(CutRefused(CUT, Failure.UNKNOWN), MS)) == [Opened(1, CUT, None)]
    (run,) = request(server, 1)
    (rest,) = plain(server.handle(RunFinished(run.run), 11 * MS))
    assert rest.work is Work.REST


def test_a_refusal_from_above_is_made_good_here():
    server = edge()
    server.handle(CutOpened(CUT), MS)
    (run,) = request(server, 1)
    server.handle(RunFinished(run.run), 11 * MS)
    (rest,) = plain(server.handle(ReplyFailed(1, Failure.BUSY), 15 * MS))
    assert rest.work is Work.REST


def test_what_is_called_off_below_is_called_off_above():
    server = edge()
    server.handle(CutOpened(CUT), MS)
    (run,) = request(server, 1)
    server.handle(RunFinished(run.run), 11 * MS)
    effects = plain(server.handle(RequestCancelled(1, 1), 12 * MS))
    assert effects == [CancelRequest(1), Drop(1)]


def test_a_closed_cut_makes_room_once_nothing_of_it_is_under_way():
    server = opened(cuts=1, cuts_per_peer=1)
    request(server, 7)
    assert plain(server.handle(CutClosed(1, CUT), 2 * MS)) == []
    assert plain(server.handle(OpenAsked(2, OTHER), 2 * MS)) == [Opened(2, OTHER, Failure.BUSY)]
    replied = plain(server.handle(RunFinished(1), 3 * MS))
    assert [type(e) for e in replied] == [Reply]
    assert plain(request(server, 8, now=4 * MS)) == [Refuse(8, Failure.UNKNOWN)]
    assert plain(server.handle(OpenAsked(1, OTHER), 5 * MS)) == [Unprepare(CUT), Prepare(OTHER)]
