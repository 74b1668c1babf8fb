"""How much memory the lists of a program take, where its loops say it.

That much of the arena is lent to the call's heap (`dl_lend`). A thread keeps its arena from call to
call. Memory that each call takes from the system costs more than filling it: a fault for each page.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import Block, ListType, Op, TensorType, Value
from ...passes.condition_facts import Interval

#: At most so many bytes are lent; the rest is taken from the system as the lists grow.
LENT_BYTES_MAX = 32 * 2**20
#: Lists of fewer bytes fit in the one chunk that a heap takes first.
LENT_BYTES_MIN = 2**12
#: What is in front of a payload, and what a node takes a multiple of: dl_node, DL_GRAIN.
_NODE_BYTES, _GRAIN = 8, 16
#: What is in front of all nodes: DL_CHUNK_START.
_CHUNK_START = 64


def lent_bytes(block: Block, ranges: Mapping[Value, Interval]) -> int:
    """The bytes of the arena that are lent to a call's lists; 0 for none.

    Loops of unknown trips count once, as do branches that may not run.
    """
    found = _pushed(block, ranges)
    return min(found + _CHUNK_START, LENT_BYTES_MAX) if found >= LENT_BYTES_MIN else 0


def _pushed(block: Block, ranges: Mapping[Value, Interval]) -> int:
    total = 0
    for op in block.ops:
        if op.name == "list_push" and isinstance(op.results[0].type, ListType):
            total += _node(op) if not op.results[0].type.lanes else 0
        inside = sum(_pushed(region, ranges) for region in op.regions)
        total += inside * (_trips(op, ranges) if op.name == "for" else 1)
    return total


def _node(op: Op) -> int:
    item = op.operands[1].type
    payload = item.nbytes if isinstance(item, TensorType) else _NODE_BYTES
    return -(-(_NODE_BYTES + payload) // _GRAIN) * _GRAIN


def _trips(op: Op, ranges: Mapping[Value, Interval]) -> int:
    """At most so many; 1 where that is unknown."""
    lo, hi = (ranges.get(v) for v in op.operands[:2])
    if lo is None or hi is None:
        return 1
    trips = hi[1] - lo[0]
    return max(trips, 0) if trips < LENT_BYTES_MAX else 1
