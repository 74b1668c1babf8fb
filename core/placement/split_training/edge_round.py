"""An edge's part of a round that devices train with it, without I/O.

    part = EdgeRound(bundle, weights, frozen)
    part.trainings                           # what `TrainingHost` serves (`trainings`)
    part.total([(3, name), (7, other)], rng_key)

Each device has a copy of what is above in its own cut. When the round's updates are in, the edge
makes of each copy what its leaves moved by, clipped and rounded into the ring as the device's part
was and weighed alike, and adds these vectors to its sum: then that is the sum of whole updates. So
only those count whose other half is in the sum, and the coordinator reads no edge's part alone
where updates are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...common.errors import DelianError
from ...compiler.backends import Backend, Executable, compile_function
from ...compiler.ir import Array
from ...learning.bundle import Bundle
from ...learning.leaf import Leaf
from ...privacy.mechanisms.ring import RingPlan
from ...protocol.random_streams import device_key
from .device_steps import UPLOAD, uploaded
from .run_step import RunStep
from .step_sides import SplitError
from .trainings import Trainings

#: The edge's roundings are drawn by these and the round's key: they hide nothing from the edge.
_SECRET = b"delian split edge rounding".ljust(32, b"\0")


class EdgeRound:
    """One attempt at one edge.

    weights: the round's, f32[D]. frozen: the model's frozen leaves, in the manifest's order.
    before: an earlier round of the same bundle, whose programs are used again. Raises DelianError.
    """

    def __init__(
        self,
        bundle: Bundle,
        weights: Array,
        frozen: Sequence[Array],
        backend: Backend = "native",
        before: EdgeRound | None = None,
    ) -> None:
        manifest = bundle.manifest
        if weights.shape != (manifest.dimension,):
            raise DelianError(f"{weights.size} weights of a model of {manifest.dimension}")
        self._leaves = views(weights, manifest.state)
        self._ring = manifest.ring
        if before is None:
            self.upload: Executable = compile_function(bundle.programs[UPLOAD], backend)
            self.trainings = _trainings(bundle, frozen, backend)
        else:
            self.upload, known = before.upload, before.trainings
            self.trainings = _trainings(bundle, frozen, backend, known)
        self.trainings.begin(dict(enumerate(self._leaves)))

    @property
    def plan(self) -> RingPlan:
        """Of the sums."""
        return self._ring

    def total(self, parts: Sequence[tuple[int, bytes]], rng_key: bytes) -> Array:
        """The sum of what this edge's leaves moved by, u32[L], of weight zero.

        parts: devices, with the names of their trainings. Raises SplitError where one is not here
        whole, or moved by what is no number.
        """
        total = np.zeros(self._ring.length, np.uint32)
        for device, name in parts:
            found = self.trainings.moved(peer_name(device), name)
            if found is None:
                raise SplitError(f"device-{device}: its training is not here, or not finished")
            examples, moved = found
            key = np.array(device_key(rng_key, device, _SECRET), np.uint32)
            vector, finite = uploaded(self.upload, moved, self._leaves, examples, key)
            if not finite:
                raise SplitError(f"device-{device}: what is above moved by no finite numbers")
            vector[-1] = 0  # the device's own part has its weight
            total += vector
        return total


def _trainings(
    bundle: Bundle, frozen: Sequence[Array], backend: Backend, known: Trainings | None = None
) -> Trainings:
    """Those of a run's step, by all cuts of its plan. known: others, whose programs are used."""
    step = RunStep.of(bundle)
    if step is None:
        raise DelianError("the run's bundle has no step that an edge could train")
    cuts = [cut for number, cut in enumerate(step.cuts) if not step.is_alone(number)]
    named = dict(zip((leaf.name for leaf in bundle.manifest.frozen), frozen, strict=True))
    ways = None if known is None else known.ways
    return Trainings(
        step.bundle, cuts[0], backend=backend, frozen=named, others=cuts[1:], ways=ways
    )


def peer_name(device: int) -> str:
    """What a device is called on its stream (`certificates.PeerIdentity.common_name`)."""
    return f"device-{device}"


def views(vector: Array, leaves: Sequence[Leaf]) -> list[Array]:
    """The leaves of a flat vector."""
    out, at = [], 0
    for leaf in leaves:
        out.append(vector[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    return out
