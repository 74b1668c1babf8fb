"""A site's sums for a level of trees: gradients in fixed point, by node, feature and bin."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from .bins import F32, I64, U16
from .forest import I32

F64 = npt.NDArray[np.float64]


def fixed_point(values: F32, exponents: I64) -> F64:
    """Numbers as whole multiples of 2^-exponent, by output: f32[rows, outputs] -> f64, the same.

    Sums of them are exact below 2^53, in whatever order they are added up.
    """
    made: F64 = np.rint(np.ldexp(values.astype(np.float64), exponents))
    return made


def histogram(
    bins: U16,
    sizes: I64,
    features: I64,
    at: I32,
    slots: I64,
    weights: list[F64 | None],
    chosen: npt.NDArray[np.bool_] | None,
) -> I64:
    """Sums of weights by slot and bin, i64[weights, slots, bins of all features].

    bins: u16[features, rows]; the bin behind a feature's last is that of missing values, which are
    left out. sizes: bins a feature. features: which are wanted. at: each row's node, i32[rows].
    slots: a node's slot, or -1: not wanted, i64[nodes]. weights: whole numbers f64[rows] each, or
    None: rows are counted. chosen: rows that count, all where None.
    """
    rows_slots = slots[at]
    wanted = rows_slots >= 0
    if chosen is not None:
        wanted &= chosen
    rows = np.flatnonzero(wanted)
    count = int(slots.max(initial=-1)) + 1
    ends = np.cumsum(sizes[features])
    out = np.empty((len(weights), count, int(ends[-1])), np.int64)
    everything = len(rows) == bins.shape[1]
    slot = rows_slots[rows]
    own = [None if w is None else w if everything else w[rows] for w in weights]
    for feature, end in zip(features.tolist(), ends.tolist(), strict=True):
        size = int(sizes[feature])
        value = bins[feature] if everything else bins[feature][rows]
        # The bin of missing values is counted, and not kept.
        key = slot * (size + 1)
        key += value
        for k, weight in enumerate(own):
            found = np.bincount(key, weight, minlength=count * (size + 1))
            out[k, :, end - size : end] = found.reshape(count, size + 1)[:, :size]
    return out


class RowDraws:
    """Draws by row that a site can repeat and that only it knows: keyed by the rows themselves.

    content: of the rows. seed: the question's.
    """

    def __init__(self, content: bytes, rows: int, seed: int) -> None:
        self._content, self._rows, self._seed = content, rows, seed

    def _generator(self, purpose: str, number: int) -> np.random.Generator:
        key = hashlib.blake2b(
            f"{purpose} {self._seed} {number}".encode(), key=self._content, digest_size=16
        ).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))

    def share(self, purpose: str, number: int, share: float) -> npt.NDArray[np.bool_]:
        """Which rows are in a share of them, bool[rows]."""
        return self._generator(purpose, number).random(self._rows) < share

    def poisson(self, purpose: str, number: int) -> F64:
        """How often each row is drawn, with mean 1, f64[rows]."""
        return self._generator(purpose, number).poisson(1.0, self._rows).astype(np.float64)


def content_of(columns: list[npt.NDArray[np.float32]]) -> bytes:
    """A digest of a site's values, 32 bytes."""
    digest = hashlib.blake2b(digest_size=32)
    for column in columns:
        digest.update(column.tobytes())
    return digest.digest()
