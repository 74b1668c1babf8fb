"""What a report's page and the terminal say of local steps, fairness and targets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from . import page_parts as parts
from . import report_plots
from .measures import Measure, measure_of, shown
from .page_parts import escaped
from .svg import both, duration, size

Report = Mapping[str, Any]

#: Lines of the figure, and columns of the table: key, name, colour, whether the line is dashed.
LINES = (
    ("query", "all devices", "personal", False),
    ("held_out", "never trained", "newcomer", False),
    ("worst_decile", "worst tenth", "harmed", False),
    ("support", "rows adapted to", "shared", True),
)


def steps_section(report: Report) -> str:
    """Accuracy over local steps; empty where it was not requested."""
    adapted = report["summary"].get("adaptation")
    if adapted is None:
        return ""
    measure = measure_of(report["scenario"])
    series = [
        report_plots.Series(
            name, hue, list(zip(adapted["steps"], adapted[key], strict=True)), (), dashed
        )
        for key, name, hue, dashed in LINES
        if adapted[key] is not None
    ]
    legend = parts.legend(((s.hue, s.name) for s in series), "narrow")
    draw = partial(report_plots.accuracy_lines, series, measure=measure, x_title="local steps")
    caption = ["Means over devices; the step at zero is the shared model."]
    if adapted["support"] is not None:
        caption.append("Dashed: on the rows that a device adapts to, all others on rows kept back.")
    return parts.section(
        "Step by step",
        _story(adapted, measure),
        parts.figure(legend + both(draw), " ".join(caption)),
        _table(adapted, measure),
    )


def _story(adapted: Mapping[str, Any], measure: Measure) -> str:
    steps, values = adapted["steps"], adapted["query"]
    best = max(range(len(values)), key=lambda i: measure.gain(values[0], values[i]))
    whose = "step" if steps[best] == 1 else "steps"
    told = (
        f"Devices’ models are best after {steps[best]} {whose}: {measure.show(values[best])}."
        if best
        else "No number of steps makes devices’ models better than the shared one."
    )
    if adapted["held_out"] is not None:
        told += f" Those that never trained then have {measure.show(adapted['held_out'][best])}."
    return told


def _table(adapted: Mapping[str, Any], measure: Measure) -> str:
    columns = [(name, adapted[key]) for key, name, *_ in LINES if adapted[key] is not None]
    shown = [(name, [measure.show(v) for v in values]) for name, values in columns]
    shown += [
        ("deviation", [_deviation(v, measure) for v in adapted["deviation"]]),
        ("Jain’s index", ["–" if v is None else f"{v:.3f}" for v in adapted["jain"]]),
        ("harmed", [f"{100 * v:.1f}%" for v in adapted["harmed_share"]]),
    ]
    head = "".join(f"<th>{escaped(name)}</th>" for name in ("steps", *(name for name, _ in shown)))
    rows = "".join(
        f"<tr><th>{count}</th>{''.join(f'<td>{values[i]}</td>' for _, values in shown)}</tr>"
        for i, count in enumerate(adapted["steps"])
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _deviation(value: float, measure: Measure) -> str:
    return shown(value) if measure.error else f"{100 * value:.1f}"


def fairness(report: Report) -> str:
    """A sentence on how alike devices fare; empty of reports that do not know."""
    summary, measure = report["summary"], measure_of(report["scenario"])
    if summary.get("deviation_global") is None:
        return ""
    before, after = summary["deviation_global"], summary["deviation_personalised"]
    told = f"{_deviation(before, measure)} to {_deviation(after, measure)}"
    unit = "" if measure.error else " points"
    return f" The standard deviation over devices went from {told}{unit}."


def target_reached(report: Report) -> str:
    """A sentence on when the target was reached; empty where there is none."""
    target = report["summary"].get("target")
    if target is None:
        return ""
    goal = measure_of(report["scenario"]).show(target["target"])
    if target["round"] is None:
        return f" Personal models never came to {goal}."
    when = f"{target['round']} round{'s' * (target['round'] != 1)}"
    took = f" and {duration(target['seconds'])}" if target["seconds"] else ""
    return (
        f" Personal models came to {goal} after {when}, {size(target['bytes_up'])} sent by "
        f"devices{took}."
    )
