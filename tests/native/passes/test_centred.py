"""Sums that follow from others: what was centred sums to nothing, and nothing else is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.lowering.single_term_sums import fold_single_term_sums
from delian.core.compiler.verify import verify

SHAPE = (4, 32, 64)
AXES = (0, 1)
COUNT = 128


def normalised_gradient(count: int = COUNT, late: bool = False, by: str = "div") -> Block:
    """What comes back through a normalisation: both terms, and their mean taken off."""
    channels = TensorType(DType.F32, (64,))
    b = Builder([TensorType(DType.F32, SHAPE), TensorType(DType.F32, SHAPE), channels, channels])
    x, g, scale, slope = b.params

    def wide(v: Value) -> Value:
        return b("broadcast", v, shape=SHAPE, dims=(2,))

    number = b.full(channels, count if by == "div" else 1 / count)
    centred = b("sub", x, wide(b(by, b("reduce_sum", x, axes=AXES), number)))
    shift = None if late else b("reduce_sum", g, axes=AXES)
    terms = b("sub", b("mul", centred, wide(slope)), b("mul", g, wide(scale)))
    mean = b("div", b("reduce_sum", terms, axes=AXES), b.full(channels, count))
    shift = b("reduce_sum", g, axes=AXES) if shift is None else shift
    return b.finish([b("sub", terms, wide(mean)), shift])


def after(block: Block) -> Block:
    count = len(block.params)
    names = tuple(f"p{i}" for i in range(count)), tuple(f"r{i}" for i in range(len(block.results)))
    made = fold_single_term_sums(Function("f", block, *names)).body
    verify(made)
    return made


def arguments(block: Block) -> list[Any]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal(p.shape).astype(np.float32) for p in block.params]


def sums(block: Block) -> int:
    return sum(op.name == "reduce_sum" for op in block.ops)


@pytest.mark.parametrize(("late", "by"), [(False, "div"), (True, "div"), (False, "mul")])
def test_the_mean_of_a_normalisations_gradient_follows_from_that_of_what_came_in(
    late: bool, by: str
) -> None:
    block = normalised_gradient(late=late, by=by)
    made = after(block)
    assert (sums(block), sums(made)) == (3, 2)
    args = arguments(block)
    for one, other in zip(run_block(block, args), run_block(made, args), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_what_is_not_centred_is_summed() -> None:
    block = normalised_gradient(count=100)  # not how many there are
    assert sums(after(block)) == sums(block)


def test_a_difference_is_not_made_of_two_sums() -> None:
    b = Builder([TensorType(DType.F32, SHAPE), TensorType(DType.F32, SHAPE)])
    x, y = b.params
    results = [b("reduce_sum", v, axes=AXES) for v in (x, y, b("sub", x, y))]
    block = b.finish(results)
    assert sums(after(block)) == 3


def test_a_product_of_what_was_centred_is_summed() -> None:
    b = Builder([TensorType(DType.F32, SHAPE), TensorType(DType.F32, SHAPE)])
    x, y = b.params
    total = b("reduce_sum", x, axes=AXES)
    mean = b("broadcast", b("div", total, b.full(total.tensor, COUNT)), shape=SHAPE, dims=(2,))
    centred = b("sub", x, mean)
    terms = b("add", b("mul", centred, y), y)
    block = b.finish([b("reduce_sum", terms, axes=AXES), b("reduce_sum", y, axes=AXES)])
    assert sums(after(block)) == sums(block)


def normalised(twice: bool = False) -> Block:
    """A value plus a number a channel, centred, and its squares' mean; `twice`: read elsewhere."""
    channels = TensorType(DType.F32, (64,))
    b = Builder([TensorType(DType.F32, SHAPE), channels])
    x, shift = b.params
    wide = b("broadcast", shift, shape=SHAPE, dims=(2,))
    moved = b("add", x, wide)
    count = b.full(channels, COUNT)
    mean = b("div", b("reduce_sum", moved, axes=AXES), count)
    centred = b("sub", moved, b("broadcast", mean, shape=SHAPE, dims=(2,)))
    squares = b("div", b("reduce_sum", b("mul", centred, centred), axes=AXES), count)
    return b.finish([centred, squares, *([moved] if twice else [])])


def test_what_a_mean_takes_off_again_is_never_added() -> None:
    block = normalised()
    made = after(block)
    assert "add" in [op.name for op in block.ops]
    assert "add" not in [op.name for op in made.ops]
    x, _ = arguments(block)
    for one, other in zip(
        run_block(block, [x, np.float32(3.0) + np.zeros(64, np.float32)]),
        run_block(made, [x, np.full(64, np.float32(1e6))]),
        strict=True,
    ):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_what_something_else_reads_is_added() -> None:
    block = normalised(twice=True)
    assert [op.name for op in after(block).ops] == [op.name for op in block.ops]


@pytest.mark.parametrize("plus", [False, True])
def test_the_sum_of_what_is_centred_is_nothing(plus: bool) -> None:
    b = Builder([TensorType(DType.F32, SHAPE)])
    (x,) = b.params
    total = b("reduce_sum", x, axes=AXES)
    mean = b("div", b("neg", total) if plus else total, b.full(total.tensor, COUNT))
    wide = b("broadcast", mean, shape=SHAPE, dims=(2,))
    centred = b("add" if plus else "sub", x, wide)
    block = b.finish([centred, b("reduce_sum", centred, axes=AXES)])
    made = after(block)
    assert (sums(block), sums(made)) == (2, 1)
    (x_,) = arguments(block)
    assert not run_block(made, [x_])[1].any()
    x_[1, 2, 3] = np.nan
    assert np.isnan(run_block(made, [x_])[1][3])
