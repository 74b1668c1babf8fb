"""Convolution in one to three dimensions, composed of the IR's two, which are 2-d.

Dense, and in groups of channels.

Everything here is a sum of things that have derivatives already, so gradients of any order come
for nothing, on every back end:

    1-d                    the 2-d one over images of height 1
    3-d                    a sum over the kernel's depth of 2-d ones over all slices at once
    dilated, grouped 3-d   a sum over the kernel's places ("taps"): a strided view of the padded
                           input, times one matrix; depthwise, times one vector
    transposed             the 2-d one's own transpose; else the input spread out by the strides,
                           under the kernel turned about

Layouts: x [N, space..., C]; kernel [space..., C / groups, O]; of a transposed convolution
[space..., C, O / groups]. As in every framework for learning, "convolution" is cross-correlation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..intrinsics import conv, conv_input_grad, grouped_conv
from ..ir import Array

#: One number for every axis, or one an axis.
Sizes: TypeAlias = "int | Sequence[int]"
#: "SAME", "VALID", zeros on every side, or for each axis a number or a pair (before, after).
Padding: TypeAlias = "str | int | Sequence[int | tuple[int, int]]"


def conv1d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """`conv2d` of sequences: f32[N, T, C], f32[size, C / groups, O] -> f32[N, OT, O]."""
    return _convolve("conv1d", 1, x, kernel, stride, padding, dilation, groups)


def conv2d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation of images with a kernel.

    Args:
        x: f32[N, H, W, C].
        kernel: f32[height, width, C / groups, O].
        stride: of both axes, or of each.
        padding: "SAME" (as many outputs as inputs / stride, rounded up), "VALID" (none), zeros on
            every side, or for each axis a number or (before, after).
        dilation: the distance between the kernel's elements, of both axes or of each.
        groups: the channels fall into so many groups, in order, that see nothing of one another; as
            many groups as channels is the depthwise convolution.

    Returns:
        f32[N, OH, OW, O].

    Raises:
        ValueError: sizes do not fit one another.
    """
    return _convolve("conv2d", 2, x, kernel, stride, padding, dilation, groups)


def conv3d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation of volumes, otherwise as `conv2d`.

    f32[N, D, H, W, C], f32[depth, height, width, C / groups, O] -> f32[N, OD, OH, OW, O].
    """
    return _convolve("conv3d", 3, x, kernel, stride, padding, dilation, groups)


def depthwise_conv2d(
    x: Array, kernel: Array, stride: Sizes = 1, padding: Padding = "SAME", dilation: Sizes = 1
) -> Array:
    """Each channel under its own kernel.

    f32[N, H, W, C], f32[height, width, C] or f32[height, width, C, multiplier] -> f32[N, OH, OW, C
    * multiplier].
    """
    if x.ndim != 4 or kernel.ndim not in (3, 4) or kernel.shape[2] != x.shape[3]:
        raise ValueError(
            f"depthwise_conv2d takes images [N, H, W, C] and a kernel [height, width, C] or "
            f"[height, width, C, multiplier], not shapes {list(x.shape)} and {list(kernel.shape)}"
        )
    grouped = kernel.reshape(kernel.shape[0], kernel.shape[1], 1, -1)
    return conv2d(x, grouped, stride, padding, dilation, x.shape[3])


def conv_transpose1d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
    output_padding: Sizes = 0,
) -> Array:
    """`conv_transpose2d` of sequences: f32[N, T, C], f32[size, C, O / groups] -> f32[N, OT, O]."""
    options = stride, padding, dilation, groups, output_padding
    return _transposed("conv_transpose1d", 1, x, kernel, *options)


def conv_transpose2d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
    output_padding: Sizes = 0,
) -> Array:
    """The transpose of a convolution with these options, which makes images larger.

    Args:
        x: f32[N, H, W, C].
        kernel: f32[height, width, C, O / groups].
        stride: of both axes, or of each: how far apart neighbours come to lie.
        padding: what is cut off the result: "SAME" (it has size times stride), "VALID" (nothing), a
            number, or for each axis a number or (before, after).
        dilation: as of `conv2d`.
        groups: as of `conv2d`.
        output_padding: columns added at the end, fewer than the stride or the dilation.

    Returns:
        f32[N, OH, OW, O] with OH = (H - 1) stride + dilation (height - 1) + 1 - before - after +
        output_padding.

    Raises:
        ValueError: sizes do not fit one another.
    """
    options = stride, padding, dilation, groups, output_padding
    return _transposed("conv_transpose2d", 2, x, kernel, *options)


def conv_transpose3d(
    x: Array,
    kernel: Array,
    stride: Sizes = 1,
    padding: Padding = "SAME",
    dilation: Sizes = 1,
    groups: int = 1,
    output_padding: Sizes = 0,
) -> Array:
    """Transposed convolution of volumes.

    f32[N, D, H, W, C], f32[depth, height, width, C, O / groups] -> f32[N, OD, OH, OW, O].

    As `conv_transpose2d` otherwise.
    """
    options = stride, padding, dilation, groups, output_padding
    return _transposed("conv_transpose3d", 3, x, kernel, *options)


# Options


def sizes_of(name: str, value: Sizes, rank: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One whole number an axis, from one for all or one each."""
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(sizes) != rank or any(not isinstance(n, int) or n < least for n in sizes):
        raise ValueError(
            f"{name}: {what} is a whole number of at least {least}, or {rank} of them, "
            f"not {value!r}"
        )
    return sizes


