"""NumPy's random generators, written in NumPy: `np.random.default_rng` and its object.

Each draw is NumPy's, bit for bit. Seeds go through O'Neill's seed sequence ("Developing a seed_seq
alternative", 2015); words are from PCG64 XSL RR (O'Neill, "PCG: a family of simple fast
space-efficient statistically good algorithms for random number generation", HMC-CS-2014-0905) or
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Whole numbers
are by Lemire ("Fast random integer generation in an interval", 2019), normal and exponential ones
by ziggurats of 256 layers (Marsaglia and Tsang 2000). What lies beyond the last layer, one normal
number of 3,700, takes logarithms, which may differ from NumPy's in the last bit; and native code
may round once where a number is scaled and shifted.

A generator is a plain object of the program, so it is changed by each draw, in loops and branches
too. Its state is in u64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from .np_ziggurats import EXPONENTIAL_TAIL, NORMAL_TAIL, exponential_tables, normal_tables

#: An attribute of classes here: the class of NumPy's whose objects theirs are.
STANDS_FOR = "_delian_stands_for"

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(2**64 - 1)
_LOW_INT = 0xFFFFFFFF
_UNIT = 2.0**-53

# The seed sequence, in words of 32 bits that u64 holds.
_POOL = 4
SEED_BITS = 32 * _POOL
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_SHIFT = np.uint64(16)

# PCG's factor, and Philox's factors and key steps.
_PCG_HIGH, _PCG_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_PHILOX = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_ROUNDS = 10

_MANTISSA = np.uint64(2**52 - 1)
#: Populations up to here are drawn without replacement one by one; larger ones where few are drawn.
_POPULATION_SMALL = 10_000
#: How far probabilities may be from a sum of one.
_SUM_TOLERANCE = math.sqrt(np.finfo(np.float64).eps)


def _high(a: Any, b: Any) -> Any:
    """The upper half of a product of 128 bits."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, left, right = a0 * b0, a0 * b1, a1 * b0
    middle = (low >> _HALF) + (left & _LOW) + (right & _LOW)
    return a1 * b1 + (left >> _HALF) + (right >> _HALF) + (middle >> _HALF)


def _hashed(word: Any, constant: int, factor: int) -> Any:
    word = word ^ np.uint64(constant)
    word = word * np.uint64(constant * factor & _LOW_INT) & _LOW
    return word ^ (word >> _SHIFT)


def _seeded(seed: Any, words: int) -> list[Any]:
    """So many u64 of a seed's sequence."""
    if seed is None:
        raise ProgramError(
            "DL119",
            "a generator without a seed gives other numbers at each call",
            hint="np.random.default_rng(seed)",
        )
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise ProgramError("DL119", "a generator's seed is a whole number here")
    if seed < 0:
        raise ValueError("expected non-negative integer")
    constant, pool = _INIT_A, []
    for i in range(_POOL):
        pool.append(_hashed(np.uint64(seed >> 32 * i & _LOW_INT), constant, _MULT_A))
        constant = constant * _MULT_A & _LOW_INT
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                other = _hashed(pool[source], constant, _MULT_A)
                constant = constant * _MULT_A & _LOW_INT
                both = (pool[target] * _MIX_L - other * _MIX_R) & _LOW
                pool[target] = both ^ (both >> _SHIFT)
    constant, state = _INIT_B, []
    for i in range(2 * words):
        state.append(_hashed(pool[i % _POOL], constant, _MULT_B))
        constant = constant * _MULT_B & _LOW_INT
    return [state[i] | state[i + 1] << _HALF for i in range(0, 2 * words, 2)]


class _Bits:
    """A bit generator: `next64()` gives a word; `half` is the upper half of one, if `halved`."""


def _next32(bits: Any) -> Any:
    """Half a word, the lower first."""
    if bits.halved:
        word, bits.halved = bits.half, False
    else:
        both = bits.next64()
        word, bits.half, bits.halved = both & _LOW, both >> _HALF, True
    return word


