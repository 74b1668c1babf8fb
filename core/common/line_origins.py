"""Which lines of another file the lines of generated source were made of.

An importer writes a foreign model as Python source; errors and spans are to show the lines of the
model, which people know, and not those of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import Loc

_origins: dict[str, tuple[Loc | None, ...]] = {}


def map_lines(file: str, origins: Sequence[Loc | None]) -> None:
    """States the origin of each line of a generated file, from line 1 on; None: the line itself."""
    _origins[file] = tuple(origins)


def origins_of(file: str) -> tuple[Loc | None, ...]:
    """The origins of a file's lines; empty for a file that was not generated."""
    return _origins.get(file, ())
