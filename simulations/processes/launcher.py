"""Starts daemons as child processes, and leaves none behind.

Each child has its own log file, reports by one line of JSON on its standard output that it serves,
and ends on SIGTERM, or a while later is made to (SIGKILL). On Linux the kernel also ends a child
whose parent has died, however it died. `kill` is for tests of what a crash does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError

log = logging.getLogger("delian.simulations")

#: How long a daemon may take until it serves, with other daemons starting at the same time.
READY_S = 180.0
#: How long a daemon may take to end in good order, with others ending at the same time.
STOP_S = 30.0
#: What a daemon may say on its ready line.
LINE_BYTES_MAX = 64 * 1024
#: How much of a log an error message shows.
TAIL_LINES = 12

#: What a child does first: it asks the kernel (prctl PR_SET_PDEATHSIG, 1) to end it (SIGKILL, 9)
#: with its parent, and then becomes the command. Not between fork and exec, where a parent with
#: gRPC's threads could not safely run anything.
_BOOT = """
import os, runpy, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
sys.argv[:2] = ["delian"]
runpy.run_module("delian.cli", run_name="__main__", alter_sys=True)
"""


#: Starts all children, and lasts as long as this process: the kernel takes the end of the thread
#: that started a child for the death of the parent.
_starter = ThreadPoolExecutor(1, "launcher")


class Child:
    """One daemon. `command` goes to `python -m delian.cli`."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] = {}
    ) -> None:
        self.name, self.command = name, list(command)
        self.log = folder / f"{name}.log"
        self.facts: dict[str, Any] = {}
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it, or starts it again."""
        assert not self.running
        with self.log.open("ab") as log:
            self._process = _starter.submit(
                lambda: subprocess.Popen(
                    [sys.executable, "-c", _BOOT, str(os.getpid()), *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    # A group of its own: Ctrl-C in the terminal is the parent's to handle.
                    start_new_session=True,
                )
            ).result()

    def wait_ready(self, deadline: float) -> dict[str, Any]:
        """The facts of its ready line. Raises DelianError when it ends, or says nothing in time."""
        assert self._process is not None and self._process.stdout is not None
        pipe, line = self._process.stdout.fileno(), b""
        while b"\n" not in line and len(line) < LINE_BYTES_MAX:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([pipe], [], [], max(0.0, left))
            piece = os.read(pipe, 4096) if ready else b""
            if not piece:
                why = "did not begin to serve in time" if not ready else self._how_it_ended()
                raise DelianError(f"{self.name} {why}", f"the end of its log:\n{self.tail()}")
            line += piece
        try:
            self.facts = dict(json.loads(line.partition(b"\n")[0]))
        except ValueError as fault:
            raise DelianError(f"{self.name} said {line[:80]!r} instead of its facts") from fault
        return self.facts

    def _how_it_ended(self) -> str:
        assert self._process is not None
        return f"ended with exit code {self._process.wait()} before it served"

    def ask_to_stop(self) -> None:
        """Asks it to end in good order, once: a second time would mean at once."""
        if self.running:
            self.signal(signal.SIGTERM)

    def wait(self, deadline: float) -> int | None:
        """Until it ends; at the deadline it is made to. Its exit code; None if it never ran."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        if self.running:
            log.warning("%s did not end in time", self.name)
            self.signal(signal.SIGKILL)
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def signal(self, number: int) -> None:
        """Sends a signal, to this child only: it has the only number of it that is sure."""
        assert self._process is not None
        self._process.send_signal(number)

    def tail(self) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


class Children:
    """Several daemons, as a context: when it ends none of them runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: dict[str, Child] = {}
        self.stopped = False
        self._changing = threading.Lock()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def add(self, name: str, command: Sequence[str], environment: Mapping[str, str] = {}) -> Child:
        """Starts a daemon under a name."""
        child = self.all[name] = Child(name, command, self.folder, environment)
        child.start()
        return child

    def crash(self, name: str) -> None:
        """Ends a daemon at once and starts it again. From any thread."""
        with self._changing:
            if not self.stopped:
                self.all[name].kill()
                self.all[name].start()

    def wait_ready(self, names: Sequence[str]) -> None:
        """Until all of these serve."""
        deadline = time.monotonic() + READY_S
        for name in names:
            self.all[name].wait_ready(deadline)

    def check(self) -> None:
        """Raises DelianError when a daemon has ended."""
        with self._changing:
            ended = [child for child in self.all.values() if not child.running]
        for child in ended:
            raise DelianError(f"{child.name} has ended", f"its log ends:\n{child.tail()}")

    def stop(self) -> None:
        """Ends all; asked first are the youngest: devices before edges, edges before the cloud."""
        with self._changing:
            self.stopped = True
        children = list(reversed(self.all.values()))
        for child in children:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_S
        for child in children:
            child.wait(deadline)
