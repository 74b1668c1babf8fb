"""`delian partition cascade`: two bundles and labelled rows to a threshold and a report."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp


@pytest.fixture
def folder(tmp_path, monkeypatch, delian):
    """Two bundles, untrained, and rows that they are to be judged by."""
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    rows = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    data = SampleSet(rows, np.arange(60) % 3, np.array(60), np.array(0))
    for name, hidden in (("small", ()), ("large", (40,))):
        build(
            Classification(name, lambda key, h=hidden: Mlp.init(key, 8, h, 3), Samples(4, 1.0)),
            FedAvg(),
            data,
            example=TensorType(DType.F32, (4, 8)),
            clip=5.0,
            clients_max=4,
            weight_max=60.0,
            seed=1,
        ).save(tmp_path / f"{name}.bundle")
    np.savez(tmp_path / "rows.npz", x=rows, y=np.arange(60) % 3)
    return tmp_path


def test_a_cascade_is_calibrated_and_its_report_written(delian, folder):
    call = ("partition", "cascade", "small.bundle", "large.bundle", "--data", "rows.npz")
    code, facts, err = delian(
        *call, "--rate", "0.5", "--link", "1Mbit/s,5ms", "--slower", "3", "-o", "c.html", "--json"
    )
    assert (code, err) == (0, "")
    assert facts["calibrated"]["share"] == 0.5
    assert facts["rows"] == {"calibrating": 30, "judging": 30}
    assert (facts["small"]["task"], facts["large"]["task"]) == ("small", "large")
    assert (facts["bytes"]["up"], facts["slower"]) == (32, 3.0)
    assert "<svg" in (folder / "c.html").read_text()
    code, said, err = delian(*call, "--accuracy", "0.1", "--filter", "CrossEntropy")
    assert (code, err) == (0, "")
    assert "CrossEntropy: threshold_cross_entropy = " in said and "oracle" in said


def test_what_is_wrong_is_told(delian, folder):
    np.savez(folder / "unlabelled.npz", x=np.zeros((9, 8), np.float32))
    call = ("partition", "cascade", "small.bundle", "large.bundle", "--data")
    for more, words in (
        (("rows.npz",), "nothing is asked"),
        (("rows.npz", "--rate", "0.1", "--accuracy", "0.5"), "for a share or for an accuracy"),
        (("rows.npz", "--rate", "0.1", "--failure", "0.1"), "of a promised accuracy"),
        (("rows.npz", "--rate", "0.1", "--filter", "Best"), "is called Best"),
        (("rows.npz", "--accuracy", "0.999999"), "the best has"),
        (("rows.npz", "--rate", "0.1", "--seed", "-1"), "--seed"),
        (("unlabelled.npz", "--rate", "0.1"), "no array `y`"),
    ):
        code, _, err = delian(*call, *more)
        assert code == 2 and words in err, err
