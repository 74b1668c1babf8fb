"""Forward mode: what it carries, and Hessian-vector products as forward over reverse."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import Loc
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, TensorType, Value
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.jvp import jvp
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify

F64 = TensorType(DType.F64)
I64 = TensorType(DType.I64)


def matmul(b: Builder, x: Value, y: Value) -> Value:
    return b("dot", x, y, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())


def network_loss() -> Block:
    """(w [3,4], c [4], v [4,2], x [5,3], y [5] i64) -> mean softmax cross-entropy of a tanh MLP."""
    shapes = [(3, 4), (4,), (4, 2), (5, 3)]
    b = Builder([*(TensorType(DType.F64, s) for s in shapes), TensorType(DType.I64, (5,))])
    w, c, v, x, y = b.params
    hidden = b("add", matmul(b, x, w), b("broadcast", c, shape=(5, 4), dims=(1,)))
    logits = matmul(b, b("tanh", hidden), v)
    top = b("stop_gradient", b("reduce_max", logits, axes=(1,)))
    shifted = b("sub", logits, b("broadcast", top, shape=(5, 2), dims=(0,)))
    total = b("log", b("reduce_sum", b("exp", shifted), axes=(1,)))
    picked = b("take_along", shifted, b("reshape", y, shape=(5, 1)), axis=1)
    each = b("sub", total, b("reshape", picked, shape=(5,)))
    return b.finish([b("div", b("reduce_sum", each, axes=(0,)), b.constant(5.0))])


def gradient(block: Block, wrt: list[int]) -> Block:
    """(params...) -> (gradients of the one scalar result)."""
    b = Builder([p.type for p in block.params])
    made = b.inline(vjp(block, wrt), [*b.params, b.constant(1.0)])
    return simplify(b.finish(made[1:]))


def test_a_hessian_times_a_vector_is_the_derivative_of_the_gradient():
    wrt = [0, 1, 2]
    grad = gradient(network_loss(), wrt)
    hvp = simplify(jvp(grad, wrt))
    verify(hvp)
    rng = np.random.default_rng(3)
    args = [rng.standard_normal(p.shape) for p in grad.params[:4]] + [rng.integers(0, 2, 5)]
    along = [rng.standard_normal(grad.params[i].shape) for i in wrt]
    got = run_block(hvp, [*args, *along])[3:]

    def shifted(step):
        moved = [a + step * d for a, d in zip(args, along, strict=False)]
        return run_block(grad, [*moved, *args[3:]])

    step = 1e-5
    for g, ahead, behind in zip(got, shifted(step), shifted(-step), strict=True):
        np.testing.assert_allclose(g, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_a_loop_carries_tangents_of_what_varies_only():
    """x varies, k (an integer) and z (its own recurrence) do not."""
    types = [F64, I64, F64]
    b = Builder([I64, *types])
    body = Builder([I64, *types])
    _, x, k, z = body.params
    grown = body("mul", x, body("add", z, body("convert", k, dtype=DType.F64)))
    outs = [grown, body("add", k, body.constant(2)), body("sin", z)]
    made = b.emit("for", (b.constant(0), *b.params), {"consts": 0}, (body.finish(outs),))
    forward = jvp(b.finish(made), [1])
    (loop,) = (op for op in forward.ops if op.name == "for")
    assert [r.type for r in loop.results] == [*types, F64]
    args = [np.int64(3), np.float64(1.5), np.int64(1), np.float64(0.2)]
    *_, z_out, by_x, by_z = run_block(forward, [*args, np.float64(1.0)])
    zs = [0.2, np.sin(0.2), np.sin(np.sin(0.2))]
    np.testing.assert_allclose(by_x, np.prod([z + k for z, k in zip(zs, (1, 3, 5), strict=True)]))
    assert by_z == 0
    np.testing.assert_allclose(z_out, np.sin(zs[-1]))


def test_a_carry_that_varies_only_from_the_second_trip_on_has_a_tangent():
    """y takes x, x stays: y's tangent starts at zero."""
    b = Builder([I64, F64, F64])
    body = Builder([I64, F64, F64, F64])
    _, x, y, _ = body.params
    outs = body.finish([x, body("mul", x, x), y])
    n, x, y = b.params
    made = b.emit("for", (b.constant(0), n, x, y, y), {"consts": 0}, (outs,))
    forward = jvp(b.finish(made[2:]), [1])
    for trips, expected in ((0, 0.0), (1, 0.0), (2, 6.0), (3, 6.0)):
        args = [np.int64(trips), *np.array([3.0, 5.0, 1.0])]
        assert run_block(forward, args)[-1] == expected


@pytest.mark.parametrize("pred", [True, False])
def test_an_if_gives_tangents_of_what_varies_in_either_branch(pred):
    b = Builder([TensorType(DType.BOOL), F64, F64])
    then, other = Builder([F64, F64]), Builder([F64, F64])
    first = then.finish([then("sin", then.params[0]), then.params[1]])
    second = other.finish([other.params[1], other.params[1]])
    made = b.emit("if", b.params, {}, (first, second))
    forward = jvp(b.finish(made), [1])
    (branch,) = (op for op in forward.ops if op.name == "if")
    assert len(branch.results) == 3
    args = [np.bool_(pred), *np.array([0.3, 0.7, 2.0])]
    by_x = run_block(forward, args)[2:]
    np.testing.assert_allclose(by_x, [2 * np.cos(0.3) if pred else 0, 0])


def test_source_spans_reach_the_tangents():
    here = (Loc("model.py", 7, 4, 7, 9),)
    b = Builder([F64])
    with b.at(here):
        y = b("sin", b.params[0])
    assert [op.locs for op in jvp(b.finish([y]), [0]).ops] == [here] * 3
