"""Second operands of products that are computed while they are packed.

A group of elementwise operations that one product alone reads, as the matrix that its kernel packs
panel by panel, is given to that product. The packing has it compute the part that comes next, so
the matrix is never stored: of a weight in few bits there are codes and scales, and a panel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir import DType, Value
from ..region_rules import WIDENED_MIN, widens
from .block_steps import Call, Loop
from .execution_order import Units
from .product_layouts import Product, product
from .views import View, cuts_of, join_cuts


@dataclass(frozen=True, slots=True)
class Part:
    """The operand as a part of the matrix that a group computes, row by row."""

    columns: int
    """Columns of the whole matrix."""
    row: int
    """The first row that the operand has of it."""
    column: int
    """The first column."""
    turned: bool
    """The operand's rows are the matrix's columns."""


def part_of_matrix(view: View, p: Product) -> Part | None:
    """Which part of its base a product's second operand is; None where it is no matrix of it."""
    if p.batch or min(p.k, p.n) < 2 or 1 not in (p.bk, p.bn):
        return None
    turned = p.bk == 1
    columns = p.bn if turned else p.bk
    size: int = view.base.tensor.size
    high, wide = (p.n, p.k) if turned else (p.k, p.n)
    if columns < 2 or size % columns or view.offset < 0:
        return None
    row, column = divmod(view.offset, columns)
    if row + high > size // columns or column + wide > columns:
        return None
    return Part(columns, row, column, turned)


def expand_operands(units: Units, results: tuple[Value, ...]) -> None:
    """Gives groups to the products that alone read what they compute."""
    readers = units.readers()
    kept = {units.base(r) for r in results}
    for u in sorted(units.units):
        step = units.units[u].step
        if isinstance(step, Call) and step.op.name == "dot" and step.op.result.dtype is DType.F32:
            base = units.base(step.operands[1])
            p = units.unit_of.get(base)
            alone = base not in kept and readers[base] == {u}
            if p is not None and alone and not _between(units, u, p):
                loop = _group(units, step, base, p)
                if loop is not None:
                    units.units[u].step = replace(step, expands=loop)
                    units.absorb(u, p)


def _group(units: Units, call: Call, base: Value, p: int) -> Loop | None:
    """The group of unit p, where it computes the operand, by rows and columns, and no more."""
    unit = units.units[p]
    loop = unit.step
    if not isinstance(loop, Loop) or loop.reductions or loop.stores or loop.product is not None:
        return None
    only = base in unit.members and set(unit.stored) == {base}
    if not only or base.tensor.size < WIDENED_MIN or not any(map(widens, loop.ops)):
        return None
    p_ = product(call.op, *(units.views[v] for v in call.operands))
    part = part_of_matrix(units.views[call.operands[1]], p_)
    if part is None or units.base(call.operands[0]) is base:
        return None
    space = join_cuts(loop.space, cuts_of((base.tensor.size // part.columns, part.columns)))
    return None if space is None else replace(loop, space=space)


def _between(units: Units, u: int, p: int) -> bool:
    """Whether a third unit must run after unit p and before unit u."""
    return any(p in t.direct and units.units[u].deps >> i & 1 for i, t in units.units.items())
