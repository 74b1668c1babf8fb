"""How many processors there are for this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: Of a file of the kernel: /proc/self/cgroup has a line for each of a dozen hierarchies.
_BYTES_MAX = 64 * 1024
#: Groups in groups that are looked at; the kernel's own limit is the administrator's.
_DEPTH_MAX = 64
#: Where the v1 hierarchy of processors is mounted, under the group file system.
_V1 = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def cores(root: Path = Path("/")) -> int:
    """The processors that this process may use.

    Where it is confined to some of them, or its container to a share of their time (a quota,
    rounded up), fewer than there are; at least one.

    root: where /proc and /sys/fs/cgroup are.
    """
    if hasattr(os, "sched_getaffinity"):
        there = len(os.sched_getaffinity(0))
    else:
        there = os.cpu_count() or 1
    return max(1, min([there, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """The quotas of the groups of this process, and of all groups that they are in, as processors.

    A container often sees a part of the tree: its own group is then the mounted root, whatever
    /proc/self/cgroup calls it. So a group that is not there sets no limit, and its parents are
    looked at. Control groups: the kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
    Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            # In a hybrid tree v2 has a folder of its own, and v1 the processors.
            for group in _upwards(path):
                yield from _processors(_read(mounted / group / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            for top in _V1:
                for group in _upwards(path):
                    folder = mounted / top / group
                    quota = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                    yield from _processors(" ".join(quota).split())


def _upwards(path: str) -> list[PurePosixPath]:
    """A group and all that it is in, the mounted root last; of one outside of it the root alone."""
    group = PurePosixPath(path.lstrip("/"))
    if ".." in group.parts or len(group.parts) > _DEPTH_MAX:
        return [PurePosixPath()]
    return [group, *group.parents]


def _processors(words: list[str]) -> list[int]:
    """`quota period` as processors, rounded up; nothing where it is no limit ("max", -1)."""
    try:
        quota, period = map(int, words)
    except ValueError:
        return []
    return [-(-quota // period)] if quota > 0 and period > 0 else []


def _read(file: Path) -> str:
    """The file's text; empty where there is none, or none that can be read."""
    try:
        with file.open("rb") as opened:
            return opened.read(_BYTES_MAX).decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
