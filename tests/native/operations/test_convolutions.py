"""Convolutions of every kind equal torch's: values, and gradients by images and kernels."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import ops as ops

RNG = np.random.default_rng(5)


def first(x: Any) -> Any:
    """Channels last to channels first."""
    return x.movedim(-1, 1)


def last(x: Any) -> Any:
    return x.movedim(1, -1)


def kernel(k: Any) -> Any:
    """[space..., inputs, outputs] to torch's [outputs, inputs, space...]."""
    return k.movedim((-1, -2), (0, 1))


def turned(k: Any) -> Any:
    """[space..., inputs, outputs] to torch's [inputs, outputs, space...], of transposed ones."""
    return k.movedim((-2, -1), (0, 1))


#: rank, size, kernel's size, inputs and outputs of a group, stride, padding, dilation, groups.
FORWARD = [
    (1, (9,), (3,), 2, 4, 2, 1, 1, 1),
    (1, (11,), (2,), 3, 6, 1, 4, 3, 1),
    (1, (8,), (3,), 2, 4, 1, 1, 1, 2),
    (2, (7, 6), (3, 2), 3, 4, (2, 1), ((1, 2), (0, 1)), 1, 1),
    (2, (8, 9), (3, 3), 2, 3, 1, 2, 2, 1),
    (2, (6, 7), (3, 2), 1, 4, (1, 2), 1, 1, 4),
    (2, (6, 6), (3, 3), 1, 6, 2, 1, 1, 3),
    (2, (7, 7), (3, 3), 2, 6, 2, 2, (1, 2), 3),
    (3, (4, 5, 4), (2, 3, 2), 2, 3, (2, 1, 1), ((1, 0), (1, 1), (0, 1)), 1, 1),
    (3, (5, 4, 4), (2, 2, 2), 2, 4, 1, 1, 2, 2),
]


def test_convolution_of_any_stride_padding_dilation_and_groups(case, check):
    torch = pytest.importorskip("torch")
    fn = torch.nn.functional
    made = []
    for n, row in enumerate(FORWARD):
        rank, size, window, inputs, outputs, stride, padding, dilation, groups = row
        pairs = padding if isinstance(padding, tuple) else ((padding, padding),) * rank
        around = [k for pair in reversed(pairs) for k in pair]
        theirs = {1: fn.conv1d, 2: fn.conv2d, 3: fn.conv3d}[rank]
        ours = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}[rank]
        made.append(
            case(
                f"conv{n}",
                lambda x, k, f=ours, o=(stride, padding, dilation, groups): f(x, k, *o),
                lambda x, k, f=theirs, p=around, o=(stride, 0, dilation, groups): last(
                    f(fn.pad(first(x), p), kernel(k), None, *o)
                ),
                RNG.normal(size=(2, *size, inputs * groups)),
                RNG.normal(size=(*window, inputs, outputs)),
            )
        )
    check(made)


#: rank, size, kernel's size, inputs, outputs of a group, stride, padding, dilation, groups, more.
TRANSPOSED = [
    (1, (5,), (4,), 2, 3, 2, 1, 1, 1, 0),
    (2, (4, 3), (3, 3), 3, 2, 2, 1, 1, 1, 1),
    (2, (3, 4), (2, 3), 2, 2, (3, 1), 0, 1, 1, 0),
    (2, (4, 3), (3, 2), 4, 2, 2, (1, 0), 1, 2, 1),
    (2, (3, 3), (3, 3), 2, 2, (1, 2), 2, 2, 1, 0),
    (2, (3, 3), (1, 1), 2, 2, 1, 1, 1, 2, 0),
    (2, (3, 4), (2, 3), 2, 2, (2, 1), 1, 3, 2, 2),
    (3, (2, 3, 2), (2, 3, 2), 2, 3, 2, (0, 1, 1), 1, 1, 1),
]


def test_transposed_convolution(case, check):
    torch = pytest.importorskip("torch")
    fn = torch.nn.functional
    made = []
    for n, row in enumerate(TRANSPOSED):
        rank, size, window, inputs, outputs, stride, padding, dilation, groups, more = row
        theirs = {
            1: fn.conv_transpose1d,
            2: fn.conv_transpose2d,
            3: fn.conv_transpose3d,
        }[rank]
        ours = {
            1: ops.conv_transpose1d,
            2: ops.conv_transpose2d,
            3: ops.conv_transpose3d,
        }[rank]
        made.append(
            case(
                f"transposed{n}",
                lambda x, k, f=ours, o=(stride, padding, dilation, groups, more): f(x, k, *o),
                lambda x, k, f=theirs, o=(stride, padding, more, groups, dilation): last(
                    f(first(x), turned(k), None, *o)
                ),
                RNG.normal(size=(2, *size, inputs)),
                RNG.normal(size=(*window, inputs, outputs)),
            )
        )
    check(made)


