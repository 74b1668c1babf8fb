"""Normalisation, and what its statistics are in a federation.

A model that is averaged must not carry numbers that only one device's data explain. There are three
ways out, and each has a layer here:

- **No statistics to carry.** `LayerNorm`, `RmsNorm`, `GroupNorm` and `InstanceNorm` normalise each
  row by itself; `BatchNorm` by the batch at hand, in training and after. These are what the models
  of the zoo use: GroupNorm keeps its accuracy where devices' labels differ (Hsieh et al. 2020).
- **Running statistics as state.** `RunningBatchNorm` takes and gives back a `Statistics` that is no
  part of the model: a tree of its own, which the caller carries from step to step. An algorithm
  that puts it in its federated state has it averaged as any other leaf; the mean of variances
  then lacks the variance of the means between devices. One that leaves it out has it computed again
  on each device, from the device's data.
- **Normalisation that stays personal**, FedBN (Li et al. 2021): scale, shift and statistics are a
  device's own. The algorithm `FedBn` keeps the leaves that lie in such layers personal, and shares
  all the others; `within(model, BatchNorm, ...)` marks them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.ops import stop_gradient
from ...compiler.tree import static_field
from ...compiler.tree import within as within

#: Added to a variance before its square root, as in the batch normalisation paper's experiments;
#: `floor` of a layer, where it is another's weights that are loaded.
VARIANCE_FLOOR = 1e-5


@module
class BatchNorm:
    """Batch normalisation by the batch's own statistics, always (Ioffe and Szegedy 2015)."""

    scale: Tensor  # f32[channels]
    shift: Tensor  # f32[channels]

    @staticmethod
    def init(channels: int) -> BatchNorm:
        return BatchNorm(np.ones(channels, np.float32), np.zeros(channels, np.float32))

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """f32[N, space..., channels] over N and space; weight: f32[N] of 0 and 1, or None."""
        centred, _, variance = _moments(x, weight)
        return centred * (self.scale / np.sqrt(variance + VARIANCE_FLOOR)) + self.shift


class Statistics(NamedTuple):
    """What a `RunningBatchNorm` has seen: the channels' mean and variance, f32[channels]."""

    mean: Tensor
    variance: Tensor


@module
class RunningBatchNorm:
    """Batch normalisation by the batch in training, by running statistics after.

    The statistics are state, not parameters: no gradient reaches them, and the training loop
    carries them. `momentum` is what they keep at each step.
    """

    scale: Tensor  # f32[channels]
    shift: Tensor  # f32[channels]
    momentum: float = static_field(default=0.9)

    @staticmethod
    def init(channels: int, momentum: float = 0.9) -> RunningBatchNorm:
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return RunningBatchNorm(ones, zeros, momentum)

    def first(self) -> Statistics:
        """The statistics before any data: mean zero, variance one."""
        return Statistics(np.zeros_like(self.shift), np.ones_like(self.scale))

    def train(
        self, x: Tensor, statistics: Statistics, weight: Tensor | None = None
    ) -> tuple[Tensor, Statistics]:
        """Normalises by the batch, as `BatchNorm`; also gives the statistics after it.

        The variance that is remembered is that of the data, not of the sample: n / (n - 1) times
        the batch's. A batch of one value a channel leaves it unchanged.
        """
        centred, mean, variance = _moments(x, weight)
        y = centred * (self.scale / np.sqrt(variance + VARIANCE_FLOOR)) + self.shift
        count = _count(x, weight)
        wide = variance * (count / np.maximum(count - 1.0, 1.0))
        wide = np.where(count > 1.0, wide, statistics.variance)
        keep = self.momentum
        seen = Statistics(
            stop_gradient(keep * statistics.mean + (1.0 - keep) * mean),
            stop_gradient(keep * statistics.variance + (1.0 - keep) * wide),
        )
        return y, seen

    def __call__(self, x: Tensor, statistics: Statistics) -> Tensor:
        """f32[..., channels] normalised by what training has seen."""
        factor = self.scale / np.sqrt(statistics.variance + VARIANCE_FLOOR)
        return (x - statistics.mean) * factor + self.shift


