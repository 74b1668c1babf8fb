"""One thread that reads ahead: the next window, while the one before is trained on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: The thread's stack, which counts as address space; it reads, and calls nothing deep.
_STACK_BYTES = 1 << 20


class Pending(Generic[T]):
    """Work that was given to a thread, or is done when its result is asked for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self.taken = False

    def run(self) -> None:
        """Does it."""
        try:
            self._result = self._work()
        except BaseException as error:  # the caller's thread is to have it, whatever it is
            self._error = error
        self._done.set()

    def result(self) -> T:
        """What the work gives, or the error that it raised."""
        if self.taken:
            self._done.wait()
        elif not self._done.is_set():
            self.run()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class ReadingThread:
    """Does work in a thread of its own, where one could be started; else when it is asked for."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Pending[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, first: Callable[[], Any] = lambda: None) -> None:
        """Starts the thread. first: what it does before all else; its error is raised here.

        Without a thread, where the system starts none, work is done as it is asked for.
        """
        if self._thread is not None:
            return
        began = Pending(first)
        began.taken = True

        def work() -> None:
            began.run()
            while (pending := self._waiting.get()) is not None:
                pending.run()

        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=work, name="delian-reading", daemon=True)
            thread.start()
        except RuntimeError:
            return
        finally:
            threading.stack_size(before)
        self._thread = thread
        began.result()

    @property
    def threads(self) -> int:
        """How many threads there are: one or none."""
        return 0 if self._thread is None else 1

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """Work that is done in its turn."""
        pending = Pending(work)
        if self._thread is not None:
            pending.taken = True
            self._waiting.put(pending)
        return pending

    def close(self) -> None:
        """Ends the thread once it has done its work."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()
