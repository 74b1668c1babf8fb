"""The gradient of a gather stays rows and indices on its way to the weights."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import api
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import TensorType

ROWS, WIDTH = 50_000, 8
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
TOKENS = RNG.integers(0, ROWS, (4, 16))
TOKENS[1] = TOKENS[0]  # some rows meet more than once


def loss(table, tokens):
    return np.mean(np.tanh(table[tokens]) ** 2)


def sgd(table, tokens, rate):
    return table - rate * api.grad(loss)(table, tokens)


def momentum(table, velocity, tokens):
    g = api.grad(loss)(table, tokens)
    velocity = np.float32(0.9) * velocity - np.float32(0.05) * g
    return table + velocity, velocity


def dense(function):
    """The operations that compute something of the whole table's size, moves within loops aside."""
    whole = TensorType.of(TABLE)
    return [op.name for op in function.body.walk() if any(r.type == whole for r in op.results)]


def test_a_step_of_sgd_only_touches_its_rows():
    assert dense(trace(sgd, TABLE, TOKENS, np.float32(0.1)).function) == ["put_add"]
    fixed = trace(lambda t, i: sgd(t, i, 0.1 / 2), TABLE, TOKENS).function
    assert dense(fixed) == ["put_add"]


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_step_is_the_dense_one(backend):
    got = api.compile(sgd, backend=backend)(TABLE, TOKENS, np.float32(0.5))
    rows = TABLE[TOKENS].astype(np.float64)
    slope = 2 * np.tanh(rows) * (1 - np.tanh(rows) ** 2) / rows.size
    want = TABLE.astype(np.float64)
    np.add.at(want, TOKENS, -0.5 * slope)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_local_training_writes_the_table_in_place():
    """Many steps in one program: no buffer of the table's size beside the table's own."""

    def train(table, batches, rate):
        for k in range(len(batches)):
            table = sgd(table, batches[k], rate)
        return table

    batches = RNG.integers(0, ROWS, (20, 4, 16))
    run = api.compile(train, donate=[0])
    got = run(TABLE.copy(), batches, np.float32(0.5))
    program = next(iter(run._entries.values())).run
    assert program.report.arena_bytes < TABLE.nbytes / 10
    want = TABLE
    for tokens in batches:
        want = api.compile(sgd)(want, tokens, np.float32(0.5))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_momentum_adds_its_rows_into_the_velocity():
    function = trace(momentum, TABLE, TABLE, TOKENS).function
    assert sorted(dense(function)) == ["add", "broadcast", "mul", "put_add"]


def test_a_gradient_that_is_used_twice_stays_whole():
    """Its square needs the sums of rows that meet."""

    def step(table, tokens):
        g = api.grad(loss)(table, tokens)
        return table - g * g

    got = api.compile(step, backend="reference")(TABLE, TOKENS)
    g = api.grad(loss)(TABLE, TOKENS)
    np.testing.assert_allclose(got, TABLE - g * g, rtol=1e-6)


def test_an_infinite_constant_scale_is_left_as_it_is():
    def scaled(table, tokens):
        return np.float32(np.inf) * api.grad(loss)(table, tokens)

    got = api.compile(scaled, backend="reference")(TABLE, TOKENS)
    untouched = np.setdiff1d(np.arange(ROWS), TOKENS)[0]
    assert np.isnan(got[untouched]).all()
