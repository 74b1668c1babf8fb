"""What the loop of a product's tiles asks for ahead of time.

A loop that takes the tiles of a product reads and writes a tile of other matrices with each. Tile
follows tile by whole rows of the product, so no processor foresees what a tile reads: it waits for
memory after each, for one part in thirty of a product of 384 terms. So a tile asks for what the
same columns have some rows on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...ir import Value

if TYPE_CHECKING:
    from .loop_writer import Axis, LoopWriter

#: Numbers of a matrix that the caches have anyway.
_NEAR = 1 << 16


def fetches(writer: LoopWriter, axes: list[Axis], column: str) -> list[str]:
    """Lines for a row of a tile, from this column on: of each large matrix what is rows below."""
    return [*dict.fromkeys(_each(writer, axes, column))]


def _each(writer: LoopWriter, axes: list[Axis], column: str) -> Iterator[str]:
    rows, across = axes
    loads = [writer.schedule.views[v] for v in writer.loads]
    read = {writer.memory.get(view.base) for view in loads}
    for k, view in enumerate(loads):
        if across.strides[k] == 1 and _far(writer, view.base) and rows.strides[k] > 0:
            place = f"(i0 + rows) * {rows.strides[k]} + {column} + {view.offset}"
            yield f"DL_PREFETCH_L2({writer.pointers[writer.memory[view.base]]} + {place});"
    for copy, _ in writer.loop.stores:
        if writer.memory[copy] not in read and _far(writer, copy):
            place = f"(i0 + rows) * {rows.strides[-2]} + {column}"
            yield f"DL_PREFETCH({writer.pointers[writer.memory[copy]]} + {place});"


def _far(writer: LoopWriter, base: Value) -> bool:
    inside = base is writer.tile or base in writer.schedule.iotas
    return not inside and base.tensor.size > _NEAR and base.dtype.itemsize == 4
