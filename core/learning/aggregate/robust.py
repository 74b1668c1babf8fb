"""Aggregation when some updates are hostile: rules in place of the mean.

Of n updates x_1..x_n in R^D up to f come from an attacker that knows the others and the rule. The
mean has no defence: one hostile update moves it anywhere. A rule's breakdown point is the largest
share f/n for which its result stays near the honest updates:

    rule               needs          moves at most by
    krum, multi_krum   n >= 2f + 3    a multiple of the honest spread (Blanchard et al. 2017)
    trimmed_mean       n >= 2f + 1    of each coordinate, the honest range (Yin et al. 2018)
    median             n >= 2f + 1    of each coordinate, the honest range (Yin et al. 2018)
    geometric_median   n >= 2f + 1    (1-a)/sqrt(1-2a) honest radii, a = f/n (Minsker 2015, 2.1)
    clipped_mean       any            f/n of the bound: it limits, and does not reject
    fltrust            a clean update: any f whatever (Cao et al. 2021)

A rule is only as good as honest updates are similar. A hostile update within their spread ("a
little is enough", Baruch et al. 2019) stays in the result, and devices with different data look
hostile.

Updates are read block by block, so that f64 copies take a few MiB for any n and D. All rules except
those by coordinate are affine: their result is sum_i c_i x_i, with c from the n*n distances alone.

All rules except `mean` give updates the same weight, because a device could claim any weight.

If updates are masked, only sums over cohorts can be read. Then a rule works on the means of
cohorts, and n is the number of cohorts: the rule holds if hostile devices are in at most f of them.
One hostile device spoils its cohort, however large that is. The honest part of each cohort is near
the honest mean, so the rule loses less accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...common.errors import DelianError
from ...privacy.mechanisms import rotation
from ...privacy.mechanisms.ring import RingPlan, settled
from ...protocol.ports import Floats, Vector
from ...wire import operator_pb2
from ...wire.operator_pb2 import AggregationRule

Doubles = npt.NDArray[np.float64]

#: Numbers in f64 that are held at a time: 8 MiB.
BLOCK_NUMBERS = 1 << 20
#: Weiszfeld's iterations; and when the point moves less than this share, it is there.
ITERATIONS_MAX = 200
TOLERANCE = 1e-9
#: Cohorts whose means a rule can be used on. Of two, neither is an outlier.
COHORTS_MIN = 3
#: Distances below this share of the largest count as this: nu of Pillutla et al. 2022, algorithm 1.
SMOOTH = 1e-6


class RobustError(DelianError):
    """Too few updates for a rule, or none that can be used."""


class Updates(Protocol):
    """n updates of D numbers that can be read by columns."""

    @property
    def count(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def block(self, start: int, stop: int) -> Doubles:
        """f64[n, stop - start]: a new array, which the caller may change."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Updates as arrays f32[D] (or f64[D]), all finite."""

    arrays: Sequence[npt.NDArray[Any]]

    def __post_init__(self) -> None:
        if not self.arrays or len({array.shape for array in self.arrays}) != 1:
            raise RobustError("there are no updates, or they differ in length")

    @property
    def count(self) -> int:
        return len(self.arrays)

    @property
    def dimension(self) -> int:
        return int(self.arrays[0].size)

    def block(self, start: int, stop: int) -> Doubles:
        return np.stack([array[start:stop] for array in self.arrays]).astype(np.float64)


class RingUpdates:
    """Devices' updates as they come, each u32[D+1] in the ring (`privacy.ring`).

    A device may say what it likes, so nothing that an honest one could not have said is used: a
    weight outside (0, 1] leaves the update out, and one that is longer than the plan's clip is
    scaled down to it. Updates that the plan rotates are read rotated: D is `plan.coordinates`.

    Args:
        vectors: the updates.
        plan: their ring plan.
        sizes: if given, the vectors are sums over so many devices each, and their means are read.

    Attributes:
        used: the places of the vectors that were taken.
        weights: their weights, f64[n].

    Raises:
        RobustError: no vector was taken.
    """

    def __init__(
        self, vectors: Sequence[Vector], plan: RingPlan, sizes: Sequence[int] = ()
    ) -> None:
        self.used, self.weights = usable(vectors, plan, sizes)
        own = (np.ascontiguousarray(vectors[i]) for i in self.used)
        self._vectors = [settled(vector, plan).view(np.int32) for vector in own]
        self._dimension = plan.coordinates
        self._factors: Doubles = 1.0 / (plan.scale * self.weights)
        lengths = norms(self)
        self._factors *= np.minimum(1.0, plan.clip / np.maximum(lengths, plan.clip))

    @property
    def count(self) -> int:
        return len(self._vectors)

    @property
    def dimension(self) -> int:
        return self._dimension

    def block(self, start: int, stop: int) -> Doubles:
        made = np.stack([vector[start:stop] for vector in self._vectors]).astype(np.float64)
        made *= self._factors[:, None]
        return made


