"""Whole simulations, small ones: real data, compiled programs, the tiers' protocol, a report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler.backends.native.toolchain import toolchain
from delian.core.learning.runtime import Runtime
from delian.simulations.report.report import build_report
from delian.simulations.runs import simulation_run as running
from delian.simulations.runs.result import (
    Event,
    RoundFinished,
    SimulationResult,
    Unfinished,
    UpdateFinished,
)
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import recipes, scenario_file
from delian.simulations.scenario.datasets import load_data

SMALL = [
    "rounds=3",
    "fleet.devices=12",
    "round.cohort=4",
    "data.held_out_devices=3",
]


def run(*settings: str, algorithm: str = "fomaml", **options: Any) -> SimulationResult:
    scenario = scenario_file.with_algorithm(scenario_file.load("digits"), algorithm)
    scenario = scenario_file.override(scenario, [*SMALL, *settings])
    return simulate(scenario, **{"threads": 2, **options})


def report_of(result: SimulationResult) -> dict[str, Any]:
    report = build_report(result)
    del report["host"]
    return report


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "reptile", "fomaml", "maml", "metasgd"])
def test_every_algorithm_learns(algorithm: str) -> None:
    result = run("rounds=4", "data.alpha=1.0", algorithm=algorithm)
    losses = [r.personalised_loss for r in result.rounds]
    assert all(loss is not None and np.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    for r in result.rounds:
        assert r.selected == r.reported + r.refused + r.dropped + r.late + r.spare
    assert len(result.devices) == 12 and sum(d.held_out for d in result.devices) == 3


def test_masks_change_nothing_that_is_learnt() -> None:
    everybody = ["round.over_selection=1.0", "fleet.dropout=0.0", "network.device_edge.loss=0.0"]
    masked, plain = (run(*everybody, f'privacy.aggregation="{how}"') for how in ("secure", "plain"))
    assert masked.bundle is not None and plain.bundle is not None
    assert masked.bundle.weights.any()
    np.testing.assert_array_equal(masked.bundle.weights, plain.bundle.weights)
    for a, b in zip(masked.rounds, plain.rounds, strict=True):
        assert sum(a.bytes.values()) > sum(b.bytes.values()), "keys and shares travel too"


@pytest.mark.parametrize("mode", ["synchronous", "buffered"])
def test_devices_judge_what_they_learn_as_the_observer_does(mode: str) -> None:
    settings = [f"round.mode={mode}", "evaluation.federated=true", "evaluation.cohort=9"]
    result = run(*settings, "data.held_out_devices=0", "fleet.devices=9", "rounds=4")
    assert result.evaluations[-1].round == 4
    for e in result.evaluations:
        seen = result.rounds[e.round - 1]
        # Of nearly all devices, the mean over examples and not over devices.
        assert e.metrics["global_loss"] == pytest.approx(seen.global_loss, rel=0.35)
        assert e.metrics["personalised_loss"] < e.metrics["global_loss"]
    assert report_of(result)["evaluations"][-1]["devices"] == result.evaluations[-1].devices


def test_a_server_optimisers_memory_survives_from_round_to_round() -> None:
    adam = ['algorithm.server_optimizer="adam"', "algorithm.server_learning_rate=0.05"]
    longer, shorter = run(*adam, algorithm="fedavg"), run(*adam, "rounds=2", algorithm="fedavg")
    assert longer.rounds[1].global_loss == shorter.rounds[1].global_loss
    assert longer.rounds[2].global_loss != longer.rounds[1].global_loss


def test_threads_do_not_change_the_report() -> None:
    assert report_of(run(threads=1)) == report_of(run(threads=3))


def test_the_bundle_of_a_run_holds_what_was_learnt() -> None:
    """A device that loads it scores as the report says."""
    result = run()
    assert result.bundle is not None
    runtime = Runtime(result.bundle)
    data = load_data(result.scenario)
    for record, holding in zip(result.devices, data.devices, strict=True):
        own = recipes.arrays(result.scenario, holding)
        score = runtime.evaluate(result.bundle.weights, own, dl.random.key(0))
        assert score.accuracy == record.accuracy_before


def test_every_operation_of_a_bundle_knows_its_source() -> None:
    result = run("rounds=1", algorithm="maml")
    assert result.bundle is not None
    for program in result.bundle.programs.values():
        assert all(op.locs for op in program.body.walk())


def test_another_seed_is_another_run() -> None:
    assert run("seed=2").trace_hash != run().trace_hash


def test_the_back_ends_tell_the_same_story() -> None:
    # Plain: last bits of weights differ, so keys do, and signatures differ by a byte now and then.
    plain = 'privacy.aggregation="plain"'
    native, reference = run(plain), run(plain, backend="reference")
    for a, b in zip(native.rounds, reference.rounds, strict=True):
        assert (a.selected, a.reported, a.bytes) == (b.selected, b.reported, b.bytes)
        assert a.global_loss == pytest.approx(b.global_loss, rel=1e-3)


def test_the_report_names_the_back_end_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("rounds=1").host["backend"] == "native"
    monkeypatch.setattr(toolchain, "find", lambda: None)
    host = run("rounds=1").host
    assert host["backend"] == "reference" and "compiler" not in host


def test_a_device_whose_loss_is_not_finite_is_refused_and_counted(tmp_path: Path) -> None:
    """One device of six holds numbers that overflow; the others go on learning without it."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 16)).astype(np.float32)
    x[50:] = 3.4e38
    np.savez(tmp_path / "six.npz", x=x, y=np.arange(60) % 2, device=np.arange(60) // 10)
    (tmp_path / "six.toml").write_text(
        'name = "six"\nrounds = 3\n[data]\nsource = "npz"\npath = "six.npz"\n'
        'partition = "natural"\n[model]\nname = "mlp"\n[algorithm]\nname = "fedavg"\n'
        "[fleet]\nedges = 2\n[round]\ndevices = 6\n"
    )
    result = simulate(scenario_file.load(str(tmp_path / "six.toml")))
    assert [(r.reported, r.refused, r.applied) for r in result.rounds] == [(5, 1, True)] * 3
    assert [d.rounds for d in result.devices] == [3, 3, 3, 3, 3, 0]


def test_held_out_devices_never_train_and_are_judged() -> None:
    result = run()
    for device in result.devices:
        assert device.accuracy_before is not None and device.accuracy_after is not None
        if device.held_out:
            assert device.rounds == 0
    assert sum(d.rounds for d in result.devices) == sum(r.reported for r in result.rounds)


def test_a_run_can_be_stopped_and_keeps_what_it_has() -> None:
    seen: list[object] = []
    result = run(
        "rounds=50",
        on_event=seen.append,
        stop=lambda: sum(isinstance(e, RoundFinished) for e in seen) >= 2,
    )
    assert result.interrupted
    assert 2 <= len(result.rounds) < 50
    assert any(isinstance(e, UpdateFinished) for e in seen)


def test_to_keep_what_there_is_takes_a_small_share_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds of 30 seconds; to keep what there is takes 10."""
    clock, kept = [0.0], []

    def told(event: Event) -> None:
        if isinstance(event, RoundFinished):
            clock[0] += 30
        if isinstance(event, Unfinished):
            kept.append(len(event.result.rounds))
            clock[0] += 10

    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    run("rounds=12", "evaluation.every=12", threads=1, on_event=told)
    assert kept == [2, 9]


def test_a_run_that_cannot_go_on_keeps_the_rounds_that_it_has() -> None:
    everyone = ["round.reports_min=4", "evaluation.every=1000", "round.over_selection=1"]
    result = run("rounds=500", "fleet.dropout=0.2", *everyone)
    applied = [r for r in result.rounds if r.applied]
    assert result.stopped_by == "failure" and "too few" in result.why
    assert 0 < len(applied) < 500 and not result.rounds[-1].applied
    assert build_report(result)["summary"]["rounds"] == len(applied)
    with pytest.raises(DelianError, match="first round: too few") as caught:
        run("rounds=500", "fleet.dropout=1", *everyone)
    assert "round.reports_min" in caught.value.hint


def test_a_users_own_model_trains(checkout: Path) -> None:
    scenario = scenario_file.load(str(checkout / "examples" / "own_model.toml"))
    scenario = scenario_file.override(
        scenario,
        ["rounds=1", "fleet.devices=8", "round.cohort=2", "data.held_out_devices=1"],
    )
    result = simulate(scenario, threads=2)
    assert result.parameters == 3 * (3 * 3 * 16 * 16 + 16) + 160 + (4 * 4 * 16 * 10 + 10)


MISFIT = """
import delian as dl

def init(key, shape, classes):
    return dl.nn.Mlp((dl.nn.Dense.init(key, 64, 7), dl.nn.Dense.init(key, 9, classes)))
"""


def test_a_model_whose_shapes_do_not_fit_is_underlined(tmp_path: Path) -> None:
    (tmp_path / "misfit.py").write_text(MISFIT)
    (tmp_path / "misfit.toml").write_text(
        'name = "misfit"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
        'file = "misfit.py"\n[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    with pytest.raises(ProgramError) as caught:
        simulate(scenario_file.load(str(tmp_path / "misfit.toml")))
    text = str(caught.value)
    assert "return _plus(x @ self.weight, self.bias)" in text and "^^^" in text
    assert "7" in text and "9" in text
    assert "called from" in text


SIGNALS = """
import delian as dl
import numpy as np

@dl.module
class Model:
    conv: dl.nn.Conv
    head: dl.nn.Dense

    def __call__(self, x, weight):
        return self.head(np.mean(self.conv(x), axis=1))

def init(key, shape, classes):
    length, signals = shape
    conv = dl.nn.Conv.init(key, 3, signals, 4, rank=1)
    return Model(conv, dl.nn.Dense.init(key, 4, classes))
"""


def test_a_users_model_takes_rows_of_a_users_file_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "s.npz", x=rng.normal(size=(96, 8, 3)).astype(np.float32), y=np.arange(96) % 2
    )
    (tmp_path / "signals.py").write_text(SIGNALS)
    toml = tmp_path / "s.toml"
    toml.write_text(
        'name = "s"\nrounds = 1\n[data]\nsource = "npz"\npath = "s.npz"\npartition = "iid"\n'
        '[model]\nname = "python"\nfile = "signals.py"\n[algorithm]\nname = "fedavg"\n'
        "[fleet]\ndevices = 12\n"
    )
    result = simulate(scenario_file.load(str(toml)), backend="reference")
    assert result.parameters == (3 * 3 * 4 + 4) + (4 * 2 + 2)
    (tmp_path / "signals.py").write_text(SIGNALS.replace("rank=1", "rank=2"))
    with pytest.raises(ProgramError) as caught:
        simulate(scenario_file.load(str(toml)), backend="reference")
    lines = str(caught.value).splitlines()
    assert "within delian, the innermost core/compiler/ops/convolution.py" in lines[1]
    assert lines[2].startswith(f"  at {tmp_path / 'signals.py'}:11:"), "the line to mend is first"
    assert not any("core/learning/nn/layers.py" in line for line in lines)


def small_digits(tmp_path: Path, model: str, *settings: str) -> scenario_file.Scenario:
    (tmp_path / "own.py").write_text(model)
    (tmp_path / "own.toml").write_text(
        'name = "own"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
        'file = "own.py"\n[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    return scenario_file.override(scenario_file.load(str(tmp_path / "own.toml")), settings)


def test_a_model_with_fewer_outputs_than_labels_is_refused(tmp_path: Path) -> None:
    model = (
        "import delian as dl\ndef init(key, shape, classes):\n"
        "    return dl.nn.Mlp((dl.nn.Dense.init(key, 64, 7),))\n"
    )
    with pytest.raises(DelianError, match="logits are of 7 labels, and the data has 10 labels"):
        simulate(small_digits(tmp_path, model), backend="reference")
    own = model.replace("64, 7", "64, classes + 1")
    assert simulate(small_digits(tmp_path, own), backend="reference").parameters == 65 * 11


def test_a_run_that_trains_to_no_numbers_says_so(tmp_path: Path) -> None:
    model = (
        "import delian as dl\nimport numpy as np\ndef init(key, shape, classes):\n"
        "    layers = dl.nn.Flatten(), dl.nn.Dense.init(key, 64, classes),"
        " dl.nn.Function(lambda x: np.log(x - 1e9))\n"
        "    return dl.nn.Sequential(layers)\n"
    )
    with pytest.raises(DelianError, match="10 trained to numbers that are not finite") as caught:
        simulate(small_digits(tmp_path, model), backend="reference")
    assert "algorithm.learning_rate" in caught.value.hint


NUMPY = "import numpy as np\ndef init(key, shape, classes):\n    "


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("gone.py", None, "no such Python file"),
        ("broken.py", "def init(:", "SyntaxError"),
        ("empty.py", "x = 1", "no function `init`"),
        ("raises.py", "1 / 0", "ZeroDivisionError"),
        ("exits.py", "import sys\nsys.exit(0)", "SystemExit"),
        ("none.py", "def init(key, shape, classes):\n    return None", "0 numbers to learn"),
        ("text.py", "def init(key, shape, classes):\n    return 'x'", "not an array"),
        ("wide.py", f"{NUMPY}return {{'w': np.zeros((64, classes))}}", "`w` is f64.*f32 arrays"),
        ("huge.py", f"{NUMPY}return np.zeros((64, 10**11), np.float32)", "numbers to learn"),
        ("array.py", f"{NUMPY}return np.zeros((64, 10), np.float32)", "call"),
    ],
)
def test_a_model_file_that_cannot_serve_is_refused(
    tmp_path: Path, file: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    (tmp_path / "own.toml").write_text(
        'name = "own"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
        f'file = "{file}"\n[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    with pytest.raises(DelianError, match=says):
        simulate(scenario_file.load(str(tmp_path / "own.toml")))


def test_omniglot_episodes_run(shared_data: Path) -> None:
    scenario = scenario_file.override(
        scenario_file.load("omniglot"),
        ["rounds=1", "model.filters=8", "round.cohort=4", "evaluation.devices=3"],
    )
    result = simulate(scenario, data_path=shared_data / "omniglot_small.npz", threads=2)
    assert len(result.devices) == 40
    assert 0.0 <= result.rounds[0].personalised_accuracy <= 1.0


def test_shakespeare_runs(shared_data: Path) -> None:
    scenario = scenario_file.override(
        scenario_file.load("shakespeare"),
        [
            "rounds=1",
            "model.hidden=16",
            "round.cohort=5",
            "evaluation.devices=2",
            "data.max_windows=12",
        ],
    )
    result = simulate(scenario, data_path=shared_data / "tinyshakespeare.txt", threads=2)
    assert result.rounds[0].global_loss < np.log(65) * 1.1
