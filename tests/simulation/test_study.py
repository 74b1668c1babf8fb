"""Studies of many runs: what is kept, what is paired, what is stopped early."""

from __future__ import annotations

import math

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs import comparison, study
from delian.simulations.runs.comparison import Entry
from delian.simulations.runs.confidence import estimate
from delian.simulations.runs.study import Trial
from delian.simulations.runs.sweep import Axis, budgets, candidates, sweep

SMALL = ("rounds=2", "fleet.devices=8", "data.held_out_devices=2", "round.cohort=4")
TINY = (*SMALL, "round.reports_min=2", "model.hidden=[4]", "evaluation.every=2")


def result(personal, shared=0.5, curve=()):
    summary = {
        "global_accuracy": shared,
        "personalised_accuracy": personal,
        "worst_decile_personalised": personal - 0.2,
        "harmed_share": 0.1,
        "held_out": None,
    }
    return {"summary": summary, "curve": list(curve)}


class Recorded:
    """An executor that gives what a function says, and remembers what it was asked for."""

    def __init__(self, f):
        self.f, self.asked = f, []

    def run(self, trials):
        for trial in trials:
            self.asked.append(trial)
            yield trial, self.f(trial)


# ---------------------------------------------------------------- statistics


def test_an_interval_by_student_s_t():
    """Three values 1, 2, 3: 2 +- 4.303 / sqrt(3)."""
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.count == 3
    assert found.margin == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)
    assert estimate([5.0]).margin is None
    many = estimate([0.0, 1.0] * 50)
    assert many.margin == pytest.approx(1.96 * math.sqrt(0.25 * 100 / 99 / 100), rel=1e-3)


# ---------------------------------------------------------------- trials


def test_a_trial_is_run_once_and_found_again(tmp_path):
    trials = [Trial("digits", None, (f"seed={seed}",)) for seed in (1, 2)]
    executor = Recorded(lambda trial: result(0.9))
    told = []
    first = study.run(trials, tmp_path, executor, lambda trial, done, of: told.append((done, of)))
    again = study.run(trials, tmp_path, executor)
    assert first == again and executor.asked == trials
    assert told == [(1, 2), (2, 2)]


def test_what_was_done_before_a_failure_is_kept(tmp_path):
    trials = [Trial("digits", None, (f"seed={seed}",)) for seed in (1, 2, 3)]

    def fails_at_two(trial):
        if "seed=2" in trial.settings:
            raise DelianError("no power")
        return result(0.9)

    with pytest.raises(DelianError, match="no power"):
        study.run(trials, tmp_path, Recorded(fails_at_two))
    later = Recorded(lambda trial: result(0.9))
    study.run(trials, tmp_path, later)
    assert later.asked == trials[1:]


