"""Convolutions by tiles of minimal filtering, against convolutions in f64."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.emit import emit
from delian.core.compiler.backends.native.kernels import winograd
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType
from support.tolerance import ACCUMULATED

Size = tuple[int, int]
#: images, their size, channels in and out, the kernel's side, padding before and after.
CASES: dict[str, tuple[int, Size, Size, int, tuple[Size, Size]]] = {
    "tiles that fill an image": (2, (8, 8), (16, 32), 3, ((1, 1), (1, 1))),
    "an image that no tile divides": (3, (9, 7), (32, 16), 3, ((1, 1), (1, 1))),
    "no padding": (2, (11, 12), (48, 48), 3, ((0, 0), (0, 0))),
    "uneven padding": (2, (10, 9), (16, 48), 3, ((2, 0), (1, 2))),
    "strips of an image": (1, (30, 40), (64, 64), 3, ((1, 1), (1, 1))),
    "images to a block": (11, (4, 3), (32, 32), 3, ((1, 1), (1, 1))),
    "short tiles both ways": (5, (14, 14), (16, 32), 3, ((1, 1), (1, 1))),
    "short tiles both ways, uneven": (3, (10, 6), (16, 16), 3, ((2, 0), (0, 1))),
    "short tiles, cut": (4, (7, 9), (32, 16), 3, ((0, 0), (1, 1))),
    "short tiles, many images": (40, (7, 6), (48, 32), 3, ((1, 1), (1, 1))),
    "five by five, few pixels": (3, (5, 5), (16, 16), 5, ((1, 1), (2, 2))),
    "five by five, many images": (32, (14, 14), (32, 32), 5, ((2, 2), (2, 2))),
    "five by five": (2, (14, 14), (16, 32), 5, ((2, 2), (2, 2))),
    "five by five, uneven": (1, (9, 13), (32, 16), 5, ((4, 0), (1, 3))),
}


#: Every number of points that the last tiles of an image may have, below others and alone.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 9)
_PADDING = {3: ((1, 1), (0, 2), (2, 1)), 5: ((2, 2), (1, 3), (4, 1))}
SMALL = {
    f"{side}x{side} to {oh}x{ow}": (
        1 + (oh + ow) % 3,
        (oh + side - 1 - sum(high), ow + side - 1 - sum(wide)),
        (16 * (1 + oh % 2), 16 * (1 + ow % 3)),
        side,
        (high, wide),
    )
    for side, kinds in _PADDING.items()
    for oh in _SIZES
    for ow in _SIZES
    for high, wide in [(kinds[ow % 3], kinds[oh % 3])]
    if oh + side - 1 > sum(high) and ow + side - 1 > sum(wide)
}


def block(name: str, dtype: DType) -> Block:
    """A convolution and its two gradients."""
    n, (h, w), (c, o), side, padding = (CASES | SMALL)[name]
    oh, ow = (size + sum(p) - side + 1 for size, p in zip((h, w), padding, strict=True))
    shapes = ((n, h, w, c), (side, side, c, o), (n, oh, ow, o))
    b = Builder([TensorType(dtype, s) for s in shapes])
    x, k, y = b.params
    how: dict[str, Any] = {"strides": (1, 1), "padding": padding}
    results = [
        b("conv", x, k, **how),
        b("conv_input_grad", y, k, input_size=(h, w), **how),
        b("conv_weight_grad", x, y, kernel_size=(side, side), **how),
    ]
    return b.finish(results)


def function(name: str) -> Function:
    return Function(name, block(name, DType.F32), ("x", "k", "y"), ("y", "dx", "dk"))


@pytest.fixture(scope="module")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_WORTH", 100.0)  # small cases are not worth it
        patch.setattr(winograd, "_SUMMED", 0)
        patch.setattr(winograd, "_IMAGE", 0)
        functions = {name: function(name) for name in CASES | SMALL}
        text, _ = emit({f"f{i}": f for i, f in enumerate(functions.values())})
        assert text.count("  dl_wino_conv") == 3 * len(functions)
        return compile_native(functions, toolchain)


def arguments(name: str) -> list[Any]:
    rng = np.random.default_rng(3)
    params = block(name, DType.F32).params
    return [rng.standard_normal(p.shape, dtype=np.float32) for p in params]


def errors(name: str, program: NativeProgram) -> dict[str, float]:
    """Of the convolution and its gradients, in units of their largest sum of magnitudes."""
    args = arguments(name)
    wide = block(name, DType.F64)
    expected = run_block(wide, [a.astype(np.float64) for a in args])
    sums = run_block(wide, [np.abs(a).astype(np.float64) for a in args])
    each = zip(wide.ops, program(*args), expected, sums, strict=True)
    return {
        op.name: float(np.abs(result - exact).max() / size.max() * 2**23)
        for op, result, exact, size in each
    }


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_by_tiles_and_its_gradients_are_as_near_as_promised(
    name: str, programs: Mapping[str, NativeProgram]
) -> None:
    for op, error in errors(name, programs[name]).items():
        few = "few pixels" in name and op == "conv_weight_grad"  # which go by no tiles otherwise
        assert error < ACCUMULATED[op] * (3 if few else 1), op


def test_whatever_is_left_of_an_image_beside_whole_tiles_is_computed(
    programs: Mapping[str, NativeProgram],
) -> None:
    assert len(SMALL) > 110
    for name in SMALL:
        for op, error in errors(name, programs[name]).items():
            few = 3 if op == "conv_weight_grad" else 1
            assert error < ACCUMULATED[op] * (few if name.startswith("5") else 0.5), (name, op)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are Linux's")
@pytest.mark.parametrize(
    "name", [*(n for n in CASES if "strips" in n or "images" in n), "five by five"]
)
def test_threads_change_no_bit_of_a_convolution_by_tiles(
    name: str, programs: Mapping[str, NativeProgram]
) -> None:
    program, args = programs[name], arguments(name)
    alone = program(*args)
    try:
        for threads in (2, 3, 5):
            program.threads = threads
            for one, other in zip(alone, program(*args), strict=True):
                assert one.tobytes() == other.tobytes()
    finally:
        program.threads = 1


def test_an_image_is_the_same_whatever_other_images_are_beside_it(
    programs: Mapping[str, NativeProgram],
) -> None:
    x, k, y = arguments("images to a block")
    together = programs["images to a block"](x, k, y)
    order = np.random.default_rng(0).permutation(len(x))
    moved = programs["images to a block"](x[order], k, y[order])
    for one, other in zip(together[:2], moved[:2], strict=True):
        assert one[order].tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("sizes", "worth"),
    [
        ({}, True),
        ({"n": 1, "h": 3, "w": 3, "oh": 3, "ow": 3}, False),  # the kernel's matrices cost more
        ({"c": 24}, False),
        ({"sh": 2, "sw": 2, "oh": 7, "ow": 7}, False),
        ({"kh": 1, "kw": 1}, False),
    ],
)
def test_convolutions_go_by_tiles_where_it_is_worth_it(sizes: dict[str, int], worth: bool) -> None:
    usual = {"n": 10, "h": 14, "w": 14, "c": 64, "kh": 3, "kw": 3, "o": 64, "oh": 14, "ow": 14}
    d = {**usual, "sh": 1, "sw": 1, "top": 1, "left": 1, **sizes}
    assert winograd.fits("conv", d) is worth


def test_a_gradient_that_sums_too_few_pixels_for_tiles_of_five_by_five_has_none() -> None:
    d = {"n": 1, "h": 14, "w": 14, "c": 32, "kh": 5, "kw": 5, "o": 64, "oh": 14, "ow": 14}
    d |= {"sh": 1, "sw": 1, "top": 2, "left": 2}
    assert winograd.fits("conv", d) and winograd.fits("conv_input_grad", d)
    assert not winograd.fits("conv_weight_grad", d)
    assert winograd.fits("conv_weight_grad", {**d, "n": 2})
    assert winograd.fits("conv_weight_grad", {**d, "kh": 3, "kw": 3})


@pytest.mark.parametrize("side", [3, 5])
def test_an_image_of_which_kernels_meet_few_pixels_goes_by_no_tiles(side: int) -> None:
    least = min(side, 4)
    d = {"n": 64, "h": least, "w": 16, "c": 64, "kh": side, "kw": side, "o": 64}
    d |= {"oh": least + 2, "ow": 18, "sh": 1, "sw": 1, "top": side // 2 + 1, "left": side // 2 + 1}
    turned = {**d, "h": d["oh"], "w": d["ow"], "oh": d["h"], "ow": d["w"]}
    for name in ("conv", "conv_input_grad", "conv_weight_grad"):
        assert winograd.fits(name, d) and winograd.fits(name, turned)
        assert winograd.fits(name, {**d, "h": least - 1}) is (name == "conv_input_grad")
        assert winograd.fits(name, {**d, "w": least - 1}) is (name == "conv_input_grad")
        assert winograd.fits(name, {**turned, "oh": least - 1}) is (name == "conv")


def test_c_for_small_machines_has_no_tiles() -> None:
    name = "strips of an image"
    with_tiles, a = emit({"f": function(name)})
    without, b = emit({"f": function(name)}, tiles=False)
    assert "dl_wino_conv" in with_tiles and "dl_wino_conv" not in without
    assert b["f"].arena_bytes < a["f"].arena_bytes
