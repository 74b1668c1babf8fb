"""Language models that predict the next symbol, as Llama's and GPT-2's are built.

A decoder's weights may be in few bits (`quantised`), and then are frozen: what is trained are
adapters. Under a derivative each block keeps its input alone and runs again on the way back, and
the loss over the vocabulary takes some tokens at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from ...compiler import ops, random
from ...compiler.api import checkpoint, module
from ...compiler.ir import Tensor
from ...compiler.ops.quantised_weights import GROUP, quantise_weight
from ...compiler.tree import static_field
from .layers import Dense, Embedding
from .norms import RmsNorm
from .stacked_blocks import Stacked

M = TypeVar("M")

#: Added to a mean square before its root, as in Llama's models.
_FLOOR = 1e-6
#: Smaller matrices stay in f32: they take no memory that counts.
_QUANTISED_MIN = 4096


@module
class GroupedAttention:
    """Causal self-attention with positions as rotations; several queries share a key and a value.

    Ainslie et al. 2023: with as many keys as queries it is attention by heads, with one key
    multi-query attention (Shazeer 2019).
    """

    query: Dense
    """f32[width, heads * size]."""
    key: Dense
    """f32[width, key_heads * size], as `value`."""
    value: Dense
    output: Dense
    """f32[heads * size, width]."""
    heads: int = static_field(default=1)
    key_heads: int = static_field(default=1)
    base: float = static_field(default=10_000.0)
    """Of `ops.rotary`."""

    @staticmethod
    def init(
        key: Tensor,
        width: int,
        heads: int,
        key_heads: int | None = None,
        *,
        base: float = 10_000.0,
        biased: bool = False,
    ) -> GroupedAttention:
        """Raises ValueError when the width or the heads do not fall into such parts."""
        shared = heads if key_heads is None else key_heads
        if width % heads or heads % shared or width // heads % 2:
            raise ValueError(
                f"GroupedAttention: a width of {width} in {heads} heads that share {shared} keys"
            )
        keys, inner = random.split(key, 4), width // heads * shared
        return GroupedAttention(
            Dense.init(keys[0], width, width, biased=biased),
            Dense.init(keys[1], width, inner, biased=biased),
            Dense.init(keys[2], width, inner, biased=biased),
            Dense.init(keys[3], width, width, biased=biased),
            heads,
            shared,
            base,
        )

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """f32[N, T, width] -> f32[N, T, width]; mask: bool[N, T, T] or bool[T, T]."""
        query = ops.rotary(self._split(self.query(x), self.heads), self.base)
        key = ops.rotary(self._split(self.key(x), self.key_heads), self.base)
        value = self._split(self.value(x), self.key_heads)
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        out = ops.attention(query, self._shared(key), self._shared(value), mask, True)
        out = np.transpose(out, (0, 2, 1, 3))
        return self.output(out.reshape((*x.shape[:2], out.shape[2] * out.shape[3])))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """f32[N, T, heads * size] -> f32[N, heads, T, size]."""
        parted = x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads)
        return np.transpose(parted, (0, 2, 1, 3))

    def _shared(self, x: Tensor) -> Tensor:
        """Each of the key's heads once for every query's that shares it."""
        if self.heads == self.key_heads:
            return x
        n, heads, t, size = x.shape
        each = self.heads // heads
        wide = np.broadcast_to(x[:, :, None], (n, heads, each, t, size))
        return wide.reshape((n, self.heads, t, size))


@module
class GatedFeedForward:
    """down(silu(gate(x)) * up(x)): SwiGLU (Shazeer 2020)."""

    gate: Dense
    up: Dense
    down: Dense

    @staticmethod
    def init(key: Tensor, width: int, inner: int, *, biased: bool = False) -> GatedFeedForward:
        keys = random.split(key, 3)
        return GatedFeedForward(
            Dense.init(keys[0], width, inner, biased=biased),
            Dense.init(keys[1], width, inner, biased=biased),
            Dense.init(keys[2], inner, width, biased=biased),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """f32[..., width] -> f32[..., width]."""
        return self.down(ops.silu(self.gate(x)) * self.up(x))


@module
class DecoderBlock:
    """x + attention(norm(x)), then x + feed-forward(norm(x)): Llama's (Touvron et al. 2023)."""

    norm: RmsNorm
    attention: GroupedAttention
    last_norm: RmsNorm
    feed_forward: GatedFeedForward

    @staticmethod
    def init(
        key: Tensor,
        width: int,
        heads: int,
        key_heads: int | None = None,
        inner: int | None = None,
        *,
        base: float = 10_000.0,
        floor: float = _FLOOR,
    ) -> DecoderBlock:
        """inner: width of the feed-forward part, default 4 * width. base: of `ops.rotary`."""
        keys = random.split(key, 2)
        return DecoderBlock(
            RmsNorm.init(width, floor),
            GroupedAttention.init(keys[0], width, heads, key_heads, base=base),
            RmsNorm.init(width, floor),
            GatedFeedForward.init(keys[1], width, 4 * width if inner is None else inner),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, T, width] -> f32[N, T, width]."""
        x = x + self.attention(self.norm(x))
        return x + self.feed_forward(self.last_norm(x))


@module
class TiedHead:
    """An embedding's table as the factor of logits: `x @ TiedHead(table)` is `x @ table.T`.

    As an argument of a checkpoint it is the table where it lies, not a transposed copy.
    """

    table: Tensor
    """f32[symbols, width], or in few bits."""

    #: NumPy leaves `x @ head` to `__rmatmul__`.
    __array_ufunc__ = None

    @property
    def shape(self) -> tuple[int, int]:
        """(width, symbols)."""
        return (self.table.shape[1], self.table.shape[0])

    @property
    def frozen(self) -> bool:
        """Whether it has no derivative, as a table in few bits."""
        return bool(getattr(self.table, "frozen", False))

    @property
    def T(self) -> Tensor:
        """The table."""
        return self.table

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """f32[..., width] -> f32[..., symbols]."""
        return x @ self.table.T


@module
class Decoder:
    """Embedding, blocks that see what came before, a last normalisation, a head.

    The blocks are `DecoderBlock`s, or `TransformerBlock`s with `causal`, which know no positions:
    `positions` are then added to the embeddings, as in GPT-2.
    """

    embedding: Embedding
    positions: Tensor | None
    """f32[longest, width]."""
    blocks: tuple[Any, ...] | Stacked
    """As a tuple, or `stacked`: then one loop, which compiles in the time of one block."""
    norm: Any
    head: Dense | None
    """None: the embedding's table, transposed."""
    recomputed: bool = static_field(default=True)
    """Blocks keep their input alone, and run again for the derivative; `stacked` ones know."""

    def hidden(self, symbols: Tensor) -> Tensor:
        """Integers [N, T] -> f32[N, T, width], what the head reads."""
        out = self.embedding(symbols)
        if self.positions is not None:
            out = out + self.positions[: symbols.shape[1]]
        if isinstance(self.blocks, Stacked):
            return self.norm(self.blocks(out))
        for block in self.blocks:
            out = checkpoint(block)(out) if self.recomputed else block(out)
        return self.norm(out)

    def __call__(self, symbols: Tensor, weight: Tensor | None = None) -> Tensor:
        """Integers [N, T] -> f32[N, T, symbols]."""
        hidden = self.hidden(symbols)
        if self.head is not None:
            return self.head(hidden)
        return hidden @ self.embedding.table.T

    def losses(self, symbols: Tensor, labels: Tensor) -> Tensor:
        """Integers [N, T] twice -> f32[N, T]: each label's cross-entropy.

        Without the logits of all tokens, but for a head with a bias.
        """
        hidden = self.hidden(symbols)
        if self.head is not None and self.head.bias is not None:
            return ops.cross_entropy(self.head(hidden), labels)
        weight = TiedHead(self.embedding.table) if self.head is None else self.head.weight
        return ops.vocabulary_cross_entropy(hidden, weight, labels)


