"""Rows of tensors in loops natively: read where they lie, and written there at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.schedule.block_steps import Call, Loop
from delian.core.compiler.passes.schedule.fuse import schedule

F32, I64 = DType.F32, DType.I64
N, ROWS, COLUMNS = 6, 5, 70
STACK = TensorType(F32, (N, ROWS, COLUMNS))
ROW = TensorType(F32, (ROWS, COLUMNS))

Body = Callable[[Builder, Value, Value, Value, Value], tuple[Value, Value]]


def loop(body: Body, trips: int = N) -> Block:
    """(source, stack, state) -> for(trips): (stack', state') = body(b, i, source, stack, state)."""
    b, inner = Builder([STACK, STACK, ROW]), Builder([TensorType(I64), STACK, STACK, ROW])
    region = inner.finish(list(body(inner, *inner.params)))
    bounds = b.constant(0, I64), b.constant(trips, I64)
    return b.finish(b.emit("for", (*bounds, *b.params), {"consts": 1}, (region,)))


def put(b: Builder, stack: Value, row: Value, at: Value) -> Value:
    zero = b.constant(0, I64)
    return b("dynamic_update", stack, b("reshape", row, shape=(1, *row.shape)), at, zero, zero)


def moved(b: Builder, at: Value, by: int) -> Value:
    return b("add", at, b.constant(by, I64))


def recurrent(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """Backwards through the rows; the row that is put is used again."""
    at = b("sub", b.constant(N - 1, I64), i)
    made = b("tanh", b("add", b("take", source, at, axis=0), state))
    return put(b, stack, made, at), b("mul", made, state)


def product(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    axes = {"contract_a": (1,), "contract_b": (1,), "batch_a": (), "batch_b": ()}
    row = b("take", source, i, axis=0)
    square = b("dot", row, state, **axes)
    back = b("dot", square, row, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    return put(b, stack, back, i), b("mul", back, b.full(ROW, 0.01))


def carried(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """What is put is the next state too."""
    made = b("add", b("take", source, i, axis=0), state)
    return put(b, stack, made, i), made


def outside(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """Places that are moved into the tensor."""
    made = b("add", b("take", source, moved(b, i, 3), axis=0), state)
    return put(b, stack, made, moved(b, i, -2)), b("neg", made)


def looked_at(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """The stack is read in the same trip, before it changes."""
    made = b("add", b("take", source, i, axis=0), b("take", stack, moved(b, i, 1), axis=0))
    return put(b, stack, made, i), b("add", state, b("take", stack, i, axis=0))


def by_value(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """Where the row goes depends on what is in it."""
    made = b("abs", b("take", source, i, axis=0))
    total = b("reduce_sum", made, axes=(0, 1))
    return put(b, stack, made, b("convert", total, dtype=I64)), b("add", made, state)


def twice(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    made = b("exp", b("take", source, i, axis=0))
    first = put(b, stack, made, i)
    return put(b, first, made, moved(b, i, 2)), b("add", made, state)


def windows(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """A window of fewer columns, whose rows lie apart; and one that is what the body gives."""
    zero = b.constant(0, I64)
    part = b("dynamic_slice", source, i, zero, i, sizes=(1, ROWS, COLUMNS - N))
    part = b("reshape", part, shape=(ROWS, COLUMNS - N))
    wide = b("pad", part, b.constant(1.0, F32), low=(0, 0), high=(0, N), interior=(0, 0))
    return put(b, stack, b("add", wide, state), i), b("take", source, i, axis=0)


def nested(b: Builder, i: Value, source: Value, stack: Value, state: Value) -> tuple:
    """An inner loop's constants are a row of the outer's, and the row that is written."""
    row = b("take", source, i, axis=0)
    made = b("tanh", b("add", row, state))
    inner = Builder([TensorType(I64), ROW, ROW, ROW])
    _, one, two, total = inner.params
    region = inner.finish([inner("add", total, inner("mul", one, two))])
    bounds = b.constant(0, I64), b.constant(3, I64)
    (total,) = b.emit("for", (*bounds, row, made, state), {"consts": 2}, (region,))
    return put(b, stack, made, i), total


BODIES = (recurrent, product, carried, outside, looked_at, by_value, twice, windows, nested)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_rows_of_a_loop_are_what_the_reference_has(body: Body, toolchain: Toolchain) -> None:
    blocks = {f"trips{n}": loop(body, n) for n in (1, 2, N)}
    names = ("source", "stack", "state")
    functions = {
        f"{name}_{donated}": Function(
            name, block, names, ("stack", "state"), frozenset((1, 2) if donated else ())
        )
        for name, block in blocks.items()
        for donated in (False, True)
    }
    rng = np.random.default_rng(3)
    args = [np.asarray(rng.normal(size=t.shape), np.float32) for t in (STACK, STACK, ROW)]
    for name, program in compile_native(functions, toolchain).items():
        expected = run_block(functions[name].body, args)
        for got, wanted in zip(program(*(a.copy() for a in args)), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=name)


def calls(body: Body) -> list[Call]:
    *_, step = schedule(loop(body)).steps
    assert isinstance(step, Call)
    return [s for s in step.bodies[0].steps if isinstance(s, Call)]


def blanks(body: Body, trips: int) -> int:
    return sum(isinstance(s, Loop) and s.blank for s in schedule(loop(body, trips)).steps)


def test_a_row_that_is_read_or_computed_for_a_place_is_not_copied() -> None:
    for body in (recurrent, product, outside, nested):
        found = calls(body)
        assert any(c.window for c in found), body.__name__
        assert any(c.opens is not None for c in found), body.__name__


def test_a_row_is_copied_where_the_tensor_is_still_read_or_its_place_is_not_known_before() -> None:
    for body in (carried, looked_at, by_value):
        assert all(c.opens is None for c in calls(body)), body.__name__


def test_what_a_loop_overwrites_before_it_is_read_is_not_filled_first() -> None:
    for body in (recurrent, product, carried, windows):
        assert blanks(body, N) == 1, body.__name__
        assert blanks(body, N - 1) == 0, body.__name__
    for body in (outside, looked_at, by_value, twice):
        assert blanks(body, N) == 0, body.__name__
