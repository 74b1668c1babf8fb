"""Batch normalisation with cumulative averages (`momentum=None`), in a form that can be exported.

PyTorch's layer turns its counter of batches into a number of Python, `1 / float(counter)`, which
the data decide: torch.export refuses it. Here the counter is a float and remains a tensor, and the
running statistics are the same averages of the batches' statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def cumulative_statistics(torch: Any, module: Any) -> Iterator[None]:
    """Within it, the module's layers with cumulative averages can be exported."""
    layers = [part for part in module.modules() if _is_cumulative(torch, part)]
    counters = [layer.num_batches_tracked for layer in layers]
    try:
        for layer, counter in zip(layers, counters, strict=True):
            layer.num_batches_tracked = counter.float()
            layer.forward = partial(_forward, torch, layer)
        yield
    finally:
        for layer, counter in zip(layers, counters, strict=True):
            layer.num_batches_tracked = counter
            del layer.forward


def _is_cumulative(torch: Any, part: Any) -> bool:
    return (
        type(part).forward is torch.nn.BatchNorm1d.forward  # which all kinds share
        and "forward" not in vars(part)
        and part.momentum is None
        and part.running_mean is not None
        and part.num_batches_tracked is not None
    )


def _forward(torch: Any, layer: Any, x: Any) -> Any:
    """What the layer's own forward computes."""
    if not layer.training:
        return type(layer).forward(layer, x)
    # With a momentum of 1 these become the batch's own statistics.
    mean, variance = torch.zeros_like(layer.running_mean), torch.ones_like(layer.running_var)
    normed = torch.nn.functional.batch_norm
    y = normed(x, mean, variance, layer.weight, layer.bias, True, 1.0, layer.eps)
    layer.num_batches_tracked.add_(1)
    share = 1.0 / layer.num_batches_tracked
    for running, found in ((layer.running_mean, mean), (layer.running_var, variance)):
        running.copy_((1.0 - share) * running + share * found)
    return y
