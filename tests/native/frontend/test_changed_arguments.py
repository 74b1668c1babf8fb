"""Lists, dicts and dataclass objects of the caller that a function changes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler import in_place


@dataclass
class State:
    w: Any
    steps: int = 0

    def step(self, dw):
        self.w = self.w - 0.5 * dw
        self.steps += 1


def momentum(w, dw, config):
    config.setdefault("rate", 0.1)
    config["v"] = config.get("v", np.zeros_like(w)) * 0.9 - config["rate"] * dw
    return w + config["v"]


def steps(params, slopes):
    for name in params:
        params[name] = params[name] - 0.1 * slopes[name]


def steps_in_place(params, slopes):
    for name in params:
        params[name] -= 0.1 * slopes[name]


def items_of_all_kinds(d, x, n):
    d["array"] = x * 2
    d["number"] = n + 1
    d["scalar"] = x[0]
    d["text"] = "done"
    d["none"] = None
    d["function"] = np.sum
    d["list"] = [n, x + 1]
    d["known"] = 3


def the_callers_own(d, x, y):
    d["x"] = x
    d["x"][0] = 7.0
    d["rows"] = y
    d["a"], d["b"] = d["b"], d["a"]


def one_new_array_twice(d, x):
    v = x + 1
    d["first"] = v
    d["second"] = v


def order_and_deletion(d, x):
    a = d.pop("a")
    del d["b"]
    d["c"] = x
    d["a"] = a
    d |= {"e": 1}


def a_list(rows, x):
    rows.append(x.sum())
    rows.insert(0, rows.pop(1))
    rows[-1] += 1
    rows.extend([rows[0], 2])


def in_branches_and_loops(d, rows, x):
    if x[0] > 0:
        d["n"] = x[0]
        rows[0] = rows[0] * 2
    else:
        d["n"] = x[1]
    while rows[1] < 3:
        rows[1] = rows[1] + 1.0
    for k in range(len(rows)):
        rows[k] = rows[k] + x[1]


def an_object(state, dw):
    state.step(dw)
    state.note = "stepped"
    return state.steps


def nested(tree, x):
    tree["rows"][0]["w"] = tree["rows"][0]["w"] + x
    tree["rows"][1][0] = x * 2
    tree["copy"] = [tree["n"], {"n": tree["n"] + 1}]


def complex_items(d, z):
    d["z"] = z * 2j
    d["w"] = z


def nothing(d, rows):
    rows[0] = rows[0]
    d.update({})
    return len(d)


def clears(d, rows):
    d.clear()
    rows[:] = []


X, Y = np.array([1.0, -2.0]), np.array([0.5, 4.0])
CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (momentum, (X, Y, {})),
    (momentum, (X, Y, {"v": X, "rate": 0.5})),
    (steps, ({"b": X, "a": 2.0}, {"a": 1.0, "b": Y})),
    (steps_in_place, ({"b": X, "a": 2.0}, {"a": 1.0, "b": Y})),
    (items_of_all_kinds, ({"text": "new"}, X, 2)),
    (the_callers_own, ({"a": X, "b": Y}, X + 1, [Y + 1, 1.0])),
    (one_new_array_twice, ({}, X)),
    (order_and_deletion, ({"a": 1.5, "b": X, "d": Y}, X)),
    (a_list, ([1.5, 2, X], Y)),
    (in_branches_and_loops, ({}, [1.0, 0.0], X)),
    (in_branches_and_loops, ({"n": 1.0}, [1.0, 0.0], -X)),
    (an_object, (State(X, 3), Y)),
    (nested, ({"rows": [{"w": X}, [Y, 1]], "n": 2}, X)),
    (complex_items, ({}, np.array([1 + 2j, 3j]))),
    (nothing, ({"a": X}, [Y, 2.0])),
    (clears, ({"a": X}, [Y, 2.0])),
]


def objects(value: Any) -> Iterator[Any]:
    """The arrays, lists, dicts and objects in a value."""
    if isinstance(value, np.ndarray | list | dict | State):
        yield value
    held = vars(value) if isinstance(value, State) else value
    held = held.values() if isinstance(held, dict) else held
    for each in held if not isinstance(held, np.ndarray) and hasattr(held, "__iter__") else ():
        if not isinstance(each, str):
            yield from objects(each)


def shown(value: Any, before: list[Any]) -> Any:
    """What a value is: classes, numbers, and which of the objects from before the call."""
    place = next((k for k, v in enumerate(before) if v is value), None)
    if isinstance(value, np.ndarray):
        return place, value.dtype, value.tolist()
    if isinstance(value, State):
        return place, shown(vars(value), before)
    if isinstance(value, dict):
        return place, [(k, shown(v, before)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return place, type(value), [shown(v, before) for v in value]
    return type(value), value


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(("f", "args"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_a_call_changes_what_python_changes(
    f: Callable[..., Any], args: tuple[Any, ...], backend: Literal["reference", "native"]
) -> None:
    theirs, ours = deepcopy(args), deepcopy(args)
    compiled = dl.compile(f, backend=backend)
    for _ in range(2):  # the second call has what the first one left
        before, mine = list(objects(theirs)), list(objects(ours))
        want, got = f(*theirs), compiled(*ours)
        assert shown(got, []) == shown(want, [])
        assert shown(ours, mine) == shown(theirs, before)
        if f in (order_and_deletion, clears, the_callers_own):
            break


def refused(f: Callable[..., Any], *args: Any) -> str:
    """Why a call is refused; it changes nothing."""
    before = shown(args, [])
    with pytest.raises(ProgramError) as found:
        dl.compile(f, backend="reference")(*args)
    assert shown(args, []) == before
    assert found.value.code == "DL111"
    return found.value.message


def view_of_an_argument(d, x):
    d["v"] = x[1:]


def two_views(d, x):
    v = x * 2
    d["a"] = v
    d["b"] = [v[1:]]


def within_a_new_list(d, x):
    d["a"] = [x]


def of_two_paths(d, x):
    d["a"] = x if x[0] > 0 else x + 1


@pytest.mark.parametrize("f", [view_of_an_argument, two_views, within_a_new_list, of_two_paths])
def test_items_that_would_share_memory_are_refused(f: Callable[..., Any]) -> None:
    assert "shares its memory" in refused(f, {}, np.ones(3))


OUTSIDE = [1.0, 2.0]


def reads_it_outside_too(rows, x):
    rows[0] = x
    return OUTSIDE[0] + rows[0]


def changes_one_and_reads_the_other(rows, others):
    rows[0] = 5.0
    return others[0]


def test_what_has_other_names_is_refused() -> None:
    assert "outside" in refused(reads_it_outside_too, OUTSIDE, 3.0)
    rows = [1.0]
    assert "another place" in refused(changes_one_and_reads_the_other, rows, rows)
    assert "another place" in refused(changes_one_and_reads_the_other, rows, [rows])


def test_what_else_cannot_change() -> None:
    def put(d, x):
        d["a"] = x

    with pytest.raises(DelianError, match=r"`OrderedDict`[^`]*dict\(x\)"):
        dl.compile(put)(OrderedDict(a=1.0), 2.0)

    def changes_outside(x):
        OUTSIDE[0] = x

    assert "came from outside" in refused(changes_outside, 2.0)


def test_arguments_without_end_are_refused() -> None:
    def put(rows, x):
        rows[0] = x

    rows: list[Any] = [1.0]
    rows.append(rows)
    with pytest.raises(DelianError, match="holds itself"):
        dl.compile(put)(rows, 2.0)


def test_a_derivative_has_copies() -> None:
    def loss(d):
        d["a"] = d["a"] * 2
        return d["a"] ** 2

    d = {"a": 3.0}
    assert dl.grad(loss)(d) == {"a": 24.0}
    assert d == {"a": 3.0}


def raises_after_a_change(d, x):
    d["a"] = x
    if x > 0:
        raise ValueError("positive")


def test_an_error_leaves_all_as_it_was() -> None:
    compiled = dl.compile(raises_after_a_change, backend="reference")
    d: dict[str, Any] = {}
    with pytest.raises(ValueError, match="positive"):
        compiled(d, 2.0)
    assert d == {}
    compiled(d, -2.0)
    assert d == {"a": -2.0}


def test_a_list_that_each_call_makes_longer_is_warned_of() -> None:
    def append(rows, x):
        rows.append(x)

    compiled = dl.compile(append, backend="reference")
    rows: list[float] = []
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for k in range(in_place.GROWN_MAX + 4):
            compiled(rows, float(k))
    assert rows == [float(k) for k in range(in_place.GROWN_MAX + 4)]
    assert [w.category for w in met] == [RuntimeWarning]
    assert "`rows`" in str(met[0].message)
    assert met[0].filename == __file__
