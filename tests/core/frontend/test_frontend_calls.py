"""Functions, closures, classes and Python's own functions, compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from delian.core import tree
from delian.core.api import compile as compile_
from delian.core.api import module, static
from delian.core.frontend import Static, trace

F = np.float32
X = np.array([1.0, -2.0, 3.0], F)


def helper(x, scale=2.0, *rest, shift: float = 0.0, **more):
    for value in rest:
        x = x + value
    return x * scale + shift + sum(more.values())


def test_defaults_keywords_and_rests(agree):
    def f(x):
        args = (1.0, 2.0)
        options = {"shift": 3.0, "a": 1.0}
        return (
            helper(x),
            helper(x, 3.0),
            helper(x, shift=1.0),
            helper(x, *args, 4.0, **options),
            helper(scale=x, x=x),
        )

    agree(f, X)


def test_closures_read_late(agree):
    def f(x):
        k = 1

        def g(y, n=k):
            return y * k + n

        k = 5
        return g(x), g(x, 2)

    agree(f, X)


def test_two_lambdas_on_one_line(agree):
    a, b = lambda x: x + 1, lambda x: x * 2
    pair = (lambda x: lambda y: x + y, lambda x: lambda y: x - y)
    agree(lambda x: (a(x), b(x), pair[0](x)(1), pair[1](x)(2)), X)
    agree(a, X)
    agree(b, X)


def test_functions_of_functions(agree):
    def twice(g):
        return lambda x: g(g(x))

    def compose(*functions):
        def run(x):
            for g in functions:
                x = g(x)
            return x

        return run

    def f(x):
        return twice(np.tanh)(x), compose(np.exp, twice(np.sin), lambda v: v + 1)(x)

    agree(f, X)


def test_partial_reduce_map(agree):
    def f(x):
        double = functools.partial(np.multiply, 2)
        near = functools.partial(helper, shift=1.0)
        total = functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, x + 2])
        return double(x), near(x, 3.0), total, list(map(lambda a, b: a * b, [x, x], [1, 2]))

    agree(f, X)


def test_decorators(agree):
    def doubled(g: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(g)
        def run(*args: Any) -> Any:
            return 2 * g(*args)

        return run

    @doubled
    def outside(x):
        return x + 1

    def f(x):
        @doubled
        def inside(y):
            return y - 1

        return outside(x), inside(x)

    agree(f, X)


def test_compiled_functions_are_inlined(agree):
    @compile_
    def g(x):
        return x * 2

    agree(lambda x: g(x) + 1, X)


def test_static_recursion(agree):
    def power(x, n):
        return 1.0 if n == 0 else x * power(x, n - 1)

    agree(lambda x: power(x, 20), X / 3)


class Point(NamedTuple):
    x: Any
    y: Any = 1.0

    def swapped(self) -> Point:
        return Point(self.y, self.x)


def test_named_tuples(agree):
    def f(x):
        p = Point(x)
        q = Point(y=x, x=p.y)._replace(y=x * 3)
        a, b = q
        return p, q.swapped(), a, b, q._asdict()["x"]

    agree(f, X)


@module
class Layer:
    weight: Any
    name: str = static(default="layer")
    scale: Any = 1.0

    def __call__(self, x):
        return x * self.weight * self.scale

    @property
    def double(self):
        return self.weight * 2

    @functools.cached_property
    def triple(self):
        return self.weight * 3

    @staticmethod
    def make(weight):
        return Layer(weight)

    @classmethod
    def half(cls, weight):
        return cls(weight * 0.5, "half")

    def __matmul__(self, other):
        return self.weight * other

    def __getitem__(self, k):
        return self.weight[k]


@dataclass(frozen=True)
class Wide(Layer):
    bias: Any = field(default_factory=lambda: np.ones(3, F))

    def __call__(self, x):
        return super().__call__(x) + self.bias


def test_modules(agree):
    def f(x):
        a, b = Layer.make(x), Layer.half(x)
        return a(x), b.double, b.triple, a @ x, a[1], len(b.name)

    agree(f, X)


def test_modules_as_arguments_and_results(agree, compiled):
    layer = Layer(X, "given", F(2))
    agree(lambda m, x: m(x), layer, X)
    result = compiled(lambda m: dataclasses.replace(m, scale=m.scale + 1), layer)
    assert isinstance(result, Layer)
    assert result.name == "given"
    assert result.scale == 3


def test_modules_closed_over_are_constants(agree):
    layer = Wide(X, "closed", F(2))
    agree(lambda x: layer(x), X)


def test_inheritance_and_super(agree):
    agree(lambda x: Wide(x)(x), X)
    agree(lambda m, x: m(x), Wide(X), X)


def test_parameters_are_named_by_their_paths():
    def f(params, *rest):
        return {"out": params["a"].weight, "pair": (rest[0], rest[1])}

    function = trace(f, {"a": Layer(X)}, X, X).function
    assert function.param_names == ("params.a.weight", "params.a.scale", "rest.0", "rest.1")
    assert function.result_names == ("out", "pair.0", "pair.1")


def test_static_arguments_are_not_parameters(compiled):
    def f(n, x, mode):
        return x[:n] if mode == "head" else x[n:]

    traced = trace(f, Static(2), X, "head")
    assert traced.function.param_names == ("x",)
    assert compiled(f, Static(1), X, "tail").shape == (2,)


def test_tree_map(agree):
    def f(params, x):
        grown = tree.map(lambda p, q: p * 2 + q + x.sum(), params, params)
        leaves, structure = tree.flatten(grown)
        return grown, tree.map(np.zeros_like, params), tree.unflatten(structure, leaves[::-1])

    agree(f, {"a": X, "b": [X, (X,)]}, X)


def test_comprehensions(agree):
    def f(x):
        n = 2
        a = [x * k for k in range(3) if k != 1]
        b = {str(k): x + k for k in range(n)}
        c = sum(v for v in a)
        d = tuple(x[i] * y for i in range(2) for y in (1, n))
        return a, b, c, d, [row * 2 for row in x], len({k % 2 for k in range(9)})

    agree(f, X)


def test_python_functions_on_tensors_and_static_values(agree):
    def f(x):
        a, b = x[0], x[1]
        return (
            max(a, b, 0),
            min(a, b),
            abs(b),
            float(a) * x,
            int(b * 1.5),
            bool(a),
            round(b * F(0.7)),
            divmod(a, b),
            pow(a, 2),
            sum([a, b], x[2]),
            len(x),
            max([3, 1, 2], key=lambda v: -v),
            sorted([(2, "b"), (1, "a")], reverse=True)[0][0],
            math.sqrt(len(x)) * x,
        )

    agree(f, X, dtypes=False)


def test_any_and_all(agree):
    def f(x):
        return any(v > 2 for v in x), all(v > 2 for v in x), all([True, x[0] > 0]), any(())

    agree(f, X)


def test_introspection_is_static(agree):
    def f(x, p):
        kinds = (isinstance(x, np.ndarray), isinstance(p, Point), isinstance(3, (int, float)))
        found = (hasattr(p, "x"), hasattr(p, "z"), getattr(p, "z", 7), callable(f))
        assert x.dtype == np.float32 and x.ndim == 1, f"bad {x.shape} {kinds!r}"
        assert type(p) is Point
        assert "a" in {"a": 1} and 3 not in (1, 2)
        text = f"{len(x):03d}-{kinds[0]!s}"
        return [x * int(k) for k in (*kinds, *found[:2])], x * found[2], len(text)

    agree(f, X, Point(X))


def test_unpacking(agree):
    def f(x):
        a, (b, *c) = x[0], x
        first, *middle, last = [x, x * 2, x * 3, x * 4]
        p = q = x + 1
        return a, b, c, first, middle, last, p, q

    agree(f, X)


def test_local_containers(agree):
    def f(x):
        items = [x]
        items.append(x * 2)
        items += [x * 3]
        items.extend((x, x))
        last = items.pop()
        table = dict(a=x)  # noqa: C408
        table["b"] = last
        table.update(c=x * 5)
        table["a"] = table["a"] + 1
        copied = list(items)
        copied[0] = x * 9
        for key, value in sorted(table.items()):
            items.append(value * len(key))
        return items, table, copied, table.get("zz", x), [0] * 2

    agree(f, X)


def test_globals_modules_and_constants(agree):
    table = np.arange(3.0)
    agree(lambda x: (x * table, x * math.pi, x + np.pi, table.sum() * x, table[1] + x), X)


def test_operators_on_nested_lists(agree):
    agree(lambda x: (x + [1, 2, 3], [1.5, 2, 3] * x, x @ [1, 0, 1]), X)  # noqa: RUF005


def test_a_change_of_a_global_is_seen_by_the_next_call():
    scale = 2.0

    @compile_(backend="reference")
    def f(x):
        return x * scale

    assert f(F(3)) == 6
    scale = 5.0
    assert f(F(3)) == 15


def test_two_thousand_operations_trace_quickly_enough_to_count():
    def f(x):
        for _ in range(500):
            x = np.tanh(x * 1.01) + x
            x = x - np.mean(x)
            x = x[::-1] if len(x) == 2 else x.reshape(len(x))
        pieces = []
        for k in range(500):
            pieces.append(np.sin(x + k) * k)
        return pieces

    assert len(trace(f, X).function.result_names) == 500


def doubling(g: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: 2 * g(*args)


@doubling
def decorated_recursion(x, n):
    if n == 0:
        return x
    return decorated_recursion(x + 1, n - 1)


def recursion_in_recursion(x, n, m):
    """The inner call ends in the function's own; the outer one does not."""
    if n <= 0:
        return x
    if m > 0:
        x = x + recursion_in_recursion(x, 1, 0)
    return recursion_in_recursion(x * 0.5, n - 1, m)


