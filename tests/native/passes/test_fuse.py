"""What is fused with what, and what is stored."""

from __future__ import annotations

from delian.core.compiler.ir import Block, Builder, DType, TensorType, Value
from delian.core.compiler.passes.schedule.block_steps import Call, Loop, Schedule
from delian.core.compiler.passes.schedule.fuse import schedule

F32 = DType.F32
X, ROW, COLUMN = TensorType(F32, (10, 200)), TensorType(F32, (200,)), TensorType(F32, (10,))


def shown(planned: Schedule) -> list[str]:
    """A line a step: the product it takes, operations, what is reduced; stores are counted."""
    lines = []
    for step in planned.steps:
        if isinstance(step, Call):
            lines.append(step.op.name)
            continue
        names = " ".join(op.name for op in (*step.ops, *step.reductions)) or "copy"
        before = "dot > " if step.product is not None else ""
        before = f"dot beside {before}" if step.fused is not None else before
        lines.append(f"{before}[{names}] stores {len(step.stores)}")
    return lines


def across(b: Builder, v: Value, axis: int) -> Value:
    return b("broadcast", v, shape=X.shape, dims=(axis,))


def dot(b: Builder, x: Value, w: Value) -> Value:
    return b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())


def test_softmax_is_three_loops() -> None:
    b = Builder([X])
    x = b.params[0]
    shifted = b("sub", x, across(b, b("reduce_max", x, axes=(1,)), 0))
    e = b("exp", shifted)
    total = b("reduce_sum", e, axes=(1,))
    planned = schedule(b.finish([b("div", e, across(b, total, 0))]))
    assert shown(planned) == [
        "[reduce_max] stores 0",
        "[sub exp reduce_sum] stores 1",
        "[div] stores 1",
    ]


def test_a_dense_layer_s_bias_and_relu_are_one_loop() -> None:
    b = Builder([X, TensorType(F32, (200, 200)), ROW])
    x, w, bias = b.params
    y = b("max", b("add", dot(b, x, w), across(b, bias, 1)), b.full(X, 0))
    planned = schedule(b.finish([y]))
    assert shown(planned) == ["dot > [add max] stores 1"]
    assert planned.steps[0].extents == (10, 200)  # type: ignore[union-attr]


def test_reductions_of_one_tensor_share_a_loop() -> None:
    b = Builder([X])
    x = b.params[0]
    total = b("reduce_sum", x, axes=(0,))
    squares = b("reduce_sum", b("mul", x, x), axes=(0,))
    rows = b("reduce_sum", x, axes=(1,))
    assert shown(schedule(b.finish([total, squares, rows]))) in (
        ["[mul reduce_sum reduce_sum] stores 0", "[reduce_sum] stores 0"],
        ["[reduce_sum] stores 0", "[mul reduce_sum] stores 0", "[reduce_sum] stores 0"],
    )


def test_a_reduction_shares_no_loop_with_what_reads_a_part_of_its_tensor() -> None:
    b = Builder([X])
    x = b.params[0]
    row = b("slice", x, start=(0, 0), stop=(1, 200), step=(1, 1))
    first, top = b("exp", row), b("reduce_max", x, axes=(0,))
    planned = schedule(b.finish([first, top]))
    assert sorted(shown(planned)) == ["[exp] stores 1", "[reduce_max] stores 0"]
    assert {step.extents for step in planned.steps if isinstance(step, Loop)} == {(200,), (10, 200)}


def test_pooling_runs_in_the_loop_that_computes_its_windows() -> None:
    b = Builder([TensorType(F32, (2, 4, 4, 8))])
    y = b("max", b.params[0], b.full(b.params[0].tensor, 0))
    windows = b("reshape", y, shape=(2, 2, 2, 2, 2, 8))
    planned = schedule(b.finish([b("reduce_max", windows, axes=(2, 4))]))
    assert shown(planned) == ["[max reduce_max] stores 0"]
    (loop,) = planned.steps
    assert isinstance(loop, Loop)
    assert loop.extents == (2, 2, 2, 2, 2, 8)
    assert loop.reduced == (False, False, True, False, True, False)


