"""The agent's side of compiling: a process for each bundle that has not been compiled yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...wire.round_pb2 import PROGRAM_FAILED
from .process_limits import WorkerLimits
from .worker_process import Stopped, WorkerProcess, command

COMPILER = command("delian.core.node.sandbox.compiler")


async def compiled(
    bundle: Path | bytes,
    programs: Sequence[str],
    limits: WorkerLimits,
    environment: Mapping[str, str],
    *,
    artifacts: Sequence[str] = (),
    wall_s: float,
) -> str | None:
    """The object of a bundle's programs, of those that no artifact has.

    None: no C compiler is here. bundle: its file, or its bytes. Raises Stopped.
    """
    read = [str(bundle)] if isinstance(bundle, Path) else []
    settings = {"limits": limits.to_json(), "read": [*read, *artifacts]}
    job: dict[str, Any] = {"ticket": 0, "programs": list(programs), "artifacts": list(artifacts)}
    body = b""
    if isinstance(bundle, Path):
        job["bundle"] = str(bundle)
    else:
        body = bundle
    try:
        process = await WorkerProcess.start(COMPILER, environment, settings)
    except OSError as error:
        raise Stopped(PROGRAM_FAILED, f"no compiling process: {error}") from error
    try:
        answer = await process.ask(job, body, wall_s=wall_s)
    finally:
        await process.kill()
    found = answer.head.get("object")
    return found if isinstance(found, str) else None
