"""Federated algorithms and personalisation, each one small file beside its paper."""

from .algorithm import Algorithm, ClientResult, evaluate
from .fedavg import FedAvg
from .fedmeta import Maml, MetaSgd, MetaSgdState
from .fedprox import FedProx
from .reptile import Reptile
from .sampling import Batch, Episodes, EpisodeTable, Samples, SampleSet
from .task import Classification, Metrics

__all__ = [
    "Algorithm",
    "Batch",
    "Classification",
    "ClientResult",
    "EpisodeTable",
    "Episodes",
    "FedAvg",
    "FedProx",
    "Maml",
    "MetaSgd",
    "MetaSgdState",
    "Metrics",
    "Reptile",
    "SampleSet",
    "Samples",
    "evaluate",
]
