"""Matrix algorithms written out."""

import numpy as np


def gram_schmidt(a):
    columns = []
    for v in a.T:
        for q in columns:
            v = v - np.sum(q * v) * q
        columns.append(v / np.sqrt(np.sum(v * v)))
    return np.stack(columns, axis=1)


def householder_qr(a):
    """Reflections, a column at a time; the row at work is masked, so that all rounds are alike."""
    n = a.shape[0]
    rows = np.arange(n)
    q, r = np.eye(n), a
    for k in range(n - 1):
        x = np.where(rows >= k, r[:, k], 0.0)
        first = np.where(rows == k, 1.0, 0.0)
        length = np.sqrt(np.sum(x * x))
        sign = np.where(np.sum(first * x) < 0, -1.0, 1.0)
        v = x + sign * length * first
        v = v / np.sqrt(np.sum(v * v))
        r = r - 2 * np.outer(v, v @ r)
        q = q - 2 * np.outer(q @ v, v)
    return q, r


def cholesky(a):
    n = a.shape[0]
    lower = np.zeros((n, n))
    for j in range(n):
        rest = a[:, j] - lower @ lower[j]
        column = np.where(np.arange(n) >= j, rest / np.sqrt(rest[j]), 0.0)
        lower = lower + np.outer(column, np.arange(n) == j)
    return lower


def gauss_with_pivoting(a, b):
    """The pivot row depends on the data."""
    n = a.shape[0]
    rows = np.arange(n)
    m = np.concatenate([a, b[:, None]], axis=1)
    for k in range(n):
        pivot = np.argmax(np.where(rows >= k, np.abs(m[:, k]), -1.0))
        order = np.where(rows == k, pivot, np.where(rows == pivot, k, rows))
        m = m[order]
        row = m[k] / m[k, k]
        m = np.where((rows == k)[:, None], row, m - np.outer(m[:, k], row))
    return m[:, n]


def power_iteration(a):
    v = np.ones(a.shape[0])
    change = 1.0
    while change > 1e-20:
        w = a @ v
        w = w / np.sqrt(np.sum(w * w))
        change = np.sum((w - v) ** 2)
        v = w
    return v @ a @ v, v


def conjugate_gradients(a, b):
    x = b * 0
    r = b - a @ x
    p, size = r, r @ r
    while size > 1e-10:
        ap = a @ p
        alpha = size / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        before, size = size, r @ r
        p = r + size / before * p
    return x


def jacobi(a, b):
    diagonal = np.sum(a * np.eye(a.shape[0]), axis=1)
    x = b * 0
    while np.max(np.abs(a @ x - b)) > 1e-12:
        x = x + (b - a @ x) / diagonal
    return x


def matrix_exponential(a):
    """Scaling and squaring: how often depends on the matrix."""
    squarings = 0
    norm = np.max(np.sum(np.abs(a), axis=1))
    while norm > 0.5:
        norm = norm / 2
        a = a / 2
        squarings += 1
    term = total = np.eye(a.shape[0])
    for k in range(1, 12):
        term = term @ a / k
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total


def matrix_power(a, n):
    """By repeated squaring, n being known to the running program alone."""
    result = np.eye(a.shape[0])
    while n > 0:
        if n % 2 == 1:
            result = result @ a
        a = a @ a
        n = n // 2
    return result


def fft(x):
    """Radix 2 by recursion over shapes: pairs (real, imaginary)."""

    def transform(re, im):
        n = re.shape[0]
        if n == 1:
            return re, im
        (a, b), (c, d) = transform(re[::2], im[::2]), transform(re[1::2], im[1::2])
        angle = -2 * np.pi * np.arange(n // 2) / n
        cos, sin = np.cos(angle), np.sin(angle)
        c, d = c * cos - d * sin, c * sin + d * cos
        return np.concatenate([a + c, a - c]), np.concatenate([b + d, b - d])

    return transform(x, x * 0)


def strassen(a, b):
    n = a.shape[0]
    if n <= 1:
        return a @ b
    h = n // 2
    (p, q), (r, s) = (a[:h, :h], a[:h, h:]), (a[h:, :h], a[h:, h:])
    (t, u), (v, w) = (b[:h, :h], b[:h, h:]), (b[h:, :h], b[h:, h:])
    m = [
        strassen(x, y)
        for x, y in (
            *((p + s, t + w), (r + s, t), (p, u - w), (s, v - t)),
            *((p + q, w), (r - p, t + u), (q - s, v + w)),
        )
    ]
    top = np.concatenate([m[0] + m[3] - m[4] + m[6], m[2] + m[4]], axis=1)
    low = np.concatenate([m[1] + m[3], m[0] - m[1] + m[2] + m[5]], axis=1)
    return np.concatenate([top, low])


def determinant(a):
    """Laplace's expansion: recursion over shapes."""
    n = a.shape[0]
    if n == 1:
        return a[0, 0]
    total = a[0, 0] * 0
    for j in range(n):
        minor = np.concatenate([a[1:, :j], a[1:, j + 1 :]], axis=1)
        total += (-1) ** j * a[0, j] * determinant(minor)
    return total


def page_rank(links, damping):
    n = links.shape[0]
    rank = np.ones(n) / n
    moves = links / np.sum(links, axis=0)
    while True:
        after = damping * (moves @ rank) + (1 - damping) / n
        if np.sum(np.abs(after - rank)) < 1e-13:
            return after
        rank = after


def sinkhorn(cost, sharpness):
    n, m = cost.shape
    k = np.exp(-sharpness * cost)
    u, v = np.ones(n), np.ones(m)
    error, rounds = 1.0, 0
    while error > 1e-12 and rounds < 200:
        u = 1.0 / n / (k @ v)
        v = 1.0 / m / (k.T @ u)
        error = np.max(np.abs(u * (k @ v) - 1.0 / n))
        rounds += 1
    plan = u[:, None] * k * v
    return np.sum(plan * cost), plan


rng = np.random.default_rng(0)
A = rng.normal(size=(4, 4))
SPD = A @ A.T + 4 * np.eye(4)
B = rng.normal(size=4)
LINKS = np.array([[0.0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 0, 0]])
PROGRAMS = [
    (gram_schmidt, (A,), (0,)),
    (householder_qr, (A,), (0,)),
    (cholesky, (SPD,), (0,)),
    (gauss_with_pivoting, (A, B), (0, 1)),
    (power_iteration, (SPD,), (0,)),
    (conjugate_gradients, (SPD, B), (0, 1)),
    (jacobi, (SPD / 8 + 3 * np.eye(4), B), (0, 1)),
    (matrix_exponential, (A,), (0,)),
    (matrix_power, (A / 2, np.int64(6)), (0,)),
    (fft, (rng.normal(size=8),), (0,)),
    (strassen, (A, SPD), (0, 1)),
    (determinant, (A,), (0,)),
    (page_rank, (LINKS, np.float64(0.85)), (1,)),
    (sinkhorn, (np.abs(A[:3]), np.float64(2.0)), (0, 1)),
]
