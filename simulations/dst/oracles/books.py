"""What the auditor writes down of runs and attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....cloud.protocol.run_plan import RunPlan
from ....core.privacy.mechanisms import ring
from .edge_book import Name, OracleFailure


@dataclass(slots=True)
class AttemptBook:
    """What is known of an attempt."""

    key: bytes
    plan: ring.RingPlan
    evaluates: bool
    called: int
    """Its run's name on the wire."""
    asked: dict[int, tuple[int, ...]] = field(default_factory=dict)
    taken: dict[int, int | None] = field(default_factory=dict)
    """Edge -> the part of its sum that comes next; None: no more."""
    devices: set[int] = field(default_factory=set)
    """In the sums that the coordinator has acknowledged."""
    failures: set[int] = field(default_factory=set)
    """Devices that failed, in those sums."""
    unused: set[int] = field(default_factory=set)
    """Those of `devices` that are in no model yet."""
    closed: bool = False
    failed: bool = False
    """Its session has."""
    told: bool = False
    """Its round's record is there."""

    @property
    def selected(self) -> list[int]:
        return sorted(d for devices in self.asked.values() for d in devices)


@dataclass(slots=True)
class RunBook:
    """What is known of a run."""

    plan: RunPlan
    weights: bytes
    newest: tuple[int, int] = (0, 0)
    called: int = 0  # its newest name on the wire
    ordered: bytes | None = None
    paused: bool = False
    cancelled: bool = False
    over: bool = False
    models: int = 0
    #: Failed attempts at a model since the last one.
    failures: int = 0
    batch: frozenset[tuple[Name, frozenset[int]]] | None = None

    @property
    def is_to_give_up(self) -> bool:
        """Whether a synchronous run has failed as often in a row as it may.

        (In a buffered run, updates that come end a row too.)
        """
        return not self.plan.buffered and self.failures >= self.plan.round.attempts_max

    def check_given_up(self) -> None:
        """The run gives up. Raises OracleFailure when it might have gone on."""
        if self.failures < self.plan.round.attempts_max:
            what = f"run {self.plan.run} gives up after {self.failures} failures in a row"
            raise OracleFailure("attempt", what)


def cohorts(attempts: Mapping[Name, AttemptBook], run: int, round: int) -> list[AttemptBook]:
    """The cohorts that a round is cut into, of its newest attempt."""
    return [
        book
        for name, book in attempts.items()
        if name[:2] == (run, round) and not (book.told or book.evaluates)
    ]
