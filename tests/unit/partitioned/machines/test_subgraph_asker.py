"""A device's machine, event by event: who runs what, who answers, and when it gives up waiting."""

from __future__ import annotations

import math

import pytest
from delian.core.placement.subgraphs.machines.asker import Asker, AskerSettings
from delian.core.placement.subgraphs.machines.cut_choice import ChoiceSettings
from delian.core.placement.subgraphs.machines.part_ports import (
    Answer,
    CancelRequest,
    CancelRun,
    Course,
    CutOpened,
    CutRefused,
    Failure,
    Leg,
    Link,
    OpenCut,
    Probe,
    ProbeAnswered,
    Refuse,
    ReplyFailed,
    ReplyReceived,
    Requested,
    Run,
    RunFinished,
    SendRequest,
    Taken,
    UpperBack,
    UpperGone,
    Work,
)
from delian.core.placement.subgraphs.machines.request_table import Local
from delian.core.protocol.ports import MS, SECOND, Record, SetTimer, TimerFired

CUT = b"c" * 32
# 10 ms here, 100 kB up (100 ms), 5 ms above; alone the device takes 400 ms.
COURSE = Course(CUT, 0, None, (0.010, 0.005), (Leg(100_000, 100),), 0.390)
ALONE = Course(b"a" * 32, 0, None, (0.4,), (), 0.0)
LINK = Link(1e6, 1e6, 0.005)


def kinds(effects):
    return [type(e) for e in effects if not isinstance(e, SetTimer | Record | Probe)]


def asker(courses=(COURSE,), local=None, **settings):
    return Asker(courses, local or Local(0.4), LINK, settings=AskerSettings(**settings))


def ready(**kwargs):
    """An asker whose cut is open, at 1 ms."""
    a = asker(**kwargs)
    assert [e for e in a.handle(UpperBack(), 0) if isinstance(e, OpenCut)] == [OpenCut(CUT)]
    a.handle(CutOpened(CUT), MS)
    assert a.current.cut == CUT
    return a


def sent(a, ticket=1, deadline=10 * SECOND, start=2 * MS):
    """A request that has been sent, 12 ms after `start`."""
    (run,) = [e for e in a.handle(Requested(ticket, deadline), start) if isinstance(e, Run)]
    assert (run.work, run.part, run.tickets) == (Work.PART, 0, (ticket,))
    effects = a.handle(RunFinished(run.run), start + 10 * MS)
    assert SendRequest in kinds(effects)


def tick(a, now):
    return a.handle(TimerFired("subgraphs"), now)


def test_the_device_runs_its_part_asks_and_answers():
    a = ready()
    sent(a)
    assert kinds(a.handle(Taken(100_000, 0, 0), 112 * MS)) == []
    effects = a.handle(ReplyReceived(1, 5 * MS), 125 * MS)
    assert [e for e in effects if isinstance(e, Answer)] == [Answer(1, Work.PART, False)]
    assert len(a) == 0


def test_before_the_tier_above_is_there_the_device_answers_alone():
    a = asker()
    (run,) = [e for e in a.handle(Requested(1, SECOND), 0) if isinstance(e, Run)]
    assert run.work is Work.WHOLE
    assert Answer(1, Work.WHOLE, False) in a.handle(RunFinished(run.run), 400 * MS)


def test_a_second_reply_and_one_to_nothing_are_ignored():
    a = ready()
    sent(a)
    a.handle(ReplyReceived(1), 125 * MS)
    assert kinds(a.handle(ReplyReceived(1), 126 * MS)) == []
    assert kinds(a.handle(ReplyReceived(77), 127 * MS)) == []
    assert kinds(a.handle(ReplyFailed(1, Failure.BUSY), 128 * MS)) == []


def test_while_one_is_sent_the_next_ones_part_runs():
    a = ready(under_way=2)
    sent(a, 1)
    assert Run in kinds(a.handle(Requested(2, SECOND), 13 * MS))
    # A third waits until one is answered.
    assert kinds(a.handle(Requested(3, 10 * SECOND), 14 * MS)) == []
    assert Run in kinds(a.handle(ReplyReceived(1), 125 * MS)) or len(a) == 2


def test_when_the_tier_goes_what_was_sent_is_finished_here_and_new_requests_stay_here():
    a = ready()
    sent(a)
    effects = a.handle(UpperGone(), 50 * MS)
    (run,) = [e for e in effects if isinstance(e, Run)]
    assert run.work is Work.REST and run.cut == CUT
    assert CancelRequest not in kinds(effects), "there is nobody to tell"
    assert a.current.legs == ()
    assert Answer(1, Work.REST, True) in a.handle(RunFinished(run.run), 440 * MS)


