"""Changes in place in loops: iterators, swapped names, lanes of vmap (`test_in_place`)."""

from __future__ import annotations

import delian as dl
import numpy as np


def zip_with_a_list(x):
    y = x.copy()
    for a, b in zip(y, [0, 1, 2, 3], strict=False):
        y[1] += a - b + 2
        y[3] = a
    for a, b in zip(y, (0, 1, 2, 3), strict=False):
        y[2] += a * b
    return y


def swapped_in_a_loop(x):
    a = np.zeros(4)
    b = np.ones(4)
    for _ in range(3):
        a, b = b, a + x
    return a - b


def a_copy_within_vmap(x):
    return dl.vmap(lambda r: (lambda q: np.add(q, 1, out=q))(r.copy()))(np.outer(x, x))


def places_within_vmap(x):
    def h(r, i):
        r = r.copy()
        r[i] = 7
        r[r > 3] = 0
        return r

    return dl.vmap(h)(np.outer(x, x), np.arange(4))


def a_swap_of_elements(x):
    y = x.copy()
    y[0], y[1] = y[1], y[0]
    return y


def zip_sees_changes(x):
    y = x.copy()
    it = zip(y, y[::-1], strict=True)
    y[0] = 9
    t = 0.0
    for a, b in it:
        t = t + a * b
    return t


def a_map_that_was_kept(x):
    y = x.copy()
    m = map(np.copy, [y])
    y[0] = 77
    return list(m)


def _doubled(v):
    v *= 2
    return v


def a_list_of_what_changes(x):
    y = x.copy()
    return [_doubled(v) for v in [y, y, y]]


def lists_zipped_while_they_change(x):
    weights, steps = [x.copy(), x * 2], [x * 0.1, x * 0.2]
    for w, g in zip(weights, steps, strict=True):
        w -= g
        g[0] = 3
    return weights, steps


def a_generator_that_was_kept(x):
    y = x.copy()
    m = (v * 1 for v in [y])
    y[0] = 77
    return list(m)


def buffers_that_swap(x):
    n = int(x[0])
    a = x.copy()
    b = x.copy()
    for _ in range(n):
        for i in range(1, 3):
            b[i] = 0.5 * (a[i - 1] + a[i + 1])
        a, b = b, a
    a[0] = 7
    b[1] -= 1
    return a, b


def buffers_that_swap_by_a_third_name(x):
    u = x.copy()
    v = np.zeros_like(x)
    while u.sum() < 40:
        v[1:] = u[1:] + u[:-1]
        v[0] += 1
        held = u
        u = v
        v = held
    return u, v


def buffers_that_swap_in_a_branch(x):
    a, b, c = x.copy(), x * 2, x * 3
    for k in range(4):
        a[k] += 1
        if a[k] > 3:
            a, b = b, a
        else:
            a, b, c = b, c, a
        b[0] -= c[k]
    return a, b, c


def a_name_that_a_loop_binds_again_and_changes(x):
    u = x.copy()
    for k in range(4):
        u[k] = 1.0
        u = u * 2
    u += 1
    return u


def in_the_test_of_a_loop(x):
    y = x.copy()
    n = 0

    def bump():
        y[0] += 1
        return y[0]

    while bump() < 10:
        n += 1
    return y, n
