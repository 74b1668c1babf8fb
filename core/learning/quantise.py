"""A bundle's `infer` in bytes: weights, calibration, and the bundle that comes of it.

    made = quantise(bundle, images)          # images: a few hundred rows, as devices' data are
    made.save(path)                          # about a quarter of the size
    logits = Runtime(made).infer(np.empty(0, np.float32), batch)

The weights go into the program as bytes, so the bundle needs no others: its manifest names no
leaves of a model, and `infer` is its only program. It is for inference alone; training goes on from
the bundle that it was made from.

Ranges of activations are found by running `infer` in f32 on the calibration rows. From smallest to
largest is safe where nothing is far out; `percentile` cuts what is; `mse` takes the range whose
rounding error, cut parts included, has the smallest mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ..common.errors import DelianError
from ..compiler.backends import Backend, compile_function
from ..compiler.ir import Array, Builder, Function, Value
from ..compiler.passes.quantised_inference import BYTE_MAX, Policy, Range, Scale, needed, quantised
from ..compiler.passes.simplify import simplify
from .bundle import Bundle

Method: TypeAlias = Literal["mse", "minmax", "percentile"]
METHODS: tuple[Method, ...] = ("mse", "minmax", "percentile")

#: Numbers of one tensor that are kept to find its range by: more say nothing new.
SAMPLES_MAX = 1 << 18
#: Calibration rows that are looked at.
ROWS_MAX = 4096
#: What `mse` tries: shares of the whole range.
_SHARES = np.linspace(0.3, 1.0, 36)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the ranges of activations are chosen."""

    method: Method = "mse"
    """As in the module's documentation."""
    percentile: float = 99.99
    """Percentage of the values on each side that the range keeps, for that method."""


def range_by(samples: Array, calibration: Calibration) -> Range:
    """The range of a tensor, from numbers seen in it. Those that are not finite do not count."""
    seen = samples[np.isfinite(samples)].astype(np.float64)
    if not seen.size:
        return 0.0, 0.0
    low, high = float(seen.min()), float(seen.max())
    if calibration.method == "percentile":
        out = 100 - calibration.percentile
        low, high = (float(v) for v in np.percentile(seen, (out, calibration.percentile)))
    if calibration.method == "mse":
        errors = [_error(seen, (low * s, high * s)) for s in _SHARES]
        share = float(_SHARES[int(np.argmin(errors))])
        low, high = low * share, high * share
    return low, high


def _error(seen: Array, range: Range) -> float:
    scale = Scale.of(range)
    there = np.rint(seen / scale.scale + scale.zero).clip(0, BYTE_MAX)
    return float(np.mean((scale.scale * (there - scale.zero) - seen) ** 2))


def frozen(function: Function, weights: Sequence[Array]) -> Function:
    """The function with its first parameters fixed."""
    b = Builder([p.type for p in function.body.params[len(weights) :]])
    args = [b.constant(w) for w in weights]
    body = b.finish(b.inline(function.body, [*args, *b.params]))
    names = function.param_names[len(weights) :]
    return Function(function.name, simplify(body), names, function.result_names)


def calibrated(
    function: Function,
    values: Sequence[Value],
    batches: Sequence[Array],
    calibration: Calibration,
    backend: Backend = "native",
) -> dict[Value, Range]:
    """The ranges of values of a function of one parameter, over batches of it, at least one."""
    if not values:
        return {}
    names = tuple(f"v{i}" for i in range(len(values)))
    body = replace(function.body, results=tuple(values))
    watch = compile_function(Function("watch", body, function.param_names, names), backend)
    kept: list[list[Array]] = [[] for _ in values]
    for batch in batches:
        for samples, found in zip(kept, watch(batch), strict=True):
            samples.append(found.reshape(-1).copy())
    return {
        value: range_by(_thinned(np.concatenate(samples)), calibration)
        for value, samples in zip(values, kept, strict=True)
    }


def _thinned(samples: Array) -> Array:
    """Not more than `SAMPLES_MAX`, the extremes among them."""
    if samples.size <= SAMPLES_MAX:
        return samples
    chosen = np.random.default_rng(0).integers(0, samples.size, SAMPLES_MAX)
    finite = samples[np.isfinite(samples)]
    ends = [finite.min(), finite.max()] if finite.size else []
    return np.concatenate([samples[chosen], np.array(ends, samples.dtype)])


