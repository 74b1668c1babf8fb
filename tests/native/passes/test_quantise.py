"""Programs in bytes: what they compute beside f32, and that back ends agree to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.quantised_inference import Policy, Scale
from delian.core.compiler.verify import verify
from delian.core.learning.quantise import Calibration, quantise_function, range_by

ALL = Policy(keep_first=False, keep_last=False)
RNG = np.random.default_rng(11)


def function(shape: tuple[int, ...], build: Callable[[Builder, Value], Value]) -> Function:
    b = Builder([TensorType(DType.F32, shape)])
    return Function("f", b.finish([build(b, b.params[0])]), ("x",), ("y",))


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def along(b: Builder, vector: Any, like: Value) -> Value:
    last = len(like.shape) - 1
    return b("broadcast", b.constant(vector), shape=like.shape, dims=(last,))


def dense(b: Builder, x: Value, matrix: Any) -> Value:
    last = len(x.shape) - 1
    axes = {"contract_a": (last,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    return b("dot", x, b.constant(matrix), **axes)


def conv(b: Builder, x: Value, kernel: Any, strides: Any = (1, 1), pad: int = 1) -> Value:
    edges = ((pad, pad), (pad, pad))
    return b("conv", x, b.constant(kernel), strides=strides, padding=edges)


def relu(b: Builder, x: Value) -> Value:
    zero = b.zeros(x.type)
    return b("select", b("le", x, zero), zero, x)


def held(
    f: Function, rows: Sequence[Any], policy: Policy = ALL, apart: float = 0.04, products: int = 1
) -> Function:
    """Quantises a function and holds it against itself in f32; gives the quantised one."""
    made = quantise_function(f, rows, policy, Calibration("minmax"), "reference")
    verify(made.body)
    names = [op.name for op in made.body.walk()]
    assert names.count("quantised_conv") == products
    for batch in rows:
        (wanted,) = compile_function(f, "reference")(batch)
        (found,) = compile_function(made, "reference")(batch)
        assert np.abs(found - wanted).max() <= apart * np.abs(wanted).max()
        (native,) = compile_function(made)(batch)
        assert native.tobytes() == found.tobytes()
    return made


def test_a_dense_layer_with_bias_and_relu() -> None:
    matrix, bias = numbers(13, 7), numbers(7)  # 13 is no multiple of four

    def build(b: Builder, x: Value) -> Value:
        y = dense(b, x, matrix)
        return relu(b, b("add", y, along(b, bias, y)))

    held(function((6, 13), build), [numbers(6, 13) for _ in range(3)])


def test_bytes_go_from_layer_to_layer_without_f32_between() -> None:
    first, second = numbers(16, 12), numbers(12, 5)

    def build(b: Builder, x: Value) -> Value:
        return dense(b, relu(b, dense(b, x, first)), second)

    made = held(function((6, 16), build), [numbers(6, 16)], products=2)
    names = [op.name for op in made.body.walk()]
    # From f32 to bytes once; sums to bytes once; sums to f32 once.
    assert names.count("round") == 2
    assert not any(op.name == "dot" for op in made.body.walk())


@pytest.mark.parametrize(("strides", "pad"), [((1, 1), 1), ((2, 1), 0), ((2, 2), 2)])
def test_a_convolution_at_its_edges_and_pooling_in_bytes(strides: Any, pad: int) -> None:
    kernel, bias = numbers(3, 3, 8, 6), numbers(6)

    def build(b: Builder, x: Value) -> Value:
        y = conv(b, x, kernel, strides, pad)
        y = relu(b, b("add", y, along(b, bias, y)))
        n, h, w, c = y.shape
        cut = b("slice", y, start=(0,) * 4, stop=(n, h // 2 * 2, w // 2 * 2, c), step=(1,) * 4)
        parts = b("reshape", cut, shape=(n, h // 2, 2, w // 2, 2, c))
        return b("reduce_max", parts, axes=(2, 4))

    rows = [numbers(2, 8, 8, 8) + 0.5 for _ in range(2)]  # zero is not in the middle of the range
    held(function((2, 8, 8, 8), build), rows)


def test_a_normalisation_with_fixed_statistics_is_folded() -> None:
    kernel, scale, shift = numbers(1, 1, 4, 6), numbers(6), numbers(6)
    mean, variance = numbers(6), np.abs(numbers(6)) + 0.1

    def build(b: Builder, x: Value) -> Value:
        y = conv(b, x, kernel, pad=0)
        y = b("sub", y, along(b, mean, y))
        root = b("sqrt", b("add", b.constant(variance), b.full(TensorType(DType.F32, (6,)), 1e-5)))
        factor = b("div", b.constant(scale), root)
        y = b("mul", y, b("broadcast", factor, shape=y.shape, dims=(3,)))
        return relu(b, b("add", y, along(b, shift, y)))

    made = held(function((2, 4, 4, 4), build), [numbers(2, 4, 4, 4)])
    names = [op.name for op in made.body.walk()]
    assert "sqrt" not in names and "div" not in names
    assert names.count("mul") <= 2  # into bytes and out of sums


def test_a_residual_sum_is_done_in_integers() -> None:
    first, second = numbers(3, 3, 8, 8), numbers(3, 3, 8, 8)

    def build(b: Builder, x: Value) -> Value:
        stem = relu(b, conv(b, x, first))
        return relu(b, b("add", stem, conv(b, stem, second)))

    made = held(function((2, 6, 6, 8), build), [numbers(2, 6, 6, 8)], products=2)
    assert "shr" in [op.name for op in made.body.walk()]


def test_the_policy_keeps_the_first_and_the_last_in_f32() -> None:
    matrices = [numbers(8, 8) for _ in range(3)]

    def build(b: Builder, x: Value) -> Value:
        for matrix in matrices:
            x = relu(b, dense(b, x, matrix))
        return x

    f, rows = function((4, 8), build), [numbers(4, 8)]
    for first, last, count in ((True, True, 1), (False, True, 2), (True, False, 2)):
        made = quantise_function(f, rows, Policy(first, last), Calibration(), "reference")
        names = [op.name for op in made.body.walk()]
        assert (names.count("quantised_conv"), names.count("dot")) == (count, 3 - count)


def test_what_bytes_cannot_do_stays_in_f32() -> None:
    kernel = numbers(3, 3, 3, 4)  # three channels

    def build(b: Builder, x: Value) -> Value:
        return b("tanh", conv(b, x, kernel))

    with pytest.raises(DelianError, match="no product that bytes can do"):
        quantise_function(
            function((1, 5, 5, 3), build), [numbers(1, 5, 5, 3)], ALL, Calibration(), "reference"
        )


def test_negative_factors_and_dead_channels_are_right() -> None:
    matrix, factor = numbers(8, 4), np.array([-2, 1, 0.5, -0.1], np.float32)
    matrix[:, 1] = 0

    def build(b: Builder, x: Value) -> Value:
        y = dense(b, x, matrix)
        y = b("mul", y, along(b, factor, y))
        return relu(b, b("add", y, along(b, np.ones(4, np.float32), y)))

    held(function((16, 8), build), [numbers(16, 8)])


def test_a_scale_holds_its_range_and_zero_exactly() -> None:
    for low, high in ((-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 0.0)):
        scale = Scale.of((low, high))
        assert 0 <= scale.zero <= 255
        assert scale.scale * (0 - scale.zero) <= min(low, 0) + scale.scale
        assert scale.scale * (255 - scale.zero) >= max(high, 0) - scale.scale


def test_ranges_by_method() -> None:
    seen = np.concatenate([np.linspace(-1, 1, 10_000), [100.0, np.nan, np.inf]])
    assert range_by(seen, Calibration("minmax")) == (-1.0, 100.0)
    low, high = range_by(seen, Calibration("percentile", 99.0))
    assert -1 < low < -0.9 and 0.9 < high < 1
    assert range_by(seen, Calibration("mse"))[1] <= 100.0
    assert range_by(np.array([np.nan]), Calibration()) == (0.0, 0.0)
