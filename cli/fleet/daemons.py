"""How the command line runs a daemon: configure, log, trace, say where it serves, wait for its end.

What runs a tier, and with which settings, is the tier's own file's to say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..config import load
from ..output import echo
from ..telemetry_export import open_spans
from .logs import setup

if TYPE_CHECKING:
    from ...core.node.driver.traces import Spans
    from ..settings import Config

Ready: TypeAlias = Callable[[dict[str, Any]], None]
#: (configuration, callback with its addresses, span recorder) -> ends with the daemon.
Serve: TypeAlias = "Callable[[Config, Ready, Spans | None], Awaitable[None]]"


def run(
    service: str,
    serve: Serve,
    config: Path | None,
    flags: Mapping[str, Any],
    settings: Sequence[str] | None,
) -> None:
    """Runs a daemon until it ends.

    service: its name in traces, "delian-cloud". config, flags, settings: the layers of its
    configuration, as `config.load` takes them. Raises DelianError for what its operator can mend.
    """
    from ...core.node.sandbox.process_limits import hide_memory

    hide_memory()
    loaded = load(config, flags, settings or ())
    setup(loaded.config.log)
    spans = open_spans(loaded.config.trace, service)

    async def served() -> None:
        await serve(loaded.config, say_ready, spans)

    try:
        asyncio.run(served())
    finally:
        if spans is not None:
            spans.close()


def say_ready(facts: dict[str, Any]) -> None:
    """The one line that a daemon says on its standard output."""
    echo(json.dumps(facts))
