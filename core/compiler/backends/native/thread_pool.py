"""The threads with which a process runs compiled programs (`pool.c`, `pool.h`).

A process has one pool, started when a program first asks for more than one thread. Its threads take
chunks of work until none is left and then sleep; Python knows them as daemon threads that are
always within one call. A forked child starts a pool of its own. Without Linux or a C compiler there
is no pool, and programs run on one thread, with the same results.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading

from ....common.errors import DelianError
from .toolchain import cache
from .toolchain.artifact import Assembled, Facts
from .toolchain.toolchain import Toolchain, find

#: As many as pool.c has room for, and the caller.
THREADS_MAX = 64


def wanted() -> int:
    """Threads of a program by default: $DELIAN_THREADS, or 1. Raises DelianError."""
    said = os.environ.get("DELIAN_THREADS", "") or "1"
    if not said.isascii() or not said.isdigit():
        raise DelianError(f"DELIAN_THREADS is {said!r}", f"a number from 1 to {THREADS_MAX}")
    return checked(int(said))


def checked(threads: int) -> int:
    """The number, if a program can have so many threads. Raises DelianError."""
    if not 1 <= threads <= THREADS_MAX:
        raise DelianError(f"a program cannot run on {threads} threads", f"give 1 to {THREADS_MAX}")
    return threads


class Pool:
    """The pool of this process. Safe to use from several threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._run = ctypes.cast(library.dl_pool_run, ctypes.c_void_p)
        self._lock = threading.Lock()
        self._started = 0
        self.call = library.dl_pool_call
        self.call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_int]
        self.call.restype = ctypes.c_int
        library.dl_pool_work.restype = None
        os.register_at_fork(after_in_child=self._forget)

    def serve(self, program: ctypes.CDLL) -> bool:
        """Lets the programs of an object use the pool; False when it was built without the seam."""
        use = getattr(program, "dl_use", None)
        if use is not None:
            use.restype = None
            use(self._run)
        return use is not None

    def ensure(self, threads: int) -> None:
        """Starts what is missing of so many threads, of which the caller is one."""
        if self._started >= threads - 1:
            return
        with self._lock:
            while self._started < threads - 1:
                work = functools.partial(self._library.dl_pool_work, self._started)
                threading.Thread(target=work, name="delian-pool", daemon=True).start()
                self._started += 1

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._started = 0
        self._library.dl_pool_reset()


_making = threading.Lock()
_made: list[Pool | None] = []


def pool() -> Pool | None:
    """The pool of this process, made when it is first asked for."""
    if not _made:
        with _making:
            if not _made:
                _made.append(_make())
    return _made[0]


def _make() -> Pool | None:
    toolchain = find() if sys.platform == "linux" else None
    if toolchain is None:
        print(
            "delian: threads within a program need Linux and a C compiler: it runs on one thread",
            file=sys.stderr,
        )
        return None
    key = cache.key_of(toolchain, [("pool", "")])
    path, _ = cache.shared_object(key, toolchain, functools.partial(_source, toolchain))
    try:
        return Pool(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise DelianError(
            f"the threads of programs do not load: {error}", f"delete {path}: it is made again"
        ) from error


def _source(toolchain: Toolchain) -> Assembled:
    from importlib import resources

    text = resources.files(__package__).joinpath("c", "pool.c").read_text(encoding="utf-8")
    target = toolchain.target
    version = cache.emitter_version()
    facts = Facts(target.name, target.machine, toolchain.version, toolchain.flags, version, ())
    return Assembled(text, facts)
