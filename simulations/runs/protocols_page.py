"""The page of a study: quality over what was spent, and the tables of the three protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..report import page_parts as parts
from ..report import report_plots
from ..report.measures import ACCURACY, SQUARED_ERROR
from ..report.page_parts import escaped
from ..report.report_plots import Series
from ..report.svg import both, count
from . import protocols
from .comparison import HUES, LINES_MAX, html_table

_WHOSE = {"shared": "the shared model", "personal": "the devices' own models"}


def page(found: Mapping[str, Any]) -> str:
    """The whole document of `protocols.judged`."""
    methods = found["methods"]
    facts = f"{count(len(methods), 'method')}, {count(len(found['seeds']), 'seed')}"
    header = (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(found["name"])}</h1>\n<p class="facts">{facts}</p>\n'
        f"<p>{escaped(found['description'])}</p>\n</header>\n"
    )
    sections = [
        _section(
            "Quality under a budget",
            "The best round until that much was spent. Per cent or errors, means over seeds with"
            " 95% confidence intervals.",
            protocols.budget_table(found),
        ),
        _section(
            "Cost to a target",
            "What was spent at the end of the first round that is as good; means over the seeds"
            " that got there.",
            protocols.target_table(found),
        ),
        _section(
            "Robustness",
            "The best round of a run with a disturbance; what it is worse by than that of the same"
            " seed without, in the whole run and under the first budget; and how many times as"
            " much a round costs.",
            protocols.robustness_table(found),
            *(
                f"<p>{escaped(name)}: {escaped(', '.join(settings))}</p>"
                for name, settings in found["disturbances"].items()
            ),
        ),
    ]
    return parts.document(found["name"], header + _curves(found) + "".join(sections))


def _section(heading: str, lead: str, lines: Sequence[Sequence[str]], *more: str) -> str:
    if not lines:
        return ""
    return parts.section(heading, lead, f'<div class="scroll">{html_table(lines)}</div>', *more)


def _curves(found: Mapping[str, Any]) -> str:
    """Quality over each cost, without disturbance: a line a method."""
    measure = SQUARED_ERROR if found["measure"] == SQUARED_ERROR.name else ACCURACY
    figures = []
    for cost, (name, unit, size) in protocols.COSTS.items():
        series = [
            Series(
                row["name"],
                HUES[number % len(HUES)],
                [(point[cost] / size, point["quality"]["mean"]) for point in row["curve"]],
                dashed=number >= len(HUES),
            )
            for number, row in enumerate(found["methods"][:LINES_MAX])
        ]
        draw = partial(
            report_plots.accuracy_lines, series, measure=measure, x_title=f"{name}, {unit}"
        )
        legend = parts.legend(((s.hue, s.name) for s in series), "narrow")
        figures.append(parts.figure(legend + both(draw)))
    return parts.section(
        f"{measure.title} of {_WHOSE[found['quality']]}",
        "Over virtual time, over what all devices sent and received, and over the energy that they"
        " used; without disturbance, means over seeds.",
        *figures,
    )
