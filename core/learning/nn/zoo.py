"""The models of the scenarios and the benchmarks, each from the paper that made it a yardstick.

A model is called as `model(x, weight)`: `x` one batch, `weight` f32[N], one for a row that counts
and zero for one that only fills up a last partial batch. It gives logits. The first models are
classes, as the benchmarks know them; the others are functions that put layers together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...compiler import ops, random
from ...compiler.api import module
from ...compiler.ir import Tensor
from .initialise import he_normal
from .layers import (
    AvgPool,
    Conv,
    Dense,
    DepthwiseConv,
    Embedding,
    Flatten,
    Function,
    GlobalAvgPool,
    Residual,
    Sequential,
)
from .norms import BatchNorm, GroupNorm, LayerNorm
from .recurrent import LstmCell, Recurrent, run
from .transformers import TransformerBlock, sinusoids


@module
class Mlp:
    """Dense layers with relu; (200, 200) is the 2NN of McMahan et al. 2017, section 3."""

    layers: tuple[Dense, ...]

    @staticmethod
    def init(key: Tensor, inputs: int, hidden: Sequence[int], outputs: int) -> Mlp:
        sizes = (inputs, *hidden, outputs)
        keys = random.split(key, len(sizes) - 1)
        return Mlp(
            tuple(Dense.init(keys[i], sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1))
        )

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """f32[N, ...] -> f32[N, outputs]; what a row holds is read as one flat vector."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = ops.relu(layer(x))
        return self.layers[-1](x)


@module
class NormalisedMlp:
    """Dense layers with batch normalisation (Finn et al. 2017, section 5.2)."""

    norms: tuple[BatchNorm, ...]  # first: the last leaves are the head's, as everywhere
    layers: tuple[Dense, ...]

    @staticmethod
    def init(key: Tensor, inputs: int, hidden: Sequence[int], outputs: int) -> NormalisedMlp:
        norms = tuple(BatchNorm.init(size) for size in hidden)
        return NormalisedMlp(norms, Mlp.init(key, inputs, hidden, outputs).layers)

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """f32[N, ...] -> f32[N, outputs]; what a row holds is read as one flat vector."""
        x = x.reshape(x.shape[0], -1)
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            x = ops.relu(norm(layer(x), weight))
        return self.layers[-1](x)


