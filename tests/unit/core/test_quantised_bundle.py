"""A bundle whose `infer` is in bytes: it is written, read, run, and refuses what it cannot do."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core import learning
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import parse
from delian.core.learning.runtime import Runtime

ROWS = np.random.default_rng(2).uniform(0, 16, (40, 64)).astype(np.float32)


@functools.cache
def bundle() -> Any:
    data = SampleSet(ROWS, np.zeros(40, np.int64), np.array(40, np.int64), np.array(0, np.int64))
    return build(
        Classification("t", lambda key: nn.Mlp.init(key, 64, (64, 32), 10), Samples(8, 1 / 16)),
        learning.FedAvg(),
        data,
        example=TensorType(DType.F32, (8, 64)),
        clip=10.0,
        clients_max=8,
        weight_max=40.0,
        seed=0,
    )


def test_a_quantised_bundle_goes_through_bytes_and_infers() -> None:
    made = bundle()
    small = dl.quantise(made, ROWS, backend="reference")
    again = parse(small.to_bytes())
    assert list(again.programs) == ["infer"] and not again.weights.size
    assert again.content_hash() == small.content_hash()
    wanted = Runtime(made, "reference").infer(made.weights, ROWS[:8])
    found = Runtime(again, "reference").infer(np.empty(0, np.float32), ROWS[:8])
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    assert np.mean(found.argmax(1) == wanted.argmax(1)) >= 0.75


def test_of_a_task_with_metrics_of_its_own_infer_is_left_and_none_of_them() -> None:
    judged = replace(bundle().manifest, metrics=("f1",))  # which its evaluate would give
    small = dl.quantise(replace(bundle(), manifest=judged), ROWS, backend="reference")
    assert parse(small.to_bytes()).manifest.metrics == ()


def test_weights_may_come_from_outside() -> None:
    made = bundle()
    weights = made.weights * np.float32(0.5)
    small = dl.quantise(made.bare(), ROWS, weights=weights, keep_last=False, backend="reference")
    found = Runtime(small, "reference").infer(np.empty(0, np.float32), ROWS[:8])
    wanted = Runtime(made, "reference").infer(weights, ROWS[:8])
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
    with pytest.raises(DelianError, match="no weights in it"):
        dl.quantise(made.bare(), ROWS)
    with pytest.raises(DelianError, match="the model is f32"):
        dl.quantise(made, ROWS, weights=made.weights[:-1])


def test_what_does_not_fit_is_refused() -> None:
    made = bundle()
    with pytest.raises(DelianError, match="infer takes rows"):
        dl.quantise(made, ROWS[:, :60])
    with pytest.raises(DelianError, match="infer takes rows"):
        dl.quantise(made, ROWS[:0])
    broken = ROWS.copy()
    broken[3, 5] = np.nan
    with pytest.raises(DelianError, match="row 3 of the calibration data"):
        dl.quantise(made, broken)
    with pytest.raises(DelianError, match="no method"):
        dl.quantise(made, ROWS, method="best")  # type: ignore[arg-type]
    with pytest.raises(DelianError, match="percentile"):
        dl.quantise(made, ROWS, percentile=1)
    with pytest.raises(DelianError, match="already"):
        dl.quantise(dl.quantise(made, ROWS, backend="reference"), ROWS)
