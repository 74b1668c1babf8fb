"""Scenarios compared over the same seeds.

A table, a figure and what the differences are worth.

Two scenarios of one seed have the same data, split and fleet as far as they ask for the same, so
differences are taken seed by seed before they are averaged: much of what chance does cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..report import page_parts as parts
from ..report import report_plots
from ..report.measures import ACCURACY, SQUARED_ERROR, Measure
from ..report.page_parts import escaped
from ..report.report_plots import Series
from ..report.svg import both, size, whole
from .confidence import Estimate, estimate
from .study import Trial

#: A figure of a run's summary, by its name in tables; and whether more of it is better.
FIGURES: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "shared": (("global_accuracy",), True),
    "personal": (("personalised_accuracy",), True),
    "worst tenth": (("worst_decile_personalised",), True),
    "never trained": (("held_out", "personalised_accuracy"), True),
    "harmed": (("harmed_share",), False),
    "deviation": (("deviation_personalised",), False),
}
#: Colours of lines, by the names that the pages' style has for them.
HUES = ("personal", "shared", "newcomer", "harmed", "late", "dropped")
LINES_MAX = 2 * len(HUES)
#: A mean and its margin stay on one line.
UNBROKEN = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Entry:
    """A scenario of a comparison: its name, and its results by seed."""

    label: str
    results: Mapping[int, Mapping[str, Any]]

    @property
    def measure(self) -> Measure:
        """What its accuracies are."""
        names = {result["summary"].get("measure") for result in self.results.values()}
        return SQUARED_ERROR if SQUARED_ERROR.name in names else ACCURACY

    def values(self, figure: str) -> dict[int, float]:
        """A figure of each seed's run; without those that have none."""
        found: dict[int, float] = {}
        for seed, result in self.results.items():
            value: Any = result["summary"]
            for key in FIGURES[figure][0]:
                value = value.get(key) if value else None
            if value is not None:
                found[seed] = float(value)
        return found

    def reached(self, target: float) -> dict[int, tuple[int, float]]:
        """The first round at the target, and the bytes that devices had sent until then.

        Of each seed that reached it: a personal accuracy of at least the target, or an error of at
        most.
        """
        found, gain = {}, self.measure.gain
        for seed, result in self.results.items():
            sent = 0.0
            for point in result["curve"]:
                sent += point["bytes_up"]
                reached = point["personalised_accuracy"]
                if reached is not None and gain(target, reached) >= 0:
                    found[seed] = (point["round"], sent)
                    break
        return found


def more_is_better(figure: str, measure: Measure) -> bool:
    """Whether more of a figure is better."""
    return FIGURES[figure][1] and not measure.error


def entries(
    labelled: Mapping[str, Mapping[int, Trial]], results: Mapping[Trial, Mapping[str, Any]]
) -> list[Entry]:
    """The results by label and seed."""
    return [
        Entry(label, {seed: results[trial] for seed, trial in by_seed.items()})
        for label, by_seed in labelled.items()
    ]


def compare(found: Sequence[Entry], target: float | None = None) -> dict[str, Any]:
    """All figures as plain data.

    Estimates by scenario, and differences from the first, paired by seed.
    """
    rows = []
    for entry in found:
        row: dict[str, Any] = {"name": entry.label, "seeds": sorted(entry.results)}
        row["figures"] = {
            name: _estimated(list(values.values()))
            for name in FIGURES
            if (values := entry.values(name))
        }
        if entry is not found[0]:
            row["differences"] = {
                name: _estimated([mine[s] - base[s] for s in sorted(mine.keys() & base.keys())])
                for name in FIGURES
                if (mine := entry.values(name)).keys() & (base := found[0].values(name)).keys()
            }
        if target is not None:
            row["reached"] = _reached(entry, target)
        row["curve"] = _curve(entry)
        row["steps"] = _steps(entry)
        rows.append(row)
    measure = found[0].measure.name
    return {"format": 1, "target": target, "measure": measure, "scenarios": rows}


def _estimated(values: Sequence[float]) -> dict[str, Any]:
    return asdict(estimate(values))


