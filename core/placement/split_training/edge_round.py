"""An edge's part of a round that devices train with it, without I/O.

    part = EdgeRound(bundle, weights, frozen, rng_key)
    part.trainings                           # what `TrainingHost` serves (`trainings`)
    part.total([(3, name), (7, other)])

Each device has a copy of what is above in its own cut. When it has trained, the edge makes of the
copy what its leaves moved by, clipped and rounded into the ring as the device's part is and weighed
alike, and lets the copy go. A device whose copy gives no such vector has not trained: nothing of a
device is found out when its update is in a sum already. When the round's updates are in, the edge
adds these vectors to its sum: then that is the sum of whole updates. So only those count whose
other half is in the sum, and the coordinator reads no edge's part alone where updates are masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from .trainings import Finish, Trainings

#: The edge's roundings are drawn by these and the round's key: they hide nothing from the edge.
_SECRET = b"delian split edge rounding".ljust(32, b"\0")


class EdgeRound:
    """One attempt at one edge.

    weights: the round's, f32[D]. frozen: the model's frozen leaves, in the manifest's order.
    rng_key: the round's. before: an earlier round of the same bundle, whose programs are used
    again. Raises DelianError.
    """

    def __init__(
        self,
        bundle: Bundle,
        weights: Array,
        frozen: Sequence[Array],
        rng_key: bytes,
        backend: Backend = "native",
        before: EdgeRound | None = None,
    ) -> None:
        manifest = bundle.manifest
        if weights.shape != (manifest.dimension,):
            raise DelianError(f"{weights.size} weights of a model of {manifest.dimension}")
        self._leaves = views(weights, manifest.state)
        self._ring, self._rng_key = manifest.ring, rng_key
        known = None if before is None else before.trainings
        self.upload: Executable = (
            compile_function(bundle.programs[UPLOAD], backend) if before is None else before.upload
        )
        self.trainings: Trainings = _trainings(bundle, frozen, backend, self._part, known)
        self.trainings.begin(dict(enumerate(self._leaves)))

    @property
    def plan(self) -> RingPlan:
        """Of the sums."""
        return self._ring

    def total(self, parts: Sequence[tuple[int, bytes]]) -> Array:
        """The sum of what this edge's leaves moved by, u32[L], of weight zero.

        parts: devices, with the names of their trainings, which were whole. Raises SplitError where
        one is not here.
        """
        total = np.zeros(self._ring.length, np.uint32)
        for device, name in parts:
            kept = self.trainings.kept(peer_name(device), name)
            if kept is None:
                raise SplitError(f"device-{device}: its training is not here, or not finished")
            total += kept
        return total

    def _part(self, node: str, examples: int, moved: Mapping[int, Array]) -> Array:
        """What one device's copy moved by, u32[L], of weight zero. Raises SplitError."""
        key = np.array(device_key(self._rng_key, device_of(node), _SECRET), np.uint32)
        vector, finite = uploaded(self.upload, moved, self._leaves, examples, key)
        if not finite:
            raise SplitError(f"{node}: what is above moved by no finite numbers")
        vector[-1] = 0  # the device's own part has its weight
        return vector


def _trainings(
    bundle: Bundle,
    frozen: Sequence[Array],
    backend: Backend,
    finish: Finish,
    known: Trainings | None,
) -> Trainings:
    """Those of a run's step, by all cuts of its plan. known: others, whose programs are used."""
    step = RunStep.of(bundle)
    if step is None:
        raise DelianError("the run's bundle has no step that an edge could train")
    cuts = [cut for number, cut in enumerate(step.cuts) if not step.is_alone(number)]
    named = dict(zip((leaf.name for leaf in bundle.manifest.frozen), frozen, strict=True))
    ways = None if known is None else known.ways
    return Trainings(
        *(step.bundle, cuts[0]),
        backend=backend,
        frozen=named,
        others=cuts[1:],
        ways=ways,
        finish=finish,
    )


def peer_name(device: int) -> str:
    """What a device is called on its stream (`certificates.PeerIdentity.common_name`)."""
    return f"device-{device}"


def device_of(peer: str) -> int:
    """The device that is called so. Raises SplitError for another node."""
    tier, _, number = peer.partition("-")
    if tier != "device" or not number.isdecimal():
        raise SplitError(f"{peer}: only devices train with an edge")
    return int(number)


def views(vector: Array, leaves: Sequence[Leaf]) -> list[Array]:
    """The leaves of a flat vector."""
    out, at = [], 0
    for leaf in leaves:
        out.append(vector[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    return out
