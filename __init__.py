"""Delian: federated device-edge-cloud learning. One model, written once, compiled once, trained on
every tier.

    import delian as dl

This module is the face: it hands the public names on and defines nothing. They are loaded when they
are first used, so that importing `delian` costs a device nothing that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import device
    from .core import functional as ops
    from .core import learn, nn, random, tree
    from .core.api import (
        Static,
        checkpoint,
        compile,
        custom_vjp,
        debug,
        grad,
        hessian,
        hvp,
        jacfwd,
        jacrev,
        jvp,
        linearize,
        mixed_precision,
        module,
        value_and_grad,
        vjp,
        vmap,
    )
    from .core.bfloat16 import bfloat16
    from .core.data import sources as data
    from .core.errors import DelianError
    from .core.frontend import trace
    from .core.ir import Tensor
    from .core.precision import all_finite, loss_scale
    from .core.quantise import quantise
    from .core.tree import static

#: Public name -> (module, name in it); no second name where the module itself is meant.
_PUBLIC = {
    "Tensor": (".core.ir", "Tensor"),
    "DelianError": (".core.errors", "DelianError"),
    "Static": (".core.traced", "Static"),
    "all_finite": (".core.precision", "all_finite"),
    "bfloat16": (".core.bfloat16", "bfloat16"),
    "checkpoint": (".core.api", "checkpoint"),
    "compile": (".core.api", "compile"),
    "custom_vjp": (".core.api", "custom_vjp"),
    "data": (".core.data.sources", None),
    "debug": (".core.api", "debug"),
    "device": (".device", None),
    "grad": (".core.api", "grad"),
    "hessian": (".core.api", "hessian"),
    "hvp": (".core.api", "hvp"),
    "jacfwd": (".core.api", "jacfwd"),
    "jacrev": (".core.api", "jacrev"),
    "jvp": (".core.api", "jvp"),
    "learn": (".core.learn", None),
    "linearize": (".core.api", "linearize"),
    "loss_scale": (".core.precision", "loss_scale"),
    "mixed_precision": (".core.api", "mixed_precision"),
    "module": (".core.api", "module"),
    "nn": (".core.nn", None),
    "ops": (".core.functional", None),
    "quantise": (".core.quantise", "quantise"),
    "random": (".core.random", None),
    "static": (".core.tree", "static"),
    "trace": (".core.frontend", "trace"),
    "tree": (".core.tree", None),
    "value_and_grad": (".core.api", "value_and_grad"),
    "vjp": (".core.api", "vjp"),
    "vmap": (".core.api", "vmap"),
}

__all__ = [
    "DelianError",
    "Static",
    "Tensor",
    "all_finite",
    "bfloat16",
    "checkpoint",
    "compile",
    "custom_vjp",
    "data",
    "debug",
    "device",
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "learn",
    "linearize",
    "loss_scale",
    "mixed_precision",
    "module",
    "nn",
    "ops",
    "quantise",
    "random",
    "static",
    "trace",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'delian' has no attribute {name!r}")
    where, attribute = _PUBLIC[name]
    module = import_module(where, __name__)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
