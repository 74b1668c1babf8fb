"""`dl.simulate`, `dl.load` and `delian predict`: a federation in one call, and its predictions."""

import json
from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from typer.testing import CliRunner


def rows(count: int = 240):
    """Three kinds told apart by two columns, one of them text."""
    rng = np.random.default_rng(0)
    kind = np.arange(count) % 3
    return {
        "length": kind + rng.normal(0, 0.4, count),
        "colour": np.array(["red", "blue"])[(kind == 1).astype(int)],
        "kind": np.array(["rose", "lily", "iris"])[kind],
    }


@pytest.fixture(scope="module")
def run():
    return dl.simulate(
        data=rows(), rounds=4, settings={"fleet.dropout": 0.0}, backend="reference", progress=False
    )


def test_a_result_says_in_a_line_what_came_out(run):
    assert repr(run).startswith("<data, fedavg: 4 rounds, 4 devices; accuracy ")
    assert len(repr(run)) < 200 and "<table>" in run._repr_html_()
    assert run.accuracy > 0.8 and run.warnings == []
    assert [r["round"] for r in records(run.rounds)] == [1, 2, 3, 4]
    assert records(run.devices)[0]["examples"] > 10


def records(frame):
    return frame if isinstance(frame, list) else frame.to_dict("records")


