"""Layers: frozen dataclasses of arrays. A layer is its parameters; calling it is a pure function.

Written in the NumPy vocabulary, so each runs as plain Python and compiles. Images are [N, H, W, C],
sequences [N, T].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import functional, random
from ..api import module
from ..ir import Tensor

#: Added to a variance before its square root, as in the batch normalisation paper's experiments.
VARIANCE_FLOOR = 1e-5


def glorot_uniform(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape`, uniform in +-sqrt(6 / (inputs + outputs)) (Glorot, Bengio 2010, eq. 16)."""
    limit = float(np.sqrt(6.0 / (inputs + outputs)))
    return (random.uniform(key, shape) * 2.0 - 1.0) * limit


@module
class Dense:
    """y = x W + b."""

    weight: Tensor  # f32[inputs, outputs]
    bias: Tensor  # f32[outputs]

    @staticmethod
    def init(key: Tensor, inputs: int, outputs: int) -> Dense:
        weight = glorot_uniform(key, (inputs, outputs), inputs, outputs)
        return Dense(weight, np.zeros(outputs, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        return x @ self.weight + self.bias


@module
class Conv:
    """Two-dimensional cross-correlation over [N, H, W, C], with a bias."""

    kernel: Tensor  # f32[height, width, inputs, outputs]
    bias: Tensor  # f32[outputs]

    @staticmethod
    def init(key: Tensor, size: int, inputs: int, outputs: int) -> Conv:
        area = size * size
        kernel = glorot_uniform(key, (size, size, inputs, outputs), area * inputs, area * outputs)
        return Conv(kernel, np.zeros(outputs, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, H, W, inputs] -> f32[N, H, W, outputs]; zeros around the image keep its size."""
        return functional.conv2d(x, self.kernel) + self.bias


@module
class BatchNorm:
    """Batch normalisation (Ioffe and Szegedy 2015) by the statistics of the batch itself, in
    training and after.

    Meta-learning normalises so (Finn et al. 2017): a task brings its own statistics and nothing is
    carried between devices. Rows of weight zero, which only fill up a last partial batch, count for
    nothing.
    """

    scale: Tensor  # f32[channels]
    shift: Tensor  # f32[channels]

    @staticmethod
    def init(channels: int) -> BatchNorm:
        return BatchNorm(np.ones(channels, np.float32), np.zeros(channels, np.float32))

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """f32[N, H, W, channels] normalised over N, H, W; `weight` is f32[N], one or zero a row."""
        rows = weight[:, None, None, None]
        count = np.sum(weight) * (x.shape[1] * x.shape[2])
        mean = np.sum(x * rows, axis=(0, 1, 2)) / count
        centred = x - mean
        # Two passes: E[x^2] - E[x]^2 loses the variance of data that lies far from zero.
        variance = np.sum(centred * centred * rows, axis=(0, 1, 2)) / count
        return centred * (self.scale / np.sqrt(variance + VARIANCE_FLOOR)) + self.shift


@module
class Embedding:
    """A table of vectors, one a symbol."""

    table: Tensor  # f32[symbols, width]

    @staticmethod
    def init(key: Tensor, symbols: int, width: int) -> Embedding:
        return Embedding(random.normal(key, (symbols, width)))

    def __call__(self, symbols: Tensor) -> Tensor:
        """Integers [...] below `symbols` -> f32[..., width]."""
        return self.table[symbols]


@module
class LstmCell:
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates).

    The gates lie side by side in the order input, forget, cell, output.
    """

    weight: Tensor  # f32[inputs, 4 * width]
    recurrent: Tensor  # f32[width, 4 * width]
    bias: Tensor  # f32[4 * width]

    @staticmethod
    def init(key: Tensor, inputs: int, width: int) -> LstmCell:
        keys = random.split(key, 2)
        weight = glorot_uniform(keys[0], (inputs, 4 * width), inputs, width)
        recurrent = glorot_uniform(keys[1], (width, 4 * width), width, width)
        # A forget gate that starts open lets gradients through from the first step (Jozefowicz et
        # al. 2015).
        open_forget = np.concatenate(
            [
                np.zeros(width, np.float32),
                np.ones(width, np.float32),
                np.zeros(2 * width, np.float32),
            ]
        )
        return LstmCell(weight, recurrent, open_forget)

    def project(self, x: Tensor) -> Tensor:
        """The inputs' share of the gates, for a whole sequence at once: f32[..., inputs] ->
        f32[..., 4 * width].
        """
        return x @ self.weight + self.bias

    def __call__(self, projected: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(f32[N, 4 * width], f32[N, width], f32[N, width]) -> the next hidden and cell state."""
        width = self.recurrent.shape[0]
        gates = projected + hidden @ self.recurrent
        admit = functional.sigmoid(gates[:, :width])
        forget = functional.sigmoid(gates[:, width : 2 * width])
        candidate = np.tanh(gates[:, 2 * width : 3 * width])
        emit = functional.sigmoid(gates[:, 3 * width :])
        cell = forget * cell + admit * candidate
        return emit * np.tanh(cell), cell


__all__ = ["BatchNorm", "Conv", "Dense", "Embedding", "LstmCell", "glorot_uniform"]