def edges_of(
    name: str,
    padding: Padding,
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """Zeros (before, after) each axis."""
    if isinstance(padding, tuple | list):
        if len(padding) != len(sizes):
            raise ValueError(f"{name}: padding {padding!r} has not one entry for {len(sizes)} axes")
        return tuple((p, p) if isinstance(p, int) else (p[0], p[1]) for p in padding)
    return tuple(
        _edges(sizes[k], windows[k], strides[k], padding)  # type: ignore[arg-type]
        for k in range(len(sizes))
    )


def _edges(size: int, window: int, stride: int, padding: str | int) -> tuple[int, int]:
    """Zeros before and after an axis."""
    if isinstance(padding, int):
        return padding, padding
    if padding == "VALID":
        return 0, 0
    if padding != "SAME":
        raise ValueError(f'padding is "SAME", "VALID" or a number, not {padding!r}')
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


_AXES = {1: "T", 2: "H, W", 3: "D, H, W"}
_KERNEL_AXES = {1: "size", 2: "height, width", 3: "depth, height, width"}
_WHAT = {1: "sequences", 2: "images", 3: "volumes"}


def _check_ranks(name: str, rank: int, x: Array, kernel: Array) -> None:
    if x.ndim != rank + 2 or kernel.ndim != rank + 2:
        lacks = x.ndim == rank + 1 and kernel.ndim == rank + 2 and kernel.shape[-2] == 1
        raise ValueError(
            f"{name} takes {_WHAT[rank]} [N, {_AXES[rank]}, C] and a kernel "
            f"[{_KERNEL_AXES[rank]}, C, O], "
            f"not shapes {list(x.shape)} and {list(kernel.shape)}"
            + (": x[..., None] has one channel" if lacks else "")
        )


# Convolution


def _convolve(
    name: str,
    rank: int,
    x: Array,
    kernel: Array,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> Array:
    _check_ranks(name, rank, x, kernel)
    if x.shape[-1] != kernel.shape[-2] * groups or kernel.shape[-1] % groups:
        parted = "" if groups == 1 else f" in each of {groups} groups"
        raise ValueError(
            f"{name}: the {_WHAT[rank]} have {x.shape[-1]} channels and the kernel takes "
            f"{kernel.shape[-2]}{parted} "
            f"(shapes {list(x.shape)} and {list(kernel.shape)})"
        )
    strides = sizes_of(name, stride, rank, "stride")
    apart = sizes_of(name, dilation, rank, "dilation")
    windows = tuple((kernel.shape[k] - 1) * apart[k] + 1 for k in range(rank))
    edges = edges_of(name, padding, x.shape[1:-1], windows, strides)
    if any(d > 1 for d in apart) or (groups > 1 and rank == 3):
        return _by_taps(x, kernel, strides, edges, apart, groups)
    if rank == 2:
        return _images(x, kernel, strides, edges, groups)
    if rank == 1:
        flat = _images(x[:, None], kernel[None], (1, strides[0]), ((0, 0), edges[0]), groups)
        return flat[:, 0]
    return _volumes(x, kernel, strides, edges)


def _images(
    x: Array,
    kernel: Array,
    strides: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    groups: int,
) -> Array:
    if groups > 1:
        return grouped_conv(x, kernel, strides, edges, groups)  # type: ignore[arg-type]
    return conv(x, kernel, strides, edges)  # type: ignore[arg-type]


def _volumes(
    x: Array, kernel: Array, strides: tuple[int, ...], edges: tuple[tuple[int, int], ...]
) -> Array:
    """A 2-d convolution for each slice of the kernel, over all slices of the volumes at once."""
    padded = np.pad(x, ((0, 0), edges[0], (0, 0), (0, 0), (0, 0)))
    deep, step = kernel.shape[0], strides[0]
    count = _outputs(padded.shape[1], deep, step)
    terms = []
    for i in each(deep):
        slices = padded[:, i : i + (count - 1) * step + 1 : step]
        images = slices.reshape(x.shape[0] * count, *x.shape[2:])
        terms.append(conv(images, kernel[i], strides[1:], edges[1:]))  # type: ignore[arg-type]
    total = _sum(terms)
    return total.reshape(x.shape[0], count, *total.shape[1:])


def _by_taps(
    x: Array,
    kernel: Array,
    strides: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    apart: tuple[int, ...],
    groups: int,
) -> Array:
    """Sum over the kernel's places of the part of the input that each meets, times its matrix."""
    rank = len(strides)
    padded = np.pad(x, ((0, 0), *edges, (0, 0)))
    counts = tuple(
        _outputs(padded.shape[1 + k], (kernel.shape[k] - 1) * apart[k] + 1, strides[k])
        for k in range(rank)
    )
    terms = []
    for place in itertools.product(*[range(n) for n in kernel.shape[:rank]]):
        part = padded[
            (
                slice(None),
                *[
                    slice(
                        place[k] * apart[k],
                        place[k] * apart[k] + (counts[k] - 1) * strides[k] + 1,
                        strides[k],
                    )
                    for k in range(rank)
                ],
            )
        ]
        terms.append(_tap(part, kernel[place], groups))
    total = _sum(terms)
    if groups > 1 and kernel.shape[rank] > 1:
        total = np.transpose(total, (1, 0, 2))
    return total.reshape(x.shape[0], *counts, kernel.shape[-1])


def _tap(part: Array, matrix: Array, groups: int) -> Array:
    """A place's share: [N, space..., C], [C / groups, O] -> [N, space..., O]."""
    if groups == 1:
        return part @ matrix
    inputs, outputs = matrix.shape[0], matrix.shape[1] // groups
    if inputs == 1 and outputs == 1:
        return part * matrix[0]  # type: ignore[no-any-return]
    if inputs == 1:
        return part[..., None] * matrix.reshape(groups, outputs)
    rows = np.transpose(part.reshape(-1, groups, inputs), (1, 0, 2))
    product: Array = rows @ np.transpose(matrix.reshape(inputs, groups, outputs), (1, 0, 2))
    return product


def _outputs(size: int, window: int, stride: int) -> int:
    """Places of a window along a padded axis."""
    if window > size:
        raise ValueError(f"a kernel that spans {window} does not fit {size} padded elements")
    return (size - window) // stride + 1


def each(count: int) -> list[int]:
    """0..count-1 as a list: a compiled loop over it is unrolled."""
    return list(range(count))


def _sum(terms: Sequence[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


# Transposed convolution


def _transposed(
    name: str,
    rank: int,
    x: Array,
    kernel: Array,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    output_padding: Sizes,
) -> Array:
    _check_ranks(name, rank, x, kernel)
    if x.shape[-1] != kernel.shape[-2] or x.shape[-1] % groups:
        raise ValueError(
            f"{name}: the {_WHAT[rank]} have {x.shape[-1]} channels in {groups} groups and the "
            f"kernel takes {kernel.shape[-2]} (shapes {list(x.shape)} and {list(kernel.shape)})"
        )
    strides = sizes_of(name, stride, rank, "stride")
    apart = sizes_of(name, dilation, rank, "dilation")
    more = sizes_of(name, output_padding, rank, "output_padding", 0)
    windows = tuple((kernel.shape[k] - 1) * apart[k] + 1 for k in range(rank))
    if padding == "SAME":
        spare = tuple(windows[k] - strides[k] for k in range(rank))
        edges = tuple((max(s, 0) // 2, max(s, 0) - max(s, 0) // 2) for s in spare)
        more = tuple(more[k] + max(-spare[k], 0) for k in range(rank))
    else:
        edges = edges_of(name, padding, x.shape[1:-1], windows, strides)
    sizes = tuple(
        (x.shape[1 + k] - 1) * strides[k] + windows[k] - sum(edges[k]) + more[k]
        for k in range(rank)
    )
    beyond = [more[k] > 0 and more[k] >= max(strides[k], apart[k]) for k in range(rank)]
    if any(n < 1 for n in sizes) or any(beyond):
        raise ValueError(
            f"{name}: padding {padding!r} and output_padding {output_padding!r} leave a result of "
            f"{list(sizes)}, or add as much as a stride ({list(strides)})"
        )
    if groups == 1 and rank < 3 and all(d == 1 for d in apart):
        turned = np.swapaxes(kernel, -1, -2)
        if rank == 2:
            return conv_input_grad(x, turned, strides, edges, sizes)  # type: ignore[arg-type]
        flat = conv_input_grad(
            x[:, None], turned[None], (1, strides[0]), ((0, 0), edges[0]), (1, sizes[0])
        )
        return flat[:, 0]
    return _spread(x, kernel, strides, edges, apart, groups, windows, sizes)


def _spread(
    x: Array,
    kernel: Array,
    strides: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    apart: tuple[int, ...],
    groups: int,
    windows: tuple[int, ...],
    sizes: tuple[int, ...],
) -> Array:
    """The input with the strides' zeros between neighbours, under the kernel turned about."""
    rank = len(strides)
    for k in each(rank):
        x = _with_zeros_between(x, 1 + k, strides[k])
    # The result's first element meets the kernel's last one `before` elements into the input.
    before = tuple(windows[k] - 1 - edges[k][0] for k in range(rank))
    after = tuple(sizes[k] + windows[k] - 1 - before[k] - x.shape[1 + k] for k in range(rank))
    x = np.pad(x, ((0, 0), *[(max(before[k], 0), max(after[k], 0)) for k in range(rank)], (0, 0)))
    cut = [slice(max(-before[k], 0), x.shape[1 + k] - max(-after[k], 0)) for k in range(rank)]
    x = x[(slice(None), *cut)]
    turned = np.flip(kernel, tuple(range(rank)))
    if groups > 1:  # [space, C, O / groups] -> [space, C / groups, O]
        inputs, outputs = kernel.shape[-2] // groups, kernel.shape[-1]
        parted = turned.reshape(*kernel.shape[:rank], groups, inputs, outputs)
        turned = np.moveaxis(parted, rank, rank + 1)
        turned = turned.reshape(*kernel.shape[:rank], inputs, groups * outputs)
    name = "transposed convolution"
    return _convolve(name, rank, x, turned, 1, "VALID", apart, groups)


def _with_zeros_between(x: Array, axis: int, stride: int) -> Array:
    if stride == 1:
        return x
    wide = np.expand_dims(x, axis + 1)
    widths = [(0, 0)] * wide.ndim
    wide = np.pad(wide, (*widths[: axis + 1], (0, stride - 1), *widths[axis + 2 :]))
    size = x.shape[axis]
    flat = wide.reshape(*x.shape[:axis], size * stride, *x.shape[axis + 1 :])
    whole = (slice(None),) * axis
    return flat[(*whole, slice(0, (size - 1) * stride + 1))]
