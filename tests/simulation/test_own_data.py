"""A user's own data without a scenario: fitted defaults, and warnings that say what to do."""

from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.predictor import load as load_model
from delian.simulations.report.report import build_report
from delian.simulations.report.run_warnings import warnings_of
from delian.simulations.runs import one_call
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.datasets import load_data, named_data, scenario_for
from delian.simulations.scenario.own_data import own_columns


def flowers(tmp_path: Path) -> Path:
    """Three kinds that two lengths of very different units tell apart."""
    rng = np.random.default_rng(0)
    kind = np.arange(240) % 3
    x = np.stack([kind + rng.normal(0, 0.3, 240), 1e5 * (kind == 1) + rng.normal(0, 2e4, 240)], 1)
    lines = [
        f"{a:.3f},{b:.1f},{('rose', 'lily', 'iris')[k]}" for (a, b), k in zip(x, kind, strict=True)
    ]
    path = tmp_path / "flowers.csv"
    path.write_text("length,weight,species\n" + "\n".join(lines))
    return path


def test_a_table_is_learnt_without_a_further_option(tmp_path):
    path = flowers(tmp_path)
    scenario = scenario_for(None, path)
    assert scenario.name == "flowers" and "species" not in scenario.data.columns
    assert "240 rows of 2 columns" in scenario.description and "lily" in scenario.description
    report = build_report(simulate(scenario, data_path=path, backend="reference"))
    assert report["summary"]["global_accuracy"] > 0.9 and report["summary"]["warnings"] == []
    assert report["data"]["label_names"] == ["iris", "lily", "rose"]


def test_numbers_are_learnt_in_their_own_units(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    y = 5000 + 800 * x[:, 0] - 300 * x[:, 1] + rng.normal(0, 20, 240)
    path = tmp_path / "prices.csv"
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,price", comments="")
    scenario = scenario_for(None, path)
    assert scenario.regression and scenario.data.target == "price"
    scenario = scenario_file.override(scenario, ["rounds=15"])
    result = simulate(scenario, data_path=path, backend="reference")
    assert result.rounds[-1].global_r_squared > 0.9
    assert result.rounds[-1].global_absolute_error < 250


def test_a_target_is_chosen_by_name(tmp_path):
    path = flowers(tmp_path)
    scenario = scenario_for(None, path, ["data.target=length"])
    assert scenario.regression and load_data(scenario, path).card.numbers
    with pytest.raises(DelianError, match="no column `width`"):
        scenario_for(None, path, ["data.target=width"])


def test_a_named_scenario_keeps_its_settings_on_a_table(tmp_path):
    path = flowers(tmp_path)
    scenario = scenario_for("digits", path)
    assert scenario.algorithm.name == "fomaml" and scenario.data.source == "table"
    settings = ["fleet.devices=20", "data.held_out_devices=2"]
    assert load_data(scenario_file.override(scenario, settings), path).classes == 3


def test_arrays_with_devices_keep_them(tmp_path):
    path = tmp_path / "clinics.npz"
    x = np.random.default_rng(0).normal(1e4, 1e3, (120, 4)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, 0] > 1e4).astype(int), device=np.arange(120) % 12)
    scenario = scenario_for(None, path)
    data = load_data(scenario, path)
    assert len(data.devices) == 12 and data.scaling is not None and len(data.held_out) == 2


