"""What a report says of training without a federation, where the run was compared with it."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import class_plots
from . import page_parts as parts
from .class_plots import Bars
from .page_parts import escaped
from .report_facts import Report, measured_by
from .svg import both, count

_SERIES = (("shared model", "shared"), ("personal models", "personal"))
#: Key of `baselines`, and its name.
_WAYS = (("alone", "each device alone"), ("pooled", "all rows in one place"))
_KEYS = ("global_accuracy", "personalised_accuracy")


def section(report: Report) -> str:
    """The section; empty where there are no baselines."""
    found, measure = report.get("baselines"), measured_by(report)
    if not found or not report["summary"]["evaluated"]:
        return ""
    ways: list[tuple[str, Any]] = [("the federation", report["summary"])]
    ways += [(name, found[key]) for key, name in _WAYS if key in found]
    rows = [Bars(name, [figures[key] for key in _KEYS]) for name, figures in ways]
    draw = partial(class_plots.bars, rows, _SERIES, measure=measure, label="With and without it")
    columns = ("", "shared", "personal", "never trained, personal", "worst tenth, personal")
    body = "".join(
        f"<tr><th>{escaped(name)}</th>"
        + "".join(f"<td>{measure.show(value)}</td>" for value in _figures(figures))
        + "</tr>"
        for name, figures in ways
    )
    head = "".join(f"<th>{escaped(c)}</th>" for c in columns)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    table = f'<div class="scroll">{table}</div>'
    return parts.section(
        "With and without the federation",
        _story(report),
        parts.figure(
            parts.legend((hue, name) for name, hue in _SERIES) + both(draw),
            _caption(report),
            parts.csv_link(
                "baselines",
                ("way", *columns[1:]),
                ([name, *_figures(figures)] for name, figures in ways),
            ),
        ),
        table,
    )


def _figures(figures: Any) -> list[float | None]:
    out = (figures.get("held_out") or {}).get("personalised_accuracy")
    return [*(figures[key] for key in _KEYS), out, figures["worst_decile_personalised"]]


def _story(report: Report) -> str:
    """Whether devices are better off together, and how far from a pool of all rows."""
    summary, found, measure = report["summary"], report["baselines"], measured_by(report)
    ours = summary["personalised_accuracy"]

    def ahead(way: str) -> str:
        other = found[way]["personalised_accuracy"]
        if not measure.error:
            return measure.against(other, ours)
        return f"{measure.show_gain(measure.gain(other, ours))} than"

    told = f"Personal models of the federation: {measure.name} {measure.show(ours)}"
    told += f", {ahead('alone')} those of devices that train alone"
    if "pooled" in found:
        told += f", and {ahead('pooled')} those made from a pool of all rows"
    return told + "."


def _caption(report: Report) -> str:
    found = report["baselines"]
    told = (
        "The same programs, hyperparameters and first weights. Alone: a device trains"
        f" {count(found['alone']['updates'], 'time')} on its own rows."
    )
    if "pooled" in found:
        told += (
            f" In one place: {count(found['pooled']['updates'], 'update')}, as many as the"
            " federation added up, each on rows drawn from those of all devices that train; real"
            " devices do not give their rows away."
        )
    return told
