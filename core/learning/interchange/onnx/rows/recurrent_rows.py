"""Recurrent networks: RNN, GRU, LSTM.

A cell runs along x [T, N, I], for each direction with its own weights [D, gates H, I]. A sequence
that is shorter than T keeps its state after its end, and gives zeros there; the reverse direction
begins at each sequence's own end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .gather_rows import reverse_sequence


def activation(name: str, alpha: float | None, beta: float | None, x: Tensor) -> Tensor:
    """An activation of ONNX's recurrent operators, by its name."""
    kind = name.lower()
    if kind == "tanh":
        return np.tanh(x)
    if kind == "sigmoid":
        return ops.sigmoid(x)
    if kind == "relu":
        return ops.relu(x)
    if kind == "softsign":
        return ops.softsign(x)
    if kind == "softplus":
        return ops.softplus(x)
    if kind == "affine":
        return (1.0 if alpha is None else alpha) * x + (0.0 if beta is None else beta)
    if kind == "leakyrelu":
        return np.where(x < 0, x * (0.01 if alpha is None else alpha), x)
    if kind == "thresholdedrelu":
        return np.where(x > (1.0 if alpha is None else alpha), x, 0)
    if kind == "scaledtanh":
        return (1.0 if alpha is None else alpha) * np.tanh((1.0 if beta is None else beta) * x)
    if kind == "hardsigmoid":
        sloped = x * (0.2 if alpha is None else alpha) + (0.5 if beta is None else beta)
        return np.minimum(np.maximum(sloped, 0), 1)
    if kind == "elu":
        return ops.elu(x, 1.0 if alpha is None else alpha)
    raise OnnxError(f"the activation {name!r} is unknown")


#: Activations that take a value from activation_alpha, and from activation_beta.
_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
_BETA = ("affine", "scaledtanh", "hardsigmoid")

Functions = list[tuple[str, Any, Any]]


def functions_of(
    names: tuple[str, ...], alphas: tuple[float, ...], betas: tuple[float, ...]
) -> Functions:
    """Names of activations with their numbers, which are listed for those that take one."""
    found: Functions = []
    a = b = 0
    for name in names:
        alpha = beta = None
        if name.lower() in _ALPHA and a < len(alphas):
            alpha, a = alphas[a], a + 1
        if name.lower() in _BETA and b < len(betas):
            beta, b = betas[b], b + 1
        found.append((name, alpha, beta))
    return found


def limited(x: Tensor, clip: float | None) -> Tensor:
    """What goes into an activation, within +-clip."""
    return x if clip is None else np.minimum(np.maximum(x, -clip), clip)


def rnn_step(w: Any, x: Tensor, states: Any, f: Functions, clip: float | None, flag: int) -> Any:
    """H = f(X W^T + H R^T + b)."""
    weight, recurrent, bias, _ = w
    (h,) = states
    size = h.shape[-1]
    total = x @ weight.T + h @ recurrent.T + bias[:size] + bias[size:]
    return (activation(*f[0], limited(total, clip)),)


def gru_step(w: Any, x: Tensor, states: Any, f: Functions, clip: float | None, flag: int) -> Any:
    """Gates z, r, h; with `flag` the reset comes after the recurrent product."""
    weight, recurrent, bias, _ = w
    (h,) = states
    n = h.shape[-1]
    inward = x @ weight.T + bias[: 3 * n]
    back = bias[3 * n :]
    gates = inward[:, : 2 * n] + h @ recurrent[: 2 * n].T + back[: 2 * n]
    z = activation(*f[0], limited(gates[:, :n], clip))
    r = activation(*f[0], limited(gates[:, n:], clip))
    if flag:
        inner = r * (h @ recurrent[2 * n :].T + back[2 * n :])
    else:
        inner = (r * h) @ recurrent[2 * n :].T + back[2 * n :]
    new = activation(*f[1], limited(inward[:, 2 * n :] + inner, clip))
    return ((1 - z) * new + z * h,)


def lstm_step(w: Any, x: Tensor, states: Any, f: Functions, clip: float | None, flag: int) -> Any:
    """Gates i, o, f, c with peepholes; with `flag` the forget gate is 1 - i."""
    weight, recurrent, bias, peep = w
    h, c = states
    n = h.shape[-1]
    gates = x @ weight.T + h @ recurrent.T + bias[: 4 * n] + bias[4 * n :]
    into, out, forget = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n]
    if peep is not None:
        into, forget = into + peep[:n] * c, forget + peep[2 * n :] * c
    into = activation(*f[0], limited(into, clip))
    kept = 1 - into if flag else activation(*f[0], limited(forget, clip))
    new = kept * c + into * activation(*f[1], limited(gates[:, 3 * n :], clip))
    if peep is not None:
        out = out + peep[n : 2 * n] * new
    out = activation(*f[0], limited(out, clip))
    return out * activation(*f[2], new), new


