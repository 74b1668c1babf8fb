"""Loops that change arrays in place copy none that is not read again."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import TensorType, unshared
from delian.core.compiler.passes.lowering.element_selects import convert_branches_to_selects
from delian.core.compiler.passes.lowering.loop_registers import promote_elements_to_scalars
from delian.core.compiler.passes.lowering.scalar_tensors import scalarize
from delian.core.compiler.passes.pipeline import lowered
from delian.core.compiler.passes.schedule.copied_tensors import Copied, copies
from delian.core.compiler.passes.schedule.fuse import schedule
from delian.core.compiler.passes.schedule.memory_plan import Place, plan
from delian.core.compiler.passes.simplify import simplify

_SPEC = importlib.util.spec_from_file_location(
    "delian_in_place_kernels", Path(__file__).parents[3] / "benchmarks/in_place_kernels.py"
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
    asked = 2 if name == "heat" else 1  # The argument, which the caller keeps.
    assert len(found) <= asked


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


def changed_numbers(x: Any) -> Any:
    """Branches that become choices, and branches that must not."""
    y = x.copy()
    best = 0.0
    for i in range(12):
        for j in range(12):
            if y[i, j] > y[j, i]:
                y[i, j] = y[j, i]
            if y[i, j] > 1:
                y[j, i] -= 0.5
                best = y[i, j]
            else:
                y[i, j] += 0.25
            if y[i, i] > 2:
                y[i, j] = 2.0
            else:
                y[i, j] *= 0.5
    return y, best


def test_branches_that_change_numbers_become_choices() -> None:
    function = trace(changed_numbers, TensorType.of(M)).function
    before = function.with_body(simplify(function.body))
    after = convert_branches_to_selects(before)
    counts = [sum(op.name == "if" for op in f.body.walk()) for f in (before, after)]
    assert counts == [3, 1], "the second branch changes another number on each path"
    x = np.random.default_rng(0).uniform(0, 3, (12, 12))
    want = changed_numbers(x)
    for program in (before, after, lowered(after)):
        for got, expected in zip(run_block(program.body, [x]), want, strict=True):
            np.testing.assert_allclose(got, expected, 1e-12)


def one_element(x: Any) -> Any:
    return np.sqrt(x[:1] * 2.0 + x[1:2]) - np.float64(1.0)


def test_tensors_of_one_element_are_numbers() -> None:
    function = trace(one_element, TensorType.of(np.ones(4))).function
    after = scalarize(function.with_body(simplify(function.body)))
    computed = [op for op in after.body.walk() if op.name in ("mul", "add", "sqrt", "sub")]
    assert computed and all(op.result.shape == () for op in computed)
    x = np.arange(4.0) + 1
    np.testing.assert_allclose(run_block(after.body, [x])[0], one_element(x), 1e-15)


def sums_in_place(x: Any) -> Any:
    """Numbers that loops change in one place, and places that others read."""
    y = x.copy()
    sums = np.zeros(12)
    for i in range(12):
        for j in range(12):
            sums[i] += y[i, j] * sums[i - 1]
            y[i, i] *= 0.5
            y[0, 1] += y[i, j]
        for j in range(12):
            sums[i] += x[i, j]
            y[i, 3] = y[i, 3] * 0.5 + x[j, i]
    return y, sums


@pytest.mark.parametrize(
    "f", [sums_in_place, changed_numbers, branches_both_change, kernels.KERNELS["floyd_warshall"]]
)
def test_lowered_programs_compute_the_same(f: Callable[..., Any]) -> None:
    function = trace(f, TensorType.of(M)).function
    function = lowered(function.with_body(simplify(function.body)))
    x = np.random.default_rng(1).uniform(0, 3, (12, 12))
    want = tree.leaves(f(x))
    for got, expected in zip(run_block(function.body, [x]), want, strict=True):
        np.testing.assert_allclose(got, expected, 1e-12)


def test_numbers_that_a_loop_changes_in_one_place_are_carried() -> None:
    function = trace(sums_in_place, TensorType.of(M)).function
    before = function.with_body(simplify(function.body))
    after = promote_elements_to_scalars(before)
    loops = [op for op in after.body.walk() if op.name == "for"]
    carried = [[v.shape for v in op.results] for op in loops]
    assert carried == [[(12, 12), (12,)], [(12, 12), (12,)], [(), ()]]


@pytest.mark.parametrize("name", ["sobel", "floyd_warshall", "lu", "lu_pivoted", "kalman"])
def test_gradients_of_kernels_are_finite_differences(name: str) -> None:
    f = kernels.KERNELS[name]
    given = kernels.arguments(name, 6)
    if name == "kalman":
        given = (given[0][:4], *given[1:])
    weights = [np.random.default_rng(1).normal(size=np.shape(v)) for v in tree.leaves(f(*given))]

    def loss(*args: Any) -> Any:
        out = f(*args)
        first = out[0] if isinstance(out, tuple) else out
        return np.sum(first * weights[0])

    gradient = dl.grad(loss)(*given)
    way = np.random.default_rng(2).normal(size=given[0].shape)
    step = 1e-6
    more, less = (loss(given[0] + s * step * way, *given[1:]) for s in (1.0, -1.0))
    np.testing.assert_allclose(np.sum(gradient * way), (more - less) / (2 * step), 1e-5)