def test_sizes_by_name():
    x = RNG.normal(size=(1, 7, 5, 2))
    k = RNG.normal(size=(3, 3, 2, 4))
    assert ops.conv2d(x, k, 2, "SAME").shape == (1, 4, 3, 4)
    assert ops.conv2d(x, k, 2, "VALID", 2).shape == (1, 2, 1, 4)
    assert ops.conv_transpose2d(x, k, (2, 4), "SAME").shape == (1, 14, 20, 4)
    assert ops.conv_transpose2d(x, k, 2, "VALID").shape == (1, 15, 11, 4)
    assert ops.depthwise_conv2d(x, k[..., 0]).shape == (1, 7, 5, 2)


def test_a_transposed_convolution_is_the_transpose():
    """<u, conv(x)> = <conv_transpose(u), x>, dilated, in groups and padded unevenly."""
    options = ((2, 3), ((1, 0), (2, 1)), (2, 1), 2)
    x, k = RNG.normal(size=(2, 9, 8, 4)), RNG.normal(size=(2, 3, 2, 6))
    y = ops.conv2d(x, k, *options)
    u = RNG.normal(size=y.shape)
    # Its kernel is [space, C, O / groups]: of our groups of outputs, one after another.
    other = np.moveaxis(k.reshape(2, 3, 2, 2, 3), 2, -1).reshape(2, 3, 6, 2)
    # The strides leave one row and two columns of x over.
    back = ops.conv_transpose2d(u, other, *options, output_padding=(1, 2))
    assert back.shape == x.shape
    np.testing.assert_allclose(np.sum(u * y), np.sum(back * x), rtol=1e-10)


def test_second_derivatives_go_through():
    """Of a depthwise, dilated one, against the gradient's finite difference."""
    x, k = RNG.normal(size=(1, 5, 5, 2)), RNG.normal(size=(2, 2, 2))

    def energy(k):
        return np.sum(ops.depthwise_conv2d(x, k, 1, 1, 2) ** 3)

    slope = dl.grad(energy)
    v = RNG.normal(size=k.shape)
    _, along = dl.jvp(slope, (k,), (v,))
    h = 1e-5
    np.testing.assert_allclose(along, (slope(k + h * v) - slope(k - h * v)) / (2 * h), rtol=1e-6)


MISFITS = [
    (lambda: ops.conv1d(np.zeros((1, 4, 4, 1)), np.zeros((1, 1, 1))), r"sequences \[N, T, C\]"),
    (lambda: ops.conv2d(np.zeros((1, 4, 4, 3)), np.zeros((1, 1, 3, 2)), 0), "stride"),
    (lambda: ops.conv2d(np.zeros((1, 4, 4, 4)), np.zeros((1, 1, 2, 3)), groups=2), "in each of 2"),
    (lambda: ops.conv2d(np.zeros((1, 4, 4, 2)), np.zeros((3, 3, 2, 3)), 1, "VALID", 2), "spans 5"),
    (lambda: ops.conv2d(np.zeros((1, 4, 4, 2)), np.zeros((3, 3, 2, 3)), 1, (1,)), "one entry"),
    (lambda: ops.depthwise_conv2d(np.zeros((1, 4, 4, 2)), np.zeros((3, 3, 3))), "multiplier"),
    (
        lambda: ops.conv_transpose2d(
            np.zeros((1, 4, 4, 2)), np.zeros((3, 3, 2, 3)), 2, 0, output_padding=2
        ),
        "as much as a stride",
    ),
]


@pytest.mark.parametrize("f, words", MISFITS, ids=range(len(MISFITS)))
def test_misfits_say_what_does_not_fit(f, words):
    with pytest.raises(ValueError, match=words):
        f()


def test_images_without_channels_are_told_how_to_have_one():
    one, three = (np.zeros((3, 3, channels, 8), np.float32) for channels in (1, 3))
    images = np.zeros((4, 28, 28), np.float32)
    with pytest.raises(ValueError, match=r"x\[\.\.\., None\] has one channel"):
        ops.conv2d(images, one)
    with pytest.raises(ValueError, match=r"shapes \[4, 28, 28\] and \[3, 3, 3, 8\]$"):
        ops.conv2d(images, three)
