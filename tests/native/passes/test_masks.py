"""Comparisons made where they are read: the same values, whatever the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, Op, TensorType, Value
from delian.core.compiler.passes.lowering.mask_recompute import rematerialize_masks
from delian.core.compiler.verify import verify

SIZE = 40
SHAPE = (SIZE, SIZE)
TYPE = TensorType(DType.F32, SHAPE)
PRODUCT = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}


def rectified(cap: float | None, low: float = 0.0, result: float | None = None) -> Block:
    """x w of a clamped x, and what comes back through the clamp."""
    b = Builder([TYPE, TYPE, TYPE])
    x, w, g = b.params
    bound, zero = b.full(TYPE, low), b.full(TYPE, 0.0)
    below = b("le", x, bound)
    inner, above = x, None
    if cap is not None:
        above = b("le", b.full(TYPE, cap), x)
        inner = b("select", above, b.full(TYPE, cap), x)
    y = b("select", below, b.full(TYPE, low if result is None else result), inner)
    out = b("dot", y, w, **PRODUCT)
    back = b("dot", g, w, **PRODUCT)
    back = b("select", below, zero, back)
    if above is not None:
        back = b("select", above, zero, back)
    return b.finish([out, back])


def again(block: Block) -> Block:
    count = len(block.params)
    names = tuple(f"p{i}" for i in range(count)), tuple(f"r{i}" for i in range(len(block.results)))
    after = rematerialize_masks(Function("f", block, *names)).body
    verify(after)
    return after


def special(rng: np.random.Generator) -> Any:
    """Numbers, bounds themselves, zeros of both signs, infinities and no numbers."""
    values = np.array([0.0, -0.0, 6.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)
    mixed = rng.standard_normal(SHAPE).astype(np.float32) * 5
    return np.where(rng.random(SHAPE) < 0.3, rng.choice(values, SHAPE), mixed)


def maker(block: Block, value: Value) -> Op:
    return next(op for op in block.ops if value in op.results)


@pytest.mark.parametrize(("cap", "low"), [(None, 0.0), (6.0, 0.0), (None, 1.0), (6.0, -1.0)])
def test_a_clamp_says_from_its_result_what_it_did(cap: float | None, low: float) -> None:
    block = rectified(cap, low)
    after = again(block)
    rng = np.random.default_rng(1)
    args = [special(rng), *(rng.standard_normal(SHAPE, dtype=np.float32) for _ in range(2))]
    for one, other in zip(run_block(block, args), run_block(after, args), strict=True):
        np.testing.assert_array_equal(one, other)
    clamped = maker(after, after.results[0]).operands[0]
    last = maker(after, after.results[1])
    assert clamped in maker(after, last.operands[0]).operands


@pytest.mark.parametrize(
    "block",
    [
        rectified(None, 0.0, result=2.0),  # what is below the bound is not set to it
        rectified(6.0, 6.0),  # nothing lies between
        rectified(6.0, 7.0),
    ],
)
def test_what_only_looks_like_a_clamp_is_asked_for_its_operand(block: Block) -> None:
    after = again(block)
    rng = np.random.default_rng(1)
    args = [special(rng), *(rng.standard_normal(SHAPE, dtype=np.float32) for _ in range(2))]
    for one, other in zip(run_block(block, args), run_block(after, args), strict=True):
        np.testing.assert_array_equal(one, other)
    clamped = maker(after, after.results[0]).operands[0]
    assert not any(op.name == "le" and clamped in op.operands for op in after.ops)


def test_who_tied_for_a_maximum_is_asked_again() -> None:
    b = Builder([TYPE, TYPE])
    x, g = b.params
    most = b("reduce_max", x, axes=(1,))
    wide = b("broadcast", most, shape=SHAPE, dims=(0,))
    tied = b("eq", x, wide)
    count = b("reduce_sum", b("convert", tied, dtype=DType.F32), axes=(1,))
    shared = b("div", g, b("broadcast", count, shape=SHAPE, dims=(0,)))
    block = b.finish([b("select", tied, shared, b.full(TYPE, 0.0))])
    after = again(block)
    assert [op.name for op in after.ops].count("eq") == 2
    x_ = np.round(np.random.default_rng(2).standard_normal(SHAPE)).astype(np.float32)
    args = [x_, np.ones(SHAPE, np.float32)]
    np.testing.assert_array_equal(run_block(block, args)[0], run_block(after, args)[0])


def test_small_masks_and_masks_that_are_read_once_stay() -> None:
    small = TensorType(DType.F32, (8,))
    b = Builder([small, small, TYPE])
    x, y, z = b.params
    below = b("le", x, y)
    results = [b("select", below, x, y), b("select", below, y, x)]
    once = b("select", b("le", z, b.full(TYPE, 0.0)), b.full(TYPE, 0.0), z)
    block = b.finish([*results, once])
    assert [op.name for op in again(block).ops] == [op.name for op in block.ops]


def test_what_a_mean_is_taken_off_is_centred_again_where_it_is_read() -> None:
    b = Builder([TYPE, TensorType(DType.F32, (SIZE,)), TYPE])
    x, mean, g = b.params
    centred = b("sub", x, b("broadcast", mean, shape=SHAPE, dims=(1,)))
    squares = b("reduce_sum", b("mul", centred, centred), axes=(0,))
    later = b("dot", g, x, **PRODUCT)
    block = b.finish([squares, b("mul", later, centred)])
    after = again(block)
    subs = [op for op in after.ops if op.name == "sub"]
    assert len(subs) == 2 and subs[1] is maker(after, maker(after, after.results[1]).operands[1])
    rng = np.random.default_rng(1)
    args = [special(rng), rng.standard_normal(SIZE, dtype=np.float32), special(rng)]
    with np.errstate(all="ignore"):
        for one, other in zip(run_block(block, args), run_block(after, args), strict=True):
            np.testing.assert_array_equal(one, other)
