"""Models in ONNX as models of a scenario."""

from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper


def saved(path: Path, dtype=np.float32) -> None:
    """Conv, batch normalisation, relu, pooling, a head: of digits [N, 1, 8, 8]."""
    rng = np.random.default_rng(0)
    held = {
        "conv": rng.normal(size=(8, 1, 3, 3)) / 3,
        "scale": np.ones(8),
        "shift": np.zeros(8),
        "mean": np.zeros(8),
        "variance": np.ones(8),
        "head": rng.normal(size=(128, 10)) / 11,
        "bias": np.zeros(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["c"], pads=(1, 1, 1, 1)),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=(2, 2), strides=(2, 2)),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head", "bias"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, ("n", 1, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 10))],
        [numpy_helper.from_array(a.astype(dtype), n) for n, a in held.items()],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)]), path)


def _scenario(folder: Path, *settings: str, dtype=np.float32):
    saved(folder / "net.onnx", dtype)
    keys = ["model.name=onnx", f"model.file={folder / 'net.onnx'}"]
    short = ["algorithm.name=fedavg", "rounds=8", "evaluation.every=8"]
    return scenario_file.override(scenario_file.load("digits"), [*keys, *short, *settings])


def test_a_model_is_trained_under_masks(tmp_path: Path) -> None:
    result = simulate(_scenario(tmp_path), threads=1)
    assert result.rounds[-1].personalised_accuracy > 0.9
    assert result.rounds[-1].global_accuracy > 0.5


def test_a_model_that_takes_other_rows_is_refused_at_its_node(tmp_path: Path) -> None:
    with pytest.raises(DelianError, match=r"Conv \(x, conv\)"):
        simulate(_scenario(tmp_path, "model.images=channels_last"), threads=1)


def test_parameters_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DelianError, match=r"model\.parameters\.\w+` is f64"):
        simulate(_scenario(tmp_path, dtype=np.float64), threads=1)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"\x00\x01")
    with pytest.raises(DelianError, match="no model in ONNX"):
        simulate(scenario, threads=1)
