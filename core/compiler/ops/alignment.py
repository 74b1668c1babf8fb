"""Connectionist temporal classification (Graves et al. 2006), by the forward algorithm alone.

Labels l are written with blanks around each, l' = b l1 b l2 b ... b. alpha[s] is the log of the
probability of all paths through the first t frames that end in l'[s] (equations 5 to 8):

    alpha_t[s] = log(exp alpha[s] + exp alpha[s - 1] (+ exp alpha[s - 2])) + log p_t(l'[s])

where the third term is there when l'[s] is no blank and differs from l'[s - 2]. It is a loop over
the frames; its gradient, which the paper works out by a backward pass, is the loop's derivative.
"""

from __future__ import annotations

import numpy as np

from ..intrinsics import stop_gradient
from ..ir import Array
from .activations import log_softmax

#: The log of a probability of zero: finite, so that no derivative is NaN; sums stay far below any
#: path's.
_IMPOSSIBLE = -1e30


def ctc(logits: Array, frames: Array, labels: Array, lengths: Array, blank: int = 0) -> Array:
    """-log p(labels | logits), summed over all alignments: f32[N].

    Args:
        logits: f32[N, T, C], before softmax.
        frames: integers [N], how many of the T frames count.
        labels: integers [N, S] in 0..C-1 but not `blank`; what follows a row's length is not read.
        lengths: integers [N], the labels of each row, 0..S.
        blank: the class that stands for no label.

    Infinite, with a gradient of zero, where there are fewer frames than the labels need.
    """
    if logits.ndim != 3 or labels.ndim != 2 or labels.shape[1] < 1:
        raise ValueError(
            f"ctc takes logits [N, T, C] and labels [N, S] with S at least 1, not shapes "
            f"{list(logits.shape)} and {list(labels.shape)}"
        )
    rows, steps = logits.shape[0], logits.shape[1]
    blanks = np.full((rows, 1), blank, labels.dtype)
    pairs = np.stack([labels, np.full(labels.shape, blank, labels.dtype)], axis=-1)
    written = np.concatenate([blanks, pairs.reshape(rows, -1)], axis=1)
    places = written.shape[1]
    said = log_softmax(logits)
    index = np.broadcast_to(written[:, None, :], (rows, steps, places))
    emitted = np.transpose(np.take_along_axis(said, index, axis=2), (1, 0, 2))
    jumps = np.concatenate(
        [
            np.zeros((rows, 2), np.bool_),
            (written[:, 2:] != blank) & (written[:, 2:] != written[:, :-2]),
        ],
        axis=1,
    )
    alpha = np.where(np.arange(places) < 2, emitted[0], _IMPOSSIBLE)
    for t in range(1, steps):
        stepped = np.concatenate([np.full_like(alpha[:, :1], _IMPOSSIBLE), alpha[:, :-1]], axis=1)
        jumped = np.concatenate([np.full_like(alpha[:, :2], _IMPOSSIBLE), alpha[:, :-2]], axis=1)
        jumped = np.where(jumps, jumped, _IMPOSSIBLE)
        following = _log_sum(alpha, stepped, jumped) + emitted[t]
        alpha = np.where(t < frames[:, None], following, alpha)
    last = 2 * lengths[:, None]
    end = np.take_along_axis(alpha, last, axis=1)[:, 0]
    before = np.take_along_axis(alpha, np.maximum(last - 1, 0), axis=1)[:, 0]
    before = np.where(lengths > 0, before, _IMPOSSIBLE)
    loss = -_log_sum(end, before, np.full_like(end, _IMPOSSIBLE))
    return np.where(loss > -0.5 * _IMPOSSIBLE, np.inf, loss)


def _log_sum(a: Array, b: Array, c: Array) -> Array:
    top = stop_gradient(np.maximum(np.maximum(a, b), c))
    total: Array = top + np.log(np.exp(a - top) + np.exp(b - top) + np.exp(c - top))
    return total
