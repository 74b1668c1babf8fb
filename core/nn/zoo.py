"""The models of the scenarios and the benchmarks, each from the paper that made it a yardstick.

A model is called as `model(x, weight)`: `x` one batch, `weight` f32[N], one for a row that counts
and zero for one that only fills up a last partial batch. It gives logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import functional, random
from ..api import module
from ..ir import Tensor
from .layers import BatchNorm, Conv, Dense, Embedding, LstmCell


@module
class Mlp:
    """Dense layers with relu between; with hidden sizes (200, 200) the 2NN of McMahan et al. 2017,
    section 3.
    """

    layers: tuple[Dense, ...]

    @staticmethod
    def init(key: Tensor, inputs: int, hidden: Sequence[int], outputs: int) -> Mlp:
        sizes = (inputs, *hidden, outputs)
        keys = random.split(key, len(sizes) - 1)
        return Mlp(
            tuple(Dense.init(keys[i], sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1))
        )

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """f32[N, ...] -> f32[N, outputs]; what a row holds is read as one flat vector."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        return self.layers[-1](x)


@module
class FedAvgCnn:
    """The CNN of McMahan et al. 2017, section 3: two 5x5 convolutions (32, 64), each pooled 2x2,
    and 512 units.

    For 28x28 images and ten classes it has 1,663,370 parameters.
    """

    first: Conv
    second: Conv
    hidden: Dense
    head: Dense

    @staticmethod
    def init(key: Tensor, height: int, width: int, channels: int, outputs: int) -> FedAvgCnn:
        keys = random.split(key, 4)
        flat = (height // 4) * (width // 4) * 64
        return FedAvgCnn(
            Conv.init(keys[0], 5, channels, 32),
            Conv.init(keys[1], 5, 32, 64),
            Dense.init(keys[2], flat, 512),
            Dense.init(keys[3], 512, outputs),
        )

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """f32[N, H, W, C] -> f32[N, outputs]."""
        x = functional.max_pool(functional.relu(self.first(x)), 2)
        x = functional.max_pool(functional.relu(self.second(x)), 2)
        x = functional.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.head(x)


@module
class ConvBlock:
    """3x3 convolution, batch normalisation, relu, 2x2 max pooling."""

    conv: Conv
    norm: BatchNorm

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.max_pool(functional.relu(self.norm(self.conv(x), weight)), 2)


@module
class OmniglotNet:
    """Four blocks of 64 filters and a linear head: the few-shot network of Vinyals et al. 2016 and
    Finn et al. 2017.
    """

    blocks: tuple[ConvBlock, ...]
    head: Dense

    @staticmethod
    def init(key: Tensor, channels: int, filters: int, outputs: int) -> OmniglotNet:
        keys = random.split(key, 5)
        blocks = tuple(
            ConvBlock(
                Conv.init(keys[i], 3, channels if i == 0 else filters, filters),
                BatchNorm.init(filters),
            )
            for i in range(4)
        )
        return OmniglotNet(blocks, Dense.init(keys[4], filters, outputs))

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """f32[N, 28, 28, C] -> f32[N, outputs]; four halvings of 28 leave one pixel."""
        for block in self.blocks:
            x = block(x, weight)
        return self.head(x.reshape(x.shape[0], -1))


@module
class CharLstm:
    """Next character: embedding, two LSTM layers, a linear head (McMahan et al. 2017, section 3;
    LEAF).
    """

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

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Integers [N, T] -> logits f32[N, T, symbols], the t-th for the symbol that follows x[:,
        t].
        """
        outputs = self.embedding(np.transpose(x))
        for cell in self.cells:
            outputs = run_cell(cell, outputs)
        return np.transpose(self.head(outputs), (1, 0, 2))


def run_cell(cell: LstmCell, inputs: Tensor) -> Tensor:
    """One layer over a whole sequence: f32[T, N, inputs] -> f32[T, N, width], from a state of
    zeros.
    """
    steps, rows = inputs.shape[0], inputs.shape[1]
    width = cell.recurrent.shape[0]
    # All steps' input products at once: one large product instead of T small ones.
    projected = cell.project(inputs)
    hidden = np.zeros((rows, width), np.float32)
    state = np.zeros((rows, width), np.float32)
    outputs = np.zeros((steps, rows, width), np.float32)
    for t in range(steps):
        hidden, state = cell(projected[t], hidden, state)
        outputs = functional.dynamic_update(outputs, hidden[None], (t, 0, 0))
    return outputs
