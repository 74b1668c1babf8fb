"""What is understood of data and what is wrong with it, as lines of a terminal and on a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..report import data_page
from ..report import page_parts as parts
from ..report.page_parts import escaped
from ..report.svg import whole

#: Columns of a table that a terminal shows, and characters of a cell.
_COLUMNS, _CHARS = 40, 44
_WORDS = {"wrong": "wrong", "warning": "warning", "note": "note"}
_HEAD = ("column", "role", "kind", "missing", "values", "features")


def lines(known: Mapping[str, Any]) -> list[str]:
    """What a terminal shows: how the data lie on devices, the columns, and the findings."""
    facts = data_page.lines(known)
    width = max(len(what) for what, _ in facts)
    out = [f"{what:<{width}}  {said}" for what, said in facts]
    columns = known.get("columns", [])
    if columns:
        out += ["", *_aligned([_HEAD, *(_cells(known, each) for each in columns[:_COLUMNS])])]
        if len(columns) > _COLUMNS:
            out.append(f"and {len(columns) - _COLUMNS} more columns: --json or --out has all")
    findings = known.get("findings", [])
    if findings:
        out.append("")
    for each in findings:
        out.append(f"{_WORDS[each['level']]}: {each['text']}")
        if each["hint"]:
            out.append(f"  hint: {each['hint']}")
    return out


def page(known: Mapping[str, Any], name: str) -> str:
    """The whole document."""
    return data_page.page(known, name, _findings(known) + _columns(known))


def _cells(known: Mapping[str, Any], column: Mapping[str, Any]) -> tuple[str, ...]:
    absent, rows = column["missing"], column["missing"] + column["rows"]
    share = f"{whole(absent)} ({100 * absent / max(rows, 1):.0f}%)" if absent else ""
    return (
        column["column"],
        column["role"],
        column["kind"],
        share,
        known["contents"][column["column"]],
        whole(column["features"]) if column["features"] else "",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    cut = [
        [
            " ".join(c.split()) if len(c) <= _CHARS else f"{' '.join(c[:_CHARS].split())}..."
            for c in r
        ]
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cut
    ]


def _findings(known: Mapping[str, Any]) -> str:
    findings = known.get("findings", [])
    if not findings:
        return parts.section("Findings", "Nothing that looks wrong was found.")
    items = "".join(map(_item, findings))
    lead = (
        "What falsifies figures (wrong), what makes learning worse (warning), and what is good to"
        " know (note)."
    )
    return parts.section("Findings", lead, items)


def _item(finding: Mapping[str, Any]) -> str:
    level = finding["level"]
    text = f"<b>{_WORDS[level]}</b>: {_marked(finding['text'])}."
    hint = f" <i>{_marked(finding['hint'])}.</i>" if finding["hint"] else ""
    return f'<p class="notice {level}">{text}{hint}</p>'


def _marked(text: str) -> str:
    """Text with names between backquotes as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escaped(text))


def _columns(known: Mapping[str, Any]) -> str:
    columns = known.get("columns", [])
    if not columns:
        return ""
    head = "".join(f"<th>{escaped(c)}</th>" for c in _HEAD)
    rows = []
    for each in columns:
        first, *others = _cells(known, each)
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in others)
        rows.append(f"<tr><th>{escaped(first)}</th>{cells}</tr>")
    table = (
        f'<div class="scroll"><table class="columns"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    lead = "What each column is, what is in it, and how many features it becomes."
    return parts.section("Columns", lead, table)
