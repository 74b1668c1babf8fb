"""The daemons under attack: in this process, where tasks can be counted, or as processes, where
memory can.

Both tell the same: where they serve, their page of metrics, their log, and what they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delian.cloud.protocol.coordinator_state import CoordinatorPolicy
from delian.cloud.service import daemon as cloud_daemon
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.net.message_limits import PeerTimes
from delian.core.protocol.ports import CLOUD, MS
from delian.edge.protocol.edge_state import EdgePolicy, EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore
from delian.edge.service import daemon as edge_daemon
from delian.edge.service.daemon import EdgeDaemon, EdgeSettings

LOOPBACK = "127.0.0.1:0"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
#: Rounds follow one another at once.
QUICK = EdgePolicy(hello_delay_ns=20 * MS, after_task_ms=(20, 60), after_reject_ms=(30, 90))

#: Else a test of what a review finds takes a minute, and one of silence 20 s.
TIMES = PeerTimes(first_s=5.0, review_s=0.5)


def gatherer(snapshot: bytes | None) -> EdgeMachine:
    """The coordinator's own edge."""
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot), QUICK)


@dataclass(frozen=True)
class Usage:
    """What a host holds."""

    files: int
    """Open ones; calls at work where there are no files."""
    tasks: int | None
    """None: unknown."""
    rss: int
    """KiB, the most there was."""
    held: int = 0
    """Bytes of transfers that are on their way in."""


def settings_of_cloud(folder: Path, authority: Path, broker: str) -> CloudSettings:
    return CloudSettings(
        folder=folder,
        ca=authority,
        listen=LOOPBACK,
        enrolment=LOOPBACK,
        health=LOOPBACK,
        addresses=("127.0.0.1",),
        broker=broker,
        backend="reference",
        # A flood of tries must be over when the next test comes.
        enrolments_per_minute=600.0,
        policy=CoordinatorPolicy(after_reject_ms=(30, 90), after_task_ms=(20, 60)),
        times=TIMES,
    )


def settings_of_edge(folder: Path, cloud: str, broker: str) -> EdgeSettings:
    return EdgeSettings(
        folder=folder,
        identity=folder / "identity",
        listen=LOOPBACK,
        broker=broker,
        cloud=HomeAddress(CLOUD, grpc=cloud),
        transport="grpc",
        health=LOOPBACK,
        policy=QUICK,
        times=TIMES,
    )


def read_metrics(page: str) -> dict[str, float]:
    """By a name of plain words: `cloud` tells ("grpc", "oversized") what an edge calls a link."""
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(page):
        told = dict(_LABEL.findall(labels))
        if name == "delian_refusals_total":
            key = f"{told['where']}: {told['kind']}"
        elif name == "delian_node_events_total":
            key = f"{told['node']}: {told['kind']}"
        elif (parts := re.fullmatch(r"delian_(link|node)_(\w+)_total", name)) and not told:
            key = f"{parts[1]}: {parts[2]}"
        else:
            key = name + "".join(f" {v}" for v in told.values())
        found[key.replace("_", " ").lower()] = float(value)
    return found


async def http_get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return (await reader.read()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


class Lines(logging.Handler):
    """Keeps what the daemons of this process log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Inside:
    """A daemon as objects of this process."""

    def __init__(self, daemon: CloudDaemon | EdgeDaemon) -> None:
        self.daemon = daemon
        self._lines = Lines()
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._log, self._level = logging.getLogger("delian"), logging.NOTSET

    async def start(self) -> dict[str, int]:
        self._log.addHandler(self._lines)
        self._level = self._log.level
        self._log.setLevel(logging.INFO)
        await self.daemon.start()
        self._watch = asyncio.create_task(self.daemon.tasks.wait(self._ended))
        if isinstance(self.daemon, EdgeDaemon):
            facts = self.daemon.facts()
            self.ports = {"grpc": facts["grpc"], "health": facts["health"]}
        else:
            self.ports = self.daemon.ports
        return self.ports

    def check(self) -> None:
        """Raises what has ended the daemon."""
        if self._watch is not None and self._watch.done():
            self._watch.result()
            raise AssertionError("the daemon has ended")

    def log(self) -> list[str]:
        return self._lines.lines

    def usage(self) -> Usage:
        return usage_of(os.getpid(), len(asyncio.all_tasks()))

    async def close(self) -> None:
        self._ended.set()
        await self.daemon.close()
        if self._watch is not None:
            await asyncio.gather(self._watch, return_exceptions=True)
        self._log.setLevel(self._level)
        self._log.removeHandler(self._lines)


_PROCESS = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from support.peers import peer_hosts
peer_hosts.main(sys.argv[2], json.loads(sys.argv[3]))
"""


class Outside:
    """A daemon as a process, with timeouts that a busy machine does not run into."""

    def __init__(self, kind: str, folder: Path, **told: str) -> None:
        self._command = [
            *(sys.executable, "-c", _PROCESS, str(Path(__file__).parents[2]), kind),
            json.dumps({"folder": str(folder), **told}),
        ]
        self._log = folder.parent / f"{kind}.log"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> dict[str, int]:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        line = await asyncio.wait_for(self.process.stdout.readline(), 180)
        assert line, self._log.read_text()[-3000:]
        facts = json.loads(line)
        self.ports = facts.get("ports") or {"grpc": facts["grpc"], "health": facts["health"]}
        return self.ports

    def check(self) -> None:
        assert self.process.returncode is None, self._log.read_text()[-3000:]

    def log(self) -> list[str]:
        lines = []
        for line in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                lines.append(f"{said.get('level', '').upper()} {said.get('event', '')}")
        return lines

    def usage(self) -> Usage:
        return usage_of(self.process.pid, None)

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), 120)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


def main(kind: str, told: dict[str, str]) -> None:
    """A daemon's process."""
    from delian.cli.fleet.logs import setup
    from delian.cli.settings import LogConfig

    setup(LogConfig(format="json"))
    folder = Path(told["folder"])

    def ready(facts: dict[str, Any]) -> None:
        print(json.dumps(facts), flush=True)

    if kind == "cloud":
        settings = settings_of_cloud(folder, Path(told["authority"]), told["broker"])
        asyncio.run(cloud_daemon.serve(settings, gatherer, ready=ready))
    else:
        edge = settings_of_edge(folder, told["cloud"], told["broker"])
        asyncio.run(edge_daemon.serve(edge, ready=ready))


def usage_of(pid: int, tasks: int | None) -> Usage:
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    return Usage(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), tasks, peak)


def cloud_inside(folder: Path, authority: Path, broker: str) -> Inside:
    return Inside(CloudDaemon(settings_of_cloud(folder, authority, broker), gatherer))


def edge_inside(folder: Path, cloud: str, broker: str) -> Inside:
    return Inside(EdgeDaemon(settings_of_edge(folder, cloud, broker)))