class PCG64(_Bits):
    """state <- state * factor + increment, in 128 bits; a word is its halves' xor, rotated."""

    _delian_stands_for = np.random.PCG64

    def __init__(self, seed: Any = None) -> None:
        self.halved, self.half = False, _ZERO
        start_high, start_low, high, low = _seeded(seed, 4)
        self.add_high, self.add_low = high << _ONE | low >> np.uint64(63), low << _ONE | _ONE
        self.low = self.add_low + start_low
        carry = np.where(self.low < start_low, _ONE, _ZERO)
        self.high = self.add_high + start_high + carry
        self._step()

    def _step(self) -> None:
        low = self.low * _PCG_LOW
        high = _high(self.low, _PCG_LOW) + self.high * _PCG_LOW + self.low * _PCG_HIGH
        self.low = low + self.add_low
        self.high = high + self.add_high + np.where(self.low < low, _ONE, _ZERO)

    def next64(self) -> Any:
        self._step()
        word, turn = self.high ^ self.low, self.high >> np.uint64(58)
        return word >> turn | word << (np.uint64(64) - turn & np.uint64(63))


class Philox(_Bits):
    """Four words of a counter at a time."""

    _delian_stands_for = np.random.Philox

    def __init__(self, seed: Any = None) -> None:
        self.halved, self.half = False, _ZERO
        self.key = _seeded(seed, 2)
        self.counter = np.zeros(4, np.uint64)
        self.buffer, self.used = np.zeros(4, np.uint64), 4

    def next64(self) -> Any:
        if self.used == 4:
            carry: Any = _ONE
            for i in range(4):
                self.counter[i] = self.counter[i] + carry
                carry = np.where(self.counter[i] < carry, _ONE, _ZERO)
            a, b, c, d = self.counter[0], self.counter[1], self.counter[2], self.counter[3]
            left, right = self.key[0], self.key[1]
            for _ in range(_ROUNDS):
                a, b, c, d = (
                    _high(_PHILOX[1], c) ^ b ^ left,
                    _PHILOX[1] * c,
                    _high(_PHILOX[0], a) ^ d ^ right,
                    _PHILOX[0] * a,
                )
                left, right = left + _WEYL[0], right + _WEYL[1]
            self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3] = a, b, c, d
            self.used = 0
        word = self.buffer[self.used]
        self.used += 1
        return word


def default_rng(seed: Any = None) -> Any:
    """A generator of the numbers of NumPy's with this seed."""
    return Generator(PCG64(seed))


class Generator:
    """`np.random.Generator`: draws from a bit generator."""

    _delian_stands_for = np.random.Generator

    def __init__(self, bit_generator: Any) -> None:
        if not isinstance(bit_generator, _Bits):
            raise ProgramError(
                "DL119", "np.random.Generator takes a PCG64 or a Philox that the program makes"
            )
        self.bit_generator = bit_generator

    def random(self, size: Any = None, dtype: Any = np.float64) -> Any:
        _check_f64(dtype)
        return _drawn(size, lambda: _unit(self.bit_generator))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        low, high = _doubles(low), _doubles(high)
        span = high - low
        if not np.all(np.isfinite(span)):
            raise OverflowError("high - low range exceeds valid bounds")
        if np.any(np.signbit(span)):
            raise ValueError("high - low < 0")
        return _moved(self.random(_size(size, low, high)), low, span)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> Any:
        _check_f64(dtype)
        return _drawn(size, lambda: _normal(self.bit_generator))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        loc, scale = _doubles(loc), _doubles(scale)
        if np.any(np.signbit(scale)):
            raise ValueError("scale < 0")
        return _moved(self.standard_normal(_size(size, loc, scale)), loc, scale)

    def standard_exponential(
        self, size: Any = None, dtype: Any = np.float64, method: str = "zig"
    ) -> Any:
        _check_f64(dtype)
        if method != "zig":
            raise ProgramError("DL119", "standard_exponential: the method is 'zig' here")
        return _drawn(size, lambda: _exponential(self.bit_generator))

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        scale = _doubles(scale)
        if np.any(np.signbit(scale)):
            raise ValueError("scale < 0")
        return scale * self.standard_exponential(_size(size, scale))

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:
        if np.dtype(dtype) != np.dtype(np.int64):
            raise ProgramError("DL119", "Generator.integers gives int64 here")
        if high is None:
            low, high = 0, low
        if not (_is_whole(low) and _is_whole(high)):
            raise ProgramError("DL119", "Generator.integers takes two whole numbers here")
        if endpoint:
            if low > high:
                raise ValueError("low > high")
        elif low >= high:
            raise ValueError("low >= high")
        span = np.uint64(high - low if endpoint else high - 1 - low)
        bits = self.bit_generator

        def draw() -> Any:
            return np.int64(low) + _bounded(bits, span).astype(np.int64)

        if size is None:
            return int(draw()) if dtype is int else draw()
        return _filled(size, np.int64, draw)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        if not isinstance(x, np.ndarray):
            raise ProgramError("DL119", "Generator.shuffle takes an array here")
        if axis != 0:
            raise ProgramError("DL119", "Generator.shuffle goes along the first axis here")
        for i in range(x.shape[0] - 1, 0, -1):
            j = _masked(self.bit_generator, i)
            kept = x[j].copy()
            x[j] = x[i]
            x[i] = kept

    def permutation(self, x: Any, axis: int = 0) -> Any:
        if np.ndim(x) == 0:
            if not _is_whole(x):
                raise ProgramError(
                    "DL119", "Generator.permutation takes a whole number or an array"
                )
            order = np.arange(x)
            self.shuffle(order)
            return order
        order = np.arange(x.shape[axis])
        self.shuffle(order)
        return np.take(x, order, axis)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        if np.ndim(a) == 0 and not _is_whole(a):
            raise ProgramError("DL119", "Generator.choice takes a whole number or an array")
        if isinstance(size, tuple) and not size:
            raise ProgramError("DL119", "a draw of size (): leave `size` out, it gives a number")
        population = a if np.ndim(a) == 0 else np.asarray(a).shape[axis]
        if population <= 0:
            raise ValueError(
                "a must be a positive integer unless no samples are taken"
                if np.ndim(a) == 0
                else "a cannot be empty unless no samples are taken"
            )
        if p is not None:
            if not replace:
                raise ProgramError("DL119", "Generator.choice: `p` without replacement")
            index = _weighed(self, np.asarray(p, np.float64), population, size)
        elif replace:
            index = self.integers(0, population, size)
        else:
            index = _distinct(self.bit_generator, population, size, shuffle)
        if np.ndim(a) == 0:
            return int(index) if size is None else index
        return np.take(np.asarray(a), index, axis)


