"""FFA-LoRA.

Sun, Li, Li and Ding, "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024, section
4: A stays as it was drawn, and devices train B alone. The mean of B_i is then exact, for the mean
of A B_i is A times it, and noise on an update is not multiplied with noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...adapters.lora_roles import lora_roles
from ...algorithm import About, Algorithm
from ...leaf_roles import Role


@dataclass(frozen=True)
class FfaLora(Algorithm):
    """FFA-LoRA: adapters of which only B is trained (Sun et al. 2024)."""

    about: ClassVar[About] = About("FFA-LoRA", "Sun et al. 2024", "the change of B")

    def roles(self, model: Any) -> Sequence[Role]:
        return lora_roles(model, {"a": "frozen"})
