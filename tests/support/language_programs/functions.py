"""Functions as values, recursion, structures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce, wraps
from typing import Any, NamedTuple

import delian as dl
import numpy as np


def adder(n):
    def add(x):
        def again(y):
            return x + n * y

        return again

    return add


def closures_of_closures(x, n):
    return adder(n)(x)(adder(2.0)(x)(1.0))


def composition(x):
    def compose(*functions):
        return lambda v: reduce(lambda value, f: f(value), functions, v)

    def repeat(f, times):
        return compose(*[f] * times)

    return compose(repeat(np.sin, 3), partial(np.multiply, 2.0), lambda v: v - 1)(x)


def church_numerals(x):
    def zero(f):
        return lambda v: v

    def successor(n):
        return lambda f: lambda v: f(n(f)(v))

    def plus(a, b):
        return lambda f: lambda v: a(f)(b(f)(v))

    two = successor(successor(zero))
    return plus(two, successor(two))(lambda v: 1.1 * v + 0.1)(x)


def logged(scale):
    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(f)
        def run(*args: Any, **kwargs: Any) -> Any:
            return scale * f(*args, **kwargs)

        return run

    return decorate


@logged(3.0)
def cubed(x, *, shift=0.0):
    return x**3 + shift


def decorators(x):
    @logged(0.5)
    def local(y):
        return np.cos(y)

    return cubed(x, shift=1.0) + local(x)


def chosen_function(x, n):
    """Which activation is a number of the running program."""
    activations = (np.tanh, np.sin, lambda v: v * v, lambda v: np.maximum(v, 0.1 * v))
    return activations[n](x) * 2


def chosen_closure(x, n):
    """Either path makes a function of its own; what they hold goes along."""

    def scaled(factor):
        return lambda v: factor * v

    f = scaled(x * 2) if n > 3 else scaled(np.sin(x))
    if n == 1:
        g = f
    elif n == 2:
        g = partial(np.power, 1.5)
    else:

        def g(v):
            return f(v) + x

    return f(x), g(x + 1)


def tail_recursion(a, x):
    """Newton's method as a function that calls itself until it is there."""

    def improve(x):
        if abs(x * x - a) < 1e-10:
            return x
        return improve((x + a / x) / 2)

    return improve(x)