#: The methods that the compiler inlines; NumPy's others are refused by their names.
METHODS = (
    "random uniform standard_normal normal standard_exponential exponential integers shuffle"
    " permutation choice"
)
for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name != "bit_generator" and _name not in METHODS.split():
        setattr(Generator, _name, getattr(np.random.Generator, _name))


def _check_f64(dtype: Any) -> None:
    if np.dtype(dtype) != np.dtype(np.float64):
        raise ProgramError("DL119", "a generator's numbers are float64 here")


def _is_whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer))


def _doubles(x: Any) -> Any:
    """A parameter as NumPy takes it: a float, or an array of f64."""
    return float(x) if np.ndim(x) == 0 else np.asarray(x, np.float64)


def _size(size: Any, *parameters: Any) -> Any:
    """The size of a draw with these parameters."""
    if all(np.ndim(p) == 0 for p in parameters):
        return size
    both = np.broadcast_shapes(*[np.shape(p) for p in parameters])
    if size is None:
        return both
    shape = (size,) if isinstance(size, int) else tuple(size)
    if np.broadcast_shapes(shape, both) != shape:
        raise ValueError(
            f"Output size {shape} is not compatible with broadcast dimensions of inputs {both}."
        )
    return shape


def _moved(drawn: Any, start: Any, scale: Any) -> Any:
    return start + scale * drawn


def _drawn(size: Any, draw: Callable[[], Any]) -> Any:
    return float(draw()) if size is None else _filled(size, np.float64, draw)


def _filled(size: Any, dtype: Any, draw: Callable[[], Any]) -> Any:
    out = np.empty(size, dtype)
    if out.ndim == 0:
        raise ProgramError("DL119", "a draw of size (): leave `size` out, it gives a number")
    flat = out.reshape(-1)
    for i in range(flat.size):
        flat[i] = draw()
    return out


def _unit(bits: Any) -> Any:
    return (bits.next64() >> np.uint64(11)).astype(np.float64) * _UNIT


def _bounded(bits: Any, span: Any) -> Any:
    """A whole number from 0 to `span`, u64."""
    if span == _ZERO:
        return _ZERO
    if span == _LOW:
        return _next32(bits)
    if span == _ALL:
        return bits.next64()
    count = span + _ONE
    if span < _LOW:
        wide = _next32(bits) * count
        if (wide & _LOW) < count:
            least = (_LOW - span) % count
            while (wide & _LOW) < least:
                wide = _next32(bits) * count
        return wide >> _HALF
    word = bits.next64()
    if word * count < count:
        least = (_ALL - span) % count
        while word * count < least:
            word = bits.next64()
    return _high(word, count)


