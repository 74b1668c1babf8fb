"""Files of ONNX that are refused: what, where, and what to do."""

import sys

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.interchange.onnx import model_files

onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))


def saved(nodes, tensors=(), opset=18):
    graph = helper.make_graph(nodes, "g", [X], [Y], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def add(tensor):
    return saved([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def refuses(source, *words):
    with pytest.raises(DelianError) as fault:
        dl.from_onnx(source)
    for word in words:
        assert word in str(fault.value)


def test_a_file_is_read_with_data_from_its_folder(tmp_path):
    weights = np.arange(2000, dtype=np.float32)
    big = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2000,))
    node = helper.make_node("Add", ["x", "w"], ["y"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2000,))
    graph = helper.make_graph([node], "g", [big], [out], [numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save_model(helper.make_model(graph), path, save_as_external_data=True, location="w.bin")
    assert (tmp_path / "w.bin").exists()
    np.testing.assert_array_equal(dl.from_onnx(path)(weights), 2 * weights)


def test_a_truncated_file_is_no_model(tmp_path):
    data = add(numpy_helper.from_array(np.ones(2, np.float32), "w")).SerializeToString()
    refuses(data[: len(data) // 2], "ONNX")
    refuses(b"", "no graph")
    refuses(tmp_path / "none.onnx", "none.onnx: cannot be read")


def test_a_cycle_is_refused():
    loop = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    refuses(saved(loop), "first", "cycle")


def test_an_input_that_nothing_gives_is_refused():
    refuses(saved([helper.make_node("Add", ["x", "w"], ["y"], name="sum")]), "sum", "'w'")


def test_a_name_that_is_written_twice_is_refused():
    twice = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Exp", ["x"], ["y"])]
    refuses(saved(twice), "there already")


def test_a_tensor_of_huge_dimensions_is_refused_before_it_is_allocated():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**20])
    refuses(add(tensor), "'w'", "at most")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1])
    refuses(add(tensor), "'w'", "shape")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], raw_data=b"1234")
    refuses(add(tensor), "'w'", "cannot be read")


def test_more_nodes_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(model_files, "NODES_MAX", 1)
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    refuses(saved(nodes), "more than 1 nodes")


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin", "C:\\w", ""])
def test_data_outside_of_the_model_s_folder_is_not_read(tmp_path, location):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    refuses_external(tmp_path, location, "not in the model's folder")


def test_data_behind_a_link_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "w.bin").symlink_to(tmp_path / "w.bin")
    refuses_external(tmp_path, "w.bin", "link")


def test_data_that_ends_early_is_refused(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "w.bin").write_bytes(bytes(4))
    refuses_external(tmp_path, "w.bin", "ends before")


def refuses_external(folder, location, word):
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    (folder / "models").mkdir(exist_ok=True)
    path = folder / "models" / "model.onnx"
    path.write_bytes(add(tensor).SerializeToString())
    refuses(path, "'w'", word)


def test_an_unknown_operator_and_an_unknown_attribute_are_refused_by_name():
    node = helper.make_node("Sorcery", ["x"], ["y"], name="spell")
    refuses(saved([node]), "spell", "Sorcery", "no such operator")
    refuses(saved([helper.make_node("Relu", ["x"], ["y"], depth=3)]), "'depth'", "Relu")
    node = helper.make_node("RandomUniformLike", ["x"], ["y"])
    refuses(saved([node]), "RandomUniformLike", "random")
    refuses(saved([helper.make_node("Neg", ["x"], ["y"])], opset=999), "version 999")


def test_a_malformed_model_is_refused():
    data = add(numpy_helper.from_array(np.ones(2, np.float32), "w")).SerializeToString()
    refuses(data.replace(b"Add", b"A\xff\xfe"), "malformed")
    arm = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "t", [], [])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=arm)
    refuses(saved([branch]), "malformed")
    refuses(saved([helper.make_node("Gelu", ["x"], ["y"], approximate=3)], opset=2**40), "version")


def test_functions_within_functions_end(monkeypatch):
    body = helper.make_function(
        "own", "Self", ["a"], ["b"], [helper.make_node("Self", ["a"], ["b"], domain="own")],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    model = saved([helper.make_node("Self", ["x"], ["y"], domain="own")])
    model.functions.append(body)
    refuses(model, "deep")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    refuses("model.onnx", "[onnx]")


def test_an_error_of_the_compiler_underlines_the_node():
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    weights = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    model = dl.from_onnx(saved([node], [weights]))
    with pytest.raises(DelianError, match="MatMul product"):
        dl.compile(model)(np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("operator", "options", "word"),
    [
        ("MaxPool", {"kernel_shape": (2, 2)}, "window of 2 axes"),
        ("GlobalAveragePool", {}, "window of 1 axes"),
        ("Transpose", {"perm": (1, 0)}, "axis 1 is out of range"),
        ("Unsqueeze", {}, "Unsqueeze without axes"),
    ],
)
def test_a_tensor_that_has_not_the_axes_is_refused(operator, options, word):
    node = helper.make_node(operator, ["x"], ["y"], **options)
    model = dl.from_onnx(saved([node]))
    with pytest.raises(DelianError, match=word):
        dl.compile(model)(np.ones(2, np.float32))


def test_a_file_without_an_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "FILE_BYTES_MAX", 1 << 20)
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    refuses(tmp_path / "zero.onnx", "zero.onnx: cannot be read: it has more than 1048576 bytes")
    (tmp_path / "empty.onnx").write_bytes(b"")
    refuses(tmp_path / "empty.onnx", "empty.onnx: the model has no graph")
    refuses(3, "not int")
