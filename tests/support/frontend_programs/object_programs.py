"""Programs whose objects change: classes as in textbooks, and corner cases."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import delian as dl
import numpy as np


class Kalman:
    """Changes arrays in place, and rebinds attributes to new ones."""

    def __init__(self, x, P, q=0.1):
        self.x = x
        self.P = P
        self.q = q
        self.count = 0

    def predict(self, F):
        self.x = F @ self.x
        self.P = F @ self.P @ F.T + self.q * np.eye(2)

    def update(self, z):
        y = z - self.x[0]
        K = self.P[:, 0] / (self.P[0, 0] + 1.0)
        self.x = self.x + K * y
        self.P -= np.outer(K, self.P[0])
        self.count += 1
        return y


class Tank:
    """A property with a setter, a method that gives the object."""

    def __init__(self):
        self.level = np.float64(0.0)
        self.log = []

    @property
    def double(self):
        return self.level * 2

    @double.setter
    def double(self, value):
        self.level = value / 2

    def add(self, x):
        self.level += x

    def pour(self, x):
        if x > 1:
            self.level += x
        else:
            self.level = self.level - 1
        return self


class Base:
    def __init__(self, k):
        self.k = k

    def f(self, x):
        return self.k * x


class Derived(Base):
    def __init__(self, k):
        super().__init__(k)
        self.j = k + 1

    def f(self, x):
        self.k = self.k + 1
        return super().f(x) + self.j


@dataclass
class State:
    w: np.ndarray
    n: int = 0
    history: list = field(default_factory=list)


@dataclass
class Scaled:
    w: float

    def __post_init__(self):
        self.twice = self.w * 2


@dataclass
class OwnInit:
    a: float
    b: float

    def __init__(self, a):
        self.a = a
        self.b = a + 1


class Node:
    def __init__(self, v):
        self.v = v
        self.left = None
        self.right = None

    def insert(self, v):
        if self.left is None:
            self.left = Node(v)
        else:
            self.right = Node(v)


class Counter:
    total = 0

    def __init__(self):
        self.n = 0

    def __call__(self, x):
        self.n += 1
        return x * self.n

    def __iadd__(self, other):
        self.n += other
        return self


class Lazy:
    def __init__(self, k):
        self.k = k

    @functools.cached_property
    def twice(self):
        return self.k * 2


class Pair:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Pair(self.x + other.x, self.y + other.y)

    def __eq__(self, other):
        return self.x == other.x

    def __getitem__(self, k):
        return (self.x, self.y)[k]

    def __setitem__(self, k, v):
        if k == 0:
            self.x = v
        else:
            self.y = v

    def __len__(self):
        return 2


class Hidden:
    """Python gives private names the name of their class."""

    def __init__(self, v):
        self.__v = v

    def first(self):
        return self.__v

    def __doubled(self):
        return self.__v * 2

    def both(self):
        return self.__doubled()


class Guarded(Hidden):
    def __init__(self, v, w):
        super().__init__(v)
        self.__v = w

    def second(self):
        return self.__v


@dataclass(slots=True)
class Slotted:
    a: float
    b: float = 1.0


class Line:
    """Textbook machine learning: `fit` sets what `predict` reads."""

    def __init__(self, rate=0.1, rounds=20):
        self.rate = rate
        self.rounds = rounds
        self.weights = None
        self.bias = None

    def fit(self, x, y):
        self.weights, self.bias = np.zeros(x.shape[1]), 0.0
        for _ in range(self.rounds):
            off = self.predict(x) - y
            self.weights -= self.rate * (x.T @ off) / len(y)
            self.bias -= self.rate * off.mean()
        return self

    def predict(self, x):
        return x @ self.weights + self.bias


class Table:
    """Arrays of an object that are changed item by item."""

    def __init__(self, n):
        self.cells = np.zeros((n, n))
        self.sums = [0.0 for _ in range(n)]

    def put(self, i, j, v):
        self.cells[i, j] = v
        self.sums[i] += v


# Equal to Python


def a_kalman_filter(zs):
    F = np.array([[1.0, 1.0], [0.0, 1.0]])
    kf = Kalman(np.zeros(2), np.eye(2))
    out = []
    for z in zs:
        kf.predict(F)
        out.append(kf.update(z))
    return kf.x, kf.P, kf.count, np.array(out)


def fit_and_predict(v):
    x = np.outer(v, np.array([1.0, 0.5])) + np.eye(4, 2)
    return Line().fit(x, v).predict(x)


def two_names_of_one_object(v):
    t = Tank()
    t.pour(v[0]).pour(v[3])
    u = t
    u.double = u.level * 3
    return t.level, t.double, t is u


def a_branch_that_ends_a_loop(v):
    t = Tank()
    for x in v:
        t.pour(x)
        if t.level > 3.5:
            break
    return t.level


def a_mutable_dataclass(v):
    s = State(np.zeros(3))
    for k in range(4):
        s.w[k % 3] += v[k % 3]
        s.n += 1
        s.history.append(s.w.sum())
    if v[0] > 0:
        s.n = s.n + 1
    return s.w, s.n, s.history


def a_dataclass_with_more_fields(v):
    s = Scaled(v[0])
    s.w = s.twice + 1
    t = OwnInit(v[1])
    t.b += s.w
    return s.w, s.twice, t.a, t.b


def an_unknown_number_of_rounds(v):
    t = Tank()
    while t.level < 10:
        t.level = t.level + v[0]
    return t.level


def one_of_two_objects_is_read(v):
    a, b = Tank(), Tank()
    a.level, b.level = v[0], v[1]
    p = a if v[2] > 1 else b
    return p.level


def inheritance(v):
    s = Derived(v[0])
    first = s.f(v[1])
    return first, s.k, s.f(2.0), isinstance(s, Base)


def a_tree_of_objects(v):
    root = Node(v[0])
    root.insert(v[1])
    root.insert(v[2])
    root.left.v = root.left.v * 2
    return root.v + root.left.v + root.right.v


def objects_in_a_list(v):
    tanks = [Tank() for _ in range(4)]
    for t, x in zip(tanks, v, strict=True):
        t.pour(x)
    for x in v:
        for t in tanks:
            t.level = t.level + x
    return [t.level for t in tanks]


def an_object_that_is_called(v):
    c = Counter()
    a, b = c(v[0]), c(v[1])
    c += 3
    return a, b, c.n, c.total


def an_attribute_that_hides_the_class(v):
    c = Counter()
    c.total += 1
    return c.total * v[0], Counter.total


def an_array_under_two_names(v):
    t = Tank()
    w = np.zeros(3)
    t.w = w
    t.w[0] = v[0]
    w[1] = 2 * v[1]
    part = t.w[1:]
    part += 1
    return w, t.w


def the_argument_as_an_attribute(v):
    t = Tank()
    t.w = v
    t.w[0] = 7.0
    return t.w


def items_of_attributes(v):
    t = Table(3)
    for k in range(3):
        t.put(k, (k + 1) % 3, v[k])
    t.put(0, 0, v[3])
    return t.cells, t.sums


def an_error_that_is_handled(v):
    t = Tank()
    try:
        t.level = 1.0
        if v[0] > 0:
            raise ValueError
        t.level = 2.0
    except ValueError:
        t.level += 10
    return t.level


def a_bound_method(v):
    t = Tank()
    pour = t.pour
    pour(v[0])
    return t.level


def a_method_of_one_of_two(v):
    t, u = Tank(), Tank()
    add = t.add if v[0] > 1.5 else u.add
    add(v[1])
    return t.level, u.level


def within_vmap(v):
    def level(x):
        t = Tank()
        t.pour(x)
        return t.level

    return dl.vmap(level)(v)


def a_derivative_reads(v):
    t = Tank()
    t.level = v[0]
    return dl.grad(lambda x: t.level * x * x)(v[1])


def an_object_within_an_object(v):
    t = Tank()
    t.inner = Tank()
    t.inner.level = v[0]
    if v[1] > 0.1:
        t.inner.level += 1
    else:
        t.inner.level = t.inner.level - 1
    return t.inner.level


def a_new_object_on_each_path(v):
    t = Tank()
    if v[0] > 1:
        t.inner = Tank().pour(v[0])
    else:
        t.inner = Tank()
        t.inner.level = v[1]
    return t.inner.level


def a_new_object_each_round(v):
    p = Pair(v[0], v[1])
    for x in v:
        p = p + Pair(x, 1.0)
    return p.x, p.y


def in_a_comprehension(v):
    t = Tank()
    return [t.pour(x).level for x in v]


def attributes_by_name(v):
    t = Tank()
    for k, name in enumerate(("level", "rate")):
        setattr(t, name, v[k])
    t.y = 1.0
    del t.y
    return [getattr(t, name, 0.0) for name in ("level", "rate", "y")], hasattr(t, "y")


def text_in_an_attribute(v):
    t = Tank()
    t.mode = "slow"
    t.mode = "fast" if len(v) > 2 else t.mode
    return (v[0] if t.mode == "fast" else v[1]), bool(t)


def a_function_in_an_attribute(v):
    t = Tank()
    t.f = lambda x: x * t.level
    t.level = v[0]
    return t.f(2.0)


def targets_of_statements(v):
    t = Tank()
    t.a, t.b = v[:2]
    for t.level in v:
        pass
    return t.a + t.b, t.level


def a_cached_property(v):
    lazy = Lazy(v[0])
    first = lazy.twice
    lazy.k = 5.0
    return first, lazy.twice


def operators_of_a_class(v):
    p = Pair(v[0], 1.0) + Pair(2.0, v[1])
    p[0] = p[0] * 2
    p[1] += 1
    return p.x, p.y, len(p), p[1]


def equality_without_an_operator(v):
    a, b = Tank(), Tank()
    a.level = b.level = v[0]
    return a == b, a == a, a != b, a in [b, a], [a, b].index(b)


def an_object_that_holds_itself(v):
    a, b = Node(v[0]), Node(v[1])
    a.left = b
    b.left = a
    return a.v


def an_object_in_its_own_list(v):
    t = Tank()
    t.log.append(t)
    if v[0] > 0:
        t.level = v[0]
    return t.level


def private_names(v):
    made = Guarded(v[0], v[1])
    return made.first(), made.second(), made.both()


def a_dataclass_with_slots(v):
    s = Slotted(v[0])
    for x in v:
        s = Slotted(s.a + x, s.b)
    return s.a, s.b


EQUAL = [f for f in list(globals().values()) if getattr(f, "__module__", 0) == __name__]
EQUAL = [f for f in EQUAL if not isinstance(f, type)]