def tail_recursive_power(x, n, so_far=1.0):
    if n == 0:
        return so_far
    if n % 2 == 1:
        return tail_recursive_power(x, n - 1, so_far * x)
    return tail_recursive_power(x * x, n // 2, so_far)


def hanoi_sums(x):
    """Recursion that is no tail call, over a known number."""

    def moves(n, weight):
        return 0.0 * weight if n == 0 else moves(n - 1, weight * x) + weight + moves(n - 1, weight)

    return moves(5, x)


def mutual_recursion(x):
    def even(n, v):
        return v if n == 0 else odd(n - 1, v * x)

    def odd(n, v):
        return v if n == 0 else even(n - 1, v + x)

    return even(9, x)


@dataclass(frozen=True)
class Dual:
    """A number with its derivative: forward mode by hand, compiled."""

    value: Any
    slope: Any = 0.0

    def __add__(self, other):
        return Dual(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other):
        slope = self.value * other.slope + self.slope * other.value
        return Dual(self.value * other.value, slope)

    def __neg__(self):
        return Dual(-self.value, -self.slope)

    @property
    def halved(self):
        return Dual(self.value / 2, self.slope / 2)

    def sin(self):
        return Dual(np.sin(self.value), np.cos(self.value) * self.slope)


def dual_numbers(x, steps):
    y = Dual(x, np.ones_like(x))
    for _ in range(steps):
        y = (y * y + -y).sin() + y.halved
    return y


class Leaf(NamedTuple):
    value: Any


class Node(NamedTuple):
    left: Any
    right: Any


def tree_fold(root):
    """A tree of named tuples, folded by recursion over its structure."""
    if isinstance(root, Leaf):
        return np.sum(root.value**2)
    return tree_fold(root.left) * 0.5 + np.tanh(tree_fold(root.right))


def expression_tree(x, y):
    """An interpreter of nested tuples: the tree is known, so nothing of it is left."""
    source = ("+", ("*", "x", "y"), ("sin", ("-", "x", 2.0)))
    names = {"x": x, "y": y}
    operators = {
        "+": lambda a, b: a + b,
        "*": lambda a, b: a * b,
        "-": lambda a, b: a - b,
        "sin": np.sin,
    }

    def evaluate(node):
        match node:
            case str(name):
                return names[name]
            case (operator, *arguments):
                return operators[operator](*map(evaluate, arguments))
            case number:
                return number

    return evaluate(source)


def matched(x, n):
    """`match` on a number of the running program."""
    match n:
        case 0:
            y = x
        case 1 | 2:
            y = x * x
        case k if k < 0:
            y = -x
        case _:
            y = np.exp(x)
    return y


@dl.module
class Dense:
    weight: Any
    bias: Any
    activation: Any = dl.static_field(default=np.tanh)

    def __call__(self, x):
        return self.activation(x @ self.weight + self.bias)


@dl.module
class Chain:
    layers: tuple[Any, ...]

    def __call__(self, x):
        return reduce(lambda value, layer: layer(value), self.layers, x)

    @property
    def size(self):
        return sum(np.sum(layer.weight**2) for layer in self.layers)


def modules(model, x):
    return np.sum(model(x)) + 0.01 * model.size


def dictionaries(params, x):
    total = 0.0
    for name, value in params.items():
        if name.startswith("w"):
            x = x @ value
        else:
            x = x + value
        total = total + np.sum(value)
    squared = {k: v * v for k, v in params.items() if k != "b"}
    names = {k[0] for k in params}
    return {**squared, "out": x, "total": total * len(names)}


def star_unpacking(xs):
    first, *middle, last = xs
    (a, b), *_ = [middle, last]
    pairs = [*zip(middle, [first, last], strict=True), (a, b)]
    return sum(p * q for p, q in pairs) + max(*middle) - min(xs[0], last)


def escapes(xs, limit):
    """`continue`, `break` and `return` from nested loops; nothing leaks NaN into the gradient."""
    total = xs[0] * 0
    for i, x in enumerate(xs):
        if x < 0:
            continue
        total = total + np.sqrt(x)
        for j in range(3):
            if total > limit + j:
                return total * 2
            if x * j > 2:
                break
            total = total + np.log(x) * 0.1
        if i == 4:
            break
    return total


def walrus_and_chains(x):
    count = 0
    while 0.1 < (y := np.abs(x)) <= 100.0 and not (y < 0.5 or count >= 20):
        x = x * 0.8 if (big := y > 1.0) else x - 0.1
        count += 2 if big else 1
    return x, count


def third_derivative(x):
    def f(x):
        while x < 5.0:
            x = x * x + 1.0
        return np.sin(x)

    return dl.grad(dl.grad(dl.grad(f)))(x)


def hessian_of_a_loop(x, n):
    def f(x):
        for _ in range(n):
            x = np.sin(x) + x * x[::-1] / 4
        return np.sum(x)

    rows = [dl.jvp(dl.grad(f), (x,), (row,))[1] for row in np.eye(3)]
    return np.stack(rows)


F, N = np.float64, np.int64
rng = np.random.default_rng(4)
MODEL = Chain(
    (
        Dense(rng.normal(size=(3, 4)), rng.normal(size=4)),
        Dense(rng.normal(size=(4, 2)), rng.normal(size=2), np.sin),
    )
)
TREE = Node(Node(Leaf(rng.normal(size=2)), Leaf(rng.normal(size=3))), Leaf(rng.normal(size=())))
PARAMS = {"w1": rng.normal(size=(3, 3)), "b": rng.normal(size=3), "w2": rng.normal(size=(3, 2))}
V = rng.normal(size=3)
PROGRAMS = [
    (closures_of_closures, (F(0.3), F(1.5)), (0, 1)),
    (composition, (V,), (0,)),
    (church_numerals, (F(0.4),), (0,)),
    (decorators, (F(0.4),), (0,)),
    *((chosen_function, (V, N(n)), (0,)) for n in (0, 2, 3, -2)),
    *((chosen_closure, (F(0.7), N(n)), (0,)) for n in (1, 2, 5)),
    (tail_recursion, (F(3.0), F(1.0)), (0,)),
    (tail_recursive_power, (F(1.1), N(13)), (0,)),
    (hanoi_sums, (F(0.8),), (0,)),
    (mutual_recursion, (F(0.9),), (0,)),
    (dual_numbers, (F(0.6), N(3)), (0,)),
    (tree_fold, (TREE,), (0,)),
    (expression_tree, (F(0.2), F(1.7)), (0, 1)),
    *((matched, (F(0.5), N(n)), (0,)) for n in (0, 2, -4, 9)),
    (modules, (MODEL, rng.normal(size=(2, 3))), (0, 1)),
    (dictionaries, (PARAMS, V), (0, 1)),
    (star_unpacking, (rng.normal(size=4),), (0,)),
    *((escapes, (np.array([0.5, -1.0, 2.1, 0.3, 1.2, 3.0]), F(limit)), (0,)) for limit in (1, 9)),
    (walrus_and_chains, (F(7.3),), (0,)),
    (third_derivative, (F(1.1),), (0,)),
    (hessian_of_a_loop, (V, N(3)), (0,)),
]
