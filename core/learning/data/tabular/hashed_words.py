"""Words of a text as counts in buckets: no vocabulary has to be agreed on.

A word's bucket is its hash, so every device has the same features without a look at its texts
(Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009). Counts are
damped, weighed by how few texts have the word (the inverse document frequency, from sums over
devices), and each text has the same length.
"""

from __future__ import annotations

import functools
import itertools
import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Length of a text's vector: about that of as many standardised numbers as a text has words.
NORM = 4.0
#: A word, and the most of a text that are read.
_WORD = re.compile(r"[^\W_]+")
WORDS_MAX = 10_000
BUCKETS_MAX = 1 << 14


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, and each pair of neighbours."""
    found = itertools.islice(_WORD.finditer(text), WORDS_MAX)
    words = [match.group().lower() for match in found]
    return [*words, *(f"{a} {b}" for a, b in itertools.pairwise(words))]


@functools.lru_cache(maxsize=1 << 17)
def bucket_of(word: str, buckets: int) -> int:
    """The bucket of a word, from 0 (CRC-32 of its UTF-8: the same on every machine)."""
    return zlib.crc32(word.encode("utf-8", "replace")) % buckets


def frequencies(texts: Sequence[str], buckets: int) -> NDArray[np.int64]:
    """How many texts have a word in each bucket, i64[buckets]."""
    found = np.zeros(buckets, np.int64)
    for text in texts:
        places = {bucket_of(word, buckets) for word in words_of(text)}
        found[list(places)] += 1
    return found


def weights_of(found: NDArray[np.int64], texts: int) -> NDArray[np.float32]:
    """The inverse document frequency of each bucket, f32[buckets]."""
    return (np.log((1 + texts) / (1 + np.minimum(found, texts))) + 1).astype(np.float32)


def vectors(texts: Sequence[str], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Texts as rows, f32[n, buckets], each of length `NORM`; zeros for one without words."""
    made = np.zeros((len(texts), len(weights)), np.float32)
    for row, text in zip(made, texts, strict=True):
        places = [bucket_of(word, len(weights)) for word in words_of(text)]
        if places:
            found, counts = np.unique(places, return_counts=True)
            row[found] = (1 + np.log(counts)) * weights[found]
            row *= NORM / np.sqrt(np.square(row).sum())
    return made
