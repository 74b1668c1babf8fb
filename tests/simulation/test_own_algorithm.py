"""An algorithm in a user's Python file: scenarios, sweeps and comparisons name it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from delian.cli.simulation.study_commands import _base
from delian.core.common.errors import DelianError
from delian.core.learning import FedAvg
from delian.core.learning.algorithm import Algorithm
from delian.simulations.report.report import build_report
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.study import Trial
from delian.simulations.scenario import recipes, scenario_file
from delian.simulations.scenario.composition import chain_of
from delian.simulations.scenario.datasets import load_data

ROOT = Path(__file__).parents[2]
SMALL = ["rounds=2", "fleet.devices=12", "data.held_out_devices=4", "round.cohort=6"]
TINY = ["model.hidden=[4]", "algorithm.epochs=1"]
#: What a file says: an update so much shorter.
HALF = """
from dataclasses import dataclass
import delian as dl

@dataclass(frozen=True)
class Half(dl.learn.FedAvg):
    share: float = 0.5

    def client_update(self, task, state, data, key, kept=()):
        made = dl.learn.FedAvg.client_update(self, task, state, data, key, kept)
        return made._replace(update=dl.tree.map(lambda u: self.share * u, made.update))
"""


def scenario(folder, text, *settings):
    (folder / "own.py").write_text(text)
    chosen = scenario_file.with_algorithm(scenario_file.load("digits"), str(folder / "own.py"))
    return scenario_file.override(chosen, [*SMALL, *settings])


def made(chosen):
    return recipes.algorithm(chosen, load_data(chosen, None))


def test_it_has_its_own_defaults_for_all_that_the_scenario_does_not_say(tmp_path):
    bare = "\n".join(
        ['name = "own"', "rounds = 2", '[data]\nsource = "digits"', '[model]\nname = "mlp"']
    )
    (tmp_path / "own.py").write_text(HALF)
    toml = tmp_path / "own.toml"
    toml.write_text(f'{bare}\n[algorithm]\nname = "python"\nfile = "own.py"\n[fleet]\ndevices = 12')
    chosen = scenario_file.override(scenario_file.load(toml), ["round.cohort=4"])
    algorithm = made(chosen)
    default = FedAvg()
    assert type(algorithm).__name__ == "Half" and algorithm.share == 0.5
    assert (algorithm.epochs, algorithm.personal_steps) == (default.epochs, default.personal_steps)
    assert chain_of(chosen).get("server") is None
    changed = scenario_file.override(
        chosen,
        ["algorithm.epochs=3", "algorithm.settings.share=0.25", "algorithm.server_optimizer=adam"],
    )
    assert (made(changed).epochs, made(changed).share) == (3, 0.25)
    assert chain_of(changed).get("server").optimizer == "adam"


def test_it_trains_through_the_protocol_and_its_report_shows_it(tmp_path):
    runs = [
        build_report(
            simulate(
                scenario(tmp_path, HALF, f"algorithm.settings.share={share}", *TINY),
                backend="reference",
            )
        )
        for share in (1.0, 0.0)
    ]
    assert runs[0]["scenario"]["algorithm"]["name"] == "Half"
    assert [run["scenario"]["algorithm"]["share"] for run in runs] == [1.0, 0.0]
    still = [round["global_accuracy"] for round in runs[1]["rounds"]]
    assert still[0] == still[1], "an update of nothing changes nothing"
    moved = [round["global_accuracy"] for round in runs[0]["rounds"]]
    assert moved[0] != moved[1]


def test_a_trial_is_another_one_when_the_file_changes(tmp_path):
    (tmp_path / "own.py").write_text(HALF)
    trial = Trial("digits", str(tmp_path / "own.py"), tuple(SMALL))
    first = trial.name()
    assert trial.scenario().algorithm.label == "own"
    assert str(tmp_path) not in str(trial.scenario().to_json())
    (tmp_path / "own.py").write_text(HALF.replace("0.5", "0.6"))
    assert trial.name() != first


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        ("x = 1", (), "there is no class in it that extends Algorithm"),
        (HALF + "class Other(Half): pass", (), "several classes in it extend Algorithm"),
        (HALF, ("algorithm.kind=Whole",), "there is no class `Whole` in it"),
        (HALF.replace("@dataclass(frozen=True)\n", ""), (), "Half is no dataclass"),
        (
            HALF.replace("float", "Annotated[float, dl.learn.Bounds(ge=0, le=1)]").replace(
                "import delian", "from typing import Annotated\nimport delian"
            ),
            ("algorithm.settings.share=1.5",),
            "algorithm.settings.share cannot be 1.5",
        ),
        (HALF, ("algorithm.settings.rho=1",), "unexpected keyword argument 'rho'"),
        ("import nothing_of_the_kind", (), "running it failed: ModuleNotFoundError"),
        ("raise SystemExit(3)", (), "running it failed: SystemExit"),
    ],
)
def test_what_is_no_algorithm_is_told_in_words(tmp_path, text, settings, says):
    with pytest.raises(DelianError, match=r"own\.py(:\d+)?: .*" + says) as caught:
        made(scenario(tmp_path, text, *settings))
    assert caught.value.hint


def test_the_line_that_fails_and_a_module_beside_the_file_are_named(tmp_path):
    with pytest.raises(DelianError, match=r"own\.py:2: running it failed: ZeroDivisionError"):
        made(scenario(tmp_path, "x = 1\ny = 1 / 0"))
    (tmp_path / "parts_of_mine.py").write_text("part = 1")
    with pytest.raises(DelianError, match=r"own\.py:1: .*No module named") as caught:
        made(scenario(tmp_path, "import parts_of_mine"))
    assert "put parts_of_mine into it" in caught.value.hint


def test_the_page_lists_what_an_algorithm_may_say():
    text = (ROOT / "docs" / "algorithms.md").read_text()
    said = dict(re.findall(r"`(\w+)\((task[^)]*|state[^)]*|start|data|count|model|)\)`", text))
    methods = {
        name: ", ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in vars(Algorithm).items()
        if callable(method) and not name.startswith("_")
    }
    assert {name: said.get(name) for name in methods} == methods


def test_a_loss_of_one_s_own_trains_as_the_page_has_it(tmp_path):
    text = (ROOT / "docs" / "algorithms.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Focal" in b]
    runs = [
        simulate(
            scenario(tmp_path, block, f"algorithm.settings.gamma={gamma}", *TINY),
            backend="reference",
        ).rounds[0]
        for gamma in (0.0, 2.0)
    ]
    plain = simulate(
        scenario(
            tmp_path,
            "import delian as dl\nfrom dataclasses import dataclass\n"
            "@dataclass(frozen=True)\nclass Plain(dl.learn.FedAvg): pass",
            *TINY,
        ),
        backend="reference",
    ).rounds[0]
    assert np.isclose(runs[0].training_loss, plain.training_loss, rtol=1e-4)
    assert runs[1].training_loss < 0.95 * plain.training_loss


def test_one_that_extends_feddyn_knows_the_share_of_a_round(tmp_path):
    text = HALF.replace("FedAvg", "FedDyn").replace("    share: float = 0.5\n", "")
    text = text.replace("self.share", "0.5")
    assert made(scenario(tmp_path, text)).share == 6 / 8
    assert made(scenario(tmp_path, text, "algorithm.settings.share=0.1")).share == 0.1


def test_one_of_several_classes_is_named_behind_the_file(tmp_path):
    text = HALF + "@dataclass(frozen=True)\nclass Other(Half): pass"
    (tmp_path / "own.py").write_text(text)
    for name in ("Half", "Other"):
        label, trial = _base(f"digits:{tmp_path / 'own.py'}:{name}", SMALL, None)
        assert label == f"digits {name}"
        assert type(made(trial.scenario())).__name__ == name
    with pytest.raises(DelianError, match="several classes") as caught:
        made(scenario(tmp_path, text))
    assert "own.py:Other" in caught.value.hint


def test_a_file_that_is_not_there_is_told(tmp_path):
    chosen = scenario_file.with_algorithm(scenario_file.load("digits"), str(tmp_path / "no.py"))
    with pytest.raises(DelianError, match=r"no\.py: no such Python file"):
        made(chosen)
    with pytest.raises(DelianError, match=r"`algorithm\.file` is missing"):
        scenario_file.with_algorithm(scenario_file.load("digits"), "python")


def test_a_run_is_the_same_from_another_copy_of_its_files(tmp_path):
    model = "import delian as dl\ndef init(key, shape, classes):\n"
    model += "    return dl.nn.Sequential((dl.nn.Flatten(), dl.nn.Dense.init(key, 64, classes)))\n"
    traces = []
    for folder in (tmp_path / "one", tmp_path / "another" / "place"):
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(model)
        (folder / "own.py").write_text(HALF)
        (folder / "own.toml").write_text(
            'name = "own"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
            'file = "model.py"\n[algorithm]\nname = "python"\nfile = "own.py"\n'
            "[fleet]\ndevices = 12\n[round]\ncohort = 3\n[evaluation]\ndevices = 1\n"
        )
        chosen = scenario_file.load(str(folder / "own.toml"))
        traces.append(simulate(chosen, backend="reference").trace_hash)
    assert traces[0] == traces[1]
