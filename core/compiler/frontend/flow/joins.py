"""Where paths meet: what a value is after a branch, and what a loop carries.

Trees are joined leaf by leaf. A static leaf that is the same on both sides stays static; other
numbers become tensors of one type and shape, a weak one giving way to a strong one. Two strong
types that differ do not join: the program would have to convert, and the user should say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import Loc
from ...ir import DType, TensorType, Value
from ...traced import SCALAR, same_static
from ..containers import containers
from ..hir import hir, liveness
from ..memory.stores import is_array
from ..numpy import arithmetic
from ..values import Tensor, Whole, describe, is_number, kind_of
from .choices import Functions

if TYPE_CHECKING:
    from ..specialise import Specialiser


@dataclass(frozen=True, slots=True)
class Slot:
    """A leaf that becomes a value of the program: a result of a branch, or a loop's carry."""

    type: TensorType
    kind: int

    @property
    def weak(self) -> bool:
        return self.kind < SCALAR

    def __str__(self) -> str:
        return str(self.type)


def slot_of(s: Specialiser, leaf: Any) -> Slot:
    """The slot that a number fits in."""
    if type(leaf) is Slot:
        return leaf
    if type(leaf) is Whole:
        return Slot(leaf.type, leaf.kind)
    dtype, _ = arithmetic.dtype_of(s, leaf)
    return Slot(TensorType(dtype, arithmetic.shape_of(leaf)), kind_of(leaf))


_KIND = {DType.BOOL: 0, **{d: 1 for d in DType if d.is_int}}


def join_leaf(s: Specialiser, a: Any, b: Any) -> tuple[bool, Any]:
    """(whether they join, what to: a Slot, or a leaf that is the same on both sides)."""
    if a is b:
        return True, a
    if containers.is_container(a) or containers.is_container(b):
        return False, None
    if type(a) is not Slot and type(b) is not Slot:
        if type(a) is Tensor and type(b) is Tensor:
            if _is_same_number(a, b):
                return True, a if a.kind == b.kind else Tensor(a.value, kind=a.kind | b.kind)
        elif type(a) is not Tensor and type(b) is not Tensor and same_static(a, b):
            return True, a
    if not (_has_slot(a) and _has_slot(b)):
        return False, None
    x, y = slot_of(s, a), slot_of(s, b)
    if x.type.shape != y.type.shape:
        return False, None
    if x.type.dtype is y.type.dtype:
        return True, Slot(x.type, x.kind | y.kind)
    kinds = _KIND.get(x.type.dtype, 2), _KIND.get(y.type.dtype, 2)
    if 0 in kinds:
        return False, None  # A truth is no number: it has another class and another text.
    if x.weak and y.weak:
        return True, Slot((x if kinds[0] > kinds[1] else y).type, x.kind | y.kind)
    if x.weak and kinds[0] <= kinds[1]:
        return _fits(s, a, y.type.dtype), Slot(y.type, x.kind | y.kind)
    if y.weak and kinds[1] <= kinds[0]:
        return _fits(s, b, x.type.dtype), Slot(x.type, x.kind | y.kind)
    return False, None


def _fits(s: Specialiser, leaf: Any, dtype: DType) -> bool:
    """Whether a number of Python's is surely among the numbers of another type."""
    if dtype in (DType.I64, DType.F64):
        return True
    if type(leaf) in (bool, int, float):
        low, high = (-_LARGE, _LARGE) if dtype.is_float else s.natural.of_type(dtype)
        if leaf in (math.inf, -math.inf):
            return dtype.is_float
        with np.errstate(all="ignore"):
            same = low <= leaf <= high and float(dtype.numpy.type(leaf)) == leaf
        return bool(same or leaf != leaf)
    if type(leaf) is not Tensor or not dtype.is_float or leaf.dtype.is_float:
        return False
    low, high = s.natural.of(leaf.value)
    exact = 2 ** _DIGITS[dtype]
    return bool(-exact <= low and high <= exact)


#: Beyond the largest number of f32.
_LARGE = 2**128
#: Binary digits of an integer that each of these types surely holds.
_DIGITS = {DType.F32: 24, DType.F16: 11, DType.BF16: 8}


def _has_slot(leaf: Any) -> bool:
    return type(leaf) in (Slot, Whole) or is_number(leaf)


def _is_same_number(a: Tensor, b: Tensor) -> bool:
    one, other = a.part, b.part
    if one is not None or other is not None:  # Read in the region that it is a part of.
        if one is None or other is None:
            return False
        return one.whole is other.whole and one.place == other.place
    return not (is_array(a) or is_array(b)) and a.value is b.value


def fill(s: Specialiser, leaf: Any, slot: Slot) -> Value:
    """A leaf as a value of its slot's type."""
    if type(leaf) is Whole:
        return arithmetic.convert(s, leaf.value, slot.type.dtype)
    return arithmetic.materialise(s, leaf, slot.type.dtype, slot.type.shape)


def zeros(s: Specialiser, slot: Slot) -> Value:
    """The value of a slot on a path that has none: it is not used there."""
    return s.scope.number(0, slot.type.dtype, slot.type.shape)


def assigned_at(block: hir.Block, name: str) -> Loc | None:
    """Where a block last assigns a name."""
    for node in reversed(block):
        if isinstance(node, hir.Assign):
            if any(name in liveness.names_of(t) for t in node.targets):
                return node.loc
        elif name in _names(node):
            return node.loc
        inner = _blocks(node)
        for part in reversed(inner):
            found = assigned_at(part, name)
            if found is not None:
                return found
    return None


def _names(node: Any) -> list[str]:
    if isinstance(node, hir.Update | hir.For | hir.Delete | hir.Enter):
        return list(liveness.names_of(node.target))
    bound = hir.Define | hir.DefineClass | hir.SetFlag | hir.Import
    return [node.name] if isinstance(node, bound) else []


def _blocks(node: Any) -> tuple[hir.Block, ...]:
    if isinstance(node, hir.If):
        return (node.then, node.otherwise)
    if isinstance(node, hir.Try):
        return node.blocks()
    return (node.body,) if isinstance(node, hir.For | hir.While) else ()


def called(name: str) -> str:
    """What a message calls a name."""
    if name == hir.RESULT:
        return "the result"
    hidden = name.removeprefix("$")
    return f"the {hidden} of a reduction" if hidden != name and hidden.isalpha() else f"`{name}`"


def mismatch(name: str, path: str, a: Any, b: Any, where: tuple[str, str]) -> str:
    """`name` is what a message calls the name."""
    label = name
    if path:
        label = f"{label[:-1]}.{path}`" if label.endswith("`") else f"{label}'s {path}"
    return f"{label} is {_kind(a)} {where[0]} and {_kind(b)} {where[1]}"


def _kind(value: Any) -> str:
    return str(value) if type(value) in (Slot, Functions) else describe(value)
