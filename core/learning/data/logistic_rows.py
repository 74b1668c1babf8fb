"""Synthetic(alpha, beta): devices whose data and whose labels differ, each by its own amount.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, section 5.1 and appendix C.3.1. Device k has u_k ~ N(0, alpha), B_k ~ N(0, beta), and

    y = argmax softmax(W_k x + b_k);    W_k, b_k ~ N(u_k, 1);    x ~ N(v_k, diag(j^-1.2))
    v_k ~ N(B_k, 1)

with 60 features and 10 labels. alpha says how much models differ, beta how much data do. As the
experiments do that quote it (Dinh et al. 2020), alpha and beta are standard deviations, and a
device has (50 + a log-normal number) x `multiple` rows: most have a few hundred, a few very many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .labelled_arrays import Labelled

FEATURES, CLASSES = 60, 10
ROWS_LEAST = 50
ROWS_LOG_MEAN, ROWS_LOG_DEVIATION = 4.0, 2.0
ROWS_MAX = 20_000_000


def logistic(
    *, devices: int, alpha: float, beta: float, multiple: int = 1, seed: int = 0
) -> Labelled:
    """x: f32 [n, 60]; y: i32 [n]; every row has its device.

    The draws are those of NumPy's legacy generator in the order of the published script, so that
    its data come back.

    Raises DelianError for more rows than fit in memory.
    """
    rng = np.random.RandomState(seed)
    drawn = rng.lognormal(ROWS_LOG_MEAN, ROWS_LOG_DEVIATION, devices)
    sizes = (drawn.astype(np.int64) + ROWS_LEAST) * multiple
    if sizes.sum() > ROWS_MAX:
        raise DelianError(
            f"Synthetic({alpha:g}, {beta:g}) of {devices} devices would have {sizes.sum()} rows",
            f"lower fleet.devices or data.multiple; {ROWS_MAX} fit",
        )
    model_means = rng.normal(0, alpha, devices)
    data_means = rng.normal(0, beta, devices)
    deviations = np.sqrt(np.arange(1, FEATURES + 1, dtype=np.float64) ** -1.2)
    centres = [rng.normal(data_means[k], 1, FEATURES) for k in range(devices)]
    x = np.empty((int(sizes.sum()), FEATURES), np.float32)
    y = np.empty(len(x), np.int32)
    start = 0
    for k in range(devices):
        rows = _rows(rng, model_means[k], centres[k], deviations, int(sizes[k]))
        x[start : start + sizes[k]], y[start : start + sizes[k]] = rows
        start += int(sizes[k])
    return Labelled(
        f"Synthetic({alpha:g}, {beta:g})",
        x,
        y,
        np.repeat(np.arange(devices), sizes),
        tuple(f"device {k:0{len(str(devices - 1))}d}" for k in range(devices)),
    )


def _rows(
    rng: np.random.RandomState,
    mean: float,
    centre: NDArray[np.float64],
    deviations: NDArray[np.float64],
    count: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One device's rows and labels; softmax keeps the order of logits.

    The rows are those of `rng.multivariate_normal`, which decomposes the diagonal matrix again for
    each device, at many times the cost.
    """
    weights = rng.normal(mean, 1, (FEATURES, CLASSES))
    bias = rng.normal(mean, 1, CLASSES)
    x = rng.standard_normal((count, FEATURES)) * deviations + centre
    return x, np.argmax(x @ weights + bias, axis=1)
