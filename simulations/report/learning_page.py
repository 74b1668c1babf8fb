"""What a report says of learning: accuracy and loss by round, and what accuracy costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from . import page_parts as parts
from . import report_plots
from .adapting_page import target_reached
from .measures import Measure, explained
from .page_parts import escaped
from .report_facts import (
    Report,
    algorithm_of,
    is_real,
    measured_by,
    percent1,
    runs_of,
    took,
    ways_of,
)
from .svg import both, count, duration, percent, size

LOSS = Measure("loss", error=True)
#: Key of a round's record, name, hue.
MODELS = (("personalised", "personal", "personal"), ("global", "shared", "shared"))


def sections(report: Report) -> list[str]:
    """Learning by round, and by what was sent and how long it took."""
    if not any(r["global_accuracy"] is not None for run in runs_of(report) for r in run["rounds"]):
        return [parts.section("Learning", "No accuracy was measured before the run ended.")]
    return [_learning(report), _cost(report)]


def _learning(report: Report) -> str:
    runs, measure = runs_of(report), measured_by(report)
    series = _accuracies(runs, lambda run: [float(r["round"]) for r in run["rounds"]], bands=True)
    caption = ["Mean over the evaluated devices, each on examples that no device trains on."]
    if measure.error:
        caption.insert(0, f"{measure.title}: less is better.")
    if any(s.band for s in series):
        caption.append("The bands leave out the best and the worst tenth of the devices.")
    if len(runs) > 1:
        caption.append(f"Dashed: {escaped(algorithm_of(report['compare']))}.")
    return parts.section(
        "Learning",
        _learning_story(report),
        parts.figure(
            _legend() + both(partial(report_plots.accuracy_lines, series, measure=measure)),
            " ".join(caption),
            _csv(runs),
        ),
        _zoomed(series, measure),
        _losses(runs),
        _comparison_table(runs) if len(runs) > 1 else "",
    )


def _zoomed(series: Sequence[report_plots.Series], measure: Measure) -> str:
    """The lines again where they are near 100%, on an axis of their own; else nothing."""
    near = report_plots.zoomed(series, measure)
    if near is None:
        return ""
    lines, begins = near
    first = min(x for one in lines for x, _ in one.line)
    draw = partial(report_plots.accuracy_lines, lines, measure=measure, begins=begins)
    return parts.figure(
        _legend() + both(draw),
        f"The same from round {first:g} on, without bands. The vertical axis begins at"
        f" {percent(begins)}, not at 0%.",
    )


def _legend() -> str:
    """On a narrow page there is no room for names at the ends of the lines."""
    return parts.legend((("personal", "personal"), ("shared", "shared")), "narrow")


def _accuracies(
    runs: Sequence[Report], along: Callable[[Report], list[float]], bands: bool = False
) -> list[report_plots.Series]:
    """A line for each kind of model. along: the horizontal place of each round of a run."""
    series = []
    for i, run in enumerate(runs):
        suffix = "" if len(runs) == 1 else f", {algorithm_of(run)}"
        placed = list(zip(along(run), run["rounds"], strict=True))
        for key, name, hue in MODELS:
            known = [(x, r) for x, r in placed if r[f"{key}_accuracy"] is not None]
            line = [(x, r[f"{key}_accuracy"]) for x, r in known]
            spreads = [(x, r[f"{key}_spread"]) for x, r in known if r[f"{key}_spread"]]
            band = [(x, s["low"], s["high"]) for x, s in spreads] if bands and i == 0 else []
            series.append(report_plots.Series(name + suffix, hue, line, band, dashed=i == 1))
    return series


def _losses(runs: Sequence[Report]) -> str:
    """The loss in training, and of both kinds of models where they are judged by another figure."""
    kinds = [("training_loss", "training", "newcomer")]
    caption = (
        "Loss. Training: of the devices that reported, on the rows that they train on, before their"
        " updates are added."
    )
    if measured_by(runs[0]).error:  # which is a regression's loss, in units of the target
        caption += " Of standardised targets it is in standard deviations, squared."
    else:
        kinds += [(f"{key}_loss", name, hue) for key, name, hue in MODELS]
        caption += " Shared and personal: on the rows that judge."
    series = []
    for i, run in enumerate(runs):
        suffix = "" if len(runs) == 1 else f", {algorithm_of(run)}"
        for key, name, hue in kinds:
            line = [(float(r["round"]), r[key]) for r in run["rounds"] if r.get(key) is not None]
            series.append(report_plots.Series(name + suffix, hue, line, dashed=i == 1))
    if not any(s.line for s in series):
        return ""
    legend = parts.legend(((hue, name) for _, name, hue in kinds), "narrow")
    draw = partial(report_plots.accuracy_lines, series, measure=LOSS)
    return parts.figure(legend + both(draw), caption)


def _learning_rows(runs: Sequence[Report]) -> tuple[list[str], list[list[Any]]]:
    keys = ["global_accuracy", "personalised_accuracy", "training_loss"]
    keys += ["global_loss", "personalised_loss"]
    columns = ["algorithm", "round", *keys, "bytes_up", "seconds"]
    rows = [
        [algorithm_of(run), r["round"], *(r.get(key) for key in keys), sent, at]
        for run in runs
        for r, sent, at in zip(run["rounds"], _sent(run), _elapsed(run), strict=True)
    ]
    return columns, rows


def _sent(run: Report) -> list[float]:
    """What devices had sent at the end of each round, in bytes."""
    return [float(each) for each in accumulate(r["bytes"]["device_edge_up"] for r in run["rounds"])]


def _elapsed(run: Report) -> list[float]:
    """The time at the end of each round: virtual, or real where daemons ran."""
    return list(accumulate(r.get("wall_seconds") or r["virtual_seconds"] for r in run["rounds"]))


def _cost(report: Report) -> str:
    """Accuracy by bytes and by time."""
    runs, measure = runs_of(report), measured_by(report)
    time = "real time" if is_real(report) else "virtual time"
    drawn = []
    for along, title, show in ((_sent, "bytes sent by devices", size), (_elapsed, time, duration)):
        draw = partial(
            report_plots.accuracy_lines,
            _accuracies(runs, along),
            measure=measure,
            x_title=title,
            show_x=show,
        )
        drawn.append(parts.figure(_legend() + both(draw), f"By {title}."))
    totals = [
        f"{escaped(algorithm_of(run))}: {size(run['summary']['bytes']['device_edge_up'])} sent by"
        f" devices, {took(run)}"
        for run in runs
    ]
    lead = f"The same figures by what they cost. {'; '.join(totals)}."
    return parts.section("What it costs", lead, *drawn)


def _csv(runs: Sequence[Report]) -> str:
    return parts.csv_link("learning", *_learning_rows(runs))


def _learning_story(report: Report) -> str:
    summary = report["summary"]
    if not summary["evaluated"]:
        return "The devices were not evaluated at the end."
    steps = report["scenario"]["algorithm"]["personal_steps"]
    measured = [r["round"] for r in report["rounds"] if r["global_accuracy"] is not None]
    judged = max(measured, default=summary["rounds"])
    chance = ""
    if ways := ways_of(report):
        chance = (
            f", which is chance: an episode numbers its {ways} classes at random, so no model "
            "knows them before it has adapted"
        )
    show = measured_by(report).show
    shared = f'<b class="shared">{show(summary["global_accuracy"])}</b>'
    told = f"is right on {shared} of a device’s examples"
    if measured_by(report).error:
        told = f"is wrong by {shared} in the mean square"
    unused = summary.get("unused_shared_model")
    model = f"{escaped(unused)}, which no device uses," if unused else "the shared model"
    adapted = f"{count(steps, 'gradient step')} on the device make{'s' * (steps == 1)} that "
    first = (
        f"After {count(judged, 'round')} {model} {told}"
        f"{chance}. {adapted if steps else 'The devices’ own models, without further steps, give '}"
        f'<b class="personal">{show(summary["personalised_accuracy"])}</b>.'
        f"{explained(report['rounds'])}"
    )
    if newcomers := summary["held_out"]:
        first += (
            " On devices that never trained it is "
            f"{show(newcomers['global_accuracy'])} and then "
            f"{show(newcomers['personalised_accuracy'])}."
        )
    first += target_reached(report)
    if "compare" in report and report["compare"]["summary"]["evaluated"]:
        other = report["compare"]["summary"]
        told = measured_by(report).against(
            other["personalised_accuracy"], summary["personalised_accuracy"]
        )
        first += f" Personal models are {told} those of {escaped(algorithm_of(report['compare']))}."
    return first


def _comparison_table(runs: Sequence[Report]) -> str:
    time = "Real time" if all(map(is_real, runs)) else "Virtual time"
    of = measured_by(runs[0]).show
    rows: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("Shared model", lambda s: of(s["global_accuracy"])),
        ("Personal models", lambda s: of(s["personalised_accuracy"])),
        ("Worst tenth, personal", lambda s: of(s["worst_decile_personalised"])),
        ("Newcomers, personal", lambda s: of((s["held_out"] or {}).get("personalised_accuracy"))),
        ("Devices harmed", lambda s: percent1(s["harmed_share"])),
        ("Sent by devices", lambda s: size(s["bytes"]["device_edge_up"])),
    )
    head = "".join(f"<th>{escaped(algorithm_of(r))}</th>" for r in runs)
    body = ""
    for name, show in rows:
        cells = "".join(f"<td>{show(run['summary'])}</td>" for run in runs)
        body += f"<tr><th>{name}</th>{cells}</tr>"
    body += f"<tr><th>{time}</th>{''.join(f'<td>{took(run)}</td>' for run in runs)}</tr>"
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
