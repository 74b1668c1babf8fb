"""Operators of classes: Python's methods, reflected ones and fall-backs, of running numbers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError


@dataclasses.dataclass(frozen=True)
class Length:
    """Compares and adds with its like alone, and scales by numbers."""

    v: Any

    def __lt__(self, other: Any) -> Any:
        return self.v < other.v if isinstance(other, Length) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self.v >= (other.v if isinstance(other, Length) else other)

    def __eq__(self, other: Any) -> Any:
        return self.v == other.v if isinstance(other, Length) else NotImplemented

    def __add__(self, other: Any) -> Any:
        return Length(self.v + other.v) if isinstance(other, Length) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Length(other + self.v)

    def __mul__(self, other: Any) -> Any:
        return Length(self.v * other)

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> Any:
        return Length(self.v + 100 * other.v)

    def __neg__(self) -> Any:
        return Length(-self.v)

    def __abs__(self) -> Any:
        return Length(abs(self.v))

    def __contains__(self, item: Any) -> Any:
        return item < self.v

    def __len__(self) -> int:
        return 3

    def __bool__(self) -> Any:
        return self.v > 2


class Longer(Length):
    """Its reflected methods come first."""

    def __radd__(self, other: Any) -> Any:
        return Length(other.v * 1000 + self.v)

    def __gt__(self, other: Any) -> Any:
        return self.v > other.v + 10


@dataclasses.dataclass(frozen=True, order=True)
class Pair:
    a: Any
    b: Any
    name: str = dataclasses.field(default="", compare=False)


def added_in_place(x: Any) -> Any:
    w = Length(x)
    w += Length(1.0)
    return w.v


def fields(x: Any) -> Any:
    return [getattr(Pair(x, 1.0), f.name) for f in dataclasses.fields(Pair)][:2]


PROGRAMS = {
    "less": lambda x: Length(x) < Length(x + 1),
    "greater by the reflected": lambda x: Length(x) > Length(x + 1),
    "at least": lambda x: (Length(x) >= Length(2.0), Length(x) >= 3),
    "at most by the reflected": lambda x: Length(x) >= 1,
    "equal": lambda x: (Length(x) == Length(x), Length(x) != Length(x)),
    "equal to another class": lambda x: (Length(x) == 2.5, Length(x) != 2.5),
    "chained": lambda x: Length(0.0) < Length(x) < Length(x + 1),
    "add": lambda x: (Length(x) + Length(2.0)).v,
    "add by the reflected": lambda x: (1 + Length(x)).v,
    "sum": lambda x: sum([Length(x), Length(x)], Length(0.0)).v,
    "scale": lambda x: (2 * Length(x) * x).v,
    "in place": added_in_place,
    "unary": lambda x: ((-Length(x)).v, abs(Length(-x)).v),
    "in": lambda x: (1 in Length(x), x not in Length(x)),
    "truth": lambda x: 1.0 if Length(x) else 2.0,
    "not": lambda x: not Length(x),
    "derived first": lambda x: (Length(x) + Longer(1.0)).v,
    "derived first in comparisons": lambda x: Length(x) < Longer(x + 1),
    "generated comparison": lambda x: Pair(x, 1.0) == Pair(x, 1.0, "other"),
    "generated difference": lambda x: Pair(x, 1.0) != Pair(x, 2.0),
    "fields": fields,
    "asdict": lambda x: dataclasses.asdict(Length(x)),
    "astuple": lambda x: dataclasses.astuple(Pair(x, x + 1))[:2],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("value", [2.5, -1.0])
def test_as_in_python(name: str, value: float) -> None:
    f = PROGRAMS[name]
    got, want = dl.compile(f, backend="reference")(value), f(value)
    assert repr(got) == repr(want)


def test_derivatives_go_through() -> None:
    def f(x: Any) -> Any:
        return ((1 + Length(x) * x) + Length(3.0)).v

    assert dl.grad(f)(2.0) == 4.0


def test_what_neither_class_takes_is_refused() -> None:
    with pytest.raises(ProgramError, match="DL119"):
        dl.compile(lambda x: (Length(x) + "text").v)(1.0)


class Items:
    """NumPy takes it for an array of two items."""

    def __getitem__(self, k: int) -> float:
        return (1.0, 2.0)[k]

    def __len__(self) -> int:
        return 2


@dataclasses.dataclass
class EqualItems(Items):
    """With an `__eq__` that leaves other classes to them."""


@pytest.mark.parametrize("items", [Items(), EqualItems()])
def test_a_number_of_numpys_beside_a_sequence_is_refused(items: Items) -> None:
    f = dl.compile(lambda x: x == items, backend="reference")
    assert f(1.0) is False
    with pytest.raises(ProgramError, match="DL119"):
        f(np.float64(1.0))


def test_an_array_beside_an_object_is_refused() -> None:
    """NumPy makes an array of objects of it."""
    with pytest.raises(ProgramError, match="as objects"):
        dl.compile(lambda x: (x + Length(1.0)).v)(np.zeros(3))


class Smaller(NamedTuple):
    v: Any

    def __lt__(self, other: Any) -> Any:
        return self.v < other.v


def test_a_named_tuple_has_a_tuple_s_other_comparisons() -> None:
    def f(x: Any) -> Any:
        one, other = Smaller(x), Smaller(x + 1)
        return one < other, other > one

    x = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="ambiguous"):
        f(x)
    with pytest.raises(ProgramError) as raised:
        dl.compile(f, backend="reference")(x)
    assert raised.value.code == "DL115"
    for y in (1.5, np.float64(-2.0)):
        assert dl.compile(f, backend="reference")(y) == f(y)


class Row(NamedTuple):
    """It has tuple's `+` and `*`, and reflected ones of its own."""

    a: Any
    b: Any = 1

    def __radd__(self, other: Any) -> Any:
        return self.a + 10, 1.0

    def __rmul__(self, other: Any) -> Any:
        return self.a + 20, 2.0


