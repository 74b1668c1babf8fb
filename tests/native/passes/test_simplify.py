"""Simplification by example: what a program is turned into, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, count_ops
from delian.core.compiler.passes.dce import dce
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.text import parse_function, print_function
from delian.core.compiler.verify import verify

F32 = TensorType(DType.F32, (3,))


def function(head: str, body: str) -> Function:
    return parse_function(f"fn f{head} {{\n{body}\n}}\n")


def check(head: str, before: str, after: str) -> None:
    """`before` is simplified to `after`, line for line, and computes the same on random numbers."""
    given, wanted = function(head, before), function(head, after)
    got = given.with_body(simplify(given.body))
    verify(got)
    assert print_function(got) == print_function(wanted)
    rng = np.random.default_rng(0)
    args = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.numpy) for t in given.param_types]
    for a, b in zip(run_block(given.body, args), run_block(got.body, args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


ONE = (
    "%7: f32[] = constant() {value=f32[](1.0)}\n %8: f32[3] = broadcast(%7) {shape=[3], dims=[]}\n"
)
X = "(%0: f32[3]) -> (f32[3])"
M = "(%0: f32[2,3]) -> (f32[3,2])"


@pytest.mark.parametrize(
    ("head", "before", "after"),
    [
        (X, ONE + "%1: f32[3] = mul(%8, %0)\n return %1", "return %0"),
        (X, ONE + "%1: f32[3] = div(%0, %8)\n return %1", "return %0"),
        (X, ONE + "%1: f32[3] = pow(%0, %8)\n return %1", "return %0"),
        (X, "%1: f32[3] = neg(%0)\n %2: f32[3] = neg(%1)\n return %2", "return %0"),
        (  # neighbouring slices' cotangents, in any order, with nothing around them
            "(%0: f32[2,1], %1: f32[2,3], %2: f32[2,2]) -> (f32[2,6])",
            "%7: f32[] = constant() {value=f32[](0.0)}\n"
            "%3: f32[2,6] = pad(%2, %7) {low=[0, 4], high=[0, 0], interior=[0, 0]}\n"
            "%4: f32[2,6] = pad(%0, %7) {low=[0, 0], high=[0, 5], interior=[0, 0]}\n"
            "%5: f32[2,6] = pad(%1, %7) {low=[0, 1], high=[0, 2], interior=[0, 0]}\n"
            "%6: f32[2,6] = add(%3, %5)\n %8: f32[2,6] = add(%6, %4)\n return %8",
            "%3: f32[2,6] = concat(%0, %1, %2) {axis=1}\n return %3",
        ),
        (  # with a gap between them they stay
            "(%0: f32[1], %1: f32[1]) -> (f32[4])",
            "%2: f32[] = constant() {value=f32[](0.0)}\n"
            "%3: f32[4] = pad(%0, %2) {low=[0], high=[3], interior=[0]}\n"
            "%4: f32[4] = pad(%1, %2) {low=[2], high=[1], interior=[0]}\n"
            "%5: f32[4] = add(%3, %4)\n return %5",
            "%2: f32[] = constant() {value=f32[](0.0)}\n"
            "%3: f32[4] = pad(%0, %2) {low=[0], high=[3], interior=[0]}\n"
            "%4: f32[4] = pad(%1, %2) {low=[2], high=[1], interior=[0]}\n"
            "%5: f32[4] = add(%3, %4)\n return %5",
        ),
        (
            X,
            "%1: f32[3] = neg(%0)\n %2: f32[3] = abs(%0)\n %3: f32[3] = add(%1, %2)\n return %3",
            "%1: f32[3] = abs(%0)\n %2: f32[3] = sub(%1, %0)\n return %2",
        ),
        (
            X,
            "%1: f32[3] = abs(%0)\n %2: f32[3] = sub(%0, %1)\n %3: f32[3] = neg(%2)\n return %3",
            "%1: f32[3] = abs(%0)\n %2: f32[3] = sub(%1, %0)\n return %2",
        ),
        (
            X,
            "%1: f32[] = constant() {value=f32[](4.0)}\n"
            "%2: f32[3] = broadcast(%1) {shape=[3], dims=[]}\n"
            "%3: f32[3] = div(%0, %2)\n return %3",
            "%1: f32[] = constant() {value=f32[](0.25)}\n"
            "%2: f32[3] = broadcast(%1) {shape=[3], dims=[]}\n"
            "%3: f32[3] = mul(%0, %2)\n return %3",
        ),
        (
            "(%0: i64[]) -> (i64[])",
            "%1: i64[] = constant() {value=i64[](2)}\n %2: i64[] = add(%0, %1)\n"
            "%3: i64[] = constant() {value=i64[](5)}\n %4: i64[] = sub(%2, %3)\n return %4",
            "%1: i64[] = constant() {value=i64[](-3)}\n %2: i64[] = add(%0, %1)\n return %2",
        ),
        (
            "(%0: i32[3]) -> (f32[3])",
            "%1: i64[3] = convert(%0) {dtype=i64}\n %2: f32[3] = convert(%1) {dtype=f32}\n"
            "return %2",
            "%1: f32[3] = convert(%0) {dtype=f32}\n return %1",
        ),
        (
            "(%0: f32[3], %1: bool[3]) -> (f32[3])",
            "%2: bool[3] = not(%1)\n %3: f32[3] = neg(%0)\n %4: f32[3] = select(%2, %0, %3)\n"
            "return %4",
            "%2: f32[3] = neg(%0)\n %3: f32[3] = select(%1, %2, %0)\n return %3",
        ),
        (
            M,
            "%1: f32[6] = reshape(%0) {shape=[6]}\n %2: f32[3,2] = reshape(%1) {shape=[3, 2]}\n"
            "return %2",
            "%1: f32[3,2] = reshape(%0) {shape=[3, 2]}\n return %1",
        ),
        (
            M,
            "%1: f32[3,2] = transpose(%0) {perm=[1, 0]}\n"
            "%2: f32[2,3] = transpose(%1) {perm=[1, 0]}\n"
            "%3: f32[2,3] = sin(%2)\n %4: f32[3,2] = transpose(%3) {perm=[1, 0]}\n return %4",
            "%1: f32[2,3] = sin(%0)\n %2: f32[3,2] = transpose(%1) {perm=[1, 0]}\n return %2",
        ),
        (
            "(%0: f32[6], %1: f32[6]) -> (f32[6])",
            "%2: f32[2,3] = reshape(%0) {shape=[2, 3]}\n"
            "%3: f32[2,3] = reshape(%1) {shape=[2, 3]}\n"
            "%4: f32[2,3] = mul(%2, %3)\n %5: f32[6] = reshape(%4) {shape=[6]}\n return %5",
            "%2: f32[6] = mul(%0, %1)\n return %2",
        ),
        (
            "(%0: f32[4,5], %1: i64[4,1], %2: f32[4,1]) -> (f32[4])",
            "%3: f32[] = constant() {value=f32[](0.0)}\n"
            "%4: f32[4,5] = broadcast(%3) {shape=[4, 5], dims=[]}\n"
            "%5: f32[4,5] = put_along_add(%4, %1, %2) {axis=1}\n"
            "%6: f32[4] = reduce_sum(%5) {axes=[1]}\n return %6",
            "%3: f32[4] = reshape(%2) {shape=[4]}\n return %3",
        ),
        (
            "(%0: f32[9], %1: i64[3]) -> (f32[3])",
            "%2: i64[] = constant() {value=i64[](8)}\n"
            "%3: i64[3] = broadcast(%2) {shape=[3], dims=[]}\n"
            "%4: i64[3] = min(%3, %1)\n %5: f32[3] = take(%0, %4) {axis=0}\n return %5",
            "%2: f32[3] = take(%0, %1) {axis=0}\n return %2",
        ),
        (
            "(%0: f32[3]) -> (f32[2,3,1])",
            "%1: f32[1,3] = broadcast(%0) {shape=[1, 3], dims=[1]}\n"
            "%2: f32[2,3] = broadcast(%1) {shape=[2, 3], dims=[0, 1]}\n"
            "%3: f32[2,3,1] = reshape(%2) {shape=[2, 3, 1]}\n return %3",
            "%1: f32[2,3,1] = broadcast(%0) {shape=[2, 3, 1], dims=[1]}\n return %1",
        ),
        (
            "(%0: f32[3]) -> (f32[2,3,4])",
            "%1: f32[2,3] = broadcast(%0) {shape=[2, 3], dims=[1]}\n"
            "%2: f32[2,3,4] = broadcast(%1) {shape=[2, 3, 4], dims=[0, 1]}\n return %2",
            "%1: f32[2,3,4] = broadcast(%0) {shape=[2, 3, 4], dims=[1]}\n return %1",
        ),
        (
            "(%0: f32[2]) -> (f32[3,2,4])",
            "%1: f32[2,4] = broadcast(%0) {shape=[2, 4], dims=[0]}\n"
            "%2: f32[3,2,4] = broadcast(%1) {shape=[3, 2, 4], dims=[1, 2]}\n return %2",
            "%1: f32[3,2,4] = broadcast(%0) {shape=[3, 2, 4], dims=[1]}\n return %1",
        ),
        (
            "(%0: f32[2,3,4]) -> (f32[4,3,2])",
            "%1: f32[3,4,2] = transpose(%0) {perm=[1, 2, 0]}\n"
            "%2: f32[4,3,2] = transpose(%1) {perm=[1, 0, 2]}\n return %2",
            "%1: f32[4,3,2] = transpose(%0) {perm=[2, 1, 0]}\n return %1",
        ),
        (
            "(%0: f32[3]) -> (f32[2,3])",
            "%1: f32[2,3] = broadcast(%0) {shape=[2, 3], dims=[1]}\n"
            "%2: f32[2,3] = exp(%1)\n return %2",
            "%1: f32[3] = exp(%0)\n"
            "%2: f32[2,3] = broadcast(%1) {shape=[2, 3], dims=[1]}\n return %2",
        ),
        (
            "(%0: f32[3]) -> (f32[])",
            "%1: f32[4,3] = broadcast(%0) {shape=[4, 3], dims=[1]}\n"
            "%2: f32[] = reduce_sum(%1) {axes=[0, 1]}\n return %2",
            "%1: f32[] = reduce_sum(%0) {axes=[0]}\n %2: f32[] = constant() {value=f32[](4.0)}\n"
            "%3: f32[] = mul(%1, %2)\n return %3",
        ),
        (
            "(%0: f32[2,3,4]) -> (f32[3])",
            "%1: f32[2,3] = reduce_sum(%0) {axes=[2]}\n"
            "%2: f32[3] = reduce_sum(%1) {axes=[0]}\n return %2",
            "%1: f32[3] = reduce_sum(%0) {axes=[0, 2]}\n return %1",
        ),
        (
            "(%0: f32[9]) -> (f32[2])",
            "%1: f32[4] = slice(%0) {start=[1], stop=[8], step=[2]}\n"
            "%2: f32[2] = slice(%1) {start=[1], stop=[4], step=[2]}\n return %2",
            "%1: f32[2] = slice(%0) {start=[3], stop=[8], step=[4]}\n return %1",
        ),
        (
            "(%0: f32[2], %1: f32[3]) -> (f32[2])",
            "%2: f32[5] = concat(%0, %1) {axis=0}\n"
            "%3: f32[2] = slice(%2) {start=[3], stop=[5], step=[1]}\n return %3",
            "%2: f32[2] = slice(%1) {start=[1], stop=[3], step=[1]}\n return %2",
        ),
        (
            "(%0: f32[5,3], %1: f32[5,4]) -> (f32[4,3])",
            "%2: f32[3,5] = transpose(%0) {perm=[1, 0]}\n"
            "%3: f32[3,4] = dot(%2, %1) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}\n"
            "%4: f32[4,3] = transpose(%3) {perm=[1, 0]}\n return %4",
            "%2: f32[4,3] = dot(%1, %0) {contract_a=[0], contract_b=[0], batch_a=[], batch_b=[]}\n"
            "return %2",
        ),
        (
            "(%0: f32[4,3]) -> (f32[3])",
            "%1: i64[] = constant() {value=i64[](-2)}\n %2: i64[] = constant() {value=i64[](9)}\n"
            "%3: f32[3] = take(%0, %2) {axis=0}\n return %3",
            "%1: f32[1,3] = slice(%0) {start=[3, 0], stop=[4, 3], step=[1, 1]}\n"
            "%2: f32[3] = reshape(%1) {shape=[3]}\n return %2",
        ),
        (
            "(%0: f32[3], %1: f32[3]) -> (f32[3], f32[3])",
            "%2: list<f32[3]> = list_empty() {type=list<f32[3]>}\n"
            "%3: list<f32[3]> = list_push(%2, %0)\n"
            "%4: list<f32[3]>, %5: f32[3] = list_pop(%3)\n"
            "%6: list<f32[3]>, %7: f32[3] = list_pop(%4)\n return %5, %7",
            "%2: f32[] = constant() {value=f32[](0.0)}\n"
            "%3: f32[3] = broadcast(%2) {shape=[3], dims=[]}\n return %0, %3",
        ),
        (
            X,
            "%1: f32[3] = sin(%0)\n %2: f32[3] = sin(%0)\n %3: f32[3] = mul(%1, %2)\n return %3",
            "%1: f32[3] = sin(%0)\n %2: f32[3] = mul(%1, %1)\n return %2",
        ),
        (
            "(%0: f32[3], %1: f32[3]) -> (f32[3])",
            "%2: f32[3] = mul(%0, %1)\n %3: f32[3] = mul(%1, %0)\n %4: f32[3] = sub(%2, %3)\n"
            "return %4",
            "%2: f32[3] = mul(%0, %1)\n %3: f32[3] = sub(%2, %2)\n return %3",
        ),
        (
            "(%0: f32[9], %1: i64[3], %2: f32[3]) -> (f32[9])",
            "%3: f32[] = constant() {value=f32[](0.0)}\n"
            "%4: f32[9] = broadcast(%3) {shape=[9], dims=[]}\n"
            "%5: f32[9] = put_add(%4, %1, %2) {axis=0}\n"
            "%6: f32[9] = add(%0, %5)\n return %6",
            "%3: f32[9] = put_add(%0, %1, %2) {axis=0}\n return %3",
        ),
    ],
)
def test_rewrites(head, before, after):
    check(head, before, after)


@pytest.mark.parametrize(
    "body",
    [
        "%1: f32[] = constant() {value=f32[](0.0)}\n"
        "%2: f32[3] = broadcast(%1) {shape=[3], dims=[]}\n %3: f32[3] = mul(%0, %2)\n return %3",
        "%1: f32[3] = sub(%0, %0)\n return %1",
        "%1: f32[3] = div(%0, %0)\n return %1",
        "%1: f32[3] = stop_gradient(%0)\n return %1",
        "%1: f64[3] = convert(%0) {dtype=f64}\n %2: f64[3] = sin(%1)\n"
        "%3: f32[3] = convert(%2) {dtype=f32}\n return %3",
        "%1: i32[3] = convert(%0) {dtype=i32}\n %2: f32[3] = convert(%1) {dtype=f32}\n return %2",
    ],
    ids=["x*0", "x-x", "x/x", "stop_gradient", "through f64", "through i32"],
)
def test_what_would_change_the_meaning_stays(body):
    """x * 0 is NaN where x is; a conversion that loses something is not undone."""
    fn = function(X, body)
    assert simplify(fn.body) is fn.body


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (
            "(%0: f32[3], %1: f32[3]) -> (f32[3,3])",
            "%2: f32[3,3] = broadcast(%0) {shape=[3, 3], dims=[0]}\n"
            "%3: f32[3,3] = broadcast(%1) {shape=[3, 3], dims=[1]}\n"
            "%4: f32[3,3] = add(%2, %3)\n return %4",
        ),
        (
            "(%0: f32[2,2,2], %1: f32[2,2,2]) -> (f32[2,2,2])",
            "%2: f32[2,2,2] = transpose(%0) {perm=[1, 0, 2]}\n"
            "%3: f32[2,2,2] = transpose(%1) {perm=[2, 1, 0]}\n"
            "%4: f32[2,2,2] = add(%2, %3)\n return %4",
        ),
    ],
    ids=["broadcast", "transpose"],
)
def test_operands_that_were_moved_differently_stay_apart(head, body):
    check(head, body, body)


# ---- constants


def test_small_constants_are_computed_and_large_ones_are_not():
    b = Builder()
    small = b("sin", b.constant(np.linspace(0, 1, 8)))
    large = b("sin", b.constant(np.linspace(0, 1, 65)))
    smaller = simplify(b.finish([small, large]))
    assert sorted(op.name for op in smaller.ops) == ["constant", "constant", "sin"]
    np.testing.assert_array_equal(run_block(smaller, [])[0], np.sin(np.linspace(0, 1, 8)))


def test_a_repeated_number_is_never_a_large_constant():
    b = Builder()
    ones = b.constant(np.ones((1000, 1000)))
    smaller = simplify(b.finish([b("add", ones, b.full(ones.tensor, 2.0))]))
    assert [op.name for op in smaller.ops] == ["constant", "broadcast"]
    assert smaller.ops[0].attrs["value"] == 3.0


def test_the_sign_of_a_nan_and_of_a_zero_do_not_confuse_cse():
    b = Builder([TensorType(DType.F64)])
    zeros = [b("div", b.params[0], b.constant(z)) for z in (0.0, -0.0)]
    one, other = run_block(simplify(b.finish(zeros)), [np.float64(1.0)])
    assert (one, other) == (np.inf, -np.inf)


# ---- branches and loops


def test_a_known_predicate_picks_its_branch():
    check(
        "(%0: f32[]) -> (f32[])",
        "%1: bool[] = constant() {value=bool[](false)}\n"
        "%2: f32[] = if(%1, %0)\n"
        "then(%3: f32[]) { %4: f32[] = sin(%3)\n return %4 }\n"
        "else(%5: f32[]) { %6: f32[] = cos(%5)\n return %6 }\n return %2",
        "%1: f32[] = cos(%0)\n return %1",
    )


def test_what_both_branches_give_alike_comes_from_outside():
    check(
        "(%0: f32[], %1: bool[]) -> (f32[], f32[], f32[])",
        "%2: f32[], %3: f32[], %4: f32[] = if(%1, %0)\n"
        "then(%5: f32[]) { %6: f32[] = sin(%5)\n"
        "  %7: f32[] = constant() {value=f32[](2.0)} return %5, %6, %7 }\n"
        "else(%8: f32[]) { %9: f32[] = cos(%8)\n"
        "  %7: f32[] = constant() {value=f32[](2.0)} return %8, %9, %7 }\n"
        "return %2, %3, %4",
        "%2: f32[] = if(%1, %0)\n"
        "then(%3: f32[]) { %4: f32[] = sin(%3)\n return %4 }\n"
        "else(%5: f32[]) { %6: f32[] = cos(%5)\n return %6 }\n"
        "%7: f32[] = constant() {value=f32[](2.0)}\n return %0, %2, %7",
    )


def test_branches_that_give_different_arguments_are_not_alike():
    pick = (
        "%3: f32[] = if(%2, %0, %1)\n"
        "then(%4: f32[], %5: f32[]) { return %4 }\n"
        "else(%6: f32[], %7: f32[]) { return %7 }\n return %3"
    )
    check("(%0: f32[], %1: f32[], %2: bool[]) -> (f32[])", pick, pick)


def counted(trips, ops=1):
    """x -> sin(sin(... x)) in a loop of so many trips, `ops` sines in each."""
    b = Builder([F32])
    body = Builder([TensorType(DType.I64), F32])
    x = body.params[1]
    for _ in range(ops):
        x = body("sin", x)
    bounds = b.constant(2), b.constant(2 + trips)
    made = b.emit("for", (*bounds, b.params[0]), {"consts": 0}, (body.finish([x]),))
    return b.finish(made)


@pytest.mark.parametrize(
    ("trips", "ops", "expected"),
    [
        (-3, 1, []),
        (0, 1, []),
        (1, 300, ["sin"] * 300),
        (4, 2, ["sin"] * 8),
        (5, 1, ["constant", "constant", "for"]),
        (4, 51, ["constant", "constant", "for"]),
    ],
)
def test_short_loops_are_unrolled(trips, ops, expected):
    assert [op.name for op in simplify(counted(trips, ops)).ops] == expected


def test_an_unrolled_body_sees_its_index():
    check(
        "(%0: i64[]) -> (i64[])",
        "%1: i64[] = constant() {value=i64[](3)}\n %2: i64[] = constant() {value=i64[](5)}\n"
        "%3: i64[] = for(%1, %2, %0) {consts=0}\n"
        "body(%4: i64[], %5: i64[]) { %6: i64[] = add(%5, %4)\n return %6 }\n return %3",
        "%1: i64[] = constant() {value=i64[](7)}\n %2: i64[] = add(%0, %1)\n return %2",
    )


def test_a_carry_that_never_changes_is_a_constant():
    check(
        "(%0: i64[], %1: f32[], %2: f32[]) -> (f32[], f32[])",
        "%3: i64[] = constant() {value=i64[](0)}\n"
        "%4: f32[], %5: f32[] = for(%3, %0, %1, %2) {consts=0}\n"
        "body(%6: i64[], %7: f32[], %8: f32[]) {\n"
        "  %9: f32[] = mul(%7, %8)\n %10: f32[] = sin(%9)\n return %7, %10 }\n"
        "return %4, %5",
        "%3: i64[] = constant() {value=i64[](0)}\n"
        "%4: f32[] = for(%3, %0, %1, %2) {consts=1}\n"
        "body(%5: i64[], %6: f32[], %7: f32[]) {\n"
        "  %8: f32[] = mul(%6, %7)\n %9: f32[] = sin(%8)\n return %9 }\n"
        "return %1, %4",
    )


def test_carries_that_change_places_are_not_constants():
    swap = (
        "%3: i64[] = constant() {value=i64[](0)}\n"
        "%4: f32[], %5: f32[] = for(%3, %0, %1, %2) {consts=0}\n"
        "body(%6: i64[], %7: f32[], %8: f32[]) { return %8, %7 }\n return %4, %5"
    )
    check("(%0: i64[], %1: f32[], %2: f32[]) -> (f32[], f32[])", swap, swap)


def test_carries_that_feed_only_themselves_are_dropped():
    check(
        "(%0: i64[], %1: f32[]) -> (f32[])",
        "%2: i64[] = constant() {value=i64[](0)}\n"
        "%3: f32[], %4: f32[], %5: i64[] = for(%2, %0, %1, %1, %0) {consts=0}\n"
        "body(%6: i64[], %7: f32[], %8: f32[], %9: i64[]) {\n"
        "  %10: f32[] = sin(%7)\n %11: f32[] = add(%8, %10)\n %12: i64[] = add(%9, %6)\n"
        "  return %10, %11, %12 }\n"
        "return %3",
        "%2: i64[] = constant() {value=i64[](0)}\n"
        "%3: f32[] = for(%2, %0, %1) {consts=0}\n"
        "body(%4: i64[], %5: f32[]) { %6: f32[] = sin(%5)\n return %6 }\n"
        "return %3",
    )


def test_carries_that_feed_a_living_one_stay():
    """b feeds a and c feeds b, so all three live; d feeds nothing."""
    head = "(%0: i64[], %1: f32[], %2: f32[], %3: f32[], %4: f32[]) -> (f32[])"
    fn = function(
        head,
        "%5: i64[] = constant() {value=i64[](0)}\n"
        "%6: f32[], %7: f32[], %8: f32[], %9: f32[] = for(%5, %0, %1, %2, %3, %4) {consts=0}\n"
        "body(%10: i64[], %11: f32[], %12: f32[], %13: f32[], %14: f32[]) {\n"
        "  %15: f32[] = sin(%12)\n %16: f32[] = sin(%13)\n %17: f32[] = sin(%11)\n"
        "  %18: f32[] = add(%14, %11) return %15, %16, %17, %18 }\n"
        "return %6",
    )
    (loop,) = (op for op in simplify(fn.body).ops if op.name == "for")
    assert len(loop.results) == 3


def test_work_on_constants_alone_moves_out_of_a_loop():
    check(
        "(%0: i64[], %1: f32[3], %2: f32[3]) -> (f32[3])",
        "%3: i64[] = constant() {value=i64[](0)}\n"
        "%4: f32[3] = for(%3, %0, %1, %2) {consts=1}\n"
        "body(%5: i64[], %6: f32[3], %7: f32[3]) {\n"
        "  %8: f32[] = constant() {value=f32[](3.0)}\n"
        "  %9: f32[3] = broadcast(%8) {shape=[3], dims=[]}\n"
        "  %10: f32[3] = mul(%6, %9)\n %11: f32[3] = sin(%10)\n"
        "  %12: f32[3] = add(%7, %11)\n %13: f32[3] = min(%12, %9)\n return %13 }\n"
        "return %4",
        "%3: i64[] = constant() {value=i64[](0)}\n"
        "%4: f32[] = constant() {value=f32[](3.0)}\n"
        "%5: f32[3] = broadcast(%4) {shape=[3], dims=[]}\n"
        "%6: f32[3] = mul(%1, %5)\n %7: f32[3] = sin(%6)\n"
        "%8: f32[3] = for(%3, %0, %7, %2) {consts=1}\n"
        "body(%9: i64[], %10: f32[3], %11: f32[3]) {\n"
        "  %12: f32[] = constant() {value=f32[](3.0)}\n"
        "  %13: f32[3] = broadcast(%12) {shape=[3], dims=[]}\n"
        "  %14: f32[3] = add(%11, %10)\n %15: f32[3] = min(%14, %13)\n return %15 }\n"
        "return %8",
    )


def test_a_small_constant_moves_into_a_loop():
    check(
        "(%0: i64[], %1: f32[3]) -> (f32[3])",
        "%2: i64[] = constant() {value=i64[](0)}\n"
        "%3: f32[] = constant() {value=f32[](0.5)}\n"
        "%4: f32[3] = broadcast(%3) {shape=[3], dims=[]}\n"
        "%5: f32[3] = for(%2, %0, %4, %1) {consts=1}\n"
        "body(%6: i64[], %7: f32[3], %8: f32[3]) {\n"
        "  %9: f32[3] = mul(%7, %8)\n return %9 }\n"
        "return %5",
        "%2: i64[] = constant() {value=i64[](0)}\n"
        "%3: f32[3] = for(%2, %0, %1) {consts=0}\n"
        "body(%4: i64[], %5: f32[3]) {\n"
        "  %6: f32[] = constant() {value=f32[](0.5)}\n"
        "  %7: f32[3] = broadcast(%6) {shape=[3], dims=[]}\n"
        "  %8: f32[3] = mul(%5, %7)\n return %8 }\n"
        "return %3",
    )


def test_a_while_whose_condition_is_never_true_goes_away():
    check(
        "(%0: f32[]) -> (f32[])",
        "%1: f32[] = while(%0) {consts=0}\n"
        "cond(%2: f32[]) { %3: bool[] = constant() {value=bool[](false)}\n return %3 }\n"
        "body(%4: f32[]) { %5: f32[] = sin(%4)\n return %5 }\n return %1",
        "return %0",
    )


def test_equal_loops_run_once():
    b = Builder([TensorType(DType.I64), F32])
    outs = []
    for _ in range(2):
        body = Builder([TensorType(DType.I64), F32])
        region = body.finish([body("sin", body.params[1])])
        zero = b.constant(0)
        outs += b.emit("for", (zero, *b.params), {"consts": 0}, (region,))
    smaller = simplify(b.finish([b("add", *outs)]))
    assert [op.name for op in smaller.ops] == ["constant", "for", "add"]


def test_regions_shared_between_operations_are_not_mixed_up():
    """`Builder.copy` shares regions; each use is rewritten with what is known at that use."""
    body = Builder([TensorType(DType.I64), TensorType(DType.F64), TensorType(DType.F64)])
    region = body.finish([body("mul", body.params[1], body("sin", body.params[2]))])
    b = Builder([TensorType(DType.I64), TensorType(DType.F64)])
    n, x = b.params
    outs = []
    for factor in (b.constant(2.0), b.constant(3.0), x):
        outs += b.emit("for", (b.constant(0), n, factor, x), {"consts": 1}, (region,))
    block = b.finish(outs)
    smaller = simplify(block)
    verify(smaller)
    args = [np.int64(7), np.float64(0.4)]
    np.testing.assert_allclose(run_block(smaller, args), run_block(block, args))


# ---- the whole


def test_nothing_to_do_gives_the_very_same_block():
    b = Builder([F32])
    block = b.finish([b("sin", b.params[0])])
    assert simplify(block) is block
    assert dce(block) is block


def test_a_long_chain_takes_no_recursion():
    b = Builder([F32])
    x = b.params[0]
    for _ in range(20_000):
        x = b("neg", b("sin", x))
    block: Block = b.finish([x])
    assert count_ops(simplify(block)) == 40_000


def test_parameters_stay_even_when_unused():
    b = Builder([F32, F32])
    assert len(simplify(b.finish([b.params[1]])).params) == 2
