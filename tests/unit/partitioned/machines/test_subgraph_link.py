"""What is believed of a link, and which cut is chosen for it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from delian.core.placement.subgraphs.machines.cut_choice import (
    ChoiceSettings,
    Chooser,
    off_plan,
    predicted_s,
)
from delian.core.placement.subgraphs.machines.link_estimate import Estimator
from delian.core.placement.subgraphs.machines.part_ports import Course, Leg, Link, Taken
from delian.core.placement.subgraphs.machines.time_model import (
    HALF_ABOVE_NS,
    OVERHEAD_ABOVE_S,
    Drift,
)
from delian.core.protocol.ports import MS, SECOND
from hypothesis import given
from hypothesis import strategies as st


def stream(estimator, rate, seconds, now=0, chunk=16_000, waiting=10**9):
    """A busy link of `rate` bytes a second, acknowledged chunk by chunk."""
    estimator.sent(waiting, now)
    taken, end = estimator.taken, now + round(seconds * SECOND)
    while now < end:
        now += round(chunk / rate * SECOND)
        taken += chunk
        estimator.take(Taken(taken, waiting, now), now)
    return now


def test_the_bandwidth_of_a_busy_link_is_found_and_followed_down_and_up():
    estimator = Estimator(Link(1e6, 1e6, 0.01))
    now = stream(estimator, 2e6, 1.0)
    assert estimator.link(now).up == pytest.approx(2e6, rel=0.02)
    now = stream(estimator, 2e5, 1.0, now)
    assert estimator.link(now).up == pytest.approx(2e5, rel=0.1)
    now = stream(estimator, 2e6, 0.2, now)
    assert estimator.link(now).up == pytest.approx(2e6, rel=0.1)


def test_silence_on_a_busy_link_bounds_what_it_can_be():
    estimator = Estimator(Link(1e6, 1e6, 0.0))
    now = stream(estimator, 1e6, 0.5)
    assert estimator.link(now + 10 * MS).up == pytest.approx(1e6, rel=0.05)
    assert estimator.link(now + 164 * MS).up == pytest.approx(1e5, rel=0.01)


def test_silence_on_an_idle_link_says_nothing():
    estimator = Estimator(Link(1e6, 1e6, 0.0))
    estimator.sent(1000, 0)
    estimator.take(Taken(1000, 0, MS), MS)
    assert estimator.link(3600 * SECOND).up == pytest.approx(1e6)


def test_acknowledgements_out_of_order_are_ignored():
    estimator = Estimator(Link(1e6, 1e6, 0.0))
    stream(estimator, 1e6, 0.2)
    before = (estimator.taken, estimator.waiting)
    estimator.take(Taken(16_000, 5, 0), SECOND)
    assert (estimator.taken, estimator.waiting) == before


def test_round_trips_are_a_median():
    estimator = Estimator(Link(1e6, 1e6, 0.05))
    assert estimator.latency_s() == 0.05
    for seconds in (0.01, 0.01, 5.0, 0.012, 0.011):
        estimator.round_trip(seconds, 0)
    assert estimator.latency_s() == pytest.approx(0.0055)


def test_probes_find_a_link_ten_times_as_fast_in_a_few_round_trips():
    estimator, rate, round_trip = Estimator(Link(1e5, 1e5, 0.01)), 1e6, 0.02
    estimator.round_trip(round_trip, 0)
    probes = 1
    while estimator.padded(n := estimator.padding(), round_trip + n / rate, 0):
        probes += 1
    assert probes <= 5
    assert estimator.link(0).up == pytest.approx(rate, rel=0.15)


def test_a_reply_that_arrives_in_pieces_tells_the_bandwidth_downwards():
    estimator = Estimator(Link(1e6, 1e6, 0.0))
    for k in range(1, 30):
        estimator.arriving(1, 20_000 * k, 100 * MS * k)
    assert estimator.link(3 * SECOND).down == pytest.approx(2e5, rel=0.05)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-(10**9), 10**9)),
        max_size=60,
    )
)
def test_whatever_is_acknowledged_the_estimate_is_a_positive_finite_number(events):
    estimator, now = Estimator(Link(1e6, 1e6, 0.01)), 0
    for sent, taken, at in events:
        now += abs(at) % SECOND
        estimator.sent(sent, now)
        estimator.take(Taken(taken, sent, at), now)
        link = estimator.link(now)
        assert 0 < link.up < 1e13 and 0 < link.down < 1e13


# ---------------------------------------------------------------- times


def fitted(*pairs, drift=None):
    drift = drift or Drift()
    for predicted, took in pairs:
        drift.measured(predicted, took, 0)
    return drift


def test_without_measurements_times_are_as_predicted():
    assert fitted().fit(0) == (0.0, 1.0)
    assert fitted((0.1, 0.1)).seconds(0.3, 0) == pytest.approx(0.3)


def test_a_tiny_part_that_took_long_does_not_make_the_whole_program_long():
    drift = fitted(*[(0.0008, 0.010)] * 20)
    assert drift.seconds(0.0008, 0) == pytest.approx(0.010, rel=0.05)
    assert drift.seconds(0.2, 0) == pytest.approx(0.21, rel=0.05)


def test_a_node_that_is_slow_at_everything_is_expected_to_be():
    drift = fitted(*[(0.2, 0.4)] * 20)
    assert drift.seconds(0.4, 0) == pytest.approx(0.8, rel=0.05)


def test_overhead_and_ratio_are_told_apart_by_runs_of_different_lengths():
    drift = fitted(*[(p, 0.01 + 1.5 * p) for p in (0.01, 0.05, 0.2)] * 20)
    assert drift.fit(0) == (pytest.approx(0.01, rel=0.15), pytest.approx(1.5, rel=0.03))


def test_what_was_measured_above_is_forgotten():
    drift = fitted(*[(0.02, 0.4)] * 5, drift=Drift(OVERHEAD_ABOVE_S, HALF_ABOVE_NS))
    assert drift.seconds(0.02, 0) > 0.35
    assert drift.seconds(0.02, 90 * SECOND) == pytest.approx(0.02, rel=0.2)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(0, SECOND)), max_size=40),
    st.floats(0, 100),
)
def test_whatever_was_measured_something_finite_is_expected(measurements, predicted):
    drift, now = Drift(OVERHEAD_ABOVE_S, HALF_ABOVE_NS), 0
    for one, took, later in measurements:
        now += later
        drift.measured(one, took, now)
    assert 0 <= drift.seconds(predicted, now) < 6000


# ---------------------------------------------------------------- the choice

HOME = Course(b"h", None, None, (0.3,), (), 0.0)
LITTLE = Course(b"l", 0, None, (0.15, 0.01), (Leg(10_000, 100),), 0.0)
MUCH = Course(b"m", 0, None, (0.02, 0.02), (Leg(100_000, 100),), 0.0)
COURSES = (HOME, LITTLE, MUCH)


def choose(chooser, up, now, latency=0.01, above=1.0):
    link = Link(up, up, latency)
    return chooser.consider(lambda c: True, lambda c: seconds(c, link, above), now)


def seconds(course, link, above=1.0, throughput=False):
    """As the plan says, but for what is above."""
    rest = sum(course.seconds[1:]) * above
    return predicted_s(course, link, course.seconds[0], rest, throughput)


def test_each_piece_of_bandwidth_has_its_cut():
    for up, cut in ((2e4, HOME), (2e5, LITTLE), (2e6, MUCH)):
        chooser = Chooser(COURSES, ChoiceSettings())
        choose(chooser, up, 0)
        assert chooser.current is cut


def test_latency_alone_can_keep_everything_here():
    chooser = Chooser(COURSES, ChoiceSettings())
    choose(chooser, 2e6, 0, latency=0.2)
    assert chooser.current is HOME


def test_a_tier_above_that_is_overloaded_is_left():
    chooser = Chooser(COURSES, ChoiceSettings())
    choose(chooser, 2e6, 0)
    choose(chooser, 2e6, 5 * SECOND, above=30.0)
    assert chooser.current is HOME


def test_a_small_gain_is_not_worth_a_switch():
    chooser = Chooser(COURSES, ChoiceSettings(gain=0.1))
    choose(chooser, 2e5, 0)
    assert chooser.current is LITTLE
    # Where both take the same: 0.16 + 1e4/b = 0.04 + 1e5/b.
    even = 9e4 / 0.12
    for k, up in enumerate(itertools.islice(itertools.cycle((0.95 * even, 1.1 * even)), 200)):
        assert choose(chooser, up, k * 10 * SECOND) is None


def test_a_cut_is_used_for_a_while_unless_another_is_far_better():
    chooser = Chooser(COURSES, ChoiceSettings(dwell_s=1.0))
    choose(chooser, 2e5, 0)
    assert choose(chooser, 1.2e6, 500 * MS) is None
    assert choose(chooser, 1.2e6, SECOND) is not None
    assert choose(chooser, 1e5, SECOND + MS) is not None, "a drop is not waited out"


def test_a_cut_that_is_about_as_fast_gets_a_request_now_and_then_ever_more_seldom():
    chooser = Chooser(COURSES, ChoiceSettings(try_after=16))
    choose(chooser, 2e5, 0)
    even, tried = 9e4 / 0.12, []
    for k in range(6000):
        assert choose(chooser, 1.05 * even, 2 * SECOND + k * MS) is None
        if chooser.next() is MUCH:
            tried.append(k)
    gaps = np.diff([-1, *tried])
    assert gaps.tolist() == [17, 33, 65, 129, 257, 513, 1025, 1025, 1025, 1025]
    choose(chooser, 1e7, 20 * SECOND)  # after a switch it begins anew
    assert chooser.current is MUCH
    choose(chooser, 0.95 * even, 22 * SECOND)
    assert [chooser.next() is LITTLE for _ in range(17)] == [False] * 16 + [True]


def test_a_cut_that_is_clearly_slower_or_planned_against_is_not_tried():
    for settings, up in (
        (ChoiceSettings(), 3e5),
        (ChoiceSettings(planned=True), 1.05 * 9e4 / 0.12),
    ):
        chooser = Chooser(COURSES, settings)
        choose(chooser, 2e5, 0)
        for k in range(40):
            choose(chooser, up, (5 + k) * SECOND)
            assert chooser.next() is chooser.current


def test_a_cut_that_went_away_is_not_tried():
    chooser = Chooser(COURSES, ChoiceSettings())
    choose(chooser, 2e5, 0)
    even = Link(1.05 * 9e4 / 0.12, 1e6, 0.01)
    chooser.consider(lambda c: c is not MUCH, lambda c: seconds(c, even), 9 * SECOND)
    assert [chooser.next() for _ in range(40)] == [LITTLE] * 40


def test_a_cut_that_cannot_be_used_any_more_is_left_at_once():
    chooser = Chooser(COURSES, ChoiceSettings())
    choose(chooser, 2e6, 0)
    link = Link(2e6, 2e6, 0.01)
    chooser.consider(lambda c: False, lambda c: seconds(c, link), MS)
    assert chooser.current is HOME


def test_for_a_stream_the_slowest_stage_counts():
    link = Link(1e6, 1e6, 1.0)
    assert seconds(MUCH, link, throughput=True) == pytest.approx(0.1)
    assert seconds(MUCH, link) == pytest.approx(0.04 + 0.1 + 0.0001 + 2.0)


def test_how_to_choose_follows_from_the_plan_s_objective():
    assert ChoiceSettings.of("latency") == ChoiceSettings()
    assert ChoiceSettings.of("throughput") == ChoiceSettings(throughput=True)
    assert ChoiceSettings.of("energy") == ChoiceSettings(planned=True)
    assert ChoiceSettings.of("0.7*latency+0.3*throughput") == ChoiceSettings(planned=True)


def test_a_plan_for_energy_is_followed_by_its_pieces_and_not_by_time():
    cuts = (
        replace(HOME, pieces=((0.0, 1e5), (1e6, 1e7))),
        replace(LITTLE, pieces=((1e5, 1e6),)),
        replace(MUCH, pieces=()),
    )
    chooser, now, used = Chooser(cuts, ChoiceSettings(planned=True)), 0, []
    # Within 10% of a piece's end the cut stays.
    for up in (5e4, 1.05e5, 2e5, 0.95e5, 8e4, 2e5, 5e6, 1e9):
        link, now = Link(up, up, 0.01), now + 2 * SECOND
        chooser.consider(lambda c: True, lambda c, link=link: off_plan(c, link), now)
        used.append(chooser.current.cut)
    assert b"".join(used) == b"hhllhlhh"


@given(st.lists(st.floats(1e3, 1e8), min_size=1, max_size=100))
def test_however_the_link_jumps_there_is_one_switch_in_a_dwell_time_but_for_steep_ones(rates):
    chooser, last = Chooser(COURSES, ChoiceSettings(dwell_s=1.0)), None
    for k, up in enumerate(rates):
        now = k * 300 * MS
        before = chooser.current
        if choose(chooser, up, now) is not None:
            link = Link(up, up, 0.01)
            slow = seconds(before, link)
            fast = seconds(chooser.current, link)
            assert fast <= 0.9 * slow
            assert last is None or now - last >= SECOND or 2 * fast < slow
            last = now
