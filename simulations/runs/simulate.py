"""A scenario, run in one process.

Data, bundle, federation, and what its devices' models are worth after each round
(`simulation_run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.common.collector import unsearched

with unsearched():
    from ...core.common.heap import share_heap
    from ...core.compiler import debugging
    from ..scenario.datasets import load_data
    from ..scenario.scenario_file import with_chain
    from .simulation_run import Simulation

if TYPE_CHECKING:
    from ...core.compiler.backends import Backend
    from ...core.learning import Algorithm, Chain
    from ...core.learning.data import FederatedData
    from ..scenario.scenario import Scenario
    from .result import Event, SimulationResult


def simulate(
    scenario: Scenario,
    *,
    algorithm: Algorithm | None = None,
    chain: Chain | None = None,
    data_path: Path | None = None,
    data: FederatedData | None = None,
    threads: int | None = None,
    backend: Backend = "native",
    on_event: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    resume: Path | None = None,
    forget: bool = True,
    baselines: bool = False,
) -> SimulationResult:
    """Runs a scenario to its last round, or until `stop()` says so.

    Args:
        algorithm: stands in for the scenario's. Of the scenario's settings the batch size stays,
        and the number of local steps that virtual time counts. chain: stands in for the keys that
        say what an update goes through. data_path: stands in for the scenario's own data file.
        data: what devices hold, where the caller has it already. threads: how many devices train at
        once; the result is the same for any number. backend: "native" (compiled C), "reference"
        (NumPy), or "torch:cuda" and the like, where as many devices as train at once are one
        program (`core.learning.cohort_program`). on_event: called with everything that a progress
        view shows; called from several threads, one at a time. stop: asked between devices; the
        round's bookkeeping is done before the run ends. resume: a folder of the run's own. While
        the run goes on it is kept there, every few seconds; one that was kept there and did not
        come to its end goes on from where it was kept, and ends as if it had never stopped. It is
        gone when the run ends; or where `forget` is False it stays, and of a run that was kept
        before it is kept after the last round too: no training is done again. baselines: whether
        the run is compared with devices that train alone, and with all rows in one place.

    With `dl.debug()` models and algorithms run as plain Python, one device at a time on the thread
    of the caller, whatever `threads` and `backend` are.

    Raises:
        DelianError: the data, the model or the scenario do not fit together, or what is in
        `resume` is another run's.
        KeyboardInterrupt: `stop()` says so before a run that is resumed is where it was.
    """
    began = time.perf_counter()
    if chain is not None:
        scenario = with_chain(scenario, chain)
        if algorithm is not None and (server := chain.get("server")) is not None:
            algorithm = replace(algorithm, server=server.made())
    share_heap()  # before there are threads, each of which would make one of its own
    with debugging.users_warnings() if debugging.on else nullcontext():
        return Simulation(
            scenario,
            algorithm,
            data or load_data(scenario, data_path),
            threads=threads,
            backend=backend,
            on_event=on_event,
            stop=stop,
            began=began,
            resume=resume,
            forget=forget,
            compares=baselines,
        ).run()
