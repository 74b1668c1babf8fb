"""A few threads that do work one after the other.

What `concurrent.futures` does besides, callbacks, waiting for several, time limits, costs more than
all else that a thread does for a small model's local update in Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """A result that is being made. `result` and `cancel` are those of a Future."""

    __slots__ = ("_done", "_fault", "_meanwhile", "_value", "_work")

    def __init__(
        self, work: Callable[[], T], meanwhile: Callable[[], bool] = lambda: False
    ) -> None:
        self._work: Callable[[], T] | None = work
        self._meanwhile = meanwhile
        self._value: T
        self._fault: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def is_wanted(self) -> bool:
        """Whether its work waits to be done."""
        return self._work is not None

    def run(self) -> BaseException | None:
        """Does the work, unless it was called off; gives what it raised."""
        work, self._work = self._work, None
        try:
            if work is not None:
                self._value = work()
        except BaseException as fault:  # the reader of the result gets the error
            self._fault = fault
        finally:
            self._done.release()
        return self._fault

    def cancel(self) -> bool:
        """Calls the work off unless it has begun; gives whether it has not."""
        waiting, self._work = self._work is not None, None
        return waiting

    def result(self) -> T:
        """Waits for it, and does `meanwhile` what there is to do.

        Raises what the work raised. Once, and not after `cancel`.
        """
        there = self._done.acquire(blocking=False)
        while not there:
            there = self._done.acquire(blocking=not self._meanwhile())
        if self._fault is not None:
            raise self._fault
        return self._value


class Postponed(Generic[T]):
    """A result that is made when it is requested, by the requester."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work

    def cancel(self) -> bool:
        """Calls the work off, which has not begun."""
        self._work = None
        return True

    def result(self) -> T:
        """Does the work. Once, and not after `cancel`."""
        work, self._work = self._work, None
        assert work is not None
        return work()


class NoWorkers:
    """In the place of `Workers` where one debugs: all is done on the thread that asks."""

    def submit(self, work: Callable[[], T]) -> Postponed[T]:
        return Postponed(work)

    def __enter__(self) -> NoWorkers:
        return self

    def __exit__(self, *fault: object) -> None:
        pass


class Workers:
    """`threads` threads. A context: leaving it waits for all that was submitted.

    helped: one of them is the thread that submits and requests results. It does the work that waits
    until its own is done.
    """

    def __init__(self, threads: int, name: str, helped: bool = False) -> None:
        assert threads >= 1 + helped
        self._meanwhile = self._help if helped else _nothing
        self._queue: SimpleQueue[Pending[object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{i}", daemon=True)
            for i in range(threads - helped)
        ]

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """Has a thread do the work, after what was submitted before."""
        pending = Pending(work, self._meanwhile)
        self._queue.put(pending)  # type: ignore[arg-type]
        return pending

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _help(self) -> bool:
        """Does what was submitted first and waits still, where something does.

        Raises at once what does not concern that work alone: Ctrl-C may come in the middle of
        another's.
        """
        try:
            pending = self._queue.get_nowait()
        except Empty:
            return False
        assert pending is not None  # no results are requested when it is over
        fault = pending.run()
        if fault is not None and not isinstance(fault, Exception):
            raise fault
        return True

    def _serve(self) -> None:
        while (pending := self._queue.get()) is not None:
            pending.run()
            del pending  # a result is as large as the model


def _nothing() -> bool:
    return False
