"""Data sets as federations: what each device holds, how it came to hold it, and a card that says
so.
"""

from .arrays import Labelled, Partition, digits, federate, npz
from .federated import DataCard, DeviceData, EpisodeData, FederatedData
from .leaf import femnist
from .logistic import logistic
from .omniglot import Dealt, omniglot
from .published import cifar10, har, idx
from .shakespeare import shakespeare
from .sinusoid import sinusoids
from .synthetic import synthetic

__all__ = [
    "DataCard",
    "Dealt",
    "DeviceData",
    "EpisodeData",
    "FederatedData",
    "Labelled",
    "Partition",
    "cifar10",
    "digits",
    "federate",
    "femnist",
    "har",
    "idx",
    "logistic",
    "npz",
    "omniglot",
    "shakespeare",
    "sinusoids",
    "synthetic",
]
