"""The steps before trees: sums of labels, and the search for cuts."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..question import Kept, Step
from ..sums import StatisticsError, Sum, Totals, counts
from .bins import BINS_MAX, F32, STEP_COUNTS, Cuts, CutSearch, counted, keys_of
from .objectives import F64, Objective
from .site_rows import SiteRows

#: Labels are f32 of any unit, and so are their squares.
_LABEL = (160, 150)
LOSS = (300, 100)
#: A search begins again when sites come or go; so often at most.
_BEGINS_MAX = 5
#: Values that are declared for one feature.
_DECLARED_MAX = 1 << 16


@dataclass(frozen=True)
class Begun:
    """What is known before the first tree."""

    sites: int
    rows: float
    """Rows that trees grow on."""
    weight: float
    """The sum of their weights."""
    held_out: float
    left_out: float
    labels: F64
    """Sums of the labels, f64[1]; or the weight of each class, f64[classes]."""
    squares: float
    """The sum of the labels' squares."""
    cuts: Cuts
    known: tuple[float, ...]
    """By feature: rows where it is not missing."""
    exact: tuple[bool, ...]
    """By feature: whether its bins are its values."""
    undeclared: tuple[float, ...]
    """By feature: rows with a value that was not declared."""


def declared_values(values: Mapping[str, Any], names: Sequence[str]) -> dict[int, F32]:
    """Values by feature from (first, last) or (first, last, step). Raises StatisticsError."""
    made: dict[int, F32] = {}
    for name, given in values.items():
        if name not in names:
            raise StatisticsError(f"values of `{name}`, which is no feature of numbers")
        numbers = [float(v) for v in given]
        if len(numbers) not in (2, 3) or not np.isfinite(numbers).all():
            raise StatisticsError(
                f"values of `{name}` are given as {given}", "give (first, last) or a step as well"
            )
        first, last = numbers[:2]
        step = numbers[2] if len(numbers) == 3 else 1.0
        if not (step > 0 and last >= first and (last - first) / step < _DECLARED_MAX):
            raise StatisticsError(
                f"values of `{name}` from {first:g} to {last:g} by {step:g}",
                f"a rising range of at most {_DECLARED_MAX:,} values",
            )
        count = int(np.floor((last - first) / step + 1e-9)) + 1
        made[names.index(name)] = np.unique((first + step * np.arange(count)).astype(np.float32))
    return made


def begin_sums(outputs: int, declared: Mapping[int, F32], features: int) -> tuple[Sum, ...]:
    """The sums of the first step."""
    found = [
        counts("rows"),
        counts("held_out"),
        counts("left_out"),
        counts("unlisted"),
        Sum("weight", (), *_LABEL),
        Sum("label", (outputs,), *_LABEL),
        Sum("square", (), *LOSS),
    ]
    if declared:
        found.append(counts("declared", sum(map(len, declared.values()))))
        found.append(counts("undeclared", features))
    return tuple(found)


def begin_numbers(rows: SiteRows, outputs: int, declared: Mapping[int, F32]) -> dict[str, Any]:
    """A site's numbers for the first step."""
    growing = ~rows.held_out
    label = rows.label[growing].astype(np.float64)
    pull = np.ones(len(label)) if rows.pull is None else rows.pull[growing].astype(np.float64)
    summed = (
        np.bincount(label.astype(np.int64), pull, minlength=outputs)
        if outputs > 1
        else np.array([(pull * label).sum()])
    )
    found = {
        "rows": np.array(int(growing.sum())),
        "held_out": np.array(int(rows.held_out.sum())),
        "left_out": np.array(rows.left_out),
        "unlisted": np.array(rows.unlisted),
        "weight": pull.sum(),
        "label": summed,
        "square": (pull * np.square(label)).sum(),
    }
    if declared:
        parts, strange = [], np.zeros(len(rows.columns), np.int64)
        for feature, values in declared.items():
            column = rows.columns[feature][growing]
            column = column[~np.isnan(column)]
            places = np.minimum(np.searchsorted(values, column), len(values) - 1)
            same = values[places] == column
            parts.append(np.bincount(places[same], minlength=len(values)))
            strange[feature] = int((~same).sum())
        found["declared"], found["undeclared"] = np.concatenate(parts), strange
    return found


def cells_numbers(rows: SiteRows, step: Step, kept: Kept) -> dict[str, Any]:
    """A site's numbers for a step of the search."""
    cells = step.integers("cells", -1, 2)
    length, bits = step.integers("form", 2).tolist()
    growing = ~rows.held_out
    keys = kept.get("keys")
    if keys is None:
        # In order, so that a search for one is near the search for the next.
        known = [column[growing & ~np.isnan(column)] for column in rows.columns]
        keys = kept["keys"] = [np.sort(keys_of(column)) for column in known]
    return {
        "rows": np.array(int(growing.sum())),
        "cells": counted(keys, cells, length, bits),
    }


def begin(
    objective: Objective,
    outputs: int,
    features: int,
    declared: Mapping[int, F32],
    max_bin: int,
    floor: int,
) -> Generator[Step, Totals, Begun]:
    """Asks the steps before trees. Raises StatisticsError where there can be none."""
    if not 2 <= max_bin <= BINS_MAX:
        raise StatisticsError(f"max_bin is {max_bin}", f"2 to {BINS_MAX}")
    for _ in range(_BEGINS_MAX):
        totals = yield Step("begin", begin_sums(outputs, declared, features))
        rows = totals.number("rows")
        _check(objective, totals)
        search = CutSearch(features, max_bin, floor)
        at = 0
        for feature, values in declared.items():
            search.declare(feature, values, totals["declared"][at : at + len(values)])
            at += len(values)
        same = True
        while same and len(search.open):
            bits, cells = search.bits, search.open
            form, found = np.array([search.length, bits], np.int64), []
            for some in np.split(
                cells, range(STEP_COUNTS >> bits, len(cells), STEP_COUNTS >> bits)
            ):
                part = yield Step(
                    "bins",
                    (counts("rows"), counts("cells", len(some), 1 << bits)),
                    {"cells": some, "form": form},
                )
                found.append(part["cells"])
                same = same and part.number("rows") == rows
            if same:
                search.take(np.concatenate(found), bits)
        if same:
            break
    else:
        raise StatisticsError(
            "sites came and went while bins were searched", "ask again once they stay up"
        )
    undeclared = totals.get("undeclared", np.zeros(features))
    return Begun(
        totals.sites,
        rows,
        totals.number("weight"),
        totals.number("held_out"),
        totals.number("left_out"),
        totals["label"],
        totals.number("square"),
        search.cuts(),
        tuple(float(search.rows(f) + undeclared[f]) for f in range(features)),
        tuple(search.is_exact(f) for f in range(features)),
        tuple(undeclared.tolist()),
    )


def _check(objective: Objective, totals: Totals) -> None:
    unlisted, rows = int(totals.number("unlisted")), int(totals.number("rows"))
    if unlisted:
        raise StatisticsError(
            f"{unlisted:,} rows have a target that {objective.name} does not take",
            {
                "binary:logistic": "give numbers from 0 to 1, or its two classes in order",
                "multi:softprob": "give whole numbers below num_class, or all its classes",
                "count:poisson": "give counts of 0 and more",
            }.get(objective.name, "give finite numbers"),
        )
    if rows >= 2 and not totals.number("weight") > 0:
        raise StatisticsError("all weights are 0")
    if rows < 2:
        raise StatisticsError(f"{rows} rows have a target: too few to learn from")
