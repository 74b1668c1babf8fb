"""How commands show what they found, to people and to programs, and write what they made.

All that a command prints goes through `echo`, which escapes control characters: labels, reasons and
names may be a peer's. Tables and messages escape line breaks too, so that a cell cannot forge a
row.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from ..core.common.errors import DelianError
from ..core.common.printable import LINES, escaped

#: After so long people wonder whether anything goes on.
SLOW_S = 3.0


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Prints text on standard output (err: on standard error), control characters escaped.

    Line breaks and tabs are kept: escape what a peer chose before it becomes part of several lines.
    """
    typer.echo(escaped(str(text), LINES), err=err, nl=nl)


def echo_copy(line: bytes) -> None:
    """Prints a line byte by byte, as a copy needs it; escaped if it goes to a terminal."""
    if sys.stdout.isatty():
        echo(line.decode(errors="backslashreplace"))
    else:
        typer.echo(line)


def show_progress(text: str) -> None:
    """Replaces the terminal's last line on standard error."""
    print(f"\r\033[K{escaped(text)}", end="", file=sys.stderr, flush=True)


def to_json(message: Any) -> dict[str, Any]:
    """A message as JSON: digests in hexadecimal, every field there."""
    from google.protobuf.message import Message

    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = dict(value)
        elif isinstance(value, Message):
            value = to_json(value)
        elif isinstance(value, bytes):
            value = value.hex()
        elif field.enum_type is not None:
            value = field.enum_type.values_by_number[value].name.lower()
        elif not isinstance(value, int | float | str | bool):
            value = [to_json(v) if isinstance(v, Message) else v for v in value]
        shown[field.name] = value
    return shown


def tell(facts: Any, as_json: bool, lines: Callable[[], Sequence[str]]) -> None:
    """One JSON document, or lines for people."""
    if as_json:
        echo(json.dumps(facts))
        return
    for line in lines():
        echo(escaped(line, "\t"))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns side by side."""
    texts = [[escaped(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in texts
    ]


def when(unix_ms: int) -> str:
    """A time for people, in UTC."""
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@contextmanager
def told_when_slow(line: str) -> Iterator[None]:
    """Says on standard error what is going on, if it takes long."""
    timer = threading.Timer(SLOW_S, echo, (f"delian: {line}",), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write_out(path: Path, content: bytes | str) -> None:
    """Writes what a command made: whole, or not at all. Raises DelianError."""
    from ..core.common.files import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise DelianError(f"{path}: cannot be written: {error.strerror}") from None
