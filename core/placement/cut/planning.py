"""Plans are made here: the cut for every bandwidth of the device's link (`plan.PlacementPlan`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ...compiler.ir import Function
from . import breakpoints
from .link_model import LinkProfile
from .placement_plan import Piece, PlacementPlan
from .problem import Placement, PlacementError, Problem
from .profile import NodeProfile
from .program_costs import (
    MEMORY_HINT,
    TIGHTER_MAX,
    Model,
    Options,
    memory_of,
    problem_of,
    tightened,
)
from .program_split import Parts
from .solver import SECONDS_DEFAULT, solve

#: Bandwidths that a plan is made for, bytes a second: 50 kbit/s to 10 Gbit/s.
LOW, HIGH = 50e3 / 8, 10e9 / 8
#: Where the slowest stage counts, whose cost is no line in the bandwidth, as many are solved.
_GRID = 33


def plan_of(
    function: Function,
    resident: Collection[int],
    profiles: Sequence[NodeProfile],
    links: Sequence[LinkProfile],
    options: Options | None = None,
    *,
    bundle: str = "",
    program: str = "",
    objective: str = "latency",
    low: float = LOW,
    high: float = HIGH,
    seconds: Sequence[Sequence[float]] = (),
) -> PlacementPlan:
    """The plan of a program.

    The best cut for each bandwidth of the first link from `low` to `high` bytes a second up; down
    is as many times faster as it is in `links`.

    bundle, program, objective: what the plan says of itself. The rest as in `problem_of`. Raises
    PlacementError where nothing satisfies the options.
    """
    model = problem_of(function, resident, profiles, links, options, seconds)
    if not links:
        raise PlacementError("a plan has at least two tiers", "give a profile of the edge")
    for _ in range(TIGHTER_MAX):
        found = _swept(model.problem, low, high)
        pieces = [_piece(model, *part, bundle, program) for part in found]
        again = model
        for piece, (_, _, placement) in zip(pieces, found, strict=True):
            again = tightened(again, placement, piece.memory)
        if again is model:
            return PlacementPlan(
                bundle,
                program,
                tuple(p.digest() for p in profiles),
                tuple(links),
                objective,
                tuple(_joined(pieces)),
            )
        model = again
    raise PlacementError("no placement was found whose parts fit the memory", MEMORY_HINT)


def _swept(problem: Problem, low: float, high: float) -> list[tuple[float, float, Placement]]:
    """(from, to, the best placement there) over the first hop's bandwidth."""
    if not problem.objective.throughput:
        pieces = breakpoints.sweep(problem, 0, low, high)
        return [(p.low, p.high, p.placement) for p in pieces]
    ratio = (high / low) ** (1 / _GRID)
    out = []
    for k in range(_GRID):
        start = low * ratio**k
        hop = problem.hops[0]
        up = start * ratio**0.5
        here = replace(hop, up=up, down=up * hop.down / hop.up)
        changed = replace(problem, hops=(here, *problem.hops[1:]))
        out.append((start, start * ratio, solve(changed, seconds=SECONDS_DEFAULT / _GRID)))
    return out


def _piece(
    model: Model, low: float, high: float, placement: Placement, bundle: str, program: str
) -> Piece:
    cut = model.cut(placement, bundle, program)
    parts = model.parts(cut)
    exact = model.of_cut(cut)
    problem = model.with_wires(cut.wires)
    hops = range(len(problem.hops))
    wires_s = [0.0 for _ in hops]
    for c in exact.crossings:
        wires_s[c.hop] += problem.tensors[c.tensor].wires[c.wire].seconds
    return Piece(
        low=low,
        high=high,
        cut=cut.to_bytes(),
        tiers=exact.tier_seconds,
        up=exact.up_bytes,
        down=exact.down_bytes,
        wires_s=tuple(wires_s),
        memory=memory_of(parts, problem.tiers),
        messages=_messages(parts, hops) if problem.returns else (),
    )


def _messages(parts: Parts, hops: Iterable[int]) -> tuple[int, ...]:
    return tuple(sum(message.hop == hop for message in parts.messages) for hop in hops)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours with one cut are one piece."""
    out: list[Piece] = []
    for piece in pieces:
        if out and out[-1].cut == piece.cut:
            out[-1] = replace(out[-1], high=piece.high)
        else:
            out.append(piece)
    return out
