"""Partial training in scenarios: frozen and personal leaves, and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.bundle import load
from delian.core.learning.nn import Mlp

SMALL = {
    "rounds": 2,
    "round.cohort": 4,
    "round.reports_min": 2,
    "data.held_out_devices": 0,
    "algorithm.learning_rate": 0.05,
    "partial.alpha": 4.0,
}


def run(algorithm: str = "fedavg", model: Any = None, **keys: Any) -> Any:
    settings = {**SMALL, **{name.replace("__", "."): value for name, value in keys.items()}}
    return dl.simulate(
        "digits", devices=6, algorithm=algorithm, model=model, settings=settings, threads=1
    )


def test_a_frozen_layer_is_not_uploaded_and_stays() -> None:
    whole = run()
    found = run(partial__frozen=["layers.0.*"])
    assert list(found.weights) == ["layers.1.weight", "layers.1.bias"]
    bundle = found.result.bundle
    assert [leaf.name for leaf in bundle.manifest.frozen] == ["layers.0.weight", "layers.0.bias"]
    assert sum(v.size for v in found.weights.values()) < 0.2 * sum(
        v.size for v in whole.weights.values()
    )


def test_a_personal_layer_makes_each_device_its_own_model() -> None:
    found = run(partial__personal=["layers.1.*"], algorithm__personal_steps=0)
    assert list(found.weights) == ["layers.0.weight", "layers.0.bias"]
    models = [np.asarray(found.personal_model(d).weights) for d in (0, 1)]
    assert not np.array_equal(*models)
    summary = found.summary
    assert summary["personalised_accuracy"] > summary["global_accuracy"]


def test_adapters_train_on_a_frozen_model(tmp_path: Path) -> None:
    found = run(partial__adapters="lora", partial__targets=["all-linear"], partial__rank=2)
    assert all(name.endswith((".a", ".b")) for name in found.weights)
    found.save(tmp_path / "run")
    again = load(tmp_path / "run" / "model.bundle")
    assert all(name.name.endswith(("base", "bias")) for name in again.manifest.frozen)
    x = np.zeros((3, 8, 8), np.float32)
    np.testing.assert_array_equal(dl.load(tmp_path / "run").outputs(x), found.model.outputs(x))


def test_a_given_model_with_adapters_is_frozen_alike() -> None:
    model = dl.lora(Mlp.init(dl.random.key(0), 64, (16,), 10), 2, "all-linear")
    found = run(model=model)
    assert len(found.weights) == 4


@pytest.mark.parametrize("algorithm", ["ffalora", "fedsalora", "fedexlora", "flexlora", "fomaml"])
def test_algorithms_for_adapters(algorithm: str) -> None:
    found = run(
        algorithm, partial__adapters="lora", partial__targets=["all-linear"], partial__rank=2
    )
    assert np.isfinite(found.summary["global_accuracy"])


def test_exact_aggregation_has_residuals() -> None:
    adapters = {"partial__adapters": "lora", "partial__targets": ["all-linear"]}
    names = [*run("fedexlora", **adapters).weights]
    assert [name for name in names if name.endswith("residual")] == [
        "layers.0.weight.base.residual",
        "layers.1.weight.base.residual",
    ]


def test_fedper_uploads_its_body_alone() -> None:
    assert [*run("fedper").weights] == ["layers.0.weight", "layers.0.bias"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"partial__frozen": ["nothing.*"]}, "no leaf of the model fits the pattern"),
        ({"partial__frozen": ["*"]}, "nothing would be trained together"),
        ({"partial__adapters": "lora"}, "adapters have targets"),
        ({"partial__targets": ["query"]}, "targets are of adapters"),
        ({"partial__adapters": "lora", "partial__targets": ["query"]}, "query"),
        ({"partial__rank": 0}, "partial.rank"),
    ],
)
def test_bad_keys_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(DelianError, match=words):
        run(**keys)


def test_algorithms_for_adapters_need_adapters() -> None:
    with pytest.raises(DelianError, match="no adapters"):
        run("ffalora")