def test_loops_that_became_one_do_not_count_as_each_other_s_readers() -> None:
    """The comparison reads what the first loop would have stored for the second."""
    b = Builder([X, X])
    x, y = (b("exp", p) for p in b.params)
    larger = b("max", x, y)
    chosen = b("select", b("ne", x, x), x, larger)
    assert shown(schedule(b.finish([chosen]))) == ["[exp exp max ne select] stores 1"]


def test_a_path_through_another_step_keeps_groups_apart() -> None:
    """y uses x and a product of x: in one loop with x it would wait for itself."""
    b = Builder([X, TensorType(F32, (200, 200))])
    x = b("exp", b.params[0])
    y = b("add", x, dot(b, x, b.params[1]))
    assert shown(schedule(b.finish([y]))) == ["[exp] stores 1", "dot > [add] stores 1"]


def test_a_mask_of_what_is_not_stored_is_computed_where_it_is() -> None:
    """relu's backward mask needs the value before relu: storing the mask spares storing that."""
    b = Builder([X, TensorType(F32, (200, 200))])
    x, w = b.params
    z = b("mul", x, x)
    y = b("max", z, b.full(X, 0))
    h = dot(b, y, w)
    mask = b("lt", b.full(X, 0), z)
    back = b("select", mask, h, b.full(X, 0))
    planned = schedule(b.finish([back]))
    assert shown(planned) == ["[mul max lt] stores 2", "dot > [select] stores 1"]


def test_what_reads_only_what_is_stored_waits_until_it_is_needed() -> None:
    """tanh's slope is computed from the stored tanh in the backward pass, not before and kept."""
    b = Builder([X, TensorType(F32, (200, 200)), X])
    x, w, g = b.params
    y = b("tanh", x)
    h = dot(b, y, w)
    slope = b("sub", b.full(X, 1), b("mul", y, y))
    planned = schedule(b.finish([h, b("mul", g, slope)]))
    assert shown(planned) == ["[tanh] stores 1", "dot", "[mul sub mul] stores 1"]


def test_two_groups_that_meet_become_one() -> None:
    b = Builder([X, X])
    x, y = b.params
    planned = schedule(b.finish([b("add", b("exp", x), b("tanh", y))]))
    assert shown(planned) == ["[exp tanh add] stores 1"]


def test_views_and_iota_cost_nothing() -> None:
    b = Builder([X])
    x = b.params[0]
    turned = b("transpose", b("reverse", x, axes=(0,)), perm=(1, 0))
    line = b("iota", dtype=F32, shape=(200, 10), axis=0)
    planned = schedule(b.finish([b("add", turned, line)]))
    assert shown(planned) == ["[add] stores 1"]


def test_operands_of_dot_are_copied_only_when_no_strides_fit() -> None:
    b = Builder([TensorType(F32, (4, 3, 5)), TensorType(F32, (5, 6))])
    x, w = b.params
    plain = b("dot", x, w, contract_a=(2,), contract_b=(0,), batch_a=(), batch_b=())
    turned = b("transpose", x, perm=(1, 0, 2))
    copied = b("dot", turned, w, contract_a=(2,), contract_b=(0,), batch_a=(), batch_b=())
    planned = schedule(b.finish([plain, copied]))
    assert shown(planned) == ["dot", "[copy] stores 1", "dot"]


def test_what_no_result_needs_is_left_out() -> None:
    b = Builder([X])
    b("exp", b.params[0])
    assert schedule(b.finish([b("neg", b.params[0])])).steps[0].ops[0].name == "neg"  # type: ignore[union-attr]


def test_a_loop_s_results_in_each_other_s_places_are_copied_first() -> None:
    row = TensorType(F32, (5,))
    b = Builder([row, row])
    swapped: Block = b.finish([b.params[1], b.params[0]])
    assert shown(schedule(swapped, b.params)) == ["[copy] stores 1", "[copy] stores 1"]
    kept = Builder([row, row])
    assert shown(schedule(kept.finish(kept.params), kept.params)) == []


