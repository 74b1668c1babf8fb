"""Lazy exports of a package (PEP 562): its names are imported when they are first used.

A package that exports the names of many modules would import all of them for a user of one. A
coordinator that adds updates, and a simulation whose programs are compiled already, would load each
layer and each algorithm before they begin. Such a package lists its modules with the names that it
exports of each; the imports for type checkers stand next to the list, under TYPE_CHECKING.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: the package's `__name__`.
        names: by module (relative to the package, "core.compiler.api"), the names that it exports
            of the module, separated by spaces. Each module is exported too: under its own name, or
            under NEW where "=NEW" is among the names.
    """
    where: dict[str, tuple[str, str]] = {}
    for module, own in names.items():
        words = own.split()
        called = [word[1:] for word in words if word.startswith("=")]
        if called or "." not in module:
            where[called[0] if called else module] = (module, "")
        where.update((word, (module, word)) for word in words if not word.startswith("="))

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place, attribute = where[name]
        module = import_module(f".{place}", package)
        value = getattr(module, attribute) if attribute else module
        setattr(sys.modules[package], name, value)
        return value

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, names_of_package


def exported(names: Mapping[str, str]) -> list[str]:
    """The `__all__` of a package with these names; modules with dots are not exported."""
    found: set[str] = set()
    for module, own in names.items():
        words = own.split()
        found.update(word.removeprefix("=") for word in words or [module])
    return sorted(found)
