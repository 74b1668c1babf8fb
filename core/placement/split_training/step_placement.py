"""The cut of a training step by what it costs, and when it is worth moving.

    costs = StepCosts(bundle, profiles, on_device=("embedding.*", "blocks.0.*"))
    placed = costs.at(link)                      # the step that takes the fewest seconds
    cut = costs.next_cut(placed.cut, now, steps=50)

The problem is that of any program (`cut.program_costs`), with work that comes back down, the ties
and ceilings of the step, and new values of weights that stay where they are made. Frozen leaves
count in the memory of each tier whose part reads them, and in nothing else: they have no gradient,
so no seconds are spent on one, and are not sent in a step.

A cut that moves is paid for once. Trained leaves that change their side are sent over the link, and
the device fetches the frozen leaves that it has not had. So a round of so many steps takes

    stay   steps * seconds(old cut)
    move   steps * seconds(new cut) + moved bytes / bandwidth

and the cut moves where the second is less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...learning.leaf_roles import matches
from ..cut.cut import DEVICE, Cut
from ..cut.link_model import LinkProfile
from ..cut.placement_plan import PlacementPlan
from ..cut.planning import HIGH, LOW, plan_of
from ..cut.problem import Objective
from ..cut.profile import NodeProfile
from ..cut.program_costs import (
    Model,
    Options,
    Placed,
    hop_of,
    placed,
    problem_of,
    weight_roots,
)
from ..cut.program_split import Parts
from ..cut.solver import solve
from .step_bundle import PROGRAM, StepBundle


@dataclass(frozen=True, slots=True)
class Moved:
    """What changes its side between two cuts."""

    up: tuple[int, ...]
    """Numbers of the trained leaves that the device gives away."""
    down: tuple[int, ...]
    """Of those that it is given."""
    fetched_above: tuple[str, ...]
    """Frozen leaves that the upper side reads now and did not before."""
    fetched_below: tuple[str, ...]
    """The same of the device."""


def moved(bundle: StepBundle, before: Parts, after: Parts) -> Moved:
    """What changes its side where the cut of a step moves."""

    def more(new: Sequence[int], old: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(set(new) - set(old)))

    def fetched(above: bool) -> tuple[str, ...]:
        new = more(bundle.frozen_of(after, above), bundle.frozen_of(before, above))
        return tuple(bundle.frozen[k].name for k in new)

    owned = [bundle.owned_by(parts, above=True) for parts in (before, after)]
    return Moved(
        up=more(owned[1], owned[0]),
        down=more(owned[0], owned[1]),
        fetched_above=fetched(True),
        fetched_below=fetched(False),
    )


def shared_out(
    bundle: StepBundle, parts: Parts, leaves: Mapping[int, Array]
) -> tuple[dict[int, Array], dict[int, Array]]:
    """All trained leaves, by number, as the device and what is above it begin a round with them."""
    below, above = (bundle.owned_by(parts, up) for up in (False, True))
    return {i: leaves[i] for i in below}, {i: leaves[i] for i in above}


class StepCosts:
    """What the cuts of a step cost between these nodes.

    bundle: the step. profiles: the device's and its edge's. on_device: patterns of names of leaves,
    trained or frozen, whose readers run on the device: the embedding and the first blocks, so that
    what goes up is not a look-up in a table that the edge has as well. wires: how tensors may be
    written where they cross. memory: bytes by tier; None: no limit; empty: those of the profiles.
    seconds: by tier, those of each operation; empty: what the profiles say.

    Raises DelianError for a pattern that fits no leaf; PlacementError where profiles and limits do
    not fit one another.
    """

    def __init__(
        self,
        bundle: StepBundle,
        profiles: Sequence[NodeProfile],
        *,
        on_device: Sequence[str] = (),
        wires: Sequence[str] = ("f32",),
        memory: Sequence[int | None] = (),
        objective: Objective | None = None,
        seconds: Sequence[Sequence[float]] = (),
    ) -> None:
        step = bundle.step
        self.bundle, self._profiles, self._seconds = bundle, tuple(profiles), seconds
        self.options = Options(
            objective=objective or Objective(),
            wires=tuple(wires),
            ceilings=step.ceilings,
            pins=_pins(bundle, on_device),
            memory=tuple(memory),
            returns=True,
            owned=step.owned,
            updates=step.updates,
            ties=step.ties,
        )
        # Any link will do here: `model` puts in another.
        self._model = self._problem([LinkProfile(HIGH, HIGH, 0.0)] * (len(profiles) - 1))

    def _problem(self, links: Sequence[LinkProfile]) -> Model:
        step = self.bundle.step
        return problem_of(
            step.function, step.resident, self._profiles, links, self.options, self._seconds
        )

    def model(self, *links: LinkProfile) -> Model:
        """The placement problem with these links, the device's first."""
        known = self._model
        if len(links) != len(known.problem.hops):
            raise DelianError(f"{len(links)} links between {len(self._profiles)} tiers")
        joules = self._profiles[0].joules_per_byte or 0.0
        above = zip(links, self._profiles[1:], strict=True)
        hops = tuple(hop_of(link, upper.call_s, joules) for link, upper in above)
        return replace(known, problem=replace(known.problem, hops=hops))

    def at(self, *links: LinkProfile) -> Placed:
        """The cut that costs least. Raises PlacementError where nothing fits the limits."""
        found = placed(self.model(*links), solve)
        cut = replace(found.cut, bundle=self.bundle.content_hash(), program=PROGRAM)
        return replace(found, cut=cut)

    def plan(
        self, links: Sequence[LinkProfile], low: float = LOW, high: float = HIGH
    ) -> PlacementPlan:
        """The cuts for all bandwidths of the device's link, in bytes a second up."""
        step = self.bundle.step
        return plan_of(
            step.function,
            step.resident,
            self._profiles,
            links,
            self.options,
            bundle=self.bundle.content_hash(),
            program=PROGRAM,
            low=low,
            high=high,
            seconds=self._seconds,
        )

    def seconds(self, cut: Cut, *links: LinkProfile) -> float:
        """What the objective says of one step by a cut. Raises PlacementError, CutError."""
        return self.model(*links).of_cut(cut).cost

    def moving_bytes(
        self, before: Cut, after: Cut, fetched: Collection[str] = ()
    ) -> tuple[int, int]:
        """Bytes up and down the device's link where the cut moves.

        fetched: names of the frozen leaves that the device has from earlier cuts.
        """
        change = moved(self.bundle, self.bundle.parts(before), self.bundle.parts(after))
        held = zip(self.bundle.frozen, self.bundle.frozen_parts, strict=True)
        sizes = {leaf.name: part.size for leaf, part in held}
        new = sum(sizes[name] for name in change.fetched_below if name not in fetched)
        up, down = (
            sum(4 * self.bundle.leaves[i].size for i in way) for way in (change.up, change.down)
        )
        return up, down + new

    def next_cut(
        self, now: Cut, *links: LinkProfile, steps: int, fetched: Collection[str] = ()
    ) -> Cut:
        """The cut of the next round of so many steps: the cheapest, or the one that there is.

        fetched: as in `moving_bytes`. Raises PlacementError where nothing fits the limits.
        """
        best = self.at(*links)
        if best.cut.labels == now.labels:
            return now
        up, down = self.moving_bytes(now, best.cut, fetched)
        moving = up / links[0].up + down / links[0].down
        saved = steps * (self.seconds(now, *links) - best.placement.cost)
        return best.cut if saved > self.options.objective.latency * moving else now


def _pins(bundle: StepBundle, on_device: Sequence[str]) -> dict[int, int]:
    """The operations that read these leaves, or what is made of them alone."""
    names = [x.name for x in (*bundle.leaves, *bundle.frozen)]
    numbers = [*range(bundle.step.leaves), *bundle.step.resident]
    marks = matches(on_device, names)
    wanted = {i for i, mark in zip(numbers, marks, strict=True) if mark}
    graph = bundle.step.graph()
    roots = weight_roots(graph)
    return {
        n: DEVICE
        for n, read in enumerate(graph.operands)
        if graph.moves[n] and any(not wanted.isdisjoint(roots[v]) for v in read)
    }
