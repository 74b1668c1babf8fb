"""Lists as tensors, and products of all trips as one: results stay, loops get light."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, ListType, Op, TensorType, Value
from delian.core.compiler.passes.lowering.loop_products import batch_loop_products
from delian.core.compiler.passes.lowering.stacked_lists import lists_to_tensors
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify
from delian.core.learning.nn.recurrent import run
from hypothesis import given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(11)
F64 = frozenset([DType.F64])
LIST = ListType(TensorType(DType.F64, (2,)))


def gathered(block: Block) -> Block:
    after = simplify(batch_loop_products(lists_to_tensors(simplify(block)), F64))
    verify(after)
    return after


def within_loops(block: Block, name: str) -> int:
    return sum(
        inner.name == name for op in block.walk() if op.regions for inner in op.regions[0].ops
    )


def same(block: Block, args: list[Any]) -> Block:
    after = gathered(block)
    for got, expected in zip(run_block(after, args), run_block(block, args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    return after


def traced(f: Any, *args: Any) -> Block:
    return dl.compile(f).trace(*args).function.body


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_programs_and_their_gradients_stay(random_programs: Any, data: Any) -> None:
    program = data.draw(random_programs.programs())
    same(program.block, program.args)
    cts = [np.ones(r.shape) for r in program.block.results]
    same(vjp(program.block, program.wrt), program.args + cts)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("order", [1, 2])
def test_a_recurrent_layer_s_gradient_has_no_sum_left_in_its_loop(
    reverse: bool, order: int
) -> None:
    cell = nn.LstmCell(*(RNG.normal(size=s) * 0.3 for s in ((3, 20), (5, 20), (20,))))

    def loss(cell: Any, x: Any) -> Any:
        return np.sum(run(cell, x, None, reverse) ** 2)

    for _ in range(order - 1):
        before = loss
        loss = lambda cell, x, f=before: sum(  # noqa: E731
            np.sum(g * g) for g in dl.tree.leaves(dl.grad(f)(cell, x))
        )
    x = RNG.normal(size=(7, 4, 3))
    block = traced(dl.grad(loss), cell, x)
    after = same(block, [*dl.tree.leaves(cell), x])
    if order == 1:  # the recurrent product itself, and its transpose
        assert not any(op.name.startswith("list") for op in after.walk())
        assert within_loops(after, "dot") == 2 < within_loops(simplify(block), "dot")


def test_a_head_applied_in_each_step_is_applied_once_to_all() -> None:
    w, v = RNG.normal(size=(4, 4)), RNG.normal(size=(4, 3))

    def f(w: Any, v: Any, x: Any) -> Any:
        state, out = np.zeros((2, 4)), np.zeros((6, 2, 3))
        for t in range(6):
            state = np.tanh(state @ w + x[t] @ w)
            out = dl.ops.dynamic_update(out, (state @ v)[None], (5 - t, 0, 0))
        return out

    block = traced(f, w, v, RNG.normal(size=(6, 2, 4)))
    after = same(block, [w, v, RNG.normal(size=(6, 2, 4))])
    assert within_loops(block, "dot") == 3
    assert within_loops(after, "dot") == 1


def loop(trips: int, consts: list[Any], starts: list[Any], body: Any) -> Block:
    """A loop over parameters: `body(builder, index, constants, carries) -> carries`."""
    types = [TensorType.of(a) for a in (*consts, *starts)]
    b, inner = Builder(types), Builder([TensorType(DType.I64), *types])
    index, *rest = inner.params
    results = body(inner, index, rest[: len(consts)], rest[len(consts) :])
    bounds = b.constant(0, DType.I64), b.constant(trips, DType.I64)
    attrs = {"consts": len(consts)}
    made = b.emit("for", (*bounds, *b.params), attrs, (inner.finish(results),))
    return b.finish(made)


MATRIX = {"contract_a": (0,), "contract_b": (0,), "batch_a": (), "batch_b": ()}


def test_a_sum_starts_from_what_it_is_given_and_reads_rows_either_way() -> None:
    xs, ys, start = (RNG.normal(size=s) for s in ((9, 2, 3), (6, 2, 4), (3, 4)))

    def body(b: Builder, i: Value, consts: list[Value], carries: list[Value]) -> list[Value]:
        last = b("sub", b.constant(7, DType.I64), i)
        x, y = b("take", consts[0], last, axis=0), b("take", consts[1], i, axis=0)
        return [b("add", carries[0], b("dot", x, y, **MATRIX))]

    block = loop(6, [xs, ys], [start], body)
    after = same(block, [xs, ys, start])
    assert not any(op.name == "for" for op in after.walk())
    expected = start + np.einsum("tni,tnj->ij", xs[2:8][::-1], ys)
    np.testing.assert_allclose(run_block(after, [xs, ys, start])[0], expected, rtol=1e-12)


@pytest.mark.parametrize(("step", "from_zero"), [(0, True), (1, False)])
def test_rows_that_are_put_twice_or_on_others_are_added(step: int, from_zero: bool) -> None:
    rows = RNG.normal(size=(5, 3))
    start = np.zeros((8, 3)) if from_zero else RNG.normal(size=(8, 3))

    def body(b: Builder, i: Value, consts: list[Value], carries: list[Value]) -> list[Value]:
        at = b("add", b("mul", i, b.constant(step, DType.I64)), b.constant(2, DType.I64))
        return [b("put_add", carries[0], at, b("take", consts[0], i, axis=0), axis=0)]

    block = same(loop(5, [rows], [start], body), [rows, start])
    assert any(op.name == "put_add" for op in block.walk())


def test_a_place_outside_the_tensor_is_left_to_the_clamp() -> None:
    rows, w = RNG.normal(size=(4, 2, 3)), RNG.normal(size=(3, 5))

    def body(b: Builder, i: Value, consts: list[Value], carries: list[Value]) -> list[Value]:
        at = b("add", i, b.constant(1, DType.I64))
        product = {**MATRIX, "contract_a": (1,)}
        y = b("dot", b("take", consts[0], at, axis=0), consts[1], **product)
        return [b("add", carries[0], y)]

    same(loop(5, [rows, w], [np.zeros((2, 5))], body), [rows, w, np.zeros((2, 5))])


def test_a_list_that_is_popped_less_often_than_pushed_stays_a_list() -> None:
    b = Builder([TensorType(DType.F64, (2,))])
    (x,) = b.params

    def pushed(count: int) -> Value:
        inner = Builder([TensorType(DType.I64), x.type, LIST])
        _, value, stack = inner.params
        region = inner.finish([inner("list_push", stack, inner("add", value, value))])
        bounds = b.constant(0, DType.I64), b.constant(count, DType.I64)
        return b.emit("for", (*bounds, x, b.zeros(LIST)), {"consts": 1}, (region,))[0]

    def popped(stack: Value, count: int) -> Value:
        inner = Builder([TensorType(DType.I64), stack.type, x.type])
        rest, value = inner.emit("list_pop", (inner.params[1],))
        region = inner.finish([rest, inner("add", inner.params[2], value)])
        bounds = b.constant(0, DType.I64), b.constant(count, DType.I64)
        return b.emit("for", (*bounds, stack, x), {"consts": 0}, (region,))[1]

    fewer, all_ = popped(pushed(7), 6), popped(pushed(8), 8)
    after = lists_to_tensors(b.finish([fewer, all_]))
    verify(after)
    ops: list[Op] = list(after.walk())
    assert sum(op.name == "list_push" for op in ops) == 1
    assert sum(op.name == "list_pop" for op in ops) == 1
    x_ = RNG.normal(size=2)
    for got, factor in zip(run_block(after, [x_]), (13, 17), strict=True):
        np.testing.assert_allclose(got, x_ * factor)


def test_a_carry_may_become_what_needs_nothing() -> None:
    def body(b: Builder, i: Value, consts: list[Value], carries: list[Value]) -> list[Value]:
        x = b("take", consts[0], i, axis=0)
        return [b("add", carries[0], b("dot", x, x, **MATRIX)), b.constant(1.5, DType.F64)]

    args = [RNG.normal(size=(6, 2, 3)), np.zeros((3, 3)), np.float64(0.5)]
    block = loop(6, args[:1], args[1:], body)
    after = batch_loop_products(block, F64)
    verify(after)
    for got, expected in zip(run_block(after, args), run_block(block, args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
