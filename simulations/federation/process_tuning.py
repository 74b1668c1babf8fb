"""The process's memory and collector, tuned for a federation.

A federation makes and frees vectors as large as the model all the time. glibc gives such blocks
back to the kernel and allocates them again, and every page of them faults again: with a small model
that costs a third of the simulator's own time. And it makes messages and effects by the hundred
thousand, none of which is part of a cycle: looking for cycles among all that a process has imported
takes a tenth.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.common.heap import share_heap, told

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

#: Blocks up to this size come from the heap; glibc takes no larger bound. To fault in the pages of
#: an update of 6 MiB takes as long as to clip and round it.
BLOCK_BYTES_MAX = 32 * 2**20
#: Freed memory at the heap's end that is kept.
KEPT_BYTES = 256 * 2**20
#: More objects made than freed, before the youngest are searched for cycles.
YOUNG_OBJECTS = 50_000
#: How long a thread that has come out of compiled code waits for the one that handles events,
#: seconds. Python's own 5 ms are as long as several local updates of a small model.
SWITCH_S = 0.0001


def keep_freed_memory() -> bool:
    """Whether the C library took the hint.

    Holds for the rest of the process; threads have one heap as well.
    """
    return share_heap() and told(
        (_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX), (_M_TRIM_THRESHOLD, KEPT_BYTES)
    )


#: What is restored once all callers have left `undisturbed`: simulations may run side by side.
_inside, _entering = 0, threading.Lock()
_before: tuple[tuple[int, int, int], float]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Reduces the work of Python's garbage collector, and the wait for a turn, while training.

    The collector leaves existing objects alone and runs seldom. The settings are restored when the
    last of several callers, at once or nested, has left.
    """
    global _inside, _before
    with _entering:
        if not _inside:
            _before = gc.get_threshold(), sys.getswitchinterval()
            gc.set_threshold(YOUNG_OBJECTS, *_before[0][1:])
            sys.setswitchinterval(SWITCH_S)
        gc.freeze()
        _inside += 1
    try:
        yield
    finally:
        with _entering:
            _inside -= 1
            if not _inside:
                thresholds, interval = _before
                sys.setswitchinterval(interval)
                gc.set_threshold(*thresholds)
                gc.unfreeze()
