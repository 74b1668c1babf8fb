"""What a loop took long to compute is kept for its reverse, where the number of trips is known."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.ir import Function

RNG = np.random.default_rng(3)
WIDTH = 80


def steps(w: Any, x: Any) -> Any:
    for _ in range(6):
        x = np.tanh(x @ w)
    return np.sum(x * x)


def unknown_steps(w: Any, x: Any) -> Any:
    k = 0
    while k < 6 and np.sum(x) < 1e9:
        x = np.tanh(x @ w)
        k += 1
    return np.sum(x * x)


def products(function: Function) -> int:
    return sum(op.name == "dot" for op in function.body.walk())


def arguments() -> tuple[Any, Any]:
    w = RNG.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
    return w.astype(np.float32), RNG.normal(size=(3, WIDTH)).astype(np.float32)


def test_a_product_in_a_loop_of_known_trips_is_not_computed_again() -> None:
    args = arguments()
    # Forward, by the input, by the weights; and again forward in the reverse of the second.
    assert products(dl.compile(dl.grad(steps)).trace(*args).function) == 3
    assert products(dl.compile(dl.grad(unknown_steps)).trace(*args).function) == 4


@pytest.mark.parametrize("order", [1, 2])
def test_saved_and_computed_again_give_the_same_derivatives(order: int) -> None:
    w, x = (a.astype(np.float64) for a in arguments())
    ours, theirs = steps, unknown_steps
    for _ in range(order - 1):
        ours = lambda w, x, f=ours: np.sum(dl.grad(f)(w, x) ** 2)  # noqa: E731
        theirs = lambda w, x, f=theirs: np.sum(dl.grad(f)(w, x) ** 2)  # noqa: E731
    np.testing.assert_allclose(dl.grad(ours)(w, x), dl.grad(theirs)(w, x), rtol=1e-9, atol=1e-12)


def test_checkpointing_still_keeps_no_products() -> None:
    def many(w: Any, x: Any) -> Any:
        for _ in range(40):
            x = np.tanh(x @ w)
        return np.sum(x * x)

    args = arguments()
    # Forward, forward again within a segment, once more in the reverse of its steps, and two.
    traced = dl.compile(dl.grad(dl.checkpoint(many))).trace(*args)
    assert products(traced.function) == 5
    assert products(dl.compile(dl.grad(many)).trace(*args).function) == 3