def _moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x minus its channels' mean, that mean, and the variance, over all axes but the last."""
    axes = tuple(range(x.ndim - 1))
    if weight is None:
        mean = np.mean(x, axis=axes)
        centred = x - mean
        return centred, mean, np.mean(centred * centred, axis=axes)
    rows = weight.reshape(-1, *[1] * (x.ndim - 1))
    count = np.sum(weight) * (x.size // (x.shape[0] * x.shape[-1]))
    mean = np.sum(x * rows, axis=axes) / count
    centred = x - mean
    # Two passes: E[x^2] - E[x]^2 loses the variance of data that lies far from zero.
    return centred, mean, np.sum(centred * centred * rows, axis=axes) / count


def _count(x: Tensor, weight: Tensor | None) -> Tensor:
    """Values of a channel that count, one number."""
    each = x.size // (x.shape[0] * x.shape[-1])
    return float(each * x.shape[0]) if weight is None else np.sum(weight) * each


@module
class LayerNorm:
    """Each vector to mean zero and variance one (Ba et al. 2016), then scaled and shifted."""

    scale: Tensor  # f32[width]
    shift: Tensor  # f32[width]
    floor: float = static_field(default=VARIANCE_FLOOR)

    @staticmethod
    def init(width: int, floor: float = VARIANCE_FLOOR) -> LayerNorm:
        return LayerNorm(np.ones(width, np.float32), np.zeros(width, np.float32), floor)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[..., width] -> f32[..., width]."""
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        return centred * (1.0 / np.sqrt(variance + self.floor)) * self.scale + self.shift


@module
class RmsNorm:
    """Each vector divided by its root mean square (Zhang and Sennrich 2019), then scaled."""

    scale: Tensor  # f32[width]
    floor: float = static_field(default=VARIANCE_FLOOR)

    @staticmethod
    def init(width: int, floor: float = VARIANCE_FLOOR) -> RmsNorm:
        return RmsNorm(np.ones(width, np.float32), floor)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[..., width] -> f32[..., width]."""
        square = np.mean(x * x, axis=-1, keepdims=True)
        return x * (1.0 / np.sqrt(square + self.floor)) * self.scale


@module
class GroupNorm:
    """Groups of channels of each row to mean zero and variance one (Wu and He 2018)."""

    scale: Tensor  # f32[channels]
    shift: Tensor  # f32[channels]
    groups: int = static_field(default=1)
    floor: float = static_field(default=VARIANCE_FLOOR)

    @staticmethod
    def init(channels: int, groups: int, floor: float = VARIANCE_FLOOR) -> GroupNorm:
        """Raises ValueError when the channels do not fall into so many groups."""
        if channels % groups:
            raise ValueError(f"GroupNorm: {channels} channels in {groups} groups")
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return GroupNorm(ones, zeros, groups, floor)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, space..., channels] -> the same."""
        parted = x.reshape(*x.shape[:-1], self.groups, x.shape[-1] // self.groups)
        axes = (*range(1, x.ndim - 1), x.ndim)
        centred = parted - np.mean(parted, axis=axes, keepdims=True)
        variance = np.mean(centred * centred, axis=axes, keepdims=True)
        normal = (centred * (1.0 / np.sqrt(variance + self.floor))).reshape(x.shape)
        return normal * self.scale + self.shift


@module
class InstanceNorm:
    """Each channel of each row to mean zero and variance one (Ulyanov et al. 2016)."""

    scale: Tensor  # f32[channels]
    shift: Tensor  # f32[channels]
    floor: float = static_field(default=VARIANCE_FLOOR)

    @staticmethod
    def init(channels: int, floor: float = VARIANCE_FLOOR) -> InstanceNorm:
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        return InstanceNorm(ones, zeros, floor)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N, space..., channels] -> the same."""
        axes = tuple(range(1, x.ndim - 1))
        centred = x - np.mean(x, axis=axes, keepdims=True)
        variance = np.mean(centred * centred, axis=axes, keepdims=True)
        return centred * (1.0 / np.sqrt(variance + self.floor)) * self.scale + self.shift
