"""Matrices that a loop multiplies with in every trip are packed once, before the loop.

Where few rows meet a large matrix, as in a recurrent layer's step, packing it in each trip costs as
much as the product, and reading it where it lies, rows far apart, costs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....ir import DType, Value
from ....passes.schedule.block_steps import Call, Loop
from ....passes.schedule.product_layouts import Product, product

if TYPE_CHECKING:
    from ..emit import FunctionWriter

#: Columns that a panel is padded to, at most, as in gemm.h.
_PANEL = 32
#: With more rows than this a product hides what packing costs.
ROWS_MAX = 64
#: Matrices of one loop are packed up to so many bytes in all.
PACKED_BYTES_MAX = 64 * 2**20


def packed_products(loop: Call) -> Iterator[tuple[Call, Product, Value]]:
    """The products in a loop's own body whose second operand is one of its constants."""
    if loop.op.name != "for":
        return
    (body,) = loop.bodies
    consts = set(body.params[1 : 1 + int(loop.op.attrs["consts"])])
    room = PACKED_BYTES_MAX
    for step in body.steps:
        call = step.product if isinstance(step, Loop) else step
        if call is None or call.op.name != "dot" or call.op.result.dtype is not DType.F32:
            continue
        right = body.views[call.operands[1]]
        p = product(call.op, *(body.views[v] for v in call.operands))
        few = 1 < p.m <= ROWS_MAX and p.n > 1 and p.k > 1 and not p.batch
        if few and right.base in consts and _bytes(p) <= room:
            room -= _bytes(p)
            yield call, p, call.operands[1]


def _bytes(p: Product) -> int:
    return 4 * p.k * (-(-p.n // _PANEL) * _PANEL)


def scratch_bytes(loop: Call) -> int:
    """The working memory that a loop's packed matrices take."""
    return sum(_bytes(p) for _, p, _ in packed_products(loop))


def write_panels(w: FunctionWriter, loop: Call) -> None:
    """Packs, before a loop, what its products read, and notes where."""
    before, w.schedule = w.schedule, loop.bodies[0]
    at = 0
    for call, p, value in packed_products(loop):
        w.unit.need("packed")
        offset = w.schedule.views[value].offset
        source = f"{w.base_pointer(value)} + {offset}"
        panels = f"{w.scratch(loop, 'float')} + {at}"
        w.lines.append(f"dl_pack_all({p.k}, {p.n}, {source}, {p.bk}, {p.bn}, {panels});")
        w.packed[call] = panels
        at += _bytes(p) // 4
    w.schedule = before


def packed_dot(w: FunctionWriter, call: Call) -> list[str]:
    """A product stored row by row."""
    p = product(call.op, *(w.schedule.views[v] for v in call.operands))
    w.count += 1
    target = f"target{w.count}"
    head = f"const dl_target {target} = {{{w.pointer(call.op.result)}, {p.n}, 0, 0}};"
    return [head, packed_product(w, call, f"&{target}")]


def packed_product(w: FunctionWriter, call: Call, target: str) -> str:
    """A product that reads packed panels; `target` is a pointer to a dl_target."""
    view = w.schedule.views[call.operands[0]]
    p = product(call.op, *(w.schedule.views[v] for v in call.operands))
    a = f"{w.base_pointer(call.operands[0])} + {view.offset}"
    return f"dl_gemm_packed({p.m}, {p.n}, {p.k}, {a}, {p.am}, {p.ak}, {w.packed[call]}, {target});"
