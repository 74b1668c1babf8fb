"""What an attribute of a primitive may hold: its form, and bounds on its integers from both sides.

`ATTRIBUTES` has a line for each name: a name means the same in every row. `ops.infer` checks an
operation's attributes against it before the row's type rule runs, so a type rule computes with
integers that are bounded, and checks only what relates them to the operands' types.

The bounds keep the index arithmetic of the kernels within 64 bits. A size is at most 2^40, and the
verifier allows a tensor no more than 2^40 elements with its sizes of 0 counted as 1. A stride of a
convolution multiplies at most the elements of one padded image, 2^40: 2^56. Padding is added to a
size: less than 2^41.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ...common.errors import TypeRuleError
from ..ir import DType, ListType

#: One size of a tensor, a place in one, elements of padding that `pad` adds.
SIZE_MAX = 2**40
#: Elements of a tensor, and lanes of a list; sizes of 0 count as 1.
EXTENT_MAX = 2**40
#: Steps of the window of a convolution.
STRIDE_MAX = 2**16
#: Padding of one edge of the image of a convolution.
PADDING_MAX = 2**24
#: The number of an axis; a type rule bounds it by the rank.
AXIS_MAX = 2**10
#: Operands of a loop.
COUNT_MAX = 2**20
#: Characters of a value that an error repeats.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Ints:
    """An int, or tuples of ints."""

    low: int
    """The least value of each int."""
    high: int
    """The greatest."""
    nesting: int
    """0: one int; 1: a tuple of ints; 2: a tuple of tuples of ints."""

    def holds(self, value: Any) -> bool:
        return self._holds(value, self.nesting)

    def _holds(self, value: Any, nesting: int) -> bool:
        if nesting == 0:
            return type(value) is int and self.low <= value <= self.high
        if type(value) is not tuple:
            return False
        if nesting == 1:
            low, high = self.low, self.high
            return all(type(i) is int and low <= i <= high for i in value)
        return all(self._holds(item, nesting - 1) for item in value)

    def __str__(self) -> str:
        forms = ("an int", "a tuple of ints", "a tuple of tuples of ints")
        return f"{forms[self.nesting]} from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Instance:
    """A value of exactly one Python type; the type rule checks the rest."""

    type: type

    def holds(self, value: Any) -> bool:
        return type(value) is self.type

    def __str__(self) -> str:
        return f"a {self.type.__name__}"


Kind: TypeAlias = Ints | Instance

_SIZES = Ints(0, SIZE_MAX, 1)
_AXES = Ints(0, AXIS_MAX, 1)

#: What the attributes of each name hold.
ATTRIBUTES: Mapping[str, Kind] = MappingProxyType(
    {
        "axes": _AXES,
        "axis": Ints(0, AXIS_MAX, 0),
        "batch_a": _AXES,
        "batch_b": _AXES,
        "causal": Instance(bool),
        "consts": Ints(0, COUNT_MAX, 0),
        "contract_a": _AXES,
        "contract_b": _AXES,
        "dims": _AXES,
        "dtype": Instance(DType),
        "groups": Ints(1, SIZE_MAX, 0),
        "high": _SIZES,
        "input_size": _SIZES,
        "interior": _SIZES,
        "kernel_size": _SIZES,
        "low": _SIZES,
        "lower": Instance(bool),
        "padding": Ints(0, PADDING_MAX, 2),
        "perm": _AXES,
        "shape": _SIZES,
        "sizes": _SIZES,
        "start": _SIZES,
        "step": Ints(1, SIZE_MAX, 1),
        "stop": _SIZES,
        "strides": Ints(1, STRIDE_MAX, 1),
        "type": Instance(ListType),
        "value": Instance(np.ndarray),
    }
)


def refuse(name: str, key: str, kind: Kind, value: Any) -> None:
    """Raises TypeRuleError that says what the attribute must hold."""
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "..."
    raise TypeRuleError(f"{name}: {key} must be {kind}, not {shown}")
