"""Views by strides, and what else is asked of an array's place in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from numpy.lib.stride_tricks import as_strided, sliding_window_view


def frames(x):
    shape = (*x.shape[:-1], x.shape[-1] - 2, 3)
    return as_strided(x, shape=shape, strides=(*x.strides, x.strides[-1]))


def every_second_frame(x):
    return frames(x)[..., ::2, :] * 2.0


def toeplitz(x):
    flat = x.ravel()
    values = np.concatenate((flat[::-1], flat[1:]))
    step = values.strides[0]
    return as_strided(values[len(flat) - 1 :], (len(flat), len(flat)), (-step, step)).copy()


def blocks(x):
    n = x.strides[-1]
    return as_strided(x, (2, 3), (3 * n, n)).sum(axis=1)


def windows(x):
    return sliding_window_view(x, 2, axis=-1).max(axis=-1)


def windows_of_a_transpose(x):
    return sliding_window_view(x.T, x.T.shape)


def seen_changes(x):
    y = x * 1.0
    v = sliding_window_view(y, 2, axis=-1)
    w = as_strided(y, (2, 2), (8, 16))
    rows = v[..., 0].ravel()
    y[..., 1] = 7.0
    for k in range(3):
        y[..., k] += v[..., k, 0] + w[1, 0]
    return v, w, rows


def strides_of_views(x):
    y = x + 1
    return x.strides, x.T.strides, x[..., ::2].strides, x[..., ::-1].strides, y.T.strides


def no_elements(x):
    return as_strided(x, (0, 5), (8, 8)), x[..., :0].strides


def made_contiguous(x):
    y = x * 1.0
    same = np.ascontiguousarray(y)
    copy = np.ascontiguousarray(y.T[::2])
    same[0] = 5.0
    copy[0] = 6.0
    return y, copy, same.strides, copy.strides


CASES = (
    made_contiguous,
    *(frames, every_second_frame, toeplitz, blocks, windows, windows_of_a_transpose),
    *(seen_changes, strides_of_views, no_elements),
)
ARRAYS = (np.arange(1.0, 9.0), np.arange(12.0).reshape(3, 4))


def of_complex_numbers(x):
    z = x * (1 + 2j)
    n = z.strides[0]
    rows = as_strided(z, (3, 2), (n, n))
    return rows, sliding_window_view(z, 2), n


def test_views_of_complex_numbers_are_numpys() -> None:
    want = of_complex_numbers(ARRAYS[0])
    assert same(dl.compile(of_complex_numbers, backend="reference")(ARRAYS[0]), want)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(np.array_equal(a, b)) and np.shape(a) == np.shape(b)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("x", ARRAYS, ids=["vector", "matrix"])
@pytest.mark.parametrize("f", CASES)
def test_views_are_numpys(
    f: Callable[..., Any], x: Any, backend: Literal["reference", "native"]
) -> None:
    assert same(dl.compile(f, backend=backend)(x.copy()), f(x.copy()))


def test_a_slope_is_that_of_the_elements() -> None:
    x = np.arange(1.0, 6.0)
    slope = dl.grad(lambda x: (sliding_window_view(x, 3) ** 2).sum())(x)
    assert np.array_equal(slope, 2 * x * [1, 2, 3, 2, 1])


def beyond(x):
    return as_strided(x, (20,), (8,))


def before(x):
    return as_strided(x, (3,), (-8,))


def between_elements(x):
    return as_strided(x, (3,), (4,))


def changes_the_view(x):
    as_strided(x, (3,), (8,))[0] = 1.0
    return x


def at_an_unknown_place(x):
    return as_strided(x[int(x[0]) :][:2], (2,), (8,))


def of_half_an_element(x):
    return as_strided(x, (2.5,), (8,))


def of_a_text(x):
    return sliding_window_view(x, "ab")


def a_window_too_large(x):
    return sliding_window_view(x, 9)


@pytest.mark.parametrize(
    ("f", "code", "words"),
    [
        (beyond, "DL114", "outside of the array"),
        (before, "DL114", "outside of the array"),
        (between_elements, "DL115", "an element has 8 bytes"),
        (changes_the_view, "DL111", r"x\.copy\(\)"),
        (at_an_unknown_place, "DL107", "known"),
        (of_half_an_element, "DL119", "whole number"),
        (of_a_text, "DL119", "whole number"),
        (a_window_too_large, "DL113", "larger"),
    ],
)
def test_other_views_are_refused(f: Callable[..., Any], code: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as found:
        dl.compile(f, backend="reference")(np.arange(5.0))
    assert found.value.code == code


@pytest.mark.parametrize(
    "x", [np.ones((3, 4)).T, np.ones(4)[None], np.ones(8)[::4][:1], np.ones((3, 0))]
)
def test_strides_that_the_program_cannot_know_are_refused(x: Any) -> None:
    with pytest.raises(ProgramError, match="lies in memory"):
        dl.compile(lambda x: x.strides, backend="reference")(x)
    with pytest.raises(ProgramError, match="lies in memory"):
        dl.compile(lambda x: (x + 1)[None].strides, backend="reference")(np.ones(3))
