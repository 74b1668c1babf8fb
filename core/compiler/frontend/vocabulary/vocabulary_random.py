"""Rows of NumPy's random generators (`definitions/np_generators.py`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..definitions import np_generators, np_ziggurats
from .vocabulary_table import Defined, DefinedMethod, Handler, Row

#: The chapter of docs/vocabulary.md, in place of rows' own names.
NAMED = (
    (np.random.default_rng, Defined(np_generators.default_rng)),
    (np.random.Generator, Defined(np_generators.Generator)),
    (np.random.PCG64, Defined(np_generators.PCG64)),
    (np.random.Philox, Defined(np_generators.Philox)),
)


def rows() -> list[Row]:
    """Nothing is folded: a generator that is made while compiling would be one for all calls."""
    made = [
        Row(function, f"np.random.{function.__name__}", handler, False, None)
        for function, handler in NAMED
    ]
    for name in np_generators.METHODS.split():
        method = getattr(np_generators.Generator, name)
        made.append(Row(method, f"Generator.{name}", DefinedMethod(method), False, None))
    for tables in (np_ziggurats.normal_tables, np_ziggurats.exponential_tables):
        made.append(Row(tables, tables.__name__, _known(tables), False, None))
    return made


def _known(tables: Callable[[], np_ziggurats.Tables]) -> Handler:
    """They are constants of the program."""
    return lambda s: tables()
