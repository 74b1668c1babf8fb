"""Random numbers from explicit keys.

threefry2x32 (Salmon, Moraes, Dror and Shaw 2011), a counter-based generator.

A key is u32[2]. The same key gives the same numbers, on every machine and back end; new keys come
from `split` and `fold_in`. `key`, `bits`, `split` and `fold_in` give what `jax.random` gives with
partitionable threefry: word i of a draw is the generator at counter i, whatever the shape, so a
draw can be cut into parts that are made apart.

The floating-point draws are made of those bits by exact operations (`uniform`), or by a polynomial
(`normal`). Everything runs eagerly, and is inlined into compiled programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .ir import Array

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "permuted",
    "randint",
    "split",
    "threefry2x32",
    "uniform",
]

_LOW = 0xFFFFFFFF


def threefry2x32(key: Array, c0: Array, c1: Array) -> tuple[Array, Array]:
    """The generator, 20 rounds: a key u32[2], counters u32[...] -> two words a counter."""
    from .primitives import PRIMITIVES

    rule = PRIMITIVES["threefry"].reference
    assert rule is not None
    words = np.asarray(key, np.uint32)
    if words.shape != (2,):
        raise ValueError(f"a random key is u32[2], not shape {list(words.shape)}")
    high, low = np.broadcast_arrays(np.asarray(c0, np.uint32), np.asarray(c1, np.uint32))
    y0, y1 = rule([words[0], words[1], high, low], {})
    return y0, y1


def key(seed: Any) -> Array:
    """The key u32[2] of a whole number: its upper and lower 32 bits."""
    if isinstance(seed, int):
        return np.array([(seed >> 32) & _LOW, seed & _LOW], dtype=np.uint32)
    wide = seed.astype(np.int64)
    return np.stack([(wide >> 32).astype(np.uint32), (wide & _LOW).astype(np.uint32)])


def fold_in(key: Array, data: Any) -> Array:
    """A new key, from a key and a whole number (its lower 32 bits)."""
    low: Any = np.uint32(data & _LOW) if isinstance(data, int) else data.astype(np.uint32)
    high: Any = np.uint32(0)
    y0, y1 = threefry2x32(key, high, low)
    return np.stack([y0, y1])


def split(key: Array, count: int = 2) -> Array:
    """`count` new keys, u32[count, 2]."""
    y0, y1 = threefry2x32(key, np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32))
    return np.stack([y0, y1], axis=-1)


def bits(key: Array, shape: int | Sequence[int] = ()) -> Array:
    """u32 of `shape`, every bit fair."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(sizes)
    if count > _LOW:
        raise ValueError(f"a draw has at most 2**32 - 1 numbers, not {count}")
    low = np.arange(count, dtype=np.uint32).reshape(sizes)
    y0, y1 = threefry2x32(key, np.zeros(sizes, np.uint32), low)
    return y0 ^ y1


def uniform(
    key: Array, shape: int | Sequence[int] = (), low: float = 0.0, high: float = 1.0
) -> Array:
    """f32 of `shape` in [low, high): multiples of 2**-24 of the span."""
    unit = (bits(key, shape) >> 8).astype(np.float32) * np.float32(2.0**-24)
    if low == 0.0 and high == 1.0:
        return unit
    return unit * (high - low) + low


#: Giles, "Approximating the erfinv function", GPU Computing Gems Jade (2011): single precision, the
#: central polynomial in w - 2.5 and the tail's in sqrt(w) - 3, highest power first, where w =
#: -log(1 - x^2).
_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
_SPLIT = 5.0


def normal(key: Array, shape: int | Sequence[int] = ()) -> Array:
    """f32 of `shape`, standard normal: the inverse distribution function of a uniform number."""
    # The odd numbers between -2^24 and 2^24 are exact in f32 and leave out -1, 0 and 1.
    whole = (bits(key, shape) >> 8).astype(np.int32) * 2 + 1 - 2**24
    x = whole.astype(np.float32) * np.float32(2.0**-24)
    w = -np.log((1.0 - x) * (1.0 + x))
    centre, tail = w - 2.5, np.sqrt(np.maximum(w, _SPLIT)) - 3.0
    near, far = np.full_like(x, _CENTRE[0]), np.full_like(x, _TAIL[0])
    for c, t in zip(_CENTRE[1:], _TAIL[1:], strict=True):
        near, far = near * centre + c, far * tail + t
    return np.where(w < _SPLIT, near, far) * x * np.float32(math.sqrt(2.0))  # type: ignore[no-any-return]


