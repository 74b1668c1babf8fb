"""Every primitive runs over many lanes: by a rule, elementwise, or lane by lane on purpose."""

from __future__ import annotations

from delian.core.compiler.primitives import PRIMITIVES

#: Each lane has its own place, kernel or the like: a loop over the lanes is the best there is.
LANE_BY_LANE: set[str] = {"conv_weight_grad", "grouped_conv_weight_grad"}
#: Without operands, so the same in every lane.
SAME_IN_ALL = {"constant", "iota"}


def _on_lists(name: str) -> bool:
    return name.startswith("list_")


def test_every_primitive_has_a_batching_rule() -> None:
    lacking = {
        row.name
        for row in PRIMITIVES.values()
        if row.batch is None and row.c is None and row.regions == 0 and not _on_lists(row.name)
    }
    assert lacking <= SAME_IN_ALL | LANE_BY_LANE, (
        f"{sorted(lacking - SAME_IN_ALL - LANE_BY_LANE)} have no batching rule: add one to the row"
        " (core/compiler/primitives/batching.py), or name it here when a loop over the lanes is"
        " the best there is"
    )
