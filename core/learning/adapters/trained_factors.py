"""The factors of LoRA among the leaves that are trained."""

from __future__ import annotations

from ...compiler.ir import Tensor
from ..partial import Trained


def factors(model: Trained) -> list[tuple[Tensor, Tensor]]:
    """A f32[inputs, rank] and B f32[rank, outputs] of each adapter."""
    return [(model.values[a], model.values[b]) for a, b in _places(model)]


def with_factors(model: Trained, pairs: list[tuple[Tensor, Tensor]]) -> Trained:
    """The same leaves with these for A and B of each adapter."""
    places = [place for pair in _places(model) for place in pair]
    return model.replaced(places, [factor for pair in pairs for factor in pair])


def _places(model: Trained) -> list[tuple[int, int]]:
    """The places of A and B of each adapter."""
    names = model.names
    return [
        (names.index(name), names.index(f"{name[:-2]}.b"))
        for name in names
        if name.endswith(".a") and f"{name[:-2]}.b" in names
    ]
