"""Quality under a budget, cost to a target, robustness: figures worked out by hand."""

from __future__ import annotations

import json

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs import protocols, protocols_page, study, study_file
from delian.simulations.runs.result import RoundRecord
from delian.simulations.runs.study import Trial
from delian.simulations.runs.study_file import StudyFile, load_study
from delian.simulations.scenario.scenario_file import bundled as bundled_scenarios

FILE = """
name = "mine"
scenario = "digits"
seeds = 2
targets = [0.7, 0.99]

[[methods]]
name = "one"
algorithm = "fedavg"

[[methods]]
name = "two"
algorithm = "fedprox"
settings = ["algorithm.proximal_mu=0.5"]

[budgets]
seconds = [20]
megabytes = [0.5]
joules = [7.0]

[[disturbances]]
name = "dropouts"
settings = ["fleet.dropout=0.4"]
"""


def curve(qualities, seconds=10.0, octets=200_000, joules=3.0):
    """Rounds that each cost the same; None: not judged."""
    return [
        {
            "round": number,
            "bytes_up": octets // 2,
            "spent": {
                "seconds": seconds * number,
                "bytes": octets * number,
                "joules": joules * number,
            },
            "global_accuracy": quality,
            "personalised_accuracy": None if quality is None else quality + 0.1,
        }
        for number, quality in enumerate(qualities, 1)
    ]


def result(qualities, measure="accuracy", **costs):
    return {"summary": {"measure": measure}, "curve": curve(qualities, **costs)}


def written(tmp_path, text=FILE):
    (tmp_path / "mine.toml").write_text(text)
    return load_study(tmp_path / "mine.toml")


#: By method, disturbance and seed.
RESULTS = {
    ("one", "", 1): result([0.5, 0.8, 0.7, 0.9]),
    ("one", "", 2): result([0.3, 0.6, 0.7, 0.8]),
    ("one", "dropouts", 1): result([0.4, 0.6, 0.7, 0.8], seconds=20.0),
    ("one", "dropouts", 2): result([0.3, 0.5, 0.6, 0.6], seconds=20.0),
    ("two", "", 1): result([0.1, 0.2, 0.3, 0.4]),
    ("two", "", 2): result([None, None, None, 0.4]),
    ("two", "dropouts", 1): result([0.1, 0.2, 0.3, 0.4]),
    ("two", "dropouts", 2): result([None, None, None, 0.4]),
}


@pytest.fixture
def found(tmp_path):
    return protocols.judged(written(tmp_path), RESULTS)


class TestBudgets:
    def test_quality_is_that_of_the_best_round_that_the_budget_pays_for(self, found):
        """20 s, 0.5 MB and 7 J all pay for two rounds of 10 s, 0.2 MB and 3 J."""
        for one in found["methods"][0]["budgets"]:
            assert one["quality"]["mean"] == pytest.approx((0.8 + 0.6) / 2)
            assert one["rounds"]["mean"] == 2.0 and one["seeds"] == 2
        kinds = [(one["cost"], one["limit"]) for one in found["methods"][0]["budgets"]]
        assert kinds == [("seconds", 20.0), ("bytes", 500_000.0), ("joules", 7.0)]

    def test_a_later_round_that_is_worse_does_not_count(self, tmp_path):
        study = written(tmp_path, FILE.replace("seconds = [20]", "seconds = [30]"))
        first = protocols.judged(study, RESULTS)["methods"][0]["budgets"][0]
        assert first["quality"]["mean"] == pytest.approx((0.8 + 0.7) / 2)

    def test_a_seed_that_was_not_judged_until_then_is_left_out_and_said(self, found):
        one = found["methods"][1]["budgets"][0]
        assert one["quality"]["mean"] == 0.2 and one["seeds"] == 1
        assert protocols.budget_table(found)[2] == ["two", *["20.0 (1 of 2)"] * 3]

    def test_the_table(self, found):
        head, first, _ = protocols.budget_table(found)
        assert head == ["within", "20 s", "500 kB", "7 J"]
        assert first[0] == "one" and first[1].startswith("70.0 ±")


