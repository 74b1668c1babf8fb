"""Simplification keeps what random programs compute, and is done after one go."""

from __future__ import annotations

import numpy as np
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import count_ops
from delian.core.compiler.passes.dce import dce
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import verify
from hypothesis import given, settings
from hypothesis import strategies as st


def equal(got, expected):
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-12)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_results_stay_and_the_program_stays_well_formed(random_programs, data):
    program = data.draw(random_programs.programs())
    verify(program.block)
    smaller = simplify(program.block)
    verify(smaller)
    equal(run_block(smaller, program.args), run_block(program.block, program.args))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_gradients_stay(random_programs, data):
    program = data.draw(random_programs.programs())
    reverse = vjp(program.block, program.wrt)
    smaller = simplify(reverse)
    verify(smaller)
    cts = [np.ones(r.shape) for r in program.block.results]
    equal(run_block(smaller, program.args + cts), run_block(reverse, program.args + cts))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_dead_code_elimination_keeps_results(random_programs, data):
    program = data.draw(random_programs.programs())
    smaller = dce(program.block)
    verify(smaller)
    assert count_ops(smaller) <= count_ops(program.block)
    equal(run_block(smaller, program.args), run_block(program.block, program.args))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_simplified_program_has_nothing_left_to_simplify(random_programs, data):
    program = data.draw(random_programs.programs())
    smaller = simplify(program.block)
    assert simplify(smaller) is smaller