def usable(
    vectors: Sequence[Vector], plan: RingPlan, sizes: Sequence[int] = ()
) -> tuple[list[int], Doubles]:
    """The places of vectors with a weight that honest devices could have, and the weights f64[n].

    It reads one element of each vector.

    Raises:
        RobustError: no vector has such a weight, or one has a wrong length.
    """
    if any(vector.shape != (plan.length,) for vector in vectors):
        raise RobustError(f"an update is not {plan.length} elements long")
    last = np.array([vector[-1] for vector in vectors], np.uint32)
    signed = settled(last, plan).view(np.int32)
    said: Doubles = signed.astype(np.float64) / plan.weight_scale
    # A weight is rounded at random to the next step.
    most = np.array(sizes or [1] * len(vectors)) * (1 + 1 / plan.weight_scale)
    used = [place for place, fits in enumerate((said > 0) & (said <= most)) if fits]
    if not used:
        raise RobustError("no update has a weight that an honest device could have")
    return used, said[used]


@dataclass(frozen=True, slots=True)
class Combination:
    """A rule and its inputs.

    `of` is quick and checks that there are enough vectors; `update` is all the arithmetic, for a
    thread.
    """

    vectors: tuple[Vector, ...]
    """u32[plan.length] each: a device's, or with `sizes` a cohort's sum."""
    plan: RingPlan
    """The ring plan of the vectors."""
    rule: AggregationRule
    """The rule."""
    corrupt: float
    """The share of hostile vectors: f = floor(corrupt * n)."""
    sizes: tuple[int, ...] = ()
    """Devices in each cohort; empty: each vector is one device's."""

    @staticmethod
    def of(
        vectors: Sequence[Vector],
        plan: RingPlan,
        rule: AggregationRule,
        corrupt: float,
        sizes: Sequence[int] = (),
    ) -> tuple[Combination, float]:
        """The usable vectors, and the sum of the weights that they claim.

        Raises:
            RobustError: there are too few for the rule.
        """
        used, weights = usable(vectors, plan, sizes)
        least = max(needed(rule, corrupt, len(used)), COHORTS_MIN if sizes else 1)
        name = AggregationRule.Name(rule).lower().replace("_", " ")
        what = "cohorts" if sizes else "updates"
        _need(len(used), least, name, hostile_of(corrupt, len(used)), what)
        kept = tuple(vectors[place] for place in used)
        sized = tuple(sizes[place] for place in used) if sizes else ()
        return Combination(kept, plan, rule, corrupt, sized), float(weights.sum())

    def update(self) -> Floats:
        """The one update f32[plan.dimension]. Raises RobustError."""
        return combine(self.vectors, self.plan, self.rule, self.corrupt, self.sizes)[0]


def update_of(made: Floats | Combination) -> Floats:
    """The update that a server update is made of, f32[D]. Raises RobustError."""
    return made.update() if isinstance(made, Combination) else made


def combine(
    vectors: Sequence[Vector],
    plan: RingPlan,
    rule: AggregationRule,
    corrupt: float,
    sizes: Sequence[int] = (),
) -> tuple[Floats, float]:
    """One update f32[plan.dimension] from many vectors, and the sum of the weights they claim.

    Args:
        vectors: u32[plan.length] each.
        plan: the ring plan of the vectors.
        rule: the rule.
        corrupt: the share of hostile vectors: f = floor(corrupt * n).
        sizes: devices in each cohort; empty: each vector is one device's.

    Raises:
        RobustError: there are too few usable vectors for the rule.
    """
    updates = RingUpdates(vectors, plan, sizes)
    hostile = hostile_of(corrupt, updates.count)
    match rule:
        case operator_pb2.KRUM:
            made = krum(updates, hostile)
        case operator_pb2.MULTI_KRUM:
            made = multi_krum(updates, hostile)
        case operator_pb2.TRIMMED_MEAN:
            made = trimmed_mean(updates, hostile)
        case operator_pb2.MEDIAN:
            made = median(updates)
        case operator_pb2.GEOMETRIC_MEDIAN:
            made = geometric_median(updates)
        case operator_pb2.CLIPPED_MEAN:
            made = clipped_mean(updates)
        case _:
            made = mean(updates, updates.weights)
    weight = float(updates.weights.sum())
    return (rotation.rotate_back(made, plan.dimension) if plan.rotated else made), weight