class TestTargets:
    def test_costs_are_those_at_the_end_of_the_first_round_as_good(self, found):
        """Seed 1 is at 0.7 after two rounds, seed 2 after three."""
        low, high = found["methods"][0]["targets"]
        assert low["rounds"]["mean"] == 2.5 and low["seconds"]["mean"] == 25.0
        assert low["bytes"]["mean"] == 500_000.0 and low["joules"]["mean"] == 7.5
        assert high["seeds"] == 0 and high["joules"] is None

    def test_the_table_says_what_was_never_reached(self, found):
        _, first, second, *_ = protocols.target_table(found)
        assert first == ["one", "70", "2.5", "25 s", "500 kB", "7.5 J"]
        assert second == ["one", "99", "never", "", "", ""]

    def test_of_an_error_less_is_better(self, tmp_path):
        results = {key: result([4.0, 2.0, 3.0], "mean squared error") for key in RESULTS}
        study = written(tmp_path, FILE.replace("[0.7, 0.99]", "[2.5]"))
        one = protocols.judged(study, results)["methods"][0]
        assert one["quality"]["mean"] == 2.0 and one["targets"][0]["rounds"]["mean"] == 2.0


class TestRobustness:
    def test_what_is_lost_is_taken_seed_by_seed(self, found):
        """0.9 - 0.8 and 0.8 - 0.6; rounds take twice the time, and the same energy."""
        (one,) = found["methods"][0]["robustness"]
        assert one["lost"]["mean"] == pytest.approx(0.15)
        assert one["quality"]["mean"] == pytest.approx(0.7)
        assert one["times"]["seconds"]["mean"] == 2.0 and one["times"]["joules"]["mean"] == 1.0

    def test_under_a_budget_of_time_slower_rounds_cost_quality_too(self, found):
        """20 s pay for two rounds of 10 s, or one of 20 s: 0.8 and 0.6 against 0.4 and 0.3."""
        (one,) = found["methods"][0]["robustness"]
        time, traffic, energy = (of["mean"] for of in one["lost_within"])
        assert time == pytest.approx((0.4 + 0.3) / 2)
        # Bytes and joules pay for two rounds in both: 0.8 - 0.6 and 0.6 - 0.5.
        assert traffic == energy == pytest.approx(0.15)

    def test_the_table_has_each_method_without_disturbance_first(self, found):
        lines = protocols.robustness_table(found)
        assert [line[:2] for line in lines[1:]] == [
            ["one", "nothing"],
            ["one", "dropouts"],
            ["two", "nothing"],
            ["two", "dropouts"],
        ]
        assert lines[0][4] == "lost within 20 s"
        assert lines[2][5:] == ["x 2.00", "x 1.00", "x 1.00"]
        assert lines[4][3] == "0.0 ± 0.0"


class TestRuns:
    def test_every_method_runs_with_every_disturbance_and_seed(self, tmp_path):
        trials = protocols.trials_of(written(tmp_path), 2)
        assert set(trials) == set(RESULTS)
        assert trials["two", "dropouts", 2] == Trial(
            "digits",
            "fedprox",
            ("algorithm.proximal_mu=0.5", "fleet.dropout=0.4", "seed=2"),
        )

    def test_it_goes_on_from_what_is_kept(self, tmp_path):
        trials = protocols.trials_of(written(tmp_path), 1)
        asked = []

        class Executor:
            def run(self, missing):
                for trial in missing:
                    asked.append(trial)
                    yield trial, {**result([0.5]), "sources": {}}

        first = study.run([*trials.values()][:2], tmp_path / "kept", Executor())
        study.run([*trials.values()], tmp_path / "kept", Executor())
        assert asked == [*trials.values()] and len(first) == 2

    def test_costs_add_up_over_attempts_that_came_to_nothing(self):
        def record(number, applied, seconds, up, joules):
            return RoundRecord(
                number, 4, 4, 0, 0, 0, 0, applied,
                {"device_edge_up": up, "device_edge_down": 10 * up, "edge_cloud_up": 999},
                {}, seconds, joules={"compute": joules, "idle": 1.0},
            )  # fmt: skip

        rounds = [record(1, True, 2.0, 5, 3.0), record(2, False, 4.0, 1, 0.5)]
        points = study._curve([*rounds, record(2, True, 1.0, 4, 2.0)])
        assert [point["round"] for point in points] == [1, 2]
        assert points[0]["spent"] == {"seconds": 2.0, "bytes": 55, "joules": 4.0}
        assert points[1]["spent"] == {"seconds": 7.0, "bytes": 110, "joules": 8.5}

    def test_a_run_gives_the_same_curve_again(self):
        small = (
            *("rounds=2", "fleet.devices=6", "round.cohort=3", "model.hidden=[4]"),
            *("partial.rank=2", "round.reports_min=2", "seed=3"),
        )
        one, two = (study.work(Trial("edge-tuning", None, small)) for _ in range(2))
        assert one == two and len(one["curve"]) == 2
        spent = one["curve"][-1]["spent"]
        assert spent["joules"] == pytest.approx(sum(one["summary"]["joules"].values()))
        assert spent["seconds"] == pytest.approx(one["summary"]["virtual_seconds"])
        moved = one["summary"]["bytes"]
        assert spent["bytes"] == moved["device_edge_up"] + moved["device_edge_down"]


