"""Devices, edges and a cloud with a cut model, under seeded weather: what must always hold."""

from __future__ import annotations

import math
import random

import pytest
from delian.core.placement.subgraphs.machines.asker import AskerSettings
from delian.core.placement.subgraphs.machines.part_ports import Course, Failure, Leg, Link, Work
from delian.core.placement.subgraphs.machines.part_server import ServerSettings
from delian.core.placement.subgraphs.machines.request_table import Local
from delian.core.protocol.ports import MS, SECOND
from delian.core.protocol.random_streams import Streams
from delian.simulations.placement.cut_links import Faults
from delian.simulations.placement.cut_world import Outage, Setup, World
from delian.simulations.placement.links_over_time import MBPS, MOBILES, LinkTrace, constant, mobile

WHOLE = 0.3


def course(number, seconds, up, rest=math.inf):
    before = 0 if seconds[0] else None
    return Course(bytes([number]) * 32, before, None, seconds, tuple(Leg(b, 100) for b in up), rest)


HOME = course(1, (WHOLE,), ())
LITTLE = course(2, (0.12, 0.01), (12_000,), 0.18)
MUCH = course(3, (0.03, 0.02), (60_000,), 0.27)
ALL = course(4, (0.0, 0.03), (150_528,))
COURSES = (HOME, LITTLE, MUCH, ALL)


def steady(count, every_s, start_s=1.0):
    return tuple(round((start_s + k * every_s) * SECOND) for k in range(count))


def world(traces, requests, seed=1, courses=COURSES, local=None, edges=1, **settings):
    local = local or Local(WHOLE)
    edge_links = tuple(constant(1000, 5) for _ in range(edges))
    nominal = Link(1e6, 1e6, 0.01)
    w = World(Setup(courses, local, traces, edge_links, requests, nominal, **settings), seed)
    w.run()
    return w


def seconds(served):
    return (served.answered - served.asked) / SECOND


def stepped(*mbps, hold_s):
    starts = tuple(round(k * hold_s * SECOND) for k in range(len(mbps)))
    up = tuple(m * MBPS for m in mbps)
    latency = (5 * MS,) * len(mbps)
    return LinkTrace(starts, up, up, latency, round(len(mbps) * hold_s * SECOND))


# ---------------------------------------------------------------- one device, known weather


