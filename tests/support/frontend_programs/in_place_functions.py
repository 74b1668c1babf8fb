"""Functions that change arrays in place, of a vector x of four or a matrix m (`test_in_place`)."""

from __future__ import annotations

import delian as dl
import numpy as np

W = np.arange(4.0)


def a_view(x):
    y = x.copy()
    v = y[1:]
    v += 1
    y[0] = 7
    return y


def an_alias_and_overlap(x):
    y = x * 1
    w = y
    y[1:] = y[:-1]
    return w


def elements_in_a_loop(x):
    y = np.zeros(4)
    for i in range(4):
        y[i] = x[i] * 2
        y[i] += 1
    return y


def branches_change_one_array(x):
    y = np.zeros(4)
    z = y
    if x[0] > 0:
        y[1] = 5
    else:
        z[2] = 3
    return y + z


def ravel_and_transpose(x):
    y = np.zeros((3, 4))
    r = y.ravel()
    r[::2] = x.sum()
    t = y.T
    t[1] += 2
    return y


def masks_and_places(x):
    y = x.copy()
    y[y > 1] = 0
    y[[0, 1, 0]] = [1.0, 2.0, 3.0]
    return y


def rows_of_a_loop(x):
    m = np.outer(x, x)
    for row in m:
        row -= row.mean()
    return m


def while_an_element_is_small(x):
    y = np.zeros(4)
    i = 0
    while y[i] < 3.0:
        y[i] += 1
        if y[i] > 2:
            y[(i + 1) % 4] = 1
    return y


def add_at(x):
    y = np.array([1.0, 2.0, 3.0, 4.0])
    y[0] = x[0]
    y /= 2
    np.add.at(y, np.array([0, 0, 1]), x[:3])
    return y


def out_and_copyto(x):
    y = np.empty(4)
    np.add(x, x, out=y)
    y.sort()
    np.copyto(y[:2], 0)
    return y


def floyd_warshall(x):
    m = np.outer(x, x)
    np.fill_diagonal(m, 0)
    n = len(m)
    for k in range(n):
        for i in range(n):
            for j in range(n):
                m[i, j] = min(m[i, j], m[i, k] + m[k, j])
    return m


def helpers(x):
    y = x.copy()

    def h(v):
        v[0] = 9
        v *= 2

    h(y)
    h(y[1:])
    return y


def read_one_of_two(x):
    a = x.copy()
    b = x + 1
    if x[0] > 0:
        c = a
    else:
        c = b
    return c + a


