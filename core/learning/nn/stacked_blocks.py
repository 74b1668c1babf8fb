"""Blocks of one kind as one loop: a deep model as a program of one block's size.

A program with the text of twelve blocks takes a compiler twelve times as long as one with a loop
over them. The blocks' leaves are stacked, and each trip reads its block where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.errors import DelianError
from ...compiler import tree
from ...compiler.api import checkpoint, module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field


@module
class Stacked:
    """Blocks that follow one another, `stacked` from layers of one kind and size."""

    blocks: Any
    """A block of which every leaf has an axis of `depth` before its own."""
    depth: int = static_field(default=1)
    recomputed: bool = static_field(default=True)
    """A derivative keeps each block's input alone; else also what took long to compute in a block,
    as far as all of it takes 64 MiB. The rest runs again.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """What all blocks make of x, whose shape they keep."""
        for k in range(self.depth):
            block = self.block(k)
            x = checkpoint(block)(x) if self.recomputed else block(x)
        return x

    def block(self, k: int) -> Any:
        """One of the blocks, by its number from 0."""
        return tree.map(lambda leaf: leaf[k], self.blocks)


def stacked(blocks: Sequence[Any], recomputed: bool = True) -> Stacked:
    """Blocks as a loop over them, in plain Python. `recomputed` as of `Stacked`.

    Raises DelianError where there are none, or their kinds, options or shapes differ.
    """
    if not blocks:
        raise DelianError("stacked takes at least one block")
    first, structure = tree.flatten(blocks[0])
    for k, block in enumerate(blocks):
        leaves, own = tree.flatten(block)
        if own != structure:
            raise DelianError(f"stacked: block {k} is not built as block 0", "same layers, options")
        for name, a, b in zip(structure.paths(), first, leaves, strict=True):
            if np.shape(a) != np.shape(b) or np.asarray(a).dtype != np.asarray(b).dtype:
                raise DelianError(
                    f"stacked: {name} of block {k} is {np.asarray(b).dtype}{list(np.shape(b))}, "
                    f"of block 0 {np.asarray(a).dtype}{list(np.shape(a))}"
                )
    return Stacked(tree.map(lambda *each: np.stack(each), *blocks), len(blocks), recomputed)
