"""Classes that a compiled function defines: what Python gives, or they are refused."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError


def plain(x, k):
    class Line:
        slope = 2.0

        def __init__(self, start):
            self.start = start

        def at(self, v, c=k):
            return self.start + self.slope * v * k + c

    line = Line(x)
    k = k + 1
    line.start = line.start + 1
    kinds = isinstance(line, Line), type(line) is Line, line.__class__ is Line
    named = Line.__qualname__ == "plain.<locals>.Line"
    return line.at(x), Line.slope, kinds, named


def shadowed(x, k):
    class A:
        x = 5.0

        def f(self):
            return x + self.x * k

    return A().f()


def data(x, k):
    @dataclass
    class P:
        a: float
        b: float = 2.0
        c: list = field(default_factory=list)
        n: ClassVar[int] = 5

        def __post_init__(self):
            self.a = self.a * P.n

        def norm(self):
            return np.sqrt(self.a**2 + self.b**2)

    p, q = P(x), P(x, k)
    p.c.append(x)
    return p.norm() + q.norm(), p == P(x, 2.0, [x]), len(q.c), len(p.c)


def frozen(x, k):
    @dataclasses.dataclass(frozen=True, order=True)
    class P:
        a: float
        b: int = 3

    p = P(x)
    q = dataclasses.replace(p, a=k)
    match q:
        case P(a, 3):
            return p.a + a, p < q


def named(x, k):
    class P(NamedTuple):
        a: float
        b: float = 1.5

        def total(self):
            return self.a + self.b * k

        def __add__(self, other):
            return P(self.a + other.a, self.b + other.b)

    p = P(x) + P(k, x)
    a, b = p
    return p.total(), a + b, p._replace(b=x), len(p)


def derived(x, k):
    class A:
        def __init__(self, v):
            self.v = v

        def f(self):
            return self.v * 2

        @property
        def g(self):
            return self.v + k

        @g.setter
        def g(self, v):
            self.v = v * 10

        @staticmethod
        def h(v):
            return v - k

        @classmethod
        def make(cls, v):
            return cls(v)

    class B(A):
        def __init__(self, v, w):
            super().__init__(v)
            self.w = w

        def f(self):
            return super().f() + self.w + len([__class__ for _ in range(2)])

        @classmethod
        def make(cls, v):
            return cls(v, v + 1)

    a, b = A.make(x), B.make(x)
    b.g = k
    return a.f(), b.f(), b.g, b.h(x), isinstance(b, A), isinstance(a, B), issubclass(B, A)


def each_call_makes_one(x, k):
    def make(n):
        class C:
            def get(self):
                return x + n

        return C

    first, second = make(2), make(k)
    a, b = first(), second()
    return a.get(), b.get(), isinstance(a, second), first is second


def shares_a_name(x, k):
    total = 0.0

    class Sum:
        def add(self, v):
            nonlocal total
            total += v

        def read(self):
            return total

    made = Sum()
    for i in range(3):
        made.add(k + i)
    total = total * x
    return made.read(), total


def operators(x, k):
    @functools.total_ordering
    class V:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __add__(self, other):
            return V(self.a + other.a, self.b + other.b)

        def __getitem__(self, i):
            return (self.a, self.b)[i]

        def __call__(self, t):
            return self.a * t

        def __len__(self):
            return 2

        def __eq__(self, other):
            return self.a == other.a

        def __lt__(self, other):
            return self.a < other.a

        def __iter__(self):
            yield self.a
            yield self.b

    v = V(x, k) + V(k, k)
    return sum(v), v[1], v(x), len(v), v == V(x + k, 0.0), v >= V(k, k)


def in_loops(x, k):
    class State:
        def __init__(self):
            self.n = 0.0

        def step(self, v):
            self.n = self.n * 0.5 + v

    state = State()
    for i in range(100):
        state.step(x + i)
    while state.n > 10:
        state.n /= 2
    for i in range(3):

        class Now:
            def get(self):
                return i * x  # noqa: B023

        state.n += Now().get()
    return state.n


def running_attributes(x, k):
    y = x * 2

    class A:
        rate = y + 1
        if x > 0:
            more = rate * 2
        else:
            more = -rate

        def get(self):
            return self.rate + A.more * k

    return A().get(), A.rate


def nested(x, k):
    class A:
        k = 100.0

        class B:
            def get(self):
                return k

        def get(self):
            class C:
                def get(inner):
                    return self.k + x

            return k + C().get()

    return A().get() + A.B().get()


def private(x, k):
    class _A:
        __start = 3.0

        def __twice(self):
            return 2 * self.__start

        def f(self):
            return self.__twice() * x + k

    return _A().f()


def others(x, k):
    class Bad(ValueError):
        pass

    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        def __init__(self, side):
            self.side = side

        def area(self):
            return self.double * self.side

        @functools.cached_property
        def double(self):
            return self.side * 2

    try:
        if x > 0:
            raise Bad("no")
    except Bad:
        return 1.0 * Colour.BLUE.value
    return Square(x).area() if Colour(2) is Colour.BLUE else x


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(
    "f",
    (
        *(plain, shadowed, data, frozen, named, derived, each_call_makes_one, shares_a_name),
        *(operators, in_loops, running_attributes, nested, private, others),
    ),
)
def test_a_class_in_a_function_is_pythons(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    for x in (1.5, -0.5):
        want = f(x, 3.0)
        got = compiled(x, 3.0)
        assert type(got).__name__ == type(want).__name__
        assert repr(got) == repr(want)


def test_a_gradient_goes_through_methods() -> None:
    def f(w):
        class Layer:
            def __init__(self, w):
                self.w = w

            def __call__(self, v):
                return np.sin(self.w * v)

        return Layer(w)(2.0)

    np.testing.assert_allclose(dl.compile(dl.grad(f))(0.3), 2 * np.cos(0.6))


def test_an_error_of_such_a_class_is_raised() -> None:
    def f(x):
        class Bad(ValueError):
            pass

        if x > 0:
            raise Bad(f"bad {x}")
        return x

    with pytest.raises(ValueError, match=r"bad 1\.5") as caught:
        dl.compile(f)(1.5)
    assert type(caught.value).__name__ == "Bad"


def late_name(x):
    class A:
        def f(self, v):
            return v * x

    made = map(A().f, [x, x + 1])
    out = 0.0
    for v in made:
        x = x + 1
        out += v
    return out


def one_of_two(x):
    if x > 0:

        class A:
            def f(self):
                return x
    else:

        class A:
            def f(self):
                return -x

    return A().f()


def of_a_metaclass(x):
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    return x


class Registered:
    known: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        Registered.known.append(cls)


def registered(x):
    class A(Registered):
        pass

    return x


def array_as_default(x):
    @dataclass
    class A:
        v: Any = np.zeros(2) + x

    return A().v


def comprehension(x):
    class A:
        v = [i for i in range(3)]  # noqa: C416, RUF012

    return A.v[1] * x


def assigned(x):
    class A:
        n = 0.0

    A.n = x
    return A.n


def one_name_twice(x):
    total = 0.0

    class A:
        total = 5.0

        def add(self):
            nonlocal total
            total += x

    A().add()
    return total + A.total


def named_by_its_class(x):
    class Named:
        def __set_name__(self, owner, name):
            self.name = name

    class A:
        v = Named()

    return x


def written(x):
    class A:
        def __str__(self):
            return f"{x}"

    if x > 0:
        raise ValueError(f"{A()}")
    return x


def words(x):
    class Bad(Exception):
        def __init__(self, v):
            self.v = v

    if x > 0:
        raise Bad(x)
    return x


@dataclass
class Outside:
    a: float


def decorated_outside(x):
    return dataclass(order=True)(Outside)(x).a


@pytest.mark.parametrize(
    ("f", "code", "message"),
    [
        (late_name, "DL111", "`x` changes in a loop over an iterator"),
        (one_of_two, "DL108", "A"),
        (of_a_metaclass, "DL102", "metaclass `Meta`"),
        (registered, "DL102", "__init_subclass__"),
        (array_as_default, "DL113", "mutable default of the field `v`"),
        (comprehension, "DL102", "a comprehension in the body of a class"),
        (assigned, "DL111", "`n` of the class `A` cannot be assigned"),
        (one_name_twice, "DL102", "a write to an outer function's name"),
        (named_by_its_class, "DL102", "has a `__set_name__`"),
        (written, "DL112", "`__str__` of `A`, a class inside a function"),
        (words, "DL102", "`Bad`, a class inside a function, has a `__init__`"),
        (decorated_outside, "DL111", "changes a class from outside"),
    ],
)
def test_what_is_refused(f: Callable[..., Any], code: str, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        dl.compile(f, backend="reference")(1.5)
    assert caught.value.code == code
    assert message in caught.value.message
    assert not Registered.known


def test_a_method_of_a_result_says_that_it_cannot_run() -> None:
    def f(x):
        class P(NamedTuple):
            a: float

            def twice(self):
                return 2 * self.a

        return P(x)

    p = dl.compile(f)(1.5)
    assert p.a == 1.5
    with pytest.raises(TypeError, match="only its program can run it"):
        p.twice()
