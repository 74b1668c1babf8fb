"""How a local program draws its batches from the device's own data.

A source answers the same questions for every algorithm, so that an algorithm is written once:

- `order(data, key)`: the random plan of one pass;
- `steps(data)`, `batch(data, order, step)`: plain training on the support set, a pass over its
  rows; `share(data, step)`: how much of a step such a batch makes; `length(data)`: their sum over
  a pass; `once()`: the same source whose passes have every row exactly once;
- `cyclic(data, order, step)`: plain training for any number of steps, round and round;
- `episodes(data)`, `episode(data, order, step)`: meta-training, a batch to adapt on and a batch to
  judge by, disjoint; `episode_share(data, step)`: how much of a step that makes;
- `adaptation(data, order, step)`: personalisation on the support set;
- `pieces(data, order, step)`: one task's data, a batch of it a step, round and round;
- `query_batches(data)`, `query(data, order, step)`: evaluation on rows that training never touched;
- `scaled(x)`: raw rows as all of these give them to the model.

Sizes that differ from device to device are values in the program, the memory is sized by a common
capacity, and a batch that is only partly filled gives weight zero to the rest: one program serves
every device of the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np

from ..compiler import random
from ..compiler.ir import Tensor
from .hyperparameters import Bounds


class Batch(NamedTuple):
    """One batch of B rows."""

    x: Tensor
    """[B, ...]."""
    y: Tensor
    """Labels, integers [B, ...], or numbers to learn, f32[B, ...]."""
    weight: Tensor
    """f32[B]: one for a row that counts, zero for filling."""
    key: Tensor | None = None
    """Of the model's random numbers in training, u32[2]; None: it draws none."""


class SampleSet(NamedTuple):
    """A device's rows."""

    x: Tensor
    """[capacity, ...] u8, i32 or f32."""
    y: Tensor
    """i32[capacity, ...], or f32 if numbers are learnt."""
    support: Tensor
    """The first rows, i64[]: they are trained on."""
    query: Tensor
    """The rows after those, i64[]: they only judge."""


class SeenRows(NamedTuple):
    """What is known of a device's rows after passes over them, once they are out of memory."""

    support: Tensor
    """Rows that were trained on in a pass, i64[]."""
    length: Tensor
    """Whole steps of a pass (`Samples.length`), f32[]."""


class EpisodeTable(NamedTuple):
    """A device's drawings by character and drawer."""

    images: Tensor
    """u8[characters, drawers, H, W]."""
    characters: Tensor
    """How many characters there are, i64[]."""


#: What becomes of the last batch of a pass, where the rows do not fill it: its mean over few rows
#: has much noise, and a step along it is the last one before the upload. `fill`: it is filled up
#: with the first rows of the same pass. `weigh`: its step is as much shorter as it has fewer rows.
#: `drop`: it is left out, so each pass leaves out other rows. `full`: a step like any other. A
#: device whose rows are fewer than one batch has one batch of them all, and a whole step, in any
#: case.
LastBatch = Literal["fill", "weigh", "drop", "full"]

#: Larger tables are not sorted to shuffle them: each step makes its own entries of the order, which
#: costs the same for any number of rows. Sorting so many costs as much as ten steps of twenty rows.
SORTED_ROWS_MAX = 4096


def key_of(rows: Tensor, step: Tensor | int = 0) -> Tensor:
    """A random key u32[2] of a batch: of the rows in it, their order and the step.

    Passes draw their rows in other orders, so a batch of every pass has its own key.
    """
    flat = rows.reshape(-1)
    places = np.arange(flat.shape[0]) + step * flat.shape[0]
    words = random.threefry2x32(random.key(0), places.astype(np.uint32), flat.astype(np.uint32))
    sums = [np.sum(word, dtype=np.int64) & 0xFFFFFFFF for word in words]
    return np.stack([total.astype(np.uint32) for total in sums])