@module
class FedAvgCnn:
    """McMahan et al. 2017, section 3: 5x5 convolutions (32, 64), pooled 2x2, 512 units."""

    first: Conv
    second: Conv
    hidden: Dense
    head: Dense

    @staticmethod
    def init(
        key: Tensor, height: int, width: int, channels: int, outputs: int, hidden: int = 512
    ) -> FedAvgCnn:
        keys = random.split(key, 4)
        flat = (height // 4) * (width // 4) * 64
        return FedAvgCnn(
            Conv.init(keys[0], 5, channels, 32),
            Conv.init(keys[1], 5, 32, 64),
            Dense.init(keys[2], flat, hidden),
            Dense.init(keys[3], hidden, outputs),
        )

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """f32[N, H, W, C] -> f32[N, outputs]."""
        x = ops.max_pool(ops.relu(self.first(x)), 2)
        x = ops.max_pool(ops.relu(self.second(x)), 2)
        x = ops.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.head(x)


@module
class ConvBlock:
    """3x3 convolution, batch normalisation, relu; 2x2 max pooling unless it has a stride."""

    conv: Conv
    norm: BatchNorm

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        x = ops.relu(self.norm(self.conv(x), weight))
        return ops.max_pool(x, 2) if self.conv.stride == 1 else x


@module
class OmniglotNet:
    """Four blocks of 64 filters and a linear head: the few-shot network of Vinyals et al. 2016.

    Strided, its convolutions halve the image and nothing is pooled but what is left at the end, as
    Finn et al. 2017 have it for Omniglot: a quarter of the work.
    """

    blocks: tuple[ConvBlock, ...]
    head: Dense

    @staticmethod
    def init(
        key: Tensor, channels: int, filters: int, outputs: int, *, strided: bool = False
    ) -> OmniglotNet:
        keys, stride = random.split(key, 5), 2 if strided else 1
        blocks = tuple(
            ConvBlock(
                Conv.init(keys[i], 3, channels if i == 0 else filters, filters, stride=stride),
                BatchNorm.init(filters),
            )
            for i in range(4)
        )
        return OmniglotNet(blocks, Dense.init(keys[4], filters, outputs))

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """f32[N, 28, 28, C] -> f32[N, outputs]."""
        for block in self.blocks:
            x = block(x, weight)
        return self.head(ops.global_avg_pool(x))


@module
class CharLstm:
    """Next character: embedding, two LSTM layers, a linear head (McMahan et al. 2017; LEAF)."""

    embedding: Embedding
    cells: tuple[LstmCell, ...]
    head: Dense

    @staticmethod
    def init(key: Tensor, symbols: int, embedding: int, width: int, layers: int) -> CharLstm:
        keys = random.split(key, layers + 2)
        cells = tuple(
            LstmCell.init(keys[i], embedding if i == 0 else width, width) for i in range(layers)
        )
        return CharLstm(
            Embedding.init(keys[layers], symbols, embedding),
            cells,
            Dense.init(keys[layers + 1], width, symbols),
        )

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Integers [N, T] -> logits f32[N, T, symbols], the t-th for x's symbol t + 1."""
        outputs = self.embedding(np.transpose(x))
        for cell in self.cells:
            outputs = run(cell, outputs, None, False)
        return np.transpose(self.head(outputs), (1, 0, 2))


# Images


def lenet(key: Tensor, shape: tuple[int, int, int], classes: int) -> Sequential:
    """LeNet-5 (LeCun et al. 1998), with tanh throughout and means for pooling.

    For images of this shape (height, width, channels). 28x28x1 and ten classes: 61,706 parameters.
    """
    height, width, channels = shape
    flat = (height // 2 - 4) // 2 * ((width // 2 - 4) // 2) * 16
    keys = random.split(key, 5)
    tanh = Function(np.tanh)
    return Sequential(
        (
            *(Conv.init(keys[0], 5, channels, 6), tanh, AvgPool(2)),
            *(Conv.init(keys[1], 5, 6, 16, padding="VALID"), tanh, AvgPool(2), Flatten()),
            *(Dense.init(keys[2], flat, 120), tanh),
            *(Dense.init(keys[3], 120, 84), tanh),
            Dense.init(keys[4], 84, classes),
        )
    )


def femnist_cnn(key: Tensor, classes: int = 62) -> FedAvgCnn:
    """The CNN of LEAF for FEMNIST (Caldas et al. 2018): McMahan's with 2,048 units, for 28x28x1."""
    return FedAvgCnn.init(key, 28, 28, 1, classes, hidden=2048)


#: Channels of a group; networks here have multiples of it.
_GROUP = 8


def _norm(kind: str, channels: int) -> Any:
    if kind not in ("group", "batch"):
        raise ValueError(f'the normalisation is "group" or "batch", not {kind!r}')
    if kind == "batch":
        return BatchNorm.init(channels)
    return GroupNorm.init(channels, channels // math.gcd(channels, _GROUP))


def _conv_norm(
    key: Tensor, size: int, inputs: int, outputs: int, norm: str, stride: int = 1
) -> tuple[Any, Any]:
    conv = Conv.init(key, size, inputs, outputs, stride=stride, weights=he_normal, biased=False)
    return conv, _norm(norm, outputs)


def resnet(
    key: Tensor,
    shape: tuple[int, int, int],
    classes: int,
    depth: int = 20,
    norm: str = "group",
) -> Sequential:
    """The residual network for small images (He et al. 2016, section 4.2).

    Three stages of 16, 32 and 64 channels with (depth - 2) / 6 blocks each, so a depth of 8, 14,
    20...

    Shortcuts that change the size are 1x1 convolutions. `norm` is "group", which suits devices
    whose data differ, or "batch", as in the paper.
    """
    blocks, left = divmod(depth - 2, 6)
    if left or blocks < 1:
        raise ValueError(f"a residual network's depth is 8, 14, 20 and so on, not {depth}")
    relu = Function(ops.relu)
    keys = random.split(key, 9 * blocks + 2)
    layers: list[Any] = [*_conv_norm(keys[0], 3, shape[2], 16, norm), relu]
    channels = 16
    for i in range(3 * blocks):
        outputs = 16 * 2 ** (i // blocks)
        stride = 1 if outputs == channels else 2
        k = 3 * i + 1
        body = Sequential(
            (
                *(*_conv_norm(keys[k], 3, channels, outputs, norm, stride), relu),
                *_conv_norm(keys[k + 1], 3, outputs, outputs, norm),
            )
        )
        across = None
        if outputs != channels:
            across = Sequential(_conv_norm(keys[k + 2], 1, channels, outputs, norm, stride))
        layers = [*layers, Residual(body, across), relu]
        channels = outputs
    head = Dense.init(keys[9 * blocks + 1], channels, classes)
    return Sequential((*layers, GlobalAvgPool(), head))


#: Sandler et al. 2018, table 2: expansion, channels, blocks, stride of the first.
_MOBILE_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
_MOBILE_STEM, _MOBILE_LAST = 32, 1280


def mobilenet_v2(
    key: Tensor,
    shape: tuple[int, int, int],
    classes: int,
    width: float = 0.35,
    norm: str = "group",
) -> Sequential:
    """MobileNetV2 (Sandler et al. 2018) for images of five halvings, such as 96x96x3."""
    relu6 = Function(ops.relu6)
    keys = random.split(key, 3 * sum(stage[2] for stage in _MOBILE_STAGES) + 3)
    channels = _in_groups(_MOBILE_STEM * width)
    layers: list[Any] = [*_conv_norm(keys[0], 3, shape[2], channels, norm, 2), relu6]
    k = 1
    for expansion, base, blocks, first in _MOBILE_STAGES:
        outputs = _in_groups(base * width)
        for block in range(blocks):
            stride = first if block == 0 else 1
            part = _inverted(keys[k : k + 3], channels, outputs, expansion, stride, norm)
            joined = stride == 1 and channels == outputs
            layers = [*layers, Residual(part) if joined else part]
            channels, k = outputs, k + 3
    last = max(_MOBILE_LAST, _in_groups(_MOBILE_LAST * width))
    tail = (*_conv_norm(keys[k], 1, channels, last, norm), relu6, GlobalAvgPool())
    return Sequential((*layers, *tail, Dense.init(keys[k + 1], last, classes)))


def _inverted(
    keys: Tensor, inputs: int, outputs: int, expansion: int, stride: int, norm: str
) -> Sequential:
    """Widen, look around in each channel, narrow (Sandler et al. 2018, table 1)."""
    relu6, inner = Function(ops.relu6), inputs * expansion
    wide = () if expansion == 1 else (*_conv_norm(keys[0], 1, inputs, inner, norm), relu6)
    around = DepthwiseConv.init(keys[1], 3, inner, stride=stride, weights=he_normal, biased=False)
    narrow = _conv_norm(keys[2], 1, inner, outputs, norm)
    return Sequential((*wide, around, _norm(norm, inner), relu6, *narrow))


def _in_groups(channels: float) -> int:
    """The nearest multiple of eight, but not less than nine tenths, as the paper's code rounds."""
    near = max(_GROUP, int(channels + _GROUP / 2) // _GROUP * _GROUP)
    return near + _GROUP if near < 0.9 * channels else near


# Sequences


@module
class SequenceModel:
    """Embedding, recurrent layers, a linear head: logits at every position."""

    embedding: Embedding
    layers: tuple[Recurrent, ...]
    head: Dense

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Integers [N, T] -> f32[N, T, outputs]."""
        out = self.embedding(x)
        for layer in self.layers:
            out = layer(out)
        return self.head(out)


def tagger(
    key: Tensor,
    symbols: int,
    tags: int,
    cell: Any = LstmCell,
    embedding: int = 64,
    width: int = 128,
) -> SequenceModel:
    """A tag a symbol, by one layer that reads both ways (Graves and Schmidhuber 2005)."""
    keys = random.split(key, 3)
    return SequenceModel(
        Embedding.init(keys[0], symbols, embedding),
        (Recurrent.init(cell, keys[1], embedding, width, bidirectional=True),),
        Dense.init(keys[2], 2 * width, tags),
    )


def char_model(
    key: Tensor,
    symbols: int,
    cell: Any = LstmCell,
    embedding: int = 8,
    width: int = 256,
    layers: int = 2,
) -> SequenceModel:
    """The next symbol at every position, from what came before (McMahan et al. 2017, section 3)."""
    keys = random.split(key, layers + 2)
    stack = tuple(
        Recurrent.init(cell, keys[i], embedding if i == 0 else width, width) for i in range(layers)
    )
    return SequenceModel(
        Embedding.init(keys[layers], symbols, embedding),
        stack,
        Dense.init(keys[layers + 1], width, symbols),
    )


@module
class Transformer:
    """Embedding, positions as sines, blocks, a last normalisation, a linear head."""

    embedding: Embedding
    blocks: tuple[TransformerBlock, ...]
    norm: LayerNorm
    head: Dense

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Integers [N, T] -> f32[N, T, outputs]."""
        out = self.embedding(x)
        out = out + sinusoids(x.shape[1], out.shape[-1])
        for block in self.blocks:
            out = block(out)
        return self.head(self.norm(out))


def transformer(
    key: Tensor,
    symbols: int,
    outputs: int | None = None,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    causal: bool = True,
) -> Transformer:
    """A transformer of `depth` blocks (Vaswani et al. 2017).

    Causal, for the next symbol, or an encoder with `outputs` numbers a position (None: as many as
    symbols).
    """
    keys = random.split(key, depth + 2)
    blocks = tuple(
        TransformerBlock.init(keys[i], width, heads, causal=causal) for i in range(depth)
    )
    return Transformer(
        Embedding.init(keys[depth], symbols, width),
        blocks,
        LayerNorm.init(width),
        Dense.init(keys[depth + 1], width, symbols if outputs is None else outputs),
    )
