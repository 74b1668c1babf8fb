"""Texts given to a model of tokens, as ids of the tokenizer that it was trained with.

A model of the next token reads the last tokens of a text, one of masked tokens a text with a mask
in it, and one of labels a whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DelianError
from .data.tokens.token_facts import TokenFacts
from .next_character import after_codes, read_windows

if TYPE_CHECKING:
    from .data.tokens.tokenizer_file import TextTokenizer


def tokenizer_of(facts: TokenFacts) -> TextTokenizer:
    """The tokenizer of a run's data. Raises DelianError where it is unknown, or another."""
    from .data.tokens.tokenizer_file import TextTokenizer

    if not facts.tokenizer:
        raise DelianError(
            "the model takes ids, and its tokenizer is not known",
            "give rows of ids, as the run's data had them",
        )
    found = TextTokenizer(facts.tokenizer, "the run's tokenizer")
    if found.vocabulary != facts.vocabulary:
        raise DelianError(
            f"the run's tokenizer has {found.vocabulary} ids, and its model {facts.vocabulary}",
            "the report next to the bundle is another run's: name the run's own folder",
        )
    return found


def outputs_of_texts(
    texts: Sequence[str],
    facts: TokenFacts,
    tokenizer: TextTokenizer,
    steps: int,
    outputs: Callable[[NDArray[Any]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """The logits f32[n, C] of each text: of the token after it, of its first mask, or of its label.

    Args:
        texts: n of them.
        facts: what is known of the ids.
        tokenizer: that of the run.
        steps: ids in a row.
        outputs: of rows i32[n, steps] what the model gives.

    Raises:
        DelianError: a text is empty, or has no mask where a masked token is asked for.
    """
    whole = facts.task != "next-token"
    codes = tokenizer.encode(texts, whole=whole, most=steps if whole else 0)
    for k, each in enumerate(codes):
        if not len(each):
            raise DelianError(f"text {k + 1} is empty", "a text has at least one token")
    filler = facts.padding if facts.padding is not None else facts.end or 0
    if facts.task == "next-token":
        others = (filler, (filler + 1) % facts.vocabulary)
        return after_codes([each[-steps:] for each in codes], steps, others, outputs, "token")
    if facts.task == "classification":
        rows = np.full((len(codes), steps), filler, np.int32)
        for row, each in zip(rows, codes, strict=True):
            row[: len(each)] = each
        return outputs(rows)
    return read_windows(codes, _masks(codes, facts, tokenizer), steps, filler, outputs)


def _masks(
    codes: Sequence[NDArray[np.int32]], facts: TokenFacts, tokenizer: TextTokenizer
) -> NDArray[np.int64]:
    """The place of each text's first mask."""
    assert facts.mask is not None, "a run of masked tokens has one"
    found = [np.flatnonzero(each == facts.mask) for each in codes]
    for k, places in enumerate(found):
        if not len(places):
            raise DelianError(
                f"text {k + 1} has no masked token among its first ones",
                f"write {tokenizer.token(facts.mask)} in the place of the word that is asked for",
            )
    return np.array([places[0] for places in found], np.int64)
