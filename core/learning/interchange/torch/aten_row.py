"""What a row of the operator tables is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: How operands become one type before an operator computes (torch's ELEMENTWISE_TYPE_PROMOTION_
#: KIND): of one type; whole numbers as floats; of one type, and the result a bool; as `same`, but
#: bools as i64; none: the function sees the operands as they are.
Promotion = Literal["same", "float", "bool", "long", "none"]

#: `pointwise`: any layout that its operands share. `images`: the function takes `channels=-1`, for
#: channels that are stored last. `images first`: as `images`, and worth a transposition. `axes`:
#: the axes in its arguments are renumbered.
Layout = Literal["", "pointwise", "images", "images first", "axes"]


#: Where torch keeps operators that the importer adds.
OWN_SPACE = "delian"


@dataclass(frozen=True, slots=True)
class Row:
    """One ATen operator in Delian's vocabulary.

    `function` takes the operator's arguments under ATen's names and order. Of an operator with
    several results it gives a tuple.
    """

    function: Callable[..., Any]
    promotion: Promotion = "none"
    operands: int = 1
    """How many of the first arguments are promoted together."""
    results: int = 0
    """Of an operator with several results, how many there are; the others are refused if read."""
    whole: Callable[..., Any] | None = None
    """What gives all results, where that costs more; used if one of the others is read."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the function, which serves several operators."""
    layout: Layout = ""
    """How it meets a tensor whose channels are stored last (`torch_layouts`)."""
    extras: tuple[str, ...] = ()
    """What it takes besides: `draw` (the key of this call, u32[2]), `weight` (of the batch's rows),
    `counted` (whether the data decide how long its third argument is).
    """
