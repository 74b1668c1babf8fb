"""`delian model show`, `check` and `convert` of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import load
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx")
KEY = dl.random.key(2)
X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


def delian_model(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["model", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    dl.to_onnx(dl.nn.Dense.init(KEY, 5, 3), X, path=path)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    rows = SampleSet(np.zeros((8, 5), np.float32), np.zeros(8, np.int32), np.array(6), np.array(2))
    made = build(
        Classification("tiny", lambda key: dl.nn.Mlp.init(key, 5, (4,), 3), Samples(4, 1.0)),
        FedAvg(),
        rows,
        example=TensorType(DType.F32, (2, 5)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )
    path = tmp_path / "tiny.bundle"
    made.save(path)
    return path


def odd_file(path: Path) -> Path:
    node = onnx.helper.make_node("RandomNormalLike", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ("n",)) for n in "xy"]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", *[[e] for e in ends])), path
    )
    return path


def test_a_file_of_onnx_is_shown_with_its_costs(net):
    code, output = delian_model("show", net, "--json")
    facts = json.loads(output)
    assert code == 0 and facts["format"] == "onnx" and facts["elements"] == 18
    assert [p["name"] for p in facts["parameters"]] == ["weight", "bias"]
    (program,) = facts["programs"]
    assert program["operators"]["MatMul"] == 1
    assert program["inputs"] == [{"name": "x", "type": "f32[2,5]"}]
    assert program["flops"] == 2 * 2 * 5 * 3 + 2 * 3
    code, output = delian_model("show", net)
    assert code == 0 and "weight" in output and "66 operations" in output


def test_a_bundle_and_a_file_of_tensors_are_shown(bundle, tmp_path):
    _, output = delian_model("show", bundle, "--json")
    facts = json.loads(output)
    assert facts["task"] == "tiny" and facts["elements"] == 5 * 4 + 4 + 4 * 3 + 3
    assert "infer" in [p["name"] for p in facts["programs"]]
    assert all(p["flops"] >= 0 for p in facts["programs"])
    dl.write_safetensors(tmp_path / "w.safetensors", {"w": np.ones((3, 2), np.float16)})
    _, output = delian_model("show", tmp_path / "w.safetensors", "--json")
    wanted = {"name": "w", "dtype": "f16", "shape": [3, 2], "elements": 6}
    assert json.loads(output)["parameters"] == [wanted]


def test_what_would_be_refused_is_listed(net, bundle, tmp_path):
    for path in (net, bundle):
        code, output = delian_model("check", path, "--json")
        assert code == 0 and json.loads(output)["refused"] == []
    code, output = delian_model("check", odd_file(tmp_path / "odd.onnx"), "--json")
    (one,) = json.loads(output)["refused"]
    assert code == 1 and one["what"] == "RandomNormalLike" and "random numbers" in one["why"]
    code, output = delian_model("check", tmp_path / "odd.onnx")
    assert code == 1 and "RandomNormalLike" in output


def test_a_bundle_becomes_the_model_of_its_inference(bundle, tmp_path):
    code, _ = delian_model("convert", bundle, tmp_path / "tiny.onnx")
    model = dl.from_onnx(tmp_path / "tiny.onnx")
    assert code == 0 and set(model.parameters) == {
        leaf.name for leaf in load(bundle).manifest.state
    }
    function = load(bundle).programs["infer"]
    from delian.core.compiler.backends.reference import ReferenceProgram

    leaves = [model.parameters[n.removeprefix("model.")] for n in function.param_names[:-1]]
    (wanted,) = ReferenceProgram(function)(*leaves, X)
    np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-6)


def test_parameters_become_a_file_of_tensors(net, bundle, tmp_path):
    out = tmp_path / "out.safetensors"
    assert delian_model("convert", net, out)[0] == 0
    arrays, _ = dl.read_safetensors(out)
    model = dl.from_onnx(net)
    assert arrays.keys() == model.parameters.keys()
    assert all(np.array_equal(arrays[n], model.parameters[n]) for n in arrays)
    code, output = delian_model("convert", bundle, out, "--json")
    arrays, _ = dl.read_safetensors(out)
    assert code == 0 and json.loads(output)["parameters"] == len(arrays) == 4
    flat = np.concatenate([arrays[leaf.name].ravel() for leaf in load(bundle).manifest.state])
    assert np.array_equal(flat, load(bundle).weights)


def test_other_pairs_and_names_are_refused(net, tmp_path):
    from delian.cli.programs.model_file_facts import convert, facts_of

    with pytest.raises(DelianError, match=r"a \.onnx does not become a \.bundle"):
        convert(net, tmp_path / "net.bundle")
    with pytest.raises(DelianError, match="no model's file"):
        facts_of(tmp_path / "net.txt")
