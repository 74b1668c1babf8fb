"""Processes of a training script on the machines of a Ray cluster.

RAY_ADDRESS names the cluster; without it one is started on this machine. Delian and the script are
installed on each of its machines, the script under the same path.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ...core.learning.bundle import Leaf
from ...core.node.scripts.script_process import (
    ScriptCommand,
    ScriptFault,
    ScriptJob,
    ScriptProcess,
    ScriptReply,
)

_KILL_S = 10.0


class RayScripts:
    """Starts processes on a cluster. Raises DelianError where it has fewer cores than processes."""

    def __init__(self, processes: int) -> None:
        try:
            import ray
        except ImportError:
            raise DelianError("Ray is not installed", install("ray")) from None
        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:
            local: dict[str, Any] = {}
            if not os.environ.get("RAY_ADDRESS"):
                local = {"num_cpus": processes, "_node_ip_address": "127.0.0.1"}
            try:
                ray.init(log_to_driver=False, include_dashboard=False, **local)
            except Exception as error:  # Ray raises no narrower class
                raise DelianError(
                    f"the Ray cluster cannot be used: {error}", "RAY_ADDRESS; `ray status`"
                ) from None
        if (cpus := ray.cluster_resources().get("CPU", 0)) < processes:
            self.close()
            raise DelianError(
                f"the Ray cluster has {cpus:g} cores, and {processes} processes are to run",
                f"--threads {max(1, int(cpus))}",
            )

    def start(self, *given: Any, client: int | None, **named: Any) -> RayScript:
        """A process. Arguments are those of `_Remote`. client: whose it is; None: it serves all."""
        # Those of one client each are many, of which few work at once: they reserve no core.
        cores = 1 if client is None else 0
        actor = self._ray.remote(_Remote).options(num_cpus=cores, max_concurrency=2)
        return RayScript(self._ray, actor.remote(*given, client=client, **named))

    def close(self) -> None:
        """Ends the cluster if it was started here. May be called twice."""
        if self._ours:
            self._ray.shutdown()


class RayScript:
    """A process on a machine of the cluster; used as a ScriptProcess is."""

    takes_at_once, answer_s = False, math.inf

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self.ended = ray, actor, False
        self._waiting: Any = None

    def send(self, job: ScriptJob, weights: NDArray[Any], wall_s: float) -> None:
        """As of ScriptProcess, for one job at a time."""
        self._waiting = self._actor.ask.remote(job, weights, wall_s)

    def receive(self, wall_s: float) -> ScriptReply:
        """As of ScriptProcess. Raises ScriptFault, DelianError."""
        reply: ScriptReply = self._got(self._waiting)
        return reply

    def first(self, wall_s: float) -> dict[str, NDArray[Any]]:
        """As of ScriptProcess. Raises ScriptFault, DelianError."""
        arrays: dict[str, NDArray[Any]] = self._got(self._actor.first.remote(wall_s))
        return arrays

    def _got(self, waiting: Any) -> Any:
        try:
            fault, answer, self.ended = self._ray.get(waiting)
        except self._ray.exceptions.RayError as error:
            self.ended = True
            last = str(error).strip().splitlines()[-1]
            raise DelianError(f"a worker of the Ray cluster has failed: {last}") from None
        if self.ended:
            self._ray.kill(self._actor)  # its core is free for the next one
        if fault is not None:
            raise ScriptFault(*fault)
        return answer

    def kill(self) -> None:
        """Ends the process and its worker. May be called twice."""
        self.ended = True
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.kill.remote(), timeout=_KILL_S)
        self._ray.kill(self._actor)


class _Remote:
    """What runs on a machine of the cluster. Answers are (fault or None, answer, whether it ended).

    `task.folder` is of that machine. environment: variables, where it has not its own.
    """

    def __init__(
        self,
        command: ScriptCommand,
        leaves: Sequence[Leaf],
        script: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        client: int | None,
        clients: int,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="delian-scripts-")
        self._given: Any = (command, leaves, script, Path(self._folder.name) / "script.log")
        self._named: dict[str, Any] = {"client": client, "clients": clients}
        self._environment = {**environment, **os.environ}
        self._process: ScriptProcess | None = None

    def ask(self, job: ScriptJob, weights: NDArray[Any], wall_s: float) -> Any:
        own = Path(self._folder.name) / f"client-{job.client}"
        own.mkdir(exist_ok=True)
        job = replace(job, folder=str(own))
        return self._answered(lambda process: process.ask(job, weights, wall_s))

    def first(self, wall_s: float) -> Any:
        return self._answered(lambda process: process.first(wall_s))

    def _answered(self, work: Callable[[ScriptProcess], Any]) -> Any:
        try:
            if self._process is None:
                made = ScriptProcess(*self._given, environment=self._environment, **self._named)
                self._process = made
            answer = work(self._process)
        except ScriptFault as fault:
            ended = self._process is None or self._process.ended
            return (fault.reason, fault.message, fault.hint), None, ended
        return None, answer, self._process.ended

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