def test_predictions_take_raw_rows_of_any_number(run):
    table = rows(100)
    assert np.mean(run.model.predict(table) == table["kind"]) > 0.8
    assert run.model.predict({k: v[:1] for k, v in table.items()}).shape == (1,)
    assert run.model.predict({k: v[:0] for k, v in table.items()}).shape == (0,)
    chances = run.model.predict_proba(table)
    assert chances.shape == (100, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert "(iris, lily, rose)" in repr(run.model)


def test_each_device_has_a_model_of_its_own(run):
    table = rows(60)
    shared, own = run.model.outputs(table), run.personal_model(0).outputs(table)
    assert own.shape == shared.shape and not np.array_equal(own, shared)
    np.testing.assert_array_equal(run.personal_model("device 0").outputs(table), own)
    with pytest.raises(dl.DelianError, match="there is no device 9"):
        run.personal_model(9)


def test_a_report_is_one_page_of_the_runs_name(run, tmp_path):
    page = run.report(tmp_path / "pages" / "one.html")
    assert page == tmp_path / "pages" / "one.html"
    assert page.read_text() == run.save(tmp_path / "out").read_text()
    assert run.report(page) == page  # replaces it
    with pytest.raises(dl.DelianError, match="is a folder"):
        run.report(tmp_path)


def test_a_saved_run_is_loaded_with_its_names(run, tmp_path):
    page = run.save(tmp_path / "out")
    assert page.exists()
    model = dl.load(tmp_path / "out", backend="reference")
    table = rows(30)
    np.testing.assert_array_equal(model.predict(table), run.model.predict(table))
    lines = [f"{a},{b}" for a, b in zip(table["colour"], table["length"], strict=True)]
    (tmp_path / "new.csv").write_text("colour,length\n" + "\n".join(lines))
    asked = ["predict", str(tmp_path / "out" / "model.bundle"), str(tmp_path / "new.csv"), "--json"]
    found = json.loads(CliRunner().invoke(app, asked).stdout)
    assert found["predictions"] == model.predict(table).tolist()
    (tmp_path / "short.csv").write_text("length\n1\n")
    fault = CliRunner().invoke(app, [*asked[:2], str(tmp_path / "short.csv")]).exception
    assert isinstance(fault, dl.DelianError) and "no column `colour`" in fault.message


def test_a_pair_of_arrays_is_data():
    rng = np.random.default_rng(0)
    x = rng.normal(1e4, 1e3, (200, 3))
    y = 5000 + 3 * (x[:, 0] - 1e4) + rng.normal(0, 30, 200)
    run = dl.simulate(data=(x, y), rounds=15, backend="reference", progress=False)
    assert records(run.rounds)[-1]["global_r_squared"] > 0.8
    found = run.model.predict(x)
    assert found.shape == (200,) and abs(found.mean() - y.mean()) < 600
    with pytest.raises(dl.DelianError, match="numbers, and no classes"):
        run.model.predict_proba(x)


def test_a_module_is_a_model():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(2, 8)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.head(torch.relu(self.first(x)))

    for model in (Net, Net()):
        run = dl.simulate(data=rows(), model=model, rounds=2, backend="reference", progress=False)
        assert run.result.scenario.model.kind == "Net" and run.accuracy > 0.4
        assert run.result.parameters == 2 * 8 + 8 + 8 * 3 + 3


def test_a_function_makes_a_model():
    def init(key, shape, classes):
        return dl.nn.Mlp.init(key, shape[0], (4,), classes)

    run = dl.simulate(data=rows(), model=init, rounds=2, backend="reference", progress=False)
    assert run.result.parameters == 2 * 4 + 4 + 4 * 3 + 3


def test_scenarios_are_names_files_tables_and_objects(tmp_path):
    tables = {
        "name": "own",
        "rounds": 1,
        "data": {"source": "digits"},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": "fedavg"},
        "fleet": {"devices": 6},
    }
    first = dl.simulate(tables, backend="reference", progress=False)
    again = dl.simulate(first.result.scenario, backend="reference", progress=False)
    assert first.result.trace_hash == again.result.trace_hash


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": 3}, "data is int"),
        ({"data": rows(), "target": "size"}, "no column `size`"),
        ({"data": Path("nowhere.csv")}, "there is no data file"),
        ({"scenario": "digit"}, "there is no scenario file digit"),
        ({"scenario": {"name": "x", "size": 3}}, "is missing"),
        ({"model": "resnet"}, "there is no model `resnet`"),
        ({"data": rows(), "model": 3}, "int is no model"),
        ({"data": rows(), "model": lambda x: x}, "takes x"),
        ({"rounds": 0}, "`rounds` cannot be 0"),
        ({"settings": {"fleet.dropuot": 1}}, "dropuot"),
        ({"algorithm": "fedagv"}, "there is no algorithm `fedagv`"),
        ({"data": (np.zeros((3, 2)), np.zeros(4))}, "shape"),
    ],
)
def test_what_does_not_fit_is_said(arguments, said):
    with pytest.raises(dl.DelianError) as caught:
        dl.simulate(**arguments, backend="reference", progress=False)
    assert said in str(caught.value) and "hint" in str(caught.value)


def test_an_estimator_of_scikit_learn_is_shown_the_way():
    class Estimator:
        def fit(self, x, y): ...

        def get_params(self): ...

    with pytest.raises(dl.DelianError, match="estimator of scikit-learn") as caught:
        dl.simulate(data=rows(), model=Estimator(), backend="reference", progress=False)
    assert "model.hidden" in caught.value.hint


@dl.module
class Linear:
    weight: dl.Tensor

    def __call__(self, x):
        return x @ self.weight


@dl.module
class Weighed:
    weight: dl.Tensor

    def __call__(self, x, weight):
        return x @ self.weight


@pytest.mark.parametrize("algorithm", ["fedavg", "maml"])
def test_a_model_needs_no_parameter_for_weights_of_rows(algorithm):
    def made(kind):
        model = kind(np.zeros((2, 3), np.float32))
        asked = {"rounds": 2, "algorithm": algorithm, "backend": "reference", "progress": False}
        return dl.simulate(data=rows(), model=model, **asked)

    one, other = made(Linear), made(Weighed)
    assert np.array_equal(one.result.bundle.weights, other.result.bundle.weights)
    assert np.array_equal(one.model.outputs(rows(5)), other.model.outputs(rows(5)))
    assert one.accuracy == other.accuracy > 0.3


