"""Layers: frozen dataclasses of arrays. A layer is its parameters; calling it is a pure function.

Written in the NumPy vocabulary, so each runs as plain Python and compiles. Images are [N, H, W, C],
sequences [N, T]. `init` takes everything but sizes by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiler import ops, random
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.ops.convolution import Padding, Sizes
from ...compiler.tree import static_field
from .initialise import Weights, glorot_uniform
from .norms import BatchNorm


@module
class Dense:
    """y = x W + b, or x W with `biased=False`."""

    weight: Tensor
    """f32[inputs, outputs], or what multiplies as such a matrix does: `dl.QuantisedWeight`."""
    bias: Tensor | None
    """f32[outputs]."""

    @staticmethod
    def init(
        key: Tensor,
        inputs: int,
        outputs: int,
        weights: Weights = glorot_uniform,
        *,
        biased: bool = True,
    ) -> Dense:
        weight = weights(key, (inputs, outputs), inputs, outputs)
        return Dense(weight, np.zeros(outputs, np.float32) if biased else None)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        return _plus(x @ self.weight, self.bias)


@module
class Conv:
    """Cross-correlation over one to three axes, two where `rank` is not given.

    It has a bias unless `biased=False`, as before a normalisation, which would take it out again.
    """

    kernel: Tensor  # f32[space..., inputs / groups, outputs]
    bias: Tensor | None  # f32[outputs]
    stride: Sizes = static_field(default=1)
    padding: Padding = static_field(default="SAME")
    dilation: Sizes = static_field(default=1)
    groups: int = static_field(default=1)

    @staticmethod
    def init(
        key: Tensor,
        size: Sizes,
        inputs: int,
        outputs: int,
        *,
        rank: int = 2,
        stride: Sizes = 1,
        padding: Padding = "SAME",
        dilation: Sizes = 1,
        groups: int = 1,
        weights: Weights = glorot_uniform,
        biased: bool = True,
    ) -> Conv:
        sizes = (size,) * rank if isinstance(size, int) else tuple(size)
        area = _product(sizes)
        shape = (*sizes, inputs // groups, outputs)
        kernel = weights(key, shape, area * (inputs // groups), area * (outputs // groups))
        bias = np.zeros(outputs, np.float32) if biased else None
        return Conv(kernel, bias, stride, padding, dilation, groups)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, space..., inputs] -> f32[N, space..., outputs]; by default the size is kept."""
        options = self.stride, self.padding, self.dilation, self.groups
        if self.kernel.ndim == 3:
            return _plus(ops.conv1d(x, self.kernel, *options), self.bias)
        if self.kernel.ndim == 5:
            return _plus(ops.conv3d(x, self.kernel, *options), self.bias)
        return _plus(ops.conv2d(x, self.kernel, *options), self.bias)


