"""Processes of one training script, which many simulated clients share.

A process imports what the script imports once, and then serves whichever client's turn it is. What
a script keeps for a client is in that client's folder, `task.folder`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import LifoQueue
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.common.processors import cores
from ...core.learning.bundle import Leaf
from ...core.node.scripts.script_process import (
    Purpose,
    ScriptCommand,
    ScriptFault,
    ScriptJob,
    ScriptProcess,
    ScriptReply,
)
from ...core.protocol.ports import Floats, Vector
from .ray_scripts import RayScript, RayScripts

#: Libraries' threads, of which the processes share the cores.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


_Process: TypeAlias = ScriptProcess | RayScript


class ScriptPool:
    """Processes that are started when they are needed; `processes` of them work at once. A context.

    leaves, script: of the bundle's manifest. clients: how many there are. timeout_s: for one
    answer. each: whether each client has a process of its own. ray: whether they run on the
    machines of a Ray cluster. Raises DelianError where that cannot be had.
    """

    def __init__(
        self,
        command: ScriptCommand,
        leaves: Sequence[Leaf],
        script: Mapping[str, Any],
        *,
        processes: int,
        clients: int,
        timeout_s: float,
        each: bool = False,
        ray: bool = False,
    ) -> None:
        self._cluster = RayScripts(processes) if ray else None
        self._command, self._leaves, self._script = command, leaves, script
        self._clients, self._timeout_s = clients, timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="delian-scripts-")
        # The process that was used last is used next: few are started where few are needed.
        self._idle: LifoQueue[_Process | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)
        self._own: dict[int, _Process] | None = {} if each else None
        self._started: list[_Process] = []
        self._lock, self._closed = threading.Lock(), False
        threads = str(max(1, cores() // processes))
        # What lies in the current folder can be imported, as after `python -m`.
        places = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        path = {"PYTHONPATH": os.pathsep.join(places)}
        chosen = any(name in os.environ for name in _THREADS)
        self._threads = {} if chosen else dict.fromkeys(_THREADS, threads)
        self._environment = {**self._threads, **os.environ, **path}

    def ask(
        self, purpose: Purpose, round: int, client: int, weights: Floats, key: Vector
    ) -> ScriptReply:
        """A client's answer; waits for a process. Raises DelianError."""
        own = Path(self._folder.name) / f"client-{client}"
        own.mkdir(exist_ok=True)
        high, low = (int(word) for word in key)
        job = ScriptJob(
            purpose, 1, round, client, self._clients, seed=(high << 32 | low) >> 1, folder=str(own)
        )
        process = idle = self._idle.get()
        try:
            if self._own is not None:
                process = self._own.get(client)
            if process is None or process.ended:
                process = self._start(client)
            if self._own is None:
                idle = process
            else:
                self._own[client] = process
            return process.ask(job, weights, self._timeout_s)
        except ScriptFault as fault:
            raise DelianError(
                f"client {client}, round {round}, {purpose}: {fault.message}", fault.hint
            ) from None
        finally:
            self._idle.put(idle)

    def first(self) -> dict[str, NDArray[Any]]:
        """The arrays that the script begins with, by name. Raises DelianError."""
        return self._start(0).first(self._timeout_s)

    def _start(self, client: int) -> _Process:
        with self._lock:
            if self._closed:
                raise DelianError("the run is over")
            given = (self._command, self._leaves, self._script)
            whose = client if self._own is not None else None
            made: _Process
            if self._cluster is not None:
                made = self._cluster.start(
                    *given, threads=self._threads, client=whose, clients=self._clients
                )
            else:
                made = ScriptProcess(
                    *given,
                    Path(self._folder.name) / f"script-{len(self._started)}.log",
                    client=whose,
                    clients=self._clients,
                    environment=self._environment,
                )
            self._started.append(made)
            return made

    def __enter__(self) -> ScriptPool:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, also those that work. May be called twice."""
        with self._lock:
            self._closed = True
            for process in self._started:
                process.kill()
            self._started.clear()
            self._folder.cleanup()
            if self._cluster is not None:
                self._cluster.close()
