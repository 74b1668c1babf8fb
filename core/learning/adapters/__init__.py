"""Adapters: few trained numbers on the weights of a frozen model, and PEFT's files of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazily

if TYPE_CHECKING:
    from .adapted import Parts, adapter_roles, dora, ia3, lora, merged, split, without
    from .adapter_keys import with_key
    from .dora_weight import Dora
    from .ia3_weight import Ia3, MovedBias
    from .low_rank import LowRank
    from .peft_files import load_adapter, save_adapter

__getattr__, __dir__ = lazily(
    __name__,
    {
        "adapted": "Parts adapter_roles dora ia3 lora merged split without",
        "adapter_keys": "with_key",
        "dora_weight": "Dora",
        "ia3_weight": "Ia3 MovedBias",
        "low_rank": "LowRank",
        "peft_files": "load_adapter save_adapter",
    },
)

__all__ = [
    "Dora",
    "Ia3",
    "LowRank",
    "MovedBias",
    "Parts",
    "adapter_roles",
    "dora",
    "ia3",
    "load_adapter",
    "lora",
    "merged",
    "save_adapter",
    "split",
    "with_key",
    "without",
]
