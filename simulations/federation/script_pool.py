"""Processes of one training script, which many simulated clients share.

A process imports what the script imports once, and then serves whichever client's turn it is. What
a script keeps for a client is in that client's folder, `task.folder`. Jobs are done in the order in
which they come, by the process that has the fewest.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.common.processors import cores
from ...core.learning.bundle import Leaf
from ...core.node.scripts.script_process import (
    Purpose,
    ScriptCommand,
    ScriptJob,
    ScriptProcess,
    ScriptReply,
)
from ...core.protocol.ports import Floats, Vector
from .ray_scripts import RayScripts
from .script_worker import PLACES, Asked, Process, ScriptWorker

#: Libraries' threads, of which the processes share the cores.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


#: And PyTorch's memory: a step allocates and frees the same megabytes again and again, which glibc
#: gives back to the kernel, and large pages need fewer look-ups. A tenth of a small CNN's training.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "THP_MEM_ALLOC_ENABLE": "1",
}

#: So many jobs may begin before one that came earlier.
AHEAD_MAX = 4

T = TypeVar("T")


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
        self._folders: dict[int, str] = {}  # of clients
        self._served: dict[int, ScriptWorker] = {}  # by client
        self._processes = processes
        self._workers: list[ScriptWorker] = []
        self._waiting: deque[Asked[Any]] = deque()
        self._handing = threading.Lock()
        self._own: dict[int, Process] | None = {} if each else None
        self._started: list[Process] = []
        self._lock, self._closed = threading.Lock(), False
        threads = str(max(1, cores() // processes))
        # What lies in the current folder can be imported, as after `python -m`.
        places = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        path = {"PYTHONPATH": os.pathsep.join(places)}
        chosen = any(name in os.environ for name in _THREADS)
        given = {} if chosen else dict.fromkeys(_THREADS, threads)
        self._given = {**given, **_MEMORY}
        self._environment = {**self._given, **os.environ, **path}

    def submit(
        self,
        purpose: Purpose,
        round: int,
        client: int,
        weights: Floats,
        key: Vector,
        then: Callable[[ScriptReply], T],
    ) -> Asked[T]:
        """Asks for a client's answer; gives what `then` will make of it, on some thread.

        The answer's weights are there until `then` returns. The result raises DelianError where
        there is no answer.
        """
        if (own := self._folders.get(client)) is None:
            made = Path(self._folder.name) / f"client-{client}"
            made.mkdir(exist_ok=True)
            own = self._folders[client] = str(made)
        high, low = (int(word) for word in key)
        seed = (high << 32 | low) >> 1
        job = ScriptJob(purpose, 1, round, client, self._clients, seed, own)
        asked = Asked(job, weights, then)
        with self._handing:
            self._waiting.append(asked)
            self._hand_out()
        return asked

    def ask(
        self, purpose: Purpose, round: int, client: int, weights: Floats, key: Vector
    ) -> ScriptReply:
        """A client's answer; waits for it. Raises DelianError."""
        return self.submit(purpose, round, client, weights, key, ScriptReply.kept).result()

    def first(self) -> dict[str, NDArray[Any]]:
        """The arrays that the script begins with, by name. Raises DelianError."""
        return self._start(0).first(self._timeout_s)

    def _hand_out(self) -> None:
        """Gives workers the jobs for which they have room."""
        while self._waiting:
            if not self._waiting[0].is_wanted:
                self._waiting.popleft()
                continue
            # Of those with as few the first: few are started where few are needed.
            worker = min(self._workers, key=lambda each: (each.is_full, each.open), default=None)
            if worker is None or (worker.open and len(self._workers) < self._processes):
                worker = self._hire()
            if worker.is_full:
                return
            worker.open += 1
            worker.take(self._next_for(worker))

    def _next_for(self, worker: ScriptWorker) -> Asked[Any]:
        """Of the next jobs the first of a client that it has served, or that none has, if any.

        A script may have kept that client's data.
        """
        place = 0
        for i, asked in enumerate(islice(self._waiting, AHEAD_MAX)):
            if asked.is_wanted and self._served.get(asked.job.client, worker) is worker:
                place = i
                break
        asked = self._waiting[place]
        del self._waiting[place]
        self._served[asked.job.client] = worker
        return asked

    def _hire(self) -> ScriptWorker:
        name = f"delian-script-{len(self._workers)}"
        shared = self._own is None
        made = ScriptWorker(self._process_for, shared, self._answered, self._timeout_s, name)
        self._workers.append(made)
        return made

    def _answered(self, worker: ScriptWorker) -> None:
        with self._handing:
            worker.open -= 1
            self._hand_out()

    def _process_for(self, job: ScriptJob, before: Process | None) -> Process:
        if self._own is not None:
            before = self._own.get(job.client)
        if before is not None and not before.ended:
            return before
        made = self._start(job.client)
        if self._own is not None:
            self._own[job.client] = made
        return made

    def _start(self, client: int) -> Process:
        with self._lock:
            if self._closed:
                raise DelianError("the run is over")
            given = (self._command, self._leaves, self._script)
            whose = client if self._own is not None else None
            made: Process
            if self._cluster is not None:
                made = self._cluster.start(
                    *given, environment=self._given, client=whose, clients=self._clients
                )
            else:
                made = ScriptProcess(
                    *given,
                    Path(self._folder.name) / f"script-{len(self._started)}.log",
                    client=whose,
                    clients=self._clients,
                    environment=self._environment,
                    # One of them for the answer that is used.
                    places=(PLACES if whose is None else 1) + 1,
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
        with self._handing:
            waiting, self._waiting = self._waiting, deque()
            workers, self._workers = self._workers, []
        for asked in waiting:
            asked.answer = DelianError("the run is over")
            asked.run()
        for worker in workers:
            worker.end()
        with self._lock:
            self._folder.cleanup()
            if self._cluster is not None:
                self._cluster.close()
