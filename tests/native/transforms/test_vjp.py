"""Reverse mode: through loops of unknown trip count, to any order, saving no more than it must."""

from __future__ import annotations

import doctest
import importlib
import math

import numpy as np
import pytest
from delian.core.common.errors import Loc
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, ListType, TensorType, count_ops
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.jvp import jvp
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify

F64 = TensorType(DType.F64)
I64 = TensorType(DType.I64)


def names(block: Block) -> list[str]:
    return [op.name for op in block.walk()]


def gradient(block: Block, wrt: int = 0) -> Block:
    """(params...) -> (gradient of the one scalar result by one parameter)."""
    reverse = vjp(block, [wrt])
    b = Builder([p.type for p in block.params])
    made = b.inline(reverse, [*b.params, b.constant(1.0)])
    return simplify(b.finish(made[-1:]))


def forward(block: Block) -> Block:
    """(params...) -> (derivative of the one scalar result by the first parameter)."""
    pushed = jvp(block, [0])
    b = Builder([p.type for p in block.params])
    made = b.inline(pushed, [*b.params, b.constant(1.0)])
    return simplify(b.finish(made[-1:]))


def growth():
    """y = x; while y < 10: y = y * 1.3 + sin(x) * 0.1 if y < 3 else y * 1.7 * x; y * sin(y)."""
    b = Builder([F64])
    (x,) = b.params
    cond = Builder([F64, F64])
    go = cond("lt", cond.params[1], cond.constant(10.0))
    then = Builder([F64, F64])
    a, y = then.params
    slow = then(
        "add", then("mul", y, then.constant(1.3)), then("mul", then("sin", a), then.constant(0.1))
    )
    other = Builder([F64, F64])
    a, y = other.params
    fast = other("mul", other("mul", y, other.constant(1.7)), a)
    body = Builder([F64, F64])
    below = body("lt", body.params[1], body.constant(3.0))
    regions = (then.finish([slow]), other.finish([fast]))
    turned = body.emit("if", (below, *body.params), {}, regions)
    (y,) = b.emit("while", (x, x), {"consts": 1}, (cond.finish([go]), body.finish(turned)))
    return b.finish([b("mul", y, b("sin", y))])


def times(a, b):
    """The product of two Taylor series."""
    return [sum(a[i] * b[k - i] for i in range(k + 1)) for k in range(len(a))]


def sine(a):
    """The sine of a Taylor series, with its cosine beside it: s' = a' c, c' = -a' s."""
    s, c = [math.sin(a[0])], [math.cos(a[0])]
    for k in range(1, len(a)):
        s.append(sum(i * a[i] * c[k - i] for i in range(1, k + 1)) / k)
        c.append(-sum(i * a[i] * s[k - i] for i in range(1, k + 1)) / k)
    return s


def growth_as_a_series(x, order):
    """The Taylor coefficients of `growth` at x, computed with series from start to end."""
    x = [x, 1.0] + [0.0] * (order - 1)
    y = x
    while y[0] < 10:
        if y[0] < 3:
            y = [1.3 * p + 0.1 * q for p, q in zip(y, sine(x), strict=True)]
        else:
            y = [1.7 * p for p in times(y, x)]
    return times(y, sine(y))


def test_derivatives_of_a_while_with_an_if_to_the_fourth_order():
    """Against Taylor arithmetic, which shares nothing with it; and the growth is bounded."""
    # Operations by order. A prototype with dead-code elimination alone: 17, 68, 238, 828, 2903.
    sizes_max = [17, 50, 100, 230, 540]
    block = growth()
    expected = growth_as_a_series(1.1, 4)
    for order, size_max in enumerate(sizes_max):
        (got,) = run_block(block, [np.float64(1.1)])
        np.testing.assert_allclose(got, math.factorial(order) * expected[order], rtol=1e-12)
        assert count_ops(block) <= size_max
        verify(block)
        if order < 4:
            block = gradient(block)


def test_forward_mode_agrees_at_every_order():
    by_reverse = by_forward = growth()
    for _ in range(4):
        by_reverse, by_forward = gradient(by_reverse), forward(by_forward)
        got, expected = (run_block(f, [np.float64(1.3)])[0] for f in (by_reverse, by_forward))
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_mixed_modes_agree_at_second_order():
    x = [np.float64(1.2)]
    expected = run_block(gradient(gradient(growth())), x)
    for mixed in (forward(gradient(growth())), gradient(forward(growth()))):
        np.testing.assert_allclose(run_block(mixed, x), expected, rtol=1e-12)
    assert count_ops(forward(gradient(growth()))) < count_ops(gradient(gradient(growth())))


def decay(limit):
    """while x > limit: x = x * (0.9999 + x / 1e9): a trip count that nothing tells beforehand."""
    b = Builder([F64])
    cond = Builder([F64])
    go = cond("lt", cond.constant(limit), cond.params[0])
    body = Builder([F64])
    (x,) = body.params
    less = body("mul", x, body("add", body.constant(0.9999), body("mul", x, body.constant(1e-9))))
    (y,) = b.emit("while", (b.params[0],), {"consts": 0}, (cond.finish([go]), body.finish([less])))
    return b.finish([y])


