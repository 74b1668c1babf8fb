"""Programs in ONNX: ONNX Runtime gives what NumPy gives, and `from_onnx` reads them again."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.learning.interchange.onnx_export import export_model, export_table
from delian.core.learning.interchange.onnx_export.export_model import program_to_onnx

RNG = np.random.default_rng(5)
X, Y = (RNG.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
IMAGES = RNG.normal(size=(2, 6, 5, 3)).astype(np.float32)
KEY = dl.random.key(3)


def test_every_primitive_has_one_place_in_the_table():
    parts = [
        export_table.ROWS.keys(),
        export_table.WITHIN.keys(),
        export_table.REFUSED.keys(),
        export_table.COMPOSED,
    ]
    assert sorted(name for part in parts for name in part) == sorted(PRIMITIVES)


# What programs give


def ran(model: Any, *args: Any) -> list[Any]:
    """The results by ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.input]
    found: list[Any] = session.run(None, dict(zip(names, map(np.asarray, args), strict=True)))
    return found


def halves(x):
    wide = x.astype(np.float16) * np.float16(1.5)
    return np.sum(wide, axis=0), np.max(wide)


def whole_numbers(x, y):
    return x // y, x % y, x << 3, x >> 2, x ^ y, np.sum(x), np.prod(y), np.max(x, axis=0)


def branches(x, y):
    if np.sum(x) > np.sum(y):
        return x * 2
    return y - 1


def trips(x, count):
    for i in range(count):
        x = np.sin(x) + i
    return x


def until_large(x):
    while np.sum(x) < 100:
        x = x * 2 + 1
    return x


def repeated(x, count):
    for _ in range(count):
        x = np.tanh(x) * 1.5
    return np.sum(x**2)


def places(x, i):
    x = x.copy()
    x[i] = x[i - 1] + 1
    return x, x[:, 1:3][i], np.argsort(x, axis=1), np.argmax(x, axis=0)


def systems(a, b):
    square = a @ np.swapaxes(a, 1, 2)
    return np.linalg.solve(a, b), np.linalg.cholesky(square), np.linalg.slogdet(a)


def lists_of_lists(x):
    return dl.grad(lambda x: np.sum(dl.grad(repeated)(x, 3) ** 2))(x)


def convolved(x, k):
    return dl.ops.max_pool(dl.ops.relu(dl.ops.conv2d(x, k, 2, "SAME")), 2)


def attended(q):
    return dl.ops.attention(q, q * 0.5, q + 1, None, True)


def drawn(key):
    return dl.random.uniform(key, (5,)), dl.random.normal(key, (3,))


