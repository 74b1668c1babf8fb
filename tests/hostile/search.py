"""Draws files of programs, runs them, and counts what was tried."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from delian.core.compiler.ir import Function

from .build import Finding, Unit, found_in, written
from .geometry import OFTEN, draw
from .variants import Variant, here

#: Programs of a file: it compiles in a few seconds.
TOGETHER = 60


@dataclass
class Found:
    """What was tried, and what sanitizers said."""

    units: int = 0
    programs: int = 0
    primitives: set[str] = field(default_factory=set)
    headers: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    _told: int = 0

    def new(self) -> list[Finding]:
        """The findings since this was asked before."""
        some, self._told = self.findings[self._told :], len(self.findings)
        return some


@dataclass(frozen=True)
class Batch:
    """Programs of one file, and how it is compiled."""

    variant: Variant
    functions: dict[str, Function]
    primitives: frozenset[str]
    seed: int


def units(names: Sequence[str], seed: int, together: int = TOGETHER) -> Iterator[Batch]:
    """Files without end: all primitives in turn, those with kernels of their own more often.
    together: programs of a file.
    """
    rows = [name for name in names for _ in range(OFTEN.get(name, 1))]
    # Each file has some of every family.
    rows = [rows[i] for start in range(7) for i in range(start, len(rows), 7)]
    at = number = 0
    while True:
        variant = here()[number % len(here())]
        functions, primitives = {}, set()
        for _ in range(together):
            name = rows[at % len(rows)]
            own = seed * 1_000_000 + at
            functions[f"{name} {own}"] = draw(name, own)
            primitives.add(name)
            at += 1
        yield Batch(variant, functions, frozenset(primitives), seed + number)
        number += 1


def tried(
    batch: Batch, compiler: str, found: Found, mutate: Callable[[str], str] = lambda text: text
) -> Unit:
    """Runs a file and counts it."""
    unit = written(batch.functions, batch.variant, mutate, batch.seed)
    with tempfile.TemporaryDirectory(prefix="delian-hostile-") as folder:
        findings = found_in(unit, batch.variant, compiler, Path(folder))
    found.units += 1
    found.programs += len(batch.functions)
    found.primitives |= batch.primitives
    found.headers |= unit.headers
    found.findings += [
        Finding(f"{f.program} ({batch.variant.name})", f.what, f.hung) for f in findings
    ]
    return unit
