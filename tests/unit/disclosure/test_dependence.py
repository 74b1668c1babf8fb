"""What the analysis says a program does not depend on, it does not depend on: judged by running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, ListType, TensorType
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.transforms.vmap import vmap
from delian.core.learning.disclosure import dependence
from delian.core.learning.disclosure.dependence import (
    CARRIES,
    COMPARES,
    MIXES,
    OTHERS,
    PICKS,
    STARTS,
    Dependence,
    analyse,
)
from hypothesis import given
from hypothesis import strategies as st

F32, I64, BOOL = (TensorType(d) for d in (DType.F32, DType.I64, DType.BOOL))
ROW = TensorType(DType.F32, (4,))


def outputs(b: Builder, *results: Any) -> tuple[Dependence, ...]:
    return analyse(b.finish(results)).outputs


def only(places: Sequence[int] = (), selects: Sequence[int] = ()) -> Dependence:
    return Dependence(frozenset(places), frozenset(selects), False, False)


def assert_sound(block: Block, args: Sequence[Any], other: Sequence[Any]) -> int:
    """Changes one argument at a time; gives how many (input, output) pairs are independent."""
    found = analyse(block).outputs
    before = run_block(block, args)
    independent = 0
    for place in range(len(args)):
        after = run_block(block, [*args[:place], other[place], *args[place + 1 :]])
        for output, was, now in zip(found, before, after, strict=True):
            if place not in output.inputs:
                independent += 1
                np.testing.assert_array_equal(was, now)
    return independent


def others(args: Sequence[Any], seed: int) -> list[Any]:
    """Arguments of the same types with other numbers; trip counts within 0..4."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray((a + 1 + rng.integers(0, 3)) % 5)
        if np.asarray(a).dtype == np.int64
        else rng.uniform(-2, 2, np.shape(a))
        for a in args
    ]


# ---------------------------------------------------------------- random programs


@given(data=st.data())
def test_an_input_that_is_not_named_changes_nothing(random_programs, data) -> None:
    program = data.draw(random_programs.programs())
    seed = data.draw(st.integers(0, 999))
    for block in (program.block, simplify(program.block)):
        assert_sound(block, program.args, others(program.args, seed))


@given(data=st.data())
def test_it_is_so_in_many_lanes(random_programs, data) -> None:
    program = data.draw(random_programs.programs(steps=8))
    batched = [data.draw(st.booleans()) for _ in program.args]
    block, _ = vmap(program.block, batched, 3)
    args, other = (
        [
            np.stack([x, *others([x, x], seed)]) if many else np.asarray(x)
            for x, many in zip(given, batched, strict=True)
        ]
        for given, seed in (
            (program.args, 1),
            (others(program.args, data.draw(st.integers(0, 999))), 2),
        )
    )
    assert_sound(block, args, other)


@given(data=st.data())
def test_it_is_so_of_derivatives(random_programs, data) -> None:
    program = data.draw(random_programs.programs(steps=8))
    block = vjp(program.block, program.wrt)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    cotangents = [np.asarray(rng.normal(size=r.shape)) for r in program.block.results]
    args = [*program.args, *cotangents]
    assert_sound(block, args, others(args, data.draw(st.integers(0, 999))))


# ---------------------------------------------------------------- one rule at a time


def test_each_primitive_has_a_role() -> None:
    named = {*CARRIES, *PICKS, *STARTS, *COMPARES, *MIXES, *OTHERS}
    assert named == set(PRIMITIVES)


def test_arithmetic_passes_values_and_a_predicate_selects() -> None:
    b = Builder([F32, F32, F32, F32])
    x, y, z, unused = b.params
    assert outputs(b, b("mul", x, y), b("select", b("lt", x, y), z, z), unused) == (
        only([0, 1]),
        only([2], [0, 1]),
        only([3]),
    )


def test_a_comparison_that_is_multiplied_with_still_selects() -> None:
    b = Builder([F32, F32])
    hit = b("convert", b("eq", b.params[0], b.constant(np.float32(3))), dtype=DType.F32)
    assert outputs(b, b("mul", hit, b.params[1])) == (only([0, 1], [0]),)


@pytest.mark.parametrize("name", ["take", "dynamic_slice", "take_along", "dynamic_update"])
def test_an_index_selects(name: str) -> None:
    b = Builder([ROW, I64, ROW])
    x, i, y = b.params
    if name == "take":
        made = b("take", x, i, axis=0)
    elif name == "dynamic_slice":
        made = b("dynamic_slice", x, i, sizes=(2,))
    elif name == "take_along":
        made = b("take_along", x, b("reshape", i, shape=(1,)), axis=0)
    else:
        made = b("dynamic_update", x, b("slice", y, start=(0,), stop=(2,), step=(1,)), i)
    assert outputs(b, made) == (only([0, 2] if name == "dynamic_update" else [0], [1]),)


def test_the_place_of_an_update_selects() -> None:
    b = Builder([ROW, I64, F32])
    assert outputs(b, b("put_add", *b.params, axis=0)) == (only([0, 2], [1]),)


def test_a_sort_selects_by_what_it_sorts() -> None:
    b = Builder([ROW, ROW])
    order = b("argsort", b.params[0], axis=0)
    assert outputs(b, b("take", b.params[1], order, axis=0)) == (only([1], [0]),)


