"""Branches, loops and escapes: compiled, they do what Python does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from delian.core.compiler.frontend import trace

F = np.float32
X = np.array([1.0, -2.0, 3.0], F)


def names(f, *args):
    return [op.name for op in trace(f, *args).function.body.walk()]


def both_ways(agree, f, *values):
    for v in values:
        agree(f, v, dtypes=False)


def test_if_of_the_running_program(agree):
    def f(x):
        y = x
        if x > 0:
            y = x * 2
            z = 1
        else:
            z = x - 1
        return y, z

    both_ways(agree, f, F(2), F(-2))


def test_if_without_else(agree):
    def f(x):
        if x > 1:
            x = x / 2
        return x

    both_ways(agree, f, F(4), F(0))


def test_elif_chains(agree):
    def f(x):
        if x > 2:
            y = 10.0
        elif x > 1:
            y = 20.0
        elif x > 0:
            y = x
        else:
            y = -x
        return y

    both_ways(agree, f, F(3), F(1.5), F(0.5), F(-7))


def test_static_conditions_are_taken_while_compiling(agree):
    def f(x):
        if x.ndim == 1 and len(x) == 3:
            y = x.sum()
        else:
            y = undefined_name  # noqa: F821
        return y

    agree(f, X)
    assert "if" not in names(f, X)


def test_conditional_expressions(agree):
    def f(x):
        return (x if x > 0 else -x), (1 if x > 0 else 2.5), "a" if True else "b"

    def g(x):
        return f(x)[:2]

    both_ways(agree, g, F(4), F(-3))


def test_early_returns(agree):
    def f(x):
        if x > 10:
            return x
        if x > 5:
            x = x + 100
            if x > 108:
                return -x
        x = x * 2
        if x < 0:
            return F(0.5)
        return x + 1

    both_ways(agree, f, F(11), F(9), F(6), F(-1), F(2))


def test_returns_of_trees_in_both_branches(agree):
    class Pair(NamedTuple):
        a: object
        b: object

    def f(x):
        if x > 0:
            return Pair(x, {"k": 1}), [x]
        return Pair(x * 2, {"k": x}), [F(3)]

    both_ways(agree, f, F(1), F(-1))


def test_falling_off_the_end_gives_none(compiled):
    def f(x):
        x + 1

    assert compiled(f, X) is None


def test_and_or_not(agree):
    def f(x, y):
        a = x > 0 and y > 0
        b = x > 0 or y > 0
        c = not x > 0
        d = True and x > 0
        e = False or (x > y and not (y > 3 or x < 1))
        return a, b, c, d, e

    for x in (-1, 2):
        for y in (-1, 4):
            agree(f, F(x), F(y))


def test_and_of_numbers_gives_one_of_them(agree):
    def f(x, y):
        return (x and y), (x or y)

    for x in (0, 2):
        agree(f, F(x), F(3))


def test_the_right_side_of_and_is_computed_only_when_wanted(agree):
    def endless(x):
        while x > 0:
            x = x + 1
        return x > -5

    def f(x):
        return x < 0 and endless(x), x > 0 or endless(x)

    both_ways(agree, f, F(-1), F(-9))

    def g(x):
        return x < 0 and endless(x)

    agree(g, F(1))


def test_chained_comparisons(agree):
    both_ways(agree, lambda x: 0 < x < 2 <= 3, F(1), F(2), F(-1))


def test_while(agree):
    def f(x):
        count = 0
        while x > 1:
            x = x / 2
            count += 1
        return x, count

    both_ways(agree, f, F(100), F(0.5))


def test_while_true_with_break(agree):
    def f(x):
        n = 0
        while True:
            x = x * 2
            if x > 50:
                break
            n += 1
        return x, n

    both_ways(agree, f, F(1), F(60))


def test_static_while_is_unrolled_where_its_counter_is_needed(agree):
    def f(x):
        pieces = []
        k = 0
        while k < 3:
            pieces.append(x[k])
            k += 1
        return pieces, k

    agree(f, X)


def test_for_over_a_range_of_the_running_program(agree):
    def f(x, n):
        total = 0.0
        for i in range(n):
            total = total + x[i % 3] * i
        return total

    for n in (0, 1, 5):
        agree(f, X, np.int32(n), dtypes=False)


@pytest.mark.parametrize("bounds", [(2, 7, 1), (7, 2, -2), (0, 9, 4), (3, 3, 1), (5, 2, 1)])
def test_ranges_with_start_and_step(bounds, agree):
    start, stop, step = bounds

    def f(a, b):
        total = 0
        for i in range(a, b, step):
            total = total * 10 + i
        return total

    agree(f, np.int64(start), np.int64(stop))


def test_a_static_range_becomes_one_region(agree):
    def f(x):
        for i in range(100):
            x = x * 0.5 + i
        return x

    agree(f, X)
    assert names(f, X).count("mul") == 1


def test_a_static_range_is_unrolled_when_the_body_needs_the_index(agree):
    layers = (1.0, 2.0, 3.0)

    def f(x):
        for i in range(3):
            x = x * layers[i]
        return x

    agree(f, X)
    assert "for" not in names(f, X)


def test_a_static_range_is_unrolled_when_a_shape_changes(agree):
    def f(x):
        for _ in range(3):
            x = x[:, None] + x.reshape(-1)[0]
            x = x.reshape(-1)[: x.shape[0]]
            x = np.concatenate([x, x])
        return x

    agree(f, X)


def test_lists_grow_in_static_loops(agree):
    def f(x):
        outs = []
        for i in range(4):
            outs.append(x + i)
        return outs, np.stack(outs)

    agree(f, X)


def test_break_and_continue(agree):
    def f(x, n):
        total = 0.0
        for i in range(n):
            if i == 2:
                continue
            total = total + x[i % 3]
            if total > 6:
                if i > 3:
                    break
                total = total - 1
        return total, x

    for n in (0, 3, 9):
        agree(f, X, np.int32(n), dtypes=False)


def test_break_in_an_unrolled_loop(agree):
    def f(x, limit):
        total = 0.0
        for value in (1.0, 2.0, 3.0):
            total = total + value
            if total > limit:
                break
            total = total * x
        return total

    for limit in (0, 4, 100):
        agree(f, F(2), F(limit), dtypes=False)


def test_return_inside_loops(agree):
    def f(x, n):
        for i in range(n):
            for j in range(n):
                if i * j + x > 7:
                    return x, i + j
                x = x + 1
        return x * 100, 0

    for n in (0, 2, 4):
        agree(f, F(1), np.int32(n))


def test_return_inside_while(agree):
    def f(x):
        while x < 100:
            x = x * 3
            if x > 20:
                return x, 1.0
        return x, 2.0

    both_ways(agree, f, F(1), F(200))


def test_for_over_an_array(agree):
    def f(x):
        total, rows = 0.0, 0
        for row in x:
            total = total + row * 2
            rows += 1
        return total * np.ones(2, F), rows

    agree(f, X)


def test_zip_and_enumerate_of_arrays_are_one_region(agree):
    def f(x, y):
        total = np.zeros((), F)
        for i, (a, b) in enumerate(zip(x, y, strict=True)):
            total = total + a * b * (i + 1)
        return total

    long = np.arange(9, dtype=F)
    agree(f, long, long * 2)
    assert "for" in names(f, long, long)


def test_iterating_over_structures_unrolls(agree):
    def f(x):
        total = x
        for name, (scale, shift) in {"a": (2, 1), "b": (3, 0)}.items():
            total = total * scale + shift + len(name)
        for k, v in enumerate([x, x * 2]):
            total = total + v * k
        for a, b in zip((1, 2), reversed((3, 4)), strict=True):
            total = total + a * b
        for i in reversed(range(3)):
            total = total * 2 - i
        return total

    agree(f, X)


def test_a_python_number_takes_the_type_of_what_a_loop_assigns(compiled):
    def f(x, n):
        total, count, scale = 0.0, 0, 1
        for _ in range(n):
            total = total + x.sum()
            count = count + 1
            scale = scale * 0.5
        return total, count, scale

    total, count, scale = compiled(f, X, np.int32(3))
    assert (total.dtype, count.dtype, scale.dtype) == (F, np.int64, np.float64)


def test_scratch_names_may_change_their_type_from_round_to_round(agree):
    def f(x, n):
        temporary = x
        for _ in range(n):
            temporary = x.sum()
            x = x + temporary
        return x

    agree(f, X, np.int32(3))


def test_nested_loops_and_branches(agree):
    def f(x, n):
        best = -1.0
        for i in range(n):
            j = i
            while j > 0:
                if x[j % 3] > best:
                    best = x[j % 3]
                j = j - 1
        return best

    agree(f, X, np.int32(5))


def test_unchanged_names_are_not_carried():
    def f(x, y, n):
        for _ in range(n):
            x = x + y
        return x, y

    (loop,) = [op for op in trace(f, X, X, np.int32(2)).function.body.ops if op.name == "for"]
    assert len(loop.results) == 1


def test_dicts_and_lists_change_within_regions(agree):
    def f(x, n):
        state = {"a": x, "b": 0.0}
        values = [x, x]
        for i in range(n):
            state["a"] = state["a"] * 2
            state["b"] += i
            values[1] = values[1] + state["a"]
        if x[0] > 0:
            state["a"] = state["a"] + 1
        return state, values

    agree(f, X, np.int32(3))


def test_a_branch_keeps_what_it_does_not_change(agree):
    def f(x):
        a, b = x, x * 2
        if x[0] > 0:
            a = b
        return a, b

    agree(f, X)
    agree(f, -X)


def test_swapping_names_in_a_loop(agree):
    def f(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    agree(f, np.int64(10))


def test_walrus_and_augmented_assignment(agree):
    def f(x):
        if (y := x.sum()) > 0:
            y += 1
            y *= 2
        return y

    agree(f, X)
    agree(f, -X)


def test_a_function_that_a_loop_reads_late(agree):
    def f(x, n):
        scale = 1.0

        def step(v):
            return v * scale

        for _ in range(n):
            scale = scale + 1
            x = step(x)
        return x, scale

    agree(f, X, np.int32(3))


def test_loops_that_never_end_are_refused(refusal):
    def f(x):
        while True:
            x = x + 1
        return x

    assert "never ends" in refusal(f, X)


def test_the_body_sees_what_the_test_of_a_while_assigns(agree):
    def f(x):
        total = x
        while (y := total * 2) < 50:
            total = y + 1
        return total, y

    agree(f, F(1))
    agree(f, F(60))


def test_a_name_bound_in_a_comprehension_belongs_to_the_function(agree):
    def f(x):
        last = x
        rows = [last := x * k for k in range(3)]
        return rows, last

    agree(f, X)


def test_lists_that_are_only_replaced_may_have_other_names(agree):
    def f(x, n):
        rows = [x, x * 2]
        first = rows
        for _ in range(n):
            rows = [r + 1 for r in rows]
        if x[0] > 0:
            rows = rows[::-1]
        return rows, first

    agree(f, X, np.int32(2))


def test_a_loop_that_surely_runs_may_be_the_first_to_set_a_name(agree):
    def f(x):
        for i in range(9):
            last = x * i
            if i > 5:
                found = i
            else:
                found = -1
        while True:
            x = x + 1
            seen = x * 2
            if x[0] > 9:
                break
        return last, i, found, seen

    agree(f, X)


def test_what_only_some_rounds_set_has_no_value_after_the_loop(refusal):
    def f(x):
        for i in range(9):
            if x[i % 3] > 2:
                break
            last = x * i
        return last

    assert "`last`" in refusal(f, X)


def test_results_of_different_types_are_refused_however_many_paths_there_are(refusal):
    """Were one of them taken for a name that is not set, zeros would come back."""

    def chain(x, n):
        if n == 0:
            return x * 2
        elif n > 5:
            return x.astype(np.float64)
        return x

    def from_a_loop(x, n):
        for i in range(n):
            if x[0] > i:
                return x
            elif x[1] > i:
                return x.astype(np.float64)
        return x

    def after_a_loop(x, n):
        if n == 7:
            return x.astype(np.float64)
        if n > 3:
            return x
        while x[0] < n:
            if x[1] > 3:
                return x
            x = x + 1
        return x

    for f in (chain, from_a_loop, after_a_loop):
        text = refusal(f, X, np.int64(3))
        assert text.startswith("DL108: the result is"), text
        assert "f64[3]" in text and "f32[3]" in text


def test_a_number_in_known_values(agree):
    def f(x, n):
        y = x * 2 if n in (1, 4) else x
        if n not in {2, 3}:
            y = y + 1
        parts = [x[0], "a", x[2]]
        none = ()
        return y, n in none, x[0] in [x[1], 1.0, "a", None], 3.0 in parts, "a" in parts, 7 in parts

    for n in range(5):
        agree(f, X, np.int64(n))
