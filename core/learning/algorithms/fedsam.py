"""FedSAM.

Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization",
ICML 2022, algorithm 1 (FedSAM). A device looks for a model whose whole neighbourhood has a small
loss, min_w max_{|e| <= rho} F(w + e), and each of its steps takes two gradients of one batch:

    g = grad F(w; batch);   w~ = w + rho g / |g|            the worst model nearby, to first order
    w <- w - eta grad F(w~; batch)

|g| is over all parameters together. Uploads and the server's step are those of federated averaging.
SAM itself: Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently
Improving Generalization", ICLR 2021, equations 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ...compiler import tree
from ...compiler.api import value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..hyperparameters import Bounds
from ..task import Task

#: Added to |g|, so that a gradient of zeros perturbs nothing; far below the length of any other.
TINY = 1e-12


@dataclass(frozen=True)
class FedSam(Algorithm):
    """FedSAM: local steps by sharpness-aware minimization, for flat minima (Qu et al. 2022)."""

    about: ClassVar[About] = About("FedSAM", "Qu et al. 2022")

    rho: Annotated[float, Bounds(ge=0.0, le=10.0)] = 0.05
    """Radius of the neighbourhood (rho). 0 is FedAvg; 0.05 is the default of the SAM paper."""

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """(F(w), the gradient at w~): the loss is that of the model itself, as in FedAvg."""
        batch = self.batch(task, data, order, step)
        loss, gradient = value_and_grad(task.loss)(current, batch)
        squares = tree.leaves(tree.map(lambda g: np.sum(g * g), gradient))
        scale = self.rho / (np.sqrt(sum(squares)) + TINY)
        nearby = tree.map(lambda w, g: w + scale * g, current, gradient)
        _, worst = value_and_grad(task.loss)(nearby, batch)
        return loss, worst