def branches(count: int) -> list[Block]:
    made = []
    for k in range(count):
        inner = Builder([F32, F32])
        made.append(inner.finish([inner.params[min(k, 1)], inner.params[0]]))
    return made


def test_a_branch_selects_by_its_predicate_and_passes_what_either_side_gives() -> None:
    b = Builder([BOOL, F32, F32])
    made = b.emit("if", b.params, {}, branches(2))
    assert outputs(b, *made) == (only([1, 2], [0]), only([1], [0]))


def test_a_case_selects_by_its_index() -> None:
    b = Builder([I64, F32, F32])
    made = b.emit("switch", b.params, {}, branches(3))
    assert outputs(b, *made) == (only([1, 2], [0]), only([1], [0]))


def test_a_loop_carries_round_until_nothing_is_new() -> None:
    """Four carries that move on by one each trip: each depends on all that come before it."""
    body = Builder([I64, *[F32] * 4])
    _, *carries = body.params
    block = body.finish([body.constant(np.float32(0)), *carries[:3]])
    b = Builder([I64, I64, *[F32] * 4])
    made = b.emit("for", b.params, {"consts": 0}, (block,))
    assert outputs(b, *made) == tuple(only(range(2, 3 + k), [0, 1]) for k in range(4))


def test_the_index_of_a_loop_is_a_number_of_its_lower_bound() -> None:
    body = Builder([I64, I64])
    block = body.finish([body("add", body.params[0], body.params[1])])
    b = Builder([I64, I64, I64])
    assert outputs(b, *b.emit("for", b.params, {"consts": 0}, (block,))) == (only([0, 2], [0, 1]),)


def test_all_that_a_loop_gives_is_selected_by_what_ends_it() -> None:
    """The condition reads the first carry; the second counts the trips."""
    cond = Builder([F32, F32, F32])
    grow = Builder([F32, F32, F32])
    limit = cond.constant(np.float32(3))
    step, total, trips = grow.params
    body = grow.finish([grow("add", total, step), grow("add", trips, grow.constant(np.float32(1)))])
    b = Builder([F32, F32, F32])
    regions = (cond.finish([cond("lt", cond.params[1], limit)]), body)
    made = b.emit("while", b.params, {"consts": 1}, regions)
    assert outputs(b, *made) == (only([0, 1], [0, 1]), only([2], [0, 1]))


def test_what_is_put_on_a_list_comes_off_it() -> None:
    b = Builder([F32, F32])
    stack = b("list_push", b("list_empty", type=ListType(F32)), b.params[1])
    _, top = b.emit("list_pop", (stack,))
    assert outputs(b, top) == (only([1]),)


def steps_of(graph: dependence._Graph) -> int:
    """Solves it; gives how often the edges of a value were followed."""
    steps = 0
    follow = dependence._Graph._follow

    def counted(of: dependence._Graph, fact: dependence._Fact) -> None:
        nonlocal steps
        steps += 1
        follow(of, fact)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dependence._Graph, "_follow", counted)
        graph.solve()
    return steps


def test_a_loop_of_ten_thousand_carries_is_analysed_in_a_moment() -> None:
    """Work is bounded by edges times inputs: a rotation of many carries is not walked trip by trip.

    Counted in steps of the solver, since a clock would depend on the machine.
    """
    count = 10_000
    body = Builder([I64, *[F32] * count])
    block = body.finish([*body.params[2:], body.params[1]])
    b = Builder([I64, I64, F32])
    zero = b.constant(np.float32(0))
    made = b.emit(
        "for", (*b.params[:2], b.params[2], *[zero] * (count - 1)), {"consts": 0}, (block,)
    )
    graph = dependence._Graph(b.finish(made), None)
    steps = steps_of(graph)
    assert graph.dependences()[-1] == only([2], [0, 1])
    assert steps < 20 * count


def test_without_loops_each_value_is_looked_at_once() -> None:
    """Its operands come first, though constants and parameters are known from the beginning."""
    b = Builder([F32, F32])
    value, count = b.params[0], 2
    for number in range(200):
        value = b("add", value, b("mul", b.params[1], b.constant(np.float32(number))))
        count += 3
    assert steps_of(dependence._Graph(b.finish([value]), None)) == count


# ---------------------------------------------------------------- what chooses, and where


def test_choices_and_loops_say_by_what_and_leave_out_what_is_known() -> None:
    body = Builder([I64, F32])
    block = body.finish([body("add", body.params[1], body.params[1])])
    b = Builder([I64, F32, F32])
    two = b.constant(np.int64(2))
    (fixed,) = b.emit("for", (two, two, b.params[1]), {"consts": 0}, (block,))
    (counted,) = b.emit("for", (two, b.params[0], fixed), {"consts": 0}, (block,))
    chosen = b("select", b("lt", b.params[2], counted), counted, counted)
    found = analyse(b.finish([chosen]))
    assert [(c.op, sorted(c.inputs)) for c in found.choices] == [
        ("for", [0]),
        ("lt", [0, 1, 2]),
        ("select", [0, 1, 2]),
    ]
    assert [(loop.op, sorted(loop.inputs)) for loop in found.loops] == [("for", []), ("for", [0])]
