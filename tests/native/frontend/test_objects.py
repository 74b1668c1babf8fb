"""Objects that a program makes and changes are Python's, or refused, on both back ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from support.frontend_programs import object_programs as programs
from support.frontend_programs import object_refusals as refused

#: Branches of the programs go either way.
ARGUMENTS = (np.array([3.0, 1.0, 2.0, 0.5]), np.array([-1.0, 0.05, 0.25, 4.0]))
ENDLESS = {programs.an_unknown_number_of_rounds}


def assert_alike(got: Any, want: Any) -> None:
    """The same values, up to rounding, of the same classes."""
    assert type(got) is type(want)
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            assert_alike(x, y)
        return
    assert np.asarray(got).dtype == np.asarray(want).dtype and np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", programs.EQUAL, ids=lambda f: f.__name__)
def test_objects_are_those_of_python(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    for x in ARGUMENTS[: 1 if f in ENDLESS else 2]:
        mine, theirs = x.copy(), x.copy()
        got, want = compiled(mine), f(theirs)
        assert_alike((got, mine), (want, theirs))


@pytest.mark.parametrize("f", refused.REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_as_in_python_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(ProgramError) as raised:
        dl.compile(f, backend="reference")(ARGUMENTS[0].copy())
    assert raised.value.code == refused.REFUSED[f]
    assert raised.value.locs[-1].file == refused.__file__


def test_an_object_is_a_result() -> None:
    def f(x: Any) -> Any:
        return programs.Tank().pour(x)

    tank = dl.compile(f)(2.5)
    assert type(tank) is programs.Tank and vars(tank) == {"level": 2.5, "log": []}
    tank.level = 1.0
    assert dl.compile(f)(2.5).level == 2.5


def test_a_gradient_goes_through_attributes() -> None:
    def loss(zs: Any) -> Any:
        x, p, *_ = programs.a_kalman_filter(zs)
        return (x * x).sum() + p.sum()

    zs = np.array([1.0, 2.0, 3.5])
    steps = 1e-6 * np.eye(3)
    wanted = [(loss(zs + step) - loss(zs - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(dl.grad(loss)(zs), wanted, rtol=1e-6)
