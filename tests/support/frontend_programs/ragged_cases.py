"""Functions of arrays whose length the data decide; the names of the arguments are in `VALUES`."""

from __future__ import annotations

from typing import Any

import numpy as np

VALUES: dict[str, Any] = {
    "x": np.array([1.5, -2.5, 0.5, 2.5, -0.5, 1.5, 4.0]),
    "y": np.array([3.0, 1.0, -2.0, 0.25, 1.0, -1.5, 2.0]),
    "n": np.array([-1.0, -2.0, -3.0, -0.5, -1.0, -1.0, -9.0]),
    "e": np.array([np.nan, 1.0, np.inf, np.nan, -np.inf, 2.0, 1.0]),
    "f": np.array([1, -2, 3, 4, -5, 6, 7], np.float32),
    "k": np.array([5, -7, 2, 0, -7, 3, 3]),
    "i": np.array([3, 0, 6, 3, 1, 2, 5]),
    "m": np.array([3, -4, 5, 5, 2, 1, 0], np.int32),
    "o": np.array([250, 3, 7, 3, 0, 9, 250], np.uint8),
    "h": np.array([True, False, True, True, False, False, True]),
    "w": np.arange(21.0).reshape(7, 3) % 5 - 2,
    "v": np.arange(12.0).reshape(3, 4) - 5,
    "a": np.arange(6.0),
    "p": 1.25,
    "q": 2,
    "z": np.array([1.5 + 1j, -2.5j, 0.5, 2.5 + 3j, -0.5 - 1j, 1.5j, 4.0]),
    "t": True,
}

