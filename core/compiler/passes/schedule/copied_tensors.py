"""What a planned program copies: tensors that could not be computed, or changed, where they lie.

A copy is a loop that computes nothing, a move that the memory plan needs (a loop's start, the end
of a round or of a branch, a result), or an update of a tensor whose old elements stay as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ir import Op, TensorType, Value
from .block_steps import UPDATES, Call, Loop, Schedule
from .memory_plan import MemoryPlan, Move
from .views import is_whole


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy."""

    type: TensorType
    depth: int
    """The loops around it."""
    when: str
    op: Op | None = None
    """The operation with regions, or the update, that it is made for; None for others."""


def copies(schedule: Schedule, plan: MemoryPlan) -> list[Copied]:
    """The copies of a program in the order of its text."""
    last = [Copied(schedule.views[r].base.tensor, 0, "result") for _, r in plan.results]
    return [*_block(schedule, plan, 0), *last]


def _block(schedule: Schedule, plan: MemoryPlan, depth: int) -> Iterator[Copied]:
    for step in schedule.steps:
        if isinstance(step, Loop):
            computes = step.ops or step.reductions or step.product or step.blank
            if not computes and any(_is_tensor(schedule, v) for v in step.loads):
                yield from (Copied(v.tensor, depth, "loop") for v, _ in step.stores)
            continue
        op = step.op
        if op.name in UPDATES and not _is_in_place(schedule, plan, step):
            yield Copied(op.result.tensor, depth, "update", op)
        yield from _moves(plan.before.get(op, ()), depth, "start", op)
        inner = depth + (op.name in ("for", "while"))
        for region, body in enumerate(step.bodies):
            yield from _block(body, plan, inner)
            yield from _moves(plan.after.get((op, region), ()), inner, "end", op)


def _is_tensor(schedule: Schedule, value: Value) -> bool:
    """Whether a value is read from memory, and not a number that is repeated."""
    base = schedule.views[value].base
    return base.shape != () and base not in schedule.iotas


def _moves(moves: Sequence[Move], depth: int, when: str, op: Op) -> Iterator[Copied]:
    return (Copied(move.target.tensor, depth, when, op) for move in moves)


def _is_in_place(schedule: Schedule, plan: MemoryPlan, call: Call) -> bool:
    x, result = call.operands[0], call.op.result
    view = schedule.views[x]
    place = plan.places.get(view.base)
    return place is not None and place == plan.places.get(result) and is_whole(view, x)
