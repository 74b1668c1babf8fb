"""The synthetic benchmark that simulators are timed on.

10 smooth random prototypes of 28 x 28, plus noise.

It has the shapes of MNIST and needs no file, so that speed can be compared with other systems on
equal terms. It says nothing about how well an algorithm learns on real data.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...common.processors import cores
from .federated_data import DataCard, DeviceData, FederatedData, check_memory, hold_out, label_table

CLASSES = 10
SIDE = 28
SMOOTHING = 5  # width of the box filter that makes prototypes smooth
SIGNAL, NOISE = 0.5, 0.7
DEVICE_SEED = 1_000  # a device's support set is drawn from the stream 1,000 + its number
QUERY_SEED = 2_000_000
THREADS_MAX = 8

#: A stream's number, and what is drawn from it: examples [n, 28, 28] and their labels [n].
_Part: TypeAlias = tuple[int, NDArray[np.float32], NDArray[np.int32]]


def synthetic(
    *,
    devices: int = 100,
    support: int = 60,
    query: int = 12,
    held_out_devices: int = 0,
    seed: int = 0,
) -> FederatedData:
    """x: f32 [support + query, 28, 28]; y: i32.

    The examples do not depend on `seed`: it draws the held-out devices.

    A device's support set is the one that other systems' benchmark scripts train on.
    """
    check_memory(devices, support + query, SIDE * SIDE * 4)
    tables, parts = [], []
    for device in range(devices):
        x = np.empty((support + query, SIDE, SIDE), np.float32)
        y = np.empty(support + query, np.int32)
        tables.append(DeviceData(x, y, support, query))
        parts.append((DEVICE_SEED + device, x[:support], y[:support]))
        parts.append((QUERY_SEED + device, x[support:], y[support:]))
    _fill(parts, max(support, query))
    card = DataCard(
        "synthetic prototypes",
        "labels drawn evenly for every device",
        "examples",
        (support + query,) * devices,
        tuple(str(i) for i in range(CLASSES)),
        label_table([t.y for t in tables], CLASSES),
    )
    names = tuple(f"device {i:0{len(str(devices - 1))}d}" for i in range(devices))
    held_out = hold_out(devices, held_out_devices, seed)
    return FederatedData(tuple(tables), held_out, (SIDE, SIDE), CLASSES, names, card)


def _prototypes() -> NDArray[np.float32]:
    """[10, 28, 28] f32: white noise, smoothed along both axes, scaled to unit deviation."""
    noise = np.random.default_rng(0).normal(0, 1, (CLASSES, SIDE, SIDE)).astype(np.float32)
    for axis in (1, 2):
        noise = _smooth(noise, axis)
    return np.asarray(noise / noise.std(), dtype=np.float32)


def _smooth(x: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """A box filter along one axis; beyond the edge is zero."""
    reach = SMOOTHING // 2
    margin = [(reach, reach) if a == axis else (0, 0) for a in range(x.ndim)]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, margin), SMOOTHING, axis=axis)
    return np.asarray(windows.mean(axis=-1), dtype=np.float32)


def _fill(parts: list[_Part], rows_max: int) -> None:
    """Draws all parts, on as many threads as there are cores.

    NumPy draws and adds without Python's lock. Each part has a stream of its own, so the numbers
    are the same for any number of threads.
    """
    signals = SIGNAL * _prototypes()
    count = max(1, min(cores(), THREADS_MAX, len(parts) // 16))
    # Made here: memory that a thread has taken from its own heap stays there.
    spare = np.empty((count, rows_max, SIDE, SIDE))

    def run(number: int) -> None:
        for seed, x, y in parts[number::count]:
            _draw(signals, seed, x, y, spare[number, : len(x)])

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(1, count)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()


def _draw(
    signals: NDArray[np.float32],
    seed: int,
    x: NDArray[np.float32],
    y: NDArray[np.int32],
    spare: NDArray[np.float64],
) -> None:
    """Fills `x` [n, 28, 28] with examples and `y` [n] with their labels. spare: [n, 28, 28]."""
    rng = np.random.default_rng(seed)
    y[...] = rng.integers(0, CLASSES, len(x))
    rng.standard_normal(out=spare)
    spare *= NOISE
    spare += signals[y]
    x[...] = spare
