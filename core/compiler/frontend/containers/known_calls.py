"""Python's own functions, called while compiling on values that are known.

Such a call is made once, wherever it stands: in a branch that is not taken, in a program that is
called again. So it must change nothing (`operator.iadd(items, more)`, `x.cumsum(out=y)`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import operators
from ..values import describe
from . import containers

if TYPE_CHECKING:
    from ..specialise import Specialiser


def call(
    s: Specialiser,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    what: str,
) -> Any:
    """`f(*args, **kwargs)`; refused where it changes what it is given. what: for messages."""
    owner = getattr(f, "__self__", None)
    held = [(v, _copied(v)) for v in _changeable((owner, *args, *kwargs.values()))]
    try:
        result = operators.python(s, lambda: f(*args, **kwargs), what)
    finally:
        changed = [v for v, content in held if _put_back(v, content)]
    if changed:
        text = f"{what} would change {describe(changed[0])}, which is known while compiling"
        hint = "change it by a statement, x[i] = v or x += v, or by a method of its own"
        raise s.error("DL111", text, hint)
    return result


def _changeable(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _changeable(value)
        elif isinstance(value, list | dict | set) or (
            isinstance(value, np.ndarray) and value.flags.writeable
        ):
            yield value


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else containers.copied(value)


def _put_back(value: Any, content: Any) -> bool:
    """Whether a value has changed, which is undone."""
    if not isinstance(value, np.ndarray):
        if containers.alike(containers.copied(value), content):
            return False
        containers.fill(value, content)
        return True
    if value.tobytes() == content.tobytes():
        return False
    value[...] = content
    return True


__all__ = ["call"]
