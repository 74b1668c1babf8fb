"""What devices use energy for, and what they may use: figures worked out by hand."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import SECOND
from delian.core.protocol.random_streams import Streams
from delian.simulations.federation.energy import Energy
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.federation.network import LinkProfile
from delian.simulations.report.report import summarise
from delian.simulations.runs.compiled_training import training_cost
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.stage import stage_of
from delian.simulations.scenario.datasets import load_data
from delian.simulations.scenario.device_classes import CLASSES, DeviceClass
from delian.simulations.scenario.federation_plan import FederationPlan
from delian.simulations.scenario.scenario_file import load, override
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=100)
#: 2e9 operations a second, and 4e9 a joule.
STEADY = DeviceClass(
    speed_flops=2e9,
    speed_sigma=0.0,
    load_sigma=0.0,
    startup_s=0.0,
    gflops_per_watt=4.0,
    radio_uj_per_byte=5.0,
    idle_w=3.0,
)


def fleet(devices=8, **traits):
    kind = replace(STEADY, **traits)
    return Fleet(devices, 2, {"x": 1.0}, {"x": kind}, link=LinkProfile(latency_ms=10))


def run(fleet, rounds=2, flops=4e9, **changes):
    plan = FederationPlan.of(RING, fleet, rounds, **{"cohort": 4, "over_selection": 1.0, **changes})
    federation = Federation(plan, StubTraining(RING, flops=flops), seed=1)
    return federation.run(), federation._energy


class TestModel:
    def test_a_program_uses_its_operations_over_the_efficiency(self):
        energy, profile = Energy(fleet(), Streams(1)), fleet().profile(3, Streams(1))
        energy.begins(profile, 0, 2 * SECOND, 8e9)
        energy.ends(3, 2 * SECOND)
        assert energy.take() == {"compute": 2.0, "radio": 0.0, "idle": 0.0}
        assert energy.of(3) == 2.0 and energy.of(4) == 0.0
        assert energy.take()["compute"] == 0.0

    def test_one_that_is_stopped_uses_the_part_that_it_had_the_time_for(self):
        energy, profile = Energy(fleet(), Streams(1)), fleet().profile(3, Streams(1))
        energy.begins(profile, SECOND, 4 * SECOND, 8e9)
        energy.ends(3, 2 * SECOND)  # a quarter of 2 J
        energy.ends(3, 4 * SECOND)  # it is no longer at work
        assert energy.of(3) == 0.5

    def test_one_that_takes_no_time_is_stopped_at_once(self):
        energy, profile = Energy(fleet(), Streams(1)), fleet().profile(3, Streams(1))
        energy.begins(profile, SECOND, 0, 8e9)
        energy.ends(3, SECOND)
        assert energy.of(3) == 0.0

    def test_bytes_and_time_cost_what_the_class_says(self):
        energy, profile = Energy(fleet(), Streams(1)), fleet().profile(3, Streams(1))
        energy.moved(profile, 1000)  # 1,000 bytes at 5 uJ
        spent = energy.round_over({"selected": [2, 3], "opened_ns": SECOND}, 3 * SECOND)
        taken = energy.take()
        assert taken["radio"] == pytest.approx(0.005)
        assert taken["idle"] == 2 * 2.0 * 3.0 and not spent  # two devices, 2 s, 3 W
        assert energy.of(3) == pytest.approx(6.005)

    def test_a_battery_is_spent_once(self):
        energy = Energy(fleet(battery_j=7.0), Streams(1))
        fields = {"selected": [2], "opened_ns": 0}
        assert energy.round_over(fields, 2 * SECOND) == []
        assert energy.round_over(fields, SECOND) == [2]
        assert energy.round_over(fields, SECOND) == [] and energy.exhausted == {2}


class TestRounds:
    def test_a_round_costs_what_its_record_says_was_done(self):
        """Four devices train 4e9 operations at 4e9 a joule: 4 J a round."""
        result, energy = run(fleet())
        for r in result.rounds:
            sent = r.bytes["device_edge_up"] + r.bytes["device_edge_down"]
            seconds = (r.ended_ns - r.started_ns) / SECOND
            assert seconds > 2.0  # 4e9 operations at 2e9 a second
            assert r.joules["compute"] == pytest.approx(4 * 1.0)
            assert r.joules["radio"] == pytest.approx(sent * 5e-6)
            assert r.joules["idle"] == pytest.approx(4 * seconds * 3.0)
        total = sum(sum(r.joules.values()) for r in result.rounds)
        later = sum(energy.take().values())  # what was sent after the last record
        assert total + later == pytest.approx(sum(energy.of(d) for d in range(8)))

    def test_a_device_that_vanishes_has_used_less_than_its_training(self):
        fleet_ = replace(fleet(), dropout=1.0)
        result, _ = run(fleet_, rounds=1, attempts_max=1, timeout_ms=20_000)
        (r,) = result.rounds
        assert len(r.dropped) == 4 and 0.0 < r.joules["compute"] < 4.0

    def test_it_is_the_same_with_any_number_of_threads(self):
        plan = FederationPlan.of(RING, fleet(), 2, cohort=4, over_selection=1.0)
        one, two = (
            Federation(plan, StubTraining(RING, n), seed=3, threads=n).run() for n in (1, 2)
        )
        assert [r.joules for r in one.rounds] == [r.joules for r in two.rounds]


class TestBatteries:
    def test_a_device_with_a_spent_battery_is_in_no_later_round(self):
        """A round costs a device 1 J of computing and over 6 J of waiting: one is enough."""
        result, _ = run(fleet(battery_j=7.0), rounds=2, pool_share=0.0)
        first, second = result.rounds
        assert first.exhausted == 4 and second.exhausted == 8
        assert set(first.reported).isdisjoint(second.selected)
        assert len(second.reported) == 4

    def test_the_run_ends_when_too_few_are_left(self):
        result, _ = run(fleet(battery_j=7.0), rounds=5, pool_share=0.0, reports_min=2)
        assert sum(r.succeeded for r in result.rounds) == 2
        assert "too few devices" in result.failed

    def test_without_a_limit_none_is_spent(self):
        result, _ = run(fleet(), rounds=3)
        assert result.rounds[-1].exhausted == 0


SMALL = ("rounds=2", "fleet.devices=8", "data.held_out_devices=2", "round.cohort=4")
TINY = (*SMALL, "round.reports_min=2", "model.hidden=[4]", "evaluation.every=2")


class TestOperations:
    """FedAvg unrolls two passes over the data and loops over five: both have the same steps."""

    @staticmethod
    def cost_of(algorithm, epochs):
        chosen = [f"algorithm.name={algorithm}", f"algorithm.epochs={epochs}"]
        scenario = override(load("edge-tuning"), chosen)
        data = load_data(scenario, None)
        given = (None, data, "reference", lambda event: None, 0.0, None)
        with closing(stage_of(scenario, *given, processes=1)) as stage:
            return training_cost(stage.bundle.programs["client_update"].body)

    def test_unrolled_passes_are_counted_once(self):
        for once, looped in zip(self.cost_of("fedavg", 2), self.cost_of("fedavg", 5), strict=True):
            assert once == pytest.approx(looped, rel=0.1)

    def test_a_proximal_term_is_more_work_and_not_less(self):
        assert self.cost_of("fedprox", 2)[1] > self.cost_of("fedavg", 2)[1]


class TestScenarios:
    def test_classes_are_changed_by_their_tables(self):
        changed = override(load(), ["fleet.phone.gflops=2.5", "fleet.gpu_board.battery_j=100"])
        classes = changed.fleet.classes
        assert classes["phone"] == replace(CLASSES["phone"], speed_flops=2.5e9)
        assert classes["gpu_board"] == replace(CLASSES["gpu_board"], battery_j=100.0)
        assert classes["laptop"] == CLASSES["laptop"]

    @pytest.mark.parametrize(
        "setting", ["fleet.phone.gflops=0", "fleet.phone.idle_w=-1", "fleet.tablet.gflops=1"]
    )
    def test_what_makes_no_sense_is_refused(self, setting):
        with pytest.raises(DelianError):
            override(load(), [setting])

    def test_a_report_says_what_devices_used(self):
        only = [f"fleet.mix.{kind}=0" for kind in ("laptop", "board")]
        scenario = override(load(), [*TINY, *only, "fleet.phone.idle_w=0", "fleet.dropout=0"])
        summary = summarise(simulate(scenario, threads=1))
        joules, moved = summary["joules"], summary["bytes"]
        sent = moved["device_edge_up"] + moved["device_edge_down"]
        assert joules["radio"] == pytest.approx(sent * 2e-6)
        assert joules["idle"] == 0.0 and joules["compute"] > 0.0 and summary["exhausted"] == 0


def test_the_documentation_has_the_classes_figures():
    whole = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    text = whole.partition("## Devices and their energy")[2].partition("\n## ")[0]
    for kind, traits in CLASSES.items():
        (row,) = re.findall(rf"^\| `{kind}` \| ([^\n]*) \|$", text, re.MULTILINE)
        figures = [
            traits.speed_flops / 1e9,
            traits.memory_mib,
            traits.gflops_per_watt,
            traits.radio_uj_per_byte,
            traits.idle_w,
        ]
        assert row.split(" | ") == [f"{figure:,g}" for figure in figures]
