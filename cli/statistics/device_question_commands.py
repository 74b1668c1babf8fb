"""`delian device questions`: what was asked of a device's tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..fleet.device_commands import AsJson, State
from ..options import ConfigFile
from ..output import table, tell, when


def questions(
    config: ConfigFile = None,
    state: State = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List what `delian ask` has asked of this device's tables, and what was answered.

    Each line is a question: when, by which run, what, and whether it was answered. The whole
    question, with its rows, is in the JSON.
    """
    from ...device.agent.question_desk import read_log
    from ..config import load

    chosen = load(config, {"device.state": state}).config.device
    found = read_log(chosen.state / "questions")[-limit:]

    def lines() -> list[str]:
        rows = [
            [
                when(entry["at"] * 1000),
                str(entry.get("run") or "-"),
                "answered" if entry["answered"] else f"refused: {_words(entry)}",
                _short(entry),
            ]
            for entry in found
        ]
        return table(("TIME (UTC)", "RUN", "ANSWER", "QUESTION"), rows)

    tell({"questions": found}, as_json, lines)


def _words(entry: dict[str, Any]) -> str:
    return str(entry.get("refused", "")).replace("_", " ")


def _short(entry: dict[str, Any]) -> str:
    """The method, its columns and its condition."""
    try:
        said = json.loads(entry["question"])
        settings = {k: v for k, v in said["question"].items() if k != "method" and v}
        rows = said["rows"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return str(entry.get("digest", ""))[:16]
    where = f" where {rows['where']}" if rows.get("where") else ""
    text = f"{said['question'].get('method')} of {rows.get('table') or 'the table'}{where}"
    detail = json.dumps(settings, separators=(",", ":"))
    whole = f"{text} {detail}"
    return whole if len(whole) <= 120 else whole[:117] + "..."
