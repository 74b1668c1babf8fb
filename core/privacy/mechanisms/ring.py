"""Real vectors in the ring Z_2^bits, where sums are exact, masked or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...common.errors import DelianError
from ...compiler import random
from ...compiler.intrinsics import dynamic_update
from ...protocol.ports import DIMENSION_MAX, Content, Floats, Vector
from ...wire import round_pb2
from . import bit_packing, rotation
from .noise import GAUSSIAN_VARIANCE_MAX, VARIANCE_MAX, VARIANCE_MIN
from .wide_sums import CLIENTS_MAX

BITS = 32
#: A leaf longer than such a share of an update is a part of its own.
_PARTS = 4
#: With fewer a clipped update would be lost in its rounding.
BITS_MIN = 8
CLIP_MIN = 1e-12
CLIP_MAX = 1e12
#: Noise of standard deviation d is taken to stay below TAIL*d + MORE, in all coordinates of all
#: rounds: beyond lies less than 2^-70 of a coordinate's mass (Bernstein).
NOISE_TAIL = 12.0
NOISE_MORE = 64.0
NOISE_MIN = 1e-9  # standard deviations in clips: less hides nothing, and no ring has such steps
NOISE_MAX = 1e4  # nothing can be learnt through more
#: An update's indicator is so large, in clips; and so much longer it is with it (`clipping`).
INDICATOR = 0.4
LENGTHENED = math.sqrt(1.0 + (INDICATOR / 2) ** 2)
_CHOICE = 0x6B657074  # what the round's key is folded with
_BLOCK = 1 << 16  # numbers that are decoded at a time
#: The norm is rounded once to f32 before it divides, so a clipped update may be longer than C by a
#: few parts in 2^24.
_SLACK = 1.0 + 2.0**-20


class RingError(DelianError):
    """A ring plan that could overflow, or a sum that no honest devices can have made."""


@dataclass(frozen=True, slots=True)
class RingPlan:
    """How updates of one run become ring elements. Raises RingError when a sum could overflow."""

    clip: float
    """Largest L2 norm of an update, C above."""
    clients_max: int
    """Largest number of updates in one sum, n above."""
    dimension: int
    """Numbers in an update, D above."""
    bits: int = BITS
    """A sum's width, and that of what travels."""
    noise: float = 0.0
    """Z above; zero: none."""
    central: bool = False
    """One vector of noise is added to a sum, and not one by each device."""
    rotated: bool = False
    """Whether updates are rotated."""
    kept: int = 0
    """Coordinates that travel; zero: all."""
    within: float = 0.0
    """The round's clip, where it follows the updates' lengths; zero: it is C."""
    top: int = 0
    """Coordinates that each device chooses itself (`privacy.sparse`). 0: all are sent."""
    wide: bool = False
    """Whether elements are limbs of exact numbers (`wide_sums`), whose sum is the result."""

    def __post_init__(self) -> None:
        if not BITS_MIN <= self.bits <= BITS:
            raise RingError(
                f"a ring of {self.bits} bits is not supported", f"from {BITS_MIN} to {BITS}"
            )
        if not CLIP_MIN <= self.clip <= CLIP_MAX:
            raise RingError(
                f"clip is {self.clip:g}", f"it is a norm, from {CLIP_MIN:g} to {CLIP_MAX:g}"
            )
        if not 0 < self.dimension <= DIMENSION_MAX:
            raise RingError(
                f"an update of {self.dimension} numbers", f"between 1 and {DIMENSION_MAX} fit"
            )
        if self.clients_max < 1:
            raise RingError(f"clients_max is {self.clients_max}", "at least one device reports")
        if self.noise and not NOISE_MIN <= self.noise <= NOISE_MAX:
            raise RingError(
                f"noise is {self.noise:g}", f"in clips, 0 or from {NOISE_MIN:g} to {NOISE_MAX:g}"
            )
        if self.wide:
            self._check_wide()
            return
        if not 0 <= self.kept <= self.coordinates:
            raise RingError(f"{self.kept} coordinates of {self.coordinates} are to travel")
        if self.top and (
            self.top > self.coordinates or self.noise or self.rotated or self.kept or self.within
        ):
            raise RingError(
                f"each device chooses {self.top} of {self.coordinates} coordinates",
                "of an update that is not rotated, and neither has noise nor is chosen from else",
            )
        if not 0 <= self.reach <= self.clip * _SLACK or 0 < self.within < CLIP_MIN:
            raise RingError(
                f"a round's clip of {self.within:g} where the largest is {self.clip:g}",
                f"with its indicator an update is {LENGTHENED:.4f} times as long",
            )
        if self.scale * self.clip < 1 or self.weight_scale < 1:
            what = f"the sum of {self.clients_max} updates of norm {self.clip:g}"
            if self.noise:
                raise RingError(
                    f"{what} and their noise, {self.noise:.3g} times that norm, can overflow"
                    f" {self.bits} bits",
                    "promise less (a larger epsilon), or lower clients_max",
                )
            raise RingError(
                f"{what} can overflow {self.bits} bits",
                f"one update has room for {self._half / self.clients_max:.3g} steps; lower"
                " clients_max or clip",
            )
        if self.noise and self.noise_variance < VARIANCE_MIN:
            raise RingError(
                f"noise of {self.noise:g} clips is {math.sqrt(self.noise_variance):.3g} steps",
                "lower clients_max, so that steps are finer",
            )

    def _check_wide(self) -> None:
        other = replace(self, wide=False, noise=0.0)
        if other != RingPlan(1.0, self.clients_max, self.dimension):
            raise RingError(
                f"exact sums in {other}",
                "they are neither clipped nor compressed, and 32 bits wide",
            )
        if self.clients_max > CLIENTS_MAX:
            raise RingError(f"{self.clients_max} devices in an exact sum", f"at most {CLIENTS_MAX}")

    @staticmethod
    def of(message: round_pb2.RingPlan) -> RingPlan:
        """The plan that a message says. Raises RingError, also for one that could overflow."""
        return _known(message.SerializeToString())

    def message(self) -> round_pb2.RingPlan:
        """The plan as it travels."""
        return round_pb2.RingPlan(
            clip=self.clip,
            clients_max=self.clients_max,
            bits=self.bits,
            dimension=self.dimension,
            noise=self.noise,
            central=self.central,
            rotated=self.rotated,
            kept=self.kept,
            within=self.within,
            top=self.top,
            wide=self.wide,
        )

    @property
    def _half(self) -> float:
        return float(2 ** (self.bits - 1))

    @property
    def scale(self) -> float:
        """Steps in the ring for 1.0: S above, the largest power of two that fits, or 0."""
        steps = self.clients_max * self.peak * _SLACK + NOISE_TAIL * self.sum_noise
        room = self._half - self.clients_max - (NOISE_MORE if self.noise else 0.0)
        scale = _power_below(room / (steps * self.clip))
        if self.noise:
            widest = math.sqrt(self._variance_max)
            scale = min(scale, _power_below(widest / (self.noise * self.clip)))
        return scale

    @property
    def weight_scale(self) -> float:
        """Steps in the ring for a weight of 1: t above, a power of two; 0 where there is none."""
        return _power_below((self._half / self.clients_max - 1) / _SLACK)

    @property
    def peak(self) -> float:
        """The largest coordinate that is sent of an update of length 1: p above."""
        return rotation.peak(self.dimension) if self.rotated else 1.0

    @property
    def sum_noise(self) -> float:
        """The largest standard deviation of a sum's noise, in clips."""
        return self.noise if self.central else self.noise * math.sqrt(self.clients_max)

    @property
    def noise_variance(self) -> float:
        """Variance of one vector of noise, in steps squared."""
        # A round's clip may be above the largest by its rounding, and more cannot be drawn.
        return min((self.noise * self.reach * self.scale) ** 2, self._variance_max)

    @property
    def _variance_max(self) -> float:
        return GAUSSIAN_VARIANCE_MAX if self.central else VARIANCE_MAX

    @property
    def width(self) -> int:
        """The fewest `bits` that give the same scale: what elements could be packed to."""
        coordinate = self.clip * self.scale
        most = self.clients_max * (self.peak * coordinate * _SLACK + 1)
        if self.noise:
            most += NOISE_TAIL * self.sum_noise * coordinate + NOISE_MORE
        return math.frexp(most)[1] + 1

    @property
    def coordinates(self) -> int:
        """Elements of an encoded update that hold the update: D, or whole blocks of a rotation."""
        return rotation.padded(self.dimension) if self.rotated else self.dimension

    @property
    def reach(self) -> float:
        """The longest that an update is when it leaves its device, with its indicator."""
        return self.within * LENGTHENED if self.within else self.clip

    @property
    def base(self) -> RingPlan:
        """What programs know of the plan."""
        finished = self.kept or self.within or self.top
        return replace(self, kept=0, within=0.0, top=0) if finished else self

    @property
    def made(self) -> int:
        """Elements that a program makes: coordinates and one of the weight."""
        return self.coordinates + 1

    @property
    def length(self) -> int:
        """Elements that travel: coordinates, where the clip moves an indicator, and the weight."""
        return (self.kept or self.coordinates) + bool(self.within) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of an encoded update in memory."""
        return 4 * self.length

    @property
    def wire_bytes(self) -> int:
        """Bytes of an encoded update, or of a sum, as it travels."""
        return bit_packing.packed_bytes(self.length, self.bits)

    @property
    def place_bits(self) -> int:
        """Bits of a coordinate's place."""
        return max(1, (self.coordinates - 1).bit_length())

    @property
    def sent_bytes(self) -> int:
        """Bytes of what a device sends."""
        if not self.top:
            return self.wire_bytes
        behind = self.length - self.coordinates
        where = bit_packing.packed_bytes(self.top, self.place_bits)
        return where + bit_packing.packed_bytes(self.top + behind, self.bits)


