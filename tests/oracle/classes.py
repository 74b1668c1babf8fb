"""Classes of the module: fields, methods, operators, and programs that use objects of them."""

from __future__ import annotations

import random
from typing import Any

from .samples import is_data
from .writer import Skip, Writer, construct, hole, table

_OPERATORS = (
    "def __add__(self, other):\n    return self.a + (other.a if isinstance(other, {0}) else other)",
    "def __mul__(self, other):\n    return {0}(self.a * other, self.b)",
    "def __radd__(self, other):\n    return other - self.a",
    "def __rmul__(self, other):\n    return {0}(other * self.a, self.b)",
    "def __neg__(self):\n    return {0}(-self.a, self.b)",
    "def __getitem__(self, k):\n    return (self.a, self.b)[k]",
    "def __len__(self):\n    return 3",
    "def __call__(self, v):\n    return self.a * v + self.b",
    "def __lt__(self, other):\n    return self.a < other.a",
    "def __eq__(self, other):\n    return self.b == other.b",
    "def __contains__(self, v):\n    return v == self.b",
    "def __abs__(self):\n    return abs(self.a)",
    "def __bool__(self):\n    return bool(self.b > 0)",
    "def __float__(self):\n    return float(self.b)",
    "def __sub__(self, other):\n    return NotImplemented",
    "def __matmul__(self, other):\n    return self.b - other.b",
    "def __iter__(self):\n    return iter((self.a, self.b))",
)
_METHODS = (
    "def total(self):\n    return np.sum(self.a) + self.b",
    "def scaled(self, k=2):\n    return {0}(self.a * k, self.b)",
    "@property\ndef twice(self):\n    return self.b * 2",
    "@staticmethod\ndef halved(v):\n    return v / 2",
    "@classmethod\ndef made(cls, a):\n    return cls(a, 1.5)",
    "def change(self, k):\n    self.a[k] += self.b",
    "def set(self, b):\n    self.b = b",
)
_CHANGES = (
    "def grow(self, v):\n    self.b += v\n    return self",
    "def either(self, v):\n    if v > 0:\n        self.b = self.b + v\n    else:\n"
    "        self.b -= 1\n    return self.b",
    "def some(self, v):\n    for k in range(3):\n        self.b = self.b * 0.5 + v\n"
    "    return self.b",
    "def keep(self, v):\n    self.a = v\n    self.c = self.b",
    "@property\ndef level(self):\n    return self.b\n\n@level.setter\ndef level(self, v):\n"
    "    self.b = v * 2",
    "def __iadd__(self, other):\n    self.b = self.b + other\n    return self",
    "def __setitem__(self, k, v):\n    self.b = v",
    "def hide(self, v):\n    self.__p = v\n    return self.__p + self.b",
)
_FIELDS = "class {0}:\n    a: object\n    b: object = 1"
_INIT = "    def __init__(self, a, b=1):\n        self.a = a\n        self.b = b"
_HEADS = {
    "frozen dataclass": "@dataclasses.dataclass(frozen=True)\n" + _FIELDS,
    "module": "@dl.module\n" + _FIELDS,
    "named tuple": _FIELDS.replace("{0}", "{0}(typing.NamedTuple)"),
    "dataclass": "@dataclasses.dataclass\n" + _FIELDS,
    "plain class": "class {0}:\n" + _INIT,
    "dataclass with slots": "@dataclasses.dataclass(slots=True)\n" + _FIELDS,
}


_MUTABLE = ("dataclass", "plain class")


def write_class(rng: random.Random, name: str, daring: bool) -> tuple[str, str]:
    """What kind of class, and its text."""
    kind = rng.choices(list(_HEADS), (4, 2, 2, 4, 6, 1))[0]
    parts = [_HEADS[kind].format(name)]
    methods = [*rng.sample(_OPERATORS, rng.randrange(1, 5)), *rng.sample(_METHODS, 3)]
    if kind in _MUTABLE or daring:
        methods += rng.sample(_CHANGES, rng.randrange(1, 5))
    if kind == "named tuple":
        methods = [m for m in methods if "__len__" not in m and "__iter__" not in m]
        methods = [m for m in methods if "__getitem__" not in m]
    for text in methods:
        parts.append("\n".join(f"    {line}" for line in text.format(name).split("\n")))
    if rng.random() < 0.25:
        parts.append(f"\n\nclass {name}2({name}):\n    def total(self):\n        return self.b * 3")
        if "def total" in "".join(methods) and kind != "named tuple":
            parts[-1] = parts[-1].replace("self.b * 3", "super().total() * 3")
    return kind, "\n".join(parts)


@hole("C")
def class_name(w: Writer) -> str:
    found = [n for n, v in w.env.items() if isinstance(v, type) and v.__module__ == "program"]
    if not found:
        raise Skip
    return w.rng.choice(sorted(found))


@hole("o")
def instance(w: Writer) -> str:
    if w.rng.random() < 0.8:
        try:
            return w.place(is_data)
        except Skip:
            pass
    return w.fill("<C>(<e>, <n>)")


@hole("O")
def own_instance(w: Writer) -> str:
    """An object whose attributes may be set, as a rule one that the function made."""
    inside = {name for frame in w.frames for name in frame.names} - w.passed
    found = [text for text, v in w.places() if is_data(v) and _may_change(v)]
    mine = [text for text in found if text.split("[")[0].split(".")[0] in inside]
    if w.daring and w.rng.random() < 0.2:
        mine = found
    if not mine:
        raise Skip
    return w.rng.choice(mine)


