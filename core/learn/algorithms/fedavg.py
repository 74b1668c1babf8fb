"""Federated averaging.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, algorithm 1. The paper's E is `epochs`, its B the
source's batch size, its eta the rate of the local optimiser; devices weigh by their number of
examples, n_k / n.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Descent on the loss of one mini-batch after another: the shared loop as it stands."""
