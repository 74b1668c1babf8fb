"""Facts about the machine, which a report shows with wall times and `delian doctor` prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]

from ...core.common.processors import cores

PACKAGES = ("delian", "numpy", "pydantic", "torch", "ziglang")


def machine_facts() -> dict[str, Any]:
    """CPU, cores, memory, system, Python and package versions. Imports none of the packages."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gib": memory_gib(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := version_of(name))},
    }


def version_of(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_gib() -> float | None:
    """The machine's memory, where the system reports it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def peak_rss_mib() -> float | None:
    """The most memory this process has held, where the system reports it."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
