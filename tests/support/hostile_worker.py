"""A worker that a program has taken over: what the program would do, written in Python.

`python -P hostile_worker.py PLAN MODULE` runs a worker's module, whose compiled program is replaced
by code that tries what no program may, and answers with what the system said to it: the number of
an error for each of `NAMES`, 0 where it was possible. So it is tried at the very place in the
process where a program runs, behind the walls that are there then.

PLAN is a JSON file: places that are tried, "walls" (false: none), and "instead": "try", "allocate",
"crash" or "wait".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import runpy
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "prctl": 157, "io_uring_setup": 425},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "prctl": 167, "io_uring_setup": 425},
}.get(os.uname().machine, {})
_PTRACE_SEIZE, _SIGCONT, _UNKNOWN = 0x4206, 18, 999


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_NUMBERS.get(name, -1), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), name)


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _exec() -> None:
    """A file that is not there is looked for only by a process that may run others."""
    try:
        os.execv("/proc/self/nowhere", ["x"])
    except FileNotFoundError:
        return


def _attempts(places: dict[str, str]) -> dict[str, Callable[[], object]]:
    agent, key = os.getppid(), Path(places["identity"]) / "key.pem"
    cache, scratch = Path(places["cache"]), Path(places["scratch"])
    buffer = ctypes.create_string_buffer(256)
    return {
        "fork": _fork,
        "start a thread": _thread,
        "run a program": _exec,
        "open a TCP socket": lambda: socket.socket(socket.AF_INET).close(),
        "open a Unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "read the identity": key.read_bytes,
        "list the identity": lambda: list(key.parent.iterdir()),
        "publish the identity": lambda: key.chmod(0o644),
        "write the workers' cache": lambda: (cache / "workers" / "x.so").write_bytes(b""),
        "write the agent's cache": lambda: (cache / "x.so").write_bytes(b""),
        "change a blob": lambda: Path(places["blob"]).open("r+b").close(),
        "make a file": lambda: (scratch / "new").write_bytes(b""),
        "remove a file": (scratch / "old").unlink,
        "read another file": Path("/etc/passwd").read_bytes,
        "signal the agent": lambda: os.kill(agent, 0),
        "own the agent's signals": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, agent),
        "limit the agent": lambda: resource.prlimit(agent, resource.RLIMIT_CORE),
        "trace the agent": lambda: _call("ptrace", _PTRACE_SEIZE, agent, 0, 0),
        "read the agent's memory": lambda: _call("process_vm_readv", agent, 0, 0, 0, 0, 0),
        "open an io_uring": lambda: _call("io_uring_setup", 1, ctypes.addressof(buffer)),
        "outlive the agent": lambda: _call("prctl", 1, _SIGCONT, 0, 0, 0),
    }


NAMES = tuple(_attempts(dict.fromkeys(("identity", "cache", "blob", "scratch"), "/")))
#: What every user may do to processes and files of their own, wherever the tests run.
COMMON = frozenset(NAMES) - {"trace the agent", "open an io_uring", "start a thread", "fork"}


def _tried(places: dict[str, str]) -> list[int]:
    found = []
    for attempt in _attempts(places).values():
        try:
            attempt()
            found.append(0)
        except OSError as error:
            found.append(error.errno or _UNKNOWN)
        except RuntimeError:  # "can't start new thread"
            found.append(errno.EPERM)
    return found


def _instead(plan: dict[str, str]) -> list[int]:
    """What is done in the program's place."""
    if plan["instead"] == "try":
        return _tried(plan)
    if plan["instead"] == "crash":
        ctypes.string_at(0)
    if plan["instead"] == "wait":
        time.sleep(10**6)
    taken = []
    while True:
        taken.append(np.ones(1 << 20))


def main() -> None:
    plan = json.loads(Path(sys.argv.pop(1)).read_text())
    module = sys.argv.pop(1)
    from delian.core.learning import runtime
    from delian.core.node.sandbox import walls

    class Runtime(runtime.Runtime):
        def client_update(self, state, data, key, kept=None):
            vector = np.array(_instead(plan), np.uint32)
            return runtime.Update(vector, 0.0, True, np.empty(0, np.float32))

        def server_update(self, state, memory, mean, out=None, *, weight=None):
            found = _instead(plan)
            out[0][: len(found)] = found
            return out[0], list(out[1])

    runtime.Runtime = Runtime
    if not plan["walls"]:
        walls.confine_run = lambda *given: ()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
