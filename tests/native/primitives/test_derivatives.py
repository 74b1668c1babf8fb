"""Each primitive's rules of differentiation, forward and reverse, first and second order.

The rules are applied by two small transforms of straight-line blocks, written here, so that a fault
in the compiler's own transforms cannot hide one in a rule. Three things must hold of a block and,
since the rules build primitives that have rules, of its derivative too:

    J v        =  (f(x + hv) - f(x - hv)) / 2h
    <u, J v>   =  <J' u, v>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Array, Block, Builder, DType, ListType, TensorType, Value
from delian.core.compiler.primitives import PRIMITIVES


def forward(block: Block, wrt: Sequence[int]) -> Block:
    """(params..., tangents of params[wrt]) -> tangents of the results."""
    b = Builder([p.type for p in (*block.params, *(block.params[i] for i in wrt))])
    count = len(block.params)
    values = dict(zip(block.params, b.params[:count], strict=True))
    tangents: dict[Value, Value | None] = {
        b.params[i]: t for i, t in zip(wrt, b.params[count:], strict=True)
    }
    for op in block.ops:
        results = b.copy(op, values)
        rule = PRIMITIVES[op.name].jvp
        moving = [tangents.get(v) for v in b.ops[-1].operands]
        if rule is not None and any(t is not None for t in moving):
            tangents.update(zip(results, rule(b, b.ops[-1], moving), strict=True))
    out = [values[r] for r in block.results]
    return b.finish([t if (t := tangents.get(v)) else b.zeros(v.type) for v in out])


def reverse(block: Block, wrt: Sequence[int]) -> Block:
    """(params..., cotangents of the results) -> cotangents of params[wrt]."""
    b = Builder([v.type for v in (*block.params, *block.results)])
    count = len(block.params)
    values = dict(zip(block.params, b.params[:count], strict=True))
    for op in block.ops:
        b.copy(op, values)
    copies = list(b.ops)
    cotangents: dict[Value, Value] = {}

    def add(value: Value, g: Value) -> None:
        adding = "list_add" if isinstance(value.type, ListType) else "add"
        before = cotangents.get(value)
        cotangents[value] = g if before is None else b(adding, before, g)

    for result, g in zip(block.results, b.params[count:], strict=True):
        add(values[result], g)
    for op in reversed(copies):
        rule = PRIMITIVES[op.name].vjp
        arriving = [cotangents.get(r) for r in op.results]
        if rule is None or all(g is None for g in arriving):
            continue
        leaving = rule(b, op, arriving)
        assert len(leaving) == len(op.operands)
        for value, back in zip(op.operands, leaving, strict=True):
            if back is not None:
                assert back.type == value.type, op.name
                add(value, back)
    wanted = [b.params[i] for i in wrt]
    return b.finish([g if (g := cotangents.get(v)) else b.zeros(v.type) for v in wanted])


def like(rng: np.random.Generator, values: Sequence[Value]) -> list[Array]:
    return [rng.uniform(-1, 1, v.shape) for v in values]


def inner(left: Sequence[Array], right: Sequence[Array]) -> float:
    return sum(float(np.sum(a * b)) for a, b in zip(left, right, strict=True))


def check(block: Block, args: Sequence[Array], wrt: Sequence[int], tolerance: float) -> None:
    """Holds a block's two derivatives against finite differences and each other."""
    rng = np.random.default_rng(11)
    u, v = like(rng, block.results), like(rng, [block.params[i] for i in wrt])
    jv = run_block(forward(block, wrt), [*args, *v])
    ju = run_block(reverse(block, wrt), [*args, *u])
    np.testing.assert_allclose(inner(u, jv), inner(ju, v), rtol=1e-10, atol=1e-10)

    def moved(step: float) -> list[Array]:
        at = list(args)
        for i, direction in zip(wrt, v, strict=True):
            at[i] = args[i] + step * direction
        return run_block(block, at)

    step = 1e-6
    for ahead, behind, slope in zip(moved(step), moved(-step), jv, strict=True):
        np.testing.assert_allclose(
            (ahead - behind) / (2 * step), slope, rtol=tolerance, atol=tolerance
        )


def test_first_and_second_order(smooth_case: Any) -> None:
    block, args, wrt = smooth_case.block(), list(smooth_case.args), smooth_case.smooth
    check(block, args, wrt, 1e-6)
    cotangents = like(np.random.default_rng(5), block.results)
    moving = (*wrt, *range(len(args), len(args) + len(cotangents)))
    check(reverse(block, wrt), [*args, *cotangents], moving, 1e-5)
    check(forward(block, wrt), [*args, *like(np.random.default_rng(6), _at(block, wrt))], wrt, 1e-5)


def _at(block: Block, wrt: Sequence[int]) -> list[Value]:
    return [block.params[i] for i in wrt]


