"""Functions that change their arguments in place, and those that are refused (`test_in_place`)."""

from __future__ import annotations

import delian as dl
import numpy as np

W = np.arange(4.0)


def ravel_of_an_unknown_layout(x):
    y = np.zeros((2, 3)).T
    y2 = y + 1
    r = y2.ravel()
    r[0] = 9
    return y2, r


def ravel_of_an_argument(m):
    r = m.ravel()
    r[0] = 9
    return m


def reshape_of_an_argument(m):
    y = m * 2
    r = y.reshape(-1)
    r[5] = 9
    m.reshape(2, 8)[1] += r[:8]
    return y


def ravel_of_a_vector(x):
    r = x.ravel()
    r[1] = 9
    return r


def a_captured_array(x):
    W[0] = 5
    return W + x


def a_number_too_large(x):
    u = np.zeros(4, np.uint8)
    u += 300
    return u


def integers_do_not_divide(x):
    u = np.arange(4)
    u /= 2
    return u


def an_argument_within_a_gradient(x):
    def h(v):
        v[0] = 1
        return v.sum()

    return dl.grad(h)(x)


def from_within_a_gradient(x):
    y = x.copy()

    def h(v):
        y[0] = 1
        return v.sum()

    return dl.grad(h)(x)


def out_of_range(x):
    y = x.copy()
    y[5] = 1
    return y


def an_array_does_not_grow(x):
    y = np.zeros(3)
    y += x
    return y


def a_broadcast_is_stale(x):
    y = x.copy()
    yy = np.broadcast_to(y, (2, 4))
    y[0] = 9
    return yy


def one_of_two_functions(x):
    f = (lambda v: v) if x[0] > 1 else (lambda v: v + 1)
    y = x.copy()
    z = f(y)
    y[0] = 50
    return z


def a_best_alias(x):
    best = x.copy()
    cur = x.copy()
    for i in range(4):
        cur[i] *= -1
        if cur.sum() < best.sum():
            best = cur
    return best


def a_swapped_buffer_with_another_name(x):
    a = x.copy()
    b = x * 2
    kept = a
    for k in range(int(x[0])):
        b[k] = a.sum()
        a, b = b, a
    return a, b, kept


def swapped_buffers_of_which_two_are_one(x):
    a = x.copy()
    b = x * 2
    c, d = a * 0.5, b
    for _ in range(int(x[0])):
        a[3] = a[2] * 0.5 + 1
        c, d = d, c
        a, d = d, a
        b, d = d, b
    return a, b, c, d


def a_map_over_what_changes(x):
    y = x.copy()
    total = 0.0
    for v in map(np.sum, [y, y]):
        total += v
        y += 1
    return total


def a_generator_over_what_changes(x):
    y = x.copy()
    total = 0.0
    for k, v in enumerate(v.sum() for v in [y, y, y]):
        total += v * k
        y[k] = 9
    return total


def a_map_that_changes(x):
    y = x.copy()
    return any(map(_changes, [y, y])), y


def _changes(v):
    v += 1
    return True


def an_array_or_a_number(x):
    a = np.zeros(()) if x[0] > 1 else x[0]
    b = a
    a += 1
    return a, b


def returns_nothing(x):
    x[0] = 5
    x += 1


def one_of_two_arguments(x, y):
    x[1:] = y[:-1]
    return x.sum()


def a_view_of_a_result(x):
    x *= 2
    return x[1:], x


def arguments_in_a_dict(d):
    d["a"][0] = 1
    d["b"] += d["a"]


def an_alias_of_an_argument(x):
    y = x
    y -= y.mean()
    return y @ y


def rows_of_an_argument(m):
    for i in range(m.shape[0]):
        m[i] /= m[i].sum()


def a_branch_that_changes_it(x):
    if x[0] > 1:
        x[1] = 0


def whatever_it_is(x):
    x += 1
    return x


def overlapping_strides(x):
    y = x.copy()
    y[::2] = y[:2]
    y[::-1] = y[:]
    y[1:] = y[:-1]
    y[::3] = y[:2]
    return y


REFUSED = {
    "a_swapped_buffer_with_another_name": "DL111",
    "swapped_buffers_of_which_two_are_one": "DL111",
    "overlapping_strides": "DL111",
    "a_map_over_what_changes": "DL111",
    "a_generator_over_what_changes": "DL111",
    "a_map_that_changes": "DL111",
    "an_array_or_a_number": "DL111",
    "ravel_of_an_unknown_layout": "DL111",
    "a_captured_array": "DL111",
    "a_number_too_large": "DL116",
    "integers_do_not_divide": "DL116",
    "an_argument_within_a_gradient": "DL111",
    "from_within_a_gradient": "DL111",
    "out_of_range": "DL114",
    "an_array_does_not_grow": "DL115",
    "a_broadcast_is_stale": "DL111",
    "one_of_two_functions": "DL111",
    "a_best_alias": "DL111",
}
