"""What is known of the token ids of a federation's rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ....common.errors import DelianError

TokenTask = Literal["next-token", "masked-token", "classification"]

#: The label of a position that does not count, as in PyTorch and transformers.
IGNORED = -100
#: The most ids: rows of an embedding.
VOCABULARY_MAX = 1 << 20
#: The largest tokenizer that a report carries, in characters.
REPORTED_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What a task, a model and a prediction need to know of ids."""

    task: TokenTask
    """What is learnt of them."""
    vocabulary: int
    """Ids are from 0 to one less."""
    padding: int | None = None
    """The id that stands for no token; None: there is none."""
    end: int | None = None
    """The id after each document."""
    mask: int | None = None
    """The id that stands for a token that is predicted."""
    special: tuple[int, ...] = ()
    """Ids that are never masked, in order."""
    characters: tuple[float, ...] = ()
    """By id, its characters; empty: not known."""
    tokenizer: str = ""
    """The text of a tokenizer.json; empty: the data came as ids."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, for report.json; the tokenizer unless it is very large."""
        small = 0 < len(self.tokenizer) <= REPORTED_MAX
        return {
            "task": self.task,
            "vocabulary": self.vocabulary,
            "padding": self.padding,
            "end": self.end,
            "mask": self.mask,
            "special": list(self.special),
            "tokenizer": json.loads(self.tokenizer) if small else None,
        }


def facts_of(card: Mapping[str, Any]) -> TokenFacts | None:
    """The facts in a report's card; None where its rows are no tokens.

    Raises DelianError for a card that cannot be read.
    """
    said = card.get("tokens")
    if said is None:
        return None
    try:
        task = said["task"]
        if task not in ("next-token", "masked-token", "classification"):
            raise ValueError(f"there is no task {task!r:.40}")
        vocabulary = _id(said["vocabulary"], VOCABULARY_MAX + 1)
        ids: dict[str, Any] = {
            n: _id(said[n], vocabulary) for n in ("padding", "end", "mask") if said[n] is not None
        }
        special = tuple(_id(each, vocabulary) for each in said["special"])
        tokenizer = "" if said["tokenizer"] is None else json.dumps(said["tokenizer"])
        return TokenFacts(task, vocabulary, **ids, special=special, tokenizer=tokenizer)
    except (KeyError, TypeError, ValueError) as fault:
        raise DelianError(
            f"the report's facts of tokens cannot be read: {fault}", "name the run's own folder"
        ) from None


def _id(value: Any, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{value!r:.40} is no number below {below}")
    return value
