"""How a table's columns become features, asked of simulated devices as of the sites of a fleet.

The question is `preparation`, about the rows that each device trains on. Sums travel as they do
under masks, in the same integers; here no masks are added and removed again, which changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.common.nouns import counted
from ...core.learning.data.tabular.columns import Column
from ...core.learning.data.tabular.encoding import Encoding
from ...core.learning.data.tabular.fitted_features import Fitted
from ...core.learning.data.tabular.table_rows import TableRows
from ...core.statistics.methods.preparation import (
    COLUMNS_MAX,
    Found,
    Preparation,
    PreparationAnswer,
)
from ...core.statistics.site_table import Table
from .local_sites import LocalSites

#: The floor is one in so many rows, within bounds.
_ROWS_A_FLOOR = 50
_FLOOR = (2, 5)
#: Columns that are asked about in one question.
_COLUMNS = min(256, COLUMNS_MAX)
#: Columns alike that are named one by one, and notes in all.
_ALIKE, _NOTES = 3, 30
_WHY = {
    "empty": "has no value",
    "constant": "has one value",
    "id": "has another text in each row",
    "values": "has too many different texts, each in few rows",
}


def prepared(
    rows: TableRows,
    trained_on: Sequence[NDArray[np.int64]],
    levels: int = Preparation.levels,
    buckets: int = Preparation.buckets,
) -> Fitted:
    """How a table's columns become features.

    Args:
        rows: the table.
        trained_on: the rows of each device that trains.
        levels: values of a column that become features; the rest becomes one.
        buckets: features of a column of texts.

    Raises:
        DelianError: a column that was named by the user becomes no feature.
    """
    total = sum(len(part) for part in trained_on)
    floor = int(np.clip(total // _ROWS_A_FLOOR, *_FLOOR))
    names = list(rows.columns)
    found: list[Found] = []
    steps = 0
    for start in range(0, len(names), _COLUMNS):
        asked = tuple(names[start : start + _COLUMNS])
        question = Preparation(asked, floor, levels, buckets)
        answer = _asked(rows.columns, question, trained_on)
        found += answer.columns
        steps += int(answer.facts["steps"])
    if rows.chosen and (out := [each for each in found if each.encoder is None]):
        raise DelianError(
            f"column `{out[0].column}` of {rows.source} {_WHY[out[0].kind]}: it is no feature",
            "leave it out of data.columns",
        )
    encoders = tuple(each.encoder for each in found if each.encoder is not None)
    encoding = Encoding(encoders, rows.series)
    how = (
        f"found by sums over the rows that {len(trained_on)} devices train on, in {steps} steps, as"
        " sites of a fleet answer `delian ask preparation`"
    )
    preparation = {
        "how": how,
        "sites": len(trained_on),
        "rows": total,
        "steps": steps,
        "floor": floor,
        "columns": [_said(each) for each in found],
        **encoding.to_json(),
    }
    return Fitted(encoding, preparation, _all_notes(found))


def _asked(
    columns: Mapping[str, Column],
    question: Preparation,
    trained_on: Sequence[NDArray[np.int64]],
) -> PreparationAnswer:
    sites = [Table({name: columns[name][part] for name in question.of}) for part in trained_on]
    answer = LocalSites(sites, masked=False).answer(question)
    assert isinstance(answer, PreparationAnswer)
    return answer


def _said(found: Found) -> dict[str, Any]:
    """A column as a report has it."""
    return {
        "column": found.column,
        "kind": found.kind,
        "rows": found.rows,
        "missing": found.missing,
        "mean": found.mean,
        "deviation": found.deviation,
        "levels": [list(each) for each in found.levels],
        "odd": found.odd,
        "features": len(found.encoder.names()) if found.encoder else 0,
    }


def _all_notes(found: Sequence[Found]) -> tuple[str, ...]:
    """What was left out or filled in, in words; of many columns alike in one sentence."""
    notes = [note for each in found if each.encoder is not None for note in _notes(each)]
    for kind, why in _WHY.items():
        names = [each.column for each in found if each.encoder is None and each.kind == kind]
        if len(names) <= _ALIKE:
            notes += [f"column `{name}` {why} and is left out" for name in names]
            continue
        shown = ", ".join(f"`{name}`" for name in names[:_ALIKE])
        why = why.replace("has ", "have ", 1)
        notes.append(f"{len(names)} columns {why} and are left out: {shown} ...")
    if len(notes) > _NOTES:
        notes = [*notes[:_NOTES], f"and {len(notes) - _NOTES} more notes (data.preparation)"]
    return tuple(notes)


def _notes(found: Found) -> list[str]:
    """What was filled in of a column, in words."""
    name = f"`{found.column}`"
    assert found.encoder is not None
    notes = []
    if found.odd:
        one = f"value of {name} is no {found.kind}, and counts as missing"
        many = f"values of {name} are no {found.kind}s, and count as missing"
        notes.append(counted(found.odd, one, many))
    if found.missing and found.kind in ("number", "date"):
        flag = "; a feature says so" if found.encoder.missing else ""
        notes.append(f"{_filled(found.missing, name)} its mean{flag}")
    if found.missing and found.kind == "category" and not found.encoder.missing:
        notes.append(f"{_filled(found.missing, name)} its most frequent value")
    if found.kind == "category" and found.encoder.other:
        rare = found.rows - sum(rows for _, rows in found.levels)
        which = counted(rare, f"row of {name} has a rare value", f"rows of {name} have rare values")
        notes.append(f"{which}; all rare ones are one category")
    return notes


def _filled(missing: int, name: str) -> str:
    one, many = f"missing value of {name} is filled", f"missing values of {name} are filled"
    return f"{counted(missing, one, many)} with"
