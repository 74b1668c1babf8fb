"""Numbers that are summed exactly: fixed-point integers as limbs in elements of the ring Z_2^32.

A number x becomes the integer round(x * 2^after), in two's complement of L limbs of w bits, the
lowest first. A limb is one element of the ring. With n devices and w = 32 - ceil(log2 n) no sum of
limbs wraps, so the sum of the integers, modulo 2^(w L), is read off exactly: with 65,536 devices a
limb has 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...common.errors import DelianError

#: Bits of a ring element.
ELEMENT_BITS = 32
#: More devices in one sum would leave too few bits to a limb.
CLIENTS_MAX = 65_536
#: Bits of a number, sign apart: f64 has no larger range of use here.
BITS_MAX = 400
#: Integers of so many bits are numbers of f64.
EXACT_BITS = 53


class WideSumError(DelianError):
    """A number that the fixed-point form has no room for, or that is not finite."""


@dataclass(frozen=True, slots=True)
class WideSum:
    """The fixed-point form of numbers in one sum. Raises WideSumError for an impossible one."""

    clients_max: int
    """Largest number of devices in a sum."""
    before: int
    """Bits before the point: the absolute value of the *sum* is below 2^before."""
    after: int = 40
    """Bits after the point: a device rounds to multiples of 2^-after. May be negative."""

    def __post_init__(self) -> None:
        if not 1 <= self.clients_max <= CLIENTS_MAX:
            raise WideSumError(
                f"a sum over {self.clients_max} devices", f"from 1 to {CLIENTS_MAX:,}"
            )
        if not 1 <= self.before + self.after <= BITS_MAX or abs(self.after) > BITS_MAX:
            raise WideSumError(
                f"numbers of {self.before} bits before the point and {self.after} after it",
                f"1 to {BITS_MAX} in all",
            )

    @property
    def limb_bits(self) -> int:
        """Bits of a limb: w above."""
        return ELEMENT_BITS - (self.clients_max - 1).bit_length()

    @property
    def limbs(self) -> int:
        """Ring elements of a number: L above."""
        return -(-(self.before + self.after + 1) // self.limb_bits)

    def encode(self, values: Any) -> npt.NDArray[np.uint32]:
        """One device's numbers as limbs: f64[...] or i64[...] -> u32[values.size * L].

        All first limbs come first, then all second ones. Raises WideSumError.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        if flat.dtype.kind in "iub" and self.after == 0:
            return self._of_integers(flat.astype(np.int64))
        flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            raise WideSumError("a number to be summed is not finite")
        with np.errstate(over="ignore"):  # refused below
            steps = np.rint(np.ldexp(flat, self.after))
        if flat.size and float(np.abs(steps).max()) >= math.ldexp(1.0, self.before + self.after):
            raise WideSumError(
                f"a number of {float(np.abs(flat).max()):.3g} in a sum below 2^{self.before}"
            )
        # Of the absolute value, where dividing by a power of two leaves an exact rest.
        limbs = np.empty((self.limbs, flat.size), np.int64)
        width, left = self.limb_bits, np.abs(steps)
        for i in reversed(range(self.limbs)):
            high = np.floor(np.ldexp(left, -width * i))
            left = left - np.ldexp(high, width * i)
            limbs[i] = high.astype(np.int64)
        return self._signed(limbs, steps < 0).reshape(-1)

    def _signed(
        self, limbs: npt.NDArray[np.int64], negative: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint32]:
        """Two's complement, u32[L, n], of absolute values' limbs."""
        mask, carry = np.int64((1 << self.limb_bits) - 1), negative.astype(np.int64)
        out = np.empty(limbs.shape, np.uint32)
        for i in range(self.limbs):
            part = np.where(negative, ~limbs[i] & mask, limbs[i]) + carry
            out[i] = (part & mask).astype(np.uint32)
            carry = part >> self.limb_bits
        return out

    def _of_integers(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        if values.size and max(int(values.max()), -int(values.min())) >= 1 << self.before:
            raise WideSumError(f"an integer beyond 2^{self.before} in a sum")
        limbs = np.empty((self.limbs, values.size), np.uint32)
        mask = np.int64((1 << self.limb_bits) - 1)
        for i in range(self.limbs):
            limbs[i] = (values & mask).astype(np.uint32)
            values = values >> np.int64(self.limb_bits)
        return limbs.reshape(-1)

    def decode(self, total: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
        """The sums, f64[n], of limbs u32[n * L]; exact where 53 bits hold them, else nearest + 1.

        Raises WideSumError for another number of elements.
        """
        limbs = self._carried(total)
        out = np.zeros(limbs.shape[1])
        if self.before + self.after <= EXACT_BITS:
            # The sum is a number of f64, and so is what has been added up, the highest limb first.
            for i in reversed(range(self.limbs)):
                out += np.ldexp(limbs[i].astype(np.float64), self.limb_bits * i - self.after)
            return out
        negative = limbs[-1] < 0
        # Sums of absolute values: a large negative limb would cancel what is below it.
        sizes = self._signed(limbs & ((1 << self.limb_bits) - 1), negative)
        for i in range(self.limbs):  # the lowest first: each addition rounds at most once
            out += np.ldexp(sizes[i].astype(np.float64), self.limb_bits * i - self.after)
        return np.where(negative, -out, out)

    def exact(self, total: npt.NDArray[np.uint32]) -> list[int]:
        """The sums as integers, in steps of 2^-after."""
        limbs = self._carried(total)
        return [
            sum(int(limb) << (self.limb_bits * i) for i, limb in enumerate(column))
            for column in limbs.T
        ]

    def _carried(self, total: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Limbs i64[L, n] after the carries; the highest is signed, the others are below 2^w."""
        if total.ndim != 1 or total.size % self.limbs:
            raise WideSumError(f"{total.size} elements are no numbers of {self.limbs} limbs")
        limbs = total.reshape(self.limbs, -1).astype(np.int64)
        width, carry = self.limb_bits, np.zeros(limbs.shape[1], np.int64)
        for i in range(self.limbs):
            limbs[i] += carry
            carry = limbs[i] >> width
            limbs[i] &= (1 << width) - 1
        top = limbs[-1]
        top[top >= 1 << (width - 1)] -= 1 << width
        return limbs
