"""Rows of NumPy's random generators (`definitions/np_generators.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..definitions import np_generators, np_ziggurats
from .vocabulary_table import Defined, DefinedMethod, Handler, Row

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _of_seed(made: Handler) -> Handler:
    """A running seed has 64 bits; a known one may have too many."""

    def run(s: Specialiser, seed: Any = None) -> Any:
        if type(seed) is int and seed >= 2**np_generators.SEED_BITS:
            bits = np_generators.SEED_BITS
            raise s.error("DL119", f"a generator's seed has at most {bits} bits here")
        return made(s, seed)

    return run


#: The chapter of docs/vocabulary.md.
NAMED = (
    (np.random.default_rng, _of_seed(Defined(np_generators.default_rng))),
    (np.random.Generator, Defined(np_generators.Generator)),
    (np.random.PCG64, _of_seed(Defined(np_generators.PCG64))),
    (np.random.Philox, _of_seed(Defined(np_generators.Philox))),
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
