"""Which layers get an adapter: PEFT's rules for names.

Several targets are suffixes of module names (`query` names `encoder.layer.0.attention.self.query`);
a single text is a regular expression for whole names, or "all-linear": every linear layer but the
model's output layer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ...common.errors import DelianError
from .adapter_settings import ALL_LINEAR, AdapterSettings, ends_with
from .module_places import Place

#: Kinds of layers with a weight [inputs, outputs] that multiplies.
LINEAR = ("linear", "conv1d")
#: Names that a message shows.
_SHOWN = 6


def matches(pattern: str | tuple[str, ...], name: str) -> bool:
    """Whether a regular expression, or one of several suffixes, names a module."""
    if isinstance(pattern, str):
        return bool(pattern) and re.fullmatch(pattern, name) is not None
    return any(ends_with(name, each) for each in pattern)


def is_saved(settings: AdapterSettings, name: str) -> bool:
    """Whether a module, or one that it is a part of, is trained whole (PEFT's rule: ends)."""
    parts = name.split(".")
    wholes = [".".join(parts[: k + 1]) for k in range(len(parts))]
    return any(whole.endswith(key) for whole in wholes for key in settings.modules_to_save)


def chosen(found: Sequence[Place], settings: AdapterSettings, strict: bool = True) -> list[Place]:
    """The layers that the settings name.

    Raises DelianError where they name no layer, or one that takes no adapter; if `strict`, where
    one of several targets names none.
    """
    targets = settings.targets
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        picked = [p for p in found if p.kind in LINEAR and not p.is_head and not p.is_named]
        picked = [place for place in picked if not place.refusal]
    else:
        picked = [place for place in found if _named(targets, place.name)]
    picked = [place for place in picked if not is_saved(settings, place.name)]
    unused = [] if isinstance(targets, str) else [t for t in targets if not _is_used(t, found)]
    if not picked or (strict and unused):
        raise _no_layer(found, targets if isinstance(targets, str) else (unused or targets))
    for place in picked:
        check(place, settings)
    return picked


def _named(targets: str | tuple[str, ...], name: str) -> bool:
    try:
        return matches(targets, name)
    except re.error as error:
        raise DelianError(
            f"targets: {targets!r} is no regular expression: {error}",
            'several names go in a tuple: ("query", "value")',
        ) from None


def _is_used(target: str, found: Sequence[Place]) -> bool:
    return any(ends_with(place.name, target) for place in found)


def _no_layer(found: Sequence[Place], targets: str | Sequence[str]) -> DelianError:
    wanted = targets if isinstance(targets, str) else ", ".join(targets)
    last = sorted({p.name.rpartition(".")[2] for p in found if p.kind in LINEAR and not p.refusal})
    near = difflib.get_close_matches(wanted, last, _SHOWN, 0.0)
    shown = ", ".join(near) or "none"
    return DelianError(
        f"adapters: no layer of the model is named by {wanted!r}",
        f"linear layers here end with: {shown}{' ...' if len(last) > len(near) else ''}",
    )


def check(place: Place, settings: AdapterSettings) -> None:
    """Raises DelianError for a layer that takes no adapter of this kind."""
    if place.refusal:
        raise DelianError(
            f"{place.name} takes no adapter: {place.refusal}",
            "name other targets; import a module with requires_grad=True: adapters freeze the rest",
        )
    allowed = (*LINEAR, "embedding") if settings.kind == "lora" else LINEAR
    if place.kind not in allowed:
        raise DelianError(
            f"{place.name} is a layer {place.kind}, which takes no {settings.kind} adapter",
            f"name linear layers{' or embeddings' if settings.kind == 'lora' else ''}",
        )
