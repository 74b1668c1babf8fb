"""Keras models on PyTorch as modules that torch.export reads as PyTorch's own.

A Keras layer is a module there, but not in the way that PyTorch's are: its mode is an argument of
the call, and its statistics are parameters that a call assigns. Keras's `stateless_call` takes and
gives all variables; around it, trained ones are parameters, and others buffers. Keras computes the
moments of batch normalisation by operators of its own, over all rows; here one operator stands for
them, so that rows which only fill up a batch do not count.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .....common.errors import DelianError
from ..aten_row import OWN_SPACE


def is_keras(module: Any) -> bool:
    """Whether this is a model or a layer of Keras, on whatever back end."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(module, keras.layers.Layer)


def as_torch_module(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A Keras model as a module of PyTorch, whose names are Keras's paths; others as they are.

    args, kwargs: example inputs, on which a model is built that is not yet.

    Raises DelianError for Keras on another back end than PyTorch, and for a model that cannot be
    built.
    """
    if not is_keras(module):
        return module
    if not isinstance(module, torch.nn.Module):
        raise DelianError(
            f"this Keras runs on {sys.modules['keras'].backend.backend()}",
            "set KERAS_BACKEND=torch before keras is imported; a .keras file can be loaded there",
        )
    if not module.built:
        try:
            with torch.no_grad():
                module(*args, **kwargs)
        except Exception as fault:
            raise DelianError(
                f"{type(module).__name__} cannot be built: {type(fault).__name__}: {fault}",
                "call the model once on an example",
            ) from fault
    return _wrapped(torch, module)


def _wrapped(torch: Any, model: Any) -> Any:
    trained, held = _named(model.trainable_variables), _named(model.non_trainable_variables)
    modal = "training" in inspect.signature(model.call).parameters

    class KerasModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, variable in trained.items():
                self.register_parameter(name, torch.nn.Parameter(variable.value.detach()))
            for name, variable in held.items():
                self.register_buffer(name, variable.value.detach().clone())

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            before = [getattr(self, name) for name in held]
            own = [getattr(self, name) for name in trained]
            if modal:
                kwargs = {**kwargs, "training": self.training}
            with _moments_by_row(torch, model):
                outputs, after = model.stateless_call(own, before, *args, **kwargs)
            for buffer, value in zip(before, after, strict=True):
                if value is not buffer:
                    buffer.copy_(value.detach())
            return outputs

    KerasModule.__name__ = type(model).__name__
    return KerasModule()


@contextmanager
def _moments_by_row(torch: Any, model: Any) -> Iterator[None]:
    """Within it, batch normalisation computes moments by the importer's operator."""
    kind = sys.modules["keras"].layers.BatchNormalization
    if not hasattr(model, _LAYERS) or not hasattr(kind, _MOMENTS):
        raise DelianError(
            "this version of Keras computes batch normalisation in another way",
            "use Keras 3, or export the model as ONNX",
        )
    layers = [part for part in getattr(model, _LAYERS)() if isinstance(part, kind)]
    usual = [vars(layer).get(_MOMENTS) for layer in layers]
    try:
        for layer, before in zip(layers, usual, strict=True):
            if before is None:
                vars(layer)[_MOMENTS] = functools.partial(_moments, torch, layer)
        yield
    finally:
        for layer, before in zip(layers, usual, strict=True):
            if before is None:
                vars(layer).pop(_MOMENTS, None)


#: Keras's methods that give the mean and the variance of a batch, and all layers of a model.
_MOMENTS, _LAYERS = "_moments", "_flatten_layers"


def _moments(torch: Any, layer: Any, x: Any, mask: Any) -> Any:
    if mask is not None:
        return getattr(type(layer), _MOMENTS)(layer, x, mask)
    return _operator(torch)(x.movedim(layer.axis, -1))


@functools.cache
def _operator(torch: Any) -> Any:
    """`delian::moments`: means and variances of the last axis, over the others."""

    def moments(x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        return flat.mean(0), flat.var(0, unbiased=False)

    def shapes(x: Any) -> Any:
        return x.new_empty(x.shape[-1]), x.new_empty(x.shape[-1])

    made = torch.library.custom_op(
        f"{OWN_SPACE}::moments", moments, mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor)"
    )
    made.register_fake(shapes)
    return made


def _named(variables: list[Any]) -> dict[str, Any]:
    """Variables by their paths, each of which is there once."""
    found: dict[str, Any] = {}
    for variable in variables:
        path = variable.path.replace(".", "_")
        name, number = path, 0
        while name in found:
            number += 1
            name = f"{path}_{number}"
        found[name] = variable
    return found
