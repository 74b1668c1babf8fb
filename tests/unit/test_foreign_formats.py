"""Models and data of other frameworks: one answer that names the way."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.common.foreign_formats import refuse_data, refuse_file, way_of


def hint_of(*arguments, **options):
    with pytest.raises(DelianError) as found:
        refuse_file(*arguments, **options)
    return f"{found.value.message} / {found.value.hint}"


@pytest.mark.parametrize(
    ("name", "place", "ways"),
    [
        ("net.onnx", "model", ["model.file=net.onnx", "dl.from_onnx('net.onnx')"]),
        ("net.pt", "model", ["--torch net.py:Net", "model.weights=net.safetensors"]),
        ("net.pth", "data", ["PyTorch", "no data"]),
        ("net.safetensors", "model", ["--torch", "model.weights=net.safetensors"]),
        ("net.keras", "model", ["KERAS_BACKEND=torch", "--torch net.py:Net"]),
        ("net.h5", "bundle", ["model.bundle of a run", "KERAS_BACKEND=torch"]),
        ("model.joblib", "model", ["scikit-learn", "model.hidden=[]"]),
        ("rows.xlsx", "data", ["CSV"]),
        ("rows.MAT", "data", ["scipy.io.loadmat"]),
        ("rows.tar", "data", ["unpack"]),
        ("hf://datasets/a/mnist", "data", ["load_dataset('a/mnist'", "--data mnist.parquet"]),
        ("hf://google/vit", "model", ["from_pretrained('google/vit')", "--torch vit.py:Net"]),
    ],
)
def test_the_answer_names_the_way(name, place, ways):
    said = hint_of(name, place)
    assert not [way for way in ways if way not in said], said
    assert "{" not in said


def test_a_name_on_a_hub_is_known_where_it_has_become_a_path():
    assert "Hugging Face" in hint_of(Path("hf://a/b"), "data")
    assert "load_dataset('a/b'" in hint_of(Path.cwd() / "hf://a/b", "data")


def test_what_may_be_right_passes():
    for name in ("rows.csv", "rows.npz", "photos", "net.py", "text.txt", "x.bundle"):
        for place in ("data", "model", "bundle"):
            refuse_file(name, place)
    refuse_file("emnist.zip", "data", archives=False)


def test_objects_are_known_without_an_import():
    torch = pytest.importorskip("torch")
    linear = importlib.import_module("sklearn.linear_model")
    for thing, word in (
        (torch.nn.Linear(2, 2), "--torch"),
        (torch.nn.Linear, "dl.from_torch"),
        (linear.LogisticRegression(), '"model.hidden": []'),
        (linear.Ridge, '"model.hidden": []'),
    ):
        found = way_of(thing)
        assert found is not None and word in found[1]
    assert way_of(np.zeros(3)) is None and way_of(len) is None
    rows = torch.utils.data.TensorDataset(torch.zeros(3, 2))
    for thing, word in (
        (rows, "zip(*dataset)"),
        (torch.utils.data.DataLoader(rows), ".dataset"),
        (torch.nn.Linear(2, 2), "model=net"),
    ):
        with pytest.raises(DelianError) as told:
            refuse_data(thing)
        assert word in (told.value.hint or "")
    refuse_data([1, 2])
