"""How a tensor's first axis counts the rows of the batch, whose weights leave some out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....compiler.ir import Tensor

_VIEWS = ("view", "_unsafe_view", "reshape")


def repeated(weight: Tensor, each: int) -> Tensor:
    """The weights of rows that are each in a tensor so many times, next to each other."""
    return None if weight is None else np.repeat(weight, each)


def rows_each(x: Any, batch: Any) -> int | None:
    """How many rows of a tensor, next to each other, belong to one row of the batch.

    It is 1 for a tensor whose first axis is the batch's, and more for one that is made of it by
    joining axes: frames of videos, as in `x.flatten(0, 1)`. 0: its first axis has nothing to do
    with the batch. None: that is not known.

    Args:
        x: a node with a tensor.
        batch: the symbol of the batch's size; None for a graph of a fixed size.
    """
    sizes = x.meta["val"].shape
    if batch is None:
        return None
    size, whole = _expression(sizes[0]) if len(sizes) else 0, _expression(batch)
    if size == whole:
        return 1
    if not getattr(size, "free_symbols", set()) & whole.free_symbols:
        return 0
    each = size / whole
    return int(each) if each.is_Integer and _is_joined(x, size, whole) else None


def _is_joined(x: Any, size: Any, whole: Any) -> bool:
    """Whether a tensor's first axis is that of a view which joined the batch's with others."""
    while True:
        name = str(x.target).partition(".")[2].partition(".")[0]
        inputs = [n for n in x.all_input_nodes if _first(n) == size or _is_tuple(n)]
        if name in _VIEWS and _first(x.args[0]) == whole:
            return True
        if x.op == "placeholder" or not inputs:
            return False
        x = inputs[0]


def _first(node: Any) -> Any:
    """The size of a node's first axis; None for one that is no tensor with axes."""
    shape: Any = getattr(node.meta.get("val"), "shape", ())
    return _expression(shape[0]) if len(shape) else None


def _is_tuple(node: Any) -> bool:
    return isinstance(node.meta.get("val"), list | tuple)


def _expression(size: Any) -> Any:
    return getattr(getattr(size, "node", None), "expr", size)
