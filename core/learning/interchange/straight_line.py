"""A foreign graph as the source of a Python function, which runs on NumPy and compiles.

An importer walks its framework's graph in order and adds one call an operation:

    program = StraightLine("net", ["x"])
    y = program.call(relu, Ref("x"), origin=line_of_the_user)
    net = program.function([y])

    def net(x):
        relu_1 = relu(x)
        return relu_1

The operations are functions in Delian's vocabulary. So shape rules, derivatives and lowering are
those of any program, the function runs as plain Python, and people can read what was imported. Each
line has an *origin*, the line of the user's model that made it: that is what errors underline and
what the operations of the IR carry as their span (`source_names.map_lines`).
"""

from __future__ import annotations

import hashlib
import keyword
import linecache
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ...common.errors import DelianError, Loc
from ...common.line_origins import map_lines
from ...compiler.ir import Array

#: Lines of one function: beyond it the front end would need minutes and gigabytes.
LINES_MAX = 100_000
#: Characters of a name in the source: long names of modules would hide what a line does.
_NAME_MAX = 48


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program: a name in its source, or an expression of names."""

    name: str

    def __getitem__(self, index: int) -> Ref:
        """An item of a tuple or a list."""
        return Ref(f"{self.name}[{index}]")


class StraightLine:
    """A function that is written a line at a time."""

    def __init__(self, name: str, parameters: Sequence[str] = ()) -> None:
        """name: of the function; parameters: names of its arguments, as Python writes them."""
        self._taken: set[str] = {*keyword.kwlist, "np"}
        self.name = self.unused(name)
        self._parameters = list(parameters)
        self._taken.update(parameters)
        self._lines: list[tuple[str, Loc | None]] = []
        self._globals: dict[str, Any] = {"np": np}
        self._names: dict[int, str] = {}  # of globals by identity, which `_globals` keeps alive

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        origin: Loc | None = None,
        name: str = "",
        **keywords: Any,
    ) -> Ref:
        """Adds `name = function(*args, **keywords)` and gives the result.

        Args:
            function: in Delian's vocabulary.
            args: `Ref`s, arrays (constants of the program), and Python's plain values.
            origin: the user's line.
            name: of the result; default: the function's.
            keywords: as `args`.
        """
        result = self.unused(name or function.__name__)
        given = [self.text(arg) for arg in args]
        given += [f"{key}={self.text(value)}" for key, value in keywords.items()]
        self.line(f"{result} = {self.known(function)}({', '.join(given)})", origin)
        return Ref(result)

    def line(self, text: str, origin: Loc | None = None) -> None:
        """Adds a line of source. Raises DelianError for a program that is too long."""
        if len(self._lines) >= LINES_MAX:
            raise DelianError(
                f"{self.name}: more than {LINES_MAX} operations",
                "import a part of the model, or a configuration with fewer layers",
            )
        self._lines.append((text, origin))

    def unused(self, name: str) -> str:
        """A name like this one that nothing else in the program has."""
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)[-_NAME_MAX:] or "value"
        stem = f"_{stem}" if stem[0].isdigit() else stem
        found, number = stem, 0
        while found in self._taken:
            number += 1
            found = f"{stem}_{number}"
        self._taken.add(found)
        return found

    def known(self, value: Any) -> str:
        """The name of an object that the program reads: a function, an array, a type."""
        found = self._names.get(id(value))
        if found is None:
            name = getattr(value, "__name__", "") or "constant"
            found = self._names[id(value)] = self.unused(str(name).lstrip("_"))
            self._globals[found] = value
        return found

    def text(self, value: Any) -> str:
        """A value as the source has it."""
        if isinstance(value, Ref):
            return value.name
        if isinstance(value, float) and not math.isfinite(value):
            return "np.nan" if math.isnan(value) else ("np.inf" if value > 0 else "-np.inf")
        if value is None or type(value) in (bool, int, float, str):
            return repr(value)
        if isinstance(value, tuple):
            return f"({''.join(self.text(each) + ', ' for each in value)})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self.text(v)}' for k, v in value.items())}}}"
        if isinstance(value, np.ndarray):
            return self.known(_constant(value))
        return self.known(value)

    def source(self, results: Any) -> str:
        """The source of the function that returns `results`."""
        lines = [text for text, _ in self._lines]
        body = [*lines, f"return {self.text(results)}"]
        head = f"def {self.name}({', '.join(self._parameters)}):"
        return "\n".join([head, *(f"    {line}" for line in body), ""])

    def function(self, results: Any) -> FunctionType:
        """The function that returns `results`: a `Ref`, or tuples, lists and constants of them."""
        source = self.source(results)
        # The same source has the same name: a bundle, which shows it, depends on no counter.
        origins = [str(origin) for _, origin in self._lines]
        digest = hashlib.sha256("\n".join([source, *origins]).encode()).hexdigest()[:12]
        file = f"<imported {self.name} {digest}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        map_lines(file, [None, *(origin for _, origin in self._lines), None])
        code = next(c for c in compile(source, file, "exec").co_consts if isinstance(c, CodeType))
        return FunctionType(code, {"__name__": __name__, **self._globals}, self.name)


def _constant(array: Array) -> Array:
    """The array, or a copy, that cannot be changed: programs need not look for changes."""
    if not array.flags.writeable:
        return array
    fixed = array.copy()
    fixed.flags.writeable = False
    return fixed