def test_a_first_part_that_runs_when_the_tier_goes_is_not_run_in_vain():
    a = ready()
    (run,) = [e for e in a.handle(Requested(1, SECOND), 2 * MS) if isinstance(e, Run)]
    assert kinds(a.handle(UpperGone(), 5 * MS)) == []
    (rest,) = [e for e in a.handle(RunFinished(run.run), 12 * MS) if isinstance(e, Run)]
    assert rest.work is Work.REST


def test_when_the_tier_is_back_all_cuts_are_opened_again_and_used():
    a = ready()
    a.handle(UpperGone(), 50 * MS)
    effects = a.handle(UpperBack(), 900 * MS)
    assert OpenCut(CUT) in effects
    assert a.current.legs == ()
    a.handle(CutOpened(CUT), 950 * MS)
    tick(a, 2 * SECOND)
    assert a.current.cut == CUT


def test_a_refused_request_is_answered_here():
    a = ready()
    sent(a)
    (run,) = [e for e in a.handle(ReplyFailed(1, Failure.BUSY), 60 * MS) if isinstance(e, Run)]
    assert run.work is Work.REST
    assert Answer(1, Work.REST, True) in a.handle(RunFinished(run.run), 450 * MS)


def test_an_overdue_reply_is_hedged_and_the_first_answer_counts():
    a = ready()
    sent(a)
    a.handle(Taken(100_000, 0, 0), 112 * MS)
    runs, now = [], 112 * MS
    while not runs:
        now += 20 * MS
        assert now < 300 * MS, "the reply was predicted for 122 ms"
        runs = [e for e in tick(a, now) if isinstance(e, Run)]
    assert runs[0].work is Work.REST
    # The reply comes first after all: the run is called off, and its end means nothing.
    effects = a.handle(ReplyReceived(1), now + 10 * MS)
    assert Answer(1, Work.PART, False) in effects and CancelRun(runs[0].run) in effects
    assert kinds(a.handle(RunFinished(runs[0].run), now + 400 * MS)) == []


def test_a_hedge_that_is_first_calls_the_request_off():
    a = ready()
    sent(a)
    a.handle(Taken(100_000, 0, 0), 112 * MS)
    (run,) = [e for e in tick(a, 400 * MS) if isinstance(e, Run)]
    effects = a.handle(RunFinished(run.run), 800 * MS)
    assert Answer(1, Work.REST, True) in effects and CancelRequest(1) in effects
    assert kinds(a.handle(ReplyReceived(1), 900 * MS)) == []


def test_a_link_that_stalls_is_noticed_before_the_transfer_ends():
    a = ready()
    sent(a)
    a.handle(Taken(16_000, 84_000, 0), 30 * MS)
    # Now nothing more: at the believed rate the rest would take 84 ms.
    now = 30 * MS
    while Run not in kinds(tick(a, now := now + 20 * MS)):
        assert now < 2 * SECOND
    assert now < SECOND
    assert a.upper.link(now).up < 250_000, "of 1 MB/s"


def test_a_deadline_that_only_the_smaller_program_meets_gets_it():
    a = ready(local=Local(0.4, smaller=0.05))
    sent(a, deadline=300 * MS)
    (run,) = [e for e in a.handle(UpperGone(), 100 * MS) if isinstance(e, Run)]
    assert run.work is Work.SMALLER
    assert Answer(1, Work.SMALLER, True) in a.handle(RunFinished(run.run), 150 * MS)


def test_a_fallback_that_fails_is_followed_by_the_next_and_then_refused():
    a = ready()
    sent(a)
    (rest,) = [e for e in a.handle(UpperGone(), 50 * MS) if isinstance(e, Run)]
    effects = a.handle(RunFinished(rest.run, Failure.FAILED), 60 * MS)
    (whole,) = [e for e in effects if isinstance(e, Run)]
    assert whole.work is Work.WHOLE
    effects = a.handle(RunFinished(whole.run, Failure.FAILED), 70 * MS)
    assert Refuse(1, Failure.FAILED) in effects
    assert len(a) == 0


def test_a_device_that_cannot_run_the_program_keeps_requests_for_the_tier_above_or_refuses_them():
    course = Course(CUT, 0, None, (0.01, 0.005), (Leg(100, 100),), math.inf)
    a = asker((course,), Local())
    assert Run not in kinds(a.handle(Requested(1, SECOND), 0))
    assert Run not in kinds(a.handle(Requested(2, 10 * SECOND), 0))
    assert Refuse(1, Failure.LATE) in tick(a, SECOND + 1)
    a.handle(UpperBack(), 2 * SECOND)
    effects = a.handle(CutOpened(CUT), 2 * SECOND)
    assert [e.tickets for e in effects if isinstance(e, Run)] == [(2,)]


