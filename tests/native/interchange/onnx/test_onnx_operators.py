"""Operators of ONNX, compiled, against ONNX's own reference evaluator."""

import linecache
import re

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 4, 7, 6)).astype(np.float32)
ROWS = RNG.normal(size=(3, 5)).astype(np.float32)
COUNTS = RNG.integers(-9, 9, (3, 5))
SEQUENCES = RNG.normal(size=(4, 3, 5)).astype(np.float32)
#: Of both directions, by the number of gates: inputs, recurrent weights, biases.
WEIGHTS = {
    k: [RNG.normal(size=s).astype(np.float32) for s in ((2, 2 * k, 5), (2, 2 * k, 2), (2, 4 * k))]
    for k in (1, 3, 4)
}
GRID = RNG.uniform(-1.4, 1.4, (2, 3, 4, 2)).astype(np.float32)
BOXES = np.array([[0.5, 1, 4, 5.5], [1, 0, 5, 3]], np.float32)


def normal(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def model_of(operator, inputs, attributes, opset, outputs=1):
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"o{k}" for k in range(outputs)], **attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    results = [
        helper.make_tensor_value_info(f"o{k}", TensorProto.UNDEFINED, None) for k in range(outputs)
    ]
    graph = helper.make_graph([node], "one", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


CASES = [
    ("Add", [ROWS, ROWS[0]], {}, 14),
    ("Div", [COUNTS, np.array(4)], {}, 14),
    ("Mod", [COUNTS, np.array(4)], {"fmod": 1}, 13),
    ("Pow", [ROWS, np.array(2)], {}, 15),
    ("Clip", [ROWS, np.float32(-1), np.float32(0.5)], {}, 13),
    ("LeakyRelu", [ROWS], {"alpha": 0.2}, 16),
    ("Gelu", [ROWS], {}, 20),
    ("Where", [ROWS > 0, ROWS, ROWS[:1]], {}, 16),
    ("Cast", [ROWS], {"to": TensorProto.INT32}, 13),
    ("Cast", [ROWS], {"to": TensorProto.BFLOAT16}, 13),
    ("Reshape", [ROWS, np.array([0, -1, 1])], {}, 14),
    ("Transpose", [IMAGES], {"perm": (0, 2, 3, 1)}, 13),
    ("Slice", [ROWS, *np.array([[5, 0], [-9, 2], [1, 0], [-2, 1]])], {}, 13),
    ("Pad", [ROWS, np.array([1, 0, 0, 2]), np.float32(3)], {}, 18),
    ("Expand", [ROWS[:1], np.array([2, 1, 5])], {}, 13),
    ("Gather", [ROWS, np.array([[0, -1]])], {"axis": 1}, 13),
    ("GatherND", [IMAGES, np.array([[1, 2], [0, 3]])], {}, 13),
    ("ScatterND", [ROWS, np.array([[1], [0]]), ROWS[:2]], {"reduction": "add"}, 18),
    ("TopK", [ROWS, np.array([2])], {"largest": 0}, 11, 2),
    ("CumSum", [ROWS, np.array(1)], {"exclusive": 1, "reverse": 1}, 14),
    ("OneHot", [np.array([0, 2, -1]), np.array(4), np.array([0.0, 2.0], np.float32)], {}, 11),
    ("ReduceMean", [IMAGES, np.array([1, -1])], {"keepdims": 0}, 18),
    ("ReduceLogSumExp", [IMAGES], {"axes": (2, 3)}, 13),
    ("ArgMax", [ROWS], {"axis": 1, "select_last_index": 1}, 13),
    ("Softmax", [IMAGES], {"axis": 1}, 13),
    ("MatMul", [ROWS, ROWS.T], {}, 13),
    ("Gemm", [ROWS, ROWS, ROWS[:1, :3]], {"transB": 1, "alpha": 0.5, "beta": 2.0}, 13),
    ("Einsum", [ROWS, ROWS], {"equation": "ij,kj->ik"}, 12),
    ("Conv", [IMAGES, normal(6, 4, 3, 2), normal(6)], {"pads": (1, 0, 2, 1), "strides": (2, 1)}, 1),
    ("Conv", [IMAGES, normal(8, 1, 3, 3)], {"group": 4, "dilations": (2, 1)}, 11),
    ("Conv", [IMAGES[:, :, 0], normal(5, 4, 3)], {"auto_pad": "SAME_LOWER"}, 11),
    ("ConvTranspose", [IMAGES, normal(4, 3, 3, 3)], {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 11),
    ("MaxPool", [IMAGES], {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}, 12),
    ("AveragePool", [IMAGES], {"kernel_shape": (2, 2), "pads": (1, 1, 0, 0)}, 19),
    ("LayerNormalization", [ROWS, ROWS[0], ROWS[1]], {}, 17),
    ("BatchNormalization", [IMAGES, *normal(3, 4), np.abs(normal(4))], {}, 15),
    ("Resize", [IMAGES, None, np.array([1, 1, 2, 0.5], np.float32)], {"mode": "linear"}, 19),
    ("Resize", [IMAGES, None, None, np.array([2, 4, 5, 9])], {"mode": "cubic"}, 19),
    ("QuantizeLinear", [ROWS, np.float32(0.03), np.uint8(128)], {}, 19),
    ("DequantizeLinear", [np.uint8([[3, 200]]), np.float32(0.5), np.uint8(7)], {}, 19),
    ("MatMulInteger", [np.uint8([[1, 200]]), np.uint8([[3], [255]]), np.uint8(9)], {}, 10),
    ("Split", [ROWS, np.array([2, 3])], {"axis": 1}, 18, 2),
    ("DepthToSpace", [IMAGES], {"blocksize": 2, "mode": "CRD"}, 13),
    ("Trilu", [ROWS], {"upper": 0}, 14),
    ("Hardmax", [ROWS], {}, 13),
    ("LSTM", [SEQUENCES, *WEIGHTS[4]], {"direction": "bidirectional", "hidden_size": 2}, 14, 3),
    ("GRU", [SEQUENCES, *WEIGHTS[3]], {"direction": "bidirectional", "hidden_size": 2}, 14, 2),
    ("RNN", [SEQUENCES, *WEIGHTS[1]], {"direction": "bidirectional", "hidden_size": 2}, 14, 2),
    ("GridSample", [IMAGES, GRID], {"mode": "cubic", "padding_mode": "reflection"}, 20),
    ("GridSample", [IMAGES, GRID], {"mode": "linear", "align_corners": 1}, 20),
    ("RoiAlign", [IMAGES, BOXES, np.array([1, 0])], {"output_width": 3, "sampling_ratio": 2}, 16),
    ("Col2Im", [normal(2, 12, 9), np.array([4, 5]), np.array([2, 3])], {}, 18),
    ("DFT", [ROWS[..., None], np.array(4), np.array(1)], {"onesided": 1}, 20),
    ("DeformConv", [IMAGES, normal(3, 4, 2, 2), normal(2, 8, 6, 5)], {"kernel_shape": (2, 2)}, 19),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[3]}")
def test_an_operator_compiled_is_what_onnx_s_own_evaluator_computes(case):
    operator, inputs, attributes, opset, *many = case
    proto = model_of(operator, inputs, attributes, opset, *many)
    given = [np.asarray(x) for x in inputs if x is not None]
    names = [value.name for value in proto.graph.input]
    wanted = ReferenceEvaluator(proto).run(None, dict(zip(names, given, strict=True)))
    got = dl.from_onnx(proto).run(*given)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if mine.dtype.name == "bfloat16":
            mine, theirs = mine.astype(np.float32), theirs.astype(np.float32)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_softmax_of_old_models_goes_over_all_axes_from_one_on():
    model = dl.from_onnx(model_of("Softmax", [IMAGES], {"axis": 2}, 11))
    raised = np.exp(IMAGES)
    wanted = raised / raised.sum((2, 3), keepdims=True)
    np.testing.assert_allclose(dl.compile(model)(IMAGES), wanted, rtol=1e-5)


def test_local_response_normalisation_sums_neighbouring_channels():
    model = dl.from_onnx(model_of("LRN", [IMAGES], {"size": 3, "alpha": 0.5}, 13))
    squares = np.pad(IMAGES**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    wanted = IMAGES / (1 + 0.5 / 3 * total) ** 0.75
    np.testing.assert_allclose(dl.compile(model)(IMAGES), wanted, rtol=1e-5)


def test_floats_of_8_bits_are_rounded_as_ml_dtypes_rounds_them():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.concatenate([RNG.normal(size=500) * 10.0 ** RNG.uniform(-6, 3, 500), [np.inf, np.nan]])
    x = x.astype(np.float32)
    for number, name in ((17, "float8_e4m3fn"), (20, "float8_e5m2fnuz")):
        proto = model_of("Cast", [x], {"to": number, "saturate": 0}, 19)
        (got,) = dl.from_onnx(proto).run(x)
        wanted = x.astype(getattr(ml_dtypes, name))
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


def branching():
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, ())
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3,))
    arms = [
        helper.make_graph([helper.make_node(op, ["x"], ["r"])], op, [], [
            helper.make_tensor_value_info("r", TensorProto.FLOAT, (3,))
        ])
        for op in ("Exp", "Neg")
    ]  # fmt: skip
    node = helper.make_node("If", ["flag"], ["y"], then_branch=arms[0], else_branch=arms[1])
    return helper.make_model(helper.make_graph([node], "branching", [flag, x], [y]))


