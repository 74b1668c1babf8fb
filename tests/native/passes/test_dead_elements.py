"""Products of which slices are read compute what the slices need, and the results stay."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.dce import dce
from delian.core.compiler.passes.dead_elements import drop_dead_elements
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify

RNG = np.random.default_rng(0)
X, W, V = RNG.normal(size=(4, 6, 8)), RNG.normal(size=(8, 12)), RNG.normal(size=(12, 12))


def products(function: Function | Block) -> list[tuple[int, ...]]:
    """The shapes of the products, in order."""
    block = function.body if isinstance(function, Function) else function
    return [op.results[0].shape for op in block.walk() if op.name in ("dot", "attention")]


def traced(f: Any, *args: Any) -> Function:
    return trace(f, *args).function


def hidden(x: Any, w: Any, v: Any) -> Any:
    h = np.tanh(x @ w)
    h = h - np.mean(h, axis=2, keepdims=True)
    return h @ v + h


def test_a_row_that_alone_is_read_is_computed_alone() -> None:
    function = traced(lambda x, w, v: hidden(x, w, v)[:, 0], X, W, V)
    assert products(function) == [(4, 1, 12), (4, 1, 12)]


def test_so_are_its_derivatives() -> None:
    def loss(w: Any, x: Any, v: Any) -> Any:
        return np.sum(hidden(x, w, v)[:, -1] ** 2)

    function = traced(dl.grad(loss), W, X, V)
    assert max(np.prod(shape) for shape in products(function)) == W.size
    assert (4, 6, 12) not in products(function)
    step = 1e-6 * RNG.normal(size=W.shape)
    along = (loss(W + step, X, V) - loss(W - step, X, V)) / 2
    assert np.sum(dl.compile(dl.grad(loss))(W, X, V) * step) == pytest.approx(along, rel=1e-5)


def test_what_is_read_elsewhere_stays_whole() -> None:
    def f(x: Any, w: Any) -> Any:
        h = x @ w
        return h[:, 0], np.sum(h)

    assert products(traced(f, X, W)) == [(4, 6, 12)]


def test_two_slices_need_what_lies_between_them() -> None:
    def f(x: Any, w: Any) -> Any:
        h = x @ w
        return h[:, 1:2], h[:, 3, ::5]

    assert products(traced(f, X, W)) == [(4, 3, 12)]


def test_columns_of_the_second_operand() -> None:
    function = traced(lambda x, w: (x @ w)[..., :2], X, W)
    assert products(function) == [(4, 6, 2)]


def test_a_copy_that_costs_more_than_the_product_saves() -> None:
    """Of 4,000 columns one is not read: to leave it out would be to copy the others."""
    x, w = RNG.normal(size=(2, 64)), RNG.normal(size=(64, 4000))
    assert products(traced(lambda x, w: (x @ w)[:, :3999], x, w)) == [(2, 4000)]


def test_a_product_of_which_nearly_all_is_read_stays() -> None:
    x = RNG.normal(size=(4, 40, 8))
    assert products(traced(lambda x, w: (x @ w)[:, :-1], x, W)) == [(4, 40, 12)]


def test_in_the_body_of_a_loop() -> None:
    def f(x: Any, w: Any, n: Any) -> Any:
        total = np.zeros(12)
        for _ in range(n):
            total = total + np.sin((x + total[0]) @ w)[0, 0]
        return total

    assert (4, 6, 12) not in products(traced(f, X, W, 3))


def attention_block(causal: bool, start: int, stop: int) -> Block:
    rows = TensorType(DType.F64, (2, 33, 3, 64))
    b = Builder([rows, rows, rows, TensorType(DType.BOOL, (2, 1, 33, 33))])
    out, _ = b.emit("attention", b.params, {"causal": causal})
    zeros, ends = (0, start, 0, 0), (2, stop, 3, 64)
    return b.finish([b("slice", out, start=zeros, stop=ends, step=(1, 1, 1, 1))])


@pytest.mark.parametrize(
    ("causal", "start", "stop", "rows"),
    [(False, 0, 1, 1), (False, 2, 4, 2), (True, 32, 33, 1), (True, 16, 18, 17), (True, 0, 1, 33)],
)
def test_queries_of_attention(causal: bool, start: int, stop: int, rows: int) -> None:
    """`causal` counts keys from the last query on: those behind stay."""
    block = attention_block(causal, start, stop)
    after = drop_dead_elements(block)
    verify(after)
    assert products(after) == [(2, rows, 3, 64)]
    args = [RNG.normal(size=(2, 33, 3, 64)) for _ in range(3)]
    mask = RNG.random((2, 1, 33, 33)) < 0.7
    got, want = run_block(after, [*args, mask]), run_block(block, [*args, mask])
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)


def random_block(seed: int) -> tuple[Block, list[Any]]:
    """A chain of operations that the pass knows, of which one to three slices are read."""
    rng = np.random.default_rng(seed)
    b = Builder([TensorType.of(X), TensorType.of(W), TensorType.of(V)])
    x, w, v = b.params
    values: list[Value] = [b("dot", x, w, contract_a=(2,), contract_b=(0,), batch_a=(), batch_b=())]
    for _ in range(int(rng.integers(2, 9))):
        values.append(
            _drawn(b, rng, values[int(rng.integers(max(0, len(values) - 2), len(values)))], v)
        )
    results = []
    for value in [values[-1], *rng.choice(np.array(values, object), rng.integers(0, 3))]:
        low = [int(rng.integers(0, n)) for n in value.shape]
        high = [int(rng.integers(a + 1, n + 1)) for a, n in zip(low, value.shape, strict=True)]
        step = [int(rng.integers(1, 4)) for _ in low]
        results.append(b("slice", value, start=tuple(low), stop=tuple(high), step=tuple(step)))
    return dce(b.finish(results)), [X, W, V]


def _drawn(b: Builder, rng: np.random.Generator, value: Value, v: Value) -> Value:
    shape, rank = value.shape, len(value.shape)
    kind = str(
        rng.choice(["tanh", "mul", "transpose", "reshape", "reduce", "spread", "dot", "pair"])
    )
    if kind == "transpose" and rank > 1:
        return b("transpose", value, perm=tuple(int(i) for i in rng.permutation(rank)))
    if kind == "reshape":
        sizes = [
            n for n in shape for n in ((2, n // 2) if n % 2 == 0 and rng.random() < 0.5 else (n,))
        ]
        while len(sizes) > 1 and rng.random() < 0.5:
            at = int(rng.integers(0, len(sizes) - 1))
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        return b("reshape", value, shape=tuple(sizes))
    if kind == "reduce" and rank > 1:
        name = str(rng.choice(["reduce_sum", "reduce_max"]))
        return b(name, value, axes=(int(rng.integers(0, rank)),))
    if kind == "spread" and rank < 4:
        at = int(rng.integers(0, rank + 1))
        dims = tuple(i + (i >= at) for i in range(rank))
        return b("broadcast", value, shape=(*shape[:at], 3, *shape[at:]), dims=dims)
    if kind == "dot" and 12 in shape:
        none: Any = {"batch_a": (), "batch_b": ()}
        return b("dot", value, v, contract_a=(shape.index(12),), contract_b=(0,), **none)
    if kind == "pair" and rank > 1:
        axes = tuple(range(1, rank))
        return b(
            "dot", value, b("tanh", value), contract_a=axes, contract_b=axes, batch_a=(), batch_b=()
        )
    return b("mul", value, value) if kind == "mul" else b("tanh", value)


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_random_programs_give_what_they_gave(first: int) -> None:
    narrowed = 0
    for seed in range(first, first + 40):
        block, args = random_block(seed)
        after = drop_dead_elements(block)
        verify(after)
        narrowed += after is not block
        for got, want in zip(run_block(after, args), run_block(block, args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12, err_msg=str(seed))
        for _ in range(4):  # A reshape of less may let more through.
            before, after = after, dce(drop_dead_elements(after))
        assert after is before, seed
    assert narrowed > 4


@pytest.mark.parametrize("seed", range(12))
def test_their_derivatives_too(seed: int) -> None:
    block, args = random_block(seed)
    before, after = vjp(block, [0, 1, 2]), vjp(drop_dead_elements(block), [0, 1, 2])
    cts = [np.ones(r.shape) for r in block.results]
    for got, want in zip(run_block(after, args + cts), run_block(before, args + cts), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
