"""Data sets as federations: what each device holds, how it came to hold it, and a card that says
so.

A name is loaded when it is first used: a device's training process reads its own data, and has no
memory to spare for all of them. So no module here has the name of something that is public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arrays import Labelled, Partition, digits, federate, npz
    from .federated import DataCard, DeviceData, EpisodeData, FederatedData
    from .leaf import femnist
    from .logistic_rows import logistic
    from .omniglot_drawings import Dealt, omniglot
    from .published import cifar10, har, idx
    from .shakespeare_plays import shakespeare
    from .sinusoid import sinusoids
    from .synthetic_rows import synthetic

#: Public name -> the module that has it.
_PUBLIC = {
    "DataCard": ".federated",
    "Dealt": ".omniglot_drawings",
    "DeviceData": ".federated",
    "EpisodeData": ".federated",
    "FederatedData": ".federated",
    "Labelled": ".arrays",
    "Partition": ".arrays",
    "cifar10": ".published",
    "digits": ".arrays",
    "federate": ".arrays",
    "femnist": ".leaf",
    "har": ".published",
    "idx": ".published",
    "logistic": ".logistic_rows",
    "npz": ".arrays",
    "omniglot": ".omniglot_drawings",
    "shakespeare": ".shakespeare_plays",
    "sinusoids": ".sinusoid",
    "synthetic": ".synthetic_rows",
}

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


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
