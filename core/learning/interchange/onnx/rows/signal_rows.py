"""Transforms of signals. Complex numbers are a last axis [real, imaginary]."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..element_types import numpy_type
from ..operator_rows import Row, Rows
from .shape_rows import ints, placed


def dft(
    x: Tensor,
    length: Tensor = None,
    along: Tensor = None,
    *,
    axis: int | None = None,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """DFT along an axis of x [..., 1 or 2]."""
    if along is not None:
        axis = ints(along)[0]
    where = placed(-2 if axis is None else axis, x.ndim)
    if length is not None:
        many = ints(length)[0]
    elif inverse and onesided:
        many = 2 * (x.shape[where] - 1)
    else:
        many = x.shape[where]
    signal = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    if inverse and onesided:
        return np.fft.irfft(signal, many, where)[..., None].astype(x.dtype)
    if inverse:
        found = np.fft.ifft(signal, many, where)
    else:
        found = np.fft.fft(signal, many, where)
    if onesided:
        found = found[(*((slice(None),) * where), slice(0, many // 2 + 1))]
    return np.stack([np.real(found), np.imag(found)], -1).astype(x.dtype)


def old_dft(
    x: Tensor, length: Tensor = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """DFT of versions 17 to 19: the axis is an attribute, the second where none is given."""
    return dft(x, length, axis=axis, inverse=inverse, onesided=onesided)


def stft(
    x: Tensor, step: Tensor, window: Tensor = None, length: Tensor = None, *, onesided: int = 1
) -> Tensor:
    """STFT: frames of x [N, samples, 1 or 2] -> [N, frames, frequencies, 2]."""
    hop = ints(step)[0]
    if length is not None:
        size = ints(length)[0]
    else:
        size = x.shape[1] if window is None else window.shape[0]
    frames = (x.shape[1] - size) // hop + 1
    places = np.arange(frames)[:, None] * hop + np.arange(size)
    cut = x[:, places]
    if window is not None:
        cut = cut * window[:, None]
    return dft(cut, None, axis=2, onesided=onesided)


def mel_weights(
    bins: Tensor,
    length: Tensor,
    rate: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    output_datatype: int = 1,
) -> Tensor:
    """MelWeightMatrix: triangles over the frequencies of a transform, all of it known."""
    many, spectrum = ints(bins)[0], ints(length)[0] // 2 + 1
    first, last = (2595 * np.log10(1 + float(np.reshape(v, ())) / 700) for v in (low, high))
    steps = np.arange(many + 2) * ((last - first) / (many + 2)) + first
    hertz = 700 * (np.power(10.0, steps / 2595) - 1)
    edges = np.floor((ints(length)[0] + 1) * hertz / ints(rate)[0]).astype(np.int64)
    lower, center, upper = edges[:-2], edges[1:-1], edges[2:]
    place = np.arange(spectrum)[:, None]
    rise = np.where(center == lower, 1, center - lower)
    fall = np.where(upper == center, 1, upper - center)
    up = np.where((place >= lower) & (place <= center) & (center != lower), place - lower, 0) / rise
    down = np.where((place >= center) & (place < upper), upper - place, 0) / fall
    peak = np.where((center == lower) & (place == center), 1.0, 0.0)
    found: Any = np.where(place < center, up, np.where(peak == 1, 1.0, down))
    found = np.where((place == center) & (center != lower), 1.0, found)
    return found.astype(numpy_type(output_datatype))


SIGNAL_ROWS: Rows = {
    "DFT": (Row(old_dft, known=(1,), since=17), Row(dft, known=(1, 2), since=20)),
    "MelWeightMatrix": Row(mel_weights, known=(0, 1, 2, 3, 4)),
    "STFT": Row(stft, known=(1, 3)),
}