def test_twenty_thousand_trips_take_no_recursion():
    limit = 0.13
    x, slope, trips = 1.0, 1.0, 0
    while x > limit:
        x, slope, trips = x * (0.9999 + x * 1e-9), slope * (0.9999 + 2 * x * 1e-9), trips + 1
    assert trips > 20_000
    got = run_block(gradient(decay(limit)), [np.float64(1.0)])[0]
    np.testing.assert_allclose(got, slope, rtol=1e-10)


# ---- what is saved


def loop(types, consts, carries, step, trips=None):
    """A block whose `for` runs `step(b, i, consts, carries)` over parameters of these types."""
    b = Builder([I64, *types])
    k = len(consts)
    body = Builder([I64, *types])
    outs = step(body, body.params[0], body.params[1 : 1 + k], body.params[1 + k :])
    values = b.params[1:]
    made = b.emit("for", (b.constant(0), b.params[0], *values), {"consts": k}, (body.finish(outs),))
    assert len(carries) == len(made)
    return b.finish(made)


def test_a_linear_loop_saves_nothing():
    """x -> a x + i: the derivative does not need x."""
    block = loop(
        [F64, F64],
        ["a"],
        ["x"],
        lambda b, i, cs, xs: [
            b("add", b("mul", b.constant(0.5), xs[0]), b("convert", i, dtype=DType.F64))
        ],
    )
    reverse = vjp(block, [2])
    assert not any(name.startswith("list") for name in names(reverse))


def test_a_loop_that_is_not_followed_is_left_alone():
    """The loop computes on the second parameter alone; the derivative is by the first."""
    inner = loop([F64], [], ["x"], lambda b, i, cs, xs: [b("sin", xs[0])])
    b = Builder([F64, F64, I64])
    (y,) = b.inline(inner, [b.params[2], b.params[1]])
    reverse = vjp(b.finish([b("mul", y, b.params[0])]), [0])
    assert names(reverse).count("for") == 1
    assert not any(name.startswith("list") for name in names(reverse))


def squared_error():
    """(w, x, y) -> sum (x w - y)^2."""
    w, x = TensorType(DType.F64, (3,)), TensorType(DType.F64, (5, 3))
    b = Builder([w, x, TensorType(DType.F64, (5,))])
    guess = b(
        "dot", b.params[1], b.params[0], contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=()
    )
    error = b("sub", guess, b.params[2])
    return b.finish([b("reduce_sum", b("mul", error, error), axes=(0,))])


def sgd():
    """(trips, x, y, w) -> w after so many gradient steps, the gradient inside the loop."""
    loss = gradient(squared_error())
    w, x, y = (p.type for p in loss.params)

    def step(b, i, cs, xs):
        (g,) = b.inline(loss, [xs[0], *cs])
        return [b("sub", xs[0], b("mul", g, b.full(w, 0.01)))]

    return loop([x, y, w], ["x", "y"], ["w"], step)


def test_training_with_gradients_inside_the_loop_keeps_no_list():
    assert not any(name.startswith("list") for name in names(sgd()))


def test_the_gradient_of_training_saves_the_weights_only_where_it_must():
    """The inner loss is quadratic, so its Hessian does not depend on w, and nothing is saved."""
    by_start = simplify(vjp(sgd(), [3]))
    assert not any(name.startswith("list") for name in names(by_start))
    by_data = simplify(vjp(sgd(), [1]))
    pushed = [op for op in by_data.walk() if op.name == "list_push"]
    assert [op.operands[1].shape for op in pushed] == [(3,)]


def test_the_data_gets_no_cotangent_when_only_weights_are_asked_for():
    by_weights, by_both = (vjp(squared_error(), wrt) for wrt in ([0], [0, 1]))
    assert names(by_weights).count("dot") == 2
    assert names(by_both).count("dot") == 3


def test_integer_carries_are_saved_when_the_reverse_reads_them():
    """k follows an integer recurrence and scales x: its history is needed, its cotangent is not."""

    def step(b, i, cs, xs):
        k, x = xs
        scaled = b("mul", x, b("convert", k, dtype=DType.F64))
        return [
            b("mod", b("add", b("mul", k, b.constant(3)), b.constant(1)), b.constant(7)),
            scaled,
        ]

    block = loop([I64, F64], [], ["k", "x"], step)
    reverse = vjp(block, [2])
    pushed = [op.operands[1].type for op in reverse.walk() if op.name == "list_push"]
    assert pushed == [I64]
    args = [np.int64(4), np.int64(2), np.float64(1.5)]
    k, scale = 2, 1
    for _ in range(4):
        k, scale = (k * 3 + 1) % 7, scale * k
    assert run_block(reverse, [*args, np.float64(1.0)])[-1] == scale


# ---- edges


