"""The mean of a buffered run over updates of several ages; `buffered` has the theory."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.learning.aggregate.stages import staleness_weight, step_of
from ...core.privacy.mechanisms import ring
from ...core.protocol.ports import Floats, Vector
from .coordinator_state import Attempt

__all__ = ["delta", "drop", "staleness_weight", "step_of", "take"]


def delta(pieces: Iterable[Attempt], round: int, plan: ring.RingPlan) -> tuple[Floats, float]:
    """The step f32[D] of round t + 1, and the sum of weights behind it.

    pieces: of waves, each with a sum. Raises RingError where no honest devices made one of them.
    """
    totals = _totals(pieces, round, plan)
    return step_of([(staleness_weight(tau), total) for tau, total in totals], plan)


def _totals(pieces: Iterable[Attempt], round: int, plan: ring.RingPlan) -> list[tuple[int, Vector]]:
    """(tau, sum u32[D+1]): one for each model, or more where the ring holds no more in one sum."""
    totals: list[tuple[int, Vector]] = []
    room = 0
    for piece in sorted(pieces, key=lambda p: (p.round, p.attempt)):
        tau, total = round - piece.round, piece.total
        assert total is not None and piece.session is None
        if totals and totals[-1][0] == tau and room >= len(piece.unused):
            ring.add(totals[-1][1], total)
        else:
            totals.append((tau, total.copy()))
            room = plan.clients_max
        room -= len(piece.unused)
    return totals


def take(wave: Attempt) -> Attempt:
    """What is here of a wave, taken out of it."""
    piece = Attempt(
        round=wave.round,
        attempt=wave.attempt,
        evaluates=False,
        weights=wave.weights,
        opened_ns=wave.opened_ns,
        ends_ns=wave.ends_ns,
        total=wave.total,
        unused=wave.unused,
        helpers=wave.helpers,
        seeds=wave.seeds,
        name=wave.name,
        task=wave.task,
    )
    drop(wave)
    return piece


def drop(wave: Attempt) -> None:
    """Forgets what is here of a wave."""
    wave.total, wave.unused, wave.seeds = None, [], []
