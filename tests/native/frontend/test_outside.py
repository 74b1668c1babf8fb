"""What a function reads from outside and then changes is seen at the next call."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import itertools
import linecache
import math
import operator
import random
import time
import types
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

X = np.arange(3.0)
Case = tuple[Callable[[Any], Any], Callable[[], Any]]


@dataclasses.dataclass
class Settings:
    rate: float = 0.5
    w: Any = dataclasses.field(default_factory=lambda: np.ones(3))


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: Any
    inner: Settings


class Slotted:
    __slots__ = ("v",)

    def __init__(self) -> None:
        self.v = 3.0


K = 1.0


def uses_k(x: Any) -> Any:
    return x + K


def set_k() -> None:
    global K
    K = 11.0


def with_defaults(x: Any, items: Any = [1.0], w: Any = np.ones(3)) -> Any:  # noqa: B006, B008
    return x * items[0] + w


def counted(x: Any) -> Any:
    return x * counted.n  # type: ignore[attr-defined]


def cases() -> dict[str, Case]:
    """A function, and what changes something that it read."""

    class Model:
        scale = 2.0

        def __init__(self) -> None:
            self.w = np.ones(3)
            self.layers = [1.0]
            self.options = types.SimpleNamespace(rate=0.1)

        def step(self, x: Any) -> Any:
            return x * self.scale + self.w

        @property
        def twice(self) -> Any:
            return self.w * 2

    w, model, settings = np.array([1.0, 2.0, 3.0]), Model(), Settings()
    view = w[1:]
    config: dict[str, Any] = {"rate": 0.5, "deep": {"a": [1.0, 2.0]}}
    items, seen = [1.0, 2.0], {1, 2}
    frozen, pair = Frozen(np.ones(3), Settings()), (np.ones(3), [1.0])
    part = functools.partial(lambda a, b: a * b, np.full(3, 2.0))
    slotted, held, module = Slotted(), [Settings(), Settings()], types.ModuleType("m")
    module.k, module.w = 2.0, np.full(3, 2.0)  # type: ignore[attr-defined]
    counted.n = 1.0  # type: ignore[attr-defined]
    defaults: Any = with_defaults.__defaults__
    return {
        "an element": (lambda x: x * w, lambda: w.__setitem__(1, 50.0)),
        "an element by a view": (lambda x: x * w, lambda: view.__setitem__(0, 60.0)),
        "an element under a view": (lambda x: x[1:] * view, lambda: w.__setitem__(1, 70.0)),
        "an array in a sum": (lambda x: np.sum(w) + x, lambda: w.fill(3.0)),
        "an item of a dict": (lambda x: x * config["rate"], lambda: config.update(rate=1.0)),
        "the length of a dict": (lambda x: x * len(config), lambda: config.update(new=1.0)),
        "a key that is not there": (
            lambda x: x * config.get("other", 3.0),
            lambda: config.update(other=9.0),
        ),
        "a key in a dict": (
            lambda x: x * (2.0 if "other" in config else 1.0),
            lambda: config.update(other=1.0),
        ),
        "deep in a dict": (
            lambda x: x * config["deep"]["a"][1],
            lambda: config["deep"]["a"].__setitem__(1, 7.0),
        ),
        "an appended item": (lambda x: x * sum(items), lambda: items.append(5.0)),
        "an item of a list": (lambda x: x * items[0], lambda: items.__setitem__(0, 15.0)),
        "the order of a list": (lambda x: x * items[0], items.reverse),
        "a loop over a list": (
            lambda x: x * [v * 2 for v in items][-2],
            lambda: items.__setitem__(0, 19.0),
        ),
        "a set": (lambda x: x * (2.0 if 77 in seen else 1.0), lambda: seen.add(77)),
        "an attribute": (lambda x: x * model.w, lambda: setattr(model, "w", np.full(3, 4.0))),
        "an attribute's list": (
            lambda x: x * model.layers[0],
            lambda: model.layers.__setitem__(0, 6.0),
        ),
        "an attribute of an attribute": (
            lambda x: x * model.options.rate,
            lambda: setattr(model.options, "rate", 6.0),
        ),
        "an attribute of a class": (
            lambda x: x * model.scale,
            lambda: setattr(Model, "scale", 6.0),
        ),
        "an attribute that hides its class's": (
            lambda x: x * model.scale,
            lambda: setattr(model, "scale", 7.0),
        ),
        "an attribute that a method reads": (
            model.step,
            lambda: setattr(model, "w", np.full(3, 24.0)),
        ),
        "an attribute that a property reads": (
            lambda x: model.twice * x,
            lambda: setattr(model, "w", np.full(3, 34.0)),
        ),
        "a method": (
            lambda x: model.step(x),
            lambda: setattr(Model, "step", lambda self, x: x * 1000),
        ),
        "a method of the object's own": (
            lambda x: model.step(x),
            lambda: setattr(model, "step", lambda x: x * 31),
        ),
        "an attribute that is not there": (
            lambda x: x * getattr(model, "gain", 1.0),
            lambda: setattr(model, "gain", 5.0),
        ),
        "whether an attribute is there": (
            lambda x: x * (2.0 if hasattr(model, "gain") else 1.0),
            lambda: setattr(model, "gain", 5.0),
        ),
        "a slot": (lambda x: x * slotted.v, lambda: setattr(slotted, "v", 5.0)),
        "a dataclass": (lambda x: x * settings.rate, lambda: setattr(settings, "rate", 3.0)),
        "a dataclass's array": (lambda x: x * settings.w, lambda: settings.w.__setitem__(1, 3.0)),
        "a frozen dataclass's array": (
            lambda x: x * frozen.w,
            lambda: frozen.w.__setitem__(1, 3.0),
        ),
        "a dataclass in a frozen one": (
            lambda x: x * frozen.inner.rate,
            lambda: setattr(frozen.inner, "rate", 3.0),
        ),
        "the class of an attribute": (
            lambda x: x * (2.0 if isinstance(settings.rate, float) else 1.0),
            lambda: setattr(settings, "rate", 3),
        ),
        "an object in a list": (lambda x: x * held[1].rate, lambda: setattr(held[1], "rate", 5.0)),
        "an array in a tuple": (lambda x: x * pair[0], lambda: pair[0].__setitem__(1, 3.0)),
        "a list in a tuple": (lambda x: x * pair[1][0], lambda: pair[1].__setitem__(0, 3.0)),
        "a partial's array": (part, lambda: part.args[0].__setitem__(1, 3.0)),
        "an attribute of a module": (lambda x: x * module.k, lambda: setattr(module, "k", 9.0)),
        "an array of a module": (lambda x: x * module.w, lambda: module.w.__setitem__(1, 9.0)),
        "a global": (uses_k, set_k),
        "a default list": (with_defaults, lambda: defaults[0].__setitem__(0, 4.0)),
        "a default array": (with_defaults, lambda: defaults[1].__setitem__(1, 4.0)),
        "an attribute of a function": (counted, lambda: setattr(counted, "n", 4.0)),
    }


@pytest.mark.parametrize("name", cases())
def test_a_change_is_seen(name: str) -> None:
    f, change = cases()[name]
    compiled = dl.compile(f, backend="reference")
    before = np.array(f(X))
    np.testing.assert_array_equal(compiled(X), before)
    change()
    after = np.array(f(X))
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(compiled(X), after)


def closures() -> dict[str, Case]:
    """Functions that close over what the statement of their name changes."""
    W, config, items = np.ones(3), {"lr": 0.5}, [1.0]
    model, new, v = types.SimpleNamespace(w=np.ones(3)), np.full(3, 4.0), 2.0

    def add() -> None:
        W[0] += 5

    def set_item() -> None:
        config["lr"] = 1

    def set_attribute() -> None:
        model.w = new

    def loop(x: Any) -> Any:
        for item in items:
            x = x * item + 1
        return x

    return {
        "W[0] += 5": (lambda x: x * W, add),
        'config["lr"] = 1': (lambda x: x - config["lr"], set_item),
        "items.append(v)": (loop, lambda: items.append(v)),
        "model.w = new": (lambda x: x @ model.w, set_attribute),
    }


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("statement", closures())
def test_a_closure_that_changes_is_seen_at_the_next_call(statement: str, backend: str) -> None:
    f, change = closures()[statement]
    compiled, slope = dl.compile(f, backend=backend), dl.grad(lambda x: np.sum(f(x)))
    np.testing.assert_array_equal(compiled(X), f(X))
    first = slope(X)
    change()
    np.testing.assert_array_equal(compiled(X), f(X))
    step = (np.sum(f(X + 1e-6)) - np.sum(f(X - 1e-6))) / 2e-6
    assert np.sum(slope(X)) == pytest.approx(step, rel=1e-6)
    assert statement.startswith("config") or np.sum(first) != pytest.approx(step, rel=1e-6)


def test_nothing_is_compiled_again_where_nothing_changed() -> None:
    for name, (f, _) in cases().items():
        compiled = dl.compile(f, backend="reference")
        compiled(X)
        first = list(compiled._entries.values())
        compiled(X)
        assert list(compiled._entries.values()) == first, name


def test_an_argument_that_is_an_object() -> None:
    settings = Slotted()
    compiled = dl.compile(lambda x, o: x * o.v, backend="reference")
    np.testing.assert_array_equal(compiled(X, settings), X * 3)
    settings.v = 4.0
    np.testing.assert_array_equal(compiled(X, settings), X * 4)


def test_an_array_that_cannot_be_written_to_is_not_kept() -> None:
    w = np.ones(3)
    w.flags.writeable = False
    compiled = dl.compile(lambda x: x * w, backend="reference")
    compiled(X)
    (entry,) = compiled._entries.values()
    assert [seen.content for seen in entry.traced.seen] == [None]


def test_a_derivative_sees_a_change() -> None:
    w = np.ones(3)
    slope = dl.grad(lambda x: np.sum(x * x * w))
    np.testing.assert_array_equal(slope(X), 2 * X)
    w[1] = 5.0
    np.testing.assert_array_equal(slope(X), 2 * X * w)


def now(x: Any) -> Any:
    return x + datetime.datetime.now().microsecond


def today(x: Any) -> Any:
    return x + datetime.date.today().day


def the_time(x: Any) -> Any:
    return x + time.time()


def a_draw(x: Any) -> Any:
    return x + random.random()


@pytest.mark.parametrize("f", [now, today, the_time, a_draw], ids=lambda f: f.__name__)
def test_what_is_another_value_each_time_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(ProgramError, match="DL106"):
        dl.compile(f, backend="reference")(X)


def test_what_a_class_of_pythons_computes_is_known() -> None:
    def f(x: Any) -> Any:
        return x * dict.fromkeys("ab", 5.0)["a"] + float.fromhex("0x1p3") + int.from_bytes(b"a")

    np.testing.assert_array_equal(dl.compile(f, backend="reference")(X), f(X))


class Filling(dict):
    def __missing__(self, key: Any) -> Any:
        self[key] = 5.0
        return 5.0


class Constant(dict):
    def __missing__(self, key: Any) -> Any:
        return 7.0


def fresh() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        items=[1.0, 2.0],
        table={"a": 1.0},
        array=np.array([3.0, 1.0, np.nan]),
        tally=collections.defaultdict(float),
        ordered=collections.OrderedDict(a=1, b=2),
        filling=Filling(),
        constant=Constant(),
    )


#: What changes a value that is known while compiling, where a branch may not be taken.
CHANGES = [
    *("operator.iadd(o.items, [3.0])", "o.items.__setitem__(0, 9.0)", "o.items.__imul__(2)"),
    *("operator.setitem(o.items, 0, 9.0)", "operator.methodcaller('append', 5)(o.items)"),
    *("functools.reduce(operator.iadd, [o.items, [1.0]])", "operator.ior(o.table, {'b': 2.0})"),
    *("o.table.__setitem__('a', 9.0)", "o.tally['new']", "o.filling['new']"),
    *("o.ordered.move_to_end('a')", "o.array.__setitem__(0, 9.0)", "operator.iadd(o.array, 1)"),
    *("o.array.cumsum(out=o.array)", "o.array.clip(0, 1, o.array)", "np.ndarray.sort(o.array)"),
    *("np.nan_to_num(o.array, copy=False)", "np.median(o.array, overwrite_input=True)"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_on_known_values_changes_none_of_them(change: str) -> None:
    text = f"def f(x):\n    if x[0] > 5:\n        {change}\n    return x + len(o.items)\n"
    file = f"<change {change}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    o, untouched = fresh(), fresh()
    names = {"o": o, "np": np, "operator": operator, "functools": functools}
    exec(compile(text, file, "exec"), names)
    with pytest.raises(ProgramError, match=r"DL111|DL106|DL104"):
        dl.compile(names["f"], backend="reference")(X)
    for name, value in vars(untouched).items():
        np.testing.assert_equal(getattr(o, name), value)


def test_a_missing_key_is_what_its_dict_makes_of_it() -> None:
    o = fresh()

    def f(x: Any) -> Any:
        return x + o.constant["new"] + len(o.constant)

    np.testing.assert_array_equal(dl.compile(f, backend="reference")(X), X + 7.0)


USES = [
    *("3 in o", "''.join(map(str, o))", "[0].extend(o)", "math.prod(o)", "max(o)", "sum(o)"),
    *("np.fromiter(o, int)", "dict.fromkeys(o)", "operator.countOf(o, 2)", "{5}.union(o)"),
    *("bytes(o)", "itertools.chain(o, o)", "next(o)", "[*o]", "list(zip(o, o))"),
]


@pytest.mark.parametrize("use", USES)
def test_an_iterator_from_outside_is_refused_and_not_used_up(use: str) -> None:
    text = f"def f(x):\n    made = {use}\n    return x\n"
    file = f"<use {use}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    for o in (iter([1, 2, 3]), (k for k in (1, 2, 3))):
        names = {"o": o, "np": np, "math": math, "operator": operator, "itertools": itertools}
        exec(compile(text, file, "exec"), names)
        with pytest.raises(ProgramError, match="came from outside the function"):
            dl.compile(names["f"], backend="reference")(X)
        assert list(o) == [1, 2, 3]


def test_an_object_may_hold_an_iterator_that_is_not_used() -> None:
    o = Settings(rate=2.0, w=iter([1]))

    def f(x: Any) -> Any:
        return x * o.rate

    np.testing.assert_array_equal(dl.compile(f, backend="reference")(X), X * 2.0)
