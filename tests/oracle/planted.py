"""Faults of the compiler that the oracle has to find: each replaces one function of it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from delian.core.compiler import tree
from delian.core.compiler.frontend import calls
from delian.core.compiler.frontend.flow import iteration
from delian.core.compiler.frontend.memory import array_changes, stores
from delian.core.compiler.frontend.numpy import arithmetic, reductions

from .campaign import tally
from .judge import DIFFERS


def _view_is_a_copy(s: Any, x: Any, value: Any, lenses: Any) -> Any:
    return stores.fresh(s, value)


def _isinstance_of_arrays(_: Any) -> tuple[type, ...]:
    import numpy as np

    return (np.ndarray,)


def _update_widens(s: Any, x: Any, result: Any, what: str) -> None:
    """`x op= value` gives the name an array of the wider type."""
    have, _ = arithmetic.dtype_of(s, result)
    if have is x.dtype or not (have.is_float and x.dtype.is_float):
        _WRITE(s, x, result, what)
        return
    made = stores.fresh(s, arithmetic.materialise(s, result, have, x.shape))
    x.value, x.memory, x.lenses, x.seen = made.value, made.memory, (), made.seen


def _sorted_dicts(structure: Any, nodes: Any) -> Any:
    """A dict comes back in the order of its keys."""
    return _BUILD(dataclasses.replace(structure, order=()), nodes)


def _defaults_not_shared(*given: Any) -> Any:
    """Each call has a new list."""
    s, name, function, defaults, *rest = given
    fresh = [s.own(list(d)) if type(d) is list else d for d in defaults]
    return _BIND(s, name, function, fresh, *rest)


def _as_numpy_has_it(s: Any, greatest: bool, numbers: list[Any]) -> Any:
    meet = arithmetic.maximum if greatest else arithmetic.minimum
    result = numbers[0]
    for number in numbers[1:]:
        result = meet(s, result, number)
    return result


def _shorter(s: Any, values: list[Any], strict: bool) -> Any:
    made = _ZIPPED(s, values, strict)
    if isinstance(made, list):
        return made[:-1]
    return dataclasses.replace(made, length=max(0, made.length - 1))


def _after_an_error_too(s: Any, frame: Any, run: Callable[[], None]) -> None:
    """What follows an error in a `try` runs all the same."""
    clear, s.faults.clear = s.faults.clear, s.faults.memories[0].value
    run()
    s.faults.clear = clear


def _not_widened(s: Any, a: Any, dtype: Any, where: Any, identity: int) -> Any:
    """Sums are in the type of what is summed."""
    x = arithmetic.tensor(s, a)
    return _ACCUMULATED(s, x, x.dtype.numpy if dtype is None else dtype, where, identity)


_ACCUMULATED = reductions._accumulated
_WRITE, _BUILD, _BIND, _ZIPPED = array_changes.write, tree.build, calls.bind, iteration.zipped

#: What is wrong: (module, name, what stands there instead).
PLANTED: dict[str, tuple[str, str, Any]] = {
    "a view is a copy": ("frontend.memory.stores", "view", _view_is_a_copy),
    "isinstance answers as for an array": (
        "frontend.values",
        "Tensor.classes",
        property(_isinstance_of_arrays),
    ),
    "bool + bool is a bool": ("frontend.pynumbers", "_whole", lambda s, value: value),
    "f32 += f64 is f64": ("frontend.memory.array_changes", "write", _update_widens),
    "what changed outside is not seen": ("traced", "Traced.current", lambda self: True),
    "dicts are in the order of their keys": ("tree", "build", _sorted_dicts),
    "`in` is by identity": ("frontend.operators", "equal", lambda s, a, b: a is b),
    "an error is swallowed": ("frontend.flow.raises", "throw", lambda s, error: None),
    "a `try` goes on after its error": (
        "frontend.flow.tries",
        "_guarded",
        _after_an_error_too,
    ),
    "a default argument is not shared": ("frontend.calls", "bind", _defaults_not_shared),
    "`max` is np.maximum": ("frontend.pynumbers", "extreme", _as_numpy_has_it),
    "NumPy's functions give Python's numbers": (
        "frontend.vocabulary.vocabulary_table",
        "given_as",
        lambda s, r, kind: r,
    ),
    "an iterator's items are computed before the loop": (
        "frontend.flow.watches",
        "Watch.changed",
        lambda self: "",
    ),
    "sums of narrow integers are narrow": (
        "frontend.numpy.reductions",
        "_accumulated",
        _not_widened,
    ),
    "the last item of zip is lost": (
        "frontend.flow.iteration",
        "zipped",
        _shorter,
    ),
}
#: Programs to find a fault with, at most, and programs of one look.
PROGRAMS_MAX, _LOOK = 10_000, 25


def plant(name: str, setattr_: Callable[[Any, str, Any], None]) -> None:
    """Puts a fault in place, with pytest's `monkeypatch.setattr`."""
    module, attribute, instead = PLANTED[name]
    owner: Any = importlib.import_module(f"delian.core.compiler.{module}")
    *path, last = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr_(owner, last, instead)


def found_after(first: int = 0) -> int | None:
    """How many programs it took to find a difference."""
    for start in range(first, first + PROGRAMS_MAX, _LOOK):
        part = tally(start, _LOOK, small=False)
        if part.marks[DIFFERS]:
            return min(f["number"] for f in part.failures) - first + 1
    return None


__all__ = ["PLANTED", "PROGRAMS_MAX", "found_after", "plant"]
