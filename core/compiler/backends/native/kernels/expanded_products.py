"""Products whose second operand a group computes while it is packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....passes.schedule.block_steps import Call
from ....passes.schedule.expanded_operands import part_of_matrix
from ....passes.schedule.product_layouts import Product, product
from ..expansion_writer import ExpansionWriter, expand_of
from .copies import at

if TYPE_CHECKING:
    from ..emit import FunctionWriter


def expanded_dot(w: FunctionWriter, call: Call) -> list[str]:
    """A product stored row by row."""
    p = product(call.op, *(w.schedule.views[v] for v in call.operands))
    w.count += 1
    target = f"target{w.count}"
    line = expanded_product(w, call, p, f"&{target}")
    return [f"const dl_target {target} = {{{w.pointer(call.op.result)}, {p.n}, 0, 0}};", line]


def expanded_product(w: FunctionWriter, call: Call, p: Product, target: str) -> str:
    """The call; `target` is a pointer to a dl_target."""
    loop, right = call.expands, w.schedule.views[call.operands[1]]
    part = part_of_matrix(right, p)
    assert loop is not None and part is not None, "the operand is a part of a matrix"
    place, literals = w.memory_of(loop.loads)
    writer = ExpansionWriter(w.schedule, loop, place, literals)
    name = w.unit.function("expand", writer.write_part(right.base, part.columns))
    name = w.unit.function("expanded", expand_of(name, writer))
    n = w.context(writer, place)
    w.count += 1
    source = f"source{w.count}"
    fields = f"{name}, context{n}, {part.row}, {part.column}, {int(part.turned)}"
    w.lines.append(f"const dl_source {source} = {{{fields}}};")
    w.unit.need("expanded")
    left = w.schedule.views[call.operands[0]]
    a = at(w.base_pointer(call.operands[0]), str(left.offset))
    return (
        f"dl_gemm_expanded({p.m}, {p.n}, {p.k}, {a}, {p.am}, {p.ak}, &{source}, {target},"
        f" {w.scratch(call, 'float')});"
    )
