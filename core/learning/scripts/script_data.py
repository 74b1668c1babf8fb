"""A script's answer as the data that a bundle's programs take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle import Manifest
from ..runtime import Runtime

Array = NDArray[Any]


def judged_of(metrics: Mapping[str, float], own: Sequence[str]) -> list[float]:
    """The loss, the accuracy and the run's own metrics in order; NaN where there is none."""
    return [metrics.get(name, math.nan) for name in ("loss", "accuracy", *own)]


def training_loss(loss: float | None, judged: Sequence[float]) -> float:
    """The loss that an update goes with; where the script did not say one, what there is."""
    if loss is not None:
        return loss
    return next((value for value in (judged[0], 1.0 - judged[1]) if not math.isnan(value)), 0.0)


def data_of(
    runtime: Runtime,
    state: Array,
    weights: Array | None,
    examples: float,
    loss: float,
    judged: Sequence[float],
) -> list[Array]:
    """The arrays that the programs take, in the manifest's order.

    Args:
        runtime: of a script's bundle.
        state: the weights that the script received, f32[D].
        weights: those that it sent, f32[D]; None: it only judged.
        examples: how many it trained on, or judged by.
        loss: the mean over training.
        judged: as of `judged_of`.
    """
    manifest = runtime.manifest
    trained = state if weights is None else np.ascontiguousarray(weights, np.float32)
    numbers = (examples, loss, judged)
    return [
        *runtime.views(trained, manifest.state),
        *(np.asarray(number, np.float32) for number in numbers),
    ]


def odd(manifest: Manifest, state: Array, weights: Array, examples: float) -> list[str]:
    """What the run's bounds change of an answer, in words for the site's log."""
    said = []
    if examples > manifest.weight_max > 1.0:
        said.append(f"{examples:g} examples count as {manifest.weight_max:g}, the most of this run")
    norm = float(np.linalg.norm((weights - state).astype(np.float64)))
    if norm > manifest.clip:
        said.append(f"the change of norm {norm:.4g} is clipped to {manifest.clip:g}")
    return said
