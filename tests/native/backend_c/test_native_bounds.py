"""No kernel reads or writes outside of its tensors and of the working memory that it asked for.

Every buffer of a program gets memory of its own with a gap behind it, and all of it is set to no
numbers at first: a number written into a gap is seen there, one read out of it in the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.aligned_arrays import ALIGNMENT
from delian.core.compiler.backends.native import program as programs
from delian.core.compiler.backends.native.kernels import winograd
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType
from delian.core.compiler.passes.schedule import memory_plan

F32 = DType.F32
GAP = 4096
Span = tuple[int, int]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[list[Span]]]:
    """Of each function compiled meanwhile, where its buffers lie."""
    found: list[list[Span]] = []

    def apart(self: Any) -> None:
        roots = [b for b in self.all if b.merged is None and b.place is None]
        at, taken = GAP, []
        for buffer in roots:
            buffer.place = memory_plan.Place("arena", at)
            taken.append((at, at + buffer.size))
            at += -(-buffer.size // ALIGNMENT) * ALIGNMENT + GAP
        self.plan.arena_bytes = at
        for value, buffer in self.buffers.items():
            self.plan.places[value] = buffer.root().place
        self.plan.scratch = {call: b.place.index for call, b in self.scratch.items()}
        found.append(taken)

    monkeypatch.setattr(memory_plan._Planner, "_assign", apart)
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    yield found


def check(functions: dict[str, Function], toolchain: Toolchain, spans: list[list[Span]]) -> None:
    compiled = compile_native(functions, toolchain)
    assert len(spans) == len(functions)
    rng = np.random.default_rng(5)
    for (name, function), taken in zip(functions.items(), spans, strict=True):
        params = function.body.params
        args = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in params]
        thread = programs._thread
        thread.arena(compiled[name].report.arena_bytes)
        thread.memory[:] = 0xFF
        results = compiled[name](*args)
        start = thread.address - thread.memory.ctypes.data
        arena = thread.memory[start : start + compiled[name].report.arena_bytes].copy()
        for begin, end in taken:
            arena[begin:end] = 0xFF
        outside = np.flatnonzero(arena != 0xFF)
        assert not len(outside), f"{name} wrote at {outside[:4]}, its buffers are {taken}"
        for result, expected in zip(results, run_block(function.body, args), strict=True):
            scale = float(np.max(np.abs(expected), initial=1.0))
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


def as_function(name: str, block: Block) -> Function:
    names = tuple(f"p{i}" for i in range(len(block.params)))
    return Function(name, block, names, tuple(f"r{i}" for i in range(len(block.results))))


def convolution(rng: np.random.Generator, kind: str) -> Block:
    """A convolution of any sizes and its gradients: dense, depthwise, or one that goes by tiles."""
    side = [
        int(n) for n in (rng.integers(1, 6, 2) if kind != "tiles" else [rng.choice([3, 5])] * 2)
    ]
    stride = (1, 1) if kind == "tiles" else tuple(int(n) for n in rng.integers(1, 4, 2))
    n, *size = (int(v) for v in (rng.integers(1, 4), *rng.integers(max(side), 16, 2)))
    c, o = (int(v) for v in rng.integers(1, 40, 2))
    if kind == "tiles":
        c, o = (int(v) for v in rng.choice([16, 32, 48, 80], 2))
    groups = {"groups": c} if kind == "depthwise" else {}
    o = c if groups else o
    padding = tuple((int(rng.integers(0, s)), int(rng.integers(0, s))) for s in side)
    out = [(size[i] + sum(padding[i]) - side[i]) // stride[i] + 1 for i in range(2)]
    shapes = ((n, *size, c), (*side, 1 if groups else c, o), (n, *out, o))
    b = Builder([TensorType(F32, s) for s in shapes])
    x, k, y = b.params
    how: dict[str, Any] = {"strides": stride, "padding": padding, **groups}
    name = "grouped_conv" if groups else "conv"
    return b.finish(
        [
            b(name, x, k, **how),
            b(f"{name}_input_grad", y, k, input_size=tuple(size), **how),
            b(f"{name}_weight_grad", x, y, kernel_size=tuple(side), **how),
        ]
    )


def matrices(rng: np.random.Generator) -> Block:
    """Products of both operands either way about, one alone and one with what follows it."""
    m, n, k = (int(v) for v in np.exp(rng.uniform(0, 6.5, 3)))
    turned = [bool(v) for v in rng.integers(0, 2, 2)]
    shapes = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n)
    b = Builder([TensorType(F32, s) for s in shapes])
    x, y, z = b.params
    attrs = {"contract_a": (0 if turned[0] else 1,), "contract_b": (1 if turned[1] else 0,)}
    made = b("dot", x, y, **attrs, batch_a=(), batch_b=())
    other = b("dot", b("neg", x), y, **attrs, batch_a=(), batch_b=())
    return b.finish([made, b("add", z, b("mul", other, b.full(z.tensor, 0.5)))])


def windows(rng: np.random.Generator) -> Block:
    """Maxima of windows, who tied for them, and groups of channels to mean zero."""
    n, h, w, groups, each = (int(v) for v in (*rng.integers(1, 7, 3), *rng.integers(1, 20, 2)))
    parts = (n, h, 2, w, 2, groups * each)
    b = Builder([TensorType(F32, parts)])
    (x,) = b.params
    most = b("reduce_max", x, axes=(2, 4))
    tied = b("eq", x, b("broadcast", most, shape=parts, dims=(0, 1, 3, 5)))
    count = b("reduce_sum", b("convert", tied, dtype=F32), axes=(2, 4))
    channels = (n, 2 * h, 2 * w, groups, each)
    grouped = b("reshape", x, shape=channels)
    mean = b("reduce_sum", grouped, axes=(1, 2, 4))
    centred = b("sub", grouped, b("broadcast", mean, shape=channels, dims=(0, 3)))
    below = b("le", centred, b.full(centred.tensor, 0.0))
    clamped = b("select", below, b.full(centred.tensor, 0.0), centred)
    back = b("select", below, b.full(centred.tensor, 0.0), grouped)
    return b.finish([most, count, clamped, b("reduce_sum", back, axes=(0, 1, 2))])


def test_nothing_is_written_or_read_outside_of_buffers(
    toolchain: Toolchain, spans: list[list[Span]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_WORTH", 100.0)
    rng = np.random.default_rng(0)
    blocks = {"dense": convolution(rng, "dense"), "depthwise": convolution(rng, "depthwise")}
    blocks |= {"tiles": convolution(rng, "tiles"), "dot": matrices(rng), "pool": windows(rng)}
    check({n: as_function(n, block) for n, block in blocks.items()}, toolchain, spans)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_written_or_read_outside_of_buffers_whatever_the_sizes(
    seed: int, toolchain: Toolchain, spans: list[list[Span]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_WORTH", 100.0)
    rng = np.random.default_rng([seed])
    blocks = {}
    for i in range(8):
        for kind in ("dense", "depthwise", "tiles"):
            blocks[f"{kind}{i}"] = convolution(rng, kind)
        blocks[f"dot{i}"], blocks[f"pool{i}"] = matrices(rng), windows(rng)
    check({n: as_function(n, block) for n, block in blocks.items()}, toolchain, spans)