def test_too_many_in_line_are_refused_at_once():
    a = ready(under_way=1, waiting=1)
    a.handle(Requested(1, 10 * SECOND), 2 * MS)
    a.handle(Requested(2, 10 * SECOND), 2 * MS)
    assert Refuse(3, Failure.BUSY) in a.handle(Requested(3, 10 * SECOND), 2 * MS)


def test_a_refused_cut_is_asked_for_again_later_but_one_that_misfits_never():
    a = asker()
    a.handle(UpperBack(), 0)
    a.handle(CutRefused(CUT, Failure.BUSY), MS)
    assert OpenCut not in kinds(tick(a, 400 * MS))
    assert OpenCut(CUT) in tick(a, 600 * MS)
    a.handle(CutRefused(CUT, Failure.MISFIT), 700 * MS)
    for second in range(1, 200):
        assert OpenCut not in kinds(tick(a, second * SECOND))


def test_a_server_that_does_not_know_the_cut_any_more_is_not_asked_with_it():
    a = ready()
    sent(a)
    a.handle(ReplyFailed(1, Failure.UNKNOWN), 60 * MS)
    assert a.current.legs == ()


def test_a_tier_that_answers_no_probe_is_suspect_until_it_does():
    a = ready()
    now = MS
    while a.current.legs:
        now += 200 * MS
        assert now < 5 * SECOND
        tick(a, now)
    probes = []
    for _ in range(20):
        now += 200 * MS
        probes += [e for e in tick(a, now) if isinstance(e, Probe)]
    assert 1 <= len(probes) <= 8, "one at a time"
    probe = probes[-1]
    # How long the probe was held up says nothing of the link.
    effects = a.handle(ProbeAnswered(probe.probe), now + 10 * MS)
    assert a.current.cut == CUT
    assert Probe in map(type, effects)


def test_a_link_that_nobody_uses_is_probed_seldom_and_at_once_when_somebody_does():
    def probes(a, begin_s, end_s):
        """How many in a time; each is answered."""
        count = 0
        for k in range(round(begin_s * 10), round(end_s * 10)):
            effects = tick(a, k * 100 * MS)
            while sent := [e for e in effects if isinstance(e, Probe)]:
                count += 1
                effects = a.handle(ProbeAnswered(sent[0].probe), k * 100 * MS)
        return count

    a = ready()
    assert probes(a, 1, 5) >= 8
    probes(a, 5, 10)
    assert probes(a, 10, 100) <= 10
    a.handle(Requested(1, 110 * SECOND), 100 * SECOND)
    assert probes(a, 100, 102) >= 3


@pytest.mark.parametrize("tries", [True, False])
def test_what_a_run_takes_is_learned_by_trying_the_other_cut(tries):
    """A device four times as slow as planned. From one cut's times it cannot tell that from 30 ms
    that any run would take more, with which the two cuts seem about as good.
    """
    late = Course(CUT, 0, None, (0.010, 0.005), (Leg(4_000, 100),), math.inf)
    early = Course(b"e" * 32, 0, None, (0.001, 0.007), (Leg(16_000, 100),), math.inf)
    a = Asker(
        (late, early),
        Local(0.4),
        LINK,
        settings=AskerSettings(choice=ChoiceSettings(try_after=16 if tries else 1024)),
    )
    a.handle(UpperBack(), 0)
    a.handle(CutOpened(late.cut), MS)
    a.handle(CutOpened(early.cut), MS)
    now, taken, used = 2 * MS, 0, []
    for ticket in range(200):
        (run,) = [e for e in a.handle(Requested(ticket, now + SECOND), now) if isinstance(e, Run)]
        used.append(late if run.cut == late.cut else early)
        now += 40 * MS if used[-1] is late else 4 * MS
        (asked,) = [e for e in a.handle(RunFinished(run.run), now) if isinstance(e, SendRequest)]
        taken += used[-1].legs[0].up
        now += used[-1].legs[0].up * SECOND // 1_000_000 + 5 * MS
        a.handle(Taken(taken, 0, now), now)
        now += 10 * MS
        assert Answer in kinds(a.handle(ReplyReceived(asked.ticket, 5 * MS), now))
    assert used[0] is late
    assert all(one is (early if tries else late) for one in used[150:])


def test_time_must_not_fall():
    a = ready()
    with pytest.raises(AssertionError):
        a.handle(Requested(1, SECOND), 0)