def test_a_weight_gradient_is_taken_by_the_update_that_alone_reads_it() -> None:
    b = Builder([TensorType(F32, (10, 60)), TensorType(F32, (10, 40)), TensorType(F32, (60, 40))])
    x, g, w = b.params
    gradient = b("dot", x, g, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    back = dot(b, g, b("transpose", w, perm=(1, 0)))
    updated = b("sub", w, b("mul", gradient, b.full(w.tensor, 0.1)))
    planned = schedule(b.finish([updated, back]))
    assert shown(planned) == ["dot", "dot > [mul sub] stores 1"]
    kept = schedule(b.finish([updated, gradient]))
    assert shown(kept) == ["dot", "[mul sub] stores 1"]


def test_adam_s_whole_update_is_taken_beside_the_gradient_s_tile() -> None:
    shape = (60, 40)
    b = Builder([TensorType(F32, s) for s in ((10, 60), (10, 40), shape, shape, shape)])
    x, y, w, mean, square = b.params
    full = {n: b.full(w.tensor, n) for n in (0.1, 0.9, 0.01, 0.99, 1e-8)}
    g = b("dot", x, y, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    mean = b("add", b("mul", full[0.9], mean), b("mul", full[0.1], g))
    square = b("add", b("mul", full[0.99], square), b("mul", full[0.01], b("mul", g, g)))
    step = b("div", mean, b("add", b("sqrt", square), full[1e-8]))
    planned = schedule(b.finish([b("sub", w, b("mul", full[0.1], step)), mean, square]))
    (line,) = shown(planned)
    assert line.startswith("dot > [") and line.endswith("stores 3")


def test_a_step_of_descent_takes_the_tiles_of_longer_sums_than_other_loops() -> None:
    for depth, taken in ((500, 2), (800, 1), (1100, 0)):
        b = Builder([TensorType(F32, s) for s in ((depth, 60), (depth, 40), (60, 40))])
        x, y, w = b.params
        g = b("dot", x, y, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
        descent = schedule(b.finish([b("sub", w, b("mul", g, b.full(w.tensor, 0.1)))]))
        other = schedule(b.finish([b("exp", g)]))
        assert sum("dot >" in line for s in (descent, other) for line in shown(s)) == taken


def dense_layer(b: Builder, w: Value, x: Value, y: Value, rate: Value) -> tuple[Value, Value]:
    """The weights after a step of descent, and the gradient by the input."""
    g = b("dot", x, y, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    new = b("sub", w, b("mul", b("broadcast", rate, shape=w.shape, dims=()), g))
    return new, b("dot", y, w, contract_a=(1,), contract_b=(1,), batch_a=(), batch_b=())


def dense_params(side: int = 520) -> Builder:
    shapes = [(side, side), (10, side), (10, side), ()]
    return Builder([TensorType(F32, s) for s in shapes])


def test_both_gradients_of_a_large_dense_layer_are_one_step() -> None:
    b = dense_params()
    new, back = dense_layer(b, *b.params)
    planned = schedule(b.finish([new, b("neg", back)]), (b.params[0], None))
    assert shown(planned) == ["dot beside dot > [mul sub] stores 1", "[neg] stores 1"]


def test_what_is_read_later_keeps_its_weights_as_they_were() -> None:
    b = dense_params()
    new, back = dense_layer(b, *b.params)
    planned = schedule(b.finish([new, dot(b, back, b.params[0])]), (b.params[0], None))
    assert shown(planned) == ["dot", "dot", "dot > [mul sub] stores 1"]


def test_a_rate_that_needs_the_gradient_by_the_input_comes_after_it() -> None:
    b = dense_params()
    w, x, y, rate = b.params
    back = b("dot", y, w, contract_a=(1,), contract_b=(1,), batch_a=(), batch_b=())
    new, _ = dense_layer(b, w, x, y, b("mul", rate, b("reduce_sum", back, axes=(0, 1))))
    planned = schedule(b.finish([new, back]), (w, None))
    assert [line for line in shown(planned) if "dot" in line] == ["dot", "dot > [mul sub] stores 1"]


def test_weights_that_stay_or_are_small_take_two_steps() -> None:
    for side, kept in ((520, False), (60, True)):
        b = dense_params(side)
        new, back = dense_layer(b, *b.params)
        planned = schedule(b.finish([new, back]), (b.params[0] if kept else None, None))
        assert "dot" in shown(planned)
