"""A report of seeds in a file, so that thousands of them can be run in parts.

The file is JSON. It is written after every few seeds and at the end, as a temporary file and then
moved to its place, so a run that is killed loses a few seeds. What it holds is of whichever
versions of the program have run the seeds; remove it where all are to be run by one.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from ...core.common.errors import DelianError
from ...core.common.files import write_whole
from .check import Failure, Report

#: What a file of this kind may hold at most.
BYTES_MAX: Final = 4 << 20
#: Failures that a run goes on after, where it has a file.
FAILURES_MAX: Final = 50
_FORM: Final = "delian dst report 2"


def load(path: Path, asked: dict[str, Any]) -> Report:
    """The report of the seeds that were run; an empty one where there is no file.

    asked: the first seed and the federations, which must be those of the file. Raises DelianError.
    """
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return Report()
    except OSError as error:
        raise DelianError(f"{path} cannot be read: {error.strerror}", "name another file") from None
    try:
        if len(content) > BYTES_MAX:
            raise ValueError
        said = json.loads(content)
        if said["form"] != _FORM:
            raise ValueError
        before, report = dict(said["asked"]), _report(said)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DelianError(f"{path} is no report of seeds", "name another file") from None
    if before != asked:
        told = ", ".join(f"{name} {value}" for name, value in before.items())
        raise DelianError(f"{path} is a report of other seeds: {told}", "name another file")
    return report


def store(path: Path, asked: dict[str, Any], report: Report) -> None:
    """Raises DelianError."""
    said = {
        "form": _FORM,
        "asked": asked,
        "seeds": report.seeds,
        "events": report.events,
        "cpu_s": report.cpu_s,
        "counts": dict(sorted(report.counts.items())),
        "failures": [[f.seed, f.oracle, f.what, list(f.last)] for f in report.failures],
        "slowest": list(report.slowest),
        "traces": report.traces,
    }
    try:
        write_whole(path, json.dumps(said, indent=1).encode() + b"\n")
    except OSError as error:
        raise DelianError(f"{path} cannot be written: {error.strerror}") from None


def _report(said: dict[str, Any]) -> Report:
    """Raises ValueError, TypeError, KeyError."""
    took, slowest = said["slowest"]
    return Report(
        seeds=int(said["seeds"]),
        events=int(said["events"]),
        cpu_s=float(said["cpu_s"]),
        counts=Counter({str(name): int(count) for name, count in said["counts"].items()}),
        failures=[
            Failure(int(seed), str(oracle), str(what), tuple(map(str, last)))
            for seed, oracle, what, last in said["failures"]
        ],
        slowest=(float(took), int(slowest)),
        traces=str(said["traces"]),
    )
