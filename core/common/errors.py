"""Errors that teach: what was wrong, where (file, line, underlined source), and what to do.

Every error that a user can cause derives from `DelianError`; the command line prints it without a
traceback and exits with 2. An error about the user's program carries source spans, from the line at
fault outwards through the calls that led there.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path, PurePath
from typing import NamedTuple

#: Of a long chain of calls, how many are shown at either end.
_CHAIN_ENDS = 6
_PACKAGE = Path(__file__).parents[2]
#: Where Delian's own lines are; a checkout also has examples and tests, which use it as a user
#: does.
_OWN = (
    str(_PACKAGE / "__init__.py"),
    *(f"{_PACKAGE / name}/" for name in ("core", "device", "edge", "cloud", "simulations", "cli")),
)


def is_own(file: str) -> bool:
    """Whether a path is that of one of Delian's own source files."""
    return file.startswith(_OWN)


class Loc(NamedTuple):
    """A source span as in `ast`: lines from 1, columns (characters) from 0, end exclusive.

    A tuple, because the compiler makes one of each node of a syntax tree.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def is_own(self) -> bool:
        """Whether it is one of Delian's own lines, and none of its user's."""
        return is_own(self.file)

    def excerpt(self) -> str:
        """The source line with the span underlined, or nothing when the source is not at hand."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text:
            return ""
        end = self.end_column if self.end_line == self.line else len(text)
        width = max(1, end - self.column)
        number = f"{self.line:>5} | "
        return f"{number}{text}\n{' ' * (len(number) - 2)}| {' ' * self.column}{'^' * width}"


def innermost(locs: Sequence[Loc]) -> Loc | None:
    """The innermost span in the user's own code, or the innermost of all."""
    own = [loc for loc in locs if not loc.is_own()]
    return (own or [*locs])[-1] if locs else None


def line_of(locs: Sequence[Loc]) -> str:
    """`model.py:12`, of the innermost of these spans; empty where there is none."""
    loc = innermost(locs)
    return f"{PurePath(loc.file).name}:{loc.line}" if loc is not None else ""


class DelianError(Exception):
    """Something a user can mend. `hint` says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class TypeRuleError(DelianError):
    """Operands that a type rule refuses. The front end adds the span."""


class ProgramError(DelianError):
    """A function that cannot be compiled. `locs` runs from the innermost span outwards."""

    def __init__(self, code: str, message: str, locs: Sequence[Loc] = (), hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code
        self.locs = tuple(locs)

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}", *self._chain()]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def _chain(self) -> Iterator[str]:
        """The calls, without repeated lines of Delian itself; `locs` has them all."""
        if all(loc.is_own() for loc in self.locs):
            yield from self._shown(self.locs, "at")
            return
        word = "at"
        for own, run in groupby(self.locs, Loc.is_own):
            calls = list(run)
            if own:
                first = f"{Path(calls[0].file).relative_to(_PACKAGE).as_posix()}:{calls[0].line}"
                many = f"{len(calls)} calls within delian, the innermost "
                yield f"  ... {many if len(calls) > 1 else 'within delian: '}{first} ..."
            else:
                yield from self._shown(calls, word)
                word = "called from"

    def _shown(self, locs: Sequence[Loc], word: str) -> Iterator[str]:
        skipped = len(locs) - _CHAIN_ENDS * 2
        for i, loc in enumerate(locs):
            if skipped > 1 and i == _CHAIN_ENDS:
                yield f"  ... {skipped} more calls ..."
            if skipped > 1 and _CHAIN_ENDS <= i < len(locs) - _CHAIN_ENDS:
                continue
            yield f"  {word if i == 0 else 'called from'} {loc}"
            if excerpt := loc.excerpt():
                yield excerpt


class VerifyError(DelianError):
    """A program breaks a rule of the IR."""


class MemoryLimitError(VerifyError):
    """A program that would need more memory than this machine gives to one."""
