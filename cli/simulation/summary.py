"""The few lines that end `delian simulate`: what came out, and where the report is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...simulations.report import own_metrics
from ...simulations.report.measures import Measure, measure_of, shown
from ...simulations.report.svg import count, duration, size

Report = Mapping[str, Any]
#: Room for the name of a row.
NAME = 19


def summary_text(report: Report, page: Path) -> str:
    """A short table for the terminal, then the page's path."""
    lines = [""]
    for run in [report, report["compare"]] if "compare" in report else [report]:
        lines += [*_run(run), ""]
    lines.append(f"report  {page}")
    return "\n".join(lines)


def _run(report: Report) -> list[str]:
    summary, host = report["summary"], report["host"]
    head = (
        f"{report['scenario']['name']}, {summary['algorithm']}: {count(summary['rounds'], 'round')}"
    )
    if host.get("total_seconds"):
        head += f" in {duration(host['total_seconds'])}"
    if host.get("updates_per_second"):
        head += f", {host['updates_per_second']:,.0f} updates a second"
    if summary["stopped_by"]:
        verb = "gave up" if summary["stopped_by"] == "failure" else "stopped"
        head += f" ({verb} before round {report['scenario']['rounds']})"
    elif summary["why"]:
        head += f" (ended early: {summary['why']})"
    lines = [head]
    if report["data"].get("left_out"):
        lines.append(f"  {report['data']['left_out_text']}")
    lines += [f"  {note}" for note in report["data"].get("notes", ())]
    if not summary["evaluated"]:
        return [*lines, "  nothing was evaluated"]
    measure = measure_of(report["scenario"])
    lines.append(f"  {measure.name:<{NAME}}{'shared':>9}{'personal':>10}{'gain':>9}")
    groups = [("all devices", summary), ("never trained", summary["held_out"])]
    for name, group in groups:
        if group and group["evaluated"]:
            pair = group["global_accuracy"], group["personalised_accuracy"]
            lines.append(_row(name, *pair, measure))
    worst = (summary["worst_decile_global"], summary["worst_decile_personalised"])
    lines.append(_row("worst tenth", *worst, measure))
    lines += _regression(report)
    if unused := summary.get("unused_shared_model"):
        lines.append(f"  shared: {unused}, which no device uses")
    verb = "does" if summary["harmed"] == 1 else "do"
    lines.append(
        f"  {summary['harmed']} of {summary['evaluated']} devices {verb} worse with their own model"
    )
    lines += [*_asked(summary, measure), *_spent(summary), *_baselines(report, measure)]
    for name, shared, own in own_metrics.lines(report["rounds"]):
        lines.append(f"  {name}: {shared} with the shared model, {own} with their own")
    lines += [f"  warning: {each}" for each in summary.get("warnings", ())]
    return lines


def _asked(summary: Report, measure: Measure) -> list[str]:
    """What only some scenarios ask for: local steps, and when a target was reached."""
    lines = []
    if adapted := summary.get("adaptation"):
        pairs = zip(adapted["steps"], adapted["query"], strict=True)
        told = ", ".join(f"{measure.show(value)} after {steps}" for steps, value in pairs)
        lines.append(f"  by local steps: {told}")
    if target := summary.get("target"):
        told = f"not reached in {count(summary['rounds'], 'round')}"
        if target["round"] is not None:
            sent = size(target["bytes_up"])
            told = f"reached after {count(target['round'], 'round')}, {sent} sent by devices"
        lines.append(f"  {measure.show(target['target'])}: {told}")
    return lines


def _baselines(report: Report, measure: Measure) -> list[str]:
    """The same devices without a federation, where the run was compared with that."""
    found = report.get("baselines") or {}
    names = {"alone": "each device alone", "pooled": "all rows in one place"}
    return [
        f"  {names[key]}: {measure.show(figures['global_accuracy'])}, personal"
        f" {measure.show(figures['personalised_accuracy'])}"
        for key, figures in found.items()
        if figures["evaluated"]
    ]


def _spent(summary: Report) -> list[str]:
    """What differential privacy cost, of a run with noise."""
    spent = summary.get("privacy")
    if not spent:
        return []
    return [
        f"  differential privacy: epsilon {spent['epsilon']:.3g} of {spent['promised']:g} spent,"
        f" delta {spent['delta']:g}, {spent['noise']} noise"
    ]


def _row(name: str, before: float, after: float, measure: Measure) -> str:
    gain = measure.gain(before, after)
    told = f"{'+' if gain >= 0 else '-'}{shown(abs(gain))}" if measure.error else ""
    told = told or f"{100 * gain:+.1f}"
    return f"  {name:<{NAME}}{measure.show(before):>9}{measure.show(after):>10}{told:>9}"


def _regression(report: Report) -> list[str]:
    """R² and the mean absolute error over all examples, where numbers are learnt."""
    last = next(
        (r for r in reversed(report["rounds"]) if r.get("global_absolute_error") is not None), None
    )
    if last is None:
        return []
    lines = []
    for name, key in (("R²", "r_squared"), ("absolute error", "absolute_error")):
        pair = last[f"global_{key}"], last[f"personalised_{key}"]
        if None not in pair:
            lines.append(f"  {name:<{NAME}}{shown(pair[0]):>9}{shown(pair[1]):>10}")
    return lines
