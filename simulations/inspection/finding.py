"""One thing that is wrong with data, or worth a look."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: From what falsifies a result to what is good to know.
LEVELS = ("wrong", "warning", "note")
Level = Literal["wrong", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing, in words."""

    level: Level
    """`wrong`: figures of a run will mislead; `warning`: learning suffers; `note`: neither."""
    kind: str
    """What it is, as a word for programs: `leak`, `imbalance`, `duplicates` and others."""
    text: str
    """What was found, with numbers."""
    hint: str = ""
    """What to do about it."""
    column: str = ""
    """Of a table, the column that it is about."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def ordered(findings: list[Finding]) -> list[Finding]:
    """The gravest first."""
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def listed(names: list[str], shown: int = 5) -> str:
    """Names in words, the first of many."""
    quoted = [f"`{name[:40]}`" for name in names[:shown]]
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(quoted) + more