INTS = RNG.integers(-50, 50, (3, 4)), np.array([1, -3, 0, 7])
KERNEL = RNG.normal(size=(3, 3, 3, 4)).astype(np.float32)
LONG = RNG.uniform(size=(3, 263, 520)).astype(np.float32)
PROGRAMS = {
    "arithmetic": (lambda x, y: (x + y) * x - y / (1 + x * x), (X, Y)),
    "functions": (lambda x: (np.exp(x), np.log1p(x * x), np.expm1(x), np.sqrt(abs(x))), (X,)),
    "more functions": (lambda x, y: (np.arctan2(x, y), np.sign(x), np.round(x), np.cos(x)), (X, Y)),
    "comparisons": (lambda x, y: (x < y, x <= 0, x != y, np.isfinite(x), np.isnan(y)), (X, Y)),
    "nothing finite": (
        lambda x: (
            np.max(x, axis=1),
            np.argmin(x, axis=1),
            np.argsort(x, axis=1),
            np.minimum(x, 0),
        ),
        (np.array([[1, np.nan, -np.inf], [np.inf, 0, 2], [np.nan, -1, 0]], np.float32),),
    ),
    "division": (lambda x, y: (x // y, x % y), (X, Y)),
    "whole numbers": (whole_numbers, INTS),
    "bytes": (whole_numbers, tuple(np.abs(v).astype(np.uint8) for v in INTS)),
    "short numbers": (whole_numbers, tuple(v.astype(np.int16) for v in INTS)),
    "long numbers": (
        lambda x: (np.sum(x), np.sum(x, axis=0), np.max(x), x + x),
        (np.array([[2**62, 3], [2**62, 2**63 - 1]]),),
    ),
    "unsigned numbers": (lambda x: (np.max(x), np.argmin(x), -x), (np.uint64([3, 2**63 + 1, 9]),)),
    "halves": (halves, (X,)),
    "bits": (lambda x: (x.view(np.int32) >> 23).view(np.float32), (X,)),
    "shapes": (lambda x: (x.T, x[::-1, ::2], np.pad(x, 1), np.concatenate([x, x], 1)), (X,)),
    "running sums": (lambda x: (np.cumsum(x, axis=1), np.mean(x, axis=0), np.var(x)), (X,)),
    "long sums": (lambda x: (np.sum(x), np.sum(x, axis=(0, 2)), np.mean(x, axis=1)), (LONG,)),
    "products": (lambda x, y: (x @ y.T, np.einsum("ij,ij->i", x, y), np.outer(x, y)), (X, Y)),
    "linear systems": (systems, (RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 2)))),
    "slope of a system": (
        dl.grad(lambda a, b: np.sum(np.linalg.solve(a, b) ** 2)),
        (RNG.normal(size=(3, 3)), RNG.normal(size=(3, 2))),
    ),
    "places": (places, (X, np.int64(2))),
    "convolution": (convolved, (IMAGES, KERNEL)),
    "convolution's slope": (
        dl.grad(lambda x, k: np.sum(convolved(x, k) ** 2), (0, 1)),
        (IMAGES, KERNEL),
    ),
    "convolution of f64": (convolved, (IMAGES.astype(np.float64), KERNEL.astype(np.float64))),
    "attention": (attended, (IMAGES[:, :, :2],)),
    "attention's slope": (dl.grad(lambda q: np.sum(attended(q) ** 2)), (IMAGES[:, :, :2],)),
    "random bits": (drawn, (KEY,)),
    "branch": (branches, (X, Y)),
    "trips": (trips, (X, np.int64(4))),
    "known trips": (lambda x: trips(x, 3), (X,)),
    "while": (until_large, (X,)),
    "second slope of known trips": (lists_of_lists, (X,)),
    "slope of lanes": (dl.vmap(dl.grad(lambda x: np.sum(np.tanh(x) ** 3))), (X,)),
    "second slope": (dl.grad(dl.grad(lambda x: np.sin(x) * x**3)), (np.float32(0.7),)),
}
#: Loops whose number of trips an input decides: `from_onnx` asks for it.
NOT_READ_AGAIN = ("trips", "while")


def close(found: Any, wanted: Any, rounding: float = 0.0) -> None:
    """rounding: how far apart numbers may be that are sums of larger ones."""
    leaves = [np.asarray(v) for v in dl.tree.leaves(wanted)]
    assert len(found) == len(leaves)
    for f, w in zip(found, leaves, strict=True):
        assert f.dtype == w.dtype and f.shape == w.shape
        if w.dtype.kind in "iub":
            np.testing.assert_array_equal(f, w)
            continue
        part = 1e-5 if w.dtype.itemsize > 2 else 4e-3
        scale = np.abs(w[np.isfinite(w)]).max(initial=0)
        np.testing.assert_allclose(f, w, rtol=part, atol=float(part * scale + rounding))


@pytest.mark.parametrize("name", PROGRAMS)
def test_onnx_runtime_gives_what_numpy_gives(name):
    pytest.importorskip("onnx")
    f, args = PROGRAMS[name]
    model = dl.to_onnx(f, *args)
    with np.errstate(all="ignore"):
        wanted = dl.compile(f, backend="reference")(*args)
        close(ran(model, *args), wanted)
        if name not in NOT_READ_AGAIN:
            close(dl.from_onnx(model).run(*args, backend="reference"), wanted)


