"""Edges that send sums which cannot be: what becomes of the attempt, of the edge and of its
devices.
"""

from __future__ import annotations

import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.edge_sums import BARRED_MAX, REFUSALS_MAX
from delian.core.protocol.ports import SECOND
from delian.core.wire.round_pb2 import PROGRAM_FAILED, DeviceFailure
from support import secure_bench as _secure

_bench = _secure._bench
vector = _bench.vector
HERE, THERE = [10, 11, 12, 13], [20, 21, 22, 23]
#: Four devices of eight are asked, and both edges may have them all.
PLAIN = {"cohort": 4, "over_selection": 1.0, "reports_min": 1, "rounds": 20, "attempts_max": 20}


class Bench(_bench.Bench):
    """Rounds in which edge 1 says what it is told to, and edge 2 is honest."""

    def __init__(self, *arguments, **changes):
        super().__init__(*arguments, **{**PLAIN, **changes})
        self.aside = []

    def does(self, event, after=0):
        super().does(event, after)
        self.aside += self.records("edge_set_aside")
        return self

    def begun(self):
        self.started()
        self.fires("rest", after=self.timer("rest") - self.now)
        return self.back()

    def back(self):
        return self.hello(1, HERE).hello(2, THERE)

    def round(self, **lies):
        """A round whose devices all answer. lies: of edge 1's sum, if it has one."""
        for number, devices in sorted(self.selected.items()):
            sent = {d: vector(1, 2, 3) for d in devices}
            self.sum(number, sent, at=self.at, **(lies if number == 1 else {}))
        if self.phase is Phase.AGGREGATING:
            self.updated()
        self.back()
        return self.fires("rest", after=5 * SECOND)

    def until(self, wanted, **lies):
        """Rounds until so many of edge 1's sums have been lies."""
        told = 0
        while told < wanted:
            told += 1 in self.selected
            self.round(**lies)
        return self


def test_an_edge_whose_sums_do_not_fit_is_set_aside_after_a_few_in_a_row():
    bench = Bench().begun().until(REFUSALS_MAX - 1, count=9)
    assert not bench.aside
    bench.until(1, count=9)
    assert bench.aside == [{"run": 1, "edge": 1}]
    for _ in range(5):
        assert 1 not in bench.selected
        bench.round()


def test_one_sum_that_fits_is_enough_to_begin_anew():
    bench = Bench().begun()
    for _ in range(3):
        bench.until(REFUSALS_MAX - 1, count=9).until(1)
    assert not bench.aside and not bench.state.refused


def test_where_there_are_no_others_it_is_asked_again_and_a_good_sum_puts_it_back():
    bench = Bench().begun().until(REFUSALS_MAX, count=9)
    bench.sum(2, {d: vector(1, 2, 3) for d in bench.selected[2]}, at=bench.at).updated()
    bench.hello(1, HERE).hello(2, []).fires("rest", after=5 * SECOND)
    assert list(bench.selected) == [1], "nobody else is there"
    bench.until(1)
    assert not bench.state.refused


def test_it_is_set_aside_also_after_a_restart():
    bench = Bench().begun().until(REFUSALS_MAX, count=9).again()
    for _ in range(3):
        assert 1 not in bench.selected
        bench.round()


def test_waves_set_an_edge_aside_too():
    bench = _bench.Bench(**{**_bench.WAVES, "attempts_max": 30}).started()
    seen = []
    for _ in range(12):
        bench.hello(1, HERE).hello(2, THERE)
        bench.fires("rest", after=5 * SECOND)
        for wave in list(bench.state.open):
            if 1 in wave.shares and wave.owes(1):
                seen.append(wave)
                at = (wave.round, wave.attempt)
                bench.sum(1, {d: vector(1, 1, 1) for d in wave.shares[1].devices}, at=at, count=9)
                if bench.records("edge_set_aside"):
                    assert len(seen) == REFUSALS_MAX
                    return
    pytest.fail("it was not set aside")


