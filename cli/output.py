"""How commands show what they found, to people and to programs, and write what they made."""

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

from ..core.errors import DelianError

#: After so long people wonder whether anything goes on.
SLOW_S = 3.0


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
        typer.echo(json.dumps(facts))
        return
    for line in lines():
        typer.echo(line)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns side by side."""
    texts = [[str(cell) for cell in row] for row in (head, *rows)]
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
    timer = threading.Timer(
        SLOW_S, print, (f"delian: {line}",), {"file": sys.stderr, "flush": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write_out(path: Path, content: bytes | str) -> None:
    """Writes what a command made: whole, or not at all. Raises DelianError."""
    from ..core.files import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise DelianError(f"{path}: cannot be written: {error.strerror}") from None
