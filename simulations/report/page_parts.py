"""What the pages of reports are put together from."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

#: Rows of a table that can be downloaded from the page: report.json has all.
CSV_ROWS_MAX = 5_000
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
        f"<body>\n<main>\n{_with_roles(body)}</main>\n</body>\n</html>\n"
    )


def _with_roles(body: str) -> str:
    """Says of each header of a table what it is for, and lets keys scroll what a mouse scrolls."""
    heads = re.compile("<thead>.*?</thead>", re.DOTALL)
    body = body.replace("<th></th>", "<td></td>")
    body = heads.sub(lambda found: found[0].replace("<th>", '<th scope="col">'), body)
    body = body.replace("<th>", '<th scope="row">')
    numbers = count(1)  # names of landmarks differ
    return re.sub(
        '<div class="scroll">',
        lambda _: (
            f'<div class="scroll" tabindex="0" role="region" aria-label="table {next(numbers)}">'
        ),
        body,
    )


def escaped(value: object) -> str:
    """The value's text with HTML's characters escaped."""
    return html.escape(str(value))


def section(heading: str, lead: str, *parts: str) -> str:
    """A section of the page: heading, lead and parts, without the empty ones."""
    inner = "\n".join(p for p in parts if p)
    return f"<section>\n<h2>{escaped(heading)}</h2>\n<p>{lead}</p>\n{inner}\n</section>\n"


def figure(drawn: str, caption: str = "", data: str = "") -> str:
    """A drawing with its caption, and a link that downloads its figures (`csv_link`)."""
    words = " ".join(part for part in (caption, data) if part)
    below = f"<figcaption>{words}</figcaption>" if words else ""
    return f"<figure>{drawn}{below}</figure>"


def csv_link(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A link that downloads NAME.csv, which is in the page itself; None is an empty cell.

    Of more than CSV_ROWS_MAX rows it has the first.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(islice(rows, CSV_ROWS_MAX))
    content = base64.b64encode(text.getvalue().encode(errors="backslashreplace")).decode()
    return (
        f'<a class="csv" download="{name}.csv" href="data:text/csv;charset=utf-8;base64,{content}">'
        f"{name}.csv</a>"
    )


def details(name: str, columns: Sequence[str], rows: Iterable[str]) -> str:
    """A table that is closed at first. rows: markup of `tr`."""
    head = "".join(f"<th>{escaped(c)}</th>" for c in columns)
    return (
        f'<details><summary>{escaped(name)}</summary><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


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
