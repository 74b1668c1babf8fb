"""The tables of `docs/vocabulary.md`, from the rows of the vocabulary.

The page says which of NumPy's functions a program may call, with which arguments, and where it
differs from NumPy. What follows `END` on the page is written by hand.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from delian.core.compiler.frontend.vocabulary import (
    ufunc_methods,
    vocabulary_math,
    vocabulary_numpy,
    vocabulary_random,
    vocabulary_table,
)
from delian.core.compiler.frontend.vocabulary.vocabulary_numpy import NOTES
from delian.core.compiler.ir import DType

#: What stands between the generated part of the page and the rest.
END = "<!-- Above: python tests/house/generated.py -->"

_INTRODUCTION = """\
# The vocabulary

A compiled function is written in NumPy. These are the functions, methods and properties that it
may use, under NumPy's own names and with NumPy's meaning: broadcasting, promotion (NEP 50),
`keepdims`, negative and several axes. All have derivatives of every order where they are smooth,
run on every back end and go through `vmap`. A call whose arguments are all known while compiling is
made by NumPy itself, also of functions that are not here.

What holds for all of them:

- `out=` and assignments to elements change arrays as in NumPy
  ([language.md](language.md#changes-in-place)). `where=` of a function is refused:
  `np.where(mask, new, old)` chooses instead.
- Shapes are known when a program is compiled, but for arrays whose length the data decide
  (`x[mask]`, `np.nonzero`, `np.unique`);
  [language.md](language.md#arrays-whose-length-the-data-decide) says what takes them.
- An index that is out of range raises NumPy's error, when the program runs or when it is compiled.
- Integers become floats where one is needed: those of 8 bits f16, of 16 bits f32, others f64.
- Every sort is stable. A tie in `max`, `min` and their kind shares the slope equally.
"""


def _signature(handler: Any) -> str:
    """As a user calls it: without the compiler's own parameter and without types."""
    if isinstance(handler, vocabulary_table.Defined):
        given = list(inspect.signature(handler.function).parameters.values())
    else:
        given = list(inspect.signature(handler).parameters.values())[1:]
    return str(inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in given]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """The generated part of the page."""
    rows = {id(row.function): row for row in vocabulary_numpy.rows()}
    lines = [_INTRODUCTION, f"There are {_count()} functions of NumPy.\n"]
    seen: set[int] = set()
    for title, group in vocabulary_numpy.GROUPS:
        lines += [f"## {title}", "", "| function | note |", "|---|---|"]
        for function, _ in group:
            if id(function) in seen:
                continue
            seen.add(id(function))
            row = rows[id(function)]
            call = f"{row.name}{_signature(row.handler)}"
            lines.append(f"| `{_cell(call)}` | {_cell(NOTES.get(row.name, ''))} |")
        lines.append("")
    lines += _random()
    lines += _rest()
    return "\n".join(lines)


def _random() -> list[str]:
    """Generators: what makes one, and what it draws."""
    lines = [
        "## Random generators",
        "",
        "Seeded ones alone, made by the program ([language.md](language.md#random-generators)).",
        "",
        "| function | note |",
        "|---|---|",
    ]
    for row in vocabulary_random.rows():
        if not row.name.startswith(("np.random.", "Generator.")):
            continue
        call = _signature(row.handler).replace("(self, ", "(").replace("<class 'numpy.", "np.")
        call = f"{row.name}{call}".replace("'>", "")
        lines.append(f"| `{_cell(call)}` | {RANDOM_NOTES.get(row.name, '')} |")
    return [*lines, ""]


#: Where a row differs from NumPy's.
RANDOM_NOTES = {
    "np.random.default_rng": "of a whole number from 0, a known one of at most 128 bits",
    "np.random.PCG64": "of such a seed",
    "np.random.Philox": "of such a seed",
    "np.random.Generator": "of a PCG64 or a Philox",
    "Generator.random": "in f64",
    "Generator.standard_normal": "in f64",
    "Generator.standard_exponential": "in f64, by the ziggurat",
    "Generator.integers": "int64 between two numbers",
    "Generator.shuffle": "an array along its first axis",
    "Generator.choice": "with `p` only where it replaces",
}


def _count() -> int:
    functions = {id(f) for _, group in vocabulary_numpy.GROUPS for f, _ in group}
    return len(functions)


def _rest() -> list[str]:
    methods = ", ".join(f"`{name}`" for name in sorted(vocabulary_table.METHODS))
    properties = ", ".join(f"`{name}`" for name in sorted(vocabulary_table.PROPERTIES))
    functions = dict.fromkeys((*ufunc_methods.REDUCE, *ufunc_methods.ASSOCIATIVE))
    reduced = ", ".join(f"`np.{f.__name__}`" for f in functions)
    math = ", ".join(f"`{row.name}`" for row in vocabulary_math.rows())
    types = ", ".join(f"`np.{d.numpy.name}`" for d in DType if hasattr(np, d.numpy.name))
    return [
        "## Methods, properties, types",
        "",
        f"- Methods of an array: {methods}.",
        f"- Properties: {properties}.",
        f"- `reduce`, `accumulate` and, at known places, `reduceat` of {reduced}; `outer` of every"
        " function of two.",
        f"- Types, which also convert: {types}.",
        f"- Python's module `math`: {math}. They give Python's floats, and raise its errors.",
        "- Indexing: integers, slices, `...`, `None`, arrays of integers, any number of them, mixed"
        " with slices and placed as NumPy places them, and masks that are known.",
        "- Operators: all of Python's on arrays, `@` and `**` among them.",
        "",
    ]