def _masked(bits: Any, last: Any) -> Any:
    """A position up to `last`, below 2^32: as many bits of words, until one is not above it."""
    last = np.uint64(last)
    mask = last
    for shift in (1, 2, 4, 8, 16):
        mask = mask | mask >> np.uint64(shift)
    word = _next32(bits) & mask
    while word > last:
        word = _next32(bits) & mask
    return word.astype(np.int64)


def _normal(bits: Any) -> Any:
    """A standard normal number; the absolute values of a layer are drawn in 52 bits."""
    accepts, widths, heights = normal_tables()
    found, x = False, 0.0
    while not found:
        word = bits.next64()
        layer = (word & np.uint64(255)).astype(np.int64)
        negative = (word >> np.uint64(8) & _ONE) == _ONE
        drawn = word >> np.uint64(9) & _MANTISSA
        x = drawn.astype(np.float64) * widths[layer]
        x = -x if negative else x
        found = drawn < accepts[layer]
        if not found:
            if layer == 0:
                tail, limit = 1.0, 0.0
                while limit <= tail * tail:
                    tail = -np.log1p(-_unit(bits)) / NORMAL_TAIL
                    limit = -2.0 * np.log1p(-_unit(bits))
                x = NORMAL_TAIL + tail
                x = -x if (drawn >> np.uint64(8) & _ONE) == _ONE else x
                found = True
            else:
                between = (heights[layer - 1] - heights[layer]) * _unit(bits) + heights[layer]
                found = between < np.exp(-0.5 * x * x)
    return x


def _exponential(bits: Any) -> Any:
    accepts, widths, heights = exponential_tables()
    found, x = False, 0.0
    while not found:
        word = bits.next64() >> np.uint64(3)
        layer = (word & np.uint64(255)).astype(np.int64)
        drawn = word >> np.uint64(8)
        x = drawn.astype(np.float64) * widths[layer]
        found = drawn < accepts[layer]
        if not found:
            if layer == 0:
                x = EXPONENTIAL_TAIL - np.log1p(-_unit(bits))
                found = True
            else:
                between = (heights[layer - 1] - heights[layer]) * _unit(bits) + heights[layer]
                found = between < np.exp(-x)
    return x


def _weighed(generator: Any, p: Any, population: Any, size: Any) -> Any:
    if p.ndim != 1 or p.shape[0] != population:
        raise ValueError("a and p must have same size")
    if np.any(np.isnan(p)):
        raise ValueError("Probabilities contain NaN")
    if np.any(p < 0):
        raise ValueError("Probabilities are not non-negative")
    if np.abs(np.sum(p) - 1.0) > _SUM_TOLERANCE:
        raise ValueError(
            "Probabilities do not sum to 1. See Notes section of docstring for more information."
        )
    shares = np.cumsum(p)
    shares = shares / shares[-1]
    return np.searchsorted(shares, generator.random(size), side="right")


def _distinct(bits: Any, population: Any, size: Any, shuffled: bool) -> Any:
    """Positions without replacement: Floyd's, or the end of a shuffle where many are drawn."""
    shape = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    count = math.prod(shape)
    if count > population:
        raise ValueError("Cannot take a larger sample than population when replace is False")
    if population > _POPULATION_SMALL and count > population // (50 if shuffled else 20):
        order = np.arange(population)
        for i in range(population - 1, max(population - count, 1) - 1, -1):
            _swap(order, i, _bounded(bits, np.uint64(i)).astype(np.int64))
        return order[population - count :].reshape(shape)
    index, taken = np.empty(count, np.int64), np.zeros(population, bool)
    for i in range(count):
        last = population - count + i
        drawn = _bounded(bits, np.uint64(last)).astype(np.int64)
        chosen = last if taken[drawn] else drawn
        taken[chosen] = True
        index[i] = chosen
    if shuffled:
        for i in range(count - 1, 0, -1):
            _swap(index, i, _bounded(bits, np.uint64(i)).astype(np.int64))
    return index.reshape(shape) if shape else index[0]


def _swap(x: Any, i: Any, j: Any) -> None:
    kept = x[j]
    x[j] = x[i]
    x[i] = kept
