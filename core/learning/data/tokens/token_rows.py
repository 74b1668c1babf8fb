"""Documents of token ids as rows of one length, with the labels of what is learnt.

Packed, the documents of a device follow one another, each with its end, and are cut into windows of
`steps`: nothing but the last window is padded. A label that is the first token of another document
does not count. What is before a border is still in the window: a model sees it, as in GPT-2.
Padded, a row has tokens of one document alone, and a long one has several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from .token_facts import IGNORED, TokenFacts

Ids = NDArray[np.int32]


def rows_of(
    documents: Sequence[Ids], steps: int, facts: TokenFacts, packing: bool
) -> tuple[Ids, Ids]:
    """x i32[n, steps] and its labels y i32[n, steps]: of next tokens, or for masks the ids.

    Raises DelianError where rows have to be padded and there is no id for it.
    """
    ended = [
        each if facts.end is None else np.append(each, np.int32(facts.end)) for each in documents
    ]
    ended = [each for each in ended if len(each)]
    masks = facts.task == "masked-token"
    groups = [ended] if packing and ended else [[each] for each in ended]
    xs: list[Ids] = []
    ys: list[Ids] = []
    for group in groups:
        ids = np.concatenate(group)
        x, y = (ids, ids) if masks else _shifted(ids, np.cumsum([len(each) for each in group]))
        for given, made, filler in ((x, xs, _filler(facts)), (y, ys, IGNORED)):
            made.append(_windows(given, steps, filler))
    none = np.zeros((0, steps), np.int32)
    x = np.concatenate([none, *xs])
    y = np.concatenate([none, *ys])
    if masks and facts.padding is not None:
        y[y == facts.padding] = IGNORED
    some = (y != IGNORED).any(axis=1)
    return x[some], y[some]


def shifted_rows(ids: Ids, facts: TokenFacts) -> tuple[Ids, Ids]:
    """Rows of ids [n, steps + 1] as x i32[n, steps] and the next tokens y.

    Labels that are padding, or follow the end of a document, do not count.
    """
    x, y = ids[:, :-1], ids[:, 1:].copy()
    for never, where in ((facts.padding, y), (facts.end, x)):
        if never is not None:
            y[where == never] = IGNORED
    return np.ascontiguousarray(x), y


def padded_texts(texts: Sequence[Ids], steps: int, padding: int) -> Ids:
    """A row a text: i32[n, steps], cut or padded at its end."""
    rows = np.full((len(texts), steps), padding, np.int32)
    for row, each in zip(rows, texts, strict=True):
        row[: len(each)] = each[:steps]
    return rows


def _shifted(ids: Ids, ends: NDArray[np.int64]) -> tuple[Ids, Ids]:
    """All but the last id, and what follows each; ends: lengths of the documents, summed up."""
    y = ids[1:].copy()
    y[ends[:-1] - 1] = IGNORED
    return ids[:-1], y


def _windows(ids: Ids, steps: int, filler: int) -> Ids:
    """i32[n, steps]: the last one is filled up."""
    count = -(-len(ids) // steps)
    rows = np.full(count * steps, filler, np.int32)
    rows[: len(ids)] = ids
    return rows.reshape(count, steps)


def _filler(facts: TokenFacts) -> int:
    """The id that fills a last window: padding, else the end of documents."""
    found = facts.end if facts.padding is None else facts.padding
    if found is None:
        raise DelianError(
            "rows are filled up with padding, and the tokenizer has no token for it",
            "name its id: data.padding_id=N, or data.end_id=N",
        )
    return found