def test_images_in_folders_are_read(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(40):
            pixels = rng.normal(level, 10, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / name / f"{k}.png")
    scenario = scenario_for(None, tmp_path / "photos")
    data = load_data(scenario, tmp_path / "photos")
    assert data.example_shape == (20, 20, 3) and data.card.label_names == ("dark", "light")
    assert scenario.model.name == "cnn"


def test_devices_without_rows_enough_are_said(tmp_path):
    path = tmp_path / "lone.csv"
    path.write_text("a,device,y\n" + "".join(f"{k},d{k},{'uv'[k % 2]}\n" for k in range(40)))
    with pytest.raises(DelianError, match=r"no device of lone\.csv has 4 rows"):
        scenario_for(None, path)


def test_whole_floats_are_labels_and_many_ints_are_numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    for name, y, source in (
        ("labels", (np.arange(100) % 2).astype(float), "labels"),
        ("numbers", np.arange(100), "numbers"),
    ):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        scenario = scenario_for(None, tmp_path / f"{name}.npz")
        assert scenario.data.targets == source
        assert load_data(scenario, tmp_path / f"{name}.npz").card.numbers == (source == "numbers")


@pytest.mark.parametrize("name", ["missing.csv", "missing.npz", "missing"])
def test_data_that_is_not_there_is_said(tmp_path, name):
    with pytest.raises(DelianError, match=r"there is no|no such file"):
        scenario_for(None, tmp_path / name)


def test_warnings_say_what_to_do(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "noise.npz"
    np.savez(path, x=rng.normal(size=(200, 4)).astype(np.float32), y=1 + rng.integers(0, 2, 200))
    scenario = scenario_file.override(scenario_for(None, path), ["rounds=2"])
    report = build_report(simulate(scenario, data_path=path, backend="reference"))
    warnings = " ".join(report["summary"]["warnings"])
    assert "no row has the label 0" in warnings


def chance(tmp_path, *settings):
    """Warnings of a run on labels that have nothing to do with the rows."""
    rng = np.random.default_rng(3)
    path = tmp_path / "chance.npz"
    x = rng.normal(size=(200, 30)).astype(np.float32)
    np.savez(path, x=x, y=rng.integers(0, 4, 200))
    scenario = scenario_file.override(scenario_for(None, path), settings)
    report = build_report(simulate(scenario, data_path=path, backend="reference"))
    return " ".join(report["summary"]["warnings"])


def test_labels_without_a_relation_to_the_rows_are_named_as_a_cause(tmp_path):
    warnings = chance(tmp_path, "rounds=10")
    assert "always giving the most frequent label" in warnings
    assert "the labels have nothing to do with the rows" in warnings and "are learnt" in warnings


def test_a_model_that_learns_nothing_is_given_other_settings_to_try(tmp_path):
    few = ["rounds=2", "algorithm.learning_rate=1e-6", "data.standardise=false"]
    warnings = chance(tmp_path, *few)
    assert "train for more rounds, standardise the features" in warnings
    assert "--learning-rate" in warnings


def test_another_model_leaves_out_the_settings_of_the_first(tmp_path):
    path = tmp_path / "pixels.npz"
    np.savez(path, x=np.zeros((120, 12, 12), np.uint8), y=np.arange(120) % 3)
    scenario = scenario_for(None, path)
    assert scenario.model.name == "cnn"
    dense = scenario_file.override(scenario, ["model.name=mlp"])
    assert dense.model.hidden == scenario_file.load("digits").model.hidden
    again = scenario_file.override(dense, ["model.name=cnn", "model.hidden=32"])
    assert again.model.hidden == 32


def test_a_model_that_was_better_before_the_last_round_is_told_of_its_rounds(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "few.csv"
    x = rng.normal(size=(120, 12))
    y = x[:, 0] + x[:, 1] + rng.normal(0, 2, 120)
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", fmt="%.4f")
    result = simulate(scenario_for(None, path), data_path=path, backend="reference")
    (found,) = (each for each in warnings_of(result) if "was best after round" in each)
    curve = [max(r.global_r_squared, r.personalised_r_squared) for r in result.rounds]
    assert f"after round {1 + int(np.argmax(curve))} (R² {max(curve):.2f}" in found
    assert f"--rounds {1 + int(np.argmax(curve))} or --learning-rate 0.001" in found


def test_data_may_stand_in_the_place_of_a_scenario(tmp_path, monkeypatch):
    (tmp_path / "digits" / "one").mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert named_data("digits", None) == ("digits", None)  # the bundled one, whatever lies here
    assert named_data("rows.csv", None) == (None, Path("rows.csv"))
    assert named_data("digits", Path("rows.csv")) == ("digits", Path("rows.csv"))
    assert named_data("", None) == ("", None)  # as a run that is resumed has it
    assert named_data("gone.csv", None) == ("gone.csv", None)
    with pytest.raises(DelianError, match="two files of data"):
        named_data("rows.csv", Path("other.csv"))


def test_a_time_series_is_forecast_and_predicted(tmp_path):
    draw = np.random.default_rng(0)
    lines = ["hour,sensor,load"]
    for sensor in range(4):
        for t in range(120):
            load = 10 * sensor + 5 * np.sin(t / 12 * 2 * np.pi) + draw.normal(0, 0.1)
            lines.append(f"2026-01-{1 + t // 24:02d} {t % 24:02d}:00,s{sensor},{load:.3f}")
    path = tmp_path / "power.csv"
    path.write_text("\n".join(lines) + "\n")
    settings = ["data.window=12", "data.horizon=2", "rounds=12"]
    scenario = scenario_file.override(scenario_for(None, path, settings), settings)
    assert scenario.data.source == "series" and scenario.regression
    result = simulate(scenario, data_path=path, backend="reference")
    assert result.rounds[-1].global_r_squared > 0.9
    run = one_call.simulate(data=str(path), settings=settings, progress=False)
    rows = own_columns(path)
    forecast = run.model.predict(rows)
    assert forecast.shape == (4, 2)
    np.testing.assert_allclose(forecast.mean(axis=1) // 10, [0, 1, 2, 3], atol=1)


def test_texts_by_class_are_learnt(tmp_path):
    draw = np.random.default_rng(0)
    words = {
        "food": ["bread", "soup", "salt", "oven", "taste"],
        "tech": ["code", "chip", "data", "cloud"],
    }
    for label, own in words.items():
        (tmp_path / "notes" / label).mkdir(parents=True)
        for k in range(60):
            text = " ".join(draw.choice([*own, "the", "of", "and", "is"], 12))
            (tmp_path / "notes" / label / f"{k}.txt").write_text(text)
    run = one_call.simulate(data=str(tmp_path / "notes"), rounds=5, progress=False)
    assert run.accuracy > 0.9
    given = {"text": np.array(["the soup is bread", "data of the cloud"])}
    assert run.model.predict(given).tolist() == ["food", "tech"]
    run.save(tmp_path / "run")
    again = load_model(tmp_path / "run")
    assert again.predict(given).tolist() == ["food", "tech"]


def test_widths_of_features_are_keys_of_a_table(tmp_path):
    draw = np.random.default_rng(0)
    lines = ["note,kind,y"]
    lines += [f"{' '.join(draw.choice(list('abcdef'), 4))},k{k % 6},{k % 2}" for k in range(240)]
    path = tmp_path / "notes.csv"
    path.write_text("\n".join(lines) + "\n")
    plain = load_data(scenario_for(None, path), path).devices[0].x.shape[1]
    settings = ["data.text_features=64", "data.categories_max=3"]
    narrow = scenario_file.override(scenario_for(None, path, settings), settings)
    assert load_data(narrow, path).devices[0].x.shape[1] == 64 + 3 + 1
    assert plain == 1024 + 6


def test_images_of_one_class_and_folders_of_nothing_are_told(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    image.new("L", (9, 9)).save(tmp_path / "photos" / "cat" / "1.png")
    with pytest.raises(DelianError, match="photos has one class, cat: there is nothing to learn"):
        scenario_for(None, tmp_path / "photos")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DelianError, match="a folder without data of a known kind"):
        named_data(str(tmp_path / "empty"), None)


def test_an_accuracy_on_uneven_labels_is_to_be_read_by_class(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 3)).round(3)
    y = np.where(np.arange(300) % 50 == 7, "fraud", "ok")
    x[:, 0] += 9 * (y == "fraud")
    path = tmp_path / "fraud.csv"
    rows = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x, y, strict=True)]
    path.write_text("a,b,c,y\n" + "\n".join(rows) + "\n")
    scenario = scenario_file.override(scenario_for(None, path), ["rounds=5"])
    report = build_report(simulate(scenario, data_path=path, backend="reference"))
    warnings = " ".join(report["summary"]["warnings"])
    assert "see the accuracy by class" in warnings and "others are not" not in warnings


def test_a_target_is_of_tables_alone(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.zeros((20, 2), np.float32), y=np.arange(20) % 2)
    with pytest.raises(DelianError, match="has no columns, of which `price` could be learnt"):
        scenario_for(None, path, ["data.target=price"])
