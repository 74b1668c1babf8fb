"""Running one small program by Python with NumPy and by the compiler, and what differs.

A program is text: an expression, or statements with a `return`. The names in it that `VALUES` has
are its arguments, or are closed over.
"""

from __future__ import annotations

import ast
import collections
import copy
import functools
import itertools
import linecache
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import delian as dl
import numpy as np
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from oracle.judge import REFUSED_LATE

NAN, INF = float("nan"), float("inf")
#: The words of an outcome where both raise the same error.
RAISES = "both raise"

#: One of each kind of number that Python and NumPy have, and arrays of them.
VALUES: dict[str, Any] = {
    "p": 2.5,
    "q": -1.5,
    "p2": 0.0,
    "nan": NAN,
    "i": 7,
    "j": -3,
    "big": 2**40,
    "t": True,
    "u": False,
    "s": np.float64(1.5),
    "r": np.float32(1.25),
    "c": np.int64(5),
    "d": np.int32(-5),
    "g": np.bool_(True),
    "z": np.array(1.5),
    "zi": np.array(3),
    "x": np.array([1.5, -2.5, 0.5, 2.5, -0.5, 1.5]),
    "y": np.array([3.0, NAN, -0.0, 0.0, 1.0, INF]),
    "w": np.arange(6, dtype=np.float32).reshape(2, 3) - 2,
    "w2": np.arange(12.0).reshape(3, 4),
    "k": np.array([5, -7, 2, 0, -7, 3]),
    "m": np.array([3, -4, 5], np.int32),
    "h": np.array([True, False, True]),
    "o": np.array([250, 3, 7], np.uint8),
    "e": np.zeros(0),
    "i8": np.array([-128, 127, -3], np.int8),
    "i16": np.array([-(2**15), 2**15 - 1, 9], np.int16),
    "u16": np.array([2**16 - 1, 0, 9], np.uint16),
    "u32": np.array([2**32 - 1, 0, 9], np.uint32),
    "u64": np.array([2**64 - 1, 2**63, 9], np.uint64),
    "i64": np.array([-(2**63), 2**63 - 1, 9]),
    "f16": np.array([-1.5, 2.0, 0.25], np.float16),
    "f32": np.array([-1.5, 2.0, 0.25], np.float32),
    "n8": np.int8(-7),
    "n16": np.int16(300),
    "v16": np.uint16(9),
    "v64": np.uint64(2**64 - 1),
}
_MODULES = {
    "np": np,
    "math": math,
    "operator": operator,
    "functools": functools,
    "itertools": itertools,
    "collections": collections,
    "copy": copy,
}
_count = itertools.count()


def names_in(text: str) -> list[str]:
    """The values that a program uses."""
    body = "\n".join(f"    {line}" for line in _statements(text))
    found = {n.id for n in ast.walk(ast.parse(f"def f():\n{body}")) if isinstance(n, ast.Name)}
    return [name for name in VALUES if name in found]


def _statements(text: str) -> list[str]:
    return text.split("\n") if "\n" in text else [f"return {text}"]


def function(text: str, parameters: Sequence[str], values: dict[str, Any]) -> Callable[..., Any]:
    """The program as a function of some of its values, closed over the others."""
    file = f"<program {next(_count)}>"
    lines = [f"def f({', '.join(parameters)}):", *(f"    {line}" for line in _statements(text))]
    source = "\n".join(lines) + "\n"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    outside = {n: v for n, v in values.items() if n not in parameters}
    names: dict[str, Any] = {**_MODULES, **outside}
    exec(compile(source, file, "exec"), names)
    made: Callable[..., Any] = names["f"]
    return made


def outcome(
    text: str, parameters: Sequence[str], backend: Any = "reference", values: Any = VALUES
) -> tuple[str, str]:
    """(mark, words) of a program: "=" where both give the same, "!" where the compiler refuses it,
    "^" where Python raises an error and the program has a value, "~" where they differ.
    """
    f = function(text, parameters, values)
    arguments = [copy.copy(values[n]) for n in parameters]
    want, raised = None, ""
    with np.errstate(all="ignore"):
        try:
            want = f(*copy.deepcopy(arguments))
        except Exception as e:
            raised = f"{type(e).__name__}: {e}"
        try:
            got = dl.compile(f, backend=backend)(*arguments)
        except ProgramError as e:
            assert e.code != "DL121", f"{text}\n{e}"
            return "!", f"{e.code}: {e.message}"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
            if any(isinstance(v, complex) or _is_long(v) for v in tree.leaves(want)):
                return "!", said
            if REFUSED_LATE.search(str(e)):
                return "!", said
            return ("=", RAISES) if said == raised else ("~", f"{said}, in Python {raised}")
    if raised:
        return "^", f"Python raises {raised}; compiled it is {got!r}"
    said = difference(got, want)
    return ("~", f"{said}: compiled {got!r}, in Python {want!r}") if said else ("=", "")


def value_or_error(f: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, or the text of an error that Python raises of such arguments."""
    try:
        return f(*args)
    except (KeyError, ValueError, IndexError) as e:
        return f"{type(e).__name__}: {e}"


def _is_long(value: Any) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63


def difference(got: Any, want: Any) -> str:
    """In what a compiled result differs from Python's; empty where it does not."""
    if isinstance(want, list | tuple):
        if type(got) is not type(want) or len(got) != len(want):
            return "structure"
        return next(filter(None, map(difference, got, want)), "")
    if isinstance(want, dict):
        if type(got) is not type(want) or list(got) != list(want):
            return "structure"
        return next(filter(None, map(difference, got.values(), want.values())), "")
    if type(got) is not type(want):
        equal = np.shape(got) == np.shape(want) and np.allclose(got, want, equal_nan=True)
        return f"class {type(got).__name__}, not {type(want).__name__}" if equal else "value"
    if want is None:
        return ""
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return "shape"
    if b.dtype == object:
        return "value"  # An int of more than 64 bits.
    if a.dtype != b.dtype:
        return "element type" if np.allclose(a, b, equal_nan=True) else "value"
    if a.dtype.kind != "f":
        return "" if np.array_equal(a, b) else "value"
    close = np.allclose(a, b, rtol=_CLOSE[a.dtype.itemsize], atol=1e-12, equal_nan=True)
    return "" if close else "value"


#: By the size of a float.
_CLOSE = {2: 2e-3, 4: 1e-5, 8: 1e-9}
