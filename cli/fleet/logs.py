"""Logs of a process: one event a line, with its facts, and never a secret.

The packages below log through the standard library, `log.info("enrolled", extra={"node": ...})`.
Here structlog formats what they say: JSON lines, or coloured text where a person is looking. A
record's `extra` are its facts. What looks like a secret by its name is masked, arrays and long
bytes are left out whatever their name, so that no update, key or token can get into a log by
mistake.

A line about a round names its trace, by which the lines of all tiers about it are found together
(core/node/driver/traces.py).
"""

from __future__ import annotations

import logging
import logging.config
import re
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from ...core.common.printable import LINES, escaped
from ...core.node.driver.traces import current, parse

if TYPE_CHECKING:
    from ..settings import LogConfig

MASK = "********"
TEXT_MAX = 2_000  # characters of one fact
ITEMS_MAX = 50  # of a list or a table among the facts

#: Names of facts that are never shown. Whole words of the name: `token_id` is shown, `token` not.
_SECRET = re.compile(
    r"(^|_)(key|keys|secret|secrets|password|passphrase|token|tokens|credential|credentials|seed"
    r"|vector|vectors|update|updates|weights|gradient|gradients|mask|masks|share|shares|content)$"
)
_TOKEN = re.compile(r"delian1\.[A-Za-z0-9_-]+")
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.S
)
_PASSWORD = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@")

#: What every record of the standard library has: the rest are facts.
_PLAIN = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
)

#: Libraries that say too much at our level.
_QUIET = ("asyncio", "alembic", "sqlalchemy", "grpc", "botocore", "mqtt", "paho")

Event = MutableMapping[str, Any]


def masked(logger: Any, method: str, event: Event) -> Event:
    """A structlog processor that hides secrets."""
    for name in event:
        event[name] = _safe(name, event[name])
    return event


def _safe(name: str, value: Any, depth: int = 0) -> Any:
    if _SECRET.search(name.lower()) and not isinstance(value, bool | int | float):
        return MASK
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex() if len(value) <= 32 else f"<{len(value)} bytes>"
    if isinstance(value, dict):
        if depth > 2:
            return f"<{len(value)} entries>"
        some = list(value.items())[:ITEMS_MAX]
        return {str(k): _safe(str(k), v, depth + 1) for k, v in some}
    if isinstance(value, list | tuple | set | frozenset):
        if depth > 2 or len(value) > ITEMS_MAX:
            return f"<{len(value)} items>"
        return [_safe("", v, depth + 1) for v in value]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<array {value.shape}>"
    text = str(value)
    text = _PASSWORD.sub(rf"\1:{MASK}@", _PEM.sub(MASK, _TOKEN.sub(MASK, text)))
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def plain(logger: Any, method: str, event: Event) -> Event:
    """A structlog processor: escapes control characters, which a terminal would obey.

    What a peer chose may be in every text; a traceback keeps its lines.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escaped(value, LINES if name == "exception" else "")
    return event


def _facts(logger: Any, method: str, event: Event) -> Event:
    """Adds what a record carries as `extra`."""
    record = event.get("_record")
    if record is not None:
        for name, value in vars(record).items():
            if name not in _PLAIN and not name.startswith("_") and name not in event:
                event[name] = value
    return event


def _trace(logger: Any, method: str, event: Event) -> Event:
    """Names the trace that the node is at work on."""
    context = parse(current.get())
    if context is not None:
        event["trace_id"], event["span_id"] = context.trace, context.span
    return event


def setup(config: LogConfig, stream: TextIO | None = None) -> None:
    """Sends all logs to `stream` (stderr) as configured. May be called again."""
    out = sys.stderr if stream is None else stream
    pretty = config.format == "pretty" or (config.format == "auto" and out.isatty())
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _facts,
        _trace,
    ]
    ending: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if pretty:
        ending += [
            structlog.processors.format_exc_info,
            masked,
            plain,
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    else:
        ending += [
            structlog.processors.format_exc_info,
            masked,
            structlog.processors.EventRenamer("event"),
            structlog.processors.JSONRenderer(default=str),
        ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=ending)
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared[:3],
            _trace,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
