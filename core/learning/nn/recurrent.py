"""Recurrent layers: a cell is one step, a layer runs it along sequences.

A cell has `project(x)`, the inputs' share of its gates for a whole sequence at once, `start(rows)`,
its state of zeros, and `step(projected, state) -> state`, where the state's first leaf is what it
gives. The loop over time is one loop of the program, however long the sequence is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiler import ops, random, tree
from ...compiler.api import module
from ...compiler.ir import Tensor
from .initialise import glorot_uniform


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
        """The inputs' share of a sequence's gates: f32[..., inputs] -> f32[..., 4 * width]."""
        return x @ self.weight + self.bias

    def __call__(self, projected: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(f32[N, 4 * width], f32[N, width], f32[N, width]) -> the next hidden and cell state."""
        width = self.recurrent.shape[0]
        gates = projected + hidden @ self.recurrent
        admit = ops.sigmoid(gates[:, :width])
        forget = ops.sigmoid(gates[:, width : 2 * width])
        candidate = np.tanh(gates[:, 2 * width : 3 * width])
        emit = ops.sigmoid(gates[:, 3 * width :])
        cell = forget * cell + admit * candidate
        return emit * np.tanh(cell), cell

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        zeros = np.zeros((rows, self.recurrent.shape[0]), self.recurrent.dtype)
        return zeros, zeros

    def step(self, projected: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self(projected, *state)


@module
class GruCell:
    """A step of a GRU (Cho et al. 2014), the reset gate after the recurrent product."""

    weight: Tensor  # f32[inputs, 3 * width]
    recurrent: Tensor  # f32[width, 3 * width]
    bias: Tensor  # f32[3 * width]
    candidate_bias: Tensor  # f32[width], inside the reset gate's reach

    @staticmethod
    def init(key: Tensor, inputs: int, width: int) -> GruCell:
        keys = random.split(key, 2)
        weight = glorot_uniform(keys[0], (inputs, 3 * width), inputs, width)
        recurrent = glorot_uniform(keys[1], (width, 3 * width), width, width)
        bias, inner = np.zeros(3 * width, np.float32), np.zeros(width, np.float32)
        return GruCell(weight, recurrent, bias, inner)

    def project(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., 3 * width]."""
        return x @ self.weight + self.bias

    def start(self, rows: int) -> tuple[Tensor]:
        return (np.zeros((rows, self.recurrent.shape[0]), self.recurrent.dtype),)

    def step(self, projected: Tensor, state: tuple[Tensor]) -> tuple[Tensor]:
        """f32[N, 3 * width], (f32[N, width],) -> (the next,)."""
        (hidden,) = state
        width = self.recurrent.shape[0]
        gates = hidden @ self.recurrent
        reset = ops.sigmoid(projected[:, :width] + gates[:, :width])
        update = ops.sigmoid(projected[:, width : 2 * width] + gates[:, width : 2 * width])
        inner = gates[:, 2 * width :] + self.candidate_bias
        candidate = np.tanh(projected[:, 2 * width :] + reset * inner)
        return ((1.0 - update) * candidate + update * hidden,)


@module
class RnnCell:
    """One step of a plain recurrent network (Elman 1990): tanh(x W + h U + b)."""

    weight: Tensor  # f32[inputs, width]
    recurrent: Tensor  # f32[width, width]
    bias: Tensor  # f32[width]

    @staticmethod
    def init(key: Tensor, inputs: int, width: int) -> RnnCell:
        keys = random.split(key, 2)
        return RnnCell(
            glorot_uniform(keys[0], (inputs, width), inputs, width),
            glorot_uniform(keys[1], (width, width), width, width),
            np.zeros(width, np.float32),
        )

    def project(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., width]."""
        return x @ self.weight + self.bias

    def start(self, rows: int) -> tuple[Tensor]:
        return (np.zeros((rows, self.recurrent.shape[0]), self.recurrent.dtype),)

    def step(self, projected: Tensor, state: tuple[Tensor]) -> tuple[Tensor]:
        """f32[N, width], (f32[N, width],) -> (the next,)."""
        return (np.tanh(projected + state[0] @ self.recurrent),)


@module
class Recurrent:
    """A cell along sequences; with a second cell, which runs from the end, along both ways.

    >>> from delian import nn, random
    >>> layer = nn.Recurrent.init(nn.GruCell, random.key(0), 3, 8, bidirectional=True)
    """

    forwards: Any
    backwards: Any = None

    @staticmethod
    def init(
        cell: Any, key: Tensor, inputs: int, width: int, bidirectional: bool = False
    ) -> Recurrent:
        """`cell` is LstmCell, GruCell or RnnCell; a bidirectional layer gives 2 * width numbers."""
        if not bidirectional:
            return Recurrent(cell.init(key, inputs, width))
        keys = random.split(key, 2)
        return Recurrent(cell.init(keys[0], inputs, width), cell.init(keys[1], inputs, width))

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """f32[N, T, inputs] -> f32[N, T, width], from a state of zeros.

        With `lengths`, integers [N], row n ends after lengths[n] steps: what follows gives zeros
        and is not looked at, backwards either.
        """
        steps = np.transpose(x, (1, 0, 2))
        out = run(self.forwards, steps, lengths, False)
        if self.backwards is not None:
            out = np.concatenate([out, run(self.backwards, steps, lengths, True)], axis=-1)
        return np.transpose(out, (1, 0, 2))


def run(cell: Any, inputs: Tensor, lengths: Tensor | None, backwards: bool) -> Tensor:
    """A cell over a whole sequence: f32[T, N, inputs] -> f32[T, N, width]."""
    steps, rows = inputs.shape[0], inputs.shape[1]
    # All steps' input products at once: one large product instead of T small ones.
    projected = cell.project(inputs)
    state = cell.start(rows)
    outputs = np.zeros((steps, rows, cell.recurrent.shape[0]), cell.recurrent.dtype)
    for k in range(steps):
        t = steps - 1 - k if backwards else k
        following = cell.step(projected[t], state)
        given = following[0]
        if lengths is not None:
            counts = (t < lengths)[:, None]
            following = tree.map(
                lambda new, old, counts=counts: np.where(counts, new, old), following, state
            )
            given = np.where(counts, given, 0)
        state = following
        outputs = ops.dynamic_update(outputs, given[None], (t, 0, 0))
    return outputs