#: Equal to NumPy's result, dtype and shape, or to the error that it raises.
SAME: list[Any] = [
    lambda x: x[x > 0],
    lambda x, n: x[n > 9][np.argsort(x[n > 9])],
    lambda x, n: x[n > 0][1:][np.argsort(x[n > 0][1:])],
    lambda x, h: (x[h], x[~h], x[h & (x > 1)]),
    lambda x, n: (x[n > 0], n[n > 0].size, n[n > 0].sum()),
    lambda k, m, o, h, f: (k[k > 0], m[m > 2], o[o > 5], h[h], f[f > 0]),
    lambda w, h: (w[h], w[w > 0], w[h].shape[1], w[h][:, 1], w[h, 2], w[h].T),
    lambda v: (v[:, v[0] > -4], v[:, v.sum(0) > 0].sum(1), v[:, v[1] > 0].mean(0)),
    lambda v: v[v > 0].reshape(-1, 1),
    # Axes
    lambda x, w, h: (
        np.expand_dims(x[h], 1),
        np.expand_dims(w[h], (0, -1)),
        np.squeeze(w[h, :1], 1),
    ),
    lambda w, h: (np.squeeze(w[h][:, None], 1), np.expand_dims(w[h], -1).squeeze(-1).sum(0)),
    lambda w, h: np.take_along_axis(w[h], np.argmax(w[h], axis=1)[:, None], axis=1),
    lambda x, h: np.take_along_axis(x[h], np.argsort(x[h]), axis=0),
    lambda w, h: np.broadcast_to(w[h].sum(1, keepdims=True), w[h].shape) * w[h],
    # Places
    lambda x: np.where(x > 0),
    lambda v: (np.where(v > 0), np.nonzero(v), np.argwhere(v > 2), np.flatnonzero(v > 2)),
    lambda x: np.where(x > 0)[0] + 1,
    lambda x, n: (np.where(x > 1)[0][0], np.where(x > 1)[0][-1], len(np.where(n > 0)[0])),
    lambda x, y: (x[np.where(y > 0)], x[np.flatnonzero(y > 0)], y[np.nonzero(x > 2)[0]]),
    lambda v: v[np.where(v > 0)],
    lambda w, x: w[np.flatnonzero(x > 1)],
    lambda x: np.diff(np.where(x > 0)[0]),
    lambda x: np.where(np.diff(np.sign(x)))[0],
    lambda v: v[np.argwhere(v > 2)[:, 0], 1],
    lambda x, h: (np.compress(h, x), np.extract(x > 0, x), np.compress([True, False, True], x)),
    lambda w, h: np.compress(h, w, axis=0),
    lambda v, h: np.compress(h[:4], v, axis=1),
    # Reductions
    lambda x: (x[x > 0].sum(), x[x > 0].mean(), x[x > 0].min(), x[x > 0].max()),
    lambda x: (np.sum(x[x > 0]), np.std(x[x > 0]), np.var(x[x > 0], ddof=1), np.prod(x[x > 1])),
    lambda x: (np.median(x[x > 0]), np.median(x[x > 1]), np.ptp(x[x > 1])),
    lambda x: (x[x > 0].argmax(), np.argmin(x[x < 2]), np.any(x[x > 0] > 3), np.all(x[x > 0] > 3)),
    lambda k, o, f, h: (k[k > 0].sum(), f[f > 0].mean(), k[h].prod(), (o[h] > 5).sum()),
    lambda k, o: (k[k > 0].max(), k[k < 0].min(), o[o > 5].min(), k[k > 0].mean()),
    lambda w, h: (w[h].sum(), w[h].sum(0), w[h].sum(1), w[h].mean(0), w[h].std(0), w[h].max(1)),
    lambda w, h: (w[h].sum(axis=0, keepdims=True), w[h].mean(1, keepdims=True), w[h].min()),
    lambda x, h: (np.linalg.norm(x[h]), np.average(x[h], weights=x[h] ** 2), x[h].any()),
    lambda x, h: (np.cumsum(x[h]), np.cumprod(x[h]), x[h].cumsum(), np.diff(x[h]), x[h].size),
    lambda e, h: (np.sort(e), np.sort(e[h]), e[h].max(), np.median(e[h]), np.argsort(e[h])),
    lambda e: (e[~np.isnan(e)], e[np.isfinite(e)].sum(), np.nansum(e[e != 1])),
    lambda n: (n[n > 0].mean(), n[n > 0].std(), np.median(n[n > 0]), n[n > 0].prod()),
    lambda n: n[n > 0].min(),
    lambda n: np.argmax(n[n > 0]),
    lambda n: (n[n > 0].any(), n[n > 0].all(), np.sort(n[n > 0]), np.cumsum(n[n > 0])),
    lambda n: np.diff(n[n > 0]),
    # Python's own functions
    lambda x, h: (len(x[h]), sum(x[h]), max(x[h]), min(x[h]), any(x[h] > 2), all(x[h] > 2)),
    lambda e, h: (max(e[h]), min(e[~h]), min(e[h])),
    lambda m, h, x: (sum(m[h]), abs(x[h]), sum(x[h] > 1), isinstance(x[h], np.ndarray)),
    lambda n: max(n[n > 0]),
    lambda n: float(sum(n[n > 0])),
    # Arithmetic
    lambda x, y, h: (x[h] + y[h], x[h] * 2, 1 / x[h], -x[h], x[h] ** 2, x[h] > 1, x[h] @ y[h]),
    lambda x, h, p, q: (x[h] * p, x[h] + q, x[h] // p, np.sqrt(np.abs(x[h])), np.exp(x[h])),
    lambda x, h: (
        np.where(x[h] > 1, x[h], 0),
        np.clip(x[h], 0, 2),
        np.round(x[h]),
        np.log(x[x > 0]),
    ),
    lambda x, y, h: (np.maximum(x[h], y[h]), np.arctan2(x[h], 2.0), np.isnan(x[h]), ~(x[h] > 1)),
    lambda x, y: x[x > 0] + y[y > 0],
    lambda x, y: x[x > 0] + y[y > 1],
    lambda x, y: x[x > 3] + y[y > 0],
    lambda x, h, a: x[h] + a[:4],
    lambda x, h, a: x[h] + a[:3],
    lambda x, a: x[x > 3] + a[:3],
    lambda w, h: (w[h] + w[0], w[h] - w[h].mean(0), w[h] / w[h].sum(1, keepdims=True), w[h] * w[h]),
    lambda w, h, x: (w[h] * x[h][:, None], w[h] @ w[0], w[h].T @ w[h], w[h].T @ x[h], w[h] @ w.T),
    lambda w, h: np.dot(w[h].T, w[h]) / len(w[h]),
    lambda x, h: (x[h] == x[h], x[h] is None, 1.5 in x[h], 9.0 in x[h]),
    lambda x, f, h: (x[h] + f[h], f[h] * 2, f[h] + np.float64(1), f[h].astype(np.float64)),
    lambda x, h, k: (x[h].astype(np.int32), k[h] / 2, k[h] % 3, k[h] & 1, k[h] == 2),
    lambda x, h: (np.interp(x[h], [0.0, 1.0, 4.0], [1.0, 2.0, 0.0]), np.digitize(x[h], [0.0, 2.0])),
    lambda x, h: np.isin(x[h], [1.5, 4.0]),
    # Items
    lambda x, h: (x[h][0], x[h][-1], x[h][2], x[h][:2], x[h][1:], x[h][::-1], x[h][1:-1]),
    lambda x, h: (x[h][::2], x[h][-2:], x[h][5:], x[h][:-1], x[h][-9:9], x[h][3:0:-1]),
    lambda x, h: x[h][4],
    lambda x, h: x[h][-5],
    lambda x, h, q: (x[h][q], x[h][:q], x[h][q:], x[h][-q]),
    lambda x, h, q: x[h][q + 3],
    lambda n: n[n > 0][0],
    lambda x: (x[x > 0][x[x > 0] > 2], x[x > 0][np.argsort(x[x > 0])], x[x > 0][[0, 1]]),
    lambda x, y: x[x > 0][y[x > 0] > 0],
    lambda x, y: x[x > 0][y[y > 1] > 0],
    lambda x, y, h: x[h][np.argmax(y[h])],
    lambda w, h: (w[h][0], w[h][0, 1], w[h][1:, 0], w[h][:, :2], w[h][:, None, 0], w[h][-1][0]),
    lambda w, h: w[h][1:3].sum(),
    lambda x, i: x[i[x > 0]],
    lambda x, k: x[k[k > 0]],
    lambda x, k: x[k[k < 0]],
    lambda x, k: x[k[k > 4] + 2],
    # Order
    lambda x, k, o: (np.unique(x), np.unique(k), np.unique(o), np.unique(x > 0)),
    lambda k: np.unique(k, return_index=True),
    lambda k: np.unique(k, return_inverse=True),
    lambda k: np.unique(k, return_counts=True),
    lambda k, v: np.unique(k, True, True, True),
    lambda e, v: (np.unique(e), np.unique(v % 3), np.unique(v, return_inverse=True)),
    lambda x, h: (np.unique(x[h]), np.unique(x[x > 0], return_counts=True), len(np.unique(x))),
    lambda k: (np.unique(k).size, np.unique(k)[0], np.unique(k)[-1], np.unique(k).shape[0]),
    lambda x, k: np.unique(k)[np.argmax(np.unique(k, return_counts=True)[1])],
    lambda x, h: (np.sort(x[h]), np.argsort(x[h]), np.sort(x[h])[::-1], np.flip(x[h])),
    # Joining
    lambda x, y, h: (np.concatenate([x[h], y[~h]]), np.append(x[h], 1.0), np.hstack([x[h], y])),
    lambda w, h: (np.concatenate([w[h], w[~h]]), np.vstack([w[h], w]), np.append(x_(w)[0], 3.0)),
    # What is stacked has one length, and nothing broadcasts.
    lambda x: np.stack([x[x > 3], x[x > 0]]),
    lambda x: np.stack([x[x > 0], x[x > 3]]),
    lambda x: np.stack([x[x > 3], np.ones(2)]),
    lambda x: np.column_stack([x[x > 3], x[x > 0]]),
    lambda x: np.vstack([x[x > 3], x[x > 0]]),
    lambda v: np.concatenate([v[:, v[0] > -3], v[:, v[0] > -4]]),
    lambda x: np.array([x[x > 3], x[x > 0]]),
    # A list or a tuple of such arrays is one array.
    lambda x, h: (np.array([x[h], x[h] * 2]), np.asarray((x[h],)), np.array([[x[h]], [x[h]]])),
    lambda v: (np.size(np.where(v > 0)), np.ndim(np.where(v > 0)), np.array(np.nonzero(v > 0))),
    lambda x, h: (np.sum([x[h], x[h]], axis=0), np.max((x[h], x[h])), np.sqrt([x[h] ** 2])),
    lambda x, h: (np.argmin([x[h], -x[h]], axis=0), np.zeros_like([x[h], x[h]])),
    lambda v: (np.unique(np.where(v > 0)), np.ravel(np.nonzero(v > 0)), v[:, v[0] > -4].ravel()),
    lambda w, h: np.unique(w[h], return_inverse=True),
    # Single truths
    lambda p: (np.array(p)[p > 1], np.array(p)[p > 2], np.float64(p)[np.float64(p) > 1].sum()),
    lambda v: (v[v[0, 0] > 0], v[v[0, 0] < 0], v[:, v[0, 0] < 0, 1:], v[..., v[0, 0] < 0]),
    lambda v: (v[True], v[False], v[0, True], v[True, np.bool_(False)], v[None, True, :2]),
    lambda h, q: (h[h[0]], h[~h[0]].size, np.array(q)[q > 1]),
    # Methods
    lambda v, h: ((v > 0).nonzero(), h.nonzero()[0]),
    lambda x, y, h: (np.column_stack([x[h], y[h]]), np.stack([x[h], y[h]]), np.outer(x[h], y)),
    lambda x, h: (np.zeros_like(x[h]), np.ones_like(x[h]), np.full_like(x[h], 3), np.array(x[h])),
    lambda x, h: (x[h].ravel(), x[h].flatten(), x[h].copy(), np.ravel(x[h]), x[h].reshape(-1)),
    lambda x, h: (np.array_equal(x[h], x[h]), np.array_equal(x[h], x), np.shape(x[h]) == (4,)),
    # What NumPy flattens first
    lambda w, h: (np.take(w[h], 4), w[h].take([0, 5]), np.vdot(w[h].T, w[h])),
    lambda w, x, t: (np.take(w, np.flatnonzero(x > 0)), np.take(x[t], [0, 0])),
    lambda w, h: (np.flatnonzero(w[h]), np.flatnonzero(w[h].T), np.flatnonzero(w > 0)),
    # Means in another type
    lambda o, h: np.average(o[h], weights=o[h]),
    lambda w, h: (np.average(w[h], axis=1, weights=w[h] + 3), np.average(w[h], weights=w[h] + 3)),
    lambda w, h: (np.var(w[h], axis=1, dtype=np.float32), np.std(w[h], axis=1, dtype=np.float32)),
    lambda x, h: (np.mean(x[h], dtype=int), np.mean(x[h], dtype=np.int8), np.mean(h[h])),
    # Conditions of another length
    lambda x, h: (np.compress(h[:2], x[x > 0]), np.extract(h[:3], x[x > 0])),
    lambda x, k: (np.extract(x[x > 0] > 1, np.unique(k)), np.compress(x[x > 0] > 1, k)),
    lambda x, h: np.compress(h, x[x > 0]),
    # Arrays of no axes; one truth
    lambda x, w, h: (x[h][..., 0], x[h][0, ...], w[h][..., 0, 0], w[h][0, ..., 1]),
    lambda x, h: (np.allclose(x[h], x[h]), np.allclose(x[h], [1.5, 0.5, 2.5, 4.0])),
    # Complex numbers
    lambda z, x: (z[x > 0], z[x > 0].real, z[x > 0][0], z[x > 0][::-1], z[z.imag > 0][1:]),
    lambda z, x: (isinstance(z[x > 0], np.ndarray), np.imag(z[x > 0]), z[x > 0][9]),
]


def x_(w: Any) -> Any:
    return np.unique(w), w


def looped(x: Any, h: Any) -> Any:
    total, last = 0.0, -1.0
    for v in x[h]:
        total = total + v * last
        last = v
    return total, last


def looped_by_index(x: Any, y: Any) -> Any:
    places = np.where(x > 0)[0]
    total = 0.0
    for k in range(len(places)):
        total += y[places[k]] * k
    for k, place in enumerate(places):
        total += y[place] * k
        if total > 20:
            break
    for a, b in zip(x[x > 0], y[x > 0], strict=False):
        total += a * b
    for a, b in zip(places, y, strict=False):
        total += a * b
    return total


def rows(w: Any, h: Any) -> Any:
    total = np.zeros(3)
    for row in w[h]:
        total += row * row[0]
    return total


def guarded(x: Any, p: Any) -> Any:
    high = x[x > p * 3]
    if high.size > 0:
        return high.mean()
    return 0.0


def branches(x: Any, y: Any, p: Any) -> Any:
    chosen = x[x > 0] if p > 1 else y[y > 0]
    return chosen, chosen.sum(), len(chosen)


def shrinking(k: Any) -> Any:
    left = np.flatnonzero(k > -100)
    rounds = 0
    while len(left) > 1:
        left = left[left % 2 == rounds % 2]
        rounds += 1
    return left, rounds


def changed(x: Any, y: Any, h: Any) -> Any:
    z = x.copy()
    z[z < 0] = y[z < 0]
    z[h] += y[h]
    z[h] *= 2
    part = z[h]
    part[0] = 9.0
    part[part > 3] = -1.0
    part += 0.5
    part[1] += 2
    return z, part, z.sum()


def scattered(x: Any, y: Any, i: Any, w: Any) -> Any:
    z = np.zeros(7)
    places = np.where(x > 0)[0]
    z[places] = 1.0
    z[places] += y[places]
    u = np.zeros(7)
    u[i[x > 0]] = y[x > 0]
    t = w.copy()
    t[places] = 0.0
    t[np.where(x < 0)[0], 1] = 7.0
    t[t > 1] = t[t > 1] * 2
    return z, u, t


def too_few(x: Any, y: Any) -> Any:
    z = x.copy()
    z[x > 0] = y[y > 1]
    return z


def to_places(x: Any, y: Any) -> Any:
    z = x.copy()
    z[np.where(x > 0)[0]] = y[y > 1]
    return z


def one_value(x: Any, y: Any) -> Any:
    z = x.copy()
    z[x > 0] = y[y > 2]
    z[z < 0] = np.array([4.0, 5.0])
    return z


def sorted_in_place(x: Any, h: Any) -> Any:
    z = x[h]
    z.sort()
    z[0] = 100.0
    return z, z.sum(), z.max(), z.min(), np.sort(z)


def as_index_after_change(x: Any, i: Any, h: Any) -> Any:
    at = i[h]
    at[0] = 1
    return x[at], at


def grows(x: Any, h: Any) -> Any:
    z = x[h]
    z += x[x > 0][:2]
    return z


def in_containers(x: Any, h: Any) -> Any:
    both = (x[h], x)
    asked = isinstance(both, tuple), len(both), type(both) is tuple, bool([x[h]]), callable(both)
    numbered = [k * np.sum(part) for k, part in enumerate([x, x[h]])]
    return (
        asked,
        hasattr(both, "count"),
        numbered,
        [np.sum(a) for a, b in zip(both, both, strict=False)],
    )


def several_axes(w: Any, v: Any, h: Any) -> Any:
    a, b, c, d, e = (w.copy() for _ in range(5))
    a[h, :2] = w[h, :2] * 3
    b[h, :] = np.array([1.0, 2.0, 3.0])
    c[h, ..., 1] -= 5.0
    d[:, np.flatnonzero(w[0] > -2)] = 7.0
    e[2:, w[0] > -2] = 8.0
    cube = np.zeros((3, 4, 2))
    cube[v[:, 0] > -5, 1, :] = 2.0
    cube[v[:, 0] < 0, :, 1] += 1.0
    return a, b, c, d, e, cube


def one_row_of_masks(w: Any) -> Any:
    """A mask that is true once goes with one that is true several times."""
    w = w[:3]
    a, b = w.copy(), w.copy()
    once, often = w[:, 0] == np.max(w[:, 0]), w[0] > -5
    a[once, often] = 7.0
    b[once, [1]] = 8.0
    return a, b, w[once, often], w[w[:, 0] > -9, w[0] == np.max(w[0])], w[once, 1]


def single_truths(v: Any, p: Any) -> Any:
    total = np.array(p)
    total[total > 1] *= 4
    total[~(total > 1)] = -1.0
    total[total > 2] += 0.5
    b, c, d = v.copy(), v.copy(), v.copy()
    b[v[0, 0] < 0, :, 0] = 7.0
    c[v[0, 0] > 0] = 9.0
    d[True] += 1.0
    d[False] = 3.0
    z = v + 1j
    z[v[0, 0] < 0, 1] = 2j
    return total, b, c, d, z


FUNCTIONS: list[Any] = [
    *(looped, looped_by_index, rows, guarded, branches, shrinking, changed, scattered, too_few),
    *(to_places, one_value, sorted_in_place, as_index_after_change, grows),
    *(in_containers, several_axes, one_row_of_masks, single_truths),
]


def scaled(array: Any) -> Any:
    array *= 2
    return array


def added(array: Any, index: Any) -> Any:
    array[index] += 1
    return array


def store(array: Any, index: Any, value: Any) -> Any:
    array[index] = value
    return array


#: Refused, with these words.
REFUSED: list[tuple[Any, str]] = [
    (lambda x, y: x[x > 0][:, None] + y[y > 0], "an array of two axes needs the length"),
    (lambda x: np.zeros(len(x[x > 0])), "a shape must be known"),
    (lambda x: np.fft.fft(x[x > 0]), "`np.fft.fft` needs the length"),
    (lambda w, h: w[h].tolist(), "`tolist` needs the length"),
    (lambda w, h: list(w[h]), "`list` needs the length"),
    (lambda x: tuple(x[x > 0]), "`tuple` needs the length"),
    (lambda x: (*x[x > 0],), "going through"),
    (lambda x: [v * 2 for v in x[x > 0]] + [x[0]], "`+` of a list whose length"),
    (lambda x, h: x[h] if x[h] else 0, "no single truth"),
    (lambda x, y: np.linalg.norm(x[x > 0], 3), "np.linalg.norm of ord=3"),
    (lambda x: np.unique(x, axis=0), "np.unique along an axis"),
    (lambda w, h: np.squeeze(w[h, :1]), "np.squeeze needs the length"),
    (lambda x: np.squeeze(x[x > 0], 0), "np.squeeze needs the length"),
    (lambda w, h: np.take_along_axis(w[h], w[h].astype(int), 0), "take_along_axis needs"),
    (lambda v: np.unique(np.where(v > 0), return_inverse=True), "the inverse of np.unique needs"),
    (lambda x: np.broadcast_to(x[x > 0], (2, 5)), "np.broadcast_to needs the length"),
    (lambda w, h: store(w, (np.arange(w.shape[0]), w[0] > 0), 1.0), "an array of another length"),
    (lambda x: x[x > 0][x[0] > 0], "an index by a single truth"),
    (lambda x: np.sum(x[x > 0], where=x > 0), "`where` of `np.sum`"),
    (lambda x: np.fix(x[x > 0], x), "cannot write to an array whose length"),
    (lambda x: np.full_like(x[x > 0], x), "`fill_value` of `np.full_like`"),
    (lambda x: np.round(x[x > 0], x[x > 0]), "`decimals` of `np.round`"),
    (lambda x: np.expand_dims(x[x > 0], 7), "axis 7 is out of range"),
    (lambda w, h: np.transpose(w[h], 1), "not the axes"),
    (lambda w, h: np.size(w[h], 2), "axis 2 is out of range"),
    (lambda x: np.ravel(x[x > 0], 1.5), "`order` of `np.ravel`"),
    (lambda x: np.dot(x[x > 0], 1, axis=-1), "unexpected keyword"),
    (lambda x: np.average(x[x > 0], 0, 1), "np.average with weights"),
    (lambda x: np.median(x[x > 0], 2), "axis 2 is out of range"),
    (lambda x: np.diff(x[x > 0], axis=None), "an axis"),
    (lambda x: np.diff(x[x > 0], -1), "-1 differences"),
    (lambda x: np.take_along_axis(np.unique(x), 2, 0), "an array of places"),
    (lambda x: x[x > 0].copy(1.5), "too many positional arguments"),
    (lambda x: x[x > 0].astype(int, casting="safe"), "casting"),
    (lambda x: np.nan_to_num(x[x > 0], x[x > 0]), "`copy` of `np.nan_to_num`"),
    (lambda w, h: np.append(w[h].T, 0, axis=1), "arrays of one rank"),
    (lambda x: np.vstack(x[x > 0]), "`np.vstack` needs the length"),
    (lambda x: np.sum(x[x > 0], where=x[x > 0] > 1), "`where` of `np.sum`"),
    (lambda x: np.multiply(x[x > 0], 2, where=x[x > 0] > 1), "`where` of `np.multiply`"),
    # What would be another length, or another order
    (lambda x: np.array(x[x > 0], ndmin=2), "`ndmin` of np.array needs the length"),
    (lambda x: np.zeros_like(x[x > 0], shape=5), "`shape` of `np.zeros_like` is not taken"),
    (lambda x: np.full_like(x[x > 0], 7, shape=3), "`shape` of `np.full_like` is not taken"),
    (lambda w, h: np.ravel(w[h], order="F"), "an order of 'F' needs the length"),
    (lambda w, h: w[h].ravel("F"), "an order of 'F' needs the length"),
    (lambda w, h: w[h].flatten("F"), "an order of 'F' needs the length"),
    (lambda w, h: np.asarray(w[h], order="C"), "depends on how the array lies in memory"),
    (lambda w, x: np.average(w[x > 0], weights=x[x > 0]), "np.average with weights"),
    (lambda x: np.mean(x[x > 0], dtype=bool), "np.mean in bool"),
    (lambda x: np.var(x[x > 0], dtype=int), "round at each step"),
    # Complex numbers
    (lambda z, x: store(z[x > 0], 0, 5), "an assignment needs the length"),
    (lambda z, x: scaled(z[x > 0]), "`*=` needs the length"),
    (lambda z, x: z[x > 0] == z[x > 0], "`==` needs the length"),
    (lambda z, x: -z[x > 0], "`-` needs the length"),
    (lambda z, x: np.prod(z[x > 0]), "`np.prod` needs the length"),
    (lambda z, x: np.max(z[x > 0]), "`np.max` needs the length"),
    (lambda z, x: np.angle(z[x > 0]), "`np.angle` needs the length"),
    (lambda z, x: abs(z[x > 0]), "`abs` needs the length"),
    (lambda z, x: added(z, np.flatnonzero(x > 0)), "`+=` of entries needs the length"),
    (lambda z, x: added(z.reshape(7, 1), (x > 0, 0)), "`+=` of entries needs the length"),
    (lambda x: x[x > 0].astype(complex), "does not become"),
    (lambda x: np.ones_like(x[x > 0], dtype=complex), "does not become"),
    (lambda x: np.cumsum(x[x > 0], dtype=complex), "np.cumsum in complex numbers needs"),
    (lambda x: np.interp(x[x > 0], [0, 1, 2], [0, 1j, 2]), "`np.interp` to complex numbers"),
]

#: Views of rows that a mask picks from `w`, or what NumPy may make one.
VIEWS: list[Any] = [
    lambda a: a[:, 0],
    lambda a: a[:, 1:],
    lambda a: a[..., 0],
    lambda a: a[:, ::-1],
    lambda a: a.T[0],
    lambda a: a[:, None],
    lambda a: a[None],
    lambda a: a[0, ..., 0],
    lambda a: np.ascontiguousarray(a),
    lambda a: a.astype(float, order="C", copy=False),
    lambda a: np.flip(a, 0),
    lambda a: np.flip(a, 1),
    lambda a: a.ravel(),
    lambda a: np.ravel(a),
]
#: The array itself, or a copy.
ARRAYS: list[Any] = [
    lambda a: np.asarray(a),
    lambda a: np.asanyarray(a),
    lambda a: np.asarray(a, dtype=float),
    lambda a: np.array(a, copy=False),
    lambda a: a.astype(float, copy=False),
    lambda a: np.ravel(a[0]).copy(),
    lambda a: np.asarray(a, dtype=np.float32),
    lambda a: np.array(a),
    lambda a: a.astype(float),
    lambda a: a.astype(np.float32, copy=False),
    lambda a: a.flatten(),
    lambda a: a[:, [0, 2]],
    lambda a: a[[0, 1], :1],
]
