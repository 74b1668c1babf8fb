"""`delian data show`: what is understood of data, and what is wrong with it, as plain data.

It looks at a user's own file or folder, on the user's machine: ranges and values are those of all
rows. What columns become is found by sums over devices nevertheless, as a run finds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.nouns import counted
from ...core.learning.data.federated_data import FederatedData
from ...core.learning.data.tabular.brought_folders import read_images
from ...core.learning.data.tabular.columns import as_texts, missing
from ...core.learning.data.tabular.series import ENTITY_NAMES, time_column
from ...core.learning.data.tabular.table_rows import TableRows
from ..report import data_page
from ..scenario import data_settings
from ..scenario.datasets import load_data, table_of_scenario
from ..scenario.scenario import Scenario
from . import column_facts, column_findings, image_facts, row_findings
from .finding import Finding, ordered

#: Rows of a table that may be a time series.
_SERIES_ROWS = 50


def inspected(scenario: Scenario, path: Path | None) -> dict[str, Any]:
    """`data_page.facts`, with `columns`, `images` and `findings`.

    path: of the data, in the place of the scenario's. Raises DelianError for data that cannot be
    read.
    """
    loaded = load_data(scenario, path)
    known = data_page.facts(loaded)
    findings: list[Finding] = []
    file = path or scenario.data_file
    source = scenario.data
    windows = isinstance(source, data_settings.SeriesData)
    if file is not None and isinstance(source, data_settings.TableData):
        found = _table(scenario, file, loaded)
        known["columns"] = [each.to_json() for each in found[0]]
        known["contents"] = {each.column: each.content for each in found[0]}
        findings += found[1]
    elif file is not None and isinstance(source, data_settings.ImagesData):
        entries, _ = read_images(file, source.split)
        images = image_facts.facts_of(entries)
        known["images"] = images.to_json()
        findings += image_facts.findings_of(images, source.side)
    findings += row_findings.findings_of(loaded, windows)
    known["findings"] = [each.to_json() for each in ordered(findings)]
    return known


def _table(
    scenario: Scenario, path: Path, loaded: FederatedData
) -> tuple[list[column_facts.ColumnFacts], list[Finding]]:
    """Facts of a table's columns, and what is wrong with them."""
    columns, rows = table_of_scenario(scenario, path)
    roles = {rows.target_name: "target"}
    if rows.device_name:
        roles[rows.device_name] = "device"
    if rows.series is not None and rows.series.time:
        roles[rows.series.time] = "time"
    facts = column_facts.facts_of(columns, roles, loaded.card.preparation or {})
    findings = list(column_findings.findings_of(rows, facts))
    findings += _texts(rows, facts)
    if rows.series is None and (time := _series_time(columns, rows)):
        text = f"rows may be a time series by `{time}`, and are dealt out and split by chance"
        hint = "--window 24 makes each 24 rows that follow one another an example, split by time"
        findings.append(Finding("note", "series", text, hint, time))
    return facts, findings


def _series_time(columns: dict[str, Any], rows: TableRows) -> str:
    """A column of times that differ in all rows of a device; empty: there is none."""
    time = time_column(columns, "", rows.source)
    if not time or len(columns[time]) < _SERIES_ROWS:
        return ""
    values = columns[time]
    # Numbers are steps of time if they are whole; others may be measured, such as durations.
    if values.dtype.kind == "f" and not (np.rint(values) == values).all():
        return ""
    times = as_texts(values)
    entity = next((n for n in columns if n == rows.device_name or n.lower() in ENTITY_NAMES), "")
    if entity:
        times = np.array(
            [f"{t}\0{e}" for t, e in zip(times, as_texts(columns[entity]), strict=True)]
        )
    return time if len(np.unique(times)) == len(times) else ""


def _texts(rows: TableRows, facts: list[column_facts.ColumnFacts]) -> list[Finding]:
    """Texts that are empty, or the same for different labels."""
    found = []
    for each in facts:
        if each.kind != "text" or each.role != "feature":
            continue
        values = rows.columns[each.column]
        absent = missing(values)
        if absent.any():
            found.append(
                Finding(
                    "warning",
                    "empty_texts",
                    counted(
                        int(absent.sum()),
                        f"text of `{each.column}` is empty",
                        f"texts of `{each.column}` are empty",
                    ),
                    "leave these rows out",
                    each.column,
                )
            )
        texts, index = np.unique(values[~absent], return_inverse=True)
        labels = rows.y[~absent] if rows.windows is None else rows.y
        if rows.is_regression or len(labels) != len(index):
            continue
        first = np.full(len(texts), -1, np.int64)
        first[index[::-1]] = labels[::-1]
        both = np.unique(index[labels != first[index]])
        if len(both):
            found.append(
                Finding(
                    "warning",
                    "two_labels",
                    counted(
                        len(both),
                        f"text of `{each.column}` has more than one label",
                        f"texts of `{each.column}` have more than one label",
                    ),
                    "see how they were labelled",
                    each.column,
                )
            )
    return found
