"""The methods of `docs/statistics.md`, with their settings, from the classes' docstrings."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from delian.core.common.field_docs import field_docs
from delian.core.statistics.question import methods

START, END = "<!-- methods -->\n", "<!-- end of methods -->"


def page() -> str:
    """A section a method."""
    return START + "\n".join(_section(name, kind) for name, kind in methods().items())


def _section(name: str, kind: type[Any]) -> str:
    docs = field_docs(kind)
    lines = [
        f"### {name}",
        "",
        _first(kind),
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for each in fields(kind):
        meaning = docs.get(each.name, "").replace("|", "\\|")
        lines.append(f"| `{each.name}` | {_default(each)} | {meaning} |")
    return "\n".join([*lines, ""])


def _first(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())


def _default(each: Any) -> str:
    value = each.default
    if value is MISSING and each.default_factory is not MISSING:
        value = each.default_factory()
    if value is MISSING:
        return "needed"
    if value is None or value in ("", (), {}):
        return ""
    if isinstance(value, tuple):
        value = list(map(list, value)) if isinstance(value[0], tuple) else list(value)
    return f"`{value!r}`".replace("'", '"')