class TestFiles:
    @pytest.mark.parametrize("name", sorted(study_file.bundled()))
    def test_bundled_studies_make_sense(self, name):
        asked = load_study(name)
        assert asked.name == name and asked.scenario in bundled_scenarios()
        assert protocols.trials_of(asked, 1)

    def test_a_scenario_is_looked_for_beside_the_study(self, tmp_path):
        (tmp_path / "here.toml").write_text(bundled_scenarios()["digits"].read_text())
        asked = written(tmp_path, FILE.replace('"digits"', '"here.toml"'))
        assert asked.source == str(tmp_path / "here.toml")
        assert protocols.trials_of(asked, 1)

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('name = "two"', 'name = "one"', "twice"),
            ("targets = [0.7, 0.99]", "targets = [-1]", "targets"),
            ("seconds = [20]", "hours = [20]", "hours"),
            ("seeds = 2", "seeds = 0", "seeds"),
            ("[budgets]", "[budgets", "TOML"),
            ("seeds = 2", 'quality = "best"', "quality"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, tmp_path, old, new, says):
        with pytest.raises(DelianError, match=says):
            written(tmp_path, FILE.replace(old, new))

    def test_a_setting_that_the_scenario_refuses_is_told_before_anything_runs(self, tmp_path):
        with pytest.raises(DelianError, match=r"fleet\.drop"):
            protocols.trials_of(written(tmp_path, FILE.replace("fleet.dropout", "fleet.drop")), 1)

    def test_no_such_study(self):
        with pytest.raises(DelianError, match="no study file"):
            load_study("no-such-study")


def test_amounts_are_for_people():
    assert protocols.energy(3.24) == "3.2 J" and protocols.energy(0.5) == "0.5 J"
    assert protocols.energy(99.7) == "100 J" and protocols.energy(42) == "42 J"
    assert protocols.energy(250) == "250 J" and protocols.energy(1_500) == "1.5 kJ"
    assert protocols.energy(2_345_678) == "2.3 MJ"
    assert protocols.amount("seconds", 200) == "3 min 20 s"
    assert protocols.amount("bytes", 1_500_000) == "1.5 MB"


def test_the_page_has_a_figure_for_each_cost_and_the_tables(found):
    text = protocols_page.page(found)
    for heading in ("Quality under a budget", "Cost to a target", "Robustness"):
        assert heading in text
    for axis in ("time, s", "traffic, MB", "energy, kJ"):
        assert axis in text
    assert "fleet.dropout=0.4" in text
    assert json.loads(json.dumps(found)) == found


def test_a_study_without_budgets_targets_or_disturbances_has_no_tables(tmp_path):
    text = FILE[: FILE.index("[budgets]")].replace("targets = [0.7, 0.99]\n", "")
    study = written(tmp_path, text)
    assert isinstance(study, StudyFile)
    found = protocols.judged(study, {key: RESULTS[key] for key in RESULTS if not key[1]})
    tables = (protocols.budget_table, protocols.target_table, protocols.robustness_table)
    assert [made(found) for made in tables] == [[], [], []]
    assert "Robustness" not in protocols_page.page(found)
