"""Differential tests of the compiler: random programs, compiled, against the reference back end.

    tensors        moves, reductions, products, indices, loops, on every element type
    convolutions   of every geometry, with what follows them
    models         of layers, their gradients, optimisers' steps, lanes
    judge          whether a program gives what it should, on any threads, in both profiles

Derivatives are programs as others are: what the transforms make of a program runs natively and in
f64. (That the transforms are right is judged by finite differences: `transforms`.) A program
follows from its kind and a seed, so a seed is enough to see it again:

    cd tests
    python -m differential convolutions 17 --show  # one program
    python -m differential all 1000 600            # all kinds, from this seed on, ten minutes
    DELIAN_CC="gcc -DDL_PORTABLE" python -m differential all 1000 600  # C for small machines
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import convolutions, models, tensors
from .cases import Case
from .judge import Failure, eager_lowering, judged

KINDS: dict[str, Callable[[str, int], Case]] = {
    "tensors": tensors.case,
    "convolutions": convolutions.case,
    "models": models.case,
}


def cases(kind: str, seeds: Sequence[int]) -> list[Case]:
    return [KINDS[kind](f"{kind} {seed}", seed) for seed in seeds]


__all__ = ["KINDS", "Case", "Failure", "cases", "eager_lowering", "judged"]
