"""Weights in the forms that frameworks have them in, as arrays by name, and back.

A run's model is a list of named arrays of floats. Arrays of a script's model that are no floats, as
a batch norm's count of batches, are not averaged: each site keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..core.common.errors import DelianError

Array = NDArray[Any]
Leaves: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]

#: Fitted attributes of estimators that are numbers to average.
ESTIMATOR = ("coef_", "intercept_", "coefs_", "intercepts_", "cluster_centers_", "theta_", "var_")
NAMES_SHOWN = 4


class WeightsError(DelianError):
    """Weights that are not those of the run's model."""


def split(flat: Array, leaves: Leaves) -> dict[str, Array]:
    """The arrays of a flat vector f32[D], by name; they may be written."""
    found, start = {}, 0
    for name, shape in leaves:
        size = math.prod(shape)
        found[name] = flat[start : start + size].reshape(shape)
        start += size
    if start != flat.size:
        raise WeightsError(f"{flat.size} weights came, and the model has {start}")
    return found


def join(arrays: Mapping[str, Array], leaves: Leaves, flat: Array) -> None:
    """Writes the arrays one after the other into a vector f32[D]."""
    start = 0
    for name, shape in leaves:
        size = math.prod(shape)
        flat[start : start + size] = arrays[name].reshape(-1)
        start += size


def names_of_list(count: int) -> list[str]:
    """The names of a list's arrays: their places, so that they sort in its order."""
    return [f"{i:05d}" for i in range(count)]


def named(given: Any) -> dict[str, Array]:
    """All arrays of a module, a state_dict, a dict, a list or a fitted estimator, by name.

    Raises WeightsError.
    """
    if isinstance(given, Mapping):
        return {str(name): array(name, value) for name, value in given.items()}
    if callable(getattr(given, "state_dict", None)):
        return named(given.state_dict())
    if isinstance(given, list | tuple):
        names = names_of_list(len(given))
        return {name: array(name, value) for name, value in zip(names, given, strict=True)}
    if callable(getattr(given, "get_params", None)):
        return _of_estimator(given)
    raise WeightsError(
        f"weights are {type(given).__name__}",
        "give a torch module, a state_dict, a dict of arrays, a list, or a fitted estimator",
    )


def array(name: Any, value: Any) -> Array:
    """A tensor of torch, or whatever NumPy takes, as an array. Raises WeightsError."""
    if callable(getattr(value, "detach", None)):
        value = value.float() if value.is_floating_point() else value
        return np.asarray(value.numpy(force=True))  # detached, and from whatever device
    found = np.asarray(value)
    if found.dtype.kind not in "fiub":
        raise WeightsError(f"the weights' `{name}` are {found.dtype}", "give arrays of numbers")
    return found


def _of_estimator(estimator: Any) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name in ESTIMATOR:
        value = getattr(estimator, name, None)
        if isinstance(value, list | tuple):
            found |= {f"{name}.{i}": np.asarray(each) for i, each in enumerate(value)}
        elif value is not None:
            found[name] = np.asarray(value)
    if not found:
        raise WeightsError(
            f"{type(estimator).__name__} has none of {', '.join(ESTIMATOR)}",
            "fit it first, or give its arrays by name",
        )
    return found


def arrays_of(given: Any, leaves: Leaves) -> dict[str, Array]:
    """The run's arrays among those given, checked. Raises WeightsError, naming what differs."""
    found = named(given)
    missing = [name for name, _ in leaves if name not in found]
    if missing:
        raise WeightsError(
            f"the weights lack {_shown(missing)}",
            f"the run's model has {_shown([name for name, _ in leaves])}",
        )
    wanted = dict(leaves)
    if isinstance(given, Mapping | list | tuple):
        more = [n for n, a in found.items() if n not in wanted and a.dtype.kind == "f"]
        if more:
            raise WeightsError(
                f"the weights have {_shown(more)}, which the run's model has not",
                "send the arrays of task.weights; what is the site's own stays out",
            )
    for name, shape in leaves:
        if found[name].shape != shape:
            raise WeightsError(
                f"the weights' `{name}` are {list(found[name].shape)}, and the run's model has"
                f" {list(shape)}",
                "the script's model is another one than the run's",
            )
    return {name: found[name] for name in wanted}


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def others_of(said: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays that are no floats, as the run's bundle has them."""
    return {n: np.array(values, dtype).reshape(shape) for n, (dtype, shape, values) in said.items()}


def own_others(given: Any, before: Mapping[str, Array]) -> dict[str, Array]:
    """The site's own arrays that are no floats, of what the script sends."""
    if not before:
        return {}
    found = named(given)
    return {n: np.array(found.get(n, a), a.dtype).reshape(a.shape) for n, a in before.items()}


def state_dict(weights: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Any]:
    """Torch tensors, which own their memory."""
    import torch

    return {name: torch.tensor(value) for name, value in {**weights, **others}.items()}


def load_into(model: Any, weights: Mapping[str, Array], others: Mapping[str, Array]) -> Any:
    """Puts weights into a torch module, or sets the fitted attributes of an estimator.

    Raises WeightsError for an object that is neither.
    """
    if callable(getattr(model, "load_state_dict", None)):
        import torch

        given = {name: torch.as_tensor(value) for name, value in {**weights, **others}.items()}
        # It copies them. What is not among them stays as it is.
        unknown = model.load_state_dict(given, strict=False).unexpected_keys
        if unknown:
            raise WeightsError(
                f"the module has no {_shown(unknown)}", "the script's model is another one"
            )
        return model
    if callable(getattr(model, "get_params", None)):
        lists: dict[str, dict[int, Array]] = {}
        for name, value in weights.items():
            attribute, dot, place = name.partition(".")
            if dot:
                lists.setdefault(attribute, {})[int(place)] = value.astype(np.float64)
            else:
                setattr(model, attribute, value.astype(np.float64))
        for attribute, parts in lists.items():
            setattr(model, attribute, [parts[i] for i in sorted(parts)])
        return model
    raise WeightsError(
        f"weights cannot be put into {type(model).__name__}",
        "take task.weights, task.arrays() or task.state_dict()",
    )