@module
class ConvTranspose:
    """Transposed convolution over `rank` axes with a bias; a stride makes images larger."""

    kernel: Tensor  # f32[space..., inputs, outputs / groups]
    bias: Tensor  # f32[outputs]
    stride: Sizes = static_field(default=1)
    padding: Padding = static_field(default="SAME")
    dilation: Sizes = static_field(default=1)
    groups: int = static_field(default=1)
    output_padding: Sizes = static_field(default=0)

    @staticmethod
    def init(
        key: Tensor,
        size: Sizes,
        inputs: int,
        outputs: int,
        *,
        rank: int = 2,
        stride: Sizes = 1,
        padding: Padding = "SAME",
        dilation: Sizes = 1,
        groups: int = 1,
        output_padding: Sizes = 0,
        weights: Weights = glorot_uniform,
    ) -> ConvTranspose:
        sizes = (size,) * rank if isinstance(size, int) else tuple(size)
        area = _product(sizes)
        shape = (*sizes, inputs, outputs // groups)
        kernel = weights(key, shape, area * (inputs // groups), area * (outputs // groups))
        bias = np.zeros(outputs, np.float32)
        return ConvTranspose(kernel, bias, stride, padding, dilation, groups, output_padding)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, space..., inputs] -> f32[N, space * stride..., outputs]."""
        options = self.stride, self.padding, self.dilation, self.groups, self.output_padding
        if self.kernel.ndim == 3:
            return ops.conv_transpose1d(x, self.kernel, *options) + self.bias
        if self.kernel.ndim == 5:
            return ops.conv_transpose3d(x, self.kernel, *options) + self.bias
        return ops.conv_transpose2d(x, self.kernel, *options) + self.bias


@module
class DepthwiseConv:
    """A kernel for each channel of an image, with a bias (Chollet 2017)."""

    kernel: Tensor  # f32[height, width, channels, multiplier]
    bias: Tensor | None  # f32[channels * multiplier]
    stride: Sizes = static_field(default=1)
    padding: Padding = static_field(default="SAME")
    dilation: Sizes = static_field(default=1)

    @staticmethod
    def init(
        key: Tensor,
        size: int,
        channels: int,
        multiplier: int = 1,
        *,
        stride: Sizes = 1,
        padding: Padding = "SAME",
        dilation: Sizes = 1,
        weights: Weights = glorot_uniform,
        biased: bool = True,
    ) -> DepthwiseConv:
        area = size * size
        kernel = weights(key, (size, size, channels, multiplier), area, area * multiplier)
        bias = np.zeros(channels * multiplier, np.float32) if biased else None
        return DepthwiseConv(kernel, bias, stride, padding, dilation)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, H, W, channels] -> f32[N, OH, OW, channels * multiplier]."""
        options = self.stride, self.padding, self.dilation
        return _plus(ops.depthwise_conv2d(x, self.kernel, *options), self.bias)


@module
class Embedding:
    """A table of vectors, one a symbol."""

    table: Tensor
    """f32[symbols, width], or such a table in few bits: `dl.quantise_weight(w.T).T`."""

    @staticmethod
    def init(key: Tensor, symbols: int, width: int) -> Embedding:
        return Embedding(random.normal(key, (symbols, width)))

    def __call__(self, symbols: Tensor) -> Tensor:
        """Integers [...] below `symbols` -> f32[..., width]."""
        return self.table[symbols]


@module
class Dropout:
    """Elements zero with probability `rate`, in training; without a key nothing happens."""

    rate: float = static_field(default=0.5)

    def __call__(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """f32[...], u32[2] or None -> f32[...]."""
        return x if key is None else ops.dropout(x, self.rate, key)


# What holds no parameters, for `Sequential`


@module
class Function:
    """Any function of one array, such as `delian.ops.relu`, as a layer."""

    function: Any = static_field()

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


@module
class Flatten:
    """All axes but the first as one."""

    def __call__(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, the product]."""
        return x.reshape(x.shape[0], -1)


@module
class MaxPool:
    """`delian.ops.max_pool` as a layer."""

    size: Sizes = static_field(default=2)
    stride: Sizes | None = static_field(default=None)
    padding: Padding = static_field(default="VALID")

    def __call__(self, x: Tensor) -> Tensor:
        """[N, space..., C] -> [N, outputs..., C]."""
        return ops.max_pool(x, self.size, self.stride, self.padding)


@module
class AvgPool:
    """`delian.ops.avg_pool` as a layer."""

    size: Sizes = static_field(default=2)
    stride: Sizes | None = static_field(default=None)
    padding: Padding = static_field(default="VALID")

    def __call__(self, x: Tensor) -> Tensor:
        """[N, space..., C] -> [N, outputs..., C]."""
        return ops.avg_pool(x, self.size, self.stride, self.padding)


@module
class GlobalAvgPool:
    """`delian.ops.global_avg_pool` as a layer."""

    def __call__(self, x: Tensor) -> Tensor:
        """[N, space..., C] -> [N, C]."""
        return ops.global_avg_pool(x)


@module
class Sequential:
    """Layers in sequence. weight: f32[N], zero for rows to ignore, for normalisations."""

    layers: tuple[Any, ...]

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = _called(layer, x, weight)
        return x


@module
class Residual:
    """shortcut(x) + body(x), or x + body(x) (He et al. 2016)."""

    body: Any
    shortcut: Any = None

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        across = x if self.shortcut is None else _called(self.shortcut, x, weight)
        return across + _called(self.body, x, weight)


def _called(layer: Any, x: Tensor, weight: Tensor | None) -> Tensor:
    if isinstance(layer, BatchNorm | Sequential | Residual):
        return layer(x, weight)
    return layer(x)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product = product * size
    return product
