"""Short innermost axes as parts of longer ones: the same values, in loops over more numbers."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.passes.lowering.vector_lanes import vectorize_short_axes
from delian.core.compiler.verify import verify

GROUPS = (2, 6, 5, 3, 4)


def group_norm(dtype: DType = DType.F32) -> Function:
    """Each group of channels minus its mean, by its largest."""
    b = Builder([TensorType(dtype, GROUPS)])
    (x,) = b.params
    mean = b("reduce_sum", x, axes=(1, 2, 4))
    wide = b("broadcast", mean, shape=GROUPS, dims=(0, 3))
    centred = b("sub", x, wide)
    largest = b("reduce_max", centred, axes=(1, 2, 4))
    by = b("broadcast", largest, shape=GROUPS, dims=(0, 3))
    return Function("norm", b.finish([b("div", centred, by)]), ("x",), ("y",))


def test_groups_of_channels_keep_their_values() -> None:
    function = group_norm()
    filled = vectorize_short_axes(function)
    verify(filled.body)
    x = np.random.default_rng(0).standard_normal(GROUPS).astype(np.float32)
    (before,), (after,) = (run_block(f.body, [x]) for f in (function, filled))
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_sums_run_over_space_first_and_over_a_groups_channels_then() -> None:
    ops = vectorize_short_axes(group_norm()).body.ops
    assert [op.attrs["axes"] for op in ops if op.name == "reduce_sum"] == [(1, 2), (2,)]
    assert [op.attrs["axes"] for op in ops if op.name == "reduce_max"] == [(1, 2), (2,)]


def test_what_is_the_same_for_a_group_is_written_out_for_each_channel() -> None:
    ops = vectorize_short_axes(group_norm()).body.ops
    written = [op.result.shape for op in ops if op.name == "reshape" and len(op.result.shape) == 2]
    assert written == [(2, 12)] * 2


def test_sums_in_f64_keep_their_order() -> None:
    ops = vectorize_short_axes(group_norm(DType.F64)).body.ops
    assert [op.attrs["axes"] for op in ops if op.name == "reduce_sum"] == [(1, 2, 4)]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 6, 5, 3, 40), (1, 2, 4)),  # long enough by itself
        ((2, 6, 5, 3, 4), (3, 4)),  # the two innermost run as one
        ((2, 1, 3, 3, 4), (1, 2, 4)),  # nothing much to sum side by side
    ],
)
def test_other_reductions_stay(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    b = Builder([TensorType(DType.F32, shape)])
    block = b.finish([b("reduce_sum", b.params[0], axes=axes)])
    function = Function("sum", block, ("x",), ("y",))
    assert vectorize_short_axes(function) is function
