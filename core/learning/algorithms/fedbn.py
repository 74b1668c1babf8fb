"""FedBN.

Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, algorithm 1: federated averaging that leaves normalisation out. Devices
whose inputs are scaled or lit otherwise normalise them otherwise; scales, shifts and running
statistics are each device's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import tree
from .. import nn
from ..algorithm import About, Algorithm
from ..leaf_roles import Role, leaf_names

#: Layers of `dl.nn`. `RunningBatchNorm` has its statistics outside of the model.
_NORMS = (nn.BatchNorm, nn.RunningBatchNorm, nn.GroupNorm, nn.InstanceNorm, nn.LayerNorm)


@dataclass(frozen=True)
class FedBn(Algorithm):
    """FedBN: federated averaging with personal normalisation (Li et al. 2021).

    In a model from PyTorch the layers with running statistics are personal.
    """

    about: ClassVar[About] = About(
        "FedBN", "Li et al. 2021", "the model's change, without normalisation", "its normalisation"
    )

    def roles(self, model: Any) -> Sequence[Role]:
        inside = tree.leaves(tree.within(model, *_NORMS))
        names = leaf_names(model)
        seen = [
            name.removeprefix("statistics.") for name in names if name.startswith("statistics.")
        ]
        layers = tuple(f"{name.rpartition('.')[0]}." for name in seen)
        imported = [
            name.startswith("statistics.") or name.removeprefix("parameters.").startswith(layers)
            for name in names
        ]
        marks = zip(inside, imported, strict=True)
        return ["personal" if own or other else "shared" for own, other in marks]
