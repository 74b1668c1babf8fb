"""What every daemon does around its nodes.

Its identity and addresses, tasks that run until it is stopped, and their end in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...common.errors import DelianError
from ...protocol.ports import CLOUD, Node, Tier
from ..identity.pki.identity_folder import HOMES_MAX, HomeAddress, IdentityFolder
from ..net.loopback import INSECURE
from ..storage.disk import state_in

log = logging.getLogger("delian.node")

#: How long a task may take to end once it is cancelled.
END_S = 20.0
_HOME = re.compile(r"(?:(cloud|edge-[0-9]{1,19}|[0-9]{1,19})@)?(\S{1,300})")
_TARGET = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")


#: What the threads of a daemon reserve, and not use, with room to spare: an edge that has just
#: started has 0.9 GiB.
ADDRESS_SPACE_BYTES_MIN = 2 << 30


@dataclass(frozen=True, slots=True)
class Who:
    """A daemon's identity."""

    node: Node
    federation: str
    identity: IdentityFolder | None = None
    """None: it has no certificate, and connects on loopback only."""
    homes: tuple[HomeAddress, ...] = ()


def who_is(
    tier: Tier, identity: Path | None, *, insecure: bool, number: int | None, federation: str = ""
) -> Who:
    """Reads the identity of a node, or takes its configuration where it is insecure. Blocks.

    Raises DelianError when the identity is missing or of another tier, or when both or neither are
    given.
    """
    if insecure:
        if identity is not None or number is None:
            raise DelianError(
                f"an insecure {tier.value} has a number and no identity",
                f"give --number N with --insecure, or leave --insecure out and join: a {tier.value}"
                " with an identity uses TLS",
            )
        return Who(Node(tier, number), federation or INSECURE)
    if identity is None:
        raise DelianError(
            f"this {tier.value} has no identity",
            "name the folder that `delian join` wrote with --identity; on one machine, for a try, "
            "--insecure --number N does without",
        )
    own = IdentityFolder(identity)
    facts = own.facts()
    if facts.role != tier.value:
        raise DelianError(
            f"{identity} is the identity of a {facts.role}, not of a {tier.value}",
            "name another folder with --identity",
        )
    if number is not None and number != facts.number:
        raise DelianError(f"{identity} is {facts.role} {facts.number}, not {number}")
    return Who(Node(tier, facts.number), facts.federation, own, facts.homes)


def notify_ready() -> None:
    """Notifies systemd that the daemon serves (sd_notify(3)); does nothing anywhere else."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect(address)
        link.sendall(b"READY=1")


class Tasks:
    """A daemon's tasks by name. When one of them fails, the daemon ends with its exception."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs it with the others. One that ends in good order just ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        return task

    async def wait(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or the first task fails: raises what it raised."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stopped.done():
                await asyncio.wait((*self._tasks, stopped), return_when=asyncio.FIRST_COMPLETED)
                self._collect()
        finally:
            stopped.cancel()

    def _collect(self) -> None:
        for task in [t for t in self._tasks if t.done()]:
            name = self._tasks.pop(task)
            if not task.cancelled() and (fault := task.exception()) is not None:
                log.error("%s has stopped: %s", name, fault)
                raise fault

    async def close(self) -> None:
        """Cancels what still runs, and waits for it."""
        tasks, self._tasks = list(self._tasks), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; a second one ends the process as it always would."""
    loop = asyncio.get_running_loop()
    names = (signal.SIGTERM, signal.SIGINT)

    def told(name: int) -> None:
        stop.set()
        loop.remove_signal_handler(name)

    added = []
    for name in names:
        # Only the main thread of the main interpreter may, and not every system can.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(name, told, name)
            added.append(name)
    try:
        yield
    finally:
        for name in added:
            loop.remove_signal_handler(name)


class Daemon(Protocol):
    """A running node, whatever its tier. close: in any case, also when `start` has failed."""

    tasks: Tasks

    async def start(self) -> None: ...

    def facts(self) -> dict[str, Any]: ...

    async def close(self) -> None: ...


async def run_daemon(
    make: Callable[[], Daemon],
    folder: Path,
    stop: asyncio.Event | None,
    ready: Callable[[dict[str, Any]], None],
) -> None:
    """Runs a daemon until `stop` is set, a signal comes (SIGTERM, SIGINT), or a task fails.

    Raises what a failed task raised. make: gives the daemon; called on a thread, because it may
    read files. folder: where the daemon keeps its state. ready: called once with its facts, when it
    has started.
    """
    check_address_space()
    stop = stop or asyncio.Event()
    with stop_on_signals(stop), state_in(folder):
        daemon = await asyncio.to_thread(make)
        try:
            await daemon.start()
            ready(daemon.facts())
            notify_ready()
            await daemon.tasks.wait(stop)
        finally:
            await daemon.close()


def check_address_space() -> None:
    """Raises DelianError where this process may have too little of it (`ulimit -v`).

    gRPC waits for ever for a thread that it cannot start, or ends the process.
    """
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE_BYTES_MIN:
        raise DelianError(
            f"the address space of this process is limited to {limit // 1024} KiB (ulimit -v)",
            f"give it at least {ADDRESS_SPACE_BYTES_MIN // 1024} KiB, most of which stays unused;"
            " limit memory by a cgroup instead (MemoryMax= of systemd)",
        )


def parse_home(text: str) -> HomeAddress:
    """Where a node may go, as an owner writes it.

        host:7700                  the coordinator, over gRPC
        edge-3@host:7701           edge 3
        edge-3@mqtts://host:8883   edge 3, through a broker

    Raises DelianError.
    """
    parts = _HOME.fullmatch(text.strip())
    if parts is None:
        raise DelianError(f"`{text[:80]}` is no home", "write host:port, or edge-3@host:port")
    who, where = parts[1], parts[2]
    number = 0 if who in (None, "cloud") else int(who.removeprefix("edge-"))
    node = Node(Tier.EDGE, number)
    if where.startswith(("mqtt://", "mqtts://")):
        _check_target(where.partition("://")[2], text)
        return HomeAddress(node, mqtt=where)
    _check_target(where, text)
    return HomeAddress(node, grpc=where)


def _check_target(target: str, text: str) -> None:
    parts = _TARGET.fullmatch(target)
    if parts is None or not 0 < int(parts[2]) < 65536:
        raise DelianError(f"`{text[:80]}` names no host and port", "write host:port")


def merge_homes(homes: Sequence[HomeAddress]) -> tuple[HomeAddress, ...]:
    """One entry a node, in order of its first.

    The coordinator, which enrolment calls the cloud, is edge 0 to a device. Raises DelianError for
    none or too many.
    """
    made: dict[Node, HomeAddress] = {}
    for home in homes:
        node = Node(Tier.EDGE, 0) if home.node == CLOUD else home.node
        before = made.get(node, HomeAddress(node))
        made[node] = HomeAddress(node, home.grpc or before.grpc, home.mqtt or before.mqtt)
    if not 0 < len(made) <= HOMES_MAX:
        raise DelianError(
            f"{len(made)} homes", f"name 1 to {HOMES_MAX} with --home, or join a federation"
        )
    return tuple(made.values())
