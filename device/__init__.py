"""The device tier: its protocol, and the agent that runs it for real."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inference import PersonalModel

__all__ = ["PersonalModel"]


def __getattr__(name: str) -> Any:
    """What people use from a program is loaded when it is first used."""
    if name == "PersonalModel":
        return import_module(".inference", __name__).PersonalModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
