"""A small transformer of tokens: for the next one, for masked ones, or for a label a row."""

from __future__ import annotations

import numpy as np

from ...compiler import random
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field
from .layers import Dense, Embedding
from .norms import LayerNorm
from .transformers import TransformerBlock, sinusoids


@module
class TokenTransformer:
    """Embedding, positions as sines, blocks, a last normalisation, a linear head.

    Causal it is a small GPT (Radford et al. 2018), else a small BERT (Devlin et al. 2019); both
    normalise before each part. `pooled`, the head reads the mean of a row's tokens. With `end`, the
    id after each document of a row, a token sees the tokens of its own document alone.
    """

    embedding: Embedding
    blocks: tuple[TransformerBlock, ...]
    norm: LayerNorm
    head: Dense
    pooled: bool = static_field(default=False)
    end: int | None = static_field(default=None)

    @staticmethod
    def init(
        key: Tensor,
        symbols: int,
        outputs: int,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        *,
        causal: bool = True,
        pooled: bool = False,
        end: int | None = None,
    ) -> TokenTransformer:
        """symbols: ids that there are. outputs: logits a position, or a row where it is pooled.

        Raises ValueError when the width does not fall into so many heads, or is odd.
        """
        if width % 2:
            raise ValueError(f"TokenTransformer: a width of {width} has no halves")
        keys = random.split(key, depth + 2)
        blocks = tuple(
            TransformerBlock.init(keys[i], width, heads, causal=causal) for i in range(depth)
        )
        return TokenTransformer(
            Embedding.init(keys[depth], symbols, width),
            blocks,
            LayerNorm.init(width),
            Dense.init(keys[depth + 1], width, outputs),
            pooled,
            end,
        )

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Ids [N, T] -> f32[N, T, outputs], or f32[N, outputs] where it is pooled.

        mask: bool[N, T], True for tokens; padding is neither looked at nor in a mean.
        """
        out = self.embedding(x)
        out = out + sinusoids(x.shape[1], out.shape[-1])
        seen = self._seen(x, mask)
        for block in self.blocks:
            out = block(out, None, seen)
        out = self.norm(out)
        if not self.pooled:
            return self.head(out)
        if mask is None:
            return self.head(np.mean(out, axis=1))
        tokens = mask.astype(np.float32)[:, :, None]
        return self.head(np.sum(out * tokens, axis=1) / np.maximum(np.sum(tokens, axis=1), 1.0))

    def _seen(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """bool[N, T, T]: which places a place may look at; None: all, or all before it."""
        if self.end is None:
            if mask is None:
                return None
            return np.broadcast_to(mask[:, None, :], (x.shape[0], x.shape[1], x.shape[1]))
        ends = (x == self.end).astype(np.int32)
        document = np.cumsum(ends, axis=1) - ends
        same = document[:, :, None] == document[:, None, :]
        return same if mask is None else same & mask[:, None, :]