def decoder(
    key: Tensor,
    symbols: int,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    key_heads: int | None = None,
    inner: int | None = None,
    *,
    tied: bool = True,
) -> Decoder:
    """Llama's architecture, of any size; `tied`: the head is the embedding's table."""
    keys = random.split(key, depth + 2)
    blocks = tuple(DecoderBlock.init(keys[i], width, heads, key_heads, inner) for i in range(depth))
    head = None if tied else Dense.init(keys[depth + 1], width, symbols, biased=False)
    table = Embedding.init(keys[depth], symbols, width)
    return Decoder(table, None, blocks, RmsNorm.init(width, _FLOOR), head)


def quantised(model: M, kind: str = "i8", group: int = GROUP) -> M:
    """A model with the weights of its dense layers and embeddings in few bits, in plain Python.

    Biases, norms and matrices of fewer than 4,096 numbers stay as they are. Raises DelianError as
    `quantise_weight` does.
    """

    def changed(node: Any) -> Any:
        if isinstance(node, Dense) and _is_large(node.weight):
            return dataclasses.replace(node, weight=quantise_weight(node.weight, kind, group))
        if isinstance(node, Embedding) and _is_large(node.table):
            table = quantise_weight(np.transpose(node.table), kind, group).T
            return dataclasses.replace(node, table=table)
        if isinstance(node, dict):
            return {k: changed(v) for k, v in node.items()}
        if isinstance(node, tuple | list):
            items = [changed(v) for v in node]
            return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            parts = {f.name: changed(getattr(node, f.name)) for f in dataclasses.fields(node)}
            return dataclasses.replace(node, **parts)
        return node

    made: M = changed(model)
    return made


def _is_large(weight: Any) -> bool:
    return isinstance(weight, np.ndarray) and weight.size >= _QUANTISED_MIN
