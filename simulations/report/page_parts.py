"""What the pages of reports are put together from."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STYLE = Path(__file__).parent / "report.css"

MARK = (
    '<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">'
    '<path d="M16 16 6 7M16 16 27 9M16 16 13 28"/><circle cx="16" cy="16" r="5"/>'
    '<circle cx="6" cy="7" r="3"/><circle cx="27" cy="9" r="3"/><circle cx="13" cy="28" r="3"/>'
    "</svg>"
)


def document(name: str, body: str) -> str:
    """A whole page with the reports' style."""
    style = STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(name)} · Delian</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def escaped(value: object) -> str:
    """The value's text with HTML's characters escaped."""
    return html.escape(str(value))


def section(heading: str, lead: str, *parts: str) -> str:
    """A section of the page: heading, lead and parts, without the empty ones."""
    inner = "\n".join(p for p in parts if p)
    return f"<section>\n<h2>{escaped(heading)}</h2>\n<p>{lead}</p>\n{inner}\n</section>\n"


def figure(drawn: str, caption: str = "") -> str:
    """A drawing with its caption."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{drawn}{below}</figure>"


def legend(entries: Iterable[tuple[str, str]], where: str = "") -> str:
    """The keys of a drawing: (name, hue's class) for each."""
    keys = (f'<span class="key {hue}"><i></i>{escaped(name)}</span>' for hue, name in entries)
    return f'<div class="legend {where}">{"".join(keys)}</div>'


def fitted(changes: Mapping[str, Sequence[Any]]) -> str:
    """What of its scenario a run of real daemons was not; changes: keys, before and after."""
    told = ", ".join(
        f"{escaped(key)} is {escaped(value(after))} and not {escaped(value(before))}"
        for key, (before, after) in changes.items()
    )
    told = f" The scenario was fitted to them: {told}." if told else ""
    return (
        '<p class="notice">Run by real daemons on one machine: links, speeds and failures are its,'
        f" and not those that the scenario describes.{told}</p>"
    )


def value(setting: Any) -> str:
    """A scenario's setting, as the page shows it."""
    if setting is None:
        return "unset"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
