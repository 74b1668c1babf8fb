"""Functions, closures, classes and Python's own functions, compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.api import compile as compile_
from delian.core.compiler.api import module, static_field
from delian.core.compiler.frontend import trace
from delian.core.compiler.traced import Static
from support.frontend_programs import namespaces

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
    name: str = static_field(default="layer")
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


@pytest.mark.parametrize(
    "name", [n for n in vars(namespaces) if n[0] in "ab" and n != "annotations"]
)
def test_a_function_looks_at_its_names_and_imports_from_its_package(name, agree):
    agree(getattr(namespaces, name), np.array([1.0, -2.0, 3.0, 0.5]))


def test_names_that_a_branch_may_not_have_assigned_are_not_asked_for(refusal):
    def f(x):
        if x[0] > 0:
            y = x
        return locals()["x"]

    assert "on one path" in refusal(f, np.ones(3))


def test_names_are_not_asked_for_within_a_comprehension(refusal):
    assert "`locals()` in a function" in refusal(lambda x: [locals() for _ in range(2)], np.ones(3))
