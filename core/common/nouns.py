"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, one: str, many: str) -> str:
    """A number with separators and what follows it: `1 row is`, `2,000 rows are`."""
    return f"{number:,} {one if number == 1 else many}"