def hostile_of(corrupt: float, count: int) -> int:
    """How many of `count` updates may be hostile."""
    return int(corrupt * count + 1e-9)  # 0.2 * 35 is below 7 in floats


def needed(rule: AggregationRule, corrupt: float, count: int) -> int:
    """How many updates a rule needs where as many may be hostile as of `count`."""
    hostile = hostile_of(corrupt, count)
    krums = rule in (operator_pb2.KRUM, operator_pb2.MULTI_KRUM)
    return 2 * hostile + (3 if krums else 1)


def is_enough(rule: AggregationRule, corrupt: float, count: int) -> bool:
    """Whether a rule can be used on `count` updates."""
    return count >= needed(rule, corrupt, count)


# ---------------------------------------------------------------- affine rules


def mean(updates: Updates, weights: Doubles | None = None) -> Floats:
    """The weighted mean, f32[D]. weights: f64[n], none negative; None: equal ones."""
    share = np.ones(updates.count) if weights is None else weights
    return _combined(updates, share / share.sum())


def clipped_mean(updates: Updates, bound: float | None = None) -> Floats:
    """The mean of x_i * min(1, bound / |x_i|), f32[D]; without `bound` the norms' median is it.

    Sun et al. 2019, "Can you really backdoor federated learning?". f hostile updates move it by at
    most f/n * bound.
    """
    lengths = norms(updates)
    most = float(np.median(lengths)) if bound is None else bound
    factors = np.minimum(1.0, most / np.maximum(lengths, np.finfo(np.float64).tiny))
    return _combined(updates, factors / updates.count)


def krum(updates: Updates, hostile: int) -> Floats:
    """The update with the lowest score, f32[D] (Blanchard et al. 2017, section 4).

    The score s(i) is the sum of its squared distances to its n - f - 2 nearest others.

    Raises:
        RobustError: n < 2f + 3.
    """
    return multi_krum(updates, hostile, 1)


def multi_krum(updates: Updates, hostile: int, chosen: int | None = None) -> Floats:
    """The mean of the `chosen` updates with the lowest scores of `krum`, f32[D].

    None: n - f - 2, the most for which the bound holds (El Mhamdi et al. 2018).

    Raises:
        RobustError: n < 2f + 3.
    """
    count = updates.count
    _need(count, 2 * hostile + 3, "krum", hostile)
    near = count - hostile - 2
    distances = squared_distances(updates)
    np.fill_diagonal(distances, np.inf)
    scores = np.partition(distances, near - 1, axis=1)[:, :near].sum(axis=1)
    kept = np.argsort(scores, kind="stable")[: near if chosen is None else chosen]
    coefficients = np.zeros(count)
    coefficients[kept] = 1.0 / len(kept)
    return _combined(updates, coefficients)


def geometric_median(updates: Updates) -> Floats:
    """The point z with the least sum_i |z - x_i|, f32[D].

    Weiszfeld's iterations with smoothing (Pillutla et al. 2022, algorithm 1):
    c_i = 1 / max(nu, |z - x_i|), z = sum c_i x_i / sum c_i.

    z is always sum c_i x_i with sum c_i = 1, so with E_ij = |x_i - x_j|^2

        |z - x_i|^2 = (E c)_i - c.E.c / 2

    and the iterations need no D-dimensional arithmetic.
    """
    squares = squared_distances(updates)
    floor = SMOOTH * float(np.sqrt(squares.max()))
    coefficients: Doubles = np.full(updates.count, 1.0 / updates.count)
    if floor == 0.0:
        return _combined(updates, coefficients)  # all are the same
    for _ in range(ITERATIONS_MAX):
        to_all = squares @ coefficients
        distances = np.sqrt(np.maximum(to_all - coefficients @ to_all / 2, 0.0))
        pulls = 1.0 / np.maximum(distances, floor)
        before, coefficients = coefficients, pulls / pulls.sum()
        if float(np.abs(coefficients - before).max()) < TOLERANCE:
            break
    return _combined(updates, coefficients)


