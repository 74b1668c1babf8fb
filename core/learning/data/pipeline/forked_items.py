"""Items that are made ahead by forked processes, for slow functions in Python.

A child inherits the pipeline by the fork, so nothing is pickled. The parent sends numbers of items;
a child writes the arrays into memory that both share, and sends their dtypes and shapes as JSON.
Item k is made by child k modulo their number, so the order is that of one process.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import signal
import struct
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ....common.errors import DelianError
from .row_columns import Columns

_NUMBER = struct.Struct("<qq")
_STOP = b"stop"
#: Items may be larger than the first one by this share, and still go through shared memory.
_ROOM = 1.25
_ALIGNMENT = 64
#: What a child may say at once, where an item does not fit.
_MESSAGE_BYTES_MAX = 1 << 30
_WAIT_S = 5


class MadeByProcesses:
    """`ahead` items are made by `count` children. Raises DelianError where forks are not had."""

    def __init__(self, make: Callable[[int], Columns], ahead: int, count: int) -> None:
        if sys.platform == "win32" or "fork" not in multiprocessing.get_all_start_methods():
            raise DelianError("this system has no forks", "prefetch(threads=...)")
        self._make, self._ahead, self._count = make, ahead, count
        self._children: list[_Child] = []
        self._waiting: deque[int] = deque()

    def take(self, number: int, end: int) -> Columns:
        """Item `number`, and starts those after it. Raises DelianError where a child ends."""
        if not self._children:
            first = self._make(number)
            self._start(first)
            self._ask(number + 1, end)
            return first
        self._ask(number + 1, end)
        assert self._waiting.popleft() == number, "items are taken one after another"
        return self._children[number % self._count].answer(number)

    def close(self) -> None:
        """Ends the children."""
        # All end at once: a later child holds a copy of the pipes of those before it.
        for child in self._children:
            child.stop()
        for child in self._children:
            child.close()
        self._children, self._waiting = [], deque()

    def _start(self, first: Columns) -> None:
        size = int(sum(_padded(column.nbytes) for column in first) * _ROOM) + _ALIGNMENT
        slots = self._ahead // self._count + 2
        try:
            for _ in range(self._count):
                self._children.append(_Child(self._make, size, slots))
        except OSError as error:
            self.close()
            raise DelianError(
                f"a process to make items cannot be started: {error.strerror}",
                "prefetch(threads=...), or fewer processes",
            ) from None

    def _ask(self, number: int, end: int) -> None:
        begin = self._waiting[-1] + 1 if self._waiting else number
        for k in range(begin, min(end, number + self._ahead)):
            self._children[k % self._count].ask(k)
            self._waiting.append(k)


class _Child:
    """One process, the memory that it shares with this one, and the pipe between them."""

    def __init__(self, make: Callable[[int], Columns], size: int, slots: int) -> None:
        context = multiprocessing.get_context("fork")
        self._size, self._slots, self._asked = size, slots, 0
        self._memory = mmap.mmap(-1, size * slots)
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(make, other, self._pipe, self._memory, size), daemon=True
        )
        self._process.start()
        # A pipe ends when its last copy does: one kept here would hide the end of the child.
        other.close()

    def ask(self, number: int) -> None:
        slot = self._asked % self._slots
        self._asked += 1
        try:
            self._pipe.send_bytes(_NUMBER.pack(number, slot))
        except OSError:
            raise self._ended(number) from None

    def answer(self, number: int) -> Columns:
        try:
            said = json.loads(self._pipe.recv_bytes(_MESSAGE_BYTES_MAX))
            if "error" in said:
                raise DelianError(said["error"], said["hint"])
            if said["slot"] is None:
                content: Any = self._pipe.recv_bytes(_MESSAGE_BYTES_MAX)
            else:
                content = memoryview(self._memory)[said["slot"] * self._size :]
        except (EOFError, OSError):
            raise self._ended(number) from None
        made, at = [], 0
        for dtype, shape in said["columns"]:
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(content, np.dtype(dtype), count, at).reshape(shape)
            made.append(array.copy())
            at += _padded(array.nbytes)
        return tuple(made)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(_STOP)
            self._pipe.close()

    def close(self) -> None:
        self._process.join(_WAIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        with contextlib.suppress(BufferError):
            self._memory.close()

    def _ended(self, number: int) -> DelianError:
        self._process.join(_WAIT_S)
        return DelianError(
            f"the process that makes item {number} ended (exit code {self._process.exitcode})",
            "its memory may be over; without processes= the error is shown where it happens",
        )


def _serve(
    make: Callable[[int], Columns],
    pipe: Connection,
    parents: Connection,
    memory: mmap.mmap,
    size: int,
) -> None:
    """What a child does until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parents.close()
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked = pipe.recv_bytes()
            if asked == _STOP:
                return
            number, slot = _NUMBER.unpack(asked)
            try:
                columns = tuple(np.ascontiguousarray(column) for column in make(number))
            except DelianError as error:
                pipe.send_bytes(json.dumps({"error": error.message, "hint": error.hint}).encode())
                continue
            except Exception as error:
                said = {"error": f"item {number}: {type(error).__name__}: {error}", "hint": ""}
                pipe.send_bytes(json.dumps(said).encode())
                continue
            about = [(column.dtype.str, column.shape) for column in columns]
            fits = sum(_padded(column.nbytes) for column in columns) <= size
            room = (
                memoryview(memory)[slot * size :] if fits else memoryview(bytearray(_all(columns)))
            )
            at = 0
            for column in columns:
                room[at : at + column.nbytes] = column.reshape(-1).view(np.uint8).data
                at += _padded(column.nbytes)
            answer = {"columns": about, "slot": slot if fits else None}
            pipe.send_bytes(json.dumps(answer).encode())
            if not fits:
                pipe.send_bytes(room)


def _all(columns: Columns) -> int:
    return sum(_padded(column.nbytes) for column in columns)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