class Masked(_secure.SecureBench):
    """A cohort of eight, two of whom are behind edge 1."""

    def __init__(self, *arguments, **changes):
        wanted = {"cohort": 8, "over_selection": 1.0, "reports_min": 3, "attempts_max": 20}
        super().__init__(*arguments, **{**wanted, **changes})

    def collecting(self):
        self.started()
        self.fires("rest", after=self.timer("rest") - self.now)
        self.hello(1, [10, 11]).hello(2, [20, 21, 22, 23, 24, 25])
        self.one, self.two = self.selected[1], self.selected[2]
        return self.speak()

    @property
    def judge(self):
        return self.machine.runs.machine_of(self.state).run.sums

    def with_early(self):
        """Device 11, alone at its edge with one that fails, uploads before anybody can mask."""
        self.mute.add(11)
        self.collecting()
        failed = DeviceFailure(device=10, reason=PROGRAM_FAILED)
        self.sum(1, {11: self.vector_of(11)}, at=(1, 1), failures=[failed])
        self.refusals = self.records("refused_sum")
        self.fires("session/1/1", after=25 * SECOND).speak()
        updates = {d: self.masked(d, self.vector_of(d)) for d in self.two}
        return self.sum(2, updates, at=(1, 1)).speak()

    def with_stranger(self):
        """Device 11 gives no keys, and uploads all the same; its edge cannot know."""
        self.mute.add(11)
        self.collecting()
        self.fires("session/1/1", after=25 * SECOND).speak()
        self.sum(1, {10: self.masked(10, self.vector_of(10)), 11: self.vector_of(11)}, at=(1, 1))
        self.refusals = self.records("refused_sum")
        updates = {d: self.masked(d, self.vector_of(d)) for d in self.two}
        return self.sum(2, updates, at=(1, 1)).speak()


def test_a_device_that_uploads_out_of_turn_costs_its_edge_s_sum_and_no_other_one_s():
    bench = Masked().with_stranger()
    assert bench.refusals == [{"edge": 1, "strangers": [11]}]
    assert bench.judge.eligible({10: 1, 11: 1}) == [10], "nor does it come again"
    assert len(bench.programs) == 1, "the others' sum is opened"
    bench.opened()
    assert bench.phase is Phase.AGGREGATING
    assert sorted(bench.state.open[0].unused) == [20, 21, 22, 23, 24, 25]
    total = sum(bench.vector_of(d).astype("u8") for d in bench.state.open[0].unused)
    assert (bench.total == total.astype("u4")).all()


def test_an_edge_that_names_devices_of_another_as_its_own_bars_none_of_them():
    bench = Masked().with_stranger()
    judge = bench.judge
    assert judge.eligible({11: 2, 20: 2}) == [11, 20] and not bench.state.barred
    judge.suspect([11, 20], 2)
    assert bench.state.barred == [11], "two edges say so of it"
    assert judge.eligible({11: 3, 20: 3}) == [20] and judge.eligible({20: 2}) == []


def test_the_devices_that_a_run_doubts_are_a_limited_number():
    bench = Masked().collecting()
    for device in range(3 * BARRED_MAX):
        bench.judge.suspect([device], 1)
    assert list(bench.state.doubted) == list(range(2 * BARRED_MAX, 3 * BARRED_MAX))


def test_one_that_uploads_before_anybody_can_mask_costs_the_others_nothing_either():
    bench = Masked().with_early()
    assert bench.refusals == [{"edge": 1, "strangers": []}]
    assert not bench.state.refused and not bench.state.barred, "its edge could not know"
    assert len(bench.programs) == 1, "the others' sum is opened"
    bench.opened()
    assert bench.phase is Phase.AGGREGATING
    assert sorted(bench.state.open[0].unused) == [20, 21, 22, 23, 24, 25]


def test_no_device_has_an_honest_edge_set_aside():
    bench = Masked().with_stranger()
    assert not bench.state.refused


def test_who_makes_strangers_up_that_it_was_not_given_is_not_excused_by_them():
    bench = Masked().collecting()
    sent = {d: bench.masked(d, bench.vector_of(d)) for d in bench.one}
    bench.sum(1, {**sent, 99: bench.vector_of(99)}, at=(1, 1))
    assert bench.state.refused == {1: 1} and not bench.state.barred