def test_a_branch_is_taken_by_the_running_program():
    x = np.array([1, 2, 3], np.float32)
    run = dl.compile(dl.from_onnx(branching()))
    np.testing.assert_allclose(run(np.array(True), x), np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(run(np.array(False), x), -x)


def test_an_input_that_decides_a_shape_is_bound():
    model = dl.from_onnx(model_of("Reshape", [ROWS, np.array([5, 3])], {}, 14))
    assert model.graph.static_inputs == ("i1",)
    bound = model.bind(i1=np.array([5, 3]))
    assert bound.graph.inputs == ("i0",)
    np.testing.assert_array_equal(dl.compile(bound)(ROWS), ROWS.reshape(5, 3))
    with pytest.raises(DelianError, match="must be known"):
        dl.compile(model)(ROWS, np.array([5, 3]))
    with pytest.raises(DelianError, match="no input 'shape'"):
        model.bind(shape=np.array([5, 3]))


def test_run_makes_a_program_for_each_value_that_decides_a_shape():
    model = dl.from_onnx(model_of("Reshape", [ROWS, np.array([5, 3])], {}, 14))
    for shape in ((5, 3), (15, 1), (5, 3)):
        assert model.run(ROWS, np.array(shape))[0].shape == shape
    assert model.graph.specialised({"i1": np.array([5, 3])}) is model.graph.specialised(
        {"i1": np.array([5, 3])}
    )


def selecting():
    """Boxes and scores of one class, and those that remain, as exporters write it."""
    texts = ("zero", [0]), ("first", [0, 1]), ("one", [1]), ("two", [2]), ("most", [20])
    held = [numpy_helper.from_array(np.array(v), n) for n, v in texts]
    held += [numpy_helper.from_array(np.array([v], np.float32), n) for n, v in (("t", 0.3),)]
    nodes = [
        helper.make_node("Unsqueeze", ["boxes", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["scores", "first"], ["s"]),
        helper.make_node("NonMaxSuppression", ["b", "s", "most", "t", "t"], ["rows"]),
        helper.make_node("Gather", ["rows", "two"], ["column"], axis=1),
        helper.make_node("Squeeze", ["column", "one"], ["place"]),
        helper.make_node("Gather", ["boxes", "place"], ["kept"]),
        helper.make_node("Gather", ["scores", "place"], ["of_kept"]),
        helper.make_node("Shape", ["place"], ["count"]),
    ]
    values = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ("n", 4)),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("n",)),
    ]
    outputs = "rows", "kept", "of_kept", "count"
    results = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs]
    graph = helper.make_graph(nodes, "selecting", values, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("backend", [None, "native"], ids=["plain", "native"])
def test_as_many_boxes_are_selected_as_the_data_decide(backend):
    model = dl.from_onnx(selecting())
    counts = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        low = rng.integers(0, 9, (11, 2))
        boxes = np.concatenate([low, low + rng.integers(0, 6, (11, 2))], 1).astype(np.float32)
        scores = (rng.integers(0, 10, 11) / 10).astype(np.float32)
        wanted = ReferenceEvaluator(selecting()).run(None, {"boxes": boxes, "scores": scores})
        got = model.run(boxes, scores, backend=backend)
        for mine, theirs in zip(got, wanted, strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(mine, theirs)
        counts.append(len(got[1]))
    assert len(set(counts)) > 1


def test_a_program_selects_boxes_and_goes_on():
    model = dl.from_onnx(selecting())
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 3], [9, 9, 12, 12]], np.float32)
    scores = np.array([0.9, 0.8, 0.7], np.float32)

    def total(boxes, scores):
        _, kept, of_kept, _ = model(boxes, scores)
        return np.sum(kept * of_kept[:, None])

    assert dl.compile(total)(boxes, scores) == pytest.approx(0.9 * 8 + 0.7 * 42)
    slope = dl.compile(dl.grad(total, argnums=1))(boxes, scores)
    np.testing.assert_allclose(slope, [8, 0, 42], rtol=1e-6)


