"""Textbook kernels written with loops that change arrays in place, element by element."""

from __future__ import annotations

import numpy as np


def sobel(image):
    height, width = image.shape
    edges = np.zeros_like(image)
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            down = (
                (image[i + 1, j - 1] - image[i - 1, j - 1])
                + 2.0 * (image[i + 1, j] - image[i - 1, j])
                + (image[i + 1, j + 1] - image[i - 1, j + 1])
            )
            right = (
                (image[i - 1, j + 1] - image[i - 1, j - 1])
                + 2.0 * (image[i, j + 1] - image[i, j - 1])
                + (image[i + 1, j + 1] - image[i + 1, j - 1])
            )
            edges[i, j] = np.sqrt(down * down + right * right)
    return edges


def floyd_warshall(weights):
    d = weights.copy()
    n = d.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if d[i, k] + d[k, j] < d[i, j]:
                    d[i, j] = d[i, k] + d[k, j]
    return d


def lu(a):
    lu = a.copy()
    n = lu.shape[0]
    for k in range(n):
        for i in range(k + 1, n):
            lu[i, k] /= lu[k, k]
            for j in range(k + 1, n):
                lu[i, j] -= lu[i, k] * lu[k, j]
    return lu


def lu_pivoted(a):
    """Gives the factors in one matrix, and the order of the rows."""
    lu = a.copy()
    n = lu.shape[0]
    order = np.arange(n)
    for k in range(n):
        pivot = k
        for i in range(k + 1, n):
            if abs(lu[i, k]) > abs(lu[pivot, k]):
                pivot = i
        if pivot != k:
            for j in range(n):
                kept = lu[k, j]
                lu[k, j] = lu[pivot, j]
                lu[pivot, j] = kept
            row = order[k]
            order[k] = order[pivot]
            order[pivot] = row
        for i in range(k + 1, n):
            lu[i, k] /= lu[k, k]
            for j in range(k + 1, n):
                lu[i, j] -= lu[i, k] * lu[k, j]
    return lu, order


def kalman(observed, step, seen, noise, error):
    """Observations f64[t, m], one number after the other; gives the states f64[t, n]."""
    m, n = seen.shape
    x = np.zeros(n)
    p = np.eye(n)
    states = np.zeros((observed.shape[0], n))
    old = np.zeros(n)
    half = np.zeros((n, n))
    gain = np.zeros(n)
    for t in range(observed.shape[0]):
        for i in range(n):
            old[i] = x[i]
            for j in range(n):
                half[i, j] = 0.0
                for k in range(n):
                    half[i, j] += step[i, k] * p[k, j]
        for i in range(n):
            x[i] = 0.0
            for j in range(n):
                x[i] += step[i, j] * old[j]
                p[i, j] = noise[i, j]
                for k in range(n):
                    p[i, j] += half[i, k] * step[j, k]
        for a in range(m):
            wrong = observed[t, a]
            spread = error[a]
            for i in range(n):
                gain[i] = 0.0
                for j in range(n):
                    gain[i] += p[i, j] * seen[a, j]
            for i in range(n):
                spread += seen[a, i] * gain[i]
                wrong -= seen[a, i] * x[i]
            for i in range(n):
                x[i] += gain[i] / spread * wrong
                for j in range(n):
                    p[i, j] -= gain[i] * gain[j] / spread
        for i in range(n):
            states[t, i] = x[i]
    return states


def insertion_sort(x):
    x = x.copy()
    for i in range(1, len(x)):
        key = x[i]
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = key
    return x


def heat(start, steps):
    u = start.copy()
    new = start.copy()
    height, width = u.shape
    for _ in range(steps):
        for i in range(1, height - 1):
            for j in range(1, width - 1):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                new[i, j] = u[i, j] + 0.1 * (around - 4.0 * u[i, j])
        for i in range(1, height - 1):
            for j in range(1, width - 1):
                u[i, j] = new[i, j]
    return u


def arguments(name, size, seed=0):
    """Arguments of a kernel: the side of its matrices is `size`."""
    rng = np.random.default_rng(seed)
    square = rng.uniform(0.5, 1.5, size=(size, size))
    if name == "lu":
        return (square + size * np.eye(size),)
    if name == "insertion_sort":
        return (rng.normal(size=size),)
    if name == "heat":
        return square, 10
    if name == "kalman":
        sees = max(size // 2, 1)
        wide = rng.normal(size=(sees, size))
        step = 0.9 * np.eye(size) + 0.02 * square / size
        noise = 0.1 * np.eye(size)
        return rng.normal(size=(50, sees)), step, wide, noise, np.ones(sees)
    return (square,)


KERNELS = {
    f.__name__: f for f in (sobel, floyd_warshall, lu, lu_pivoted, kalman, heat, insertion_sort)
}