def test_the_cut_follows_a_tenfold_drop_and_rise_within_two_seconds_and_no_request_is_lost():
    w = world((stepped(18.88, 1.888, 18.88, hold_s=40),), (steady(300, 0.4),))
    assert all(s.answers == 1 and s.by is Work.PART for s in w.served)
    after_drop = [s for s in w.switches if 40 * SECOND <= s.at < 80 * SECOND]
    after_rise = [s for s in w.switches if s.at >= 80 * SECOND]
    assert [(s.before, s.after) for s in after_drop] == [(MUCH.cut, LITTLE.cut)]
    assert [(s.before, s.after) for s in after_rise] == [(LITTLE.cut, MUCH.cut)]
    assert after_drop[0].at - 40 * SECOND < 2 * SECOND
    assert after_rise[0].at - 80 * SECOND < 2 * SECOND
    latencies = sorted(map(seconds, w.served))
    assert latencies[len(latencies) * 99 // 100] < WHOLE


def test_a_device_that_runs_alone_notices_within_two_seconds_that_its_link_is_good_again():
    w = world((stepped(18.88, 0.1, 18.88, hold_s=20),), (steady(140, 0.4),))
    alone = [s for s in w.switches if 20 * SECOND <= s.at < 40 * SECOND]
    assert alone[-1].after == HOME.cut
    back = next(s for s in w.switches if s.at >= 40 * SECOND)
    assert back.after != HOME.cut and back.at < 42 * SECOND


def test_requests_under_way_at_a_switch_end_on_the_cut_with_which_they_began():
    # One after the other without a pause, so that there is always one under way.
    w = world((stepped(18.88, 2.5, hold_s=3),), (steady(150, 0.1),))
    assert len(w.switches) > 3
    assert all(s.answers == 1 and not s.fallback for s in w.served)


def test_noise_alone_does_not_make_the_cut_flap():
    w = world((constant(6.0, 10),), (steady(300, 0.3),), noise=0.2)
    assert len(w.switches) <= 3


def test_a_constant_link_at_a_breakpoint_does_not_make_the_cut_flap():
    # Where LITTLE and MUCH take the same: 0.13 + 12000/b = 0.05 + 60000/b.
    even = 48_000 / 0.08 / MBPS
    w = world((constant(even, 5),), (steady(300, 0.3),), noise=0.05)
    assert len(w.switches) <= 3


def test_when_the_edge_dies_in_the_middle_of_a_stream_every_request_is_answered():
    outage = Outage(1, 0, 10.3, 15.0)
    w = world((constant(18.88, 5),), (steady(100, 0.2),), outages=(outage,))
    assert all(s.answers == 1 and s.failure is None for s in w.served)
    away = [s for s in w.served if 10.6 * SECOND < s.asked < 14 * SECOND]
    assert away and all(s.by is not Work.PART or s.cut == HOME.cut for s in away)
    again = [s for s in w.served if s.asked > 18 * SECOND]
    assert again and all(s.cut == MUCH.cut and not s.fallback for s in again)
    assert all(seconds(s) < WHOLE for s in again)


def test_a_smaller_program_answers_when_the_whole_would_be_late():
    outage = Outage(1, 0, 5.05, 60.0)
    w = world(
        (constant(18.88, 5),),
        (steady(40, 0.2),),
        local=Local(WHOLE, 0.05),
        outages=(outage,),
        deadline_s=0.25,
        courses=(LITTLE, MUCH),
    )
    assert all(s.answers == 1 and s.failure is None for s in w.served)
    assert any(s.by is Work.SMALLER for s in w.served)


def test_an_edge_runs_the_rest_when_the_cloud_goes():
    through = course(5, (0.01, 0.02, 0.03), (20_000, 5_000))
    outage = Outage(2, 0, 5.0, 10.0)
    w = world(
        (constant(18.88, 5),),
        (steady(60, 0.25),),
        courses=(HOME, through),
        outages=(outage,),
        edge_rest=3.0,
        beyond=(Link(1e8, 1e8, 0.005),),
    )
    assert all(s.answers == 1 for s in w.served)
    away = [s for s in w.served if 5.5 * SECOND < s.asked < 9.5 * SECOND]
    assert away and all(s.by is Work.PART and s.cut == through.cut for s in away)


def test_a_slow_link_between_edge_and_cloud_moves_the_device_s_cut_away_and_back():
    through = course(5, (0.01, 0.02, 0.005), (20_000, 40_000))
    at_edge = course(6, (0.01, 0.09), (20_000,))
    requests = steady(250, 0.2)
    setup = Setup(
        (HOME, through, at_edge),
        Local(WHOLE),
        (constant(50, 5),),
        (stepped(100, 1.5, 100, hold_s=15),),
        (requests,),
        Link(1e6, 1e6, 0.01),
        beyond=(Link(1e7, 1e7, 0.005),),
    )
    w = World(setup, 1)
    w.run()
    assert all(s.answers == 1 and s.failure is None for s in w.served)

    def cuts(begin_s, end_s):
        return {s.cut for s in w.served if begin_s * SECOND < s.asked < end_s * SECOND}

    assert cuts(3, 14) == {through.cut}
    assert cuts(18, 29) == {at_edge.cut}
    assert cuts(35, 44) == {through.cut}


def test_several_requests_under_way_answer_more_of_a_stream():
    # 100 ms on the device, 100 ms on the link, 50 ms above: ten a second, if they overlap.
    courses = (course(1, (5.0,), ()), course(2, (0.1, 0.05), (100_000,)))
    requests = (steady(60, 0.105),)

    def last(under_way):
        settings = AskerSettings(under_way=under_way)
        w = world(
            (constant(8, 1),), requests, courses=courses, local=Local(5.0), asker=settings,
            deadline_s=60.0, noise=0.0,
        )  # fmt: skip
        assert all(s.answers == 1 and s.answered for s in w.served)
        return max(s.answered for s in w.served) / SECOND

    assert last(4) < 1 + 60 * 0.105 + 1.0
    assert last(1) > 1 + 60 * 0.25


def test_an_edge_batches_the_requests_of_many_devices():
    traces = tuple(constant(100, 2) for _ in range(24))
    courses = (course(1, (0.5,), ()), course(2, (0.005, 0.03), (5_000,), 0.4))
    requests = tuple(steady(20, 0.1, start_s=1.0 + d * 1e-3) for d in range(24))
    w = world(traces, requests, courses=courses, local=Local(0.5), alike=0.95)
    assert all(s.answers == 1 for s in w.served)
    assert max(w.edges[0].batches) > 4


def test_an_edge_with_too_much_to_do_is_left_by_some_and_no_request_is_lost():
    traces = tuple(constant(100, 2) for _ in range(12))
    courses = (course(1, (0.2,), ()), course(2, (0.005, 0.05), (5_000,), 0.19))
    requests = tuple(steady(60, 0.25, start_s=1.0 + d * 1e-3) for d in range(12))
    w = world(traces, requests, courses=courses, local=Local(0.2), alike=0.0)
    assert all(s.answers == 1 and s.failure is None for s in w.served)
    assert any(s.cut == courses[0].cut for s in w.served)
    assert any(s.cut == courses[1].cut and not s.fallback for s in w.served)


def test_the_same_seed_gives_the_same_world_and_another_seed_another():
    def run(seed):
        trace = mobile("wifi", Streams(seed), 0, 30.0)
        return world((trace,), (steady(40, 0.5),), seed=seed).trace()

    assert run(3) == run(3)
    assert run(3) != run(4)


# ---------------------------------------------------------------- any weather


def weather(seed):
    """A world with everything that can go wrong, drawn from the seed."""
    r = random.Random(seed)
    tiers, whole, span = r.choice([1, 2]), r.choice([0.05, 0.3]), 10.0
    courses = [course(1, (whole,), ())]
    for number in range(2, 3 + r.randint(0, 3)):
        share = r.random() * 0.8
        times = [share * whole if r.random() < 0.8 else 0.0]
        times += [r.random() * 0.05 for _ in range(tiers)]
        if tiers == 2 and r.random() < 0.3:
            times[1] = 0.0
        up = [r.choice([500, 5_000, 50_000, 200_000]) for _ in range(tiers)]
        rest = r.choice([whole * (1 - share), math.inf])
        courses.append(course(number, tuple(times), up, rest))
    local = Local(whole if r.random() < 0.9 else math.inf, r.choice([math.inf, whole / 4]))
    if local.whole == math.inf:
        courses = courses[1:]
    devices, edges = r.randint(1, 4), r.randint(1, 2)
    begins = [(r.random() * span, r.choice([0.05, 1.0, 4.0])) for _ in range(r.randint(0, 5))]
    setup = Setup(
        courses=tuple(courses),
        local=local,
        device_links=tuple(
            mobile(r.choice(list(MOBILES)), Streams(seed), d, span) for d in range(devices)
        ),
        edge_links=tuple(
            constant(r.choice([5, 100, 1000]), r.choice([1, 20])) for _ in range(edges)
        ),
        requests=tuple(
            tuple(sorted(round(r.random() * span * SECOND) for _ in range(r.choice([5, 25, 70]))))
            for _ in range(devices)
        ),
        nominal=Link(1e6, 1e6, 0.02),
        deadline_s=r.choice([0.1, 0.5, 2.0]),
        noise=r.choice([0.0, 0.1, 0.5]),
        edge_rest=r.choice([3.0, math.inf]),
        outages=tuple(Outage(r.choice([1, 2]), r.randrange(2), t, t + d) for t, d in begins),
        faults=Faults(r.choice([0.0, 0.1]), r.choice([0.0, 0.2])),
        asker=AskerSettings(under_way=r.choice([1, 2, 8]), waiting=r.choice([0, 3, 500])),
        server=ServerSettings(
            lanes=r.choice([1, 4, 16]),
            wait_ns=r.choice([0, 5 * MS]),
            workers=r.choice([1, 2]),
            requests=r.choice([2, 1024]),
            requests_per_peer=r.choice([1, 64]),
            cuts=r.choice([1, 256]),
            cuts_per_peer=r.choice([1, 64]),
        ),
    )
    return World(setup, seed)


def check(w):
    w.run()
    local, line = w.setup.local, w.setup.asker
    for served in w.served:
        assert served.answers == 1, served
        if local.whole < math.inf and served.failure is not None:
            assert served.failure is Failure.BUSY, served
        if served.answered is not None and local.whole < math.inf:
            # At worst all that may be in line before it was run here, each twice (a part in vain).
            most = 2 * (line.under_way + min(line.waiting, 70) + 1) * local.whole
            slow = 1 + 6 * w.setup.noise
            assert served.answered <= served.deadline + most * slow * SECOND, served
    # Whoever is above has settled everything too, soon after.
    end = w.schedule.now + 30 * SECOND
    while len(w.schedule) and w.schedule.now < end:
        w.schedule.pop()[1]()
    nodes = [*w.edges, *([w.cloud] if w.cloud is not None else [])]
    assert not any(len(node.machine) for node in (*w.devices, *nodes) if node.alive)


@pytest.mark.parametrize("seed", range(14))
def test_in_any_weather_each_request_is_answered_once_and_nothing_is_left(seed):
    check(weather(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_in_much_weather_each_request_is_answered_once_and_nothing_is_left(block):
    for seed in range(100 + 25 * block, 125 + 25 * block):
        check(weather(seed))