def network():
    """Conv, relu, pooling, flatten by a shape that is computed, a matrix, softmax."""
    held = {
        "w": normal(8, 4, 3, 3) / 4,
        "b": normal(8),
        "d": normal(48, 3),
        "minus": np.array([-1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=(1, 1, 1, 1)),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=(3, 3), strides=(3, 3)),
        helper.make_node("Shape", ["p"], ["s"], end=1),
        helper.make_node("Concat", ["s", "minus"], ["t"], axis=0),
        helper.make_node("Reshape", ["p", "t"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["m"]),
        helper.make_node("LogSoftmax", ["m"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4, 7, 10))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 3))
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "network", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_a_network_trains():
    model = dl.from_onnx(network())
    assert sorted(model.parameters) == ["b", "d", "w"]
    x, labels = normal(6, 4, 7, 10), np.arange(6) % 3
    wanted = ReferenceEvaluator(network()).run(None, {"x": x})[0]
    np.testing.assert_allclose(dl.compile(model)(x), wanted, rtol=1e-4, atol=1e-5)

    @dl.compile
    def step(model, x, labels):
        def loss(model):
            return np.mean(dl.ops.nll(model(x), labels))

        value, slope = dl.value_and_grad(loss)(model)
        return dl.nn.apply(model, dl.tree.map(lambda g: -0.05 * g, slope)), value

    losses = []
    for _ in range(12):
        model, value = step(model, x, labels)
        losses.append(float(value))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "opset"),
    [
        ("Conv", [IMAGES, normal(6, 4, 3, 2)], {"pads": (1, 0, 1, 1)}, 11),
        ("ConvTranspose", [IMAGES, normal(4, 2, 3, 3)], {"strides": (2, 2)}, 11),
        ("LayerNormalization", [ROWS, ROWS[0], ROWS[1]], {}, 17),
        ("ReduceLogSumExp", [IMAGES], {"axes": (1,)}, 13),
        ("Gemm", [ROWS, ROWS.T], {}, 13),
        ("AveragePool", [IMAGES], {"kernel_shape": (2, 3)}, 19),
        ("Resize", [IMAGES, None, np.array([1, 1, 2, 0.5], np.float32)], {"mode": "cubic"}, 19),
        ("Celu", [ROWS], {}, 12),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_gradient_is_the_slope_of_finite_differences(operator, inputs, attributes, opset):
    proto = model_of(operator, inputs, attributes, opset)
    given = [x for x in inputs if x is not None]
    model = dl.from_onnx(proto)
    fixed = {n: given[model.graph.inputs.index(n)] for n in model.graph.static_inputs}
    smooth = [
        x.astype(np.float64)
        for n, x in zip(model.graph.inputs, given, strict=True)
        if n not in fixed
    ]
    model = model.bind(**fixed)
    rng = np.random.default_rng(2)
    weight = rng.normal(size=np.shape(model(*smooth)))
    way = [rng.normal(size=x.shape) for x in smooth]

    def value(*values):
        return np.sum(model(*values) * weight)

    slopes = dl.compile(dl.grad(value, tuple(range(len(smooth)))))(*smooth)
    along = sum(np.sum(g * w) for g, w in zip(slopes, way, strict=True))
    ends = [value(*[x + s * 1e-6 * w for x, w in zip(smooth, way, strict=True)]) for s in (1, -1)]
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-7)


