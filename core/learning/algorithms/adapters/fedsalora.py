"""FedSA-LoRA.

Guo, Zeng, Wang, Fu, Wang and Qu, "Selective Aggregation for Low-Rank Adaptation in Federated
Learning", ICLR 2025, section 4: A learns what devices have in common and is averaged; B learns what
they have not, and stays on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...adapters.lora_roles import lora_roles
from ...algorithm import About, Algorithm
from ...leaf_roles import Role


@dataclass(frozen=True)
class FedSaLora(Algorithm):
    """FedSA-LoRA: adapters of which A is shared and B personal (Guo et al. 2025)."""

    about: ClassVar[About] = About("FedSA-LoRA", "Guo et al. 2025", "the change of A", "B")

    def roles(self, model: Any) -> Sequence[Role]:
        return lora_roles(model, {"b": "personal"})
