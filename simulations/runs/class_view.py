"""How well models do by class: accuracies, and the confusion matrix of the shared model.

It is computed once, at the end of a run, over the rows that judge, from the outputs of `infer`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core.compiler.ir import Array, TensorType
from ...core.learning.sampling import SampleSet

if TYPE_CHECKING:
    from .stage import Pool, Stage

#: A matrix of more classes is neither computed nor read.
CLASSES_MAX = 256
#: Rows of one device that are judged.
ROWS_MAX = 10_000

Counts = NDArray[np.int64]


def class_view(
    stage: Stage,
    state: Array,
    pool: Pool,
    stop: Callable[[], bool],
    kept: Callable[[int], Array | None],
) -> dict[str, Any] | None:
    """Accuracies by class of the shared and the personalised models.

    Args:
        stage: of the run, whose judged devices are asked.
        state: the newest, f32[D].
        pool: threads that judge.
        stop: whether the run is to end.
        kept: the client state of a device of the data.

    Returns:
        `labels`; `confusion` i64[C, C] as lists, the shared model's: a row is a true class, a
        column what it gave; `examples`, `shared` and `personalised` by class, None where no row has
        the class. None where models learn no classes, or more than CLASSES_MAX.
    """
    names = [str(name) for name in stage.data.card.label_names]
    if not 1 < len(names) <= CLASSES_MAX or not _judges_classes(stage) or stop():
        return None
    size = len(names)
    model = stage.runtime.model_of(state)

    def of(device: int) -> tuple[Counts, Counts]:
        data, key = stage.arrays[device], stage.key(device)
        own = stage.runtime.personalise(state, data, key, kept(device))
        return _counted(stage, model, data, size), _counted(stage, own, data, size)

    futures = [pool.submit(functools.partial(of, device)) for device in stage.judged]
    shared, own = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    for future in futures:
        one, other = future.result()
        shared += one
        own += other
    examples = shared.sum(axis=1)
    return {
        "labels": names,
        "confusion": shared.tolist(),
        "examples": examples.tolist(),
        "shared": _right(shared, examples),
        "personalised": _right(own, examples),
    }


def _judges_classes(stage: Stage) -> bool:
    """Whether rows have one class each, which `infer` gives scores of."""
    if stage.scenario.regression or "infer" not in stage.bundle.programs:
        return False
    first = stage.arrays[0]
    if not isinstance(first, SampleSet) or first.y.dtype.kind not in "iu":
        return False
    (given,) = stage.bundle.programs["infer"].result_types
    # Of rows or of places in rows (characters of a text): scores have one more axis than labels.
    return isinstance(given, TensorType) and given.rank == first.y.ndim + 1


def _counted(stage: Stage, model: Array, data: SampleSet, size: int) -> Counts:
    """i64[C, C]: how many of a device's rows are of a class, and were given another."""
    start, count = int(data.support), min(int(data.query), ROWS_MAX)
    kind: Any = stage.bundle.programs["infer"].param_types[-1]
    rows = np.ascontiguousarray(data.x[start : start + count], kind.dtype.numpy)
    labels = data.y[start : start + count]
    room, matrix = kind.shape[0], np.zeros((size, size), np.int64)
    for at in range(0, count, room):
        part = rows[at : at + room]
        batch = np.zeros(kind.shape, kind.dtype.numpy)
        batch[: len(part)] = part
        found = np.argmax(stage.runtime.infer(model, batch)[: len(part)], axis=-1)
        true = labels[at : at + room].reshape(-1)
        given = found.reshape(-1)
        inside = (true >= 0) & (true < size) & (given < size)
        np.add.at(matrix, (true[inside], given[inside]), 1)
    return matrix


def _right(matrix: Counts, examples: Counts) -> list[float | None]:
    return [
        float(matrix[i, i] / count) if count else None for i, count in enumerate(examples.tolist())
    ]