def test_statistics_and_single_numbers_are_constants_unless_they_are_chosen():
    held = {"s": normal(4), "m": normal(4), "v": np.abs(normal(4)), "two": np.float32(2)}
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "s", "m", "v"], ["n"]),
        helper.make_node("Pow", ["n", "two"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 4))
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors))
    assert list(dl.from_onnx(proto).parameters) == ["s"]
    chosen = dl.from_onnx(proto, trainable=lambda name, array: name != "s")
    assert sorted(chosen.parameters) == ["m", "two", "v"]
    rows = normal(3, 4)
    np.testing.assert_array_equal(chosen(rows), dl.from_onnx(proto)(rows))
    with pytest.raises(DelianError, match="2 inputs"):
        dl.from_onnx(branching()).for_task()


def test_images_are_transposed_once_into_a_chain_and_once_out_of_it():
    held = {"w": normal(4, 4, 3, 3), "s": normal(4), "v": np.abs(normal(4)), "two": np.float32(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=(1, 1, 1, 1)),
        helper.make_node("BatchNormalization", ["a", "s", "s", "s", "v"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["d"], pads=(1, 1, 1, 1)),
        helper.make_node("Add", ["d", "c"], ["e"]),
        helper.make_node("Mul", ["e", "two"], ["f"]),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=(2, 3), strides=(2, 1)),
        helper.make_node("GlobalAveragePool", ["g"], ["h"]),
        helper.make_node("Flatten", ["h"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4, 7, 6))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 4))
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "chain", [x], [y], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model = dl.from_onnx(proto)
    source = "".join(linecache.getlines(model.graph.function.__code__.co_filename))
    assert re.findall(r" = channels_(\w+?)(?:_1)?\(", source) == ["last", "first"]
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": IMAGES})
    np.testing.assert_allclose(model(IMAGES), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dl.compile(model)(IMAGES), wanted, rtol=1e-4, atol=1e-5)
