"""The primitives: one row each, with every rule that the compiler has about it (`table.Primitive`).

`PRIMITIVES` holds the rows by name; `infer` checks every operation as it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from ...common.errors import TypeRuleError
from ..ir import Block, Type, Value
from . import (
    attention,
    binary,
    control,
    conv,
    grouped,
    index,
    linear,
    lists,
    quantised,
    random_bits,
    reduce,
    shape,
    solve,
    unary,
)
from .attributes import ATTRIBUTES, refuse
from .table import Primitive

__all__ = ["PRIMITIVES", "Primitive", "infer"]

_FAMILIES = (
    *(unary, binary, shape, index, reduce, linear, attention, solve),
    *(conv, grouped, quantised, random_bits, lists, control),
)

#: Every primitive by its name.
PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    {row.name: row for family in _FAMILIES for row in family.ROWS}
)

# What `infer` looks at, in one lookup: it runs once for every operation that is ever built.
_RULES = {
    row.name: (
        row.infer,
        frozenset(row.attrs),
        tuple([(key, ATTRIBUTES[key]) for key in row.attrs]),
        row.operands,
        row.regions,
    )
    for row in PRIMITIVES.values()
}


def infer(
    name: str, operands: Sequence[Value], attrs: Mapping[str, Any], regions: Sequence[Block]
) -> tuple[Type, ...]:
    """The types of an operation's results.

    Raises TypeRuleError when there is no such primitive, when the number of operands or regions or
    the names of the attributes are not the row's, when an attribute is not what `ATTRIBUTES` says,
    and when the row's own type rule refuses.
    """
    found = _RULES.get(name)
    if found is None:
        _refuse_name(name)
    rule, keys, kinds, count, region_count = found
    if attrs.keys() != keys:
        _refuse_attrs(name, attrs, keys)
    if count is not None and len(operands) != count:
        raise TypeRuleError(f"{name}: takes {count} operands, not {len(operands)}")
    if region_count is not None and len(regions) != region_count:
        raise TypeRuleError(f"{name}: takes {region_count} regions, not {len(regions)}")
    for key, kind in kinds:
        if not kind.holds(attrs[key]):
            refuse(name, key, kind, attrs[key])
    return rule([v.type for v in operands], attrs, regions)


def _refuse_name(name: str) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(name, PRIMITIVES, 1)
    hint = f"the nearest name is {near[0]}" if near else ""
    raise TypeRuleError(f"{name}: there is no such primitive", hint)


def _refuse_attrs(name: str, attrs: Mapping[str, Any], keys: frozenset[str]) -> NoReturn:
    missing, extra = sorted(keys - attrs.keys()), sorted(attrs.keys() - keys)
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"does not know {', '.join(extra)}"] if extra else []
    raise TypeRuleError(f"{name}: attributes: {' and '.join(parts)}")