def test_a_system_without_a_solution_is_nan():
    """A graph of ONNX raises no error."""
    pytest.importorskip("onnx")
    args = np.ones((1, 3, 3)), np.ones((1, 3, 2))
    model = dl.to_onnx(systems, *args)
    lower = np.where(np.tri(3, dtype=bool), np.nan, np.zeros((1, 3, 3)))
    wanted = np.full((1, 3, 2), np.nan), lower, (np.zeros(1), np.full(1, -np.inf))
    with np.errstate(all="ignore"):
        close(ran(model, *args), wanted)
        close(dl.from_onnx(model).run(*args, backend="reference"), wanted)


def test_rounding_of_a_long_sum_does_not_grow_with_it():
    pytest.importorskip("onnx")
    x = RNG.uniform(size=(2**16, 4)).astype(np.float32)
    (found,) = ran(dl.to_onnx(lambda x: np.sum(x, axis=0), x), x)
    np.testing.assert_allclose(found, x.sum(axis=0, dtype=np.float64), rtol=1e-6)


def test_what_reverse_mode_saves_of_an_unknown_number_of_trips_is_a_sequence():
    pytest.importorskip("onnx")
    model = dl.to_onnx(dl.grad(repeated), X, np.int64(5))
    assert "SequenceInsert" in str(model)
    for count in (0, 1, 5):
        (found,) = ran(model, X, np.int64(count))
        close([found], dl.compile(dl.grad(repeated), backend="reference")(X, count))


def test_a_branch_gives_one_value_as_two_results():
    pytest.importorskip("onnx")
    whole = TensorType(DType.I64)
    b = Builder([TensorType(DType.BOOL), whole])
    then, otherwise = Builder([whole]), Builder([whole])
    regions = (
        then.finish([then.params[0], then.params[0]]),
        otherwise.finish([otherwise.constant(v, DType.I64) for v in (12, 12)]),
    )
    first, second = b.emit("if", b.params, {}, regions)
    block = b.finish([b("add", first, b.constant(1, DType.I64)), second])
    model = program_to_onnx(Function("f", block, ("p", "x"), ("r", "s")), ["p", "x"], {})
    (branches,) = [node for node in model.graph.node if node.op_type == "If"]
    for attribute in branches.attribute:
        names = [value.name for value in attribute.g.output]
        assert len(names) == len(set(names))
    close(ran(model, np.array(True), np.array(5)), (np.int64(6), np.int64(5)))
    close(ran(model, np.array(False), np.array(5)), (np.int64(13), np.int64(12)))


# Models


def mean_loss(model, x, y):
    return np.mean(dl.ops.cross_entropy(model(x, np.ones(x.shape[0], np.float32)), y))


def step(model, state, x, y):
    value, slope = dl.value_and_grad(mean_loss)(model, x, y)
    change, state = nn.adam(0.01, epsilon=1e-3).update(slope, state, model)
    return nn.apply(model, change), state, value