class OtherRow(NamedTuple):
    a: Any

    def __radd__(self, other: Any) -> Any:
        return self.a + 30, 3.0


class Sum:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __add__(self, other: Any) -> Any:
        return self.v

    def __radd__(self, other: Any) -> Any:
        return -self.v


class SameSum(Sum):
    pass


class OwnSum(Sum):
    def __radd__(self, other: Any) -> Any:
        return 100 * self.v


@pytest.mark.parametrize(
    "f",
    [
        lambda x: Row(x) + Row(x),
        lambda x: Row(x) + tuple(OtherRow(x)),
        lambda x: tuple(OtherRow(x)) + Row(x),
        lambda x: Row(x) * 2,
        lambda x: x * Row(x),
        lambda x: x + Row(x),
        lambda x: Row(x) + OtherRow(x),
        lambda x: Sum(x) + SameSum(x + 1),
        lambda x: Sum(x) + OwnSum(x + 1),
        lambda x: OwnSum(x) + Sum(x + 1),
    ],
)
def test_a_reflected_method_has_its_turn_where_python_gives_it_one(f: Any) -> None:
    assert dl.compile(f, backend="reference")(1.5) == f(1.5)


def test_a_named_tuple_with_a_reflected_method_adds_tuples_alone() -> None:
    with pytest.raises(ProgramError, match="`\\+` of a tuple does not take"):
        dl.compile(lambda x: Row(x) + x, backend="reference")(1.5)


class Lesser:
    """Equal to what is larger: the order of the operands shows."""

    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v < other.v


class Noted:
    def __init__(self, v, log):
        self.v, self.log = v, log

    def __eq__(self, other):
        self.log[0] += 1
        return self.v == other.v


def test_containers_ask_their_items_first():
    def f(n):
        value = Lesser(n)
        return (
            *(value in [Lesser(1), Lesser(5)], value in (Lesser(4), Lesser(9))),
            *([Lesser(1), Lesser(2)] == [value, value], [value] == [Lesser(2)]),
            *((Lesser(1), 5) != (value, 5), [Lesser(9), value].count(Lesser(5))),
            *({"a": Lesser(1)} == {"a": value}, n in [1, 2, 3], n in {"a": n}.values()),
        )

    for n in (0, 3, 7):
        assert dl.compile(f)(n) == f(n)


def test_a_comparison_that_python_does_not_come_to_is_not_made():
    def f(n):
        log = [0]
        items = [Noted(1, log), Noted(n, log), Noted(2, log)]
        found = Noted(n, log) in items
        seen = log[0]
        same = items == [Noted(1, log), Noted(3, log), Noted(2, log)]
        return found, seen, same, log

    for n in (1, 3, 8):
        assert dl.compile(f)(n) == f(n)


def test_a_key_of_a_dict_comes_before_its_value():
    def f(n):
        log = []

        def noted(v):
            log.append(v)
            return v

        made = {noted(k): noted(k + n) for k in range(2)}
        return log, list(made.values()), {noted(5): noted(n), noted(6): 1}[6]

    assert dl.compile(f)(3) == f(3)


@dl.module
class Twice:
    """A table whose rows count twice, and a product with it."""

    table: Any

    #: NumPy leaves `array @ table` to the class.
    __array_ufunc__ = None

    def __getitem__(self, place: Any) -> Any:
        return self.table[place] * 2.0

    def __rmatmul__(self, x: Any) -> Any:
        return (x @ self.table) * 2.0


def test_an_array_of_the_program_is_an_index_into_a_class_and_its_factor():
    table = Twice(np.arange(6, dtype=np.float32).reshape(3, 2))
    places, x = np.array([2, 0, 2]), np.ones((2, 3), np.float32)

    def f(table, places, x):
        return table[places], table[1], x @ table

    for got, want in zip(dl.compile(f)(table, places, x), f(table, places, x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_tree_is_flattened_down_to_nodes_of_a_class():
    model = {"a": Twice(np.ones((2, 2), np.float32)), "b": [np.ones(2, np.float32), None]}

    def f(model):
        nodes, structure = dl.tree.flatten(model, lambda node: isinstance(node, Twice))
        made = [n.table * 3.0 if isinstance(n, Twice) else n + 1.0 for n in nodes]
        return dl.tree.unflatten(structure, made)

    got, want = dl.compile(f)(model), f(model)
    assert got["b"][1] is None
    np.testing.assert_array_equal(got["a"], want["a"])
    np.testing.assert_array_equal(got["b"][0], want["b"][0])


def test_an_end_of_a_tree_that_the_program_decides_is_refused():
    def f(x):
        return dl.tree.flatten([x], lambda node: np.sum(x) > 0)[0]

    with pytest.raises(ProgramError, match="is_leaf"):
        dl.compile(f)(np.ones(2))
