"""Keeps freed memory in the process, where the C library is glibc.

A federation makes and frees vectors as large as the model all the time. glibc gives blocks of that
size back to the kernel and takes them anew, and every page of them faults again: that costs a third
of the simulator's own time.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: Blocks up to this size come from the heap; about four times the largest model that simulations
#: are made for.
BLOCK_BYTES_MAX = 32 * 2**20
#: Freed memory at the heap's end that is kept.
KEPT_BYTES = 256 * 2**20


def keep_freed_memory() -> bool:
    """Whether the C library took the hint. Holds for the rest of the process."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library: musl keeps its own counsel
    # One heap for all threads: what one has freed, another can take.
    return bool(
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
        and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        and mallopt(_M_ARENA_MAX, 1)
    )
