"""Differential equations, automata, sampling."""

from typing import Any, NamedTuple

import delian as dl
import numpy as np


class State(NamedTuple):
    position: Any
    velocity: Any


def euler(y, rate, steps):
    for _ in range(steps):
        y = y + 0.05 * (rate * y * (1 - y))
    return y


def runge_kutta_4(y, parameters):
    """Lotka and Volterra's foxes and rabbits."""
    a, b, c, d = parameters

    def slope(y):
        rabbits, foxes = y
        return np.stack([a * rabbits - b * rabbits * foxes, -c * foxes + d * rabbits * foxes])

    h = 0.1
    for _ in range(20):
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def adaptive_ode(y, stiffness, end):
    """Runge, Kutta and Fehlberg's pair of order 2 and 3, choosing its own steps."""

    def slope(t, y):
        return np.stack([y[1], stiffness * (1 - y[0] ** 2) * y[1] - y[0] + 0.1 * np.sin(t)])

    t, h, accepted = 0.0, 0.1, 0
    while t < end:
        h = min(h, end - t)
        k1 = slope(t, y)
        k2 = slope(t + h, y + h * k1)
        k3 = slope(t + h / 2, y + h / 4 * (k1 + k2))
        better = y + h / 6 * (k1 + k2 + 4 * k3)
        error = np.max(np.abs(better - (y + h / 2 * (k1 + k2))))
        if error < 1e-3:
            t, y = t + h, better
            accepted += 1
        h = h * np.clip(0.9 * np.sqrt(1e-3 / error), 0.2, 2.0)
    return y, accepted


def leapfrog(state, spring, steps):
    def force(x):
        return -spring * x - 0.1 * x**3

    h = 0.1
    for _ in range(steps):
        half = state.velocity + h / 2 * force(state.position)
        position = state.position + h * half
        state = State(position, half + h / 2 * force(position))
    return state


def three_bodies(positions, masses):
    velocities = positions * 0
    for _ in range(5):
        apart = positions[None] - positions[:, None]
        distance = np.sum(apart**2, axis=-1) + 0.1
        pull = np.sum((masses / distance**1.5)[..., None] * apart, axis=1)
        velocities = velocities + 0.01 * pull
        positions = positions + 0.01 * velocities
    return positions


def heat_equation(u, conductivity, steps):
    for _ in range(steps):
        inner = u[1:-1] + conductivity * (u[2:] - 2 * u[1:-1] + u[:-2])
        u = np.concatenate([u[:1], inner, u[-1:]])
    return u


def heat_until_still(u, conductivity):
    """As long as anything moves."""
    moved = 1.0
    while moved > 1e-2:
        after = u + conductivity * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
        moved = np.max(np.abs(after - u))
        u = after
    return u


def wave_equation(u, before, speed):
    return_value = u
    for k in range(6):
        after = 2 * u - before + speed * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
        if k == 3:
            return_value = after
        u, before = after, u
    return u, return_value


def elementary_automaton(cells, rule, generations):
    """Wolfram's rules, the rule being a number of the running program."""
    for _ in range(generations):
        pattern = np.roll(cells, 1) * 4 + cells * 2 + np.roll(cells, -1)
        cells = (rule >> pattern) & 1
    return cells


def game_of_life(board, generations):
    for _ in range(generations):
        around = sum(
            np.roll(np.roll(board, i, axis=0), j, axis=1)
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        )
        board = np.where((around == 3) | ((around == 2) & (board == 1)), 1, 0)
    return board


def metropolis(key, start, width):
    """Samples of a double well; each step takes keys of its own."""

    def energy(x):
        return (x * x - 1) ** 2

    x, kept = start, 0
    for k in range(30):
        one, two = dl.random.split(dl.random.fold_in(key, k), 2)
        proposal = x + width * (np.float64(dl.random.uniform(one, ())) - 0.5)
        if dl.random.uniform(two, ()) < np.exp(energy(x) - energy(proposal)):
            x = proposal
            kept += 1
    return x, kept


def simulated_annealing(key, start):
    def cost(x):
        return x**4 - 3 * x**2 + 0.5 * x

    x, best = start, start
    temperature, k = 2.0, 0
    while temperature > 0.05:
        one, two = dl.random.split(dl.random.fold_in(key, k), 2)
        near = x + (np.float64(dl.random.uniform(one, ())) - 0.5)
        worse = cost(near) - cost(x)
        if worse < 0 or dl.random.uniform(two, ()) < np.exp(-worse / temperature):
            x = near
        if cost(x) < cost(best):
            best = x
        temperature = temperature * 0.9
        k += 1
    return best


def random_walk(key, drift, limit):
    """Until it leaves an interval."""
    x, steps = drift * 0, 0
    while abs(x) < limit:
        key, mine = dl.random.split(key, 2)
        x = x + drift + 2.0 * (np.float64(dl.random.uniform(mine, ())) - 0.5)
        steps += 1
    return x, steps


def monte_carlo(key, radius):
    points = dl.random.uniform(key, (64, 2)).astype(np.float64)
    distance = np.sqrt(np.sum(points**2, axis=1))
    return np.mean(1 / (1 + np.exp(8 * (distance - radius))))


def kalman(measurements, process, noise):
    state, variance = measurements[0], noise
    estimates = []
    for z in measurements:
        variance = variance + process
        gain = variance / (variance + noise)
        state = state + gain * (z - state)
        variance = (1 - gain) * variance
        estimates.append(state)
    return np.stack(estimates), variance


F, N = np.float64, np.int64
KEY = dl.random.key(7)
rng = np.random.default_rng(1)
BOARD = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1]])
PROGRAMS = [
    (euler, (F(0.1), F(1.5), N(30)), (0, 1)),
    (runge_kutta_4, (np.array([1.0, 0.5]), np.array([1.1, 0.4, 0.4, 0.1])), (0, 1)),
    (adaptive_ode, (np.array([1.0, 0.0]), F(1.5), F(3.0)), (0, 1)),
    (leapfrog, (State(F(1.0), F(0.0)), F(2.0), N(25)), (0, 1)),
    (three_bodies, (rng.normal(size=(3, 2)), np.array([1.0, 2.0, 0.5])), (0, 1)),
    (heat_equation, (rng.normal(size=8), F(0.2), N(7)), (0, 1)),
    (heat_until_still, (rng.normal(size=6), F(0.2)), (0, 1)),
    (wave_equation, (rng.normal(size=6), rng.normal(size=6), F(0.3)), (0, 1, 2)),
    (elementary_automaton, (np.eye(1, 16, 8, dtype=N)[0], N(110), N(12)), ()),
    (game_of_life, (BOARD, N(5)), ()),
    (metropolis, (KEY, F(0.5), F(1.5)), (1, 2)),
    (simulated_annealing, (KEY, F(2.0)), (1,)),
    (random_walk, (KEY, F(0.1), F(2.0)), (1,)),
    (monte_carlo, (KEY, F(0.8)), (1,)),
    (kalman, (rng.normal(size=6), F(0.1), F(0.5)), (0, 1, 2)),
]
