"""Ctrl-C in commands that stop in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Becomes true at the first Ctrl-C. The run asks it between devices."""

    def __init__(self) -> None:
        self.raised = False

    def __call__(self) -> bool:
        return self.raised


@contextmanager
def interruptible() -> Iterator[StopFlag]:
    """The first Ctrl-C (or SIGTERM) raises the flag, the second ends the program at once."""
    flag = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.raised:
            raise KeyboardInterrupt
        flag.raised = True

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, handle) for s in signals]
    try:
        yield flag
    finally:
        for s, handler in zip(signals, before, strict=True):
            signal.signal(s, handler)
