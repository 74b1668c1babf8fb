"""The built-in algorithms: the modules of `algorithms/`.

A file NAME.py there, or in a folder of a family, defines one subclass of `Algorithm`, whose name in
lower case is NAME. That is all there is to an algorithm: scenario keys, exports of `dl.learn`,
reports and the tables of the documentation are derived from its class. A module is imported when
its algorithm is first needed; the names alone need no import.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import algorithms

if TYPE_CHECKING:
    from .algorithm import Algorithm


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all built-in algorithms, in alphabetical order."""
    return tuple(sorted(modules()))


@functools.cache
def modules() -> Mapping[str, str]:
    """The modules by the algorithms' names, relative to the package `algorithms`."""
    from pathlib import Path

    found = {}
    for folder in map(Path, algorithms.__path__):
        for file in (*folder.glob("*.py"), *folder.glob("*/*.py")):
            if not file.stem.startswith("_"):
                found[file.stem] = ".".join(file.relative_to(folder).with_suffix("").parts)
    return found


@functools.cache
def algorithm_class(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm.

    Raises:
        KeyError: there is no algorithm of this name.
        TypeError: its module does not define exactly one algorithm with the module's name.
    """
    if name not in names():
        raise KeyError(name)
    from .algorithm import Algorithm

    module = import_module(f"{algorithms.__name__}.{modules()[name]}")
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Algorithm)
        and each.__module__ == module.__name__
    ]
    if len(found) != 1 or found[0].__name__.lower() != name:
        raise TypeError(f"{module.__name__} must define one subclass of Algorithm, named as it is")
    return found[0]


def title(name: str) -> str:
    """A built-in algorithm's name as its paper writes it; another name as it is."""
    if name not in names():
        return name
    kind = algorithm_class(name)
    return kind.about.title or kind.__name__


def exported(name: str) -> Any:
    """The class of a built-in algorithm by the class's name; None if there is none."""
    if name.lower() == name or name.lower() not in names():
        return None
    kind = algorithm_class(name.lower())
    return kind if kind.__name__ == name else None


def markdown() -> str:
    """The table of docs/algorithms.md."""
    rows = ["| name | paper | what a device uploads | what it keeps |", "|---|---|---|---|"]
    for name in names():
        about = algorithm_class(name).about
        rows.append(f"| `{name}` | {about.paper} | {about.uploads} | {about.keeps} |")
    return "\n".join(rows).replace("|  |", "| |") + "\n"
