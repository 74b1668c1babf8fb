"""Derivatives inside programs: against finite differences, against each other, nested, through
control flow.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.api import grad, jvp, value_and_grad, vjp
from delian.core.compiler.frontend import trace

X = np.array([0.3, -0.7, 1.1])
W = np.array([[0.2, -0.1], [0.5, 0.4], [-0.3, 0.6]])


def differences(f, x, step=1e-6):
    """Central differences of a scalar function of an array."""
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[k] = step
        out[k] = (f(x + d) - f(x - d)) / (2 * step)
    return out


def loss(w, x):
    return np.mean(np.tanh(x @ w) ** 2)


def test_grad_equals_differences(compiled):
    got = compiled(lambda w, x: grad(loss)(w, x), W, X)
    np.testing.assert_allclose(got, differences(lambda w: loss(w, X), W), rtol=1e-5)


def test_value_and_grad_of_several_arguments(compiled):
    value, (dw, dx) = compiled(lambda w, x: value_and_grad(loss, (0, 1))(w, x), W, X)
    np.testing.assert_allclose(value, loss(W, X))
    np.testing.assert_allclose(dw, differences(lambda w: loss(w, X), W), rtol=1e-5)
    np.testing.assert_allclose(dx, differences(lambda x: loss(W, x), X), rtol=1e-5)


def test_gradients_are_trees_like_their_argument(compiled):
    params = {"w": W, "pair": (X, np.float64(2.0))}

    def f(p):
        return loss(p["w"], p["pair"][0]) * p["pair"][1]

    gradient = compiled(lambda p: grad(f)(p), params)
    assert tree.flatten(gradient)[1] == tree.flatten(params)[1]
    np.testing.assert_allclose(gradient["pair"][1], loss(W, X))


def test_has_aux(compiled):
    def f(w, x):
        y = x @ w
        return np.sum(y * y), {"y": y, "n": len(x), "most": np.argmax(y)}

    (value, aux), g = compiled(lambda w, x: value_and_grad(f, has_aux=True)(w, x), W, X)
    np.testing.assert_allclose(value, np.sum((X @ W) ** 2))
    np.testing.assert_allclose(aux["y"], X @ W)
    assert (aux["n"], aux["most"]) == (3, np.argmax(X @ W))
    np.testing.assert_allclose(g, 2 * np.outer(X, X @ W))
    g2, aux2 = compiled(lambda w, x: grad(f, has_aux=True)(w, x), W, X)
    np.testing.assert_array_equal(g, g2)
    np.testing.assert_array_equal(aux["y"], aux2["y"])


def test_a_gradient_flows_through_what_a_function_closes_over(compiled):
    def f(x, scale):
        def inner(y):
            return np.sum(y * y) * scale

        return np.sum(grad(inner)(x))

    # d/dscale sum(2 x scale) = sum(2 x)
    np.testing.assert_allclose(compiled(lambda x, s: grad(f, 1)(x, s), X, 3.0), 2 * X.sum())


def test_third_derivative(compiled):
    def f(x):
        return np.sin(x) * x

    third = grad(grad(grad(f)))
    at = 0.7
    want = -3 * np.sin(at) - at * np.cos(at)
    np.testing.assert_allclose(compiled(lambda x: third(x), at), want, rtol=1e-10)


def test_hessian_vector_product_is_jvp_of_grad(compiled):
    v = np.array([1.0, -2.0, 0.5])

    def f(x):
        return np.sum(np.exp(x) * x[::-1])

    def product(x, v):
        return jvp(grad(f), (x,), (v,))

    gradient, hvp = compiled(product, X, v)
    g = lambda x: differences(f, x, 1e-4)  # noqa: E731
    np.testing.assert_allclose(gradient, g(X), rtol=1e-6)
    np.testing.assert_allclose(hvp, (g(X + 1e-4 * v) - g(X - 1e-4 * v)) / 2e-4, rtol=1e-4)
    reverse = compiled(lambda x, v: grad(lambda y: np.sum(grad(f)(y) * v))(x), X, v)
    np.testing.assert_allclose(hvp, reverse, rtol=1e-10)


def test_vjp_and_jvp_are_transposes(compiled):
    def f(x, w):
        return {"a": np.tanh(x @ w), "b": np.sum(x)}

    u = {"a": np.array([0.3, -0.2]), "b": np.float64(0.7)}
    tangents = (np.array([0.1, 0.2, 0.3]), W * 0.5)
    pulled = compiled(lambda x, w, u: vjp(f, x, w)[1](u), X, W, u)
    value, pushed = compiled(lambda x, w, t: jvp(f, (x, w), t), X, W, tangents)
    np.testing.assert_allclose(value["a"], np.tanh(X @ W))
    left = sum(np.sum(a * b) for a, b in zip(pulled, tangents, strict=True))
    right = np.sum(u["a"] * pushed["a"]) + u["b"] * pushed["b"]
    np.testing.assert_allclose(left, right)


def branching(x):
    if x > 0:
        return x * x
    return -3 * x


@pytest.mark.parametrize("at", [2.0, -1.0])
def test_gradient_of_a_branch(at, compiled):
    got = compiled(lambda x: grad(branching)(x), at)
    assert got == pytest.approx(2 * at if at > 0 else -3)


def test_a_branch_not_taken_leaks_no_nan(compiled):
    def f(x):
        if x > 0:
            y = np.sqrt(x)
        else:
            y = x * 0
        return y

    assert compiled(lambda x: grad(f)(x), -1.0) == 0.0


def collatz_like(x):
    steps = 0
    while x < 100:
        if x > 10:
            x = x * 1.5
        else:
            x = x * x + 1
        steps += 1
        if steps > 50:
            break
    return x


def test_gradient_of_a_while_with_a_branch_and_a_break(compiled):
    at = 1.3
    want = (collatz_like(at + 1e-6) - collatz_like(at - 1e-6)) / 2e-6
    np.testing.assert_allclose(compiled(lambda x: grad(collatz_like)(x), at), want, rtol=1e-5)
    second = compiled(lambda x: grad(grad(collatz_like))(x), at)
    first = lambda x: compiled(lambda x: grad(collatz_like)(x), x)  # noqa: E731
    np.testing.assert_allclose(second, (first(at + 1e-6) - first(at - 1e-6)) / 2e-6, rtol=1e-4)


def test_gradient_through_a_loop_of_the_running_program(compiled):
    def f(x, n):
        total = 0.0
        for i in range(n):
            if i == 1:
                continue
            total = total + np.sum(x) ** (2.0 + i * 0)
            x = x * 0.9
        return total

    got = compiled(lambda x, n: grad(f)(x, n), X, np.int64(4))
    np.testing.assert_allclose(got, differences(lambda x: f(x, 4), X), rtol=1e-5)


def test_maml_one_step_by_hand(compiled):
    """theta' = theta - a theta s; L = theta'^2 / 2 q gives dL/dtheta = q theta (1 - a s)^2."""
    a = 0.1

    def inner(theta, s):
        return 0.5 * s * theta * theta

    def meta(theta, s, q):
        return inner(theta - a * grad(inner)(theta, s), q)

    got = compiled(lambda t, s, q: grad(meta)(t, s, q), 2.0, 3.0, 5.0)
    np.testing.assert_allclose(got, 5 * 2 * (1 - a * 3) ** 2)


def test_a_constant_function_has_gradient_zero(compiled):
    np.testing.assert_array_equal(compiled(lambda x: grad(lambda y: 1.0)(x), X), np.zeros(3))


def test_the_program_of_a_gradient_stays_small():
    def count(f):
        return len(list(trace(f, W, X).function.body.walk()))

    assert count(grad(loss)) <= 4 * count(loss)


REFUSED = [
    (lambda x, n: grad(lambda x: x * 2)(x), "only one floating-point number has a gradient"),
    (lambda x, n: grad(lambda n: n * 2.0)(n), "no gradient with respect to argument 0"),
    (lambda x, n: grad(lambda x, n: x.sum(), 5)(x, n), "argnums names argument 5"),
    (lambda x, n: grad(lambda x, n: x.sum(), (0, -2))(x, n), "argument 0 more than once"),
    (lambda x, n: grad(lambda p: p["x"].sum())({"x": x, "n": n}), "leaf `n`"),
    (lambda x, n: grad(lambda x: (x.sum(), x))(x), "has_aux"),
    (lambda x, n: vjp(np.tanh, x)[1](x[:2]), "a cotangent must be f64[3], not f64[2]"),
    (lambda x, n: jvp(np.tanh, (x,), (x, x)), "tangents are not shaped like the primals"),
    (lambda x, n: value_and_grad(lambda x: x.sum(), has_aux=True)(x), "(loss, aux)"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_what_cannot_be_differentiated_is_refused(k, refusal):
    f, text = REFUSED[k]
    message = refusal(f, X, np.int32(3))
    assert message.startswith("DL117")
    assert text in message


def test_a_function_that_leaves_a_derivative_cannot_be_called_outside(refusal):
    def f(x):
        def inner(y):
            z = y * y
            return np.sum(z), lambda: z

        _, late = grad(inner, has_aux=True)(x)
        return late()

    assert "made inside a derivative" in refusal(f, X)
