"""`delian quantise`: from a bundle and rows of data to a bundle for inference in bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Regression, Samples, SampleSet
from delian.core.learning import bundle as bundles
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp

ROWS = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)


@pytest.fixture
def bundle(tmp_path, monkeypatch, delian):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    return built(tmp_path, Classification, np.arange(20) % 3)


def built(tmp_path, kind, y):
    data = SampleSet(ROWS, y, np.array(20), np.array(0))
    made = build(
        kind("tiny", lambda key: Mlp.init(key, 8, (40,), 3), Samples(4, 1.0)),
        FedAvg(),
        data,
        example=TensorType(DType.F32, (4, 8)),
        clip=5.0,
        clients_max=4,
        weight_max=20.0,
        seed=1,
    )
    path = tmp_path / "tiny.bundle"
    made.save(path)
    return path


def test_a_bundle_is_quantised_and_says_how_often_it_agrees(delian, bundle, tmp_path):
    np.savez(tmp_path / "rows.npz", x=ROWS)
    code, said, err = delian(
        "quantise", bundle, "--data", "rows.npz", "-o", "small.bundle", "--json"
    )
    assert (code, err) == (0, "")
    small = bundles.load(tmp_path / "small.bundle")
    assert list(small.programs) == ["infer"]
    assert said["bytes"] == (tmp_path / "small.bundle").stat().st_size < said["from_bytes"]
    assert said["agreement"] >= 0.9
    code, said, err = delian("quantise", "small.bundle", "--data", "rows.npz", "-o", "again.bundle")
    assert code == 2 and "already" in err


def test_rows_are_of_any_data_that_is_simulated(delian, bundle, tmp_path):
    """An array `image` too, and a table with the columns that the run's report names."""
    np.savez(tmp_path / "named.npz", image=ROWS, label=np.zeros(20))
    names = [f"c{i}" for i in range(8)]
    lines = [",".join(map(str, row)) for row in ROWS]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    code, _, err = delian("quantise", bundle, "--data", "rows.csv", "-o", "small.bundle")
    assert code == 2 and "the columns of the model are not known" in err
    encoders = [{"column": name, "kind": "number"} for name in names]
    facts = {"numbers": False, "label_names": ["0", "1", "2"]}
    facts["preparation"] = {"encoders": encoders}
    (tmp_path / "report.json").write_text(json.dumps({"data": facts}))
    (tmp_path / "model.bundle").write_bytes((tmp_path / "tiny.bundle").read_bytes())
    made = []
    for source, data in ((bundle, "named.npz"), (tmp_path, "rows.csv"), (bundle, "rows.csv")):
        out = f"small{len(made)}.bundle"
        code, _, err = delian("quantise", source, "--data", data, "-o", out)
        assert (code, err) == (0, "")
        made.append((tmp_path / out).read_bytes())
    assert made[0] == made[1] == made[2]


def test_numbers_are_so_far_apart_and_not_of_a_class(delian, bundle, tmp_path):
    file = built(tmp_path, Regression, np.zeros((20, 3), np.float32))
    np.savez(tmp_path / "rows.npz", x=ROWS)
    code, said, _ = delian("quantise", file, "--data", "rows.npz", "-o", "small.bundle", "--json")
    assert code == 0 and "agreement" not in said
    assert 0 < said["difference"] < 0.1


def test_rows_that_cannot_be_used_are_told(delian, bundle, tmp_path):
    np.savez(tmp_path / "named.npz", rows=ROWS)
    np.save(tmp_path / "narrow.npy", ROWS[:, :5])
    (tmp_path / "text.npy").write_text("no numbers")
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01\x00\x02\x00{(")
    for name, words in (
        ("absent.npy", "there is no data file"),
        ("named.npz", "no array `x`"),
        ("narrow.npy", "the model takes rows of [8]"),
        ("text.npy", "neither an .npy nor an .npz"),
        ("torn.npy", "neither an .npy nor an .npz"),
    ):
        code, _, err = delian("quantise", bundle, "--data", name, "-o", "small.bundle")
        assert code == 2 and words in err, err
    assert not (tmp_path / "small.bundle").exists()
