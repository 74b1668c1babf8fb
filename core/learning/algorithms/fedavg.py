"""Federated averaging.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, algorithm 1. The paper's E is `epochs`, its B the
source's batch size, its eta the rate of the local optimiser; devices weigh by their number of
examples, n_k / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..algorithm import About, Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017), personal by fine-tuning."""

    about: ClassVar[About] = About("FedAvg", "McMahan et al. 2017")
