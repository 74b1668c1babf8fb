"""`copy.copy` and `copy.deepcopy` of arrays, containers and objects of the program."""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...complex_numbers import Complex
from ...traced import ARRAY
from ..definitions.np_generators import STANDS_FOR
from ..memory import stores
from ..values import Choice, Closure, Tensor, Text, describe, is_number, kind_of
from . import containers, program_objects

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Methods by which a class decides itself what a copy of its objects is.
_OWN = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
_SAME = (str, bytes, type(None), type, Enum, range, slice, np.dtype, types.ModuleType, Text)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, Closure, Choice)


def shallow(s: Specialiser, x: Any) -> Any:
    """`copy.copy`."""
    return _Copy(s, False).of(x)


def deep(s: Specialiser, x: Any) -> Any:
    """`copy.deepcopy`: what stands in several places is copied once."""
    return _Copy(s, True).of(x)


class _Copy:
    """One call.

    Attributes:
        made: (what was copied, its copy), by id.
        memories: those of the arrays that were copied.
    """

    def __init__(self, s: Specialiser, is_deep: bool) -> None:
        self.s = s
        self.is_deep = is_deep
        self.made: dict[int, tuple[Any, Any]] = {}
        self.memories: list[stores.Memory] = []

    def of(self, value: Any) -> Any:
        if id(value) not in self.made:
            self.made[id(value)] = value, self._copy(value)
        return self.made[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if _is_array(value):
            self._check_alone(value)
            return self.s.call(np.copy, value)
        if is_number(value) or isinstance(value, (*_SAME, *_FUNCTIONS, Complex, complex)):
            return value
        if isinstance(value, tuple):
            items = [self._inner(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, set | frozenset):
            return self.s.own(value.copy()) if isinstance(value, set) else value
        if not self.is_deep and hasattr(type(value), STANDS_FOR) and hasattr(value, "copy"):
            return self.s.call(value.copy)
        if type(value) in (list, dict) or _is_plain(value):
            return self._container(value)
        text = f"the compiler cannot copy {describe(value)}"
        raise self.s.error("DL106", text, "make a new one of what it holds")

    def _inner(self, value: Any) -> Any:
        return self.of(value) if self.is_deep else value

    def _container(self, value: Any) -> Any:
        """A list, dict or object; it may hold itself."""
        s = self.s
        if isinstance(value, list | dict):
            made: Any = s.own(type(value)())
            content = containers.copied(value)
        else:
            is_open = tree.is_object(type(value))
            made = program_objects.new(s, type(value)) if is_open else object.__new__(type(value))
            content = dict(vars(value))
        self.made[id(value)] = value, made
        if isinstance(value, list):
            made[:] = [self._inner(v) for v in content]
        else:
            held = made if isinstance(made, dict) else vars(made)
            held.update({k: self._inner(v) for k, v in content.items()})
        return made

    def _check_alone(self, value: Any) -> None:
        """Refuses arrays that may be one object: Python copies such an array once."""
        part = value.re if type(value) is Complex else value
        memory = stores.memory_of(self.s, part) if type(part) is Tensor else None
        if memory is None:
            return
        sources = stores.sources_of([memory])
        if any(m in self.memories for m in sources):
            text = "`deepcopy` of arrays that share memory"
            raise self.s.error("DL111", text, "copy each of them: x.copy()")
        self.memories += sources


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return bool(kind_of(value) & ARRAY)
    return isinstance(value, Complex) and bool(kind_of(value.re) & ARRAY)


def _is_plain(value: Any) -> bool:
    """Whether it is an object whose copy has its attributes."""
    kind = type(value)
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in _OWN):
        return False
    frozen = dataclasses.is_dataclass(kind) and hasattr(value, "__dict__")
    return tree.is_object(kind) or frozen


__all__ = ["deep", "shallow"]
