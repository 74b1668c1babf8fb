"""Checks of what an algorithm's methods return, with errors in words.

The checks run while the programs are compiled, when shapes and types are known, and leave nothing
in the programs. Without them an update whose leaves have another order, or other shapes of the same
size, would be averaged without an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiler import tree
from ..algorithm import ClientResult


def checked(name: str, state: Any, kept: Any, result: Any) -> Any:
    """The result of `client_update`; name: the algorithm's. Compiled; raises ValueError."""
    if not isinstance(result, ClientResult):
        raise ValueError(
            f"{name}.client_update gives no dl.learn.ClientResult(update, weight, loss, kept)"
        )
    if np.ndim(result.weight) != 0 or np.ndim(result.loss) != 0:
        raise ValueError(
            f"{name}.client_update gives a weight {np.shape(result.weight)} and a loss"
            f" {np.shape(result.loss)}, and both are one number"
        )
    update = like(f"the update of {name}.client_update", "the state", state, result.update)
    own = like(f"what {name}.client_update keeps", "its client_state", kept, result.kept)
    return ClientResult(update, result.weight, result.loss, own)


def like(what: str, other: str, pattern: Any, found: Any) -> Any:
    """`found`, if it is a tree of arrays with the shapes and types of `pattern`'s. It is compiled.

    Raises:
        ValueError: it is not.
    """
    wanted, given = tree.leaves(pattern), tree.leaves(found)
    if len(wanted) != len(given):
        raise ValueError(f"{what} has {len(given)} arrays, and {other} has {len(wanted)}")
    for place, (a, b) in enumerate(zip(wanted, given, strict=True)):
        if np.shape(a) != np.shape(b):
            raise ValueError(
                f"{what} is no tree like {other}: array {place} is {np.shape(b)} and not"
                f" {np.shape(a)}"
            )
        if a.dtype != b.dtype:
            raise ValueError(f"{what}: array {place} is {b.dtype}, and in {other} {a.dtype}")
    return tree.map(lambda _, value: value, pattern, found)
