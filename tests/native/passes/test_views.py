"""The arithmetic of strides, against NumPy's own views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.ir import Builder, DType, TensorType
from delian.core.compiler.passes.schedule.views import (
    cuts_of,
    extents,
    join_cuts,
    own,
    reshape_strides,
    strides_in,
    through,
)
from hypothesis import given
from hypothesis import strategies as st

as_strided = np.lib.stride_tricks.as_strided


def test_shapes_of_the_same_elements_share_loops_when_their_cuts_divide() -> None:
    joined = join_cuts(cuts_of((4, 6)), cuts_of((4, 2, 3)))
    assert joined is not None and extents(joined) == (4, 2, 3)
    assert join_cuts(cuts_of((4, 6)), cuts_of((3, 8))) is None
    assert join_cuts(cuts_of((1, 4, 1, 6)), cuts_of((24,))) == cuts_of((4, 6))


def test_strides_along_the_loops_of_a_finer_space() -> None:
    space = cuts_of((4, 2, 3))
    assert strides_in(space, (4, 6), (6, 1)) == (6, 3, 1)
    assert strides_in(space, (4, 6), (0, 5)) == (0, 15, 5)
    assert strides_in(space, (1, 4, 1, 6, 1), (9, 7, 9, 2, 9)) == (7, 6, 2)
    assert strides_in(space, (), ()) == (0, 0, 0)


@given(data=st.data())
def test_reshape_finds_strides_just_where_numpy_does(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    strides = [data.draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12])) for _ in shape]
    x = as_strided(np.arange(500), shape, [8 * s for s in strides])
    rest, new = math.prod(shape), []
    while rest > 1:
        new.append(data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0])))
        rest //= new[-1]
    found = reshape_strides(shape, strides, new)
    y = x.reshape(new)
    if found is None:
        assert not np.shares_memory(x, y)
    else:
        assert np.array_equal(as_strided(x, new, [8 * s for s in found]), y)


@pytest.mark.parametrize(
    ("name", "attrs", "view"),
    [
        ("transpose", {"perm": (1, 0)}, lambda x: x.T),
        ("reverse", {"axes": (0,)}, lambda x: x[::-1]),
        ("slice", {"start": (1, 0), "stop": (3, 4), "step": (1, 2)}, lambda x: x[1:3, ::2]),
        (
            "broadcast",
            {"shape": (3, 2, 4), "dims": (0, 2)},
            lambda x: np.broadcast_to(x[:, None], (3, 2, 4)),
        ),
        ("reshape", {"shape": (2, 6)}, lambda x: x.reshape(2, 6)),
        ("stop_gradient", {}, lambda x: x),
    ],
)
def test_a_view_has_the_elements_that_numpy_s_has(name: str, attrs: Any, view: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    b = Builder([TensorType(DType.F32, (3, 4))])
    b(name, b.params[0], **attrs)
    found = through(b.ops[0], own(b.params[0]))
    assert found is not None
    expected = view(x)
    flat = x.ravel()[found.offset :]
    places = sum(
        (
            np.arange(n).reshape(-1, *[1] * (expected.ndim - 1 - i)) * s
            for i, (n, s) in enumerate(zip(expected.shape, found.strides, strict=True))
        ),
        np.zeros(expected.shape, np.int64),
    )
    assert np.array_equal(x.ravel()[found.offset + places], expected)
    assert flat.size
