"""A federation of 100,000 devices in one process, in virtual time.

Whether what is done for one device stays the same in so large a pool.

Training replays recorded updates (`simulations.runs.recorded`); all else is the machines' own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from ...core.common.errors import DelianError
from ...core.privacy.mechanisms.ring import RingPlan
from ..federation.federation import Federation
from ..federation.fleet import Fleet
from ..federation.round_records import RoundRecord
from ..runs.host_facts import peak_rss_mib
from ..runs.recorded import RecordedTraining, record
from ..scenario.federation_plan import FederationPlan

DEVICES, EDGES, ROUNDS, COHORT = 100_000, 20, 3, 10_000


@dataclass(frozen=True, slots=True)
class LargeRun:
    """What it took."""

    devices: int
    edges: int
    rounds: int
    updates: int
    events: int
    cpu_s: float
    """Of this process, without the recording."""
    wall_s: float
    virtual_s: float
    memory_mib: float | None
    """Its peak."""
    trace: str

    def facts(self) -> dict[str, object]:
        return asdict(self)


def run_large(
    devices: int = DEVICES,
    edges: int = EDGES,
    rounds: int = ROUNDS,
    cohort: int = COHORT,
    seed: int = 1,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> LargeRun:
    """Runs all rounds. Raises DelianError where the run gives up."""
    recording = record()
    plan = RingPlan(clip=recording.clip, clients_max=2 * cohort, dimension=recording.first.shape[0])
    federation_plan = FederationPlan.of(plan, Fleet(devices, edges), rounds=rounds, cohort=cohort)
    began, cpu = time.perf_counter(), time.process_time()
    with _calm():
        training = RecordedTraining(recording, plan)
        result = Federation(federation_plan, training, seed).run(on_round)
    if result.failed:
        raise DelianError(f"the run gave up: {result.failed}")
    return LargeRun(
        devices=devices,
        edges=edges,
        rounds=rounds,
        updates=result.updates,
        events=result.events,
        cpu_s=time.process_time() - cpu,
        wall_s=time.perf_counter() - began,
        virtual_s=result.virtual_ns / 1e9,
        memory_mib=peak_rss_mib(),
        trace=result.trace_hash,
    )


@contextmanager
def _calm() -> Iterator[None]:
    """Looks for garbage in cycles more seldom.

    With a million objects that live long, looking takes half of the time, and there is little to
    find.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
