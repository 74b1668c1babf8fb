"""Layers, models and optimisers, written in the NumPy vocabulary: they run as plain Python and they
compile.
"""

from .layers import BatchNorm, Conv, Dense, Embedding, LstmCell
from .optim import Optimizer, adam, apply, sgd
from .zoo import CharLstm, FedAvgCnn, Mlp, OmniglotNet

__all__ = [
    "BatchNorm",
    "CharLstm",
    "Conv",
    "Dense",
    "Embedding",
    "FedAvgCnn",
    "LstmCell",
    "Mlp",
    "OmniglotNet",
    "Optimizer",
    "adam",
    "apply",
    "sgd",
]
