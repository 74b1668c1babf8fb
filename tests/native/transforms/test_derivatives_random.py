"""Forward and reverse mode on random programs: against each other and finite differences."""

from __future__ import annotations

import numpy as np
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.jvp import jvp
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify
from hypothesis import assume, given, settings
from hypothesis import strategies as st

#: Two, so that a kink between the points can be told: across one, they give different quotients.
STEPS = (1e-5, 2.5e-6)


def directions(types, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape) for t in types]


def dot(xs, ys):
    return float(sum(np.sum(x * y) for x, y in zip(xs, ys, strict=True)))


def shifted(program, along, step):
    args = list(program.args)
    for i, direction in zip(program.wrt, along, strict=True):
        args[i] = args[i] + step * direction
    return args


def derivative(program, along, step):
    """The results' derivative along a direction, by a central difference."""
    ahead = run_block(program.block, shifted(program, along, step))
    behind = run_block(program.block, shifted(program, along, -step))
    return [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_reverse_mode_is_the_adjoint_of_forward_mode(random_programs, data):
    program = data.draw(random_programs.programs())
    block, wrt = program.block, program.wrt
    n = len(block.results)
    along = directions([block.params[i] for i in wrt], 1)
    weights = directions(block.results, 2)
    forward, reverse = jvp(block, wrt), vjp(block, wrt)
    verify(forward)
    verify(reverse)
    ahead = run_block(forward, program.args + along)
    back = run_block(reverse, program.args + weights)
    plain = run_block(block, program.args)
    for given_results in (ahead[:n], back[:n]):
        for got, expected in zip(given_results, plain, strict=True):
            np.testing.assert_array_equal(got, expected)
    tangents, cotangents = ahead[n:], back[n:]
    np.testing.assert_allclose(dot(weights, tangents), dot(along, cotangents), rtol=1e-9, atol=1e-9)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_forward_mode_is_the_derivative(random_programs, data):
    program = data.draw(random_programs.programs())
    block, wrt = program.block, program.wrt
    along = directions([block.params[i] for i in wrt], 3)
    tangents = run_block(jvp(block, wrt), program.args + along)[len(block.results) :]
    wide, narrow = (derivative(program, along, step) for step in STEPS)
    for got, expected, other in zip(tangents, narrow, wide, strict=True):
        assume(np.allclose(expected, other, rtol=1e-5, atol=1e-5))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_second_derivatives_agree_in_all_four_ways(random_programs, data):
    """d/dx of <w, J u> by forward and reverse over forward, and of J'w along u over reverse."""
    program = data.draw(random_programs.programs(steps=6))
    block, wrt = program.block, program.wrt
    n, k = len(block.params), len(wrt)
    along = directions([block.params[i] for i in wrt], 4)
    also = directions([block.params[i] for i in wrt], 5)
    weights = directions(block.results, 6)
    outs = len(block.results)

    forward, reverse = simplify(jvp(block, wrt)), simplify(vjp(block, wrt))
    # Forward over forward: the tangent's tangent.
    twice = run_block(jvp(forward, wrt), program.args + along + also)
    by_ff = dot(weights, twice[2 * outs + outs :])
    # Reverse over forward: the gradient of <w, J u>, then along the other direction.
    zero = [np.zeros(r.shape) for r in block.results]
    mixed = run_block(vjp(forward, wrt), program.args + along + zero + weights)
    by_rf = dot(also, mixed[2 * outs :])
    # Forward over reverse: the tangent of the gradient.
    hvp = run_block(jvp(reverse, wrt), program.args + weights + also)
    by_fr = dot(along, hvp[outs + k + outs :])
    # Reverse over reverse: the gradient of <J'w, u>.
    double = run_block(vjp(reverse, wrt), program.args + weights + zero + along)
    by_rr = dot(also, double[outs + k :])
    assert n == len(program.args)
    np.testing.assert_allclose([by_rf, by_fr, by_rr], by_ff, rtol=1e-7, atol=1e-7)
