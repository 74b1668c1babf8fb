"""Federated algorithms for adapters, and FedBN."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import (
    Algorithm,
    Classification,
    FedBn,
    FedExLora,
    FedSaLora,
    FfaLora,
    FlexLora,
    Samples,
    SampleSet,
)
from delian.core.learning.nn import Mlp, NormalisedMlp, sgd
from support.exact_rounds import Federated

RANK, ALPHA = 2, 4.0
ROWS = (10, 4)


def model() -> Any:
    base = Mlp.init(dl.random.key(0), 4, (5,), 3)
    return dl.lora(base, RANK, "all-linear", ALPHA)


def task() -> Classification:
    made = model()
    return Classification("adapters", lambda key: made, Samples(4, 1.0))


def devices() -> list[SampleSet]:
    made = []
    for number, rows in enumerate(ROWS):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(12, 4)).astype(np.float32)
        y = ((x[:, 0] > 0) + number).astype(np.int32)
        made.append(SampleSet(x, y, np.array(rows, np.int64), np.array(2, np.int64)))
    return made


def rounds(algorithm: Algorithm, count: int = 2) -> tuple[Federated, list[Any]]:
    federated = Federated(algorithm, task(), devices())
    return federated, [federated.round(number) for number in range(count)]


def factors(trained: Any) -> list[tuple[Any, Any]]:
    """A and B of both layers."""
    by_name = dict(zip(trained.names, trained.values, strict=True))
    return [(by_name[f"layers.{k}.weight.a"], by_name[f"layers.{k}.weight.b"]) for k in range(2)]


def shares() -> Any:
    return np.array(ROWS) / sum(ROWS)


def test_ffa_lora_trains_and_uploads_b_alone() -> None:
    federated, results = rounds(FfaLora(local=sgd(0.5)))
    assert federated.state.names == ("layers.0.weight.b", "layers.1.weight.b")
    before = federated.division.arrays
    assert all(np.any(value) for value in federated.state.values)
    # A is where it was drawn, and the mean of A B_i is A times the mean of B_i.
    named = dict(zip((leaf.name for leaf in federated.division.frozen), before, strict=True))
    np.testing.assert_array_equal(
        named["layers.0.weight.a"], dl.tree.leaves(model().layers[0].weight)[1]
    )
    assert len(results[0][0].update.values) == 2


def test_fedsa_lora_keeps_b_on_the_device() -> None:
    federated, results = rounds(FedSaLora(local=sgd(0.5)))
    assert len(federated.state) == 2
    for result in results[-1]:
        assert [np.shape(each) for each in result.update] == [(4, RANK), (5, RANK)]
    (first, _), (second, _) = federated.kept
    assert all(np.any(b) for b in first)
    assert not np.array_equal(first[0], second[0])


def test_fedex_lora_is_the_mean_of_the_products() -> None:
    """W + s (R + A B) after a round is the mean over devices of W + s (R + A_i B_i)."""
    federated = Federated(FedExLora(local=sgd(0.5)), task(), devices())
    for number in range(3):
        before = federated.state
        results = federated.round(number)
        residuals = [v for n, v in named(before) if n.endswith("residual")]
        after = [v for n, v in named(federated.state) if n.endswith("residual")]
        for layer in range(2):
            wanted = 0.0
            for share, result in zip(shares(), results, strict=True):
                a, b = factors(before)[layer]
                da, db = factors(result.update)[layer]
                wanted = wanted + share * ((a + da).astype(np.float64) @ (b + db))
            a, b = factors(federated.state)[layer]
            np.testing.assert_allclose(
                after[layer] + a @ b, residuals[layer] + wanted, rtol=1e-5, atol=1e-6
            )
    # The products of means differ from the means of products: else this would show nothing.
    assert max(np.abs(value).max() for value in after) > 1e-4


def named(trained: Any) -> Any:
    return zip(trained.names, trained.values, strict=True)


def test_fedex_lora_does_not_descend_on_residuals() -> None:
    federated = Federated(FedExLora(local=sgd(0.5)), task(), devices())
    federated.round(0)
    own = federated.personal(0)
    for name, value in named(own):
        if name.endswith("residual"):
            np.testing.assert_array_equal(value, dict(named(federated.state))[name])


def test_flex_lora_takes_the_best_rank_of_the_mean_product() -> None:
    federated = Federated(FlexLora(local=sgd(0.5), rows_full=10), task(), devices())
    before = factors(federated.state.model)
    results = federated.round(0)
    for layer in range(2):
        a, b = before[layer]
        mean = a @ b + sum(
            share * result.update.products[layer].astype(np.float64)
            for share, result in zip(shares(), results, strict=True)
        )
        u, s, v = np.linalg.svd(mean, full_matrices=False)
        best = (u[:, :RANK] * s[:RANK]) @ v[:RANK]
        a, b = factors(federated.state.model)[layer]
        np.testing.assert_allclose(a @ b, best, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a.T @ a, b @ b.T, rtol=1e-3, atol=1e-5)


def test_flex_lora_trains_a_device_with_few_rows_in_a_part_of_the_rank() -> None:
    federated = Federated(FlexLora(local=sgd(0.5), rows_full=10), task(), devices())
    results = federated.round(0)
    many, few = (np.linalg.matrix_rank(r.update.products[0], tol=1e-6) for r in results)
    assert (many, few) == (2, 1)


@pytest.mark.parametrize("kind", [FfaLora, FedSaLora, FedExLora, FlexLora])
def test_they_need_adapters(kind: Any) -> None:
    plain = Classification("plain", lambda key: Mlp.init(key, 4, (5,), 3), Samples(4, 1.0))
    with pytest.raises(DelianError, match="no adapters"):
        Federated(kind(), plain, devices())


def test_fedbn_keeps_normalisation_on_the_device() -> None:
    first = Classification(
        "norms", lambda key: NormalisedMlp.init(key, 4, (5,), 3), Samples(4, 1.0)
    )
    federated = Federated(FedBn(local=sgd(0.5)), first, devices())
    results = federated.round(0)
    whole = len(dl.tree.leaves(NormalisedMlp.init(dl.random.key(0), 4, (5,), 3)))
    assert len(federated.state) == whole - 2 and len(results[0].update) == whole - 2
    (scale, shift), _ = federated.kept[0]
    assert scale.shape == shift.shape == (5,) and np.any(shift)
