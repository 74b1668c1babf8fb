"""Masked rounds in which somebody says what is not true, or speaks where it has no part."""

from __future__ import annotations

import pytest
from delian.cloud.protocol import edge_sums
from delian.cloud.protocol.coordinator_state import Phase
from delian.core.protocol.ports import SECOND
from delian.core.wire.round_pb2 import RoundClosed
from delian.core.wire.secure_pb2 import Cohort, Consent, KeyBundle, SealedShares, UnmaskShares
from support import secure_bench as _bench

Bench, everybody = _bench.EightBench, _bench.everybody


class TestStrangers:
    def test_a_word_of_a_session_that_is_over_is_answered_so(self):
        bench = Bench().unmasking().opened()
        for kind in (KeyBundle, SealedShares, Consent, UnmaskShares):
            word = kind(run=1, round=1, attempt=1, device=10)
            (answer,) = bench.hears(2, word).said(2)
            assert isinstance(answer, RoundClosed) and answer.device == 10

    def test_of_a_run_that_is_over_too(self):
        bench = Bench().collecting().orders("cancel")
        (answer,) = bench.hears(2, Consent(run=1, round=1, attempt=1, device=10)).said(2)
        assert isinstance(answer, RoundClosed) and answer.device == 10
        assert not bench.machine.changed

    def test_nobody_speaks_for_another_device(self):
        bench = Bench()
        bench.mute.add(10)
        bench.collecting()
        forged = KeyBundle()
        forged.CopyFrom(bench.crew[1, 1, 11].state.bundle)
        forged.device = 10
        bench.hears(1, forged)
        assert bench.state.open[0].session.server.refused == {"signature": 1}

    def test_who_is_not_asked_is_told_that_it_has_no_part(self):
        bench = Bench().collecting()
        (answer,) = bench.hears(1, KeyBundle(run=1, round=1, attempt=1, device=99)).said(1)
        assert isinstance(answer, Cohort) and not answer.leaves and answer.device == 99


class TestSpoilers:
    def spoilt(self):
        """Device 11 gives no keys, and uploads all the same."""
        bench = Bench(over_selection=1.0)
        bench.mute.add(11)
        bench.collecting()
        assert 11 in everybody(bench)
        bench.fires("session/1/1", after=25 * SECOND).speak()
        for number, devices in ((1, bench.one), (2, bench.two)):
            updates = {d: bench.masked(d, bench.vector_of(d)) for d in devices if d != 11}
            if number == 1:
                updates[11] = bench.vector_of(11)
            bench.sum(number, updates, at=(1, 1))
        return bench

    def test_a_sum_with_a_stranger_in_it_is_never_opened(self):
        bench = self.spoilt()
        assert "must give shares" in bench.facts()["why"], "of the other edge's alone"
        assert not bench.programs and bench.state.doubted == {11: 1}

    def test_it_is_not_selected_again_where_there_are_others(self):
        bench = self.spoilt().rested()
        assert bench.at == (1, 2) and len(bench.state.open[0].selected()) == 6
        assert 11 not in bench.state.open[0].selected()

    def sealed_badly(self, *devices, through=None):
        """What these seal for their neighbours opens for none of them. through: by which edge it
        comes, where that is not their own.
        """

        class Spoilt(Bench):
            def _told(self, message, edge):
                said = super()._told(message, edge)
                for _, word in said:
                    if isinstance(word, SealedShares) and word.device in devices:
                        for share in word.shares:
                            share.sealed = bytes(len(share.sealed))
                return said

        bench = Spoilt()
        bench.elsewhere.update(dict.fromkeys(devices, through) if through else {})
        return bench.unmasking()

    def test_whose_shares_open_for_nobody_ends_the_attempt_at_once_and_is_not_selected_again(self):
        bench = self.sealed_badly(11)
        assert not bench.programs and "masks of device 11 cannot" in bench.facts()["why"]
        assert bench.phase is Phase.WAITING, "nobody is waited for who has nothing more to say"
        assert bench.state.barred == [11]

    def test_an_edge_that_makes_up_shares_of_another_one_s_device_has_it_not_barred(self):
        bench = self.sealed_badly(11, through=2)
        assert 11 in bench.one and "masks of device 11 cannot" in bench.facts()["why"]
        assert not bench.state.barred

    @pytest.mark.parametrize("edge", [1, 2])
    def test_an_edge_that_makes_up_what_its_devices_hold_has_no_other_one_s_barred(self, edge):
        bench = Bench().collecting()
        bench.mute.update(everybody(bench))
        bench.sums()
        theirs = bench.one if edge == 1 else bench.two
        bench.mute.clear()

        def told(message, at, honest=bench._told):
            said = honest(message, at)
            for _, word in said:
                if isinstance(word, UnmaskShares) and word.device in theirs:
                    del word.shares[1:]
            return said

        bench._told = told
        bench.fires("session/1/1", after=5 * SECOND).speak()
        assert not bench.programs and bench.state.attempt == 2
        assert not set(bench.state.barred).difference(theirs)

    def test_neighbours_who_keep_a_share_to_themselves_bar_nobody(self):
        bench = Bench().collecting()
        bench.mute.update([10, 11])  # of eight: six are enough
        bench.sums().speak()
        assert bench.programs and not bench.state.barred

    def test_with_too_few_others_it_may_come_again(self):
        bench = self.spoilt()
        bench.hello(1, [10, 11, 12]).hello(2, [20, 21, 22]).fires("rest", after=5 * SECOND)
        assert 11 in bench.state.open[0].selected()

    def test_who_spoilt_a_sum_last_is_remembered_whatever_its_number(self, monkeypatch):
        monkeypatch.setattr(edge_sums, "BARRED_MAX", 3)
        bench = self.spoilt()
        machine = bench.machine.runs.machine_of(bench.state)
        for devices in ([2**40], [12], [11], [7, 5]):
            machine.run.sums.exclude(devices)
        assert bench.state.barred == [11, 5, 7], "11 was there twice: it counts from the last time"

    def test_a_crowd_with_high_numbers_is_kept_out_too(self):
        bench = self.spoilt()
        crowd = list(range(10**6, 10**6 + edge_sums.BARRED_MAX))
        bench.machine.runs.machine_of(bench.state).run.sums.exclude(crowd)
        assert bench.state.barred == crowd