def _may_change(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return hasattr(value, "__dict__") and not getattr(parameters, "frozen", False)


@construct("statement", "class in a function", 0.7)
def local(w: Writer) -> list[str]:
    """A class whose methods may read names around it, and an object of it."""
    if w.depth:
        raise Skip
    name = w.new("C")
    lines = write_class(w.rng, name, w.daring)[1].split("\n")
    if w.rng.random() < 0.4:
        lines = [*lines, "    def around(self):", f"        return self.b + {w.fill('<n>')}"]
    made = w.fill("<N>")
    lines.append(f"{made} = {name}({w.fill('<e>')}, {w.fill('<n>')})")
    if "def around" in "".join(lines) and w.rng.random() < 0.7:
        lines.append(f"{w.fill('<N>')} = {made}.around()")
    return lines


@construct("statement", "object", 10)
def made(w: Writer) -> list[str]:
    form = w.rng.choice(("<C>(<a>, <n>)", "<C>(<n>)", "<C>(a=<e>, b=<n>)", "<C>(<F>, <n>)"))
    return [f"{w.fill('<N>')} = {w.fill(form)}"]


table(
    "statement",
    r"""
    attribute 3: <N> = <o>.a ;; <N> = <o>.b ;; <N> = getattr(<o>, 'b', <n>)
    attribute 3: <N> = hasattr(<o>, 'c')
    method 4: <N> = <o>.total() ;; <N> = <o>.scaled() ;; <N> = <o>.scaled(<n>) ;; <N> = <o>.twice
    method 4: <N> = <o>.halved(<n>) ;; <N> = <C>.made(<e>)
    operator of a class 5: <N> = <o> + <n> ;; <N> = <n> + <o> ;; <N> = <o> * <n>
    operator of a class 5: <N> = <n> * <o> ;; <N> = -<o> ;; <N> = <o>(<n>) ;; <N> = <o>[<i>]
    operator of a class 5: <N> = len(<o>)
    operator of a class 2: <N> = <o> < <o> ;; <N> = <o> > <o> ;; <N> = <o> == <o>
    operator of a class 2: <N> = <n> in <o> ;; <N> = abs(<o>) ;; <N> = float(<o>)
    operator of a class 2: <N> = <o> - <n> ;; <N> = <o> @ <o> ;; <N>, <N> = <o>
    operator of a class 1: <N> = <o> != <o> ;; <N> = 1 if <o> else 2 ;; <N> = not <o>
    operator of a class 1: <N> = <o> == <n> ;; <N> = <o> + <o> ;; <N> = sum([<o>, <o>])
    operator of a class 1: <N> = max(<o>, <o>)
    replace 1.5: <N> = dataclasses.replace(<o>, b=<n>) ;; <N> = <o>._replace(b=<n>)
    replace 1.5: <N> = dataclasses.replace(<o>, a=<e>)
    change of a field's array 1.5: <o>.a[0] = <n> ;; <o>.change(0) ;; <o>.a[<i>] += <n>
    change of a field's array 1.5: <N> = <o>.a[0]
    attribute set 12: <O>.b = <n> ;; <O>.set(<n>) ;; <O>.b += 1 ;; setattr(<O>, 'b', <n>)
    attribute set 12: <O>.b += <n> ;; <O>.a = <a> ;; <O>.b, <N> = <n>, <e> ;; <O>.level = <n>
    attribute set 12: <O>.a += 1 ;; <O>.a[0] = <n> ;; <O>.a = <N> = <a> ;; <O>.b *= 2
    method that sets 12: <N> = <O>.either(<n>) ;; <N> = <O>.some(<n>) ;; <O>.grow(<n>)
    method that sets 12: <N> = <O>.grow(<n>).b ;; <O>.keep(<e>) ;; <N> = <O>.level ;; <O>[0] = <n>
    method that sets 3: <N> = <O>.hide(<n>) ;; <O>.hide(<n>)
    method that sets 6: <O>.grow(<n>).grow(<n>) ;; <N> = [<O>.either(<n>), <O>.b] ;; <O> += <n>
    two names of an object 4: <N> = <O> ;; <N> = <O> if <c> else <O> ;; <N> = [<O>, <O>]
    two names of an object 4: <N> = <O> is <o> ;; <N> = <o> in [<O>, <o>] ;; <N> = <O> == <o>
    attribute of its own 2: <O>.c = <n> ;; <N> = <O>.c ;; <N> = hasattr(<O>, 'c') ;; del <O>.c
    object of an object 2: <O>.c = <o> ;; <N> = <O>.c.b ;; <O>.a = <O>
    attribute set outside ! 1: <o>.b = <n> ;; <o>.set(<n>) ;; <o>.grow(<n>)
    isinstance of a class 1: <N> = isinstance(<o>, <C>) ;; <N> = type(<o>) is <C>
    isinstance of a class 1: <N> = isinstance(<e>, <C>)
    objects in items 1: <N> = [<o>, <o>] ;; <N> = {'a': <o>} ;; <N> = [o.b for o in (<o>, <o>)]
    objects in items 1: <N> = sum(o.b for o in [<o>, <o>])
    """,
)


@construct("statement", "match on a class", 0.7)
def match(w: Writer) -> list[str]:
    if w.depth >= 3:
        raise Skip
    subject, case = w.fill("<o>"), w.fill("<C>")
    kept = w.new("e")
    bound = {kept: w.value(f"{subject}.b")}
    lines = [f"match {subject}:", f"    case {case}(b={kept}):"]
    lines += ["    " + line for line in w.block(1, bound)]
    lines += ["    case _:", *("    " + line for line in w.block(1))]
    return lines