@pytest.mark.parametrize(
    ("name", "at"), [("tanh", 0.3), ("sigmoid", -0.7), ("rsqrt", 1.7), ("erf", 0.4), ("log", 2.0)]
)
def test_third_order(name: str, at: float) -> None:
    b = Builder([TensorType(DType.F64)])
    block = b.finish([b(name, b.params[0])])
    one = np.array(1.0)
    second = forward(forward(block, [0]), [0])
    args = [np.array(at), one, one]
    check(second, args, [0], 1e-5)


def gradient(name: str, *args: Any, **attrs: Any) -> list[Array]:
    """The reverse rule with a cotangent of ones, for every operand."""
    arrays = [np.asarray(a) for a in args]
    b = Builder([TensorType.of(a) for a in arrays])
    block = b.finish([b(name, *b.params, **attrs)])
    ones = np.ones(block.results[0].shape, block.results[0].dtype.numpy)
    return run_block(reverse(block, range(len(arrays))), [*arrays, ones])


def test_max_and_min_share_a_tie_in_halves() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    assert [g.tolist() for g in gradient("max", x, y)] == [[0, 0.5, 1], [1, 0.5, 0]]
    assert [g.tolist() for g in gradient("min", x, y)] == [[1, 0.5, 0], [0, 0.5, 1]]


def test_extremes_share_among_all_that_tie() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    (top,) = gradient("reduce_max", x, axes=(1,))
    assert np.array_equal(top, [[0, 0.5, 0.5], [1 / 3] * 3])
    (bottom,) = gradient("reduce_min", x, axes=(0, 1))
    assert np.array_equal(bottom, [[1.0, 0, 0], [0, 0, 0]])


def test_power_is_flat_in_the_base_where_the_exponent_is_zero() -> None:
    base, exponent = gradient("pow", np.array([0.0, -2.0]), np.array([0.0, 0.0]))
    assert base.tolist() == [0, 0]
    assert exponent[0] == 0


def test_square_at_zero_has_derivatives_of_every_order() -> None:
    b = Builder([TensorType(DType.F64)])
    block = b.finish([b("pow", b.params[0], b.constant(2.0, DType.F64))])
    zero, one = np.array(0.0), np.array(1.0)
    first = forward(block, [0])
    second = forward(first, [0])
    third = forward(second, [0])
    assert run_block(first, [zero, one]) == [0]
    assert run_block(second, [zero, one, one]) == [2]
    assert run_block(third, [zero, one, one, one]) == [0]


def test_absolute_value_is_flat_at_zero() -> None:
    assert gradient("abs", np.array([-2.0, 0.0, 3.0]))[0].tolist() == [-1, 0, 1]


def test_product_with_zeros_has_an_exact_gradient() -> None:
    (g,) = gradient("reduce_prod", np.array([0.0, 2.0, 3.0]), axes=(0,))
    assert g.tolist() == [6, 0, 0]


def test_clamped_indices_send_their_cotangent_to_the_end() -> None:
    x, indices = np.zeros(3), np.array([-9, 9, 1, 1])
    b = Builder([TensorType.of(x), TensorType.of(indices)])
    block = b.finish([b("take", *b.params, axis=0)])
    (g,) = run_block(reverse(block, [0]), [x, indices, np.array([1.0, 2.0, 4.0, 8.0])])
    assert g.tolist() == [1, 12, 2]


def test_select_keeps_infinite_slopes_out_of_the_other_branch() -> None:
    """d/dx select(x > 0, sqrt(x), 0) must not see select's own zero times an infinity."""
    pred, x = np.array([True, False]), np.array([4.0, np.inf])
    grads = run_block(
        reverse(_select(pred, x), [1, 2]), [pred, x, np.zeros(2), np.array([np.inf, 1.0])]
    )
    assert [g.tolist() for g in grads] == [[np.inf, 0], [0, 1]]


def _select(pred: Array, x: Array) -> Block:
    b = Builder([TensorType.of(pred), TensorType.of(x), TensorType.of(x)])
    return b.finish([b("select", *b.params)])


def test_convert_carries_gradients_between_floats_only() -> None:
    x = np.array([1.25, -2.5], np.float32)
    (wide,) = gradient("convert", x, dtype=DType.F64)
    assert wide.dtype == np.float32 and wide.tolist() == [1, 1]
    row = PRIMITIVES["convert"]
    assert row.vjp is not None and row.jvp is not None
    b = Builder([TensorType(DType.F32), TensorType(DType.I32)])
    b("convert", b.params[0], dtype=DType.I32)
    assert row.jvp(b, b.ops[-1], [b.params[0]]) == (None,)
    b("convert", b.params[1], dtype=DType.F32)
    assert row.vjp(b, b.ops[-1], [b.params[0]]) == (None,)


def test_nothing_is_built_for_symbolic_zeros(primitive_case: Any) -> None:
    if primitive_case.build is not None:
        return  # a program, and not one operation
    block = primitive_case.block()
    row, op = PRIMITIVES[primitive_case.name], block.ops[0]
    b = Builder(block.params)
    if row.vjp is not None:
        assert set(row.vjp(b, op, (None,) * len(op.results))) <= {None}
    if row.jvp is not None:
        assert set(row.jvp(b, op, (None,) * len(op.operands))) <= {None}
    assert not b.ops
