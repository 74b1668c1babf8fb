"""Checkpointed functions and functions with a reverse rule of their own."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler.api import (
    checkpoint,
    compile,
    custom_vjp,
    grad,
    hvp,
    jvp,
    value_and_grad,
    vmap,
)
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import ListType

BACKENDS = pytest.mark.parametrize("backend", ["reference", "native"])


def until(x, n):
    """A loop of unknown trips with a branch in it."""
    i = 0
    while i < n:
        if x > 1:
            x = np.sin(x) * 0.7
        else:
            x = x * 1.3 + 0.1 * x * x
        i += 1
    return x


def counted(x, n):
    for k in range(n):
        x = np.sin(x) + 0.01 * k
    return x


@BACKENDS
@pytest.mark.parametrize("f", [until, counted])
def test_checkpointing_changes_no_derivative(f, backend):
    x = np.float64(0.3)
    for n in (0, 1, 7, 50):
        got = compile(value_and_grad(checkpoint(f)), backend=backend)(x, n)
        np.testing.assert_allclose(got, value_and_grad(f)(x, n), rtol=1e-12)
    by_sevens = compile(grad(checkpoint(f, every=7)), backend=backend)
    for n in (0, 7, 50):
        np.testing.assert_allclose(by_sevens(x, n), grad(f)(x, n), rtol=1e-12)
    second = compile(grad(grad(checkpoint(f))), backend=backend)(x, 20)
    np.testing.assert_allclose(second, grad(grad(f))(x, 20), rtol=1e-9)


def test_checkpointing_goes_with_lanes(compiled):
    x, n = np.array([0.3, 0.4]), np.array([10, 3])
    got = compiled(lambda x, n: vmap(grad(checkpoint(until)))(x, n), x, n)
    want = [grad(until)(np.float64(a), int(k)) for a, k in zip(x, n, strict=True)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("f", [until, counted])
def test_a_checkpointed_loop_saves_the_root_of_its_trips(f, monkeypatch):
    """100,000 trips in one chunk of list memory, where saving every carry takes more."""
    x, n = np.float64(0.3), 100_000
    plain, saving = compile(grad(f)), compile(grad(checkpoint(f)))
    want = plain(x, n)
    monkeypatch.setenv("DELIAN_LIST_BYTES_MAX", str(1_200_000))
    np.testing.assert_allclose(saving(x, n), want, rtol=1e-9, atol=1e-300)
    with pytest.raises(DelianError, match="outgrew"):
        plain(x, n)


def test_what_is_checkpointed_is_computed_again_and_not_kept():
    def f(x):
        return np.sum(checkpoint(lambda y: np.exp(np.sin(y)))(x))

    function = trace(grad(f), np.ones(3)).function
    counts = [op.name for op in function.body.walk()]
    assert counts.count("exp") == 1 and "exp" not in [op.name for op in function.body.ops]
    assert not any(isinstance(r.type, ListType) for op in function.body.walk() for r in op.results)


# Functions with rules of their own


def _clip_forward(x, limit):
    return x, limit


def _clip_reverse(limit, g):
    return np.clip(g, -limit, limit), None


clipped = custom_vjp(lambda x, limit: x, _clip_forward, _clip_reverse)
X = np.array([0.1, 3.0, -2.0])


@BACKENDS
def test_a_rule_replaces_the_derivative(backend):
    got = compile(grad(lambda x: np.sum(clipped(x, 0.5) ** 2)), backend=backend)(X)
    np.testing.assert_allclose(got, [0.2, 0.5, -0.5])
    np.testing.assert_allclose(clipped(X, 0.5), X)
    plain = compile(lambda x: clipped(x, 0.5) * 2, backend=backend)
    np.testing.assert_allclose(plain(X), X * 2)


def test_a_rule_works_in_loops_branches_and_lanes(compiled):
    def f(x):
        total = 0.0 * x
        for _ in range(3):
            if x > 0:
                total = total + clipped(x, 0.5) ** 2
        return total

    lanes, summed = compiled(lambda x: (vmap(grad(f))(x), grad(lambda y: np.sum(vmap(f)(y)))(x)), X)
    np.testing.assert_allclose(lanes, [0.6, 1.5, 0.0])
    np.testing.assert_allclose(summed, lanes)


def test_lanes_that_share_an_argument_add_up_its_cotangents(compiled):
    scaled = custom_vjp(lambda x, w: x * w, lambda x, w: (x * w, x), lambda x, g: (None, g * x))

    def f(w):
        return np.sum(vmap(scaled, in_axes=(0, None))(X, w))

    np.testing.assert_allclose(compiled(grad(f), np.float64(2.0)), X.sum())


def test_trees_and_second_order(compiled):
    rule = custom_vjp(
        lambda p: p["a"] ** 3 * p["n"],
        lambda p: (p["a"] ** 3 * p["n"], p),
        lambda p, g: ({"a": 3 * p["a"] ** 2 * p["n"] * g, "n": None},),
    )

    def f(a):
        return rule({"a": a, "n": 2})

    first, second, product = compiled(
        lambda a: (grad(f)(a), grad(grad(f))(a), hvp(f, (a,), (1.0,))[0]), np.float64(2.0)
    )
    assert (first, second, product) == (24.0, 24.0, 24.0)


def test_checkpoints_are_at_least_a_trip_apart():
    with pytest.raises(ProgramError, match="every must be 1 or more"):
        checkpoint(counted, every=0)(np.float64(1.0), 3)


def test_errors_say_what_a_rule_lacks():
    def run(f):
        return compile(f, backend="reference")(X)

    with pytest.raises(DelianError, match="no forward derivative"):
        run(lambda x: jvp(lambda y: clipped(y, 0.5), (x,), (x,)))
    with pytest.raises(ProgramError, match="is no argument of it"):
        run(lambda x: custom_vjp(lambda y: y * x, lambda y: (y, 0), lambda r, g: (g,))(x))
    with pytest.raises(ProgramError, match="must give"):
        run(lambda x: custom_vjp(lambda y: y, lambda y: y, lambda r, g: (g,))(x))
    with pytest.raises(ProgramError, match="tuple of 1 cotangents"):
        run(lambda x: custom_vjp(lambda y: y, lambda y: (y, 0), lambda r, g: g)(x))
    with pytest.raises(ProgramError, match="cotangent of argument 0 must be"):
        rule = custom_vjp(lambda y: y, lambda y: (y, 0), lambda r, g: (g[0] * g[:2],))
        run(lambda x: grad(lambda y: np.sum(rule(y)))(x))
