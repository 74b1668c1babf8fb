"""Loops, branches, lists and switches of torch programs, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import (
    Block,
    Builder,
    DType,
    Function,
    ListType,
    TensorType,
    Type,
    Value,
)
from delian.core.compiler.transforms.vmap import vmap
from hypothesis import HealthCheck, Phase, given, settings

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from delian.core.compiler.backends.torch.torch_graphs import GraphedLoop  # noqa: E402 - these need torch
from delian.core.compiler.backends.torch.torch_options import Options  # noqa: E402
from delian.core.compiler.backends.torch.torch_program import TorchProgram, compile_torch  # noqa: E402

F32, I64 = DType.F32, DType.I64
INDEX, ROW = TensorType(I64), TensorType(F32, (5,))


def as_function(block: Block) -> Function:
    names = tuple(f"a{i}" for i in range(len(block.params)))
    return Function("f", block, names, tuple(f"r{i}" for i in range(len(block.results))))


def agree(block: Block, args: Sequence[Any], backend: str = "torch:cpu") -> None:
    arrays = [np.asarray(a) for a in args]
    found = compile_function(as_function(block), backend)(*arrays)
    for result, expected in zip(found, run_block(block, arrays), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)


def region(types: Sequence[Type], build: Callable[..., Sequence[Value]]) -> Block:
    b = Builder(types)
    return b.finish(build(b, *b.params))


def test_random_programs_give_what_the_reference_gives(random_programs: Any) -> None:
    @settings(
        max_examples=20,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(program=random_programs.programs())
    def check(program: Any) -> None:
        agree(program.block, program.args)

    check()


def test_random_programs_over_lanes(random_programs: Any) -> None:
    """Masked loops, and lists with a stack for each lane."""

    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(program=random_programs.programs(steps=6))
    def check(program: Any) -> None:
        wide, _ = vmap(program.block, [True] * len(program.args), 3)
        rng = np.random.default_rng(1)
        args = []
        for arg in program.args:
            rows = np.stack([np.asarray(arg)] * 3)
            if rows.dtype == np.float64:
                rows = rows + rng.uniform(-0.1, 0.1, rows.shape)
            else:
                rows = rows + np.arange(3)
            args.append(rows.astype(np.asarray(arg).dtype))
        agree(wide, args)

    check()


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_carries_that_swap_places(trips: int) -> None:
    body = region([INDEX, ROW, ROW], lambda b, i, x, y: [y, b("add", x, x)])
    b = Builder([INDEX, ROW, ROW])
    outs = b.emit("for", [b.constant(0, I64), *b.params], {"consts": 0}, [body])
    row = np.arange(5, dtype=np.float32)
    agree(b.finish(outs), [np.int64(trips), row, -row])


@pytest.mark.parametrize("index", [-3, 0, 1, 7])
def test_switch_clamps_its_index(index: int) -> None:
    cases = [region([ROW], lambda b, x, k=k: [b("add", x, b.full(ROW, k))]) for k in range(3)]
    b = Builder([INDEX, ROW])
    agree(
        b.finish(b.emit("switch", b.params, {}, cases)),
        [np.int64(index), np.ones(5, np.float32)],
    )


def test_lists_of_lists_and_lanes_of_lists() -> None:
    inner = ListType(ROW)
    outer = ListType(inner)
    b = Builder([ROW, ROW])
    one = b("list_push", b("list_empty", type=inner), b.params[0])
    two = b("list_push", one, b.params[1])
    stack = b("list_push", b("list_push", b("list_empty", type=outer), one), two)
    doubled = b("list_add", stack, stack)
    rest, top = b.emit("list_pop", (doubled,))
    _, second = b.emit("list_pop", (rest,))
    values = [b.emit("list_pop", (v,))[1] for v in (top, second)]
    block = b.finish(values)
    rows = np.arange(10, dtype=np.float32).reshape(2, 5)
    agree(block, [rows[0], rows[1]])
    wide, _ = vmap(block, [True, False], 4)
    agree(wide, [np.stack([rows[0]] * 4), rows[1]])


def test_a_function_and_its_gradient_run_on_torch() -> None:
    def loss(w: Any, x: Any) -> Any:
        h = w
        for _ in range(3):
            h = np.tanh(x @ h)
        return np.sum(h * h)

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=4).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32)
    by_torch = dl.compile(dl.grad(loss), backend="torch:cpu")(w, x)
    by_numpy = dl.compile(dl.grad(loss), backend="reference")(w, x)
    np.testing.assert_allclose(by_torch, by_numpy, rtol=1e-5)


def test_results_are_memory_of_their_own() -> None:
    x = np.ones(5, np.float32)
    b = Builder([ROW])
    program = compile_function(as_function(b.finish([b.params[0], b.full(ROW, 2)])), "torch:cpu")
    first = program(x)
    first[0][:] = 7
    first[1][:] = 7
    assert x.tolist() == [1] * 5
    assert program(x)[1].tolist() == [2] * 5
    out = [np.empty(5, np.float32), np.empty(5, np.float32)]
    assert program(x, out=out)[0] is out[0]
    assert out[1].tolist() == [2] * 5


def test_a_profile_is_the_same_bits_as_the_reference() -> None:
    rng = np.random.default_rng(5)
    x, y = (rng.normal(size=(30, 30)).astype(np.float32) for _ in "xy")
    b = Builder([TensorType.of(x), TensorType.of(y)])
    attrs = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    product = b.emit("dot", b.params, attrs)[0]
    root = b("sqrt", b("abs", product))
    function = as_function(b.finish([product, b("tanh", product), root, b("div", root, product)]))
    found = compile_function(function, "torch:cpu", "reproducible")(x, y)
    expected = compile_function(function, "reference", "reproducible")(x, y)
    assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]


def test_a_straight_program_has_code_to_read() -> None:
    b = Builder([ROW])
    program: Any = compile_function(as_function(b.finish([b("exp", b.params[0])])), "torch:cpu")
    assert "torch.exp" in program.code


def test_a_loop_in_fixed_buffers_gives_what_the_reference_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a CUDA graph replays, without CUDA: rounds that read and write the same memory."""

    def replayed(loop: Any, given: Sequence[Any]) -> None:
        loop._buffers = [torch.empty_like(v) for v in given]
        loop._graph = SimpleNamespace(replay=loop._round)

    monkeypatch.setattr(GraphedLoop, "_capture", replayed)
    body = region(
        [INDEX, ROW, ROW, ROW],
        lambda b, i, c, x, y: [
            y,
            b(
                "add",
                x,
                b("mul", c, b("broadcast", b("convert", i, dtype=F32), shape=(5,), dims=())),
            ),
        ],
    )
    b = Builder([INDEX, ROW, ROW, ROW])
    outs = b.emit("for", [b.constant(2, I64), *b.params], {"consts": 1}, [body])
    function = as_function(b.finish(outs))
    program = TorchProgram(function, Options("cpu", graphs=True))
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    for trips in (5, 2, 4):
        args = [np.array(trips), *rows]
        for found, want in zip(program(*args), run_block(function.body, args), strict=True):
            np.testing.assert_allclose(found, want)
        rows = rows + 1


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("torch:tpu", "no back end"),
        ("torch", "no back end"),
        ("torch:cuda:x", "no back end"),
        ("torch:cpu+fast", "no switch"),
        ("torch:cuda+tf32+bf16", "not both"),
        ("torch:cpu+graphs", "CUDA's"),
        ("numpy", "no back end"),
    ],
)
def test_a_wrong_name_is_refused(backend: str, words: str) -> None:
    b = Builder([ROW])
    with pytest.raises(DelianError, match=words):
        compile_function(as_function(b.finish(b.params)), backend)


@pytest.mark.parametrize(
    "switches", ["+bf16", pytest.param("+bf16+deterministic", marks=pytest.mark.slow)]
)
def test_bf16_products_are_near_and_deterministic_mode_is_put_back(switches: str) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.normal(size=(8, 8)).astype(np.float32) for _ in "xy")
    b = Builder([TensorType.of(x), TensorType.of(y)])
    attrs = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    function = as_function(b.finish(b.emit("dot", b.params, attrs)))
    (found,) = compile_function(function, f"torch:cpu{switches}")(x, y)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not np.array_equal(found, x @ y)
    np.testing.assert_allclose(found, x @ y, atol=0.1)


def test_an_npu_whose_package_does_not_load_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DelianError, match="torch_npu, which is not installed"):
        compile_torch({}, "torch:npu")
    (tmp_path / "torch_npu.py").write_text("raise OSError('libascend_hal.so is not there')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DelianError, match=r"does not load: libascend_hal\.so is not there"):
        compile_torch({}, "torch:npu")


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert compile_torch({}, "torch:cuda:0") == {}
    with pytest.raises(DelianError, match=r"torch:cuda:1: there is no such device here"):
        compile_torch({}, "torch:cuda:1")