MODELS = {
    "mlp": (lambda: nn.zoo.Mlp.init(KEY, 5, (6,), 3), np.ones((2, 5), np.float32)),
    "cnn": (lambda: nn.lenet(KEY, (12, 12, 1), 3), np.ones((2, 12, 12, 1), np.float32)),
    "lstm": (lambda: nn.tagger(KEY, 7, 3, nn.LstmCell, 4, 5), np.array([[1, 2, 3], [4, 5, 6]])),
    "transformer": (lambda: nn.transformer(KEY, 7, 3, 8, 2, 1), np.array([[1, 2, 3], [4, 5, 6]])),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_adam_is_a_model_of_its_own(name):
    pytest.importorskip("onnx")
    make, x = MODELS[name]
    model = make()
    logits = model(x, np.ones(2, np.float32))
    y = RNG.integers(0, 3, np.shape(logits)[:-1])
    state = nn.adam(0.01, epsilon=1e-3).init(model)
    wanted = dl.compile(step, backend="reference")(model, state, x, y)
    written = dl.to_onnx(step, model, state, x, y, weights="inputs")
    args = [np.asarray(v) for v in dl.tree.leaves((model, state, x, y))]
    close(ran(written, *args), wanted, 1e-6)


def test_arrays_of_a_model_are_initialisers_by_their_names():
    pytest.importorskip("onnx")
    model = nn.zoo.Mlp.init(KEY, 5, (6,), 3)
    x, weight = np.ones((2, 5), np.float32), np.ones(2, np.float32)
    written = dl.to_onnx(model, x, weight)
    names = [t.name for t in written.graph.initializer]
    assert names[:4] == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    assert [v.name for v in written.graph.input] == ["x", "weight"]
    (found,) = ran(written, x, weight)
    close([found], model(x, weight))
    again = dl.from_onnx(written)
    assert set(again.parameters) == set(names[:4])
    close([again(x, weight)], model(x, weight))
    # ONNX's names stay, there and back.
    assert [t.name for t in dl.to_onnx(again, x, weight).graph.initializer][:4] == sorted(names[:4])


def test_weights_may_have_defaults_that_a_caller_replaces():
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")

    def sgd(model, x):
        slope = dl.grad(lambda m: np.sum(m(x) ** 2))(model)
        return dl.tree.map(lambda p, g: p - 0.1 * g, model, slope)

    model = nn.Dense.init(KEY, 4, 2)
    written = dl.to_onnx(sgd, model, X, weights="defaults")
    assert [v.name for v in written.graph.input] == ["weight", "bias", "x"]
    session = runtime.InferenceSession(written.SerializeToString())
    first = session.run(None, {"x": X})
    close(first, sgd(model, X))
    second = session.run(None, {"weight": first[0], "bias": first[1], "x": X})
    close(second, sgd(sgd(model, X), X))


def test_a_module_of_pytorch_keeps_its_names():
    pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.BatchNorm2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(18, 3),
    )
    x = RNG.normal(size=(2, 1, 5, 5)).astype(np.float32)
    model = dl.from_torch(module, (torch.tensor(x),))
    written = dl.to_onnx(model, x)
    held = [t.name for t in written.graph.initializer if not t.name.startswith("constant")]
    assert set(held) == set(model.state_dict())
    module.eval()
    close(ran(written, x), module(torch.tensor(x)).detach().numpy())


# Files and refusals


def test_a_file_is_written_whole(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    model = dl.to_onnx(lambda x: x * 2, X, path=path)
    assert onnx.load(path) == model
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    with pytest.raises(DelianError, match="cannot be written"):
        dl.to_onnx(lambda x: x * 2, X, path=tmp_path / "missing" / "net.onnx")


def test_what_has_no_form_is_refused_by_name_before_anything_is_written(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    twice = dl.grad(lambda x, n: np.sum(dl.grad(repeated)(x, n)))
    with pytest.raises(DelianError, match=r"`list_\w+`.*a list of lists has no form") as fault:
        dl.to_onnx(twice, X, np.int64(3), path=path)
    assert "test_onnx_export.py" in str(fault.value)
    assert not path.exists()


def test_a_model_beyond_the_limit_is_refused(monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.setattr(export_model, "MODEL_BYTES_MAX", 100)
    with pytest.raises(DelianError, match="at most 100"):
        dl.to_onnx(nn.Dense.init(KEY, 8, 8), np.ones((2, 8), np.float32))


def test_a_tree_that_is_no_function_is_refused():
    pytest.importorskip("onnx")

    @dl.module
    class Pair:
        left: Any

    with pytest.raises(DelianError, match="Pair is a tree"):
        dl.to_onnx(Pair(X), X)