def fltrust(updates: Updates, reference: Floats) -> Floats:
    """Trust by likeness to an update that is known to be clean (Cao et al. 2021, section 4).

        t_i = max(0, cos(x_i, r))        sum_i t_i |r| x_i / |x_i|  /  sum_i t_i

    f32[D]; zero when nothing points the reference's way. reference: f32[D], made by the server from
    a small clean data set, from the weights that the devices began with.
    """
    if reference.shape != (updates.dimension,):
        raise RobustError(f"a reference of {reference.size} numbers for {updates.dimension}")
    dots, squares = np.zeros(updates.count), np.zeros(updates.count)
    own = 0.0
    for start, block in _blocks(updates):
        part = reference[start : start + block.shape[1]].astype(np.float64)
        dots += block @ part
        squares += np.einsum("ij,ij->i", block, block)
        own += float(part @ part)
    lengths = np.maximum(np.sqrt(squares), np.finfo(np.float64).tiny)
    if own == 0.0:
        raise RobustError("the reference is zero: it points nowhere")
    trust = np.maximum(dots / (lengths * np.sqrt(own)), 0.0)
    total = float(trust.sum())
    if total == 0.0:
        return np.zeros(updates.dimension, np.float32)
    return _combined(updates, trust * np.sqrt(own) / lengths / total)


# ---------------------------------------------------------------- rules by coordinate


def trimmed_mean(updates: Updates, hostile: int) -> Floats:
    """Each coordinate's mean without its f smallest and f largest values, f32[D].

    Yin et al. 2018, definition 2.

    Raises:
        RobustError: n < 2f + 1.
    """
    count = updates.count
    _need(count, 2 * hostile + 1, "the trimmed mean", hostile)

    def middle(block: Doubles) -> Doubles:
        if hostile:
            block.partition((hostile, count - hostile - 1), axis=0)
        kept: Doubles = block[hostile : count - hostile].mean(axis=0)
        return kept

    return _by_coordinate(updates, middle)


def median(updates: Updates) -> Floats:
    """Each coordinate's median, f32[D] (Yin et al. 2018, definition 1)."""

    def middle(block: Doubles) -> Doubles:
        found: Doubles = np.median(block, axis=0, overwrite_input=True)
        return found

    return _by_coordinate(updates, middle)


# ---------------------------------------------------------------- parts


def norms(updates: Updates) -> Doubles:
    """|x_i|, f64[n]."""
    squares = np.zeros(updates.count)
    for _, block in _blocks(updates):
        squares += np.einsum("ij,ij->i", block, block)
    return np.sqrt(squares)


def squared_distances(updates: Updates) -> Doubles:
    """|x_i - x_j|^2, f64[n, n]."""
    products = np.zeros((updates.count, updates.count))
    for _, block in _blocks(updates):
        # From one of them: updates that are alike and long would lose their difference.
        block -= block[0].copy()
        products += block @ block.T
    own = np.diagonal(products)
    found = np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def _blocks(updates: Updates) -> Iterator[tuple[int, Doubles]]:
    """The columns in turn: where a block begins, and f64[n, at most so many]."""
    step = max(1, BLOCK_NUMBERS // updates.count)
    for start in range(0, updates.dimension, step):
        yield start, updates.block(start, min(start + step, updates.dimension))


def _combined(updates: Updates, coefficients: Doubles) -> Floats:
    return _by_coordinate(updates, lambda block: coefficients @ block)


def _by_coordinate(updates: Updates, rule: Callable[[Doubles], Doubles]) -> Floats:
    made = np.empty(updates.dimension, np.float32)
    for start, block in _blocks(updates):
        made[start : start + block.shape[1]] = rule(block)
    return made


def _need(count: int, least: int, rule: str, hostile: int, what: str = "updates") -> None:
    if hostile < 0 or count < least:
        raise RobustError(
            f"{rule} needs {least} {what} where {hostile} may be hostile; there are {count}",
            "plan larger rounds, or fewer hostile devices",
        )