@dataclass(frozen=True)
class Samples:
    """Mini-batches of rows of a SampleSet."""

    batch_size: int
    """Rows of a batch."""
    scale: float | tuple[float, ...]
    """Raw values of x are multiplied by it; of rows [k], each by its own."""
    query_size: int = 64
    """Rows of a batch of the query set."""
    adapt_share: Annotated[float, Bounds(ge=0.01, le=0.99)] = 0.5
    """The share of a device's rows that steps adapt on (the paper's p); the others judge them."""
    last_batch: LastBatch = "fill"
    """What becomes of the last batch of a pass."""
    keyed: bool = False
    """Whether batches have a key, as models with dropout need."""
    shift: tuple[float, ...] = ()
    """Is subtracted from rows [k] before they are multiplied; empty: nothing is."""

    def rows(self, data: SampleSet, rows: Tensor, valid: Tensor, step: Tensor | int = 0) -> Batch:
        """The batch of these row numbers; those out of range must be marked as not valid."""
        rows = np.minimum(rows, data.x.shape[0] - 1)
        key = key_of(rows, step) if self.keyed else None
        return Batch(self.scaled(data.x[rows]), data.y[rows], valid.astype(np.float32), key)

    def scaled(self, x: Tensor) -> Tensor:
        """Raw rows as the model takes them."""
        if self.shift:
            centred = x.astype(np.float32) - np.array(self.shift, np.float32)
            return centred * np.array(self.scale, np.float32)
        return x if self.scale == 1.0 else x.astype(np.float32) * self.scale

    def order(self, data: SampleSet, key: Tensor) -> Tensor:
        """The support rows in random order, i64[capacity]; of a large table a key to it, u32[2]."""
        if data.x.shape[0] > SORTED_ROWS_MAX:
            return key
        return random.permutation(key, data.support, data.x.shape[0])

    def entries(self, data: SampleSet, order: Tensor, positions: Tensor) -> Tensor:
        """The order's entries at positions below `support`; elsewhere any."""
        if data.x.shape[0] <= SORTED_ROWS_MAX:
            return order[np.minimum(positions, data.x.shape[0] - 1)]
        rows = np.maximum(data.support, 1)
        return random.permuted(order, rows, np.minimum(positions, rows - 1))

    def steps(self, data: SampleSet) -> Tensor:
        return self._batches(data.support)

    def batch(self, data: SampleSet, order: Tensor, step: Tensor) -> Batch:
        position, valid = self._positions(data.support, step)
        return self.rows(data, self.entries(data, order, position), valid, step)

    def share(self, data: SampleSet, step: Tensor) -> Tensor | float:
        return self._share(data.support, step)

    def length(self, data: SampleSet | SeenRows) -> Tensor:
        if isinstance(data, SeenRows):
            return data.length
        if self.last_batch != "weigh":
            return self.steps(data).astype(np.float32)
        whole = np.maximum(np.minimum(data.support, self.batch_size), 1)
        return data.support.astype(np.float32) / whole.astype(np.float32)

    def once(self) -> Samples:
        return replace(self, last_batch="full")

    def episodes(self, data: SampleSet) -> Tensor:
        """One pass judges by the rows that it does not adapt on."""
        return self._batches(data.support - self.adapted(data))

    def episode_share(self, data: SampleSet, step: Tensor) -> Tensor | float:
        return self._share(data.support - self.adapted(data), step)

    def _batches(self, rows: Tensor) -> Tensor:
        """How many batches a pass over so many rows has."""
        if self.last_batch == "drop":
            return np.maximum(rows // self.batch_size, np.minimum(rows, 1))
        return (rows + self.batch_size - 1) // self.batch_size

    def _positions(self, rows: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """A batch's places in a pass over so many rows, i64[B], and which of them count."""
        column = np.arange(self.batch_size)
        position = step * self.batch_size + column
        if self.last_batch == "fill":
            return position % np.maximum(rows, 1), column < rows
        return position, position < rows

    def _share(self, rows: Tensor, step: Tensor) -> Tensor | float:
        """How much of a step a batch of a pass over so many rows makes, f32[]."""
        if self.last_batch != "weigh":
            return 1.0
        whole = np.maximum(np.minimum(rows, self.batch_size), 1)
        left = np.clip(rows - step * self.batch_size, 0, whole)
        # An algorithm may take more steps than the pass has batches: these are its own, and whole.
        left = np.where(left > 0, left, whole)
        return left.astype(np.float32) / whole.astype(np.float32)

    def adapted(self, data: SampleSet) -> Tensor:
        """How many of the support rows episodes adapt on: whole per cents of them."""
        return data.support * round(100 * self.adapt_share) // 100

    def episode(self, data: SampleSet, order: Tensor, step: Tensor) -> tuple[Batch, Batch]:
        """The shuffled support set, cut in two: adapt on the first part, judge by the second.

        The first part is taken round and round.

        A single row is adapted on and judged by alike: there is no other.
        """
        column = np.arange(self.batch_size)
        cut = self.adapted(data)
        first = np.maximum(cut, 1)
        inner = (step * self.batch_size + column) % first
        outer, valid = self._positions(data.support - cut, step)
        picked = self.entries(data, order, cut + outer)
        adapt = self.rows(data, self.entries(data, order, inner), column < first, step)
        return adapt, self.rows(data, picked, valid, step)

    def cyclic(self, data: SampleSet, order: Tensor, step: Tensor) -> Batch:
        return self.adaptation(data, order, step)

    def pieces(self, data: SampleSet, order: Tensor, step: Tensor) -> Batch:
        return self.adaptation(data, order, step)

    def adaptation(self, data: SampleSet, order: Tensor, step: Tensor) -> Batch:
        column = np.arange(self.batch_size)
        taken = (step * self.batch_size + column) % np.maximum(data.support, 1)
        return self.rows(data, self.entries(data, order, taken), column < data.support, step)

    def query_batches(self, data: SampleSet) -> Tensor:
        return (data.query + self.query_size - 1) // self.query_size

    def query(self, data: SampleSet, order: Tensor, step: Tensor) -> Batch:
        position = step * self.query_size + np.arange(self.query_size)
        return self.rows(data, data.support + position, position < data.query)


@dataclass(frozen=True)
class Episodes:
    """N-way, K-shot tasks (Vinyals et al. 2016) of an EpisodeTable.

    An episode draws characters, numbers them at random, and draws drawings of each, to adapt on and
    to judge by. The order of a pass is its key.
    """

    ways: int
    """Characters of an episode."""
    shots: int
    """Drawings of each character to adapt on."""
    queries: int
    """Others, by other hands, to judge by."""
    per_pass: int
    """Episodes of a pass."""
    scale: float = 1.0 / 255.0
    """What a drawing's numbers are multiplied by."""
    training_ways: Annotated[int, Bounds(ge=0, le=50)] = 0
    """Classes of a training episode, where episodes are few-shot tasks: at least `data.ways`. More
    of them make better features (Snell et al. 2017, section 3.1). 0: `data.ways`.
    """
    keyed: bool = False
    """Whether batches have a key, as models with dropout need."""

    @property
    def labels(self) -> int:
        """The largest number of characters in an episode: what a model must distinguish."""
        return max(self.ways, self.training_ways)

    def order(self, data: EpisodeTable, key: Tensor) -> Tensor:
        return key

    def episodes(self, data: EpisodeTable) -> int:
        return self.per_pass

    def drawn(self, data: EpisodeTable, order: Tensor, step: Tensor, ways: int) -> Tensor:
        """An episode's drawings, i64[ways, drawers]: a row a character, hands in random order."""
        keys = random.split(random.fold_in(order, step), 2)
        capacity, drawers = data.images.shape[0], data.images.shape[1]
        characters = random.permutation(keys[0], data.characters, capacity)[:ways]
        hands = np.argsort(random.bits(keys[1], (ways, drawers)), axis=-1)
        return characters[:, None] * drawers + hands

    def episode(self, data: EpisodeTable, order: Tensor, step: Tensor) -> tuple[Batch, Batch]:
        return self._split(data, self.drawn(data, order, step, self.training_ways or self.ways))

    def judging(self, data: EpisodeTable, order: Tensor) -> tuple[Batch, Batch]:
        """The one episode that this order stands for: (what to adapt on, what to judge by)."""
        return self._split(data, self.drawn(data, order, 0, self.ways))

    def _split(self, data: EpisodeTable, drawing: Tensor) -> tuple[Batch, Batch]:
        adapt = self.drawings(data, drawing[:, : self.shots])
        return adapt, self.drawings(data, drawing[:, self.shots : self.shots + self.queries])

    def drawings(self, data: EpisodeTable, which: Tensor) -> Batch:
        """The batch of these drawings, i64[ways, each], labelled by row."""
        ways, each = which.shape
        height, width = data.images.shape[2], data.images.shape[3]
        images = data.images.reshape(-1, height, width)[which.reshape(-1)]
        x = self.scaled(images)
        labels = (np.arange(ways * each) // each).astype(np.int32)
        key = key_of(which) if self.keyed else None
        return Batch(x[:, :, :, None], labels, np.ones(ways * each, np.float32), key)

    def scaled(self, x: Tensor) -> Tensor:
        """Raw drawings as the model takes them."""
        return x.astype(np.float32) * self.scale

    def steps(self, data: EpisodeTable) -> int:
        return self.per_pass

    def share(self, data: EpisodeTable, step: Tensor) -> float:
        """All episodes are alike."""
        return 1.0

    episode_share = share

    def length(self, data: EpisodeTable) -> float:
        return float(self.per_pass)

    def once(self) -> Episodes:
        return self

    def batch(self, data: EpisodeTable, order: Tensor, step: Tensor) -> Batch:
        """An episode whole: what an algorithm without an inner loop can learn from it."""
        adapt, judge = self.episode(data, order, step)
        return Batch(
            np.concatenate([adapt.x, judge.x]),
            np.concatenate([adapt.y, judge.y]),
            np.concatenate([adapt.weight, judge.weight]),
            judge.key,
        )

    def cyclic(self, data: EpisodeTable, order: Tensor, step: Tensor) -> Batch:
        """Another episode for every step."""
        return self.batch(data, order, step)

    def adaptation(self, data: EpisodeTable, order: Tensor, step: Tensor) -> Batch:
        """The support set of the one episode that this order stands for."""
        return self.judging(data, order)[0]

    def pieces(self, data: EpisodeTable, order: Tensor, step: Tensor) -> Batch:
        """`shots` drawings of each character of an episode, those to evaluate among them."""
        each = self.shots + self.queries
        drawing = self.drawn(data, order, 0, self.training_ways or self.ways)
        column = (step * self.shots + np.arange(self.shots)) % each
        return self.drawings(data, drawing[:, column])

    def query_batches(self, data: EpisodeTable) -> int:
        return 1

    def query(self, data: EpisodeTable, order: Tensor, step: Tensor) -> Batch:
        """The query set of the same episode."""
        return self.judging(data, order)[1]
