"""Several threads within one program: the same bits, whoever calls and whatever the cores do."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.native import thread_pool
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Builder, DType, Function, TensorType

F32 = DType.F32
THREADS = (2, 3, 5)
#: (m, n, k): products that go each way that gemm.h knows.
PRODUCTS = [
    *((10, 200, 64), (10, 203, 700), (3, 2000, 300), (64, 64, 33), (200, 70, 10)),
    *(
        (97, 300, 65),
        (193, 40, 20),
        (20, 193, 300),
        (289, 30, 600),
        (130, 33, 600),
        (50, 500, 520),
        (40, 1, 200),
        (61, 200, 530),
    ),
]
LAYOUTS = ["nn", "nt", "tn", "tt"]
#: images, height and width, channels in and out, kernel, strides.
CONVOLUTIONS = [
    (5, (9, 8), (3, 20), (3, 3), (1, 1)),
    (7, (9, 8), (33, 16), (3, 3), (2, 2)),
    (3, (12, 7), (5, 40), (5, 4), (2, 3)),
]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are Linux's")


def random_function(seed: int, count: int = 12) -> Function:
    """Products, reductions and arithmetic on matrices, one taking what others gave."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 90, 3)]
    pairs = [(i, j) for i in range(3) for j in range(3)]
    b = Builder([TensorType(F32, (sizes[i], sizes[j])) for i, j in pairs])
    made = list(zip(pairs, b.params, strict=True))
    for _ in range(count):
        (rows, inner), x = made[rng.integers(len(made))]
        kind = rng.integers(4)
        if kind == 0:
            (same, columns), y = made[rng.integers(len(made))]
            contract = {"contract_a": (1,), "batch_a": (), "batch_b": ()}
            if same == inner:
                made.append(((rows, columns), b("dot", x, y, contract_b=(0,), **contract)))
            elif columns == inner:
                made.append(((rows, same), b("dot", x, y, contract_b=(1,), **contract)))
        elif kind == 1:
            others = [v for pair, v in made if pair == (rows, inner)]
            y = others[rng.integers(len(others))]
            made.append(((rows, inner), b("add", b("tanh", x), y)))
        elif kind == 2:
            made.append(((inner, rows), b("transpose", x, perm=(1, 0))))
        else:
            total = b("reduce_sum", b("mul", x, x), axes=(1,))
            scale = b("rsqrt", b("add", total, b.full(total.tensor, 1.0)))
            wide = b("broadcast", scale, shape=x.shape, dims=(0,))
            made.append(((rows, inner), b("mul", x, wide)))
    results = [v for _, v in made[9:]] or [made[0][1]]
    names = tuple(f"p{i}" for i in range(9)), tuple(f"r{i}" for i in range(len(results)))
    return Function(f"random_{seed}", b.finish(results), *names)


def product(m: int, n: int, k: int, layout: str, then: bool) -> Function:
    shape_a = (k, m) if layout[0] == "t" else (m, k)
    shape_b = (n, k) if layout[1] == "t" else (k, n)
    b = Builder([TensorType(F32, s) for s in (shape_a, shape_b, (n,))])
    x, y, bias = b.params
    how = {"contract_a": (int(layout[0] == "n"),), "contract_b": (int(layout[1] == "t"),)}
    z = b("dot", x, y, batch_a=(), batch_b=(), **how)
    if then:
        z = b("tanh", b("add", z, b("broadcast", bias, shape=(m, n), dims=(1,))))
    name = f"{m}x{n}x{k}-{layout}-{then}"
    return Function(name, b.finish([z]), ("x", "y", "bias"), ("z",))


def batches(count: int, m: int, n: int, k: int) -> Function:
    b = Builder([TensorType(F32, (2, count, m, k)), TensorType(F32, (2, count, n, k))])
    how = {"contract_a": (3,), "contract_b": (3,), "batch_a": (0, 1), "batch_b": (0, 1)}
    return Function(f"batches-{count}", b.finish([b("dot", *b.params, **how)]), ("x", "y"), ("z",))


def convolutions(case: tuple[Any, ...]) -> Function:
    images, (h, w), (c, o), (kh, kw), strides = case
    oh, ow = (h + 2 - kh) // strides[0] + 1, (w + 2 - kw) // strides[1] + 1
    shapes = ((images, h, w, c), (kh, kw, c, o), (images, oh, ow, o))
    b = Builder([TensorType(F32, s) for s in shapes])
    x, k, y = b.params
    how: dict[str, Any] = {"strides": strides, "padding": ((1, 1), (1, 1))}
    results = [
        b("conv", x, k, **how),
        b("conv_input_grad", y, k, input_size=(h, w), **how),
        b("conv_weight_grad", x, y, kernel_size=(kh, kw), **how),
    ]
    return Function(f"conv-{case}", b.finish(results), ("x", "k", "y"), ("z", "dx", "dk"))


