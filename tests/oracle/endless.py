"""A limit of processor time: programs that do not end, and those that a cut keeps from ending."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: A program that takes more processor time is counted as endless.
SECONDS_MAX = 10
#: What is written is run as it is written, which takes milliseconds.
WRITING_MAX = 2


class Endless(BaseException):
    """It takes too long. No `except Exception` of a program catches it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises Endless in what takes more processor time. Limits do not nest."""

    def stop(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        unlimited()
        signal.signal(signal.SIGPROF, before)


def unlimited() -> None:
    """Ends the limit that holds."""
    signal.setitimer(signal.ITIMER_PROF, 0)


__all__ = ["SECONDS_MAX", "WRITING_MAX", "Endless", "limited", "unlimited"]