def diffusion(x):
    u = x.copy()
    un = x.copy()
    for _ in range(5):
        un[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[...] = un
    return u


def read_a_ravel(m):
    r = m.reshape(-1)
    return r.sum(), m


def reshape_of_a_stride(x):
    y = x[::2]
    z = y.reshape(2, 1)
    z[0] = 5
    return x


def ravel_of_a_stride_is_a_copy(x):
    y = x.copy()[::2]
    z = y.ravel()
    z[0] = 5
    return y, z


def a_closure_sees_changes(x):
    y = x.copy()

    def g():
        return y.sum()

    y[0] = 3
    s = g()
    y += 1
    return s, g()


def entries_of_a_list_in_a_loop(x):
    rows = [x * 1, x * 2]
    a = rows[0]
    for i in range(3):
        rows[0][1] += i
    return a, rows


def rows_of_a_list(x):
    rows = [x * 1, x * 2]
    for r in rows:
        r -= 1
    return rows


def entries_of_a_dict(x):
    d = {"a": x * 1}
    y = d["a"]
    d["a"] += 1
    d["a"][0] = 5
    if x[1] > 0:
        d["a"][2] = 7
    return y


def a_copy_of_a_captured_array(x):
    y = W.copy()
    y[0] = x[0]
    return y


def an_array_of_known_values(x):
    y = W * 2
    z = y
    y += x
    return z


def an_array_without_axes(x):
    t = np.zeros(())
    u = t
    t += x[0]
    return u


def a_total_in_an_array(x):
    t = np.array(0.0)
    for v in x:
        t += v
    return t


def a_number_is_not_an_array(x):
    s = x.sum()
    u = s
    s += 1
    return u, s


def an_element_is_a_number(x):
    y = x.copy()
    e = y[0]
    y[0] = 100
    return e


def two_views_at_once(x):
    y = x.copy()
    a, b = y[:2], y[2:]
    a[:], b[:] = b, a
    return y


def an_overlapping_move(x):
    y = x.copy()
    y[1:], y[0] = y[:-1].copy(), 0
    return y


def bytes_wrap(x):
    u = np.zeros(4, np.uint8)
    u[0] = 200
    u += u
    u[1] += 3
    return u


def f32_stays_f32(x):
    u = np.zeros(4, np.float32)
    u += x
    u[0] = x[1]
    return u


def integers_are_cut(x):
    u = np.arange(4)
    u[0] = 2.7
    u[1:] = x[1:]
    u //= 2
    return u


def truths(x):
    u = x > 1
    u[0] = 0.0
    u |= x < 1
    u &= True
    return u


def one_of_two_arrays(x):
    y = x.copy()
    y = y if x[0] > 1 else y * 2
    y[0] = 3
    return y


def after_a_loop_that_rebinds(x):
    y = x * 1
    for _ in range(3):
        y = y * 2
    y[0] = 1
    return y


def changed_and_rebound_in_a_loop(x):
    y = x * 1
    for i in range(3):
        y[0] = i
        y = y * 2
    return y


def beside_a_gradient(x):
    y = x.copy()
    g = dl.grad(lambda v: (v * y).sum())(x)
    y[0] = 5
    return g, y


def a_copy_within_a_gradient(x):
    def h(v):
        v = v.copy()
        v[0] = v[1] ** 2
        return v.sum()

    return dl.grad(h)(x)


def rows_columns_and_windows(x):
    y = np.zeros((4, 4))
    y[1] = x
    y[:, 2] = x
    y[..., 3] = 1
    y[None, 0] = 2
    y[1:3, 1:3] += np.eye(2)
    return y


def by_argmax(x):
    y = x.copy()
    i = np.argmax(y)
    y[i] = -1
    y[i - 1] += 2
    return y


def twice_in_a_list(x):
    y = x.copy()
    c = [y] * 2
    c[0][0] = 4
    return c


def appended_in_a_loop(x):
    acc = []
    y = x.copy()
    for i in range(3):
        y[i] = 0
        acc.append(y)
    return acc


def within_and(x):
    y = x.copy()
    _ = True and (np.copyto(y, 1.0) is None)
    return y


def a_helper_in_conditions(x):
    y = x.copy()

    def bump():
        y[0] += 1
        return y[0]

    t = x[0] > 100 and bump() > 0
    u = bump() if x[0] > 0 else 0.0
    return y, t, u


def asarray_and_array(x):
    y = np.linspace(0, 1, 4)
    z = np.asarray(y)
    z[0] = 5
    w = np.array(y)
    w[1] = 7
    return y, z, w


def the_array_of_the_loop(x):
    y = x.copy()
    for i, v in enumerate(y):
        y[(i + 1) % 4] = v + 1
    return y


def a_reversed_sort(x):
    y = x.copy()
    y.sort()
    y[::-1].sort()
    return y


def arrays_of_places(x):
    y = np.tile(x, (3, 1))
    y[np.arange(3), np.arange(3)] = 9
    y[[0, 1], :][0] = 100
    y[np.array([0, 2])][:, 1] = 5
    y[y < 1] += 1
    return y


def sequences_as_values(x):
    y = np.zeros((3, 4))
    y[:] = x
    y[1, :] = [1, 2, 3, 4]
    y[2] = (5,)
    y[0] = np.ones((1, 4))
    return y


def matmul_and_power_in_place(x):
    y = x.copy()
    y @= np.eye(4) * 2
    y **= 2
    y %= 3
    return y


def a_best_copy(x):
    best = x.copy()
    cur = x.copy()
    for i in range(4):
        cur[i] *= -1
        if cur.sum() > best.sum():
            best = cur.copy()
    return best


def a_scratch_array(x):
    y = np.zeros(4)
    for i in range(3):
        t = np.zeros(4)
        t[i] = x[i]
        y += t
    return y


def a_mask(x):
    y = np.full((2, 2), 1.0)
    y[0, 0] = np.nan
    y[np.isnan(y)] = 0
    return y


def an_element_with_an_ellipsis(x):
    e = x.sum()[...]
    f = e
    f += 1
    a, b = x[0, ...], x.copy()
    c = b[1, ...]
    c += 5
    return e, f, a, b, c


def numbers_of_python(x):
    a = b = float(x[0])
    a += 1
    k = j = int(x[1])
    k += True
    t = x[2]
    u = t
    u *= 2
    y = x.copy()
    y[1] += k
    y[2] *= a
    return a, b, k, j, t, u, y


def put_and_place(x):
    y = x.copy()
    np.put(y, [0, -1], [9.0, 8.0])
    np.put(y, np.argsort(x)[:3], y[1:3] * 2)
    z = np.zeros((2, 4))
    np.put(z, [1, 4, 6], 1)
    np.putmask(z, np.concatenate([x, y]) > 2, [1, 2, 3])
    np.place(z[:, ::2], [True, True, False, True], x)
    i = np.arange(4)
    np.put(i, [2], 1.5)
    np.place(y, y > 3, x[:2])
    np.putmask(y, x > 2, x * x)
    np.putmask(i, x < 3, 7)
    return y, z, i


def a_truth_as_an_index(x):
    y = x.copy()
    y[x[0] > 1] = 0
    y[x[0] < 1] = 5
    y[x[1] > 0] *= 2
    return y
