"""How a daemon's process deals with memory: it keeps what was freed, and looks seldom for cycles.

glibc gives a block of a MiB back to the system when it is freed, or soon after, and takes pages for
the next one. The system must clear them first and put them in one by one, and that costs several
times what the copy does for which the block was made.

Python's collector looks through all that there is, again and again, for unreachable cycles. A
coordinator makes few of them, and has much to look through: thousands of streams.
"""

from __future__ import annotations

import ctypes
import gc
import sys

#: Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
#: Larger blocks still come from the system, each by itself: the most that glibc takes.
MMAP_BYTES = 32 * 2**20
#: So much may be free at the end of the heap before it is given back.
TRIM_BYTES = 256 * 2**20
#: So much more than it needs the heap takes at a time. Pages that are not touched are no memory.
PAD_BYTES = 16 * 2**20
#: Heaps for threads: few, so that what one has freed is there for the others.
ARENAS = 2
#: Objects more than there were before the collector looks; how often it then looks at older ones.
COLLECT_AFTER = (20_000, 20, 50)


def keep_freed_memory() -> bool:
    """For the whole process, from now on; early, for heaps that are there stay.

    False: this C library has no such settings (macOS, musl, Windows).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_MMAP_THRESHOLD, MMAP_BYTES),
        (_TRIM_THRESHOLD, TRIM_BYTES),
        (_TOP_PAD, PAD_BYTES),
        (_ARENA_MAX, ARENAS),
    )
    taken = [mallopt(name, value) == 1 for name, value in wanted]
    return all(taken)


def collect_seldom() -> None:
    """For the whole process, from now on."""
    gc.set_threshold(*COLLECT_AFTER)
