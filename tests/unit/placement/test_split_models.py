"""Models cut anywhere give what they give whole: the same bits in the profile reproducible, and in
`fast` what rounding allows.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends import compile_function
from delian.core.compiler.verify import verify
from delian.core.placement.cut.batched_parts import LANES_MAX, lanes
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.execute import run
from delian.core.placement.cut.program_split import check, split

MODELS = ("lenet", "resnet20", "mobilenet", "lstm", "transformer")
#: Without blocks that repeat others.
SHALLOW = ("lenet", "resnet8", "short mobilenet", "lstm", "transformer")
#: Relative to the largest result: each back end's own products and functions, through some hundred
#: operations.
FAST = 1e-4


class Whole:
    """A model's program, what it gives, and how its parts compare."""

    def __init__(self, models: ModuleType, name: str, backend: str, profile: Any) -> None:
        self.function, self.weights = models.infer(name)
        self.resident = range(len(self.weights))
        self.x = models.batch(name)[0]
        self.backend, self.profile = backend, profile
        run_whole = compile_function(self.function, backend, profile)
        (self.result,) = run_whole(*self.weights, self.x)

    def agrees(self, cut: Cut) -> None:
        parts = split(self.function, self.resident, cut)
        for part in parts.parts:
            verify(part.program)
        (found,) = run(parts, self.weights, [self.x], self.backend, self.profile)
        if self.profile == "reproducible":
            assert found.tobytes() == self.result.tobytes(), cut.labels
        else:
            assert np.abs(found - self.result).max() <= FAST * np.abs(self.result).max()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_cut_anywhere_gives_the_same_bits(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    count = placed_models.moving(whole.function, whole.resident)
    for at in np.linspace(0, count, 6).astype(int):
        whole.agrees(placed_models.chain_cut(whole.function, whole.resident, at))
    thirds = count // 3, 2 * count // 3
    whole.agrees(placed_models.chain_cut(whole.function, whole.resident, *thirds))


@pytest.mark.parametrize("name", ["lenet", "lstm"])
def test_native_parts_give_the_bits_of_the_native_whole(
    placed_models: ModuleType, name: str
) -> None:
    whole = Whole(placed_models, name, "native", "reproducible")
    count = placed_models.moving(whole.function, whole.resident)
    thirds = count // 3, 2 * count // 3
    whole.agrees(placed_models.chain_cut(whole.function, whole.resident, *thirds))


@pytest.mark.parametrize("name", MODELS)
def test_every_cut_that_a_sweep_over_bandwidth_finds_gives_the_same_bits(
    placed_models: ModuleType, name: str
) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    cuts = placed_models.swept_cuts(name)
    assert len({cut.tiers for cut in cuts}) > 1  # bandwidth makes a difference
    for cut in cuts:
        whole.agrees(cut)


def test_a_narrow_wire_costs_what_it_says(placed_models: ModuleType) -> None:
    function, weights = placed_models.infer("lenet")
    x = placed_models.batch("lenet")[0]
    plain = placed_models.chain_cut(function, range(len(weights)), 8)
    (value,) = [p.value for p in split(function, range(len(weights)), plain).crossing(0, up=True)]
    (exact,) = compile_function(function, "reference")(*weights, x)
    errors = {}
    for wire in ("f32", "f16", "i8"):
        parts = split(function, range(len(weights)), Cut(plain.labels, {value: wire}))
        errors[wire] = np.abs(run(parts, weights, [x])[0] - exact).max()
    assert errors["f32"] == 0 < errors["f16"] < 1e-3 and errors["f16"] < errors["i8"] < 0.02


@pytest.mark.parametrize("name", ["lenet", "transformer"])
def test_lanes_are_one_product_and_give_each_request_its_own_result(
    placed_models: ModuleType, name: str
) -> None:
    function, weights = placed_models.infer(name)
    resident = range(len(weights))
    cut = placed_models.chain_cut(function, resident, 5)
    _, edge = split(function, resident, cut).parts
    many = lanes(edge, 3)
    verify(many.program)
    assert many.lanes == 3 and many.inputs == edge.inputs

    def heavy(part):
        return [
            op.name for op in part.program.body.walk() if op.name in ("dot", "conv", "for", "while")
        ]

    assert heavy(many) == heavy(edge)  # no product more, and no loop over requests
    rng = np.random.default_rng(0)
    held = [weights[i] for i in edge.resident]
    asked = [
        [rng.normal(size=p.type.shape).astype(np.float32) for p in edge.inputs] for _ in range(3)
    ]
    one = compile_function(edge.program, "reference", "reproducible")
    all_at_once = compile_function(many.program, "reference", "reproducible")(
        *held, *(np.stack(column) for column in zip(*asked, strict=True))
    )
    for k, inputs in enumerate(asked):
        for alone, row in zip(one(*held, *inputs), all_at_once, strict=True):
            assert row[k].tobytes() == alone.tobytes()


def test_there_are_some_lanes_and_not_too_many(placed_models: ModuleType) -> None:
    function, weights = placed_models.infer("lenet")
    cut = placed_models.chain_cut(function, range(len(weights)), 0)
    (part,) = split(function, range(len(weights)), cut).parts
    for count in (0, LANES_MAX + 1):
        with pytest.raises(Exception, match="lanes of a part"):
            lanes(part, count)
    with pytest.raises(Exception, match="made once"):
        lanes(lanes(part, 2), 2)


# All of it


@pytest.mark.slow
@pytest.mark.parametrize("name", SHALLOW)
def test_every_cut_of_the_chain(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    count = placed_models.moving(whole.function, whole.resident)
    for at in range(count + 1):
        whole.agrees(placed_models.chain_cut(whole.function, whole.resident, at))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHALLOW)
@pytest.mark.parametrize("profile", ["reproducible", "fast"])
def test_native_cuts_of_the_chain(placed_models: ModuleType, name: str, profile: str) -> None:
    whole = Whole(placed_models, name, "native", profile)
    count = placed_models.moving(whole.function, whole.resident)
    cuts = 8 if profile == "reproducible" else 3  # optimised C takes long to compile
    for at in np.unique(np.linspace(0, count, cuts).astype(int)):
        whole.agrees(placed_models.chain_cut(whole.function, whole.resident, at))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_native_cuts_of_the_sweep(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "native", "reproducible")
    for cut in placed_models.swept_cuts(name):
        whole.agrees(cut)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_three_tiers_at_random_chain_cuts(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    count = placed_models.moving(whole.function, whole.resident)
    rng = np.random.default_rng(5)
    for _ in range(20):
        at = sorted(rng.integers(0, count + 1, 2))
        cut = placed_models.chain_cut(whole.function, whole.resident, *at)
        check(whole.function, whole.resident, cut)
        whole.agrees(cut)
