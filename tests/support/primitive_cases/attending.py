"""Cases of attention and its derivative, a query, a head and a sequence at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array

from .base import Case, numbers, rng

#: N, H, T, S, D, E; causal; the mask's shape, or none.
_SIZES: tuple[tuple[str, tuple[int, ...], bool, tuple[int, ...]], ...] = (
    ("one", (1, 1, 1, 1, 1, 1), False, ()),
    ("small", (2, 3, 4, 5, 3, 2), False, ()),
    ("causal", (2, 1, 3, 3, 2, 2), True, ()),
    ("causal-more-keys", (1, 2, 2, 4, 2, 3), True, ()),
    ("causal-more-queries", (1, 2, 4, 2, 2, 1), True, ()),
    ("masked", (2, 2, 3, 4, 2, 2), False, (2, 2, 3, 4)),
    ("padded", (2, 2, 3, 4, 2, 2), False, (2, 1, 1, 4)),
    ("masked-causal", (2, 2, 3, 3, 2, 2), True, (1, 2, 3, 3)),
)
#: Several blocks of queries and of keys, the last ones not whole; in f32 as the kernels take it.
_LARGE: tuple[tuple[str, tuple[int, ...], bool, tuple[int, ...]], ...] = (
    ("blocks", (1, 2, 70, 300, 8, 17), False, ()),
    ("blocks-causal", (1, 1, 150, 290, 16, 4), True, ()),
    ("blocks-more-queries", (1, 1, 120, 40, 5, 33), True, (1, 1, 120, 40)),
)


def _scores(q: Array, k: Array, causal: bool, mask: tuple[Array, ...], at: Any) -> Array:
    """Of one query for each key, -inf where it may not look."""
    n, t, h = at
    count, queries = k.shape[1], q.shape[1]
    full = (q.shape[0], q.shape[2], queries, count)
    seen = np.ones(count, bool)
    for m in mask:
        seen &= np.broadcast_to(m, full)[n, h, t]
    if causal:
        seen &= np.arange(count) <= t + count - queries
    return np.where(seen, k[n, :, h] @ q[n, t, h], -np.inf)


def _attention(causal: bool) -> Any:
    def oracle(q: Array, k: Array, v: Array, *mask: Array) -> tuple[Array, Array]:
        out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], 1e30)
        for at in product(*map(range, q.shape[:3])):
            raised = np.exp(_scores(q, k, causal, mask, at))
            if raised.sum() > 0:
                out[at] = raised / raised.sum() @ v[at[0], :, at[2]]
                lse[at] = np.log(raised.sum())
        return out, lse

    return oracle


def _grad(causal: bool) -> Any:
    def oracle(
        q: Array, k: Array, v: Array, lse: Array, delta: Array, g: Array, *mask: Array
    ) -> Any:
        dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
        for at in product(*map(range, q.shape[:3])):
            n, _, h = at
            w = np.exp(_scores(q, k, causal, mask, at) - lse[at])
            s = w * (v[n, :, h] @ g[at] - delta[at])
            dq[at] = s @ k[n, :, h]
            dk[n, :, h] += np.outer(s, q[at])
            dv[n, :, h] += np.outer(w, g[at])
        return dq, dk, dv

    return oracle


def attention() -> Iterator[Case]:
    for label, (n, h, t, s, d, e), causal, axes in (*_SIZES, *_LARGE):
        shapes = {"q": (n, t, h, d), "k": (n, s, h, d), "v": (n, s, h, e), "g": (n, t, h, e)}
        q, k, v, g = (numbers(f"{label}{name}", shape) for name, shape in shapes.items())
        mask: tuple[Array, ...] = ()
        if axes:
            seen = rng(label, axes).uniform(size=axes) < 0.7
            seen[..., 0, 1:] = False
            seen[0, 0, 0, 0] = False  # a query that may look nowhere, in whatever shape
            mask = (seen,)
        few = (n, h, t, s, d, e) in [sizes for _, sizes, _, _ in _SIZES]
        attrs = {"causal": causal}
        yield Case(
            *("attention", label, (q, k, v, *mask), _attention(causal), attrs),
            smooth=(0, 1, 2) if few else (),
        )
        lse, delta = numbers(f"{label}lse", (n, t, h), 2, 4), numbers(f"{label}delta", (n, t, h))
        yield Case(
            *("attention_grad", label, (q, k, v, lse, delta, g, *mask), _grad(causal), attrs),
            smooth=tuple(range(6)) if few else (),
        )
