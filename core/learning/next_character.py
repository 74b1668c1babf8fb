"""Texts given to a model of the next character: as the windows of codes that it was trained on.

A model of windows of s characters reads the last s of a text. Shorter texts are padded at their
end, which a model that reads from left to right cannot see; one that does see it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DelianError

#: Stands for characters that a vocabulary has no room for (`data.shakespeare_plays`).
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: Windows that are asked at once: each has a logit of every character at every step.
WINDOWS = 256


def are_texts(x: Any) -> bool:
    """Whether rows are texts: a sequence of str, an array or a column of them.

    Raises DelianError for one text without a list.
    """
    if isinstance(x, str):
        raise DelianError("predictions are of several texts, and this is one", "give [text]")
    if isinstance(x, list | tuple):
        return bool(x) and all(isinstance(each, str) for each in x)
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind is None or getattr(x, "ndim", 0) != 1 or not len(x):
        return False
    return kind in "TU" or (kind == "O" and all(isinstance(each, str) for each in x))


def after_texts(
    texts: Sequence[str],
    vocabulary: Sequence[str],
    steps: int,
    outputs: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """The logits of the character that follows each text, f32[n, C].

    Args:
        texts: n of them.
        vocabulary: by code, its character.
        steps: characters in a window; 0: the model is of no characters.
        outputs: of windows u8[n, steps] the logits f32[n, steps, C].

    Raises:
        DelianError: the model is not of characters, a text is empty or has a character that the
            model does not know, or the model looks at what follows a character.
    """
    if not steps:
        raise DelianError(
            "the model takes no texts, or its vocabulary is not known",
            "of a run on a text name the run's folder, whose report.json has the vocabulary;"
            " other models take rows as the run's data had them",
        )
    codes = [_codes(text, k, vocabulary)[-steps:] for k, text in enumerate(texts)]
    others = (0, min(1, len(vocabulary) - 1))
    return after_codes(codes, steps, others, outputs, "character")


def after_codes(
    codes: Sequence[NDArray[Any]],
    steps: int,
    fillers: tuple[int, int],
    outputs: Callable[[NDArray[Any]], NDArray[np.float32]],
    what: str,
) -> NDArray[np.float32]:
    """The logits of what follows each of n sequences of codes, f32[n, C].

    Args:
        codes: of one to `steps` codes each, which are of one type.
        steps: codes in a window.
        fillers: two codes that fill up a window: the answer is not to depend on them.
        outputs: of windows [n, steps] the logits f32[n, steps, C].
        what: a code stands for, in errors.

    Raises:
        DelianError: the model looks at what follows a code, and a sequence is shorter than windows.
    """
    ends = np.array([len(each) - 1 for each in codes])
    logits = read_windows(codes, ends, steps, fillers[0], outputs)
    if (ends < steps - 1).any():
        others = read_windows(codes, ends, steps, fillers[1], outputs)
        if not np.array_equal(logits, others):
            raise DelianError(
                f"the model of a {what} looks at what follows it: a text that is shorter than"
                f" its windows has no answer ({steps} {what}s)",
                f"give texts of at least {steps} {what}s",
            )
    return logits


def _codes(text: str, number: int, vocabulary: Sequence[str]) -> NDArray[np.uint8]:
    """A text's characters by code. Raises DelianError for one without a code."""
    if not text:
        raise DelianError(f"text {number + 1} is empty", "a text has at least one character")
    code = {character: k for k, character in enumerate(vocabulary)}
    other = 0 if vocabulary[0] == REPLACEMENT else None
    found = [code.get(each, other) for each in text]
    if None in found:
        raise DelianError(
            f"text {number + 1} has the character {text[found.index(None)]!r}, which the model"
            " was not trained on",
            "leave it out, or write it as the run's text does",
        )
    return np.array(found, np.uint8)


def read_windows(
    codes: Sequence[NDArray[Any]],
    places: NDArray[Any],
    steps: int,
    padding: int,
    outputs: Callable[[NDArray[Any]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """The logits f32[n, C] at a place of each sequence, whose window is filled up with padding."""
    windows = np.full((len(codes), steps), padding, codes[0].dtype)
    for window, each in zip(windows, codes, strict=True):
        window[: len(each)] = each
    found = []
    for start in range(0, len(codes), WINDOWS):
        part = slice(start, start + WINDOWS)
        logits = outputs(windows[part])
        found.append(logits[np.arange(len(logits)), places[part]])
    return np.concatenate(found)
