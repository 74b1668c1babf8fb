"""Calls of `np.fft` that compiled programs must answer as NumPy does; named as `complex_cases`."""

from __future__ import annotations

from typing import Any

import numpy as np

SAME: list[Any] = [
    lambda v, z: (np.fft.fft(v), np.fft.ifft(v), np.fft.fft(z, axis=0)),
    lambda x, x4, z4, k: (np.fft.fft(x), np.fft.fft(x4), np.fft.fft(z4), np.fft.fft(k)),
    lambda v: (np.fft.fft(v, 8), np.fft.fft(v, n=3), np.fft.fft(v, norm="forward")),
    lambda z: (np.fft.fft(z, 6, 0, "ortho"), np.fft.ifft(z, norm="forward")),
    lambda x: (np.fft.rfft(x), np.fft.rfft(x, 7), np.fft.rfft(x, axis=0, norm="ortho")),
    lambda z, v: (np.fft.irfft(z), np.fft.irfft(v, 7), np.fft.irfft(v, 8)),
    lambda z, x, x4: (np.fft.irfft(x), np.fft.irfft(z, 5, 0), np.fft.irfft(x4), np.fft.rfft(x4)),
    lambda v, x: (np.fft.hfft(v), np.fft.ihfft(x), np.fft.hfft(v, 7, norm="ortho")),
    lambda x: np.fft.ihfft(x, 6, 0, "forward"),
    lambda z, x: (np.fft.fft2(z), np.fft.ifft2(z), np.fft.rfft2(x), np.fft.irfft2(z)),
    lambda z, x: (np.fft.fft2(x, s=(4, 8), axes=(0, 1)), np.fft.irfft2(z, s=(3, 5))),
    lambda z, x: (np.fft.fftn(z), np.fft.ifftn(z, axes=(0,)), np.fft.rfftn(x), np.fft.irfftn(z)),
    lambda z, x: (np.fft.rfftn(x, axes=(1, 0)), np.fft.irfftn(z, axes=(1, 0))),
    lambda x: np.fft.irfftn(np.fft.rfftn(x), x.shape, axes=(0, 1)),
    lambda f: (np.fft.fftfreq(8, 0.1) * f, np.fft.fftfreq(7, f), np.fft.rfftfreq(9, f)),
    lambda f: (np.fft.fftfreq(4), np.fft.rfftfreq(8, d=f)),
    lambda v, x, z: (np.fft.fftshift(v), np.fft.ifftshift(v), np.fft.fftshift(x)),
    lambda z: (np.fft.fftshift(z, axes=1), np.fft.ifftshift(z), np.fft.fft(z)[0].real),
    lambda x: np.abs(np.fft.rfft(x)) ** 2,
]

REFUSED: list[tuple[Any, str]] = [
    (lambda z: np.fft.rfft(z), "does not take complex numbers"),
    (lambda c: np.fft.fft(c), "takes an array"),
    (lambda v: np.fft.fft(v, 0), "a transform of 0 numbers fails"),
    (lambda v: np.fft.fft(v, norm="x"), "`norm` is one of"),
    (lambda z, c: np.fft.fft(z, axis=2), "axis 2 is out of range"),
]
