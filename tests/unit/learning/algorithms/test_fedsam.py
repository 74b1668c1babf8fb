"""FedSAM: a step by hand, no perturbation as FedAvg, and a run of the bundled digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends import compile_function
from delian.core.learning import Batch, Classification, FedAvg, FedSam, Samples, SampleSet
from delian.core.learning.nn import sgd
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

START = (np.array([3.0], np.float32), np.array([1.0], np.float32))


@dataclass(frozen=True)
class Bowl(Classification):
    """1/2 sum of x (w - y)^2, the mean over rows: curvatures x and a minimum at y, both f32[2]."""

    def loss(self, model: Any, batch: Batch) -> Any:
        w = np.concatenate(model)
        rows = 0.5 * np.sum(batch.x * (w - batch.y) ** 2, axis=1)
        return np.sum(rows * batch.weight) / np.maximum(np.sum(batch.weight), 1.0)


TASK = Bowl("bowl", lambda key: START, Samples(4, 1.0))


def device(rows: int, curvature: tuple[float, float], minimum: tuple[float, float]) -> SampleSet:
    x, y = (np.tile(np.array(each, np.float32), (4, 1)) for each in (curvature, minimum))
    return SampleSet(x, y, np.array(rows), np.array(0))


def update(algorithm: Any, data: SampleSet) -> Any:
    arguments = (START, data, dl.random.key(0))
    traced = dl.trace(lambda s, d, k: algorithm.client_update(TASK, s, d, k), *arguments)
    program = compile_function(traced.function, "reference")
    results = program(*(np.asarray(leaf) for leaf in dl.tree.leaves(arguments)))
    return dl.tree.unflatten(traced.out_structure, [np.asarray(each) for each in results])


def test_a_step_descends_on_the_gradient_at_the_worst_model_nearby() -> None:
    """g = (1 * 3, 4 * 1) has length 5 over both leaves, so w~ = (3, 1) + 0.5 g / 5 = (3.3, 1.4).
    There the gradient is (3.3, 5.6), and the step -0.1 times that. The loss is (9 + 4) / 2.
    """
    found = update(FedSam(local=sgd(0.1), rho=0.5), device(3, (1.0, 4.0), (0.0, 0.0)))
    np.testing.assert_allclose(np.concatenate(found.update), [-0.33, -0.56], rtol=1e-6)
    assert float(found.loss) == pytest.approx(6.5)
    assert float(found.weight) == 3.0


def test_a_second_step_perturbs_the_model_that_the_first_one_gave() -> None:
    """From (2.67, 0.44): g = (2.67, 1.76), |g| = 3.19789, w~ = (3.08746, 0.71518)."""
    algorithm = FedSam(local=sgd(0.1), rho=0.5, epochs=2)
    found = update(algorithm, device(3, (1.0, 4.0), (0.0, 0.0)))
    wanted = [-0.33 - 0.308746, -0.56 - 0.286072]
    np.testing.assert_allclose(np.concatenate(found.update), wanted, rtol=1e-5)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    found = update(FedSam(local=sgd(0.1), rho=0.5), device(1, (1.0, 1.0), (3.0, 1.0)))
    np.testing.assert_array_equal(np.concatenate(found.update), [0.0, 0.0])


def test_without_a_neighbourhood_it_is_federated_averaging() -> None:
    data = device(4, (1.0, 4.0), (0.5, -2.0))
    sam, plain = (update(kind, data) for kind in (FedSam(rho=0.0, epochs=3), FedAvg(epochs=3)))
    np.testing.assert_array_equal(np.concatenate(sam.update), np.concatenate(plain.update))


def test_the_digits_are_learnt() -> None:
    settings = [
        *("algorithm.name=fedsam", "algorithm.rho=0.1", "algorithm.epochs=2", "rounds=4"),
        *("fleet.devices=12", "round.cohort=6", "data.held_out_devices=2", "model.hidden=[16]"),
        *("data.partition=iid", "evaluation.every=4"),
    ]
    scenario = scenario_file.override(scenario_file.load("digits"), settings)
    assert scenario.algorithm.rho == 0.1
    result = simulate(scenario)
    last = [device.accuracy_before for device in result.devices]
    assert np.mean(last) > 0.7, "a tenth of the digits would be right by chance"
