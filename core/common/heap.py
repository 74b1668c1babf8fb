"""The C library's heap: what a process asks of it.

glibc gives each thread that allocates an arena of its own. What one thread has freed, another does
not take: threads that pass on pieces of a large transfer, one after the other, each keep a few.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_ARENA_MAX = -8


def share_heap() -> bool:
    """One heap for all threads: what one has freed, another can take.

    Whether the C library took the hint. Holds for the rest of the process, but for threads that
    have allocated before.
    """
    return told((_M_ARENA_MAX, 1))


def told(*options: tuple[int, int]) -> bool:
    """Whether the C library took these options (`mallopt`)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library: musl keeps its own counsel
    return all(mallopt(name, value) for name, value in options)
