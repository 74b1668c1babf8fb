"""How many processors there are for this process."""

from __future__ import annotations

import os


def cores() -> int:
    """The processors that this process may run on: where it is confined, fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