def test_a_call_of_itself_at_the_end_is_a_loop(agree):
    def climb(x, n, by):
        return climb(x=x + by, n=n - 1, by=by) if n > 0 else x

    f = trace(climb, X, np.int64(4), F(2)).function
    assert [op.name for op in f.body.ops if op.regions] == ["while"]
    agree(climb, X, np.int64(300), F(2))

    def sums(x, n):
        total = climb(x, n, 1.0)
        if total[0] > 5:
            return climb(total, 2, -1.0)
        return climb(total, 3, total)

    agree(sums, X, np.int64(3))
    agree(sums, X, np.int64(9))


def test_a_known_recursion_may_change_shapes_under_conditions_of_the_program(agree):
    def halves(x):
        if x.shape[0] == 1:
            return x[0]
        if x[0] > 0:
            return halves(x[: x.shape[0] // 2])
        return halves(x[x.shape[0] // 2 :])

    agree(halves, np.array([1, -2, 3, 4, 0, 1, -1, 5], F))
    agree(halves, np.array([-1, 2, 3, -4, -1, 1, 1, 5], F))


def test_what_stands_between_a_function_and_itself_is_kept(refusal):
    """The decorator doubles at every level, so this is no loop."""
    assert "it calls itself" in refusal(decorated_recursion, X, np.int64(2))


def test_a_function_made_in_a_recursion_keeps_its_own_names(agree, refusal):
    def build(n, k):
        return k(1.0) if n == 0 else build(n - 1, lambda v: v * n)

    agree(lambda x: build(4, lambda v: v * x), X)
    assert "it calls itself" in refusal(lambda n: build(n, lambda v: v), np.int64(3))


def test_a_choice_of_functions_is_a_switch(agree):
    functions = (np.sin, np.cos, lambda v: v * 2, functools.partial(np.maximum, 0.5))

    def f(x, n):
        return functions[n](x)

    ops = [op for op in trace(f, X, np.int64(1)).function.body.ops if op.regions]
    assert [(op.name, len(op.regions)) for op in ops] == [("switch", 4)]
    for n in (*range(4), -1, -4):
        agree(f, X, np.int64(n))


def test_closures_leave_a_branch_with_what_they_hold(agree):
    def f(x, n):
        k = 1.0
        if n > 2:
            y = np.sum(x) * 2

            def g(v):
                return v * y + k

        elif n > 0:
            g = functools.partial(lambda a, v: a - v, np.exp(x))
        else:
            g = np.tanh
        k = 3.0
        h = g if n == 1 else lambda v: g(g(v))
        return h(x), list(map(g, [x, 2 * x]))

    for n in (3, 1, 2, 0):
        agree(f, X, np.int64(n), dtypes=False)


def test_methods_may_be_chosen(agree):
    @module
    class Line:
        slope: Any

        def up(self, x):
            return self.slope * x

        def down(self, x):
            return -self.slope * x

    def f(x, n):
        line = Line(x + 1)
        if n > 0:
            go = Line(x * 2).up
        else:
            go = line.down
        return go(3.0), (x.sum if n > 1 else x.max)()

    for n in (0, 1, 2):
        agree(f, X, np.int64(n))


def test_an_early_return_of_a_function(agree):
    def chosen(x, n):
        if n > 1:
            k = np.sum(x)
            return lambda v: v + k
        if n > 0:
            return lambda v: v * x[0]
        return np.sin

    def f(x, n):
        return chosen(x, n)(x)

    for n in (0, 1, 2):
        agree(f, X, np.int64(n))


def test_a_dict_keeps_its_order(agree):
    def f(params, x):
        for name, value in params.items():
            x = x + value if name < "b" else x * value
        return {name: value * x for name, value in params.items()}

    one = {"b": X, "a": F(2), "c": F(3)}
    two = {"a": F(2), "c": F(3), "b": X}
    agree(f, one, X)
    agree(f, two, X)
    compiled = compile_(f, backend="reference")
    for params in (one, two, one):
        got, want = compiled(params, X), f(params, X)
        assert list(got) == list(want)
        np.testing.assert_allclose(got["b"], want["b"])


def test_match(agree):
    def f(x, shape, n):
        match shape:
            case {"kind": "circle", "r": r}:
                area = 3.0 * r * r
            case Point(x=w, y=h) if isinstance(w, int):
                area = w
            case Point(w, h):
                area = w * h
            case (w, *rest):
                area = w + sum(rest)
            case None | "none":
                area = 0.0
            case float() | int():
                area = 1.0
            case _:
                area = 2.0
        match n:
            case 0:
                return x * area
            case k if k > 5:
                return x - k.astype(F)
        return x

    shapes = [{"kind": "circle", "r": 2.0}, Point(2.0, 3.0), (1.0, 2.0, 3.0), None, "none", "?"]
    for shape in shapes:
        for n in (0, 3, 7):
            agree(lambda x, n, shape=shape: f(x, shape, n), X, np.int64(n), dtypes=False)


def test_a_loop_carries_a_choice_of_functions(agree):
    """A machine whose states are functions that give the next one."""

    def up(x):
        return x + 1.0, (down if x[0] > 4 else up)

    def down(x):
        return x * 0.5, (stop if x[0] < 1 else down)

    def stop(x):
        return x, stop

    def f(x, n):
        step, last = up, np.sin
        for i in range(n):

            def third(v):
                return v - 1.0

            x, step = step(x)
            if i % 3 == 1:
                last = np.cos
            elif i % 3 == 2:
                last = third
        return last(x), step(x)[0]

    for n in (0, 1, 5, 12):
        agree(f, X, np.int64(n))
    ops = [op.name for op in trace(f, X, np.int64(1)).function.body.walk()]
    assert "switch" in ops


def test_a_function_that_a_round_made_does_not_leave_the_loop(refusal):
    def f(x, n):
        for i in range(n):
            if x[0] > i:
                y = x * i
                return lambda v: v + y
        return np.sin

    text = refusal(lambda x, n: f(x, n)(x), X, np.int64(3))
    assert "DL109: the result holds a function that a round of the loop made" in text


def test_caches_within_a_program_are_taken_off(agree):
    def f(x):
        @functools.lru_cache(maxsize=64)
        def power(k):
            return x if k == 0 else power(k - 1) * x

        @functools.cache
        def double(k):
            return 2 * k

        return power(5) * double(2)

    agree(f, X)
