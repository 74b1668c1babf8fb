"""Has the owner's scripts train, for the bundles that ask for one by its name.

A script is a command that the owner has installed and named. It runs with the owner's rights and
sees what the owner sees; a run can choose its name and its settings, and nothing else of it.

FOLDER/NAME/      a folder of the script's own
FOLDER/NAME.log   what it prints; a long one begins again with the next process
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ...core.learning.bundle import Leaf
from ...core.learning.scripts.script_data import judged_of, training_loss
from ...core.learning.scripts.script_spec import ScriptSpec
from ...core.node.sandbox.frames import FrameError
from ...core.node.sandbox.worker_process import Stopped
from ...core.node.scripts.script_process import (
    Purpose,
    ScriptCommand,
    ScriptFault,
    ScriptJob,
    ScriptProcess,
    ScriptReply,
)
from ...core.protocol.ports import RunProgram
from ...core.wire.round_pb2 import NO_DATA

log = logging.getLogger("delian.device.agent.script_desk")

#: A log that is longer than this begins again.
LOG_BYTES_MAX = 16 << 20

Array = NDArray[Any]


class ScriptDesk:
    """Runs one script at a time, and keeps its process for the next round of the same bundle.

    commands: the owner's, by name. folder: where scripts keep what is their own. path_of: the file
    of a whole blob, by digest. number: the device's. nice: of the processes.
    """

    def __init__(
        self,
        commands: Mapping[str, ScriptCommand],
        folder: Path,
        path_of: Callable[[bytes], Path],
        number: int = 0,
        nice: int = 0,
    ) -> None:
        self._commands, self._folder, self._path_of = dict(commands), folder, path_of
        self._number, self._nice = number, nice
        self._running: ScriptProcess | None = None
        self._bundle = b""  # that `_running` trains for

    async def answer(
        self, program: RunProgram, head: Mapping[str, Any], wall_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """What the worker's job gets: the answer, and its weights as bytes.

        head: what the worker said of the bundle. Raises Stopped, DelianError and OSError.
        """
        spec, leaves = _read(head)
        command = self._commands.get(spec.name)
        if command is None:
            raise Stopped(
                NO_DATA,
                f"the run is for a script {spec.name}, and this device has "
                + (", ".join(sorted(self._commands)) or "none")
                + f": delian device run --script {spec.name}=COMMAND",
            )
        if self._running is not None and (self._bundle != program.blobs[0] or self._running.ended):
            await self.close()
        work = asyncio.ensure_future(
            asyncio.to_thread(self._ask, program, head, spec, leaves, command, wall_s)
        )
        try:
            reply = await asyncio.shield(work)
        except asyncio.CancelledError:
            if self._running is not None:
                await asyncio.to_thread(self._running.kill)
            with contextlib.suppress(DelianError, OSError):
                await work
            raise
        except ScriptFault as fault:
            raise Stopped(fault.reason, fault.message) from None
        judged = judged_of(reply.metrics, spec.metrics)
        weights = b"" if reply.weights is None else reply.weights.tobytes()
        given = {
            "weights": len(weights),
            "examples": reply.examples,
            "loss": training_loss(reply.loss, judged),
            "judged": judged,
        }
        return given, weights

    def _ask(
        self,
        program: RunProgram,
        head: Mapping[str, Any],
        spec: ScriptSpec,
        leaves: list[Leaf],
        command: ScriptCommand,
        wall_s: float,
    ) -> ScriptReply:
        """Blocks. Raises ScriptFault, DelianError and OSError."""
        weights = np.fromfile(self._path_of(program.blobs[1]), "<f4")
        if weights.size != sum(leaf.size for leaf in leaves):
            raise DelianError(f"{weights.size} weights, and the bundle names other arrays")
        client = self._number if command.client is None else command.client
        own = self._folder / spec.name
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._running is None:
            printed = self._folder / f"{spec.name}.log"
            if printed.exists() and printed.stat().st_size > LOG_BYTES_MAX:
                printed.unlink()
            self._running = ScriptProcess(
                command,
                leaves,
                head["script"],
                printed,
                self._nice,
                client=client,
                clients=command.clients,
            )
            self._bundle = program.blobs[0]
            log.info("script started", extra={"script": spec.name, "pid": self._running.pid})
        high, low = (int(word) for word in program.arguments[0])
        purpose: Purpose = "train" if program.program == "client_update" else "evaluate"
        job = ScriptJob(
            purpose,
            program.task.run if program.task is not None else 0,
            program.task.round if program.task is not None else 0,
            client,
            command.clients,
            seed=(high << 32 | low) >> 1,
            folder=str(own),
        )
        return self._running.ask(job, weights, wall_s)

    async def close(self) -> None:
        """Ends the process. May be called twice."""
        running, self._running = self._running, None
        if running is not None:
            await asyncio.to_thread(running.kill)


def _read(head: Mapping[str, Any]) -> tuple[ScriptSpec, list[Leaf]]:
    """What the worker said of the bundle. Raises DelianError."""
    spec = ScriptSpec.from_json(head["script"])
    try:
        leaves = [Leaf(str(n), "f32", tuple(int(d) for d in shape)) for n, shape in head["leaves"]]
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError(f"arrays that make no sense: {escaped(str(error))[:200]}") from None
    if any(d < 0 for leaf in leaves for d in leaf.shape):
        raise FrameError("arrays of a negative size")
    return spec, leaves
