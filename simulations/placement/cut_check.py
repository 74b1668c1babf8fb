"""Runs the parts of cuts with real tensors, and compares with the whole program.

Each cut is derived, compiled and run as the tiers would, what crosses is encoded and decoded; the
inputs are drawn from the scenario's seed. With wires as wide as the values the difference is that
of two compilations; narrow wires cost what they cost, and the report says how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.backends import Backend, compile_function
from ...core.compiler.ir import Array, DType, TensorType
from ...core.learning.bundle import load
from ...core.placement.cut.cut import Cut
from ...core.placement.cut.execute import Tiers
from ...core.placement.cut.program_split import split
from ...core.placement.subgraphs.part_programs import Model
from ...core.protocol.random_streams import Streams
from .cut_scenario import CutScenario, read_plan

#: Requests that each cut is compared on.
REQUESTS = 3


def check_scenario(
    scenario: CutScenario, numbers: Sequence[int], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """`check_cuts` on these pieces of the scenario's plan. Raises DelianError."""
    plan = read_plan(scenario)
    model = Model.of(load(scenario.folder / scenario.bundle), plan.program)
    cuts = {number: Cut.from_bytes(plan.pieces[number].cut) for number in numbers}
    return check_cuts(model, cuts, scenario.seed, say)


def check_cuts(
    model: Model,
    cuts: Mapping[int, Cut],
    seed: int,
    say: Callable[[str], None],
    backend: Backend = "native",
) -> list[dict[str, Any]]:
    """The largest difference of each cut from the whole program, and the whole's largest value.

    Raises DelianError.
    """
    whole = compile_function(model.function, backend)
    types = model.function.param_types[len(model.leaves) :]
    rng = np.random.default_rng(Streams(seed).word("cut inputs"))
    requests = [
        [_drawn(t, rng) for t in types if isinstance(t, TensorType)] for _ in range(REQUESTS)
    ]
    wanted = [whole(*model.leaves, *inputs) for inputs in requests]
    found = []
    for number, cut in cuts.items():
        say(f"checking cut {number + 1}")
        parts = split(model.function, model.resident, cut)
        tiers = Tiers(parts, backend)
        worst = largest = 0.0
        for inputs, expected in zip(requests, wanted, strict=True):
            given = tiers(model.leaves, inputs)
            for a, b in zip(given, expected, strict=True):
                if not np.all(np.isfinite(a) == np.isfinite(b)):
                    raise DelianError(f"cut {number + 1} gives what the whole does not")
                worst = max(worst, float(np.max(np.abs(np.asarray(a) - np.asarray(b)))))
                largest = max(largest, float(np.max(np.abs(b))))
        found.append({"number": number, "difference": worst, "largest": largest})
    return found


def _drawn(type: TensorType, rng: np.random.Generator) -> Array:
    """A value of this type: normal numbers, small integers."""
    if type.dtype is DType.F32:
        return rng.standard_normal(type.shape).astype(np.float32)
    return rng.integers(0, 2, type.shape).astype(type.dtype.numpy)
