"""Federated algorithms and personalisation, each one small file beside its paper."""

from typing import TYPE_CHECKING

from ..lazily import lazily

if TYPE_CHECKING:
    from .aggregate.chains import (
        Chain,
        chain,
        clip,
        clipped_mean,
        fedbuff,
        geometric_median,
        krum,
        mask,
        mean,
        median,
        moving_clip,
        multi_krum,
        noise,
        quantise,
        random_k,
        rotate,
        server,
        top_k,
        trimmed_mean,
    )
    from .aggregate.stage_order import ChainError
    from .algorithm import Algorithm, ClientResult, evaluate
    from .algorithms.anil import Anil
    from .algorithms.apfl import Apfl
    from .algorithms.ditto import Ditto
    from .algorithms.fedavg import FedAvg
    from .algorithms.feddyn import FedDyn
    from .algorithms.fedmeta import Maml, MetaSgd, MetaSgdState
    from .algorithms.fednova import FedNova
    from .algorithms.fedprox import FedProx
    from .algorithms.fedsgd import FedSgd
    from .algorithms.heads import FedBabu, FedPer, FedRep
    from .algorithms.ifca import Ifca
    from .algorithms.perfedavg import PerFedAvg
    from .algorithms.pfedme import PFedMe
    from .algorithms.protonet import ProtoNet
    from .algorithms.reptile import Reptile
    from .algorithms.scaffold import Scaffold
    from .sampling import Batch, Episodes, EpisodeTable, Samples, SampleSet
    from .task import Classification, Metrics, Regression, Task

__getattr__, __dir__ = lazily(
    __name__,
    {
        "algorithm": "Algorithm ClientResult evaluate",
        "algorithms.anil": "Anil",
        "algorithms.apfl": "Apfl",
        "aggregate.chains": "Chain chain clip clipped_mean fedbuff geometric_median krum mask mean "
        "median moving_clip multi_krum noise quantise random_k rotate server top_k trimmed_mean",
        "algorithms.ditto": "Ditto",
        "algorithms.fedavg": "FedAvg",
        "algorithms.feddyn": "FedDyn",
        "algorithms.fedmeta": "Maml MetaSgd MetaSgdState",
        "algorithms.fednova": "FedNova",
        "algorithms.fedprox": "FedProx",
        "algorithms.fedsgd": "FedSgd",
        "algorithms.heads": "FedBabu FedPer FedRep",
        "algorithms.ifca": "Ifca",
        "aggregate.stage_order": "ChainError",
        "algorithms.perfedavg": "PerFedAvg",
        "algorithms.pfedme": "PFedMe",
        "algorithms.protonet": "ProtoNet",
        "algorithms.reptile": "Reptile",
        "sampling": "Batch Episodes EpisodeTable Samples SampleSet",
        "algorithms.scaffold": "Scaffold",
        "task": "Classification Metrics Regression Task",
    },
)

__all__ = [
    "Algorithm",
    "Anil",
    "Apfl",
    "Batch",
    "Chain",
    "ChainError",
    "Classification",
    "ClientResult",
    "Ditto",
    "EpisodeTable",
    "Episodes",
    "FedAvg",
    "FedBabu",
    "FedDyn",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSgd",
    "Ifca",
    "Maml",
    "MetaSgd",
    "MetaSgdState",
    "Metrics",
    "PFedMe",
    "PerFedAvg",
    "ProtoNet",
    "Regression",
    "Reptile",
    "SampleSet",
    "Samples",
    "Scaffold",
    "Task",
    "chain",
    "clip",
    "clipped_mean",
    "evaluate",
    "fedbuff",
    "geometric_median",
    "krum",
    "mask",
    "mean",
    "median",
    "moving_clip",
    "multi_krum",
    "noise",
    "quantise",
    "random_k",
    "rotate",
    "server",
    "top_k",
    "trimmed_mean",
]
