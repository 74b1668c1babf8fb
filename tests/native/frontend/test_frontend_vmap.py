"""`vmap`, Jacobians and their compositions, inside programs and outside of them."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler import debugging, random
from delian.core.compiler.api import (
    compile,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vmap,
)

X = np.array([0.3, -0.7, 1.1])
MANY = np.array([[0.3, -0.7, 1.1], [1.0, 2.0, -0.5], [0.0, 0.1, 0.2], [-1.0, 0.4, 0.9]])


def energy(x):
    return np.sum(np.sin(x) * x)


def newton(a):
    x = a
    while abs(x * x - a) > 1e-12:
        x = 0.5 * (x + a / x)
    return x


def test_vmap_equals_a_loop_inside_and_outside(compiled):
    want = np.stack([energy(x) for x in MANY])
    np.testing.assert_allclose(vmap(energy)(MANY), want)
    np.testing.assert_allclose(compiled(lambda m: vmap(energy)(m), MANY), want)


def test_axes_are_trees_of_axes(compiled):
    def f(p, y, z):
        return {"sum": p["w"] @ y + p["b"], "shared": z * 2.0}

    w = np.arange(6.0).reshape(3, 2)
    params = {"w": w, "b": np.array(5.0)}
    y = np.arange(12.0).reshape(3, 2, 2)

    def program(p, y, z):
        axes = ({"w": 1, "b": None}, 2, None)
        return vmap(f, in_axes=axes, out_axes={"sum": 0, "shared": None})(p, y, z)

    got = compiled(program, params, y, X)
    for lane in range(2):
        np.testing.assert_allclose(got["sum"][lane], w[:, lane] @ y[:, :, lane] + 5.0)
    np.testing.assert_allclose(got["shared"], X * 2)


def test_results_go_where_out_axes_says(compiled):
    got = compiled(lambda m: vmap(lambda x: (x * 2, x[0], 1.0), out_axes=(1, 0, -1))(m), MANY)
    np.testing.assert_allclose(got[0], MANY.T * 2)
    np.testing.assert_allclose(got[1], MANY[:, 0])
    np.testing.assert_allclose(got[2], np.ones(4))


def test_a_loop_of_unknown_trips_over_lanes_and_its_derivatives(compiled):
    a = np.array([2.0, 9.0, 1e4, 0.5])

    def program(a):
        slope = vmap(grad(newton))(a)
        curve = vmap(grad(grad(newton)))(a)
        total = grad(lambda b: np.sum(vmap(newton)(b)))(a)
        return vmap(newton)(a), slope, curve, total

    value, slope, curve, total = compiled(program, a)
    np.testing.assert_allclose(value, np.sqrt(a), rtol=1e-12)
    np.testing.assert_allclose(slope, 0.5 / np.sqrt(a), rtol=1e-9)
    np.testing.assert_allclose(total, 0.5 / np.sqrt(a), rtol=1e-9)
    np.testing.assert_allclose(curve, -0.25 * a**-1.5, rtol=1e-6)


def test_branches_in_loops_over_lanes(compiled):
    def collatz(n):
        steps = 0
        while n > 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    starts = np.array([1, 6, 27, 7, 2])
    want = [collatz(int(n)) for n in starts]
    assert compiled(lambda n: vmap(collatz)(n), starts).tolist() == want


def test_lanes_have_trip_counts_of_their_own(compiled):
    def power_sum(x, n):
        total = 0.0 * x
        for k in range(n):
            total = total + x * k
        return total

    counts = np.array([0, 3, 5])
    x = np.array([1.0, 2.0, 3.0])
    got, slopes = compiled(
        lambda x, n: (vmap(power_sum)(x, n), vmap(grad(power_sum))(x, n)), x, counts
    )
    np.testing.assert_allclose(got, [0, 6, 30])
    np.testing.assert_allclose(slopes, [0, 3, 10])


def test_no_nan_from_a_branch_that_a_lane_does_not_take(compiled):
    def safe_root(x):
        if x > 0:
            return np.sqrt(x)
        return 0.0 * x

    x = np.array([-1.0, 0.0, 4.0])
    got = compiled(lambda x: grad(lambda y: np.sum(vmap(safe_root)(y)))(x), x)
    assert got.tolist() == [0.0, 0.0, 0.25]


def test_nested_lanes_and_closures(compiled):
    def table(x, y, c):
        return vmap(lambda a: vmap(lambda b: np.sin(a * b) + c)(y))(x)

    got = compiled(table, X, MANY[0], 2.0)
    np.testing.assert_allclose(got, np.sin(np.outer(X, MANY[0])) + 2.0)


def test_keys_of_their_own_draw_numbers_of_their_own(compiled):
    keys = random.split(random.key(7), 5)
    got = compiled(lambda k: vmap(lambda key: random.normal(key, 3))(k), keys)
    want = np.stack([random.normal(key, 3) for key in keys])
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


def test_per_example_gradients(compiled):
    w = np.array([[0.2, -0.1], [0.5, 0.4], [-0.3, 0.6]])

    def loss(w, x):
        return np.mean(np.tanh(x @ w) ** 2)

    each, mean = compiled(
        lambda w, m: (vmap(grad(loss), (None, 0))(w, m), grad(lambda v: loss(v, m))(w)), w, MANY
    )
    np.testing.assert_allclose(each.mean(0), mean)
    _, grads = value_and_grad(lambda w: np.sum(vmap(loss, (None, 0))(w, MANY)))(w)
    np.testing.assert_allclose(grads, each.sum(0))


def test_jacobians_forward_and_reverse_agree(compiled):
    def f(x, y):
        return {"outer": np.outer(x, y), "sum": np.sum(x * x) * y[0]}

    y = np.array([2.0, -1.0])
    forward, reverse = compiled(
        lambda x, y: (jacfwd(f, (0, 1))(x, y), jacrev(f, (0, 1))(x, y)), X, y
    )
    assert forward["outer"][0].shape == (3, 2, 3) and forward["sum"][1].shape == (2,)
    for name in ("outer", "sum"):
        for a, b in zip(forward[name], reverse[name], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(forward["sum"][0], 2 * X * 2.0)


def test_hessians_and_hessian_vector_products(compiled):
    want = np.diag(2 * np.cos(X) - X * np.sin(X))
    v = np.array([1.0, -2.0, 0.5])
    got, product = compiled(lambda x, v: (hessian(energy)(x), hvp(energy, (x,), (v,))[0]), X, v)
    np.testing.assert_allclose(got, want, atol=1e-12)
    np.testing.assert_allclose(product, want @ v, atol=1e-12)
    np.testing.assert_allclose(hessian(energy)(X), want, atol=1e-12)


def test_jvp_of_a_map_is_the_map_of_a_jvp(compiled):
    def program(m):
        over = jvp(vmap(energy), (m,), (m * m,))[1]
        under = vmap(lambda x: jvp(energy, (x,), (x * x,))[1])(m)
        return over, under

    over, under = compiled(program, MANY)
    np.testing.assert_allclose(over, under)


def test_linearize_gives_a_map_that_may_be_asked_often(compiled):
    def program(x, a, b):
        value, push = linearize(energy, x)
        return value, push(a), push(b), vmap(push)(np.stack([a, b]))

    a, b = np.array([1.0, 0.0, 2.0]), np.array([0.0, -1.0, 0.5])
    value, along_a, along_b, both = compiled(program, X, a, b)
    slope = grad(energy)(X)
    np.testing.assert_allclose([value, along_a, along_b], [energy(X), slope @ a, slope @ b])
    np.testing.assert_allclose(both, [slope @ a, slope @ b])
    outside, push = linearize(energy, X)
    np.testing.assert_allclose([outside, push(a)], [energy(X), slope @ a])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: vmap(energy, in_axes=2)(m), "has no axis 2"),
        (lambda m: vmap(energy, in_axes=None)(m), "no argument has an axis"),
        (lambda m: vmap(lambda x, y: x, (0, 0))(m, m[0]), "3 lanes along axis 0, not 4"),
        (lambda m: vmap(energy, (0, 0))(m), "2 entries for 1 arguments"),
        (lambda m: vmap(energy, out_axes=None)(m), "differs from lane to lane"),
        (lambda m: vmap(lambda x: x, ({"a": 0},))(m), "does not fit"),
    ],
)
def test_errors_say_which_argument(call, words):
    with pytest.raises(ProgramError, match=words):
        compile(call, backend="reference")(MANY)


def test_debug_runs_one_lane_after_another(monkeypatch):
    """The same values, in plain Python: a function may print, and lanes are seen one by one."""
    seen = []

    def f(p, x):
        seen.append(np.shape(x))
        return {"sum": p["w"] * np.sum(x), "shared": p["w"]}

    axes = {"in_axes": ({"w": None}, 1), "out_axes": {"sum": 0, "shared": None}}
    params = {"w": np.float64(2.0)}
    want = vmap(lambda p, x: {"sum": p["w"] * np.sum(x), "shared": p["w"]}, **axes)(params, MANY)
    monkeypatch.setattr(debugging, "on", True)
    got = compile(vmap(f, **axes))(params, MANY)
    assert seen == [(4,)] * 3
    np.testing.assert_allclose(got["sum"], want["sum"])
    assert got["shared"] == 2.0
    with pytest.raises(DelianError, match="not one size"):
        vmap(f, (None, None))(params, MANY)
