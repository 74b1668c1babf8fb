"""First-order MAML.

Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML
2017, section 5.2: `Maml` whose meta-gradient takes d theta'/d theta for the identity, which saves
the second derivatives and costs little accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..algorithm import About
from .maml import Maml


@dataclass(frozen=True)
class Fomaml(Maml):
    """First-order MAML in a federation (Finn et al. 2017; FedMeta, Chen et al. 2018)."""

    about: ClassVar[About] = About("first-order MAML", Maml.about.paper, Maml.about.uploads)

    first_order: bool = True
    """Always, or this would be `Maml`."""
