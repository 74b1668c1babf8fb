"""The device tier: its protocol, the agent that runs it, and models at work on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.common.lazy_exports import lazily

if TYPE_CHECKING:
    from .serving.cascade_model import CascadeModel
    from .serving.inference import PersonalModel
    from .serving.split_model import SplitModel
    from .serving.split_trainer import SplitTrainer

__getattr__, __dir__ = lazily(
    __name__,
    {
        "serving.cascade_model": "CascadeModel",
        "serving.inference": "PersonalModel",
        "serving.split_model": "SplitModel",
        "serving.split_trainer": "SplitTrainer",
    },
)

__all__ = ["CascadeModel", "PersonalModel", "SplitModel", "SplitTrainer"]
