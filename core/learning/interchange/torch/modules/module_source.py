"""Where a module is from: what a folder for the framework's own tools says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Packages whose models Hugging Face's hub knows by name; others are PyTorch's.
_LIBRARIES = ("transformers", "timm", "keras")
_PLAIN = "pytorch"


@dataclass(frozen=True)
class ModuleSource:
    """The part of a module that has all its weights, and its configuration."""

    architecture: str
    """The part's class."""
    library: str
    """The package that reads the folder."""
    prefix: str
    """What the names of its weights begin with in the module."""
    config: str
    """Its configuration as JSON; empty if it has none."""


def source_of(module: Any, names: Iterable[str]) -> ModuleSource:
    """The source of a module whose state has these names.

    The part is the module itself, or what it wraps if that has a configuration and all weights.
    """
    keys = list(names)
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        if not all(key.startswith(prefix) for key in keys):
            continue
        config = _config(part)
        if config:
            return ModuleSource(type(part).__name__, library_of(part), prefix, config)
    return ModuleSource(type(module).__name__, library_of(module), "", "")


def library_of(module: Any) -> str:
    """The package of a module's class, or of one that it extends."""
    for kind in type(module).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _LIBRARIES:
            return package
    return _PLAIN


def _config(part: Any) -> str:
    to_dict = getattr(getattr(part, "config", None), "to_dict", None)
    if not callable(to_dict):
        return ""
    found = to_dict()
    if not isinstance(found, dict):
        return ""
    found = {**found, "architectures": [type(part).__name__]}
    return json.dumps(found, indent=2, default=_plain, sort_keys=True) + "\n"


def _plain(value: Any) -> str:
    """What JSON has not, as text: an element type of torch by its name."""
    return str(value).removeprefix("torch.")