@pytest.mark.parametrize("trips", [-2, 0, 1, 5])
def test_loops_of_any_trip_count(trips):
    def step(b, i, cs, xs):
        return [b("mul", xs[0], b("add", cs[0], b("convert", i, dtype=DType.F64)))]

    block = loop([F64, F64], ["a"], ["x"], step)
    a, x = 1.5, 0.7
    _, by_a, by_x = run_block(vjp(block, [1, 2]), [np.int64(trips), *np.array([a, x, 1.0])])
    factors = [a + i for i in range(trips)]
    np.testing.assert_allclose(by_x, np.prod(factors))
    others = [np.prod(factors[:i] + factors[i + 1 :]) for i in range(len(factors))]
    np.testing.assert_allclose(by_a, x * np.sum(others))


def test_loops_nested_in_branches_nested_in_loops():
    inner = loop([F64], [], ["x"], lambda b, i, cs, xs: [b("sin", xs[0])])

    def step(b, i, cs, xs):
        then, other = Builder([I64, F64]), Builder([I64, F64])
        yes = then.finish(then.inline(inner, then.params))
        no = other.finish([other("mul", other.params[1], other.params[1])])
        low = b("lt", xs[0], b.constant(0.6))
        return list(b.emit("if", (low, i, xs[0]), {}, (no, yes)))

    block = loop([F64], [], ["x"], step)
    x, h = 0.9, 1e-6

    def f(x):
        return run_block(block, [np.int64(6), np.float64(x)])[0]

    reverse = vjp(block, [1])
    verify(reverse)
    _, got = run_block(reverse, [np.int64(6), np.float64(x), np.float64(1.0)])
    np.testing.assert_allclose(got, (f(x + h) - f(x - h)) / (2 * h), rtol=1e-7)
    assert got != 0


def test_a_result_that_depends_on_nothing_has_a_zero_cotangent():
    b = Builder([F64, TensorType(DType.F64, (2,))])
    reverse = vjp(b.finish([b("sin", b.params[0])]), [1])
    results = run_block(reverse, [np.float64(0.5), np.ones(2), np.float64(1.0)])
    np.testing.assert_array_equal(results[1], np.zeros(2))


def test_results_that_are_parameters_or_given_twice():
    b = Builder([F64])
    x = b.params[0]
    y = b("sin", x)
    reverse = vjp(b.finish([x, y, y]), [0])
    got = run_block(reverse, np.array([0.3, 1.0, 10.0, 100.0]))[-1]
    np.testing.assert_allclose(got, 1 + 110 * np.cos(0.3))


def test_integer_results_take_no_cotangent():
    b = Builder([F64])
    n = b("convert", b.params[0], dtype=DType.I64)
    reverse = vjp(b.finish([n, b("neg", b.params[0])]), [0])
    assert [p.type for p in reverse.params] == [F64, F64]
    assert run_block(reverse, [np.float64(2.5), np.float64(1.0)]) == [2, -2.5, -1.0]


def test_stop_gradient_stops_it():
    b = Builder([F64])
    x = b.params[0]
    reverse = vjp(b.finish([b("mul", x, b("stop_gradient", x))]), [0])
    assert run_block(reverse, [np.float64(3.0), np.float64(1.0)])[-1] == 3.0


def test_lists_of_numbers_have_cotangents():
    stack = ListType(F64)
    b = Builder([stack])
    rest, top = b.emit("list_pop", (b.params[0],))
    _, second = b.emit("list_pop", (rest,))
    reverse = vjp(b.finish([b("mul", top, second)]), [0])
    assert reverse.results[-1].type == stack
    c = Builder([F64, F64])
    given = c("list_push", c("list_push", c("list_empty", type=stack), c.params[0]), c.params[1])
    out = c.inline(reverse, [given, c.constant(1.0)])[-1]
    out, by_top = c.emit("list_pop", (out,))
    _, by_second = c.emit("list_pop", (out,))
    got = run_block(c.finish([by_top, by_second]), [np.float64(3.0), np.float64(5.0)])
    assert got == [3.0, 5.0]


def test_source_spans_reach_the_reverse():
    here = (Loc("model.py", 7, 4, 7, 9),)
    b = Builder([F64])
    with b.at(here):
        y = b("sin", b.params[0])
    reverse = vjp(b.finish([y]), [0])
    assert [op.locs for op in reverse.ops] == [here] * 3


@pytest.mark.parametrize(
    ("wrt", "words"), [([2], "no parameter 2"), ([1], "has no derivative"), ([0, 0], "named twice")]
)
@pytest.mark.parametrize("transform", [vjp, jvp])
def test_what_cannot_be_differentiated_by_is_named(transform, wrt, words):
    b = Builder([F64, I64])
    with pytest.raises(ValueError, match=words):
        transform(b.finish([b.params[0]]), wrt)


@pytest.mark.parametrize("name", ["transforms.vjp", "transforms.jvp", "passes.simplify"])
def test_the_examples_in_the_docstrings_run(name):
    failed, tried = doctest.testmod(importlib.import_module(f"delian.core.compiler.{name}"))
    assert (failed, tried > 0) == (0, True)
