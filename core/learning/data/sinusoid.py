"""Sinusoids: each device has its own, and learns it from a few points.

Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML
2017, section 5.1: y = A sin(x - phi), with A uniform in [0.1, 5], phi uniform in [0, pi] and x
uniform in [-5, 5]. A device that never trains adapts to `shots` points, as the paper's tasks do;
one that trains has more of its curve, and draws the points of a step from those.

The paper's oracle receives A and phi: here they are two more features.
"""

from __future__ import annotations

import numpy as np

from . import federated_data

AMPLITUDES = (0.1, 5.0)
PHASES = (0.0, float(np.pi))
INPUTS = (-5.0, 5.0)


def sinusoids(
    *,
    devices: int,
    shots: int,
    support: int,
    query: int,
    held_out_devices: int = 0,
    oracle: bool = False,
    seed: int = 0,
) -> federated_data.FederatedData:
    """x: f32 [capacity, 1], or [capacity, 3] for an oracle; y: f32 [capacity].

    A device that trains has `support` points to learn from, one that never does `shots`; `query`
    points judge each.
    """
    capacity, features = max(support, shots) + query, 3 if oracle else 1
    federated_data.check_memory(devices, capacity, (features + 1) * np.dtype(np.float32).itemsize)
    held_out = federated_data.hold_out(devices, held_out_devices, seed)
    rng = np.random.default_rng([seed, CURVE_STREAM])
    tables = []
    for number in range(devices):
        amplitude, phase = rng.uniform(*AMPLITUDES), rng.uniform(*PHASES)
        inputs = rng.uniform(*INPUTS, capacity)
        learnt = shots if number in held_out else support
        x, y = np.zeros((capacity, features), np.float32), np.zeros(capacity, np.float32)
        real = slice(0, learnt + query)
        x[real, 0] = inputs[real]
        x[real, 1:] = (amplitude, phase) if oracle else ()
        y[real] = amplitude * np.sin(inputs[real] - phase)
        tables.append(federated_data.DeviceData(x, y, learnt, query))
    values = [t.y[: t.examples] for t in tables]
    names, counts = federated_data.value_table(values)
    card = federated_data.DataCard(
        "sinusoids",
        f"one a device, {shots} points for those that never train",
        "points",
        tuple(t.examples for t in tables),
        names,
        counts,
        numbers=True,
    )
    devices_names = tuple(f"sinusoid {i:0{len(str(devices - 1))}d}" for i in range(devices))
    return federated_data.FederatedData(
        tuple(tables), held_out, (features,), 1, devices_names, card
    )


#: Apart from the streams of `federated`.
CURVE_STREAM = 4
