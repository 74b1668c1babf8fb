"""Classes that a program defines: a `class` statement within a function.

The class is a real one, a new one each time that the statement runs, so that Python itself answers
what it is derived from, makes a dataclass or a named tuple of it, and finds attributes and methods.
Its body is run like that of a function, over abstract values. A function in it becomes a stand-in,
a function of Python's: the compiler runs its `Closure` wherever it would inline a body.

    class Line:                     vars: {"slope": 2.0, "at": <stand-in>}
        slope = 2.0           ->    Line = type("Line", (), vars)
        def at(self, x):            Line(): an object like any other (`program_objects`)
            return x * k            Line.at: a Closure over a frame with `__class__`, in f's frame

As in Python, functions in a class do not see the names of its body, but those around the class,
with what they hold when the function is called.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from ....common.errors import ProgramError
from ...traced import ARRAY
from .. import calls, operators, statements
from ..hir import hir
from ..values import ClassFrame, Frame, Tensor, Unbound, describe
from .body_functions import closure_of

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: What a class may be made by; other metaclasses are code that would run while compiling.
_METACLASSES = (type, ABCMeta, EnumMeta, type(types.new_class("_P", (typing.Protocol,))))
#: Modules whose `__init_subclass__` and `__set_name__` only look at the class.
_LOOKING = ("builtins", "typing", "abc", "enum", "functools", "dataclasses")
#: What Python calls of an error where only the program's call knows its words.
_OF_ERRORS = ("__init__", "__new__", "__str__", "__repr__", "__reduce__")


def define(s: Specialiser, node: hir.DefineClass, frame: Frame) -> None:
    """Binds a new class to the statement's name."""
    decorators = [s.eval(decorator, frame) for decorator in node.decorators]
    bases = tuple(s.eval(base, frame) for base in node.bases)
    keywords = {name: s.eval(value, frame) for name, value in node.keywords}
    s.at(node.loc)
    _check_bases(s, node, bases, keywords)
    around = frame.parent if isinstance(frame, ClassFrame) else frame
    assert around is not None, "a class frame has one around it"
    cell = Frame({}, frozenset(), around, frame.module, frame.cells)
    body = ClassFrame({}, node.function.assigned, cell, frame.module, frame.cells)
    statements.run(s, node.function.body, body)
    s.at(node.loc)
    names: dict[str, Any] = {
        "__module__": frame.module.get("__name__", "__main__"),
        "__qualname__": node.path,
        "__doc__": node.doc,
    }
    for name, value in body.vars.items():
        if type(value) is not Unbound and name != hir.RESULT and not name.startswith("$"):
            names[_mangled(node.name, name)] = value
    if node.annotations:
        names["__annotations__"] = {
            _mangled(node.name, n): _annotation(s, a, body) for n, a in node.annotations
        }

    def fill(namespace: dict[str, Any]) -> None:
        for name, value in names.items():  # One by one: that of an enumeration takes notes.
            namespace[name] = value

    _check_descriptors(s, node.name, names)
    made = operators.python(
        s, lambda: types.new_class(node.name, bases, keywords, fill), f"`class {node.name}`"
    )
    _check_errors(s, made)
    s.classes.add(made)
    cell.vars["__class__"] = made
    value = made
    for decorator, function in zip(reversed(node.decorators), reversed(decorators), strict=True):
        s.at(decorator.loc)
        value = calls.call(s, function, [value], {})
    frame.vars[node.name] = value


def _mangled(owner: str, name: str) -> str:
    """A name in a class: one that is private to it has the class's (`hir.syntax_names`)."""
    private = name.startswith("__") and not name.endswith("__") and owner.strip("_")
    return f"_{owner.lstrip('_')}{name}" if private else name


def _annotation(s: Specialiser, node: hir.Annotation, frame: Frame) -> Any:
    """What an annotation is; its text where it is one, or nothing that a program can compute."""
    if node.value is None:
        return node.text
    try:
        return s.eval(node.value, frame)
    except ProgramError:
        return node.text


