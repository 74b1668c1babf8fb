"""Python's collector of cycles, while a program starts.

What an import makes stays: classes, functions, constants. The collector looks through what is new
whenever there are some hundreds of objects more, a hundred times while a simulation is imported,
and once through all there is: an eighth of the time that it takes, in which nothing is found.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """Inside, nothing is searched for cycles. What is there at the end counts as old: it is
    searched with all else, and not at once. For imports: what makes garbage needs the collector.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else somebody's objects would be searched again
            gc.freeze()
            gc.unfreeze()  # gives all of them to the oldest generation
        gc.enable()