def loops(rows: int, columns: int, depth: int) -> Function:
    """Groups that are cut: elementwise, along rows, along columns, and a turned copy."""
    shape = (rows, columns, depth)
    b = Builder([TensorType(F32, shape), TensorType(F32, (depth,)), TensorType(F32, ())])
    x, scale, rate = b.params
    wide = b("mul", x, b("broadcast", scale, shape=shape, dims=(2,)))
    y = b("exp", b("neg", b("mul", wide, b("broadcast", rate, shape=shape, dims=()))))
    results = [
        b("tanh", b("add", x, b("broadcast", rate, shape=shape, dims=()))),
        y,
        b("reduce_sum", b("log1p", y), axes=(2,)),
        b("reduce_sum", b("mul", x, y), axes=(1,)),
        b("reduce_max", b("sin", x), axes=(0, 1)),
        b("reduce_sum", b("cos", x), axes=(0, 1, 2)),
        b("transpose", x, perm=(0, 2, 1)),
    ]
    names = tuple(f"r{i}" for i in range(len(results)))
    return Function(f"loops-{shape}", b.finish(results), ("x", "scale", "rate"), names)


def functions() -> dict[str, Function]:
    table = [product(*s, layout, then) for s in PRODUCTS for layout in LAYOUTS for then in (0, 1)]
    table += [convolutions(case) for case in CONVOLUTIONS]
    table += [random_function(seed) for seed in range(20)]
    table += [loops(57, 33, 70), loops(3, 1250, 31), loops(1, 1, 140001)]
    table += [batches(7, 20, 52, 49), batches(3, 40, 90, 33)]
    return {f.name: f for f in table}


FUNCTIONS = functions()


@pytest.fixture(scope="module")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    """Even small work is cut into chunks here."""
    return compile_native(FUNCTIONS, toolchain.with_flags(("-DDL_PARALLEL_WORK=256",)))


def arguments(function: Function, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(p.shape), np.float32) for p in function.body.params]


@pytest.fixture(scope="module")
def alone(programs: Mapping[str, NativeProgram]) -> Mapping[str, list[bytes]]:
    """What one thread computes before there is a pool."""
    return {n: [r.tobytes() for r in p(*arguments(p.function))] for n, p in programs.items()}


@pytest.mark.parametrize("threads", [*THREADS, 1])
def test_results_are_the_same_bits_for_any_number_of_threads(
    threads: int, programs: Mapping[str, NativeProgram], alone: Mapping[str, list[bytes]]
) -> None:
    for name, program in programs.items():
        program.threads = threads
        args = arguments(program.function)
        for _ in range(3):
            assert [r.tobytes() for r in program(*args)] == alone[name], (name, threads)
        program.threads = 1


def step(model: Any, x: Any, y: Any) -> Any:
    def loss(model: Any) -> Any:
        hidden = np.tanh(x @ model[0] + model[1])
        logits = hidden @ model[2]
        top = np.max(logits, axis=-1, keepdims=True)
        total = np.sum(np.exp(logits - top), axis=-1, keepdims=True)
        return np.mean(np.log(total) - (logits - top) * y)

    value, gradient = dl.value_and_grad(loss)(model)
    return dl.tree.map(lambda w, g: w - np.float32(0.1) * g, model, gradient), value


def large_step() -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(3)
    shapes = ((256, 300), (300,), (300, 40))
    model = tuple(np.asarray(rng.standard_normal(s) * 0.1, np.float32) for s in shapes)
    x = np.asarray(rng.standard_normal((48, 256)), np.float32)
    y = np.asarray(rng.random((48, 40)), np.float32)
    return step, [model, x, y]


def flat(results: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in dl.tree.leaves(results)]


def test_compile_takes_the_number_of_threads() -> None:
    f, args = large_step()
    expected = flat(dl.compile(f)(*args))
    for threads in THREADS:
        compiled = dl.compile(f, threads=threads)
        assert all(flat(compiled(*args)) == expected for _ in range(5))


def test_the_number_of_threads_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain
) -> None:
    function = random_function(1)
    monkeypatch.setenv("DELIAN_THREADS", "3")
    program = compile_function(function)
    assert isinstance(program, NativeProgram)
    assert program.threads == 3
    monkeypatch.delenv("DELIAN_THREADS")
    other = compile_function(function)
    assert isinstance(other, NativeProgram)
    assert other.threads == 1
    assert other.report.library == program.report.library  # the count decides nothing of the code


@pytest.mark.parametrize("said", ["0", "65", "many", "-1", "²"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELIAN_THREADS", said)
    with pytest.raises(DelianError):
        thread_pool.wanted()


def test_several_callers_at_once_get_what_one_gets() -> None:
    f, args = large_step()
    compiled = dl.compile(f, threads=2)
    expected = flat(compiled(*args))
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(40):
            if flat(compiled(*args)) != expected:
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(300)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)


@pytest.fixture
def one_core() -> Iterator[None]:
    """All threads of this process on one core, where there is a busy one besides."""
    usable = os.sched_getaffinity(0)
    stop = threading.Event()

    def burn() -> None:
        block = np.ones((200, 200))
        while not stop.is_set():
            np.sort(block, axis=None)

    busy = threading.Thread(target=burn)
    _confine({min(usable)})
    busy.start()
    yield
    stop.set()
    busy.join()
    _confine(usable)


def _confine(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def test_threads_that_share_one_busy_core_still_finish(one_core: None) -> None:
    f, args = large_step()
    expected = flat(dl.compile(f)(*args))
    compiled = dl.compile(f, threads=5)
    assert all(flat(compiled(*args)) == expected for _ in range(20))
