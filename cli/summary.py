"""The few lines that end `delian simulate`: what came out, and where the report is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..simulations.svg import duration

Report = Mapping[str, Any]


def summary_text(report: Report, page: Path) -> str:
    """A short table for the terminal, then the page's path."""
    lines = [""]
    for run in [report, report["compare"]] if "compare" in report else [report]:
        lines += [*_run(run), ""]
    lines.append(f"report  {page}")
    return "\n".join(lines)


def _run(report: Report) -> list[str]:
    summary, host = report["summary"], report["host"]
    head = f"{report['scenario']['name']}, {summary['algorithm']}: {summary['rounds']} rounds"
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
    if not summary["evaluated"]:
        return [*lines, "  nothing was evaluated"]
    lines.append(f"  {'accuracy':<16}{'shared':>9}{'personal':>10}{'gain':>8}")
    groups = [("all devices", summary), ("never trained", summary["held_out"])]
    for name, group in groups:
        if group and group["evaluated"]:
            lines.append(_row(name, group["global_accuracy"], group["personalised_accuracy"]))
    worst = (summary["worst_decile_global"], summary["worst_decile_personalised"])
    lines.append(_row("worst tenth", *worst))
    verb = "does" if summary["harmed"] == 1 else "do"
    lines.append(
        f"  {summary['harmed']} of {summary['evaluated']} devices {verb} worse with their own model"
    )
    if summary["refused"]:
        lines.append(f"  {summary['refused']} updates were refused: they were not finite")
    return lines


def _row(name: str, before: float, after: float) -> str:
    gain = f"{100 * (after - before):+.1f}"
    return f"  {name:<16}{100 * before:>8.1f}%{100 * after:>9.1f}%{gain:>8}"
