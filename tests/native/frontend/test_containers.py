"""Lists and dicts that change in branches and loops: every name and container sees the change."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

X = np.float64(2.0)


def fill(out, n):
    for k in range(n):
        out[0] = out[0] + k


def same(f: Callable[..., Any], *args: Any) -> None:
    got, want = dl.compile(f, backend="reference")(*args), f(*args)
    assert repr(got) == repr(want)


def test_a_row_of_a_list_is_changed_under_another_name():
    def f(x):
        c = [[x, x], [x, x]]
        for i in range(2):
            row = c[i]
            for j in range(3):
                row[0] = row[0] + x * j
        return c

    same(f, X)


def test_a_container_that_holds_the_list_sees_the_change_in_the_loop():
    def f(x, n):
        out = [x]
        held = {"o": out}
        y = x
        for _ in range(n):
            out[0] = out[0] + 1
            y = y + held["o"][0]
        return y, out, held

    same(f, X, np.int64(3))


def test_another_name_sees_a_change_in_a_branch_and_in_a_loop():
    def f(x, n):
        rows = [x]
        also = rows
        if n > 2:
            rows[0] = rows[0] * 5
        for k in range(n):
            also[0] = also[0] + k
        return rows, also

    same(f, X, np.int64(3))
    same(f, X, np.int64(1))


def test_a_helper_changes_its_callers_list_in_a_loop():
    def f(x, n):
        out = [x]
        fill(out, n)
        return out[0]

    same(f, X, np.int64(3))


def test_dicts_and_nested_lists_change_in_branches():
    def f(x, n):
        d = {"a": [x, x], "b": x}
        inner = d["a"]
        if n > 2:
            d["b"] = inner[1] * 3
            inner[1] = x - 1
        else:
            d["a"][0] = x + n
        return d, inner

    for n in (1, 3):
        same(f, X, np.int64(n))


def test_a_change_in_an_expression_that_may_not_be_computed():
    def f(x, n):
        out = [x]

        def bump():
            out[0] = out[0] + 1
            return out[0] > 2

        y = x if n > 2 and bump() else out[0] * 10
        return y, out

    for n in (1, 3):
        same(f, X, np.int64(n))


def test_a_list_that_its_name_is_bound_to_on_one_path_alone_may_not_change(refusal):
    def f(x, n):
        a, b = [x], [x + 1]
        y = a if n > 2 else b
        a[0] = x * 10
        return y[0]

    assert "may be one of several" in refusal(f, X, np.int64(3))


def test_lists_that_only_the_path_knows_may_be_read(agree):
    def f(x, n):
        a, b = [x], [x + 1]
        y = a if n > 2 else b
        state = a
        for _ in range(n):
            state = [state[0] + 1]
        return y[0], state, a

    agree(f, X, np.int64(3))


def test_one_new_list_in_two_places_may_not_change(refusal):
    def f(x, n):
        a, b = [x], [x]
        if n > 2:
            a = [x + 1]
            b = a
        a[0] = x * 7
        return b[0]

    assert "may be one of several" in refusal(f, X, np.int64(3))


def test_a_list_does_not_grow_on_one_path(refusal):
    def f(x, n):
        out = [x]
        if n > 2:
            out.append(x)
        return out

    assert refusal(f, X, np.int64(3)).startswith("DL108: `out` is [f64[], f64[]]")


def test_the_test_of_a_loop_may_change_a_list():
    def f(x, n):
        out, rounds = [x, 0.0], 0

        def bump():
            out[0] = out[0] + 1
            return out[0]

        while bump() < 9 and rounds < n:
            rounds += 1
            if out[0] > 6:
                break
            out[1] += bump()
        return out, rounds

    compiled = dl.compile(f)
    for x, n in ((2.0, 9), (7.5, 9), (0.0, 2), (11.0, 1)):
        assert compiled(x, n) == f(x, n)


def test_a_derivative_changes_no_list_from_outside(refusal):
    def f(x):
        out = [x]

        def loss(v):
            out[0] = v
            return v * v

        return dl.grad(loss)(x), out

    assert "outside a derivative" in refusal(f, X)


# Random programs of lists, names for them, branches and loops.

_HEAD = """
def twice(v):
    v[0] = v[0] * 2


