"""What a report's page says of metrics of a task's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from . import page_parts as parts
from . import report_plots
from .measures import Measure
from .own_metrics import judged, lines, show
from .page_parts import escaped
from .svg import both

#: Rows of the table: the newest.
ROUNDS_MAX = 500


def section(report: Mapping[str, Any]) -> str:
    """The part of the report's page; empty where the task has no metrics of its own."""
    found = judged(report["rounds"])
    if not found:
        return ""
    names = list(found[-1]["global_metrics"])
    listed = ", ".join(
        f"{escaped(name)} <b class='shared'>{shared}</b> and then <b class='personal'>{own}</b>"
        for name, shared, own in lines(report["rounds"])
    )
    lead = f"The task’s own metrics, over all examples: {listed}."
    legend = parts.legend((("personal", "personal"), ("shared", "shared")), "narrow")
    drawn = [parts.figure(legend + _drawn(found, name), escaped(name)) for name in names]
    head = "".join(f"<th>{escaped(name)}</th><th>personal</th>" for name in names)
    rows = "".join(
        f"<tr><th>{r['round']}</th>"
        + "".join(
            f"<td>{show(r['global_metrics'][n])}</td><td>{show(r['personalised_metrics'][n])}</td>"
            for n in names
        )
        + "</tr>"
        for r in found[-ROUNDS_MAX:]
    )
    table = (
        "<details><summary>By round, of the shared and of personal models</summary>"
        f'<div class="scroll"><table><thead><tr><th>round</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
    return parts.section("The task’s own metrics", lead, *drawn, table)


def _drawn(found: Sequence[Mapping[str, Any]], name: str) -> str:
    series = []
    for key, words, hue in (
        ("personalised", "personal", "personal"),
        ("global", "shared", "shared"),
    ):
        points = [(r["round"], r[f"{key}_metrics"][name]) for r in found]
        line = [(float(x), y) for x, y in points if y is not None]
        series.append(report_plots.Series(words, hue, line))
    return both(partial(report_plots.accuracy_lines, series, measure=Measure(name, error=True)))
