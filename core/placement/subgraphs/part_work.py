"""What drivers of both machines share: the values of tickets, and runs in a pool of threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...wire.subgraph_pb2 import BoundaryTensor
from .machines.part_ports import Failure, Run, RunFinished, Work
from .part_programs import Model, Prepared, Programs
from .request_codec import Values, array_of, tensors_of

log = logging.getLogger("delian.subgraphs")


@dataclass(slots=True)
class Held:
    """The values of one ticket."""

    model: Model
    have: Values
    inputs: tuple[Array, ...] = ()
    """Inputs of the whole program, where they are here."""
    results: tuple[Array, ...] | None = None
    """Results of a run of the whole program."""
    cut: bytes = b""
    tensors: list[BoundaryTensor] | None = None
    """What goes out next, encoded already where a run was the reason."""
    key: tuple[int, int] = (0, 0)
    peer: int = 0

    def answer(self, prepared: Prepared | None) -> tuple[Array, ...]:
        """The results, from the inputs or a cut's values. Raises WireError for broken values."""
        if self.results is not None or prepared is None:
            assert self.results is not None
            return self.results
        ports = {p.value: p for p in prepared.answer}
        made = []
        for value in prepared.parts.results:
            if value in prepared.model.resident:
                made.append(self.model.leaves[value])
            else:
                port = ports.get(value)
                made.append(self.have[value] if port is None else array_of(self.have, port))
        return tuple(made)


class Workers:
    """Runs work off the event loop. finished: called on it with each run's end.

    smaller: makes of the inputs what the smaller program gives, where there is one.
    """

    def __init__(
        self,
        programs: Programs,
        held: Mapping[int, Held],
        cuts: Mapping[bytes, Prepared],
        finished: Callable[[RunFinished], None],
        threads: int,
        smaller: Callable[..., tuple[Array, ...]] | None = None,
    ) -> None:
        self.programs = programs
        self._held, self._cuts, self._finished = held, cuts, finished
        self._smaller = smaller
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="delian-parts")
        self._runs: dict[int, Future[None]] = {}

    def run(self, effect: Run) -> None:
        """Begins a run; `finished` is called at its end."""
        held = [self._held[t] for t in effect.tickets]
        prepared = self._cuts.get(effect.cut)
        loop = asyncio.get_running_loop()
        future = self._pool.submit(self._work, effect, prepared, held)
        self._runs[effect.run] = future

        def ended(done: Future[None]) -> None:
            loop.call_soon_threadsafe(self._ended, effect.run, done)

        future.add_done_callback(ended)

    def cancel(self, run: int) -> None:
        """A run is of no use: it does not begin, or ends as it would."""
        future = self._runs.get(run)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Waits for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ended(self, run: int, done: Future[None]) -> None:
        self._runs.pop(run, None)
        if done.cancelled():
            self._finished(RunFinished(run, Failure.FAILED))
            return
        fault = done.exception()
        if fault is None:
            self._finished(RunFinished(run))
        elif isinstance(fault, (DelianError, MemoryError)):
            log.warning("a part could not be run: %s", fault)
            self._finished(RunFinished(run, Failure.FAILED))
        else:
            log.error("a part failed", exc_info=fault)
            self._finished(RunFinished(run, Failure.FAILED))

    # ------------------------------------------------ on a thread of the pool

    def _work(self, effect: Run, prepared: Prepared | None, held: Sequence[Held]) -> None:
        self.programs.slowed(lambda: self._compute(effect, prepared, held))

    def _compute(self, effect: Run, prepared: Prepared | None, held: Sequence[Held]) -> None:
        if effect.work is Work.WHOLE:
            for one in held:
                program = self.programs.whole(one.model)
                one.results = program(*one.model.leaves, *one.inputs)
            return
        if effect.work is Work.SMALLER:
            assert self._smaller is not None
            for one in held:
                one.results = self._smaller(*one.inputs)
            return
        assert prepared is not None
        values = [one.have for one in held]
        if effect.work is Work.PART:
            assert effect.part is not None
            prepared.run(prepared.own()[effect.part], values)
        else:
            for part in prepared.rest():
                prepared.run(part, values)
        self._encode(effect, prepared, held)

    def _encode(self, effect: Run, prepared: Prepared, held: Sequence[Held]) -> None:
        """What goes over a link next, while still off the event loop."""
        ports = prepared.down
        if effect.part == 0 and prepared.ask:
            ports = prepared.ask
        for one in held:
            one.tensors = None
            if ports and all(p.value in one.have for p in ports):
                one.tensors = tensors_of(one.have, ports)
