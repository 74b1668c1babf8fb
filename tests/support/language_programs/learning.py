"""Training loops, inference, control."""

from dataclasses import replace
from functools import partial
from typing import Any

import delian as dl
import numpy as np


def linear(w, x, y):
    return np.mean((x @ w - y) ** 2)


def maml(w, support, query, rate):
    def adapted(w):
        return w - rate * dl.grad(linear)(w, *support)

    return linear(adapted(w), *query)


def gradient_of_maml(w, support, query, rate):
    return dl.grad(maml)(w, support, query, rate)


def maml_of_unknown_length(w, support, query, steps):
    """As many steps of the inner loop as the running program says."""
    for _ in range(steps):
        w = w - 0.1 * dl.grad(linear)(w, *support)
    return linear(w, *query)


def learned_learning_rate(w, data, rate):
    """The gradient with respect to the rate, through training."""

    def after(rate):
        v = w
        for _ in range(5):
            v = v - rate * dl.grad(linear)(v, *data)
        return linear(v, *data)

    return rate - 0.1 * dl.grad(after)(rate)


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softmax_regression(w, x, labels):
    def loss(w):
        chosen = np.take_along_axis(softmax(x @ w), labels[:, None], axis=1)
        return -np.mean(np.log(chosen))

    for _ in range(10):
        w = w - 0.5 * dl.grad(loss)(w)
    return w


def early_stopping(w, x, y, patience):
    """Until the loss stops falling for a while."""
    best, since, rate = linear(w, x, y), 0, 0.1
    while since < patience:
        w = w - rate * dl.grad(linear)(w, x, y)
        loss = linear(w, x, y)
        if loss < best - 1e-3:
            best, since = loss, 0
        else:
            since += 1
    return w


@dl.module
class Adam:
    mean: Any
    square: Any
    step: Any
    rate: float = dl.static_field(default=0.1)

    def update(self, gradient):
        step = self.step + 1
        mean = 0.9 * self.mean + 0.1 * gradient
        square = 0.99 * self.square + 0.01 * gradient**2
        move = self.rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
        return move, replace(self, mean=mean, square=square, step=step)


def adam(w, x, y):
    optimiser = Adam(w * 0, w * 0, 0.0)
    for _ in range(8):
        move, optimiser = optimiser.update(dl.grad(linear)(w, x, y))
        w = w - move
    return w, optimiser


def two_loop_recursion(w, x, y):
    """L-BFGS of four steps, with its whole history (Nocedal and Wright, algorithm 7.4)."""
    gradient = partial(dl.grad(linear), x=x, y=y)
    g, history = gradient(w), []
    for _ in range(4):
        q, alphas = g, []
        for s, t in reversed(history):
            alpha = (s @ q) / (t @ s)
            q = q - alpha * t
            alphas.append(alpha)
        if history:
            s, t = history[-1]
            q = q * (s @ t) / (t @ t)
        else:
            q = 0.1 * q
        for (s, t), alpha in zip(history, alphas[::-1], strict=True):
            q = q + (alpha - (t @ q) / (t @ s)) * s
        after = w - q
        new = gradient(after)
        history.append((after - w, new - g))
        w, g = after, new
    return w


def newton_logistic(w, x, y):
    """Newton's method, the Hessian's products with vectors inside conjugate gradients."""

    def loss(w):
        margin = x @ w
        return np.mean(np.log(1 + np.exp(margin)) - y * margin) + 0.05 * np.sum(w * w)

    for _ in range(3):
        g = dl.grad(loss)(w)
        step, r, p = w * 0, g, g
        for _ in range(3):
            hp = dl.jvp(dl.grad(loss), (w,), (p,))[1]
            alpha = (r @ r) / (p @ hp)
            step, after = step + alpha * p, r - alpha * hp
            p, r = after + (after @ after) / (r @ r) * p, after
        w = w - step
    return w


def k_means(points, centres):
    """Until no centre moves."""
    moved = 1.0
    while moved > 1e-9:
        distance = np.sum((points[:, None] - centres) ** 2, axis=-1)
        mine = np.argmin(distance, axis=1)[:, None] == np.arange(centres.shape[0])
        weight = mine.astype(np.float64)
        after = weight.T @ points / np.maximum(np.sum(weight, axis=0), 1.0)[:, None]
        moved = np.max(np.abs(after - centres))
        centres = after
    return centres


def mixture_of_gaussians(points, means, spread):
    """Expectation and maximisation, ten rounds."""
    weights = np.ones(means.shape[0]) / means.shape[0]
    for _ in range(10):
        logits = np.log(weights) - 0.5 * (points[:, None] - means) ** 2 / spread
        share = softmax(logits - 0.5 * np.log(spread))
        total = np.sum(share, axis=0)
        means = share.T @ points / total
        spread = np.sum(share * (points[:, None] - means) ** 2, axis=0) / total + 1e-3
        weights = total / len(points)
    return means, spread, weights


