"""Packages whose names are there when somebody asks for them.

A package that hands many modules' names on imports them all, for whoever wants one: a coordinator
that adds updates up, and a simulation whose programs are compiled already, would load each layer
and each algorithm before they begin. Such a package says in which module each name is (PEP 562);
what type checkers read stands beside it, under TYPE_CHECKING.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`. names: by module, what it hands on of it, parted by
    spaces. The package's own modules are there by their own names too, as after an import of them.
    """
    where = dict.fromkeys((module for module in names if "." not in module), "")
    where.update((name, module) for module, own in names.items() for name in own.split())

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{where[name] or name}", package)
        value = getattr(module, name) if where[name] else module
        setattr(sys.modules[package], name, value)
        return value

    def told() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, told
