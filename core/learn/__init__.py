"""Federated algorithms and personalisation, each one small file beside its paper."""

from typing import TYPE_CHECKING

from ..lazily import lazily

if TYPE_CHECKING:
    from .algorithm import Algorithm, ClientResult, evaluate
    from .anil import Anil
    from .apfl import Apfl
    from .chains import (
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
    from .ditto import Ditto
    from .fedavg import FedAvg
    from .feddyn import FedDyn
    from .fedmeta import Maml, MetaSgd, MetaSgdState
    from .fednova import FedNova
    from .fedprox import FedProx
    from .fedsgd import FedSgd
    from .heads import FedBabu, FedPer, FedRep
    from .ifca import Ifca
    from .order import ChainError
    from .perfedavg import PerFedAvg
    from .pfedme import PFedMe
    from .protonet import ProtoNet
    from .reptile import Reptile
    from .sampling import Batch, Episodes, EpisodeTable, Samples, SampleSet
    from .scaffold import Scaffold
    from .task import Classification, Metrics, Regression, Task

__getattr__, __dir__ = lazily(
    __name__,
    {
        "algorithm": "Algorithm ClientResult evaluate",
        "anil": "Anil",
        "apfl": "Apfl",
        "chains": "Chain chain clip clipped_mean fedbuff geometric_median krum mask mean median "
        "moving_clip multi_krum noise quantise random_k rotate server top_k trimmed_mean",
        "ditto": "Ditto",
        "fedavg": "FedAvg",
        "feddyn": "FedDyn",
        "fedmeta": "Maml MetaSgd MetaSgdState",
        "fednova": "FedNova",
        "fedprox": "FedProx",
        "fedsgd": "FedSgd",
        "heads": "FedBabu FedPer FedRep",
        "ifca": "Ifca",
        "order": "ChainError",
        "perfedavg": "PerFedAvg",
        "pfedme": "PFedMe",
        "protonet": "ProtoNet",
        "reptile": "Reptile",
        "sampling": "Batch Episodes EpisodeTable Samples SampleSet",
        "scaffold": "Scaffold",
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