def narrowed(plan: RingPlan) -> RingPlan:
    """The plan in the narrowest ring that has the same steps."""
    return replace(plan, bits=min(plan.bits, plan.width))


@lru_cache(64)
def _known(message: bytes) -> RingPlan:
    """What an encoded message says: a run has one plan, and it is asked for with each update."""
    said = round_pb2.RingPlan.FromString(message)
    return RingPlan(
        said.clip,
        said.clients_max,
        said.dimension,
        said.bits,
        said.noise,
        said.central,
        said.rotated,
        said.kept,
        said.within,
        said.top,
        said.wide,
    )


def _power_below(room: float) -> float:
    """The largest power of two strictly below `room`; 0 where that is below 2^-60 or none."""
    if room <= 2.0**-60:
        return 0.0
    mantissa, exponent = math.frexp(room)
    # room = mantissa * 2^exponent with mantissa in [1/2, 1).
    return math.ldexp(1.0, exponent - 1 if mantissa > 0.5 else exponent - 2)


def encode(delta: Any, weight: Any, key: Any, plan: RingPlan) -> Any:
    """An update in the ring: u32[L], L = `plan.made`.

    It is clipped, rotated where the plan says so, and rounded.

    delta: f32[D]. weight: f32[] in (0, 1]. key: u32[2], used for nothing else. A delta that is not
    finite gives elements without meaning: the caller checks it.
    """
    factor = shrink((delta,), plan.clip)
    turned = rotation.rotate(delta, plan.dimension) if plan.rotated else delta
    return quantised((turned,), factor, weight, key, plan)


