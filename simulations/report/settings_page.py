"""All that decides a result, as a report shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.learning.aggregate import chains
from . import page_parts as parts
from .page_parts import escaped
from .report_facts import Report


def section(report: Report) -> str:
    """The section of the settings and of the machine."""
    groups: list[str] = []
    scenario = report["scenario"]
    top = {k: v for k, v in scenario.items() if not isinstance(v, dict) and k != "description"}
    for name, table in {"scenario": top, **_tables(scenario)}.items():
        rows = "".join(
            f"<dt>{escaped(k)}</dt><dd>{escaped(_value(v))}</dd>" for k, v in table.items()
        )
        groups.append(f"<div><h3>{escaped(name)}</h3><dl>{rows}</dl></div>")
    if report["summary"]["chain"]:
        rows = "".join(
            f"<dt>{escaped(stage)}</dt><dd>{escaped(where)}</dd>"
            for stage, where, *_ in chains.read(report["summary"]["chain"]).rows()
        )
        groups.append(f"<div><h3>what an update goes through</h3><dl>{rows}</dl></div>")
    host = "".join(
        f"<dt>{escaped(_host_name(k))}</dt><dd>{escaped(_value(v))}</dd>"
        for k, v in report["host"].items()
        if v is not None and k != "command"
    )
    groups.append(f"<div><h3>host</h3><dl>{host}</dl></div>")
    return parts.section(
        "Settings",
        "All that decides the result, and the machine that computed it.",
        f'<div class="settings">{"".join(groups)}</div>',
    )


def _host_name(key: str) -> str:
    """A key of `host` in words, its unit in brackets."""
    words, _, last = key.rpartition("_")
    unit = {"seconds": "s", "mib": "MiB", "gib": "GiB"}.get(last)
    return f"{words.replace('_', ' ')} ({unit})" if unit else key.replace("_", " ")


def _tables(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Every table in it, flat, by dotted name."""
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            name = f"{prefix}{key}"
            own = {k: v for k, v in value.items() if not isinstance(v, dict)}
            if own:
                found[name] = own
            found |= _tables(value, f"{name}.")
    return found


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    if isinstance(value, list):
        return ", ".join(_value(v) for v in value)
    return str(value)
