"""What travels to sites: a question with the rows that it is about, and its step.

bundle    a Request: question, table, condition     the same for all steps of a question
weights   a Step                                    one a round
ring      as wide as the step's sums
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..privacy.mechanisms.ring import NOISE_MAX, RingPlan
from .question import (
    SETTINGS_BYTES_MAX,
    Question,
    Step,
    parse_step,
    question_from,
    settings_of,
)
from .sums import StatisticsError, SumPlan

_MAGIC = b"delian question 1\n"
_NAME_CHARS_MAX = 200
_SQL_CHARS_MAX = 4000


@dataclass(frozen=True)
class Rows:
    """Which rows of a site a question is about, and what its columns are."""

    table: str = ""
    """A table that sites offer, or joins of such; empty: the only one that there is."""
    where: str = ""
    """A condition in SQL; empty: all rows."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns that are computed: an expression in SQL by name."""

    def __post_init__(self) -> None:
        texts = [self.table, self.where, *self.columns.values(), *self.columns]
        if not all(isinstance(text, str) and len(text) <= _SQL_CHARS_MAX for text in texts):
            raise StatisticsError("tables, conditions and columns are short texts")


@dataclass(frozen=True)
class Request:
    """A question and its rows."""

    question: Question
    rows: Rows = field(default_factory=Rows)
    noise: float = 0.0
    """What each site adds, in lengths of what one row can change (`wide_noise`); zero: none."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise <= NOISE_MAX:
            raise StatisticsError(f"noise of {self.noise}", f"0, or up to {NOISE_MAX:g}")

    def to_bytes(self) -> bytes:
        """As it travels. Raises StatisticsError for one that is too large."""
        said = {
            "question": settings_of(self.question),
            "rows": asdict(self.rows),
            "noise": self.noise,
        }
        content = _MAGIC + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
        if len(content) > SETTINGS_BYTES_MAX:
            raise StatisticsError(
                f"a question of {len(content)} bytes", f"at most {SETTINGS_BYTES_MAX}"
            )
        return content

    @staticmethod
    def parse(content: bytes) -> Request:
        """The reverse of `to_bytes`. Raises StatisticsError for what is none."""
        if not content.startswith(_MAGIC) or len(content) > SETTINGS_BYTES_MAX:
            raise StatisticsError("this is no question")
        try:
            said: Any = json.loads(content[len(_MAGIC) :])
            noise = float(said.get("noise", 0.0))
            return Request(question_from(said["question"]), Rows(**said["rows"]), noise)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StatisticsError(f"a question that cannot be read: {error}") from None


def check_step(request: bytes, step: bytes, ring: RingPlan) -> tuple[Request, Step, SumPlan]:
    """Reads a question and its step, and checks that the ring fits. Raises StatisticsError."""
    asked, found = Request.parse(request), parse_step(step)
    plan = SumPlan(found.sums, ring.clients_max, asked.noise)
    if plan.ring != ring:
        raise StatisticsError(
            f"a step of {plan.dimension} ring elements, and the plan says {ring.dimension}"
        )
    return asked, found, plan
