"""Objects that a program makes and changes: `self.x = v`.

An object of a user's class is a real one, made without its `__init__`, which is inlined instead.
Its attributes hold abstract values. It is a container like a list (`containers`): one object under
all its names, changed where it stands, its attributes joined where paths meet.

    tank = Tank(0.0)         the object is made and `Tank.__init__` inlined
    if c: tank.level += x    the region notes what the attributes held; they are its results
    tank.level               what was joined

Objects from outside the function keep what they hold: a compiled call changes none of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import tree
from .. import calls, operators
from ..values import describe, inherits
from . import containers

if TYPE_CHECKING:
    from ..specialise import Specialiser


def construct(s: Specialiser, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of a class of plain objects (`tree.is_object`)."""
    what = f"`{cls.__name__}`"
    if abstract := getattr(cls, "__abstractmethods__", None):
        lacks = ", ".join(f"`{name}`" for name in sorted(abstract))
        raise s.error("DL105", f"{what} is abstract", f"make one of a class that defines {lacks}")
    made = new(s, cls)
    init = calls.in_class(cls, "__init__")
    if isinstance(init, types.FunctionType):
        given = calls.call(s, init, (made, *args), kwargs)
        if given is not None:
            raise s.error("DL105", f"the __init__ of {what} returns {describe(given)}, not None")
    elif not inherits(cls, "__init__"):
        raise s.error("DL106", f"the compiler cannot make a {what}: its __init__ is not Python's")
    elif args or kwargs:
        raise s.error("DL105", f"{what} takes no arguments")
    return made


def new(s: Specialiser, cls: type) -> Any:
    """An object without attributes, which the program may change."""
    return opened(s, object.__new__(cls))


def opened(s: Specialiser, made: Any) -> Any:
    """An object that is new, as one that the program may change."""
    tree.open_object(made)
    return s.own(made)


def store(s: Specialiser, owner: Any, name: str, value: Any) -> None:
    """`owner.name = value`."""
    _check(s, owner, name, "assigned")
    found = calls.in_class(type(owner), name)
    if isinstance(found, property):
        if not isinstance(found.fset, types.FunctionType):
            raise s.error("DL111", f"the property `{name}` of {describe(owner)} has no setter")
        calls.call(s, found.fset, (owner, value), {})
        return
    containers.may_change(s, owner)
    vars(owner)[name] = value


def delete(s: Specialiser, owner: Any, name: str) -> None:
    """`del owner.name`."""
    _check(s, owner, name, "deleted")
    if name not in vars(owner):
        raise s.error("DL104", f"{describe(owner)} has no attribute `{name}` of its own")
    containers.may_change(s, owner)
    del vars(owner)[name]


def _check(s: Specialiser, owner: Any, name: str, done: str) -> None:
    """Refuses a change of an attribute that is not the program's to change."""
    kind = type(owner)
    if containers.is_frozen(kind):
        text = f"`{name}` of a frozen `{kind.__name__}` cannot be {done}"
        raise s.error("DL111", text, "make a new one: `dataclasses.replace(x, name=value)`")
    if isinstance(owner, type):
        text = f"`{name}` of the class `{owner.__name__}` cannot be {done}"
        raise s.error("DL111", text, "keep it in an object or under a name of the function")
    if not tree.is_object(kind):
        text = f"`{name}` of `{kind.__name__}` cannot be {done}: this is no plain object"
        hint = "use a class without __slots__, and with Python's own access to attributes"
        raise s.error("DL111", text, hint)
    if not tree.is_open(owner):
        raise s.error(
            "DL111",
            f"the attribute `{name}` of {describe(owner)} cannot be {done}: the function did not"
            " make the object",
            "make the object in the function and return it; or return what is new, and assign it"
            " where the compiled function is called",
        )
    found = calls.in_class(kind, name)
    data = hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")
    if data and not isinstance(found, property):
        text = f"`{name}` of `{kind.__name__}` is a descriptor, and cannot be {done}"
        raise s.error("DL111", text, "use a property")