def quantise_function(
    function: Function,
    batches: Sequence[Array],
    policy: Policy,
    calibration: Calibration,
    backend: Backend = "native",
) -> Function:
    """A function of one parameter whose weights are constants (`frozen`), its products in bytes.

    Raises DelianError when it has none that bytes can do.
    """
    ranges = calibrated(function, needed(function.body, policy), batches, calibration, backend)
    body, count = quantised(function.body, policy, ranges.__getitem__)
    if not count:
        raise DelianError(
            f"{function.name} has no product that bytes can do",
            "products with constant matrices and kernels of a multiple of four channels can be;"
            " let the last one be too: keep_last=False",
        )
    return Function(function.name, body, function.param_names, function.result_names)


def quantise(
    bundle: Bundle,
    calibration_data: Any,
    *,
    weights: Array | None = None,
    method: Method = "mse",
    percentile: float = 99.99,
    keep_first: bool = False,
    keep_last: bool = True,
    backend: Backend = "native",
) -> Bundle:
    """A bundle for inference alone, its products done in bytes.

    Args:
        calibration_data: rows such as `infer` takes, [n, ...] of its element type, n >= 1; the
            first `ROWS_MAX` are looked at.
        weights: the model f32[M]; absent, the bundle's own.
        method: how activations' ranges are found, one of `METHODS`.
        percentile: of the method that cuts ranges, above 50 and at most 100.
        keep_first: whether the first product stays in f32.
        keep_last: whether the last product stays in f32.

    Raises:
        DelianError: there are no weights, the rows do not fit, or nothing can be done in bytes.
    """
    if not bundle.manifest.model:
        raise DelianError("this bundle is quantised already", "quantise the one it was made from")
    if method not in METHODS:
        raise DelianError(f"there is no method {method!r}", f"there are {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise DelianError(f"a percentile of {percentile}", "give one above 50, to 100")
    function = bundle.inference
    leaves = bundle.manifest.model_leaves()
    model = model_of(bundle, weights)
    arrays: list[Array] = []
    at = 0
    for leaf in leaves:
        arrays.append(model[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    batches = batches_of(np.asarray(calibration_data), function)
    made = quantise_function(
        frozen(function, [*arrays, *bundle.frozen]),
        batches,
        Policy(keep_first, keep_last),
        Calibration(method, percentile),
        backend,
    )
    empty = np.empty(0, np.float32)
    manifest = replace(bundle.manifest, model=(), metrics=(), frozen=(), frozen_parts=())
    return Bundle(manifest, {"infer": made}, empty)


def model_of(bundle: Bundle, weights: Array | None = None) -> Array:
    """The model f32[M] of `infer`: given, or the bundle's. Raises DelianError."""
    size = sum(leaf.size for leaf in bundle.manifest.model_leaves())
    given = weights
    if given is None:
        if not bundle.weights.size:
            raise DelianError("the bundle has no weights in it", "give weights=")
        given = bundle.model_of(bundle.weights)
    given = np.asarray(given)
    if given.shape != (size,) or given.dtype != np.float32:
        raise DelianError(f"the model is f32[{size}], not {given.dtype}{list(given.shape)}")
    return given


def batches_of(rows: Array, infer: Function) -> list[Array]:
    """The rows in batches as `infer` takes them; the last is filled up with the first rows.

    Raises DelianError when they are of another shape, there are none, or one is not finite, which
    would make every range endless.
    """
    param = infer.body.params[-1]
    size, *rest = param.shape
    if rows.shape[1:] != tuple(rest) or not len(rows):
        raise DelianError(
            f"infer takes rows of shape {rest}, and the calibration data are {list(rows.shape)}",
            "give [n, ...] with at least one row",
        )
    rows = rows[:ROWS_MAX].astype(param.dtype.numpy)
    finite = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
    if not finite.all():
        raise DelianError(
            f"row {int(finite.argmin())} of the calibration data has a number that is not finite",
            "leave out the rows that are broken",
        )
    count = -(-len(rows) // size) * size
    rows = np.ascontiguousarray(rows[np.arange(count) % len(rows)])
    return [rows[i : i + size] for i in range(0, count, size)]
