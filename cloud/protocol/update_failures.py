"""Why a server update gave no model: the run's record says so, and its operator reads it."""

from __future__ import annotations

from ...core.protocol.ports import NewModel, Outcome, ProgramStopped
from ...core.wire.round_pb2 import BAD_BUNDLE, DEADLINE, NON_FINITE, OUT_OF_MEMORY

_FAILED = "the server update failed"
_MORE = {
    NON_FINITE: "its numbers are not finite",
    OUT_OF_MEMORY: "it is out of memory",
    DEADLINE: "it exceeded its time limit",
    BAD_BUNDLE: "its bundle cannot be used",
}


def why_stopped(outcome: Outcome | NewModel | ProgramStopped) -> str:
    """Why there is no new model."""
    more = _MORE.get(outcome.reason) if isinstance(outcome, ProgramStopped) else None
    return f"{_FAILED}: {more}" if more else _FAILED
