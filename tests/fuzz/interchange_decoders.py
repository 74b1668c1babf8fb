"""The decoders of files of other frameworks."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from delian.core.compiler.ir import DType
from delian.core.learning.interchange.onnx import from_onnx
from delian.core.learning.interchange.safetensors_file import read_safetensors, write_safetensors


@cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return Path(made.name)


def _read_safetensors(data: bytes) -> object:
    path = _folder() / "read.safetensors"
    path.write_bytes(data)
    arrays, metadata = read_safetensors(path)
    # What is read is a file again, and the same one.
    write_safetensors(path, arrays, metadata)
    again, texts = read_safetensors(path)
    assert texts == metadata and again.keys() == arrays.keys()
    assert all(again[n].tobytes() == a.tobytes() for n, a in arrays.items())
    return arrays


def _safetensors() -> list[bytes]:
    path, found = _folder() / "seed.safetensors", []
    every = {d.value: np.ones((2, 3), d.numpy) for d in DType.here()}
    for arrays, metadata in ((every, {"format": "np"}), ({"x": np.zeros((0, 2))}, {}), ({}, {})):
        write_safetensors(path, arrays, metadata)
        found.append(path.read_bytes())
    return found


def _onnx() -> list[bytes]:
    """A graph with shapes that are computed, and one with a branch, a loop and a function."""
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 1, 4, 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    kernel = numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=(1, 1, 1, 1)),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=(2, 2), strides=(2, 2)),
        helper.make_node("Shape", ["p"], ["s"], end=1),
        helper.make_node("Concat", ["s", "minus"], ["t"], axis=0),
        helper.make_node("Reshape", ["p", "t"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "step"], ["q"]),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT8E4M3FN),
    ]
    held = [kernel, numpy_helper.from_array(np.array([-1]), "minus")]
    held.append(numpy_helper.from_array(np.float32(0.1), "step"))
    first = helper.make_model(helper.make_graph(nodes, "net", [x], [y], held))

    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, ())
    here = helper.make_tensor_value_info("z", TensorProto.FLOAT, ())
    arms = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], ["z"])], name, [], [here])
        for name, op in (("then", "Exp"), ("else", "Neg"))
    }
    inner = [
        helper.make_tensor_value_info("i", TensorProto.INT64, ()),
        helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("carry", TensorProto.FLOAT, ()),
    ]
    body = helper.make_graph(
        [helper.make_node("Twice", ["carry"], ["next"], domain="own")],
        "body",
        inner,
        [inner[1], helper.make_tensor_value_info("next", TensorProto.FLOAT, ())],
    )
    opset = helper.make_opsetid("", 18)
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [opset]
    )
    nodes = [
        helper.make_node("If", ["flag"], ["u"], **arms),
        helper.make_node("Loop", ["trips", "", "u"], ["y"], body=body),
    ]
    held = [numpy_helper.from_array(np.array(3), "trips")]
    graph = helper.make_graph(nodes, "flow", [flag, x], [y], held)
    imports = [opset, helper.make_opsetid("own", 1)]
    second = helper.make_model(graph, functions=[twice], opset_imports=imports)
    return [first.SerializeToString(), second.SerializeToString()]


DECODERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]]]] = {
    "safetensors": (_read_safetensors, _safetensors),
}
if find_spec("onnx") is not None:  # an extra
    DECODERS["onnx"] = (from_onnx, _onnx)
