"""The choice of splits from histograms, by the rules and in the rounding of XGBoost's `hist`.

A split of a node with gradient and Hessian sums G, H into left and right gains

    T(G_L)^2 / (H_L + lambda) + T(G_R)^2 / (H_R + lambda) - T(G)^2 / (H + lambda)

with T(G) = sign(G) max(|G| - alpha, 0), and a leaf predicts -eta T(G) / (H + lambda) (Chen and
Guestrin 2016, section 2.2). Rows that miss the feature are G, H less the sums of its bins. Bins
are tried from the first on with these rows on the right; then, where there are such rows, from the
last on with them on the left. The first split of the largest gain, rounded to f32, is chosen: in
the order of a scan, scans in this order, features by number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bins import F32, I64

F64 = npt.NDArray[np.float64]

#: XGBoost's kRtEps: a split that gains less is none.
GAIN_MIN = np.float32(1e-6)


def f32(value: float) -> float:
    """A setting as XGBoost has it."""
    return float(np.float32(value))


@dataclass(frozen=True)
class Penalties:
    """What limits splits and leaves, f32 as in XGBoost."""

    reg_lambda: float
    reg_alpha: float
    gamma: float
    min_child_weight: float
    max_delta_step: float
    monotone: npt.NDArray[np.int64]
    """By feature: 1 where predictions may only rise with it, -1: fall, 0: either."""

    @property
    def is_monotone(self) -> bool:
        return bool(self.monotone.any())

    def _threshold(self, gradient: F64) -> F64:
        made: F64 = np.sign(gradient) * np.maximum(np.abs(gradient) - self.reg_alpha, 0.0)
        return made

    def weight(self, gradient: F64, hessian: F64, low: F32, high: F32) -> F32:
        """A leaf's weight within bounds, f32[...]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            raw: F64 = -self._threshold(gradient) / (hessian + self.reg_lambda)
        if self.max_delta_step > 0:
            raw = np.minimum(np.maximum(raw, -self.max_delta_step), self.max_delta_step)
        none = (hessian < self.min_child_weight) | (hessian <= 0)
        made: F32 = np.where(none, 0.0, raw).astype(np.float32)
        return np.clip(made, low, high) if self.is_monotone else made

    def gain(self, gradient: F64, hessian: F64, weight: F32) -> F32:
        """What a leaf of such a weight gains, f32[...]."""
        penalty = np.float32(self.reg_lambda)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.max_delta_step > 0 or self.is_monotone:
                g, h = gradient.astype(np.float32), hessian.astype(np.float32)
                found: F32 = -(np.float32(2) * g * weight + (h + penalty) * (weight * weight))
            else:
                shrunk = self._threshold(gradient)
                squared: F32 = (shrunk * shrunk).astype(np.float32)
                below: F32 = (hessian + self.reg_lambda).astype(np.float32)
                found = np.divide(squared, below)
        made: F32 = np.where(hessian <= 0, np.float32(0), found)
        return made


@dataclass(frozen=True)
class Nodes:
    """Open nodes: arrays [nodes]."""

    gradient: F64
    hessian: F64
    gain: F32
    """What each gains as a leaf."""
    low: F32
    high: F32
    """Bounds of the weights below it, from monotone splits above it."""


@dataclass(frozen=True)
class Splits:
    """The best split of each node: arrays [nodes]."""

    gain: F32
    """0 where there is none."""
    feature: I64
    bin: I64
    missing_left: npt.NDArray[np.bool_]
    left_gradient: F64
    left_hessian: F64


@dataclass(frozen=True)
class _Scan:
    gain: F32
    bin: I64
    left_gradient: F64
    left_hessian: F64