def test_a_trial_is_named_by_what_decides_it(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text(
        'name = "mine"\nrounds = 2\n[data]\nsource = "digits"\n[model]\nname = "mlp"\n'
        '[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 19\n'
    )
    names = [Trial(str(own)).name()]
    assert Trial(str(own), None, ("seed=1",)).name() == Trial(str(own), None, ("seed=1",)).name()
    names.append(Trial(str(own), None, ("seed=7",)).name())
    own.write_text(own.read_text().replace("devices = 19", "devices = 20"))
    names.append(Trial(str(own)).name())
    assert len(set(names)) == 3


def test_a_damaged_result_is_told_and_not_taken(tmp_path):
    trial = Trial("digits")
    (tmp_path / f"{trial.name()}.json").write_text("{}")
    with pytest.raises(DelianError, match="delete it"):
        study.run([trial], tmp_path, Recorded(lambda t: result(0.9)))


# ---------------------------------------------------------------- comparisons


def test_differences_are_paired_by_seed():
    """Seeds differ much, scenarios by exactly 0.01: the difference is sure, the means are not."""
    base = {1: 0.5, 2: 0.9, 3: 0.7}
    first = Entry("a", {s: result(v) for s, v in base.items()})
    second = Entry("b", {s: result(v + 0.01) for s, v in base.items()})
    compared = comparison.compare([first, second])
    difference = compared["scenarios"][1]["differences"]["personal"]
    assert difference["mean"] == pytest.approx(0.01) and difference["margin"] < 1e-9
    head, one, two = comparison.table(compared)
    assert two[head.index("personal, against the first")] == "+1.0 ± 0.0*"
    assert one[head.index("personal")] == "70.0 ± 49.7"
    assert "never trained" not in head


def test_rounds_and_bytes_to_a_target():
    points = [
        {"round": n, "bytes_up": 100, "personalised_accuracy": a}
        for n, a in enumerate((0.4, None, 0.8, 0.9), 1)
    ]
    entry = Entry("a", {1: result(0.9, curve=points), 2: result(0.5, curve=points[:1])})
    assert entry.reached(0.75) == {1: (3, 300.0)}
    compared = comparison.compare([entry], target=0.75)
    assert compared["scenarios"][0]["reached"]["seeds"] == 1
    assert comparison.table(compared)[1][-2:] == ["3 (1 of 2)", "300 B"]
    assert comparison.table(comparison.compare([entry], target=0.99))[1][-2:] == ["never", ""]


def test_the_page_has_the_curves_and_the_table_and_escapes_names():
    points = [{"round": n, "bytes_up": 1, "personalised_accuracy": 0.5} for n in (1, 2)]
    entries = [
        Entry(label, {s: result(0.5, curve=points) for s in (1, 2)}) for label in ("<a>", "b")
    ]
    page = comparison.page(comparison.compare(entries), "<a> & b")
    assert "<a>" not in page and "&lt;a&gt;" in page
    assert page.count('class="line personal"') == 2, "for wide and for narrow pages"
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")


# ---------------------------------------------------------------- sweeps


def test_axes_keep_lists_whole():
    axis = Axis.parse("model.hidden=[8],[16, 8]")
    assert axis == Axis("model.hidden", ("[8]", "[16, 8]"))
    for wrong in ("rounds", "=1", "rounds=1,,2", "rounds=1,1"):
        with pytest.raises(DelianError):
            Axis.parse(wrong)
    with pytest.raises(DelianError, match="twice"):
        candidates([Axis("seed", ("1",)), Axis("seed", ("2",))])


@pytest.mark.parametrize(
    ("rounds", "count", "eta", "expected"),
    [
        (30, 9, 3, [3, 10, 30]),
        (30, 8, 2, [3, 7, 15, 30]),
        (30, 5, 1, [30]),
        (2, 81, 3, [2]),
        (30, 2, 3, [30]),
    ],
)
def test_rungs(rounds, count, eta, expected):
    assert budgets(rounds, count, eta) == expected


def test_halving_keeps_the_best_and_a_later_rung_may_change_its_mind(tmp_path):
    """Four rates; two look best early, and the one that looks second is best in the end."""
    early = {"0.1": 0.1, "0.2": 0.7, "0.3": 0.6, "0.4": 0.2}

    def measured(trial):
        settings = dict(s.split("=") for s in trial.settings)
        rate = settings["algorithm.learning_rate"]
        late = {"0.2": 0.8, "0.3": 0.9}
        return result(early[rate] if settings["rounds"] != "30" else late[rate])

    executor = Recorded(measured)
    axis = Axis("algorithm.learning_rate", tuple(early))
    rungs = sweep(Trial("digits"), [axis], (1, 2), tmp_path, executor, eta=2)
    assert [r.rounds for r in rungs] == [7, 15, 30]
    assert [[c.label.split("=")[1] for c, _ in r.ranking] for r in rungs] == [
        ["0.2", "0.3", "0.4", "0.1"],
        ["0.2", "0.3"],
        ["0.2"],
    ]
    assert len(executor.asked) == 2 * (4 + 2 + 1)


def test_fewer_is_better_where_less_is_sought(tmp_path):
    def measured(trial):
        made = result(0.5)
        made["summary"]["harmed_share"] = 0.3 if "algorithm.epochs=1" in trial.settings else 0.1
        return made

    axis = Axis("algorithm.epochs", ("1", "2"))
    (rung,) = sweep(Trial("digits"), [axis], (1,), tmp_path, Recorded(measured), "harmed")
    assert rung.ranking[0][0].label == "algorithm.epochs=2"


def test_a_combination_that_makes_no_sense_is_refused_before_anything_runs(tmp_path):
    executor = Recorded(lambda trial: result(0.5))
    with pytest.raises(DelianError, match="epochs"):
        sweep(Trial("digits"), [Axis("algorithm.epochs", ("1", "0"))], (1,), tmp_path, executor)
    assert not executor.asked


@pytest.mark.slow
def test_ray_gives_the_same_results(tmp_path):
    pytest.importorskip("ray", reason="an optional executor: delian[ray]")
    trials = [Trial("digits", name, TINY) for name in ("fedavg", "ditto")]
    results = [
        study.run(trials, tmp_path / name, make(2)) for name, make in study.EXECUTORS.items()
    ]
    assert results[0] == results[1]
