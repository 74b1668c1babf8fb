"""Python's collector of cycles, while a program starts and when it ends.

What an import makes stays: classes, functions, constants. The collector looks through what is new
whenever there are some hundreds of objects more, a hundred times while a simulation is imported,
and once through all there is: an eighth of the time that it takes, in which nothing is found.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """Inside, nothing is searched for cycles.

    What is there at the end counts as old: it is searched with all else, and not at once. For
    imports: what makes garbage needs the collector.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else a user's objects would be searched again
            gc.freeze()
            gc.unfreeze()  # gives all of them to the oldest generation
        gc.enable()


def end_unsearched() -> None:
    """When this process ends, nothing is searched for cycles: all of its memory goes at once.

    For a command's own process, as cycles that are left are not finalised then; what is registered
    with `atexit` or `weakref.finalize` still is.

    Python searches all there is several times over before it ends: a sixth of the time that a
    short command takes.
    """
    atexit.register(gc.freeze)
