"""ATen's recurrent networks, whole: one loop of the program a layer and direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler import ops, random
from ....compiler.ir import Tensor
from .aten_row import Row


def lstm(
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    draw: Tensor = None,
    stored: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """[T, N, inputs] (or [N, T, inputs]) -> the outputs, the last hidden and cell states.

    The gates lie in the order input, forget, cell, output. With a projection the hidden state has
    its width. stored: weights are [inputs, outputs].
    """
    projected = len(params) == num_layers * (2 if bidirectional else 1) * (5 if has_biases else 3)
    settings = has_biases, projected, num_layers, bidirectional, batch_first, stored
    drop = dropout if train else 0.0
    y, last = _layers(_lstm_step, x, (hx[0], hx[1]), params, settings, drop, draw)
    return y, last[0], last[1]


def gru(
    x: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    draw: Tensor = None,
    stored: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gates lie in the order reset, update, new."""
    settings = has_biases, False, num_layers, bidirectional, batch_first, stored
    drop = dropout if train else 0.0
    y, last = _layers(_gru_step, x, (hx,), params, settings, drop, draw)
    return y, last[0]


def rnn_tanh(
    x: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    draw: Tensor = None,
    stored: bool = False,
) -> tuple[Tensor, Tensor]:
    settings = has_biases, False, num_layers, bidirectional, batch_first, stored
    drop = dropout if train else 0.0
    y, last = _layers(_tanh_step, x, (hx,), params, settings, drop, draw)
    return y, last[0]


def rnn_relu(
    x: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    draw: Tensor = None,
    stored: bool = False,
) -> tuple[Tensor, Tensor]:
    settings = has_biases, False, num_layers, bidirectional, batch_first, stored
    drop = dropout if train else 0.0
    y, last = _layers(_relu_step, x, (hx,), params, settings, drop, draw)
    return y, last[0]


def _lstm_step(
    given: Tensor, state: tuple[Tensor, ...], recurrent: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    hidden, cell = state
    width = cell.shape[-1]
    gates = given + hidden @ recurrent
    admit = ops.sigmoid(gates[:, :width])
    forget = ops.sigmoid(gates[:, width : 2 * width])
    candidate = np.tanh(gates[:, 2 * width : 3 * width])
    emit = ops.sigmoid(gates[:, 3 * width :])
    cell = forget * cell + admit * candidate
    hidden = emit * np.tanh(cell)
    return (hidden if projection is None else hidden @ projection), cell


def _gru_step(
    given: Tensor, state: tuple[Tensor, ...], recurrent: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    (hidden,) = state
    width = hidden.shape[-1]
    gates = hidden @ recurrent
    gates = gates if bias is None else gates + bias
    reset = ops.sigmoid(given[:, :width] + gates[:, :width])
    update = ops.sigmoid(given[:, width : 2 * width] + gates[:, width : 2 * width])
    new = np.tanh(given[:, 2 * width :] + reset * gates[:, 2 * width :])
    return ((1.0 - update) * new + update * hidden,)


def _tanh_step(
    given: Tensor, state: tuple[Tensor, ...], recurrent: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    return (np.tanh(given + state[0] @ recurrent),)


def _relu_step(
    given: Tensor, state: tuple[Tensor, ...], recurrent: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    return (ops.relu(given + state[0] @ recurrent),)


def _layers(
    step: Any,
    x: Tensor,
    start: tuple[Tensor, ...],
    params: Sequence[Tensor],
    settings: tuple[bool, bool, int, bool, bool, bool],
    drop: float,
    draw: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    has_biases, projected, num_layers, bidirectional, batch_first, stored = settings
    y = np.swapaxes(x, 0, 1) if batch_first else x
    each, ways = 2 + 2 * has_biases + projected, 2 if bidirectional else 1
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = params[at * each : (at + 1) * each]
            own = [w if stored or w.ndim < 2 else np.transpose(w) for w in own]
            first = tuple([state[at] for state in start])
            out, last = _one_way(step, y, first, own, has_biases, projected, way == 1)
            outputs.append(out)
            finals.append(last)
        y = outputs[0] if ways == 1 else np.concatenate(outputs, axis=-1)
        if drop and draw is not None and layer < num_layers - 1:
            y = ops.dropout(y, drop, random.fold_in(draw, layer))
    count = len(start)
    states = tuple([np.stack([last[k] for last in finals]) for k in range(count)])
    return (np.swapaxes(y, 0, 1) if batch_first else y), states


def _one_way(
    step: Any,
    x: Tensor,
    state: tuple[Tensor, ...],
    own: Sequence[Tensor],
    has_biases: bool,
    projected: bool,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction: [T, N, inputs] -> [T, N, width] and the last state.

    own: its weights as [inputs, outputs], and its biases.
    """
    recurrent = own[1]
    projection = own[-1] if projected else None
    # All steps' input products at once: one large product instead of T small ones.
    given = x @ own[0]
    inner = None
    if has_biases:
        # A GRU's reset gate reaches the recurrent bias; the others add both.
        inner = own[3]
        given = given + (own[2] if step is _gru_step else own[2] + own[3])
    steps, outputs = x.shape[0], np.zeros((x.shape[0], *state[0].shape), state[0].dtype)
    for k in range(steps):
        at = steps - 1 - k if backwards else k
        state = step(given[at], state, recurrent, inner, projection)
        outputs = ops.dynamic_update(outputs, state[0][None], (at, 0, 0))
    return outputs, state


ROWS: dict[str, Row] = {
    "lstm.input": Row(lstm, results=3, extras=("draw",)),
    "gru.input": Row(gru, results=2, extras=("draw",)),
    "rnn_tanh.input": Row(rnn_tanh, results=2, extras=("draw",)),
    "rnn_relu.input": Row(rnn_relu, results=2, extras=("draw",)),
}
