"""ATen's recurrent networks, whole: one loop of the program a layer and direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler import ops, random
from ....compiler.ir import Tensor
from .aten_row import Row


def recurrent(
    x: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    draw: Tensor = None,
    stored: bool = False,
    *,
    step: Any,
) -> tuple[Tensor, ...]:
    """[T, N, inputs] (or [N, T, inputs]) -> the outputs and the last states.

    Args:
        x, hx, params, ..., batch_first: as of ATen's operators. An LSTM has two states and may have
        projections; its hidden state then has their width.
        draw: a random key for dropout between the layers.
        stored: whether weights are [inputs, outputs].
        step: of one kind of network.
    """
    start = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    ways = 2 if bidirectional else 1
    projected = len(params) == num_layers * ways * (5 if has_biases else 3)
    settings = has_biases, projected, num_layers, bidirectional, batch_first, stored
    y, last = _layers(step, x, start, params, settings, dropout if train else 0.0, draw)
    return (y, *last)


def _lstm_step(
    given: Tensor, state: tuple[Tensor, ...], matrix: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    """Gates in the order input, forget, cell, output."""
    hidden, cell = state
    width = cell.shape[-1]
    gates = given + hidden @ matrix
    admit = ops.sigmoid(gates[:, :width])
    forget = ops.sigmoid(gates[:, width : 2 * width])
    candidate = np.tanh(gates[:, 2 * width : 3 * width])
    emit = ops.sigmoid(gates[:, 3 * width :])
    cell = forget * cell + admit * candidate
    hidden = emit * np.tanh(cell)
    return (hidden if projection is None else hidden @ projection), cell


def _gru_step(
    given: Tensor, state: tuple[Tensor, ...], matrix: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    """Gates in the order reset, update, new."""
    (hidden,) = state
    width = hidden.shape[-1]
    gates = hidden @ matrix
    gates = gates if bias is None else gates + bias
    reset = ops.sigmoid(given[:, :width] + gates[:, :width])
    update = ops.sigmoid(given[:, width : 2 * width] + gates[:, width : 2 * width])
    new = np.tanh(given[:, 2 * width :] + reset * gates[:, 2 * width :])
    return ((1.0 - update) * new + update * hidden,)


def _tanh_step(
    given: Tensor, state: tuple[Tensor, ...], matrix: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    return (np.tanh(given + state[0] @ matrix),)


def _relu_step(
    given: Tensor, state: tuple[Tensor, ...], matrix: Tensor, bias: Any, projection: Any
) -> tuple[Tensor, ...]:
    return (ops.relu(given + state[0] @ matrix),)


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
    matrix = own[1]
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
        state = step(given[at], state, matrix, inner, projection)
        outputs = ops.dynamic_update(outputs, state[0][None], (at, 0, 0))
    return outputs, state


ROWS: dict[str, Row] = {
    name: Row(recurrent, results=results, fixed={"step": step}, extras=("draw",))
    for name, results, step in (
        ("lstm.input", 3, _lstm_step),
        ("gru.input", 2, _gru_step),
        ("rnn_tanh.input", 2, _tanh_step),
        ("rnn_relu.input", 2, _relu_step),
    )
}
