"""The step of a run that devices train together with their edges, inside of the run's bundle.

    bundle = build(..., split=with_step(SplitSettings(...)))     # the coordinator's side
    step = RunStep.of(bundle)                                    # on each device and edge
    piece = step.plan.pieces[step.best(link, now)]               # the cut of a round

A bundle of such a run has, besides the programs that train the whole model on a device, the program
of one step (`cut.training_step`) and a plan: which cut is the best at which bandwidth of the
device's link (`StepCosts.plan`). It is solved once, where the run is made; a device compares the
few cuts of the plan by what its own link was measured to be. No other cut is accepted, so where
`on_device` keeps the first blocks below, no edge can ask for less.

The numbers of trained leaves in the step are those of the state, so all leaves of a round travel
as in any run, and each side takes those that it owns. A cut costs nothing to move.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...common.errors import DelianError
from ...compiler.ir import Function, TensorType
from ...compiler.ir_codec import content_hash
from ...learning.algorithm import Algorithm
from ...learning.build.bundle_builder import Split
from ...learning.bundle import (
    SPLIT_PARTS_MAX,
    SPLIT_PROGRAMS,
    SPLIT_STEP,
    Bundle,
)
from ...learning.task import Task, has_statistics
from ..cut.cut import DEVICE, EDGE, Cut
from ..cut.link_model import LinkProfile
from ..cut.owned_weights import kept_below
from ..cut.placement_plan import PlacementPlan
from ..cut.profile import NodeProfile
from ..cut.program_split import Parts
from ..cut.training_step import TrainingStep, step_of
from .step_bundle import StepBundle
from .step_placement import StepCosts

#: A cut is left for one that takes less time by this share.
GAIN = 0.1
#: Pieces of a plan; those that a link comes across are few.
PIECES_MAX = 256
_HINT = "build the run's bundle again"


@dataclass(frozen=True)
class SplitSettings:
    """How a run's step is cut."""

    profiles: tuple[NodeProfile, NodeProfile]
    """The device's and the edge's (`delian profile`, or `costs.nominal`)."""
    link: LinkProfile
    """What a device takes its link for before it has measured it. Cuts are looked for at all
    bandwidths, with this ratio of up to down and this latency.
    """
    on_device: tuple[str, ...] = ()
    """Patterns of leaves whose readers run on the device."""
    labels_stay: bool = False
    """Whether labels, and what reveals them, stay on the device."""
    wires: tuple[str, ...] = ("f32",)
    """How tensors may be written where they cross."""
    memory: tuple[int | None, int | None] = (None, None)
    """Bytes of the device and the edge; None: as the profiles say."""


def with_step(settings: SplitSettings, model: Any, frozen: Sequence[str] = ()) -> Split:
    """What adds the step to a bundle (`bundle_builder.build`).

    model: of the run, a tree of arrays or types. frozen: patterns of its leaves that are not
    trained. Raises DelianError where the step cannot be cut, or no cut is better than to train on
    the device alone.
    """

    def add(bundle: Bundle, task: Task, algorithm: Algorithm) -> Bundle:
        if has_statistics(task, model):
            raise DelianError(
                "two tiers train a model without running statistics",
                "train without `split`: devices then train the whole model",
            )
        x, y = _types(bundle.programs[SPLIT_PROGRAMS[0]])[:2]
        stays = settings.labels_stay
        step = kept_below(
            step_of(task, algorithm.local, model, x, y, stays=stays, name=SPLIT_STEP, frozen=frozen)
        )
        made = StepBundle(task.name, bundle.manifest.state, step, bundle.manifest.frozen)
        made.check("split")
        costs = StepCosts(
            made,
            settings.profiles,
            on_device=settings.on_device,
            wires=settings.wires,
            memory=() if settings.memory == (None, None) else settings.memory,
        )
        plan = costs.plan([settings.link])
        cuts = [made.parts(Cut.from_bytes(piece.cut)) for piece in plan.pieces]
        if all(parts.top == DEVICE for parts in cuts):
            raise DelianError(
                "two tiers: at every bandwidth a step is fastest on the device alone",
                "lower split.device_gflops or split.device_memory_mib, or train without `split`",
            )
        programs = _device_programs(cuts)
        said = {
            "states": step.states,
            "ties": [list(pair) for pair in step.ties],
            "ceilings": sorted(step.ceilings.items()),
            "epochs": algorithm.epochs,
            "parts": len(programs),
            "plan": json.loads(plan.to_json()),
        }
        return replace(
            bundle,
            manifest=replace(bundle.manifest, split=said),
            programs={**bundle.programs, SPLIT_STEP: step.function, **programs},
        )

    return add


def _types(function: Function) -> list[TensorType]:
    return [t for t in function.result_types if isinstance(t, TensorType)]


def _device_programs(cuts: Sequence[Parts]) -> dict[str, Function]:
    """The device's parts of all cuts, each once."""
    found: dict[str, Function] = {}
    for parts in cuts:
        for part in parts.of(DEVICE) if parts.top != DEVICE else ():
            found.setdefault(content_hash(part.program), part.program)
    if not 1 <= len(found) <= SPLIT_PARTS_MAX:
        raise DelianError(
            f"the cuts of a step have {len(found)} parts on the device; at most {SPLIT_PARTS_MAX}",
            "name more of the model in split.on_device",
        )
    return {f"split_part_{number}": program for number, program in enumerate(found.values())}


@dataclass(frozen=True)
class RunStep:
    """The step of a bundle, and the cuts that a round may have."""

    bundle: StepBundle
    epochs: int
    """Passes over a device's rows."""
    plan: PlacementPlan

    @classmethod
    def of(cls, bundle: Bundle) -> RunStep | None:
        """That of a run's bundle; None: its devices train by themselves.

        Raises DelianError for a bundle whose step and plan are not whole.
        """
        said, manifest = bundle.manifest.split, bundle.manifest
        if not said:
            return None
        try:
            step = TrainingStep(
                function=bundle.programs[SPLIT_STEP],
                leaves=len(manifest.state),
                states=int(said["states"]),
                ties=tuple((int(a), int(b)) for a, b in said["ties"]),
                ceilings={int(v): int(tier) for v, tier in said["ceilings"]},
                frozen=len(manifest.frozen),
            )
            made = StepBundle(manifest.task, manifest.state, step, manifest.frozen)
            plan = PlacementPlan.from_json(json.dumps(said["plan"]), "split.plan")
            epochs = int(said["epochs"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DelianError(f"the bundle's step is incomplete: {error}", _HINT) from error
        made.check("split")
        if not 1 <= len(plan.pieces) <= PIECES_MAX or epochs < 1:
            raise DelianError(f"{len(plan.pieces)} cuts and {epochs} passes of a step", _HINT)
        return cls(made, epochs, plan)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Of each piece. Raises CutError for a cut that is not the step's."""
        return tuple(Cut.from_bytes(piece.cut) for piece in self.plan.pieces)

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """Of each piece."""
        return tuple(self.bundle.parts(cut) for cut in self.cuts)

    def is_alone(self, number: int) -> bool:
        """Whether the device does all of a step in this piece."""
        return self.parts[number].top != EDGE

    def best(self, link: LinkProfile, now: int | None = None) -> int:
        """The piece with the fastest step over a link; the present one unless another gains.

        now: the piece of the last round; None: there was none.
        """

        def seconds(number: int) -> float:
            return self.plan.pieces[number].seconds([link])

        found = min(range(len(self.plan.pieces)), key=seconds)
        if now is not None and seconds(found) > (1.0 - GAIN) * seconds(now):
            return now
        return found