PARAGRAPH = "the cat sat on the mat, and the dog lay on the log.\n\n"


def test_a_text_alone_is_learnt_by_its_next_character(tmp_path):
    (tmp_path / "tale.txt").write_text(PARAGRAPH * 60)
    run = dl.simulate(
        data=tmp_path / "tale.txt",
        rounds=6,
        settings={"model.hidden": 16, "model.layers": 1, "privacy.aggregation": "plain"},
        progress=False,
    )
    assert run.result.scenario.name == "tale" and run.result.scenario.data.source == "text"
    assert run.accuracy > 1.5 * 1 / 6  # the most frequent character is a sixth of the text


def test_a_play_has_its_roles_as_devices(tmp_path):
    blocks = [f"Role {i % 9}:\n{PARAGRAPH.strip() * 9}" for i in range(27)]
    (tmp_path / "play.txt").write_text("\n\n".join(blocks) + "\n\n")
    from delian.simulations.scenario.datasets import load_data, scenario_for

    scenario = scenario_for(None, tmp_path / "play.txt")
    assert scenario.data.source == "shakespeare"
    assert len(load_data(scenario, tmp_path / "play.txt").devices) == 9


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({"model": "net.onnx"}, "dl.from_onnx('net.onnx')"),
        ({"model": Path("net.pt")}, "--torch net.py:Net"),
        ({"data": "hf://user/rows"}, "load_dataset('user/rows'"),
        ({"data": "model.h5"}, "KERAS_BACKEND=torch"),
        ({"settings": {"model.name": "python", "model.file": "net.pth"}}, "--torch net.py:Net"),
        ({"settings": {"model.name": "onnx", "model.file": "net.keras"}}, "KERAS_BACKEND=torch"),
        ({"settings": {"model.name": "torch", "model.file": "net.onnx"}}, "model.name=onnx"),
    ],
)
def test_a_file_of_another_framework_gets_one_answer(given, way):
    with pytest.raises(dl.DelianError) as told:
        dl.simulate("digits" if "data" not in given else None, **given, progress=False)
    assert way in told.value.hint


def test_what_an_init_makes_of_another_framework_gets_the_same_answer():
    torch = pytest.importorskip("torch")

    def init(key, shape, classes):
        return torch.nn.Linear(64, classes)

    net = torch.nn.Linear(64, 10)

    def given(key, shape, classes):
        return net

    for function in (init, given):
        with pytest.raises(dl.DelianError) as told:
            dl.simulate("digits", model=function, progress=False)
        assert "PyTorch module" in told.value.message
        assert "delian simulate --torch" in told.value.hint


def test_a_file_of_a_setting_is_found_in_the_working_folder(tmp_path, monkeypatch):
    from delian.simulations.scenario.scenario_file import load, override

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "inner").mkdir()
    own = override(load("digits"), ["model.name=python", "model.file=own.py"])
    assert own.model_file == tmp_path / "own.py" and own.to_json()["model"]["file"] == "own.py"
    missing = override(load("digits"), ["model.name=python", "model.file=other.py"])
    assert missing.model_file != tmp_path / "other.py"
    (tmp_path / "inner" / "own.py").write_text("")
    (tmp_path / "inner" / "mine.toml").write_text(Path(str(scenario_of("digits"))).read_text())
    inner = override(load("inner/mine.toml"), ["model.name=python", "model.file=own.py"])
    assert inner.model_file == Path("inner/own.py")  # the scenario's folder comes first


def scenario_of(name):
    from delian.simulations.scenario.scenario_file import find

    return find(name)


def test_a_module_that_is_compiled_gets_the_same_answer():
    torch = pytest.importorskip("torch")
    with pytest.raises(dl.DelianError) as told:
        dl.compile(torch.nn.Linear(3, 2))(np.zeros((2, 3), np.float32))
    assert "dl.from_torch" in told.value.hint