def _check_bases(
    s: Specialiser, node: hir.DefineClass, bases: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    what = f"`class {node.name}` inside a function"
    for base in bases:
        if isinstance(base, type) or hasattr(base, "__mro_entries__"):
            continue
        raise s.error("DL102", f"{what} is derived from {describe(base)}, which is no class")
    try:
        resolved = types.resolve_bases(bases)
        meta, *_ = types.prepare_class(node.name, resolved, dict(keywords))
    except TypeError as e:
        raise s.error("DL113", f"`class {node.name}` fails: {e}") from None
    named = getattr(meta, "__module__", "") == "typing"
    if meta not in _METACLASSES and not named:
        text = f"{what} has the metaclass `{meta.__name__}`, whose code would run while compiling"
        raise s.error("DL102", text, "define the class at the top of the module")
    for base in resolved:
        hook = calls.in_class(base, "__init_subclass__")
        function = getattr(hook, "__func__", None)
        if isinstance(function, types.FunctionType) and function.__module__ not in _LOOKING:
            text = f"{what} is derived from `{base.__name__}`, whose `__init_subclass__` would run"
            raise s.error("DL102", text, "define the class at the top of the module")


def _check_descriptors(s: Specialiser, owner: str, names: Mapping[str, Any]) -> None:
    """Refuses what Python gives its name in the class, by `__set_name__`."""
    for name, value in names.items():
        hook = calls.in_class(type(value), "__set_name__")
        if isinstance(hook, types.FunctionType) and hook.__module__ not in _LOOKING:
            text = f"`{name}` of `class {owner}` inside a function has a `__set_name__`"
            raise s.error("DL102", text, "define the class at the top of the module")


def _check_errors(s: Specialiser, made: type) -> None:
    """The words of an error are made by Python: it cannot call what only the compiler can run."""
    if not issubclass(made, BaseException):
        return
    for name in _OF_ERRORS:
        if closure_of(calls.in_class(made, name)) is not None:
            text = f"the error `{made.__name__}`, a class inside a function, has a `{name}`"
            raise s.error("DL102", text, "define the class at the top of the module")


#: Functions of `dataclasses` that only look at what they are given.
_KNOWN = (dataclasses.field, dataclasses.fields, dataclasses.is_dataclass)
#: Decorators of methods.
_OF_METHODS = (functools.cached_property, abstractmethod)


def known_call(
    s: Specialiser, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A call that a class statement needs; NotImplemented where it is none.

    It is `dataclass(...)` or `total_ordering`, on a class of the program alone, `field(...)` and
    the like, and the decorators of methods.
    """
    decorates = f in (dataclasses.dataclass, functools.total_ordering) or (
        f.__module__ == "dataclasses" and f.__qualname__ == _WRAP
    )
    if decorates and args:
        return _decorated(s, f, args, kwargs)
    method = any(f is known for known in _OF_METHODS) and closure_of(args[0]) is not None
    method |= isinstance(getattr(f, "__self__", None), property)
    if not (decorates or method or any(f is known for known in _KNOWN)):
        return NotImplemented
    return operators.python(s, lambda: f(*args, **kwargs), f"`{f.__name__}`")


_WRAP = dataclasses.dataclass(frozen=True).__qualname__


def _decorated(
    s: Specialiser, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    cls = args[0]
    if cls not in s.classes:
        text = f"`{f.__name__}` of {describe(cls)} changes a class from outside the function"
        raise s.error("DL111", text, "decorate it where it is defined")
    for name in vars(cls).get("__annotations__", ()) if f is not functools.total_ordering else ():
        value = vars(cls).get(name)
        if type(value) is Tensor and value.kind & ARRAY:
            text = f"`dataclass` fails: ValueError: mutable default of the field `{name}`"
            raise s.error("DL113", text, "use field(default_factory=...)")
    made = operators.python(s, lambda: f(*args, **kwargs), f"`{f.__name__}`")
    s.classes.add(made)
    return made


__all__ = ["define", "known_call"]
