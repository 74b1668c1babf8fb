"""Which leaves of a model are trained, and which of them travel.

    shared     trained, uploaded and averaged: what every leaf is unless something says otherwise
    personal   trained, and kept by the device: a part of its client state
    frozen     neither differentiated nor uploaded nor masked; any dtype

Roles are given by patterns over the leaves' dotted names, as `delian model show` lists them:
`head.*`, `*.norm.*`. An algorithm has roles of its own (FedPer's head is personal), and a model
with adapters (all else is frozen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from ..common.errors import DelianError
from ..compiler import tree

Role: TypeAlias = Literal["shared", "personal", "frozen"]

#: Patterns of a plan: a model has few kinds of layers.
PATTERNS_MAX = 256
PATTERN_CHARACTERS_MAX = 200


@dataclass(frozen=True)
class Roles:
    """Patterns for leaves' names; an exclamation mark in front of one takes leaves out again."""

    frozen: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.frozen or self.personal)


def leaf_names(model: Any) -> list[str]:
    """The dotted names of a model's leaves, in the order of its tree."""
    return list(tree.flatten(model)[1].paths())


def matches(patterns: Sequence[str], names: Sequence[str]) -> list[bool]:
    """Which names the patterns take; the last pattern that fits a name decides.

    Raises DelianError for a pattern that fits no name: it is misspelt, or of another model.
    """
    found = [False] * len(names)
    for pattern in patterns:
        takes = not pattern.startswith("!")
        fits = [k for k, name in enumerate(names) if fnmatchcase(name, pattern.lstrip("!"))]
        if not fits:
            shown = ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
            raise DelianError(
                f"no leaf of the model fits the pattern {pattern[:60]!r}",
                f"the model's leaves: {shown}",
            )
        for k in fits:
            found[k] = takes
    return found


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises DelianError for patterns that are too many or too long."""
    if len(patterns) > PATTERNS_MAX or max(map(len, patterns), default=0) > PATTERN_CHARACTERS_MAX:
        raise DelianError(
            f"{len(patterns)} patterns for leaves; {PATTERNS_MAX} of {PATTERN_CHARACTERS_MAX}"
            " characters are allowed"
        )


def roles_of(model: Any, roles: Roles, own: Sequence[Role] = ()) -> tuple[Role, ...]:
    """The role of each leaf of a model: what is frozen or personal by either rule is that.

    Args:
        model: a tree of arrays, or of what stands for them.
        roles: the patterns.
        own: the algorithm's role of each leaf; empty: all are shared.

    Raises:
        DelianError: a pattern fits no leaf, or no leaf is left to share.
    """
    names = leaf_names(model)
    frozen = matches(roles.frozen, names)
    kept = matches(roles.personal, names)
    own = own or ["shared"] * len(names)
    found: tuple[Role, ...] = tuple(
        "frozen" if f or o == "frozen" else "personal" if p or o == "personal" else "shared"
        for f, p, o in zip(frozen, kept, own, strict=True)
    )
    if "shared" not in found:
        raise DelianError(
            "no leaf of the model is shared: nothing would be trained together",
            "leave some of its leaves out of model.frozen and model.personal",
        )
    return found
