"""The other form of `client_update`: three programs, for rows that do not fit in memory.

    update_begin(state, frozen, kept)                                    -> carry
    update_chunk(state, frozen, carry, data, key, kept, epoch, window)   -> carry
    update_end(state, frozen, carry, key, kept)                          -> as client_update gives

`data` is one window of the rows, a SampleSet like that of the other programs; `epoch` and `window`
are i64[] and say where it is. A device calls `update_chunk` for each window of each pass, so its
memory holds a window or two and the carry: the model, the local optimiser's state, sums. The carry
never leaves the device.

In the one-call form a pass shuffles all rows; here it shuffles those of each window, with the key

    fold_in(key, epoch + window * epochs)

which is the one-call form's in the first window. So of data that fits one window the three programs
make the very update of `client_update`, to the bit. Of more data it is another order of the same
rows, and each window ends with a batch that its rows may not fill (`Samples.last_batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...common.errors import DelianError
from ...compiler import random, tree
from ...compiler.frontend import trace
from ...compiler.ir import DType, Tensor, TensorType
from ...compiler.traced import Traced
from .. import algorithm_registry
from ..algorithm import Algorithm, ClientResult, Descent
from ..bundle import WINDOW_PROGRAMS, Leaf
from ..sampling import SampleSet, SeenRows
from .partial_training import Division

#: The type of `epoch` and `window`.
PLACE = TensorType(DType.I64, ())

#: (state, kept, key, trained) -> what `client_update` gives. trained: (the algorithm's state, own
#: client state) -> result.
Uploaded = Callable[[Any, Any, Tensor, Callable[[Any, Any], ClientResult]], Any]


class Carry(NamedTuple):
    """What a device keeps between two windows."""

    way: Descent
    """The shared loop."""
    seen: SeenRows
    """The rows of the first pass."""


def _why_not(algorithm: Algorithm) -> str:
    """Why an algorithm cannot train by windows; empty: its training is the shared loop."""
    kind = type(algorithm)
    if kind.client_update is not Algorithm.client_update or kind.descend is not Algorithm.descend:
        return "it has a client_update of its own, which needs all rows at once"
    if steps := algorithm.fixed_steps():
        return f"it takes {steps} local steps, and no passes over all rows"
    return ""


def check(algorithm: Algorithm, data: Any) -> None:
    """Raises DelianError for an algorithm, or data, that cannot be trained on by windows."""
    name = type(algorithm).__name__
    if not isinstance(data, SampleSet):
        raise DelianError(
            f"{name} trains on episodes here, and windows are of rows",
            "leave data.rows_in_memory out: a device's drawings are in memory",
        )
    if why := _why_not(algorithm):
        kinds = map(algorithm_registry.algorithm_class, algorithm_registry.names())
        able = ", ".join(kind.__name__ for kind in kinds if not _why_not(kind()))
        raise DelianError(
            f"{name} cannot train on windows of rows: {why}",
            f"leave data.rows_in_memory out, or use one of {able}; an algorithm of your own defines"
            " `starts` and `result` and leaves `client_update` as it is",
        )


def functions(
    division: Division, algorithm: Algorithm, with_memory: bool, uploaded: Uploaded
) -> dict[str, Callable[..., Any]]:
    """The three, as functions of trees.

    with_memory: whether a client state has the chain's memory next to the algorithm's part.
    uploaded: makes of a training's result what leaves the device.
    """

    def own(kept: Any) -> Any:
        mine = division.own(kept)
        return mine[0] if with_memory else mine

    def begin(state: Any, frozen: Any, kept: Any) -> Carry:
        task, whole = division.task_of(frozen), division.opened_by(state, kept)
        start, _ = algorithm.starts(task, whole, own(kept))
        return Carry(algorithm.begun(start), SeenRows(np.int64(0), np.float32(0.0)))

    def chunk(
        state: Any,
        frozen: Any,
        carry: Carry,
        data: Any,
        key: Tensor,
        kept: Any,
        epoch: Tensor,
        window: Tensor,
    ) -> Carry:
        task, whole = division.task_of(frozen), division.opened_by(state, kept)
        _, around = algorithm.starts(task, whole, own(kept))
        place = random.fold_in(random.split(key, 2)[0], epoch + window * algorithm.epochs)
        way = algorithm.passed(task, carry.way, around, data, task.source.order(data, place))
        # Every pass has the same rows: those of the first are counted.
        support = np.where(epoch == 0, data.support, 0)
        length = np.where(epoch == 0, task.source.length(data), np.float32(0.0))
        return Carry(way, SeenRows(carry.seen.support + support, carry.seen.length + length))

    def end(state: Any, frozen: Any, carry: Carry, key: Tensor, kept: Any) -> Any:
        task = division.task_of(frozen)

        def trained(whole: Any, before: Any) -> ClientResult:
            way = carry.way
            return algorithm.result(task, whole, way.current, way.loss(), carry.seen, before)

        return uploaded(state, kept, key, trained)

    return dict(zip(WINDOW_PROGRAMS, (begin, chunk, end), strict=True))


def traced(
    f: Mapping[str, Callable[..., Any]],
    state: Any,
    frozen: Sequence[TensorType],
    data: Any,
    key: TensorType,
    kept: Any,
) -> dict[str, Traced]:
    """The three as programs. f: has their functions; the rest: trees of types."""
    begin, chunk, end = WINDOW_PROGRAMS
    made = {begin: trace(f[begin], state, frozen, kept, name=begin)}
    carry = tree.unflatten(made[begin].out_structure, made[begin].function.result_types)
    places = (PLACE, PLACE)
    made[chunk] = trace(f[chunk], state, frozen, carry, data, key, kept, *places, name=chunk)
    made[end] = trace(f[end], state, frozen, carry, key, kept, name=end)
    before, after = (made[name].function.result_types for name in (begin, chunk))
    if before != after:
        raise DelianError(
            f"the carry of a training by windows begins as {', '.join(map(str, before))[:200]} and"
            f" goes on as {', '.join(map(str, after))[:200]}",
            "an optimiser's state has the same shapes and types after each step",
        )
    return made


def carried(made: Mapping[str, Traced]) -> tuple[Leaf, ...]:
    """The leaves of the carry, as a manifest lists them."""
    first = made[WINDOW_PROGRAMS[0]]
    types = [t for t in first.function.result_types if isinstance(t, TensorType)]
    names = first.out_structure.paths("carry")
    return tuple(Leaf.of(name, each) for name, each in zip(names, types, strict=True))
