"""Root finding, series, quadrature: loops that stop when a number is small enough."""

import math

import delian as dl
import numpy as np


def newton_square_root(a):
    x = a
    while np.abs(x * x - a) > 1e-12 * a:
        x = 0.5 * (x + a / x)
    return x


def newton_with_derivative(a):
    """The derivative that Newton needs is asked for inside the loop that is differentiated."""

    def f(x):
        return x * np.exp(x) - a

    x = 0.5 * a
    while abs(f(x)) > 1e-10:
        x = x - f(x) / dl.grad(f)(x)
    return x


def halley(a):
    x, steps = a, 0
    while True:
        y = x**3 - a
        if abs(y) < 1e-12:
            break
        steps += 1
        x = x - 2 * y * 3 * x**2 / (2 * (3 * x**2) ** 2 - y * 6 * x)
    return x, steps


def secant(a):
    x0, x1 = 0.0 * a, a
    while abs(x1 - x0) > 1e-9:
        y0, y1 = np.cos(x0) - a * x0, np.cos(x1) - a * x1
        x0, x1 = x1, x1 - y1 * (x1 - x0) / (y1 - y0)
    return x1


def bisection(a, tolerance):
    low, high = 0.0, 4.0
    while high - low > tolerance:
        middle = (low + high) / 2
        if middle * middle * middle < a:
            low = middle
        else:
            high = middle
    return (low + high) / 2 + 0 * a


def fixed_point(a):
    """Until nothing moves, at most a hundred rounds."""
    x = a * 0
    for _ in range(100):
        y = np.cos(x) * a
        if abs(y - x) < 1e-13:
            return y
        x = y
    return x


def golden_section(a):
    ratio = (math.sqrt(5) - 1) / 2
    low, high = a - 2.0, a + 3.0

    def f(x):
        return (x - a) ** 4 + 0.5 * (x - a) ** 2

    while high - low > 1e-6:
        c, d = high - ratio * (high - low), low + ratio * (high - low)
        if f(c) < f(d):
            high = d
        else:
            low = c
    return (low + high) / 2


def exponential_series(x):
    term, total, n = x * 0 + 1.0, x * 0 + 1.0, 1
    while abs(term) > 1e-14:
        term = term * x / n
        total = total + term
        n += 1
    return total


def continued_fraction(x, depth):
    """tan(x), from the inside out."""
    y = x * 0
    for k in range(depth, 0, -1):
        y = x * x / ((2 * k - 1) - y)
    return y / x


def arithmetic_geometric_mean(a, b):
    while abs(a - b) > 1e-13:
        a, b = (a + b) / 2, np.sqrt(a * b)
    return a


def clenshaw(coefficients, x):
    """A Chebyshev series by Clenshaw's recurrence."""
    b1, b2 = x * 0, x * 0
    for c in reversed(coefficients[1:]):
        b1, b2 = c + 2 * x * b1 - b2, b1
    return coefficients[0] + x * b1 - b2


def horner(coefficients, x):
    y = x * 0
    for c in coefficients:
        y = y * x + c
    return y


def simpson(f, a, b):
    return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))


def adaptive_quadrature(a):
    """Adaptive Simpson with a stack of intervals of our own, as wide as it may get."""

    def f(x):
        return np.sin(a * x) / (1 + x * x)

    left, right = np.zeros(32), np.zeros(32)
    right = np.where(np.arange(32) == 0, 3.0, right)
    top, total = 1, a * 0
    while top > 0:
        top -= 1
        low, high = left[top], right[top]
        middle = (low + high) / 2
        whole = simpson(f, low, high)
        halves = simpson(f, low, middle) + simpson(f, middle, high)
        if abs(halves - whole) < 1e-6 or top > 29:
            total = total + halves + (halves - whole) / 15
        else:
            at, after = np.arange(32) == top, np.arange(32) == top + 1
            left = np.where(after, middle, left)
            right = np.where(after, high, np.where(at, middle, right))
            top += 2
    return total


def recursive_quadrature(a):
    """The same by recursion: the depth is known, so it unrolls."""

    def integrate(low, high, depth):
        if depth == 0:
            return simpson(lambda x: np.exp(-a * x * x), low, high)
        middle = (low + high) / 2
        return integrate(low, middle, depth - 1) + integrate(middle, high, depth - 1)

    return integrate(0.0, 2.0, 4)


def romberg(a):
    rows = []
    for n in range(5):
        x = np.linspace(0.0, 1.0, 2**n + 1)
        y = np.exp(a * x)
        trapezoid = (np.sum(y) - 0.5 * (y[0] + y[-1])) / 2**n
        row = [trapezoid]
        for k in range(n):
            row.append(row[k] + (row[k] - rows[-1][k]) / (4 ** (k + 1) - 1))
        rows.append(row)
    return rows[-1][-1]


def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def greatest_common_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


def sieve(limit):
    """How many primes there are up to each number; the inner loop's start and step are known."""
    prime = np.ones(60, bool)
    for p in range(2, 8):
        multiples = (np.arange(60) % p == 0) & (np.arange(60) > p)
        prime = prime & ~multiples
    counts = np.cumsum(np.where(np.arange(60) < 2, False, prime))
    return counts[limit]


def line_search(x, direction):
    """Backtracking until Armijo's condition holds."""

    def f(x):
        return np.sum(x**4) + np.sum(x * x)

    value, slope = dl.value_and_grad(f)(x)
    step = 1.0
    while f(x + step * direction) > value + 1e-3 * step * np.sum(slope * direction):
        step = step / 2
    return x + step * direction


F = np.float64
PROGRAMS = [
    (newton_square_root, (F(2.0),), (0,)),
    (newton_with_derivative, (F(1.7),), (0,)),
    (halley, (F(2.5),), (0,)),
    (secant, (F(1.2),), (0,)),
    (bisection, (F(10.0), F(1e-8)), ()),
    (fixed_point, (F(0.8),), (0,)),
    (golden_section, (F(0.3),), (0,)),
    (exponential_series, (F(0.7),), (0,)),
    (continued_fraction, (F(0.6), np.int64(8)), (0,)),
    (arithmetic_geometric_mean, (F(1.0), F(0.3)), (0, 1)),
    (clenshaw, (np.array([0.5, -1.0, 0.25, 0.1]), F(0.4)), (0, 1)),
    (horner, (np.array([1.0, -2.0, 0.5]), F(1.3)), (0, 1)),
    (adaptive_quadrature, (F(2.0),), (0,)),
    (recursive_quadrature, (F(0.9),), (0,)),
    (romberg, (F(0.8),), (0,)),
    (collatz, (np.int64(27),), ()),
    (greatest_common_divisor, (np.int64(1071), np.int64(462)), ()),
    (sieve, (np.int64(47),), ()),
    (line_search, (np.array([1.0, -2.0, 0.5]), np.array([-40.0, 30.0, -9.0])), (0, 1)),
]