def along_steps(
    step: Callable[..., Any],
    w: Any,
    x: Tensor,
    states: Any,
    lengths: Tensor,
    f: Functions,
    clip: float | None,
    flag: int,
) -> tuple[Tensor, Any]:
    """The cell along x [T, N, I]: its outputs [T, N, H] and its last states."""
    steps, rows = x.shape[0], x.shape[1]
    out = np.zeros((steps, rows, states[0].shape[-1]), x.dtype)
    for t in range(steps):
        new = step(w, x[t], states, f, clip, flag)
        if lengths is None:
            states = new
            out[t] = new[0]
        else:
            on = (t < lengths)[:, None]
            out[t] = np.where(on, new[0], 0)
            states = tuple([np.where(on, new[k], states[k]) for k in range(len(new))])
    return out, states


def recurrent(
    step: Callable[..., Any],
    x: Tensor,
    w: Any,
    lengths: Tensor,
    starts: Any,
    f: Functions,
    clip: float | None,
    direction: str,
    flag: int,
    layout: int,
) -> tuple[Tensor, ...]:
    """All directions: Y [T, D, N, H] and the last states [D, N, H]; with `layout` batch first."""
    weight, recur, bias, peep = w
    if layout:
        x = np.swapaxes(x, 0, 1)
        starts = [None if s is None else np.swapaxes(s, 0, 1) for s in starts]
    ways = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}.get(direction, ())
    if len(ways) != weight.shape[0]:
        raise OnnxError(f"direction {direction!r} does not fit {weight.shape[0]} sets of weights")
    size, many = recur.shape[-1], len(f) // len(ways)
    outputs, finals = [], []
    for d, backward in enumerate(ways):
        began = tuple(
            [np.zeros((x.shape[1], size), x.dtype) if s is None else s[d] for s in starts]
        )
        gates = np.zeros(2 * weight.shape[1], x.dtype) if bias is None else bias[d]
        own = weight[d], recur[d], gates, None if peep is None else peep[d]
        given = turned(x, lengths) if backward else x
        functions = f[d * many : (d + 1) * many]
        y, last = along_steps(step, own, given, began, lengths, functions, clip, flag)
        outputs.append(turned(y, lengths) if backward else y)
        finals.append(last)
    y = np.stack(outputs, 1)
    ends = [np.stack([last[k] for last in finals]) for k in range(len(starts))]
    if layout:
        return (np.transpose(y, (2, 0, 1, 3)), *[np.swapaxes(e, 0, 1) for e in ends])
    return (y, *ends)


def turned(x: Tensor, lengths: Tensor) -> Tensor:
    """Sequences [T, N, ...] in reverse, each by itself."""
    return np.flip(x, 0) if lengths is None else reverse_sequence(x, lengths)


def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor = None,
    lengths: Tensor = None,
    first: Tensor = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """RNN."""
    names = ("Tanh",) * w.shape[0] if activations is None else activations
    f = functions_of(names, activation_alpha, activation_beta)
    weights = w, r, b, None
    return recurrent(rnn_step, x, weights, lengths, [first], f, clip, direction, 0, layout)


def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor = None,
    lengths: Tensor = None,
    first: Tensor = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """GRU."""
    names = ("Sigmoid", "Tanh") * w.shape[0] if activations is None else activations
    f = functions_of(names, activation_alpha, activation_beta)
    weights, flag = (w, r, b, None), linear_before_reset
    return recurrent(gru_step, x, weights, lengths, [first], f, clip, direction, flag, layout)


def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor = None,
    lengths: Tensor = None,
    first: Tensor = None,
    cell: Tensor = None,
    peep: Tensor = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """LSTM."""
    names = ("Sigmoid", "Tanh", "Tanh") * w.shape[0] if activations is None else activations
    f = functions_of(names, activation_alpha, activation_beta)
    weights, flag, starts = (w, r, b, peep), input_forget, [first, cell]
    return recurrent(lstm_step, x, weights, lengths, starts, f, clip, direction, flag, layout)


RECURRENT_ROWS: Rows = {
    "GRU": Row(gru, several=True, since=7),
    "LSTM": Row(lstm, several=True, since=7),
    "RNN": Row(rnn, several=True, since=7),
}