def best_splits(
    gradients: F64,
    hessians: F64,
    bins: I64,
    features: I64,
    nodes: Nodes,
    penalties: Penalties,
) -> Splits:
    """The best split of each node.

    gradients, hessians: sums by bin, exact, f64[nodes, features, bins at most]; 0 behind a
    feature's last bin. bins: bins a feature, i64[features]. features: their numbers, rising.
    """
    held = np.arange(gradients.shape[2])[None, :] < bins[:, None]
    sums_g, sums_h = gradients.cumsum(axis=2), hessians.cumsum(axis=2)
    total_g, total_h = nodes.gradient[:, None, None], nodes.hessian[:, None, None]
    monotone = penalties.monotone[features]
    forward = _scan(
        sums_g, sums_h, total_g, total_h, nodes, penalties, monotone[None, :], held[None]
    )
    best_gain, best_bin = forward.gain.copy(), forward.bin.copy()
    best_g, best_h = forward.left_gradient.copy(), forward.left_hessian.copy()
    missing_left = np.zeros(best_gain.shape, np.bool_)
    missing = (sums_g[:, :, -1] != nodes.gradient[:, None]) | (
        sums_h[:, :, -1] != nodes.hessian[:, None]
    )
    n, f = np.nonzero(missing)
    if len(n):
        # Right of bin i - 1 without the missing rows, for i from the last bin down to the first.
        right_g = sums_g[n, f, -1:] - sums_g[n, f] + gradients[n, f]
        right_h = sums_h[n, f, -1:] - sums_h[n, f] + hessians[n, f]
        some = Nodes(
            nodes.gradient[n], nodes.hessian[n], nodes.gain[n], nodes.low[n], nodes.high[n]
        )
        whole_g, whole_h = some.gradient[:, None, None], some.hessian[:, None, None]
        left_g = whole_g - right_g[:, None, ::-1]
        left_h = whole_h - right_h[:, None, ::-1]
        backward = _scan(
            left_g,
            left_h,
            whole_g,
            whole_h,
            some,
            penalties,
            monotone[f][:, None],
            held[f][:, None, ::-1],
        )
        better = backward.gain[:, 0] > best_gain[n, f]
        where = (n[better], f[better])
        best_gain[where] = backward.gain[better, 0]
        best_bin[where] = gradients.shape[2] - 1 - backward.bin[better, 0] - 1
        best_g[where] = backward.left_gradient[better, 0]
        best_h[where] = backward.left_hessian[better, 0]
        missing_left[where] = True
    chosen = best_gain.argmax(axis=1)
    row = np.arange(len(chosen))
    gain = best_gain[row, chosen]
    return Splits(
        np.where(gain > 0, gain, np.float32(0)),
        features[chosen],
        best_bin[row, chosen],
        missing_left[row, chosen],
        best_g[row, chosen],
        best_h[row, chosen],
    )


def _scan(
    left_g: F64,
    left_h: F64,
    total_g: F64,
    total_h: F64,
    nodes: Nodes,
    penalties: Penalties,
    monotone: I64,
    held: npt.NDArray[np.bool_],
) -> _Scan:
    """The first best candidate of the last axis, of left sums f64[nodes, features, bins]."""
    right_g, right_h = total_g - left_g, total_h - left_h
    least = penalties.min_child_weight
    valid = held & (left_h >= least) & (right_h >= least) & (left_h > 0) & (right_h > 0)
    low, high = nodes.low[:, None, None], nodes.high[:, None, None]
    gain: F32
    if penalties.is_monotone or penalties.max_delta_step > 0:
        left = penalties.weight(left_g, left_h, low, high)
        right = penalties.weight(right_g, right_h, low, high)
        gain = penalties.gain(left_g, left_h, left) + penalties.gain(right_g, right_h, right)
        order = monotone[:, :, None]
        valid &= (order == 0) | np.where(order > 0, left <= right, left >= right)
    else:
        none = np.zeros((1, 1, 1), np.float32)
        gain = penalties.gain(left_g, left_h, none) + penalties.gain(right_g, right_h, none)
    with np.errstate(invalid="ignore"):
        change = gain - nodes.gain[:, None, None]
    change = np.where(valid & np.isfinite(change), change, np.float32(-np.inf))
    best = change.argmax(axis=2)
    at = (*np.ogrid[: best.shape[0], : best.shape[1]], best)
    return _Scan(change[at], best.astype(np.int64), left_g[at], left_h[at])
