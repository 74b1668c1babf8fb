"""The device tier: its protocol, the agent that runs it, and models at work on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.common.lazy_exports import lazily

if TYPE_CHECKING:
    from .serving.inference import PersonalModel

__getattr__, __dir__ = lazily(__name__, {"serving.inference": "PersonalModel"})

__all__ = ["PersonalModel"]