def _reached(entry: Entry, target: float) -> dict[str, Any]:
    there = entry.reached(target)
    said: dict[str, Any] = {"seeds": len(there)}
    if there:
        said["rounds"] = _estimated([float(rounds) for rounds, _ in there.values()])
        said["bytes_up"] = _estimated([sent for _, sent in there.values()])
    return said


def _curve(entry: Entry) -> list[dict[str, Any]]:
    """Personal accuracy by round, of rounds that all seeds evaluated."""
    by_round: dict[int, list[float]] = {}
    for result in entry.results.values():
        for point in result["curve"]:
            if point["personalised_accuracy"] is not None:
                by_round.setdefault(point["round"], []).append(point["personalised_accuracy"])
    return [
        {"round": number, **_estimated(values)}
        for number, values in sorted(by_round.items())
        if len(values) == len(entry.results)
    ]


def _steps(entry: Entry) -> dict[str, Any] | None:
    """Accuracy by the number of local steps, of all devices and of those that never trained.

    None where it was not requested (`evaluation.steps`).
    """
    found = [result["summary"].get("adaptation") for result in entry.results.values()]
    if not found or None in found or len({tuple(one["steps"]) for one in found}) > 1:
        return None
    means: dict[str, Any] = {"steps": found[0]["steps"]}
    for key in ("query", "held_out"):
        columns = [one[key] for one in found if one[key] is not None]
        means[key] = [_estimated(values) for values in zip(*columns, strict=True)]
    return means


def table(compared: Mapping[str, Any]) -> list[list[str]]:
    """The figures as a table of text, its head first.

    A difference that its interval does not reach over zero is marked with a star.
    """
    rows = compared["scenarios"]
    known = [name for name in FIGURES if any(name in row["figures"] for row in rows)]
    head = ["", *known, "personal, against the first"]
    if compared["target"] is not None:
        goal = f"{compared['target']:g}" if _error(compared) else f"{100 * compared['target']:g}%"
        head += [f"rounds to {goal}", "sent by then"]
    lines = [head]
    for row in rows:
        plain = _error(compared)
        cells = [
            row["name"],
            *(figure(row["figures"].get(name), plain and name != "harmed") for name in known),
        ]
        cells.append(_difference(row.get("differences", {}).get("personal"), plain))
        if compared["target"] is not None:
            cells += _target(row["reached"], len(row["seeds"]))
        lines.append(cells)
    return lines


def steps_table(compared: Mapping[str, Any]) -> list[list[str]]:
    """Accuracy by the number of local steps, of all devices and of those that never trained.

    Its head is the first line; empty where no scenario asked for it.
    """
    rows, plain = compared["scenarios"], _error(compared)
    counts = sorted({n for row in rows if row["steps"] for n in row["steps"]["steps"]})
    lines = [["local steps", *map(str, counts)]]
    for row in rows:
        taken = row["steps"] or {"query": [], "held_out": []}
        for key, name in (("query", row["name"]), ("held_out", f"{row['name']}, never trained")):
            if taken[key]:
                after = dict(zip(taken["steps"], taken[key], strict=True))
                lines.append([name, *(figure(after.get(n), plain) for n in counts)])
    return lines if counts else []


def _error(compared: Mapping[str, Any]) -> bool:
    return bool(compared["measure"] == SQUARED_ERROR.name)


def figure(of: Mapping[str, Any] | None, plain: bool) -> str:
    """In per cent, or as the plain number that it is."""
    if of is None:
        return "–"
    if plain:
        return f"{of['mean']:.3g}" + ("" if of["margin"] is None else f" ± {of['margin']:.2g}")
    margin = "" if of["margin"] is None else f" ± {100 * of['margin']:.1f}"
    return f"{100 * of['mean']:.1f}{margin}"


def _difference(of: Mapping[str, Any] | None, plain: bool) -> str:
    if of is None:
        return ""
    found = Estimate(**of)
    sure = found.margin is not None and (found.low > 0 or found.high < 0)
    star = "*" if sure else ""
    if plain:
        margin = "" if found.margin is None else f" ± {found.margin:.2g}"
        return f"{found.mean:+.3g}{margin}{star}"
    margin = "" if found.margin is None else f" ± {100 * found.margin:.1f}"
    return f"{100 * found.mean:+.1f}{margin}{star}"


