"""Windows of pools written out: the same maxima and the same gradients, whoever ties."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.lowering.mask_recompute import rematerialize_masks
from delian.core.compiler.passes.lowering.window_maxima import expand_pool_windows
from delian.core.compiler.passes.number_profiles import in_profile
from delian.core.compiler.passes.schedule.block_steps import Loop
from delian.core.compiler.passes.schedule.fuse import schedule
from delian.core.compiler.verify import verify

CHANNELS = 16
AXES = (2, 4)


def pooled(
    size: int = 8, clamp: bool = True, window: int = 2, factor: bool = True, looks: bool = False
) -> Block:
    """A pool of a clamped multiple of x, what comes back through it, and its sums.

    size: of the image; what fills no window is cut off. looks: who tied is a result, too.
    """
    shape = (2, size, size, CHANNELS)
    count = size // window
    b = Builder(
        [
            TensorType(DType.F32, shape),
            TensorType(DType.F32, (CHANNELS,)),
            TensorType(DType.F32, (2, count, count, CHANNELS)),
        ]
    )
    x, slope, g = b.params
    wide = b("broadcast", slope, shape=shape, dims=(3,))
    inner, zero = b("mul", x, wide), b.full(TensorType(DType.F32, shape), 0.0)
    mask = b("le", inner, zero)
    image = b("select", mask, zero, inner) if clamp else inner
    cut = (2, count * window, count * window, CHANNELS)
    if cut != shape:
        image = b("slice", image, start=(0, 0, 0, 0), stop=cut, step=(1, 1, 1, 1))
    split = (2, count, window, count, window, CHANNELS)
    parts = b("reshape", image, shape=split)
    most = b("reduce_max", parts, axes=AXES)
    tie = b("eq", parts, b("broadcast", most, shape=split, dims=(0, 1, 3, 5)))
    ties = b("reduce_sum", b("convert", tie, dtype=DType.F32), axes=AXES)
    each = b("broadcast", b("div", g, ties), shape=split, dims=(0, 1, 3, 5))
    back = b("select", tie, each, b.full(TensorType(DType.F32, split), 0.0))
    back = b("reshape", back, shape=cut)
    if cut != shape:
        left = size - count * window
        edges = {"low": (0, 0, 0, 0), "high": (0, left, left, 0), "interior": (0, 0, 0, 0)}
        back = b("pad", back, b.constant(0.0, DType.F32), **edges)
    if clamp:
        back = b("select", mask, zero, back)
    results = [most, b("mul", back, wide), b("reduce_sum", back, axes=(0, 1, 2))]
    if factor:
        results.append(b("reduce_sum", b("mul", back, x), axes=(0, 1, 2)))
    return b.finish([*results, tie] if looks else results)


def function(block: Block) -> Function:
    names = tuple(f"p{i}" for i in range(len(block.params)))
    return Function("f", block, names, tuple(f"r{i}" for i in range(len(block.results))))


def after(block: Block) -> Block:
    made = expand_pool_windows(function(block)).body
    verify(made)
    return made


def arguments(block: Block, special: bool) -> list[Any]:
    """Few different numbers, so that many tie; or infinities and no numbers among them."""
    rng = np.random.default_rng(3)
    x, slope, g = (p.shape for p in block.params)
    values = np.array([-2.0, -1.0, -0.0, 0.0, 1.0, 1.0, 3.0], np.float32)
    image = rng.choice(values, x)
    if special:
        odd = np.array([np.nan, np.inf, -np.inf], np.float32)
        image = np.where(rng.random(x) < 0.1, rng.choice(odd, x), image)
    slopes = rng.choice(np.array([0.5, 1.0, -1.0, 0.0], np.float32), slope)
    return [image.astype(np.float32), slopes, rng.standard_normal(g).astype(np.float32)]


def names(block: Block) -> list[str]:
    return [op.name for op in block.ops]


BLOCKS = {
    "clamped": pooled(),
    "plain": pooled(clamp=False),
    "cut": pooled(size=9),
    "cut_plain": pooled(size=9, clamp=False),
    "three": pooled(size=9, clamp=False, window=3, factor=False),
    "looks": pooled(looks=True),
}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("special", [False, True])
def test_maxima_and_gradients_are_the_same_whoever_ties(kind: str, special: bool) -> None:
    block = BLOCKS[kind]
    made = after(block)
    assert "reduce_max" not in names(made)
    args = arguments(block, special)
    with np.errstate(all="ignore"):
        one, other = run_block(block, args), run_block(made, args)
    for a, b in zip(one[:2], other[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    if kind == "looks":
        np.testing.assert_array_equal(one[-1], other[-1])
    if not special:
        for a, b in zip(one[2:4], other[2:4], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["clamped", "cut"])
def test_compiled_they_are_the_same_too(kind: str) -> None:
    block = BLOCKS[kind]
    args = arguments(block, special=False)
    for one, other in zip(
        run_block(block, args), compile_function(function(block))(*args), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["clamped", "cut", "plain"])
def test_who_ties_may_be_counted_in_f64(kind: str) -> None:
    """As the profile "reproducible" does: bits go to f32 and from there to f64."""
    narrow = in_profile(function(BLOCKS[kind]), "reproducible")
    args = arguments(BLOCKS[kind], special=False)
    for one, other in zip(
        run_block(narrow.body, args), run_block(after(narrow.body), args), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_image_is_read_by_two_loops_and_never_stored() -> None:
    made = rematerialize_masks(function(after(BLOCKS["clamped"]))).body
    loops = [s for s in schedule(made).steps if isinstance(s, Loop)]
    large = BLOCKS["clamped"].params[0].tensor.size
    stored = [v for loop in loops for v, _ in loop.stores if v.tensor.size == large]
    assert stored == [v for v in stored if v in made.results]
    assert len([loop for loop in loops if not loop.reductions]) == 2
    assert len(loops) == 3  # and the sums, of what windows get


def test_who_ties_is_asked_of_what_is_not_yet_rectified_only_where_nothing_else_wants_to_know() -> (
    None
):
    def clamps(block: Block) -> int:
        count = BLOCKS["clamped"].params[2].tensor.size
        return sum(op.name == "le" and op.result.tensor.size == count for op in block.ops)

    # Three comparisons find the maximum; each element's sign is asked for, or the maximum's.
    assert clamps(after(BLOCKS["clamped"])) == 3 + 1
    assert clamps(after(BLOCKS["looks"])) == 3 + 4


@pytest.mark.parametrize("change", ["alone", "large", "inner"])
def test_other_maxima_stay(change: str) -> None:
    if change == "large":
        block = pooled(size=8, window=4)
    else:
        b = Builder([TensorType(DType.F32, (2, 4, 2, 4, 2, CHANNELS))])
        (x,) = b.params
        axes = AXES if change == "alone" else (2, 5)
        most = b("reduce_max", x, axes=axes)
        kept = tuple(a for a in range(6) if a not in axes)
        results: list[Value] = [most]
        if change == "inner":
            results.append(b("eq", x, b("broadcast", most, shape=x.shape, dims=kept)))
        block = b.finish(results)
    assert names(after(block)) == names(block)


def rectified_pool(x: Any, g: Any) -> Any:
    """A pool of max(x, 0), and all of g to everybody who ties."""
    parts = np.where(x <= 0, np.float32(0), x).reshape((2, 8, 2, 8, 2, 8))
    most = np.max(parts, axis=AXES)
    ties = parts == most[:, :, None, :, None, :]
    nothing = np.zeros((), g.dtype)
    back = np.where(ties, g[:, :, None, :, None, :], nothing).reshape((2, 16, 16, 8))
    return most, np.where(x <= 0, nothing, back)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.bool_])
def test_two_pools_that_get_the_same_give_it_on_by_their_own_maxima(dtype: Any) -> None:
    def both(x: Any, y: Any, g: Any) -> Any:
        return rectified_pool(x, g), rectified_pool(y, g)

    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((2, 16, 16, 8)).astype(np.float32) - 1 for _ in range(2))
    g = (3 * rng.standard_normal((2, 8, 8, 8))).astype(dtype)
    (got, want) = (dl.compile(both, backend=name)(x, y, g) for name in ("native", "reference"))
    for one, other in zip(got, want, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
