"""What the front end's tests share: running a function compiled, and reading a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.frontend import trace
from delian.core.compiler.verify import verify


def run_compiled(f: Callable[..., Any], *args: Any) -> Any:
    """Through the whole front end and the reference back end."""
    traced = trace(f, *args)
    verify(traced.function)
    arrays = [np.asarray(a) for a in traced.arguments(*args)]
    return traced.result(ReferenceProgram(traced.function)(*arrays))


@pytest.fixture
def compiled() -> Callable[..., Any]:
    return run_compiled


@pytest.fixture
def agree() -> Callable[..., None]:
    """Asserts that a function gives the same values, dtypes and shapes compiled as it does in
    NumPy.

    `dtypes=False` where Python's own depends on the path taken: a program has one type for all
    paths.
    """

    def check(f: Callable[..., Any], *args: Any, rtol: float = 1e-5, dtypes: bool = True) -> None:
        got, structure = tree.flatten(run_compiled(f, *args))
        with np.errstate(all="ignore"):
            want, expected = tree.flatten(f(*args))
        assert structure == expected
        for x, y in zip(got, want, strict=True):
            y = np.asarray(y)
            assert x.shape == y.shape
            assert not dtypes or x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6)

    return check


@pytest.fixture
def refusal() -> Callable[..., str]:
    """The message of the ProgramError that tracing raises, file names cut to their last part."""

    def text(f: Callable[..., Any], *args: Any) -> str:
        with pytest.raises(ProgramError) as caught:
            trace(f, *args)
        message = str(caught.value)
        for loc in caught.value.locs:
            message = message.replace(loc.file, Path(loc.file).name)
        return message

    return text
