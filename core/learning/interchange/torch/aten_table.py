"""All rows: ATen's operators by name, `cat`, or by name and overload, `max.dim`."""

from __future__ import annotations

from . import (
    aten_elementwise,
    aten_images,
    aten_indexing,
    aten_linear,
    aten_losses,
    aten_norms,
    aten_recurrent,
    aten_reductions,
    aten_resizing,
    aten_shapes,
)
from .aten_row import Row

_TABLES = (
    aten_elementwise.ROWS,
    aten_images.ROWS,
    aten_indexing.ROWS,
    aten_linear.ROWS,
    aten_losses.ROWS,
    aten_norms.ROWS,
    aten_recurrent.ROWS,
    aten_reductions.ROWS,
    aten_resizing.ROWS,
    aten_shapes.ROWS,
)
ROWS: dict[str, Row] = {name: row for table in _TABLES for name, row in table.items()}


def row_of(operator: str, overload: str) -> Row | None:
    """The row of an operator: its overload's own, or that of all its overloads."""
    return ROWS.get(f"{operator}.{overload}") or ROWS.get(operator)