def spread(v, n):
    for k in range(n):
        v[1] = v[0] - v[1] * k


def f(x, n):
    a, b = [x, x + 1.0], [x - 1.0, x * 2.0]
    rows = [a, b, [x, 3.0 * x]]
    d = {"a": a, "r": rows}
    alias = a
"""
_TAIL = "    return a, b, rows, d, alias\n"
_LISTS = ("a", "b", "alias", "rows[0]", "rows[1]", "rows[2]", 'd["a"]', 'd["r"][1]')
_NAMES = ("a", "b", "alias", "rows[0]", "rows[2]", 'd["a"]')


def _lines(rng: random.Random, depth: int, pad: str) -> list[str]:
    out: list[str] = []
    for _ in range(rng.randint(1, 4)):
        one, two = rng.choice(_LISTS), rng.choice(_LISTS)
        k, j = rng.randint(0, 1), rng.randint(0, 1)
        kind = rng.randrange(9 if depth else 6)
        if kind <= 2:
            out.append(f"{pad}{one}[{k}] {rng.choice(('=', '+=', '-='))} {two}[{j}] * 0.5 + 1.0")
        elif kind == 3:
            out.append(f"{pad}twice({one})" if rng.random() < 0.5 else f"{pad}spread({one}, n)")
        elif kind == 4:
            out.append(f"{pad}{rng.choice(_NAMES)} = {two}")
        elif kind == 5:
            out.append(f"{pad}{rng.choice(_NAMES)} = [{one}[1], {two}[0]]")
        elif kind == 6:
            out.append(f"{pad}if {one}[{k}] > {two}[{j}]:")
            out += _lines(rng, depth - 1, pad + "    ")
            if rng.random() < 0.5:
                out.append(f"{pad}else:")
                out += _lines(rng, depth - 1, pad + "    ")
        elif kind == 7:
            out.append(f"{pad}for i in range({rng.choice(('n', '2'))}):")
            out += _lines(rng, depth - 1, pad + "    ")
        else:
            out.append(f"{pad}for row in rows:")
            out.append(f"{pad}    row[{k}] = row[{k}] * 0.5 + {one}[{j}]")
    return out


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int):
    rng = random.Random(seed)
    kept = 0
    for number in range(30):
        text = _HEAD + "\n".join(_lines(rng, 2, "    ")) + "\n" + _TAIL
        name = f"<lists {seed} {number}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        space: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space)
        try:
            got = dl.compile(space["f"], backend="reference")(2.0, 3)
        except ProgramError as e:
            assert e.code in ("DL109", "DL111"), f"{text}\n{e}"
            continue
        kept += 1
        np.testing.assert_allclose(
            dl.tree.flatten(got)[0], dl.tree.flatten(space["f"](2.0, 3))[0], err_msg=text
        )
    assert kept > 10


class _Pair(NamedTuple):
    first: Any
    second: Any = 1

    def __abs__(self) -> Any:
        return abs(self.second)

    def __bool__(self) -> bool:
        return bool(self.second > 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: _Pair(1.0, x) == y,
        lambda x, y: _Pair(1.0, x) == x,
        lambda x, y: np.float64(2) > _Pair(x, 2),
        lambda x, y: _Pair(x, 2) + np.float64(2),
        lambda x, y: _Pair(x) * np.array([1.0, 2.0]),
        lambda x, y: abs(_Pair(1, x)),
    ],
)
def test_a_named_tuple_beside_a_scalar_of_numpy_is_an_array(function: Callable[..., Any]) -> None:
    given = (-2.5, np.float64(1.0))
    got, want = dl.compile(function, backend="reference")(*given), function(*given)
    assert type(got) is type(want)
    np.testing.assert_array_equal(got, want)
