"""What each primitive gives, against the same worked out another way in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, TensorType

#: Two roundings of f64 in the oracle's longer way round, and one of f32.
TOLERANCE = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-6}


def test_reference_gives_what_the_oracle_gives(primitive_case: Any) -> None:
    results = run_block(primitive_case.block(), primitive_case.args)
    types = [r.tensor for r in primitive_case.block().results]
    for result, expected, type_ in zip(results, primitive_case.expected(), types, strict=True):
        assert isinstance(result, np.ndarray)
        assert result.dtype == type_.dtype.numpy and result.shape == type_.shape
        tolerance = TOLERANCE.get(result.dtype, 0)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize(
    "name", ["exp", "log", "log1p", "expm1", "tanh", "sin", "cos", "sqrt", "rsqrt"]
)
def test_functions_of_f32_are_rounded_once(name: str) -> None:
    functions = {"rsqrt": lambda x: 1 / np.sqrt(x)}
    x = np.random.default_rng(7).uniform(0.1, 5, 10_000).astype(np.float32)
    b = Builder([TensorType.of(x)])
    (result,) = run_block(b.finish([b(name, b.params[0])]), [x])
    exact = functions.get(name) or getattr(np, name)
    assert np.array_equal(result, exact(x.astype(np.float64)).astype(np.float32))


def test_inputs_are_left_alone(primitive_case: Any) -> None:
    args = [a.copy() for a in primitive_case.args]
    run_block(primitive_case.block(), args)
    for after, before in zip(args, primitive_case.args, strict=True):
        assert after.tobytes() == before.tobytes()
