"""Loops that change arrays in place copy none that is not read again."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.backends.native.lower import lowered
from delian.core.frontend import trace
from delian.core.ir import TensorType, unshared
from delian.core.passes.copied import Copied, copies
from delian.core.passes.fuse import schedule
from delian.core.passes.memory import Place, plan
from delian.core.passes.simplify import simplify

_SPEC = importlib.util.spec_from_file_location(
    "delian_in_place_kernels", Path(__file__).with_name("in_place_kernels.py")
)
assert _SPEC is not None and _SPEC.loader is not None
kernels: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(kernels)

M = np.ones((12, 12))


def copied(f: Callable[..., Any], *args: Any) -> list[Copied]:
    """The copies that native code makes, but for single numbers."""
    function = trace(f, *(TensorType.of(a) for a in args)).function
    function = lowered(function.with_body(simplify(function.body)))
    steps = schedule(unshared(function.body))
    planned = plan(steps, lambda _: Place("constant", 0), lambda *_: 0)
    return [c for c in copies(steps, planned) if c.type.size > 1]


@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
def test_kernels_copy_nothing_in_their_loops(name: str) -> None:
    found = copied(kernels.KERNELS[name], *kernels.arguments(name, 12))
    assert [c for c in found if c.depth] == []
    assert len(found) <= 1, "the argument, which the caller keeps"


def branches_both_change(x: Any) -> Any:
    y = x.copy()
    for i in range(12):
        for j in range(12):
            if y[i, j] > y[j, i]:
                y[i, j] -= 1.0
            elif y[i, j] > 0:
                y[j, i] *= 2.0
            else:
                for k in range(12):
                    y[k, j] += y[i, k]
    return y


def a_while_in_a_branch(x: Any) -> Any:
    y = x.copy()
    for i in range(12):
        if y[i, 0] > 1:
            while y[i, i] < 9:
                y[i, i] += y[i, 0]
    return y


def read_after_the_branch(x: Any) -> Any:
    y = x.copy()
    total = 0.0
    for i in range(12):
        if y[i, i] > total:
            y[i, 0] = total
        total += y[i, 1]
    return y, total


@pytest.mark.parametrize("f", [branches_both_change, a_while_in_a_branch, read_after_the_branch])
def test_branches_in_loops_change_where_it_lies(f: Callable[..., Any]) -> None:
    assert [c for c in copied(f, M) if c.depth] == []


def the_old_one_is_read(x: Any) -> Any:
    y = x.copy()
    best = x.copy()
    for i in range(12):
        before = y.copy()
        y[i, 0] += 1.0
        if y[i, 0] > 3:
            best = y @ before
    return y, best


def test_a_version_that_is_read_again_is_copied() -> None:
    assert [c.type for c in copied(the_old_one_is_read, M) if c.depth]
