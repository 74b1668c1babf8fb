"""What a program becomes before it is fused: the same, in operations that the back end is good at.

The passes run in this order: custom derivatives go, halves are widened, convolutions in groups
become dense or depthwise ones.
"""

from __future__ import annotations

from ...ir import Function
from ...passes.groups import split_groups
from ...passes.halves import widen_halves
from ...transforms.custom import expanded


def lowered(function: Function) -> Function:
    """The function as it is fused and emitted. The same function gives the same every time."""
    return split_groups(widen_halves(expanded(function)))
