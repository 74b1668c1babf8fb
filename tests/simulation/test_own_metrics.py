"""Metrics of a task's own: what devices add up is what NumPy says of all their rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import bundle as bundles
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.build.bundle_builder import own_metrics as own_names
from delian.core.learning.runtime import Runtime
from delian.simulations.report import own_metrics, own_metrics_page
from delian.simulations.report.report import build_report, plain, to_json
from delian.simulations.report.report_page import page
from delian.simulations.resume import kept_run
from delian.simulations.runs.result import RoundFinished
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override


@dataclass(frozen=True)
class Judged(dl.learn.Classification):
    """F1 of the label 1, and the share of rows whose label is among the two likeliest."""

    metric_names = ("top_2", "f1")

    def more_metrics(self, model, batch):
        scores = model(batch.x, batch.weight)
        own = np.take_along_axis(scores, batch.y[:, None], axis=1)
        ahead = np.sum((scores > own).astype(np.float32), axis=1)
        said, right = np.argmax(scores, axis=-1) == 1, batch.y == 1
        both = np.sum((said & right).astype(np.float32) * batch.weight)
        either = np.sum((said.astype(np.float32) + right.astype(np.float32)) * batch.weight)
        near = np.sum((ahead < 2).astype(np.float32) * batch.weight)
        return {"top_2": (near, np.sum(batch.weight)), "f1": (2 * both, either)}


@dataclass(frozen=True)
class JudgedAvg(dl.learn.FedAvg):
    def task(self, task):
        return Judged(task.name, task.init, task.source)


def scenario(*settings):
    return override(load("synthetic-mlp"), ["rounds=2", "fleet.devices=12", *settings])


def run(**options):
    return simulate(scenario(), algorithm=JudgedAvg(), threads=2, **options)


@pytest.fixture(scope="module")
def result():
    return run()


def test_rounds_have_the_metrics_of_all_devices_examples(result):
    last = result.rounds[-1]
    assert list(last.global_metrics) == list(last.personalised_metrics) == ["f1", "top_2"]
    pooled = (last.global_pooled_accuracy, last.personalised_pooled_accuracy)
    for said, right in zip((last.global_metrics, last.personalised_metrics), pooled, strict=True):
        assert 0 < right <= said["top_2"] <= 1 and 0 <= said["f1"] <= 1


def test_the_program_gives_the_sums_that_numpy_gives():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 5)).astype(np.float32)
    y = rng.integers(0, 3, 20).astype(np.int32)
    rows = dl.learn.SampleSet(x, y, np.array(4), np.array(13))  # three rows are of no use
    task = Judged("small", lambda key: dl.nn.Mlp.init(key, 5, (6,), 3), dl.learn.Samples(4, 1.0))
    made = build(
        task,
        dl.learn.FedAvg(),
        rows,
        example=TensorType(DType.F32, (17, 5)),
        clip=1.0,
        clients_max=4,
        weight_max=20.0,
        seed=1,
    )
    runtime = Runtime(made, "reference")
    model = rng.normal(size=made.weights.size).astype(np.float32)
    scores, right = runtime.infer(model, x[:17])[4:], y[4:17]
    score = runtime.evaluate(model, rows, dl.random.key(1))
    assert made.manifest.metrics == ("f1", "top_2") and score.count == 13
    said = np.argmax(scores, axis=-1) == 1
    f1 = 2.0 * np.sum(said & (right == 1)), float(np.sum(said) + np.sum(right == 1))
    ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
    top_2 = float(np.sum(ranks[np.arange(13), right] < 2)), 13.0
    assert score.more == (f1, top_2) and 0 < f1[0] < f1[1] and 0 < top_2[0] < 13


def test_a_bundle_keeps_the_names_and_one_without_is_as_it_was(result):
    back = bundles.parse(result.bundle.to_bytes())
    assert back.manifest.metrics == ("f1", "top_2")
    assert len(back.programs["evaluate"].result_types) == 7
    bare = simulate(scenario("rounds=1"), threads=2).bundle
    assert bare.manifest.metrics == () and b'"metrics"' not in bare.to_bytes()
    lying = replace(bare, manifest=replace(bare.manifest, metrics=("f1",)))
    with pytest.raises(DelianError, match="evaluate gives 3 numbers, and 1 metrics"):
        bundles.parse(lying.to_bytes())
    taken = replace(result.bundle, manifest=replace(back.manifest, metrics=("loss", "<b>")))
    with pytest.raises(DelianError, match="no metric can be called 'loss'"):
        bundles.parse(taken.to_bytes())


def test_reports_show_them(result):
    report = build_report(result)
    assert '"global_metrics"' in to_json(report)
    shown = page(plain(report))
    assert "The task’s own metrics" in shown and shown.count("top_2") > 2
    (f1, top) = own_metrics.lines(plain(report)["rounds"])
    assert f1[0] == "f1" and top[1] == f"{result.rounds[-1].global_metrics['top_2']:.4g}"
    assert re.fullmatch(r"f1 \S+ -> \S+  top_2 \S+ -> \S+", own_metrics.told(result.rounds[-1]))


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_devices_tell_them_through_the_protocol(aggregation):
    settings = ["evaluation.federated=true", "evaluation.every=2", "network.device_edge.loss=0.0"]
    settings += [f"privacy.aggregation={aggregation}", "fleet.dropout=0.0"]
    asked = scenario(*settings, "round.cohort=12", "round.over_selection=1.0")
    done = simulate(asked, algorithm=JudgedAvg(), threads=2)
    said, last = done.evaluations[-1], done.rounds[-1]
    assert said.round == last.round and said.devices == 12
    for kind, seen in (
        ("global", last.global_metrics),
        ("personalised", last.personalised_metrics),
    ):
        for name, value in seen.items():
            # Personal models are made by other draws than the observer's.
            close = 0.01 if kind == "global" else 0.1
            assert said.metrics[f"{kind}_{name}"] == pytest.approx(value, abs=close)


def test_the_axis_of_numbers_below_zero_begins_there():
    pairs = {"global_metrics": {"r_squared": -3.0}, "personalised_metrics": {"r_squared": -1.0}}
    rounds = [{"round": number, **pairs} for number in (1, 2)]
    drawn = own_metrics_page.section({"rounds": rounds})
    assert re.findall(r">(-\d)</text>", drawn)[:3] == ["-3", "-2", "-1"]
    ends = [float(y) for y in re.findall(r'<circle [^>]*cy="([\d.-]+)"', drawn)]
    assert ends and min(ends) > 0.0 and max(ends) < 320.0


def test_a_metric_of_nothing_is_none_and_a_line_without_it():
    record = {"round": 1, "global_metrics": {"f1": None}, "personalised_metrics": {"f1": 0.5}}
    assert own_metrics.lines([record]) == [("f1", "–", "0.5")]
    assert "By round" in own_metrics_page.section({"rounds": [record]})
    assert own_metrics_page.section({"rounds": [{"global_metrics": None}]}) == ""


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda near: {"f1": (near, near)}, "gives no dict with the keys of metric_names: f1, top"),
        (lambda near: (near, near), "gives no dict"),
        (lambda near: {"f1": near, "top_2": near}, "f1 is no pair of sums"),
        (lambda near: {"f1": (near, near, near), "top_2": (near, near)}, "f1 is no pair of sums"),
        (lambda near: {"f1": (near, near[None]), "top_2": (near, near)}, "a sum of f1 is (1,)"),
        (lambda near: {"f1": (near, None), "top_2": (near, near)}, "a sum of f1 is None, and not"),
    ],
)
def test_sums_that_are_none_are_told_apart(gives, said):
    @dataclass(frozen=True)
    class Wrong(Judged):
        def more_metrics(self, model, batch):
            return gives(np.sum(batch.weight))

    @dataclass(frozen=True)
    class WrongAvg(dl.learn.FedAvg):
        def task(self, task):
            return Wrong(task.name, task.init, task.source)

    with pytest.raises(DelianError) as caught:
        simulate(scenario(), algorithm=WrongAvg(), threads=1)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "names", [("F1",), ("accuracy",), ("a", "a"), (3,), tuple("abcdefghijklmnopq")]
)
def test_names_that_no_message_has_room_for_are_refused(names):
    with pytest.raises(DelianError, match="metric"):
        bundles.check_metric_names(names)


@pytest.mark.parametrize("names", ["f1", None, 5, (1, 1), (1, "f1")])
def test_names_that_are_no_names_are_an_error_that_says_whose(names):
    task = Judged("small", lambda key: None, None)
    object.__setattr__(task, "metric_names", names)
    with pytest.raises(DelianError, match=r"Judged.metric_names is .+\n.*a tuple of the metrics"):
        own_names(task)


SMALL = "model.hidden=[8]"


def test_a_run_that_was_stopped_and_resumed_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_run, "KEEP_S", 0.0)
    asked = scenario("evaluation.federated=true", "evaluation.every=1", "rounds=3", SMALL)
    rounds = []

    def run(**options):
        return simulate(asked, algorithm=JudgedAvg(), threads=2, **options)

    stopped = run(
        on_event=lambda event: isinstance(event, RoundFinished) and rounds.append(event),
        stop=lambda: len(rounds) > 1,
        resume=tmp_path,
    )
    assert stopped.resumable == 2 == len(stopped.rounds) and stopped.evaluations
    resumed, whole = run(resume=tmp_path), run()
    assert resumed.rounds == whole.rounds and resumed.devices == whole.devices
    assert resumed.evaluations == whole.evaluations and resumed.trace_hash == whole.trace_hash
