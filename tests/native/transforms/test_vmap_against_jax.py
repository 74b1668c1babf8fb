"""vmap, its derivatives and random bits against JAX, where JAX is installed."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import api, random

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 4))


def network(m, w, x):
    return m.sum(m.tanh(x @ w) ** 2) + m.max(x) * m.prod(x)


def indexing(m, w, x):
    order = m.argsort(x)
    return m.cumsum(x[order]) * w[order, 0] + m.take(x, m.argmax(w, axis=0)[:3])


CASES = [(network, (None, 0)), (indexing, (None, 0)), (network, (1, None)), (indexing, (2, 0))]


@pytest.mark.parametrize(("f", "axes"), CASES)
def test_vmap_and_its_derivatives_equal_jax(f, axes):
    wide = {
        None: W,
        1: np.stack([W + k for k in range(5)], 1),
        2: np.stack([W * k for k in range(5)], 2),
    }
    w, x = wide[axes[0]], X if axes[1] == 0 else X[0]

    def ours(w, x):
        return api.vmap(lambda w, x: f(np, w, x), axes)(w, x)

    def theirs(w, x):
        return jax.vmap(lambda w, x: f(jnp, jnp.asarray(w), jnp.asarray(x)), axes)(w, x)

    np.testing.assert_allclose(api.compile(ours)(w, x), theirs(w, x), rtol=1e-10)
    for k in (0, 1):
        got = api.compile(api.grad(lambda w, x: np.sum(ours(w, x)), k))(w, x)
        want = jax.grad(lambda w, x: jnp.sum(theirs(w, x)), k)(w, x)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    inner = api.compile(lambda w, x: api.vmap(api.jacrev(lambda w, x: f(np, w, x), 1), axes)(w, x))
    np.testing.assert_allclose(
        inner(w, x),
        jax.vmap(jax.jacrev(lambda w, x: f(jnp, jnp.asarray(w), x), 1), axes)(w, x),
        rtol=1e-9,
    )


def test_a_masked_loop_equals_jax():
    def ours(a):
        x = a
        while abs(x * x - a) > 1e-10:
            x = 0.5 * (x + a / x)
        return x

    def theirs(a):
        return jax.lax.while_loop(
            lambda x: jnp.abs(x * x - a) > 1e-10, lambda x: 0.5 * (x + a / x), a
        )

    a = np.array([2.0, 9.0, 1e4, 0.5])
    np.testing.assert_array_equal(api.vmap(ours)(a), jax.vmap(theirs)(a))
    got = api.vmap(lambda x: api.jvp(ours, (x,), (1.0,))[1])(a)
    want = jax.vmap(lambda x: jax.jvp(theirs, (x,), (1.0,))[1])(a)
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_hessians_equal_jax():
    got = api.hessian(lambda x: network(np, W, x))(X[0])
    want = jax.hessian(lambda x: network(jnp, W, x))(X[0])
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_random_bits_of_mapped_keys_equal_jax():
    keys = random.split(random.key(11), 6)
    np.testing.assert_array_equal(keys, jax.random.split(jax.random.PRNGKey(11), 6))
    ours = api.vmap(lambda k: random.bits(random.fold_in(k, 3), (2, 3)))(keys)
    theirs = jax.vmap(lambda k: jax.random.bits(jax.random.fold_in(k, 3), (2, 3), jnp.uint32))(
        jnp.asarray(keys)
    )
    np.testing.assert_array_equal(ours, theirs)
