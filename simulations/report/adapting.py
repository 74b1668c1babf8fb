"""What local steps are worth to a device, as the observer sees it at a run's end.

How good its model is after none, one, five, ten steps (`evaluation.steps`), on the rows that it
adapts to and on those that only judge. And how fairly devices fare, and when they first fared well
enough.

TFF's personalisation and pfl's evaluation ask for this. A program of its own does it
(`core.learning.build.personal_steps`), which is only
compiled where it is asked for; devices are not sent it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.compiler import tree
from ...core.compiler.backends import Backend, compile_function
from ...core.compiler.ir import Array
from ...core.learning.leaf_roles import Roles
from ...core.learning.runtime import Runtime, Score
from ...core.learning.sampling import SampleSet
from ..runs.result import DeviceRecord
from .measures import Measure

if TYPE_CHECKING:
    from ...core.learning import Algorithm, Task


@dataclass(frozen=True, slots=True)
class Adapted:
    """A device's scores after each number of steps, the first none."""

    query: tuple[Score, ...]
    support: tuple[Score, ...]
    """On the rows that it adapts to; empty of episodes, which are made afresh."""


class Adapting:
    """Models after `steps`, which rise. data: a device's, as the bundle was built for."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        data: Any,
        runtime: Runtime,
        steps: Sequence[int],
        backend: Backend,
        roles: Roles | None = None,
    ) -> None:
        from ...core.learning.build.personal_steps import stepped  # and with it the front end

        self.runtime, self.steps = runtime, (0, *steps)
        function = stepped(task, algorithm, data, roles)
        first = len(runtime.manifest.state) + len(runtime.frozen)
        others = first + len(tree.leaves(data)) + len(("key", "steps"))
        # The algorithm's own client state is first in the bundle's; behind it a composition's.
        self._kept = len(function.body.params) - others
        self._program = compile_function(function, backend)

    def judge(self, state: Array, data: Any, key: Array, kept: Array | None) -> Adapted:
        """state: f32[D]; key: u32[2]; kept: the device's client state, None where it has none."""
        runtime, manifest = self.runtime, self.runtime.manifest
        if kept is None:
            kept = runtime.client_state(state)
        own = runtime.views(kept, manifest.client_state)[: self._kept]
        views = runtime.views(state, manifest.state)
        given = [*views, *runtime.frozen, *tree.leaves(data), key, *own]
        judged: list[list[Score]] = [[], []]
        for count in self.steps:
            model = runtime.model_of(state)
            if count:
                leaves = self._program(*given, np.array(count, np.int64))
                model = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])
            judged[0].append(runtime.evaluate(model, data, key))
            if isinstance(data, SampleSet):
                judged[1].append(runtime.evaluate(model, _seen(data), key))
        return Adapted(tuple(judged[0]), tuple(judged[1]))


def _seen(data: SampleSet) -> SampleSet:
    """The same device with the rows that it adapts to as those that judge: they stand first."""
    return SampleSet(data.x, data.y, np.zeros_like(data.support), data.support)


def total(parts: Sequence[Adapted]) -> Adapted:
    """Several episodes' as one."""
    return Adapted(
        tuple(_sum(scores) for scores in zip(*(p.query for p in parts), strict=True)),
        tuple(_sum(scores) for scores in zip(*(p.support for p in parts), strict=True)),
    )


def _sum(scores: Sequence[Score]) -> Score:
    return Score(
        sum(s.loss for s in scores), sum(s.correct for s in scores), sum(s.count for s in scores)
    )


def summary(
    devices: Sequence[DeviceRecord], steps: Sequence[int], measure: Measure
) -> dict[str, Any] | None:
    """By number of steps, a figure of all judged devices each.

    Means on query and support rows, the worst tenth, spread and fairness, and the share that is
    worse off than with the shared model; the means of those that trained and of those that never
    did. None where nothing was judged.
    """
    judged = [d for d in devices if d.steps_query]
    if not steps or not judged:
        return None
    columns = [[d.steps_query[i] for d in judged] for i in range(len(steps) + 1)]
    first = columns[0]
    return {
        "steps": [0, *steps],
        "query": [_mean(c) for c in columns],
        "support": _means([d.steps_support for d in judged]),
        "trained": _means([d.steps_query for d in judged if not d.held_out]),
        "held_out": _means([d.steps_query for d in judged if d.held_out]),
        "worst_decile": [worst_decile(c, measure) for c in columns],
        "deviation": [deviation(c) for c in columns],
        "jain": [jain(c) for c in columns],
        "harmed_share": [
            sum(measure.gain(b, a) < 0 for b, a in zip(first, c, strict=True)) / len(c)
            for c in columns
        ],
    }


def _means(rows: Sequence[Sequence[float]]) -> list[float] | None:
    full = [row for row in rows if row]
    return [_mean(column) for column in zip(*full, strict=True)] if full else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


#: The worst decile is the worst so-manieth of the devices, and one at least.
DECILE = 10


def worst_decile(values: Sequence[float], measure: Measure) -> float:
    """The mean of the tenth of the devices that fare worst."""
    return _mean(measure.worst(values)[: max(1, len(values) // DECILE)])


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over devices.

    Of models that serve all alike it is small (Li et al., "Fair Resource Allocation in Federated
    Learning", ICLR 2020, definition 1).
    """
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))


def jain(values: Sequence[float]) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2).

    From 1/n, where one device has everything, to 1, where all have the same (Jain, Chiu and Hawe,
    DEC-TR-301, 1984). None where all have nothing.
    """
    squares = math.fsum(v * v for v in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def reached(
    rounds: Sequence[Mapping[str, Any]], target: float, gain: Callable[[float, float], float]
) -> dict[str, Any]:
    """When devices' own models first were as good as `target`.

    The round, what devices had sent by then, and virtual time; all None where they never were.
    rounds: in order, those that came to nothing too, for they were paid for.
    """
    sent, seconds = 0.0, 0.0
    for one in rounds:
        sent += one["bytes"].get("device_edge_up", 0)
        seconds += one["virtual_seconds"]
        accuracy = one["personalised_accuracy"]
        if accuracy is not None and gain(target, accuracy) >= 0:
            return {"target": target, "round": one["round"], "bytes_up": sent, "seconds": seconds}
    return {"target": target, "round": None, "bytes_up": None, "seconds": None}