def permutation(key: Array, count: Any, capacity: int) -> Array:
    """i64[capacity] whose first `count` entries are 0..count-1 in random order.

    The rest go on from `count` in order.

    `count` may be known only when the program runs.
    """
    # Stable sort: equal bits keep their order, and whatever lies beyond `count` sorts last.
    drawn = bits(key, capacity).astype(np.int64)
    order: Array = np.argsort(np.where(np.arange(capacity) < count, drawn, 2**32), kind="stable")
    return order


#: Rounds of `permuted`: a number stays where it was through all of them once in 2**24.
_SHUFFLE_ROUNDS = 24


def permuted(key: Array, count: Any, positions: Array) -> Array:
    """The entries of a random order of 0..count-1 at these positions, i64 of their shape.

    Each is made on its own, whatever `count` is. Positions lie in 0..count-1; `count`, an i64, is
    at least one and below 2**31.

    The swap-or-not shuffle (Hoang, Morris and Rogaway, CRYPTO 2012, figure 1): in each round x and
    K - x (mod count) change places or do not, by a bit that is drawn for the larger of the two.
    """
    at = positions.astype(np.int64)
    pivots = bits(key, _SHUFFLE_ROUNDS).astype(np.int64) % count
    for index in range(_SHUFFLE_ROUNDS):
        partner = (pivots[index] + count - at) % count
        larger = np.maximum(at, partner).astype(np.uint32)
        drawn, _ = threefry2x32(key, np.full_like(larger, 1 + index), larger)
        at = np.where((drawn & np.uint32(1)) == np.uint32(1), partner, at)
    return at


def bernoulli(key: Array, probability: Any, shape: int | Sequence[int] = ()) -> Array:
    """bool of `shape`, True with this probability."""
    hit: Array = uniform(key, shape) < probability
    return hit


def randint(key: Array, shape: int | Sequence[int], low: Any, high: Any) -> Array:
    """i64 of `shape`, uniform in low..high-1. The bias is below (high - low) / 2**32."""
    return (bits(key, shape).astype(np.int64) * (high - low) >> 32) + low  # type: ignore[no-any-return]


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _open_unit(key: Array, shape: int | Sequence[int]) -> Array:
    """f32 of `shape`, uniform on the odd multiples of 2**-24: never 0, never 1."""
    whole = (bits(key, shape) >> 9).astype(np.int32) * 2 + 1
    return whole.astype(np.float32) * np.float32(2.0**-24)


def exponential(key: Array, shape: int | Sequence[int] = ()) -> Array:
    """f32 of `shape`, exponential with mean one."""
    drawn: Array = -np.log(_open_unit(key, shape))
    return drawn


def gumbel(key: Array, shape: int | Sequence[int] = ()) -> Array:
    """f32 of `shape`, standard Gumbel: the largest of many, for choosing by weight."""
    drawn: Array = -np.log(exponential(key, shape))
    return drawn


def categorical(key: Array, logits: Array, shape: int | Sequence[int] = ()) -> Array:
    """i64[*shape, *logits.shape[:-1]]: indices drawn with probability ~ exp(logits).

    The index of the largest of logits + Gumbel noise (Gumbel 1954; Maddison et al. 2014).
    """
    noise = gumbel(key, (*_sizes(shape), *np.shape(logits)))
    drawn: Array = np.argmax(noise + logits, axis=-1)
    return drawn


def choice(
    key: Array,
    a: Any,
    shape: int | Sequence[int] = (),
    replace: bool = True,
    p: Array | None = None,
) -> Array:
    """Rows of `a` drawn at random, [*shape, *a.shape[1:]]; indices i64 when `a` is a whole number.

    Args:
        a: an array, or how many there are to choose from.
        shape: of the draw.
        replace: whether a row may be drawn twice.
        p: f32[len(a)], the probabilities (or weights, if they do not sum to one); equal by default.

    Raises:
        ValueError: more rows are to be drawn, each once, than there are.
    """
    count = a if isinstance(a, int) else len(a)
    sizes = _sizes(shape)
    wanted = math.prod(sizes)
    if not replace and wanted > count:
        raise ValueError(f"{wanted} of {count} cannot be drawn each once")
    if p is None:
        places = randint(key, sizes, 0, count) if replace else permutation(key, count, count)
    elif replace:
        places = categorical(key, np.log(p), sizes)
    else:  # The order of log p + Gumbel noise is that of drawing one by one.
        places = np.argsort(-(gumbel(key, count) + np.log(p)), kind="stable")
    if not replace:
        places = np.reshape(places[:wanted], sizes)
    return places if isinstance(a, int) else np.take(a, places, axis=0)
