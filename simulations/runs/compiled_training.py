"""A compiled bundle as the federation sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.compiler import tree
from ...core.compiler.ir import Array, Block
from ...core.compiler.primitives import PRIMITIVES
from ...core.compiler.primitives.control import block_cost
from ...core.learning import metrics
from ...core.learning.runtime import Runtime, Update
from ...core.learning.windows.window_rows import WindowRows
from ...core.learning.windows.window_training import train
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import Floats, Outcome, Vector
from ...device.agent.client_state_file import Kept
from ..federation.client_states import ClientStates
from ..federation.trace import checksum
from ..federation.training import Trained, ahead_of
from ..federation.training_threads import NoWorkers, Pending, Postponed, Workers
from ..scenario import recipes

if TYPE_CHECKING:
    from ..federation.split_rounds import SplitRounds

_LOOPS = ("for", "while")


def training_cost(body: Block) -> tuple[float, float]:
    """The operations of a client update outside its loops, and those of a local step.

    The cost model counts one round of each loop, which is one local step. Loops of the same cost
    are passes over the data that the front end has unrolled: they are one loop.
    """
    loops = [op for op in body.ops if op.name in _LOOPS]
    costs = {PRIMITIVES[op.name].cost(op) for op in loops}
    inside = sum(PRIMITIVES[op.name].cost(op) for op in loops)
    return float(block_cost(body) - inside), float(sum(costs))


class CompiledTraining:
    """A compiled bundle as the federation sees it; `state` is the newest.

    Devices are numbered as the fleet's.
    """

    def __init__(
        self,
        runtime: Runtime,
        weights: Array,
        arrays: Sequence[Any],
        local_steps: Callable[[Any], int],
        workers: Workers | NoWorkers,
        on_update: Callable[[int, int], None],
    ) -> None:
        self.runtime, self.workers, self.on_update = runtime, workers, on_update
        self.arrays = arrays
        self._leaves = [
            each if isinstance(each, WindowRows) else tree.leaves(each) for each in arrays
        ]
        self.state = weights
        self.ring = runtime.ring
        programs = runtime.bundle.programs
        cost = {name: float(block_cost(program.body)) for name, program in programs.items()}
        judged = cost["personalise"] + 2 * cost["evaluate"]
        self._judged = judged
        self._once, self._per_step = training_cost(programs["client_update"].body)
        self._steps = [local_steps(each) for each in arrays]
        self._done, self._counting = 0, threading.Lock()
        size = runtime.kept_size
        self.kept = ClientStates(size, len(arrays)) if size else None
        self.split = self._split() if runtime.manifest.split else None

    def _split(self) -> SplitRounds:
        from ..federation.split_rounds import SplitRounds  # and with it what places programs

        runtime = self.runtime
        return SplitRounds(
            runtime.bundle,
            runtime.programs,
            runtime.frozen,
            self._leaves,
            lambda device: recipes.examples(self.arrays[device]),
            self._steps,
            self.workers,
            self.counted,
        )

    @property
    def pure(self) -> bool:
        return self.kept is None

    @property
    def foreseeable(self) -> bool:
        return self.pure

    @property
    def ahead(self) -> int:
        return ahead_of(self.runtime.ring.nbytes)

    @property
    def bundle(self) -> bytes:
        return self.runtime.bundle.bare().to_bytes()

    def initial(self) -> Floats:
        return self.state

    def flops(self, device: int, program: str) -> float:
        if program != "client_update":
            return self._judged
        return self._once + self._per_step * self._steps[device]

    def submit(
        self, device: int, weights: Floats, key: Vector
    ) -> Pending[Outcome] | Postponed[Outcome]:
        return self.workers.submit(partial(self._train, device, weights, key))

    def own(self, device: int) -> Array | None:
        """The client state that a device would be judged with; None before it has one."""
        kept = self.kept.of(device) if self.kept is not None else None
        return kept.after if kept is not None else None

    def evaluate(
        self, device: int, weights: Floats, key: Vector, plan: RingPlan
    ) -> Pending[Outcome] | Postponed[Outcome]:
        return self.workers.submit(partial(self._judge, device, weights, key, plan))

    def _judge(self, device: int, weights: Floats, key: Vector, plan: RingPlan) -> Outcome:
        kept = self.own(device)
        return metrics.judge(self.runtime, weights, self.arrays[device], key, plan, kept)[1]

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        remembered = self.runtime.memory_from(memory)
        self.state, remembered = self.runtime.server_update(
            weights, remembered, mean, weight=weight
        )
        return self.state, self.runtime.memory_bytes(remembered)

    def round_over(self) -> None:
        """Starts counting the next round's updates."""
        with self._counting:
            self._done = 0

    def _train(self, device: int, weights: Floats, key: Vector) -> Outcome:
        own, data = None, self.arrays[device]
        if self.kept is not None:
            on, before = self.kept.name(weights), self.kept.of(device)
            own = self.runtime.client_state(weights) if before is None else before.base(on)
        update, examples = _trained(self.runtime, weights, self._leaves[device], key, own)
        examples = examples or recipes.examples(data)
        self.counted()
        vector = update.vector
        facts = (vector, examples, update.loss, update.finite, checksum(vector))
        if self.kept is None or own is None or not update.finite:
            return Trained(*facts)
        return Trained(*facts, partial(self.kept.put, device, Kept(on, own, update.kept)))

    def counted(self) -> None:
        """Counts an update."""
        with self._counting:
            self._done += 1
            done = self._done
        self.on_update(done, self.runtime.manifest.clients_max)


def _trained(
    runtime: Runtime, weights: Floats, data: Any, key: Vector, own: Array | None
) -> tuple[Update, int]:
    """A device's update, in one call or by windows, and of windows the rows that were seen."""
    if not isinstance(data, WindowRows):
        return runtime.client_update(weights, data, key, own), 0
    made = train(runtime, weights, data, key, own)
    return made.update, made.rows
