"""Steps of descent, `W -= rate * x'y`, alone or with the gradient by the layer's input.

Where a batch has few rows, tiles of `descent.h` that are written for their number do both, and a
program has those that it needs. They are for processors of 16 lanes: the header knows where there
are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....passes.schedule.block_steps import Call
from ....passes.schedule.product_layouts import Product, product
from .copies import at
from .kernels import product_arguments

if TYPE_CHECKING:
    from ..emit import FunctionWriter

#: The most rows of a batch that tiles are for, as in descent.h: of both gradients, of one.
_BOTH_MAX, _STEP_MAX = 12, 32
#: With fewer columns too much of a vector may be idle.
_COLUMNS_MIN = 48
#: Columns of a vector.
_LANES = 16


def product_added(w: FunctionWriter, call: Call, p: Product, to: str, scale: str) -> str:
    """A product without batches, times a number, added to what lies there."""
    arguments, room = product_arguments(w, call, p), w.scratch(call, "float")
    tile = _tile(w, "STEP", p.k, p.n)
    if tile == "0":
        return f"dl_gemm_add_f32({arguments}, {to}, {scale}, {room});"
    return f"dl_gemm_step_f32({tile}, {arguments}, {to}, {scale}, {room});"


def both_gradients(w: FunctionWriter, call: Call, fused: Call, to: str, scale: str) -> str:
    """A product by a matrix turned, then another, times a number, added to this matrix."""
    p, q = (product(c.op, *(w.schedule.views[v] for v in c.operands)) for c in (fused, call))
    w.unit.need("descent")
    left, a, b = (
        at(w.base_pointer(v), str(w.schedule.views[v].offset))
        for v in (fused.operands[0], *call.operands)
    )
    same = (left, p.am, p.ak, p.m) == (b, q.bk, q.bn, q.k)
    both = _tile(w, "BOTH", p.m, p.k) if same else "0"
    step = _tile(w, "STEP", q.k, q.n) if both == "0" else "0"
    return (
        f"dl_gemm_both_f32({both}, {step}, {p.m}, {p.n}, {p.k}, {left}, {p.am}, {p.ak}, {to},"
        f" {w.pointer(fused.op.result)}, {q.k}, {a}, {q.am}, {q.ak}, {b}, {q.bk}, {q.bn}, {scale},"
        f" {w.scratch(fused, 'float')}, {w.scratch(call, 'float')});"
    )


def _tile(w: FunctionWriter, kind: str, rows: int, columns: int) -> str:
    """The tile for so many rows of a batch, which is written if it is not there, or 0."""
    most = _BOTH_MAX if kind == "BOTH" else _STEP_MAX
    if not 1 < rows <= most or columns < _COLUMNS_MIN:
        return "0"
    w.unit.need("descent")
    rest = columns % _LANES
    arguments = f"({rows}, {0 if not rest else 1 if rest > _LANES // 2 else 2})"
    made = f"DL_{kind}{arguments}"
    if made not in w.unit.tables:
        w.unit.tables.append(made)
    return f"DL_{kind}_OF{arguments}"