def parts(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """An update's leaves f32[...] as parts f32[n]: long ones alone, the others joined."""
    flat = [leaf.reshape(-1) for leaf in leaves]
    long = sum([leaf.shape[0] for leaf in flat]) / _PARTS
    made: list[Any] = []
    run: list[Any] = []
    for leaf in flat:
        if leaf.shape[0] > long:
            made = [*made, *_joined(run), leaf]
            run = []
        else:
            run = [*run, leaf]
    return (*made, *_joined(run))


def _joined(run: list[Any]) -> list[Any]:
    return run if len(run) < 2 else [np.concatenate(run)]


def squares(delta: Sequence[Any]) -> Any:
    """The sum of the squares of an update's parts, f64[]: finite where all of it is."""
    total: Any = np.float64(0.0)
    for part in delta:
        wide = part.astype(np.float64)
        total = total + np.sum(wide * wide)
    return total


def shrink(delta: Sequence[Any], clip: float) -> Any:
    """What an update's parts are to be multiplied by for its norm to be `clip` at most, f32[]."""
    norm = np.sqrt(squares(delta))
    # f64 sums differ in their last bits with the order of adding; one rounding to f32 hides that
    # nearly always.
    return (clip / np.maximum(norm, clip)).astype(np.float32)


def quantised(delta: Sequence[Any], factor: Any, weight: Any, key: Any, plan: RingPlan) -> Any:
    """The update in steps of the ring, rounded at random, and its weight: u32[L].

    It is delta * factor * weight. delta: f32[plan.coordinates] in parts, rotated where the plan
    says so. factor: f32[], of `shrink`. They are multiplied here, so that nothing is rounded twice.
    """
    factor = factor * weight * np.float32(plan.scale)
    if plan.rotated:
        most = np.float32(plan.peak * plan.clip * plan.scale)
        # Hardly ever does this change anything (`rotation`), and the ring has no room for more.
        delta = [np.maximum(np.minimum(part * factor, most), -most) for part in delta]
        factor = np.float32(1.0)
    # A block of the generator is 64 bits, and rounds four numbers: one in each quarter of the
    # vector. Each is written to its place as soon as it is made: nothing between is as long as the
    # model, but for a rotation.
    quarter = (plan.made + 3) // 4
    counters = np.arange(quarter, dtype=np.uint32)
    words = random.threefry2x32(key, np.zeros(quarter, np.uint32), counters)
    counted = np.reshape(weight * np.float32(plan.weight_scale), (1,))
    vector = np.zeros(plan.made, np.uint32)
    start = 0
    for exact in (*delta, counted):
        by = factor if start < plan.coordinates else np.float32(1.0)
        end = start + exact.shape[0]
        for i in range(start // quarter, (end - 1) // quarter + 1):
            low, high = max(start, i * quarter), min(end, (i + 1) * quarter)
            word = words[i // 2][low - i * quarter : high - i * quarter]
            noise = word >> 16 if i % 2 else word & 0xFFFF
            made = _round(exact[low - start : high - start] * by, noise)
            vector = dynamic_update(vector, made, (low,))
        start = end
    return vector


def _round(exact: Any, noise: Any) -> Any:
    """f32[n] in steps, u32[n] below 2^16 -> u32[n]: floor(v + u), u on a grid of 2^-16, centred.

    The chance of rounding up is off by at most 2^-17, a bias far below what the rounding itself
    costs.
    """
    unit = noise.astype(np.float32) * np.float32(2.0**-16) + np.float32(2.0**-17)
    # Without rounding v + u: the fraction of an f32 is exact, and so is the comparison.
    low = np.floor(exact)
    up = unit < exact - low
    return (low.astype(np.int32) + up.astype(np.int32)).astype(np.uint32)


def zeros(plan: RingPlan) -> Vector:
    """The sum of no updates."""
    return np.zeros(plan.length, np.uint32)


def add(total: Vector, vector: Vector) -> None:
    """Adds a vector to a running sum, in place, modulo 2^32."""
    np.add(total, vector, out=total)


def add_packed(total: Vector, content: bytes | memoryview, plan: RingPlan) -> None:
    """Adds a vector in its sent form (`packed`). Raises PackingError."""
    if plan.bits == BITS:
        np.add(total, np.frombuffer(content, "<u4"), out=total)
    else:
        add(total, unpacked(content, plan))


def summed(total: Vector | None, content: Content, plan: RingPlan) -> Vector:
    """A running sum, None before the first, with a vector more as it travels (see `packed`).

    Of 32 bits the first is viewed and not copied: it must not be changed, and the second makes a
    new array. Raises PackingError.
    """
    if plan.bits != BITS:
        if total is None:
            return unpacked(content, plan)
        add(total, unpacked(content, plan))
        return total
    vector = np.frombuffer(content, "<u4").astype(np.uint32, copy=False)
    if total is None:
        vector.flags.writeable = False
        return vector
    return np.add(total, vector, out=total if total.flags.writeable else None)


def settled(total: Vector, plan: RingPlan) -> Vector:
    """The lower `bits` as signed numbers, u32[n]; the same array for 32 bits."""
    spare = BITS - plan.bits
    if not spare:
        return total
    moved = (total << np.uint32(spare)).view(np.int32)
    moved >>= np.int32(spare)
    return moved.view(np.uint32)


def packed(vector: Vector, plan: RingPlan) -> bytes:
    """Elements as they travel: `plan.wire_bytes` bytes, see `privacy.packing`."""
    if plan.bits == BITS:
        return vector.astype("<u4", copy=False).tobytes()
    return bit_packing.pack(vector, plan.bits)


def carried(vector: Vector, plan: RingPlan) -> Content:
    """As `packed`; a view for 32 bits, which must not be changed."""
    if plan.bits == BITS:
        return vector.astype("<u4", copy=False).data.cast("B").toreadonly()
    return bit_packing.pack(vector, plan.bits)


def is_packed(content: bytes | memoryview, plan: RingPlan) -> bool:
    """Whether `unpacked` takes it."""
    return bit_packing.is_packed(content, plan.length, plan.bits)


def unpacked(content: bytes | memoryview, plan: RingPlan) -> Vector:
    """The reverse of `packed`, settled: a new array. Raises PackingError for what is none."""
    if plan.bits == BITS:
        return np.frombuffer(content, "<u4").astype(np.uint32)
    return settled(bit_packing.unpack(content, plan.length, plan.bits), plan)


def choice(plan: RingPlan, round_key: bytes) -> npt.NDArray[np.int64]:
    """The coordinates of an update that are sent in a round, increasing.

    They are those of the `kept` smallest words that the round's 8-byte key gives, the lower place
    first: the same at all devices, so that they can be added.
    """
    return _choice(plan.coordinates, plan.kept, round_key)


@lru_cache(4)
def _choice(coordinates: int, kept: int, round_key: bytes) -> npt.NDArray[np.int64]:
    words = random.bits(random.fold_in(np.frombuffer(round_key, "<u4"), _CHOICE), (coordinates,))
    chosen = np.argsort(words, kind="stable")[:kept]
    chosen.sort()
    chosen.flags.writeable = False
    return chosen


def indicator(total: Vector, plan: RingPlan) -> float:
    """The mean of the indicators in a sum. Raises RingError without weight."""
    signed = settled(total[-2:], plan).view(np.int32)
    if signed[-1] <= 0:
        raise RingError("there is no weight in a sum")
    weight = float(signed[-1]) / plan.weight_scale
    return float(signed[0]) / (plan.scale * weight)


def result(
    total: Vector, plan: RingPlan, round_key: bytes = b""
) -> tuple[npt.NDArray[np.float32 | np.uint32], float]:
    """What a round gives: the mean as `decode` has it, or an exact sum u32[L] as it is.

    And the weights in it; an exact sum's are its devices. Raises RingError.
    """
    if not plan.wide:
        return decode(total, plan, round_key)
    if total.shape != (plan.length,) or not 0 < int(total[-1]) <= plan.clients_max:
        raise RingError("an exact sum of no devices, or of more than can be in it")
    return total, float(total[-1])


def decode(total: Vector, plan: RingPlan, round_key: bytes = b"") -> tuple[Floats, float]:
    """The weighted mean f32[D] and the sum of weights of the updates in a sum u32[L].

    round_key: of the round, where it chooses coordinates. Those that did not travel are zero, and
    the others that much larger: the mean is unbiased over keys.

    Raises RingError when there is no weight in it, or when the mean is longer than any honest
    devices can make it: the ring wrapped, masks remained, or an update was invalid.
    """
    if total.shape != (plan.length,):
        raise RingError(f"a sum of {total.shape} elements, where the plan says {plan.length}")
    signed = settled(total, plan).view(np.int32)
    weight = float(signed[-1]) / plan.weight_scale
    if weight <= 0:
        raise RingError(f"the weights of a sum are {weight:g} in all")
    sent = plan.kept or plan.coordinates
    mean = np.empty(sent, np.float32)
    for start in range(0, sent, _BLOCK):
        # Block by block: the f64 between is never as large as the model.
        block = slice(start, start + _BLOCK)
        np.divide(signed[:sent][block], plan.scale * weight, out=mean[block], casting="same_kind")
    # Each of n roundings moves a coordinate by less than one step.
    long = plan.clients_max * math.sqrt(sent) / (plan.scale * weight)
    if plan.noise:
        # A sphere's radius, in which nearly all noise of so many coordinates lies, and its tail.
        deviation = plan.clip * plan.sum_noise / weight
        long += deviation * (math.sqrt(sent) + NOISE_TAIL)
        long += NOISE_MORE / (plan.scale * weight)
    norm = float(np.linalg.norm(mean))
    if not norm <= plan.clip * _SLACK + long:
        raise RingError(f"the mean update has norm {norm:.3g}, above the clip {plan.clip:g}")
    if plan.kept:
        whole = np.zeros(plan.coordinates, np.float32)
        whole[choice(plan, round_key)] = mean * np.float32(plan.coordinates / plan.kept)
        mean = whole
    return rotation.rotate_back(mean, plan.dimension) if plan.rotated else mean, weight