def _target(reached: Mapping[str, Any], seeds: int) -> list[str]:
    if not reached["seeds"]:
        return ["never", ""]
    some = "" if reached["seeds"] == seeds else f" ({reached['seeds']} of {seeds})"
    return [whole(reached["rounds"]["mean"]) + some, size(reached["bytes_up"]["mean"])]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    head, *rows = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *rows])


def page(compared: Mapping[str, Any], name: str) -> str:
    """The whole document: the curves and the table."""
    rows, measure = compared["scenarios"], SQUARED_ERROR if _error(compared) else ACCURACY
    seeds = max(len(row["seeds"]) for row in rows)
    counts = f"{len(rows)} scenario{'s' * (len(rows) != 1)}, {seeds} seed{'s' * (seeds != 1)}"
    header = (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(name)}</h1>\n<p class="facts">{counts}</p>\n'
        "</header>\n"
    )
    series = [
        Series(
            row["name"],
            HUES[number % len(HUES)],
            [(p["round"], p["mean"]) for p in row["curve"]],
            [
                (p["round"], *_within(Estimate(p["mean"], p["margin"], 0), measure))
                for p in row["curve"]
            ]
            if seeds > 1
            else (),
            dashed=number >= len(HUES),
        )
        for number, row in enumerate(rows[:LINES_MAX])
    ]
    legend = parts.legend(((s.hue, s.name) for s in series), "narrow")
    caption = "Bands are 95% confidence intervals of the mean over seeds." if seeds > 1 else ""
    curves = parts.section(
        f"{measure.title} of the devices' own models",
        "The mean over all devices, after each has made the model its own."
        + (" Less is better." if measure.error else ""),
        parts.figure(
            legend + both(partial(report_plots.accuracy_lines, series, measure=measure)), caption
        ),
    )
    figures = parts.section(
        "In figures",
        f"{'Errors' if measure.error else 'Per cent'}, means over devices and then over seeds, "
        "with 95% confidence intervals by Student's t. Differences are taken seed by seed; a star "
        "marks those whose interval does not reach zero.",
        f'<div class="scroll">{html_table(table(compared))}</div>',
    )
    return parts.document(name, header + curves + _steps_section(compared, measure) + figures)


def _steps_section(compared: Mapping[str, Any], measure: Measure) -> str:
    """Accuracy over local steps, a line a scenario; empty where none was asked for it."""
    series = []
    for number, row in enumerate(compared["scenarios"][: len(HUES)]):
        taken = row["steps"] or {"steps": [], "query": [], "held_out": []}
        for key, name in (("query", row["name"]), ("held_out", f"{row['name']}, never trained")):
            if taken[key]:
                means = [of["mean"] for of in taken[key]]
                line = list(zip(taken["steps"], means, strict=True))
                series.append(Series(name, HUES[number], line, dashed=key == "held_out"))
    if not series:
        return ""
    legend = parts.legend(((s.hue, s.name) for s in series if not s.dashed), "narrow")
    draw = partial(report_plots.accuracy_lines, series, measure=measure, x_title="local steps")
    return parts.section(
        "Step by step",
        "Devices' models after so many local steps, means over devices and seeds; the step at zero "
        "is the shared model.",
        parts.figure(legend + both(draw), "Dashed: devices that never trained."),
        f'<div class="scroll">{html_table(steps_table(compared))}</div>',
    )


def _within(of: Estimate, measure: Measure) -> tuple[float, float]:
    return max(0.0, of.low), of.high if measure.error else min(1.0, of.high)


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table of text as markup, its head first."""
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in lines[0])
    rows = (
        f"<tr><th>{escaped(cells[0])}</th>"
        + "".join(f"<td>{escaped(cell.replace(' ± ', UNBROKEN))}</td>" for cell in cells[1:])
        + "</tr>"
        for cells in lines[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
