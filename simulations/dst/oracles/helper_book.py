"""What the auditor knows of helpers: which seeds each has opened, and what comes of their batches.

helper    A helper opens a seed in one batch and in no other, and adds up the masks of `cohort_min`
          different devices or more. An edge that has lost its disk is another helper.
sum       A batch is, to the last bit, the sum of the devices that its pieces name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....cloud.protocol.coordinator_state import RunState
from ....core.privacy.mechanisms import ring
from ....core.protocol.ports import Effect, Event, Received, RunProgram, Vector
from ....core.protocol.run_names import number_of
from ....core.wire.helper_pb2 import HelpRequest
from .edge_book import Name, OracleFailure, name_of

if TYPE_CHECKING:
    from .auditor import Auditor

#: A sum: its attempt, its elements, its devices; and what each of its updates counts.
Weighed = tuple[Name, Vector, tuple[int, ...]]
#: How a run says that a helper gave nothing.
_WHYS = (" does not unmask", " has not said that it helps")
#: What an honest helper refuses: a request for a key that it lost with its disk.
_REFUSALS = ("", ": malformed")


class HelperBook:
    """All helpers of a world. Raises OracleFailure."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self._opened: dict[tuple[int, int, Name, int], int] = {}  # edge, life, attempt, device

    def handled(self, edge: int, life: int, handled: list[tuple[Event, list[Effect]]]) -> None:
        """An edge has handled these events, and they are durable."""
        for event, effects in handled:
            if not (isinstance(event, Received) and isinstance(event.message, HelpRequest)):
                continue
            if any(isinstance(e, RunProgram) and e.program == "masks" for e in effects):
                self._open(edge, life, event.message)

    def _open(self, edge: int, life: int, request: HelpRequest) -> None:
        devices = set()
        for part in request.parts:
            name = name_of(part.task)
            _check(part.task.run == request.run, f"{name} in a batch of {request.run}")
            for one in part.devices:
                devices.add(one.device)
                batch = self._opened.setdefault((edge, life, name, one.device), request.batch)
                what = f"edge {edge} opens {name}, {one.device} in {batch} and {request.batch}"
                _check(batch == request.batch, what)
        least = self._auditor.runs[number_of(request.run)].plan.cohort_min
        _check(len(devices) >= least, f"edge {edge} unmasks {devices}")

    def sums(self, run: RunState, settled: bool) -> tuple[list[Weighed], list[float]]:
        """The sums behind a step, each with what its updates count.

        settled: no party is hostile, so batches must be what their devices meant; else what is
        wrong is in a batch's first piece.
        """
        sums: list[Weighed] = []
        factors: list[float] = []
        pieces = iter(run.batch)
        for batch in run.opening:
            own = [next(pieces) for _ in range(batch.pieces)]
            names = [(run.run, p.round, p.attempt) for p in own]
            meant = [self._auditor.sum_of(n, p.unused) for n, p in zip(names, own, strict=True)]
            plan = self._auditor.attempts[names[0]].plan
            rest = ring.settled(batch.total - np.sum(meant, 0, np.uint32), plan)
            if settled and rest.any():
                raise OracleFailure("sum", f"batch {batch.number} is not the sum of {names}")
            meant[0] = ring.settled(meant[0] + rest, plan)
            for name, total, piece in zip(names, meant, own, strict=True):
                sums.append((name, total, tuple(piece.unused)))
                factors.append(batch.factor)
        return sums, factors


def is_honest(why: str) -> bool:
    """Whether honest helpers may give nothing for such a reason."""
    return any(why.endswith(end + refusal) for end in _WHYS for refusal in _REFUSALS)


def helps(plan: Any) -> bool:
    """Whether helpers unmask a run's updates."""
    return plan.secure is not None and len(plan.secure.helpers) > 0


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise OracleFailure("helper", what)
