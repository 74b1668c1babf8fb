"""What a report says of classes: the accuracy of each, and which are taken for which."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from . import class_plots
from . import page_parts as parts
from .class_plots import Bars
from .measures import ACCURACY
from .page_parts import escaped
from .report_facts import Report
from .report_plots import visible
from .svg import both, whole

#: Columns of the table and of the file: key and name.
_SERIES = (("shared", "shared"), ("personalised", "personal"))


def section(report: Report) -> str:
    """The section; empty where there are no classes."""
    classes = report.get("classes")
    if not classes or not any(classes["examples"]):
        return ""
    labels = classes["labels"]
    known = [i for i, count in enumerate(classes["examples"]) if count]
    ranked = sorted(known, key=lambda i: (classes["shared"][i], i))
    shown = sorted(ranked[: class_plots.BARS_MAX])
    rows = [Bars(str(labels[i]), [classes[key][i] for key, _ in _SERIES]) for i in shown]
    series = [("shared model", "shared"), ("personal models", "personal")]
    drawn = both(partial(class_plots.bars, rows, series, label="Accuracy of each class"))
    legend = parts.legend((("shared", "shared model"), ("personal", "personal models")))
    few = f" The {len(shown)} classes with the lowest accuracy." if len(shown) < len(known) else ""
    figures = [
        parts.figure(
            legend + drawn,
            f"Accuracy of each class, over all examples that judge.{few}",
            parts.csv_link("classes", *_table(classes)),
        )
    ]
    if len(labels) <= class_plots.MATRIX_CLASSES_MAX:
        figures.append(
            parts.figure(
                both(partial(class_plots.confusion, classes)),
                "Confusion matrix of the shared model: a row is the true class, a column the class"
                " that the model gave.",
                parts.csv_link(
                    "confusion",
                    ("true", *labels),
                    ([labels[i], *row] for i, row in enumerate(classes["confusion"])),
                ),
            )
        )
    body = (
        f"<tr><th>{escaped(visible(str(labels[i])))}</th><td>{whole(classes['examples'][i])}</td>"
        + "".join(f"<td>{ACCURACY.show(classes[key][i])}</td>" for key, _ in _SERIES)
        + "</tr>"
        for i in range(len(labels))
    )
    table = parts.details(
        "All classes as a table", ("class", "examples", *(n for _, n in _SERIES)), body
    )
    return parts.section("Classes", _story(classes, ranked), *figures, table)


def _story(classes: Mapping[str, Any], ranked: list[int]) -> str:
    """The class that the shared model knows least, and what it takes it for."""
    worst = ranked[0]
    name = escaped(visible(str(classes["labels"][worst])))
    row = classes["confusion"][worst]
    others = [(count, i) for i, count in enumerate(row) if i != worst and count]
    lead = (
        f"The shared model knows <b>{name}</b> least: it is right on"
        f" {ACCURACY.show(classes['shared'][worst])} of its {whole(sum(row))} examples"
    )
    if not others:
        return lead + "."
    count, taken = max(others, key=lambda pair: (pair[0], -pair[1]))
    other = escaped(visible(str(classes["labels"][taken])))
    return (
        f"{lead}, and takes {whole(count)} for {other}. Personal models are right on"
        f" {ACCURACY.show(classes['personalised'][worst])}."
    )


def _table(classes: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    columns = ["class", "examples", "shared", "personalised"]
    keys = ("labels", "examples", "shared", "personalised")
    return columns, [[classes[key][i] for key in keys] for i in range(len(classes["labels"]))]