def recurrent_network(weights, xs):
    w, u, b = weights["w"], weights["u"], weights["b"]
    h = b * 0
    for x in xs:
        h = np.tanh(x @ w + h @ u + b)
    return h


def lstm(weights, xs):
    n = weights.shape[1] // 4
    h = c = np.zeros(n)
    states = []
    for x in xs:
        z = np.concatenate([x, h]) @ weights
        i, f, g, o = (z[k * n : (k + 1) * n] for k in range(4))
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        states.append(h)
    return np.stack(states)


def attention(x, w):
    """Two heads, causal."""
    length, size = x.shape
    q, k, v = ((x @ m).reshape(length, 2, size // 2).transpose(1, 0, 2) for m in w)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(size / 2)
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(length, size)


def policy_iteration(transitions, rewards, discount):
    """transitions[a, s, s'], rewards[s, a]: until the policy stays."""
    states = rewards.shape[0]
    policy = np.zeros(states, np.int64)
    values = np.zeros(states)
    stable = False
    while not stable:
        moves = transitions[policy, np.arange(states)]
        gain = rewards[np.arange(states), policy]
        for _ in range(60):
            values = gain + discount * (moves @ values)
        worth = rewards + discount * (transitions @ values).T
        better = np.argmax(worth, axis=1)
        stable = np.all(better == policy)
        policy = better
    return values, policy


def value_iteration(transitions, rewards, discount):
    values = np.zeros(rewards.shape[0])
    while True:
        after = np.max(rewards + discount * (transitions @ values).T, axis=1)
        if np.max(np.abs(after - values)) < 1e-6:
            break
        values = after
    return after


def federated_average(w, devices, rounds):
    """Two devices train from the shared weights and are averaged."""
    for _ in range(rounds):
        models = []
        for x, y in devices:
            local = w
            for _ in range(3):
                local = local - 0.05 * dl.grad(linear)(local, x, y)
            models.append(local)
        w = sum(models) / len(models)
    return w


def implicit_layer(w, x):
    """A deep equilibrium: the fixed point of a layer."""
    z = x * 0
    while True:
        after = np.tanh(w @ z + x)
        if np.max(np.abs(after - z)) < 1e-10:
            return after
        z = after


rng = np.random.default_rng(3)


def task(n=5, m=3):
    return rng.normal(size=(n, m)), rng.normal(size=n)


F, N = np.float64, np.int64
W = rng.normal(size=3)
X, Y = task(6)
LABELS = np.array([0, 1, 1, 0, 1, 0])
MOVES = rng.dirichlet(np.ones(4), size=(2, 4))
POINTS = np.concatenate([rng.normal(size=(5, 2)) - 2, rng.normal(size=(5, 2)) + 2])
WEIGHTS = {"w": rng.normal(size=(2, 3)), "u": rng.normal(size=(3, 3)) / 2, "b": rng.normal(size=3)}
PROGRAMS = [
    (maml, (W, task(), task(), F(0.1)), (0, 3)),
    (gradient_of_maml, (W, task(), task(), F(0.1)), (0, 3)),
    (maml_of_unknown_length, (W, task(), task(), N(4)), (0,)),
    (learned_learning_rate, (W, task(), F(0.05)), (0, 2)),
    (softmax_regression, (rng.normal(size=(3, 2)), X, LABELS), (0, 1)),
    (early_stopping, (W, X, Y, N(3)), (0,)),
    (adam, (W, X, Y), (0, 1)),
    (two_loop_recursion, (W, X, Y), (0, 2)),
    (newton_logistic, (W, X, (LABELS == 1).astype(F)), (0, 1)),
    (k_means, (POINTS, POINTS[[0, 7]]), (0,)),
    (mixture_of_gaussians, (POINTS[:, 0], np.array([-1.0, 1.0]), np.ones(2)), (0, 1, 2)),
    (recurrent_network, (WEIGHTS, rng.normal(size=(5, 2))), (0, 1)),
    (lstm, (rng.normal(size=(5, 12)), rng.normal(size=(4, 2))), (0, 1)),
    (attention, (rng.normal(size=(4, 6)), tuple(rng.normal(size=(3, 6, 6)))), (0, 1)),
    (policy_iteration, (MOVES, rng.normal(size=(4, 2)), F(0.7)), (1, 2)),
    (value_iteration, (MOVES, rng.normal(size=(4, 2)), F(0.7)), (1, 2)),
    (federated_average, (W, (task(), task()), N(3)), (0,)),
    (implicit_layer, (rng.normal(size=(3, 3)) / 4, rng.normal(size=3)), (0, 1)),
]
