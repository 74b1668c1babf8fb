"""Delian: federated device-edge-cloud learning.

One model, written once, compiled once, trained on every tier.

    import delian as dl

This module is the public interface: it passes the public names on and defines nothing. They are
loaded when they are first used, so that importing `delian` costs a device nothing that it does not
need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.common.lazy_exports import lazily

if TYPE_CHECKING:
    from . import device
    from .core import learning as learn
    from .core.common.errors import DelianError
    from .core.compiler import ops as ops
    from .core.compiler import random, tree
    from .core.compiler.api import (
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
    from .core.compiler.bfloat16 import bfloat16
    from .core.compiler.frontend import trace
    from .core.compiler.ir import Tensor
    from .core.compiler.ops.quantised_weights import QuantisedWeight, quantise_weight
    from .core.compiler.precision import all_finite, loss_scale
    from .core.compiler.tree import static, static_field
    from .core.learning import adapters, data, nn
    from .core.learning.adapters.adapted import dora, ia3, lora
    from .core.learning.interchange.onnx import from_onnx
    from .core.learning.interchange.onnx_export import to_onnx
    from .core.learning.interchange.safetensors_file import read_safetensors, write_safetensors
    from .core.learning.interchange.torch.torch_model import from_torch
    from .core.learning.predictor import Predictor, load
    from .core.learning.quantise import quantise
    from .simulations.runs.one_call import Run, simulate
    from .simulations.statistics import stats as stats

__getattr__, __dir__ = lazily(
    __name__,
    {
        "core.common.errors": "DelianError",
        "core.compiler.api": "checkpoint compile custom_vjp debug grad hessian hvp jacfwd jacrev "
        "jvp linearize mixed_precision module value_and_grad vjp vmap",
        "core.compiler.bfloat16": "bfloat16",
        "core.compiler.frontend": "trace",
        "core.compiler.ir": "Tensor",
        "core.learning.interchange.torch.torch_model": "from_torch",
        "core.compiler.ops": "=ops",
        "core.compiler.ops.quantised_weights": "QuantisedWeight quantise_weight",
        "core.compiler.precision": "all_finite loss_scale",
        "core.compiler.random": "=random",
        "core.compiler.traced": "Static",
        "core.compiler.tree": "=tree static static_field",
        "core.learning.adapters": "=adapters",
        "core.learning.adapters.adapted": "dora ia3 lora",
        "core.learning.data": "=data",
        "core.learning": "=learn",
        "core.learning.interchange.onnx": "from_onnx",
        "core.learning.interchange.onnx_export": "to_onnx",
        "core.learning.interchange.safetensors_file": "read_safetensors write_safetensors",
        "core.learning.nn": "=nn",
        "core.learning.predictor": "Predictor load",
        "core.learning.quantise": "quantise",
        "simulations.runs.one_call": "Run simulate",
        "simulations.statistics.stats": "=stats",
        "device": "=device",
    },
)

__all__ = [
    "DelianError",
    "Predictor",
    "QuantisedWeight",
    "Run",
    "Static",
    "Tensor",
    "adapters",
    "all_finite",
    "bfloat16",
    "checkpoint",
    "compile",
    "custom_vjp",
    "data",
    "debug",
    "device",
    "dora",
    "from_onnx",
    "from_torch",
    "grad",
    "hessian",
    "hvp",
    "ia3",
    "jacfwd",
    "jacrev",
    "jvp",
    "learn",
    "linearize",
    "load",
    "lora",
    "loss_scale",
    "mixed_precision",
    "module",
    "nn",
    "ops",
    "quantise",
    "quantise_weight",
    "random",
    "read_safetensors",
    "simulate",
    "static",
    "static_field",
    "stats",
    "to_onnx",
    "trace",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
    "write_safetensors",
]
