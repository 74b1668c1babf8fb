"""Lists of numbers among a program's arguments and results, as one array each.

Only where a caller in Python takes them apart (`Traced.packs`), and lists are arrays within
(`list_stacks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...ir import TensorType, Value
from ...traced import Pack
from ..values import Tensor, Whole
from . import list_stacks

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Shorter lists are passed number by number.
_SIZE_MIN = 16


def of_arguments(
    leaves: Sequence[Any], structure: tree.Structure, first: int = 0
) -> Iterator[Pack]:
    """The lists of numbers of one class."""
    shape = _shape(structure)
    if shape is not None and math.prod(shape) >= _SIZE_MIN:
        given = leaves[first : first + math.prod(shape)]
        classes = {type(v) for v in given}
        if len(classes) == 1 and isinstance(given[0], bool | int | float | np.generic):
            try:
                yield Pack(first, shape, TensorType.of(given[0]).dtype.numpy)
            except KeyError:  # A type that the compiler has not.
                return
        return
    for child in structure.children:
        yield from of_arguments(leaves, child, first)
        first += child.leaves


def _shape(structure: tree.Structure) -> tuple[int, ...] | None:
    """Of nested lists of one length each."""
    if structure.kind is not list or not structure.children:
        return None
    if all(c is tree.LEAF for c in structure.children):
        return (len(structure.children),)
    inner = {_shape(c) for c in structure.children}
    row = inner.pop()
    return None if inner or row is None else (len(structure.children), *row)


def name(path: str, pack: Pack) -> str:
    """The name of the list whose first leaf has this path."""
    return path.rsplit(".", len(pack.shape))[0] if path.count(".") >= len(pack.shape) else ""


def parts(s: Specialiser, param: Value, pack: Pack, kind: int) -> dict[int, Tensor]:
    """The leaves of a packed argument, by their numbers."""
    items = list_stacks.items_of(s, Whole(param, kind, s.scope))
    return dict(enumerate(items, start=pack.first))


def of_results(leaves: Sequence[Any]) -> Iterator[Pack]:
    """The leaves that are all elements of one whole, in order."""
    k = 0
    while k < len(leaves):
        leaf = leaves[k]
        part = leaf.part if type(leaf) is Tensor else None
        if part is not None and part.whole.type.size >= _SIZE_MIN:
            of = part.whole
            if list_stacks.are_all_of(leaves[k : k + of.type.size], of):
                yield Pack(k, of.type.shape, of.type.dtype.numpy)
                k += of.type.size
                continue
        k += 1
