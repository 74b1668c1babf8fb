"""Attention over several heads, and the transformer's block (Vaswani et al. 2017).

Blocks normalise before each part (Xiong et al. 2020), which trains without a warm-up. An encoder's
block sees everything, a decoder's is causal, and one with `crossing` also looks at an encoder's
output.
"""

from __future__ import annotations

import numpy as np

from ...compiler import ops, random
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field
from .layers import Dense
from .norms import LayerNorm

#: Vaswani et al. 2017, section 3.5: wavelengths go from 2 pi to this times 2 pi.
_LONGEST = 10_000.0


@module
class MultiHeadAttention:
    """Attention by several heads, each over its share of the width."""

    query: Dense  # f32[width, width] and f32[width]; the same for the other three
    key: Dense
    value: Dense
    output: Dense
    heads: int = static_field(default=1)

    @staticmethod
    def init(key: Tensor, width: int, heads: int) -> MultiHeadAttention:
        """Raises ValueError when the width does not fall into so many heads."""
        if width % heads:
            raise ValueError(f"MultiHeadAttention: a width of {width} in {heads} heads")
        keys = random.split(key, 4)
        return MultiHeadAttention(
            Dense.init(keys[0], width, width),
            Dense.init(keys[1], width, width),
            Dense.init(keys[2], width, width),
            Dense.init(keys[3], width, width),
            heads,
        )

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """f32[N, T, width] -> f32[N, T, width].

        Args:
            memory: what is looked at, f32[N, S, width]; None: `x` itself.
            mask: bool[N, T, S] or bool[T, S], True where a position may look.
            causal: position t may look at positions up to t alone.
        """
        seen = x if memory is None else memory
        query, key, value = (
            self._split(part(given))
            for part, given in ((self.query, x), (self.key, seen), (self.value, seen))
        )
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        out = ops.attention(query, key, value, mask, causal)
        return self.output(np.transpose(out, (0, 2, 1, 3)).reshape(x.shape))

    def _split(self, x: Tensor) -> Tensor:
        """f32[N, T, width] -> f32[N, heads, T, width / heads]."""
        parted = x.reshape(x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads)
        return np.transpose(parted, (0, 2, 1, 3))


@module
class TransformerBlock:
    """x + attention(norm(x)), the same over a memory if it has one, then x + feed-forward(norm(x)).

    The feed-forward part is two dense layers with gelu between. Dropout falls on each part's output
    where a key is given.
    """

    attention: MultiHeadAttention
    norm: LayerNorm
    crossing: MultiHeadAttention | None
    crossing_norm: LayerNorm | None
    up: Dense
    down: Dense
    last_norm: LayerNorm
    causal: bool = static_field(default=False)
    dropout: float = static_field(default=0.0)

    @staticmethod
    def init(
        key: Tensor,
        width: int,
        heads: int,
        inner: int | None = None,
        *,
        causal: bool = False,
        crossing: bool = False,
        dropout: float = 0.0,
    ) -> TransformerBlock:
        """inner: width of the feed-forward part, default 4 * width. crossing: takes a memory."""
        inner = 4 * width if inner is None else inner
        keys = random.split(key, 4)
        return TransformerBlock(
            MultiHeadAttention.init(keys[0], width, heads),
            LayerNorm.init(width),
            MultiHeadAttention.init(keys[1], width, heads) if crossing else None,
            LayerNorm.init(width) if crossing else None,
            Dense.init(keys[2], width, inner),
            Dense.init(keys[3], inner, width),
            LayerNorm.init(width),
            causal,
            dropout,
        )

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        key: Tensor | None = None,
    ) -> Tensor:
        """f32[N, T, width] -> f32[N, T, width].

        `memory`, f32[N, S, width], for a block that crosses; `mask` as of `MultiHeadAttention`,
        over `x` itself; `key` u32[2] in training.
        """
        part = self.attention(self.norm(x), None, mask, self.causal)
        x = x + self._dropped(part, key, 0)
        if self.crossing is not None and self.crossing_norm is not None:
            x = x + self._dropped(self.crossing(self.crossing_norm(x), memory), key, 1)
        part = self.down(ops.gelu(self.up(self.last_norm(x))))
        return x + self._dropped(part, key, 2)

    def _dropped(self, x: Tensor, key: Tensor | None, place: int) -> Tensor:
        if key is None or self.dropout == 0.0:
            return x
        return ops.dropout(x, self.dropout, random.fold_in(key, place))


def sinusoids(length: int, width: int) -> Tensor:
    """f32[length, width], what position t adds to its vector.

    Sines in the first half, cosines in the second, of t times falling frequencies (Vaswani et al.
    2017, section 3.5). `width` is even.
    """
    half = width // 2
    frequencies = _LONGEST ** (-np.arange(half) / half)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)