def holds(owner: Any, name: str, value: Any) -> bool:
    """Whether an attribute is this value already, and a store of it would change nothing."""
    kind = type(owner)
    set_by_class = hasattr(type(calls.in_class(kind, name)), "__set__")
    plain = not set_by_class and not containers.is_frozen(kind)
    return plain and getattr(owner, "__dict__", {}).get(name) is value


# Dataclasses


def construct_dataclass(
    s: Specialiser, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A call of a dataclass; its fields may be values of the running program."""
    init = getattr(cls, "__init__", None)
    generated = getattr(getattr(init, "__code__", None), "co_filename", "") == "<string>"
    mutable = tree.is_object(cls)
    if not generated and mutable:
        return construct(s, cls, args, kwargs)
    if not generated:
        hint = "let the dataclass make its own __init__, and compute fields in a static method"
        raise s.error("DL106", f"`{cls.__name__}` has an __init__ of its own", hint)
    post = getattr(cls, "__post_init__", None)
    given = dict(kwargs)
    for f in dataclasses.fields(cls):
        # A factory may be a user's function: it is inlined, not run.
        taken = len(args) > sum(1 for g in _before(cls, f.name))
        made_up = f.default_factory is not dataclasses.MISSING
        if f.init and made_up and not taken and f.name not in given:
            given[f.name] = calls.call(s, f.default_factory, (), {})
    what = f"`{cls.__name__}`"
    if post is None:
        _check_fields(s, cls, args, given)
        plain = operators.python(s, lambda: cls(*args, **given), what)
        return opened(s, plain) if mutable else plain
    # The generated __init__ would run __post_init__ as plain Python: fill in the fields, then
    # inline it.
    names = [f.name for f in dataclasses.fields(cls) if f.init]
    taken_by_init = list(inspect.signature(cls.__init__).parameters)[1:]  # type: ignore[misc]
    if more := [name for name in taken_by_init if name not in names]:
        raise s.error("DL106", f"`{more[0]}` of {what} is an InitVar", "make it a field")
    placed = [f.name for f in dataclasses.fields(cls) if f.init and not f.kw_only]
    if len(args) > len(placed):
        raise s.error("DL105", f"{what} takes {len(placed)} arguments by place, not {len(args)}")
    if twice := [name for name in placed[: len(args)] if name in given]:
        raise s.error("DL105", f"{what} is given `{twice[0]}` twice")
    values = {**dict(zip(placed, args, strict=False)), **given}
    made: Any = new(s, cls) if mutable else object.__new__(cls)
    for f in dataclasses.fields(cls):
        if f.name in values:
            object.__setattr__(made, f.name, values.pop(f.name))
        elif f.default is not dataclasses.MISSING:
            object.__setattr__(made, f.name, f.default)
        elif f.init:
            raise s.error("DL105", f"{what} is made without `{f.name}`")
    if values:
        raise s.error("DL105", f"{what} has no field `{next(iter(values))}`")
    calls.call(s, types.MethodType(post, made), (), {})
    return made


def _check_fields(s: Specialiser, cls: Any, args: Sequence[Any], given: Mapping[str, Any]) -> None:
    fields = [f for f in dataclasses.fields(cls) if f.init]
    placed = [f.name for f in fields if not f.kw_only][: len(args)]
    known = {*placed, *given}
    lacks = [
        f"`{f.name}`" for f in fields if f.name not in known and f.default is dataclasses.MISSING
    ]
    if lacks:
        hint = f"its fields are {', '.join(f.name for f in fields)}"
        raise s.error("DL105", f"`{cls.__name__}` is made without {', '.join(lacks)}", hint)


def _before(cls: Any, name: str) -> list[str]:
    names = [f.name for f in dataclasses.fields(cls) if f.init and not f.kw_only]
    return names[: names.index(name)] if name in names else names
