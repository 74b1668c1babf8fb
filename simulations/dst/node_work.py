"""The computations of nodes: updates of small whole numbers, and models.

Each device and attempt has another update, so that a sum can be checked to the last bit. A model
records what it was made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.learning.aggregate import robust
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg import masks
from ...core.privacy.secagg.helper import masks_of
from ...core.protocol import ports
from ...core.wire import round_pb2
from ...core.wire.blob_pb2 import BlobRef
from .draws import Rng
from .oracles.edge_book import Name, name_of

if TYPE_CHECKING:
    from .simulated_node import Host
    from .world import World

#: What no message may carry: numbers of examples from here on, and this loss.
EXAMPLES = 0x5EC2E7_0000
LOSS = 1.2345678987654321e-77

_REASONS = (round_pb2.NO_DATA, round_pb2.OUT_OF_MEMORY, round_pb2.PROGRAM_FAILED)
_PATTERNS: dict[int, ports.Vector] = {}


def _pattern(length: int) -> ports.Vector:
    if length not in _PATTERNS:
        _PATTERNS[length] = np.arange(1, length + 1, dtype=np.uint32) * np.uint32(2654435761)
    return _PATTERNS[length]


def update_of(device: int, key: tuple[int, int], plan: RingPlan, at: Name) -> ports.Vector:
    """What a device uploads before it is masked.

    u32[D+1], each number from -512 to 511 and a weight of one half. Of an evaluation (dimension 4):
    small metrics, all with the same weight. Adding up what belongs to another attempt cannot be
    missed.
    """
    run, round, attempt = at
    mixed = device * 2654435761 + key[0] * 40503 + key[1]
    mixed += run * 613 + round * 331 + attempt * 97
    steps: ports.Vector = _pattern(plan.length) + np.uint32(mixed % 2**32)
    steps &= np.uint32(1023)
    if plan.dimension == 4:
        steps[-1] = int(plan.weight_scale) // 4
    else:
        steps -= np.uint32(512)
        steps[-1] = int(plan.weight_scale) // 2
    return steps


class Work:
    """Runs programs, in virtual time."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Rng(seed, "work")

    def run(self, host: Host, effect: ports.RunProgram) -> tuple[int, Callable[[], Any] | None]:
        """How long it takes in ns, and what then gives its outcome; None: it hangs."""
        for digest in effect.blobs:
            content = host.blobs[digest]
            intact = hashlib.sha256(content).digest() == digest
            self.world.check(intact, "blob", f"{host.node} works on a damaged blob")
        if effect.program == "server_update":
            return self._update(host, effect)
        if effect.program == "unmask":
            return self._unmask(effect)
        if effect.program == "masks":
            return self._masks(effect)
        return self._train(host, effect)

    def _train(self, host: Host, effect: ports.RunProgram) -> tuple[int, Callable[[], Any] | None]:
        faults, rng, world = self.world.faults, self.rng, self.world
        if stopped := self._stopped(host, effect):
            return ports.MS, lambda: stopped
        key, ring = effect.arguments
        due = ports.MS + rng.exponential_ns(faults.train_s)
        if world.faulty:
            due = int(due * host.slow)
            if rng.chance(faults.train_hangs):
                return 0, None
            if rng.chance(faults.train_fails):
                bad = self._bad(ring.dimension)
                return due, lambda: bad
        else:
            due = min(due, int(world.shape.round_s / 3 * ports.SECOND))
        plan = RingPlan(ring.clip, ring.clients_max, ring.dimension, ring.bits)
        device, words = host.node.number, (int(key[0]), int(key[1]))
        examples, at = EXAMPLES + device, name_of(effect.task)
        if world.gates is not None and world.gates.silent(at, device):
            nothing = update_of(device, words, plan, at)
            nothing[:-1] = 0
            return due, lambda: ports.Outcome(nothing, examples, LOSS)
        return due, lambda: ports.Outcome(update_of(device, words, plan, at), examples, LOSS)

    def _stopped(self, host: Host, effect: ports.RunProgram) -> ports.ProgramStopped | None:
        """What a device's gate makes of a program; None: it runs."""
        gates, attacker = self.world.gates, self.world.attackers
        if gates is None or attacker is None:
            return None
        reason = gates.refusal(host, effect)
        attacker.gated(host, name_of(effect.task), reason)
        if not reason:
            return None
        opened = reason in ("key", "interface")
        return ports.ProgramStopped(round_pb2.BAD_BUNDLE if opened else round_pb2.NOT_SIGNED)

    def _bad(self, dimension: int) -> ports.Outcome | ports.ProgramStopped:
        kind = self.rng.below(4)
        if kind == 0:
            return ports.Outcome(None, EXAMPLES, LOSS)
        if kind == 1:
            return ports.Outcome(None, EXAMPLES, LOSS, finite=False)
        if kind == 2:
            return ports.Outcome(np.ones(dimension, np.uint32), EXAMPLES, LOSS)
        return ports.ProgramStopped(self.rng.choice(_REASONS))

    def _update(self, host: Host, effect: ports.RunProgram) -> tuple[int, Callable[[], Any] | None]:
        world, rng = self.world, self.rng
        due = ports.MS + rng.exponential_ns(0.2)
        if world.faulty and rng.chance(world.faults.update_fails):
            return due, lambda: ports.ProgramStopped(round_pb2.PROGRAM_FAILED)
        given, weight = effect.arguments
        mean = robust.update_of(given)
        _, old, *memory = effect.blobs
        made = model(old, mean.tobytes() + repr(weight).encode(), mean.size)
        # The auditor knows by the ticket what is in the mean.
        world.auditor.will_make(effect, hashlib.sha256(made).digest())
        contents = [made]
        if world.shape.memory:
            contents.append(b"memory" + hashlib.sha256(b"".join([made, *memory])).digest())
        return due, lambda: ports.NewModel(*(self._put(host, content) for content in contents))

    def _unmask(self, effect: ports.RunProgram) -> tuple[int, Callable[[], Any] | None]:
        due = ports.MS + self.rng.exponential_ns(0.1)
        if self.world.faulty and self.rng.chance(self.world.faults.update_fails):
            return due, lambda: ports.ProgramStopped(round_pb2.OUT_OF_MEMORY)
        total, keys, suite = effect.arguments
        plain = np.array(total, np.uint32)
        masks.add(plain, keys, suite)
        return due, lambda: ports.Outcome(plain)

    def _masks(self, effect: ports.RunProgram) -> tuple[int, Callable[[], Any] | None]:
        due = ports.MS + self.rng.exponential_ns(0.1)
        if self.world.faulty and self.rng.chance(self.world.faults.update_fails):
            return due, lambda: ports.ProgramStopped(round_pb2.OUT_OF_MEMORY)
        total = masks_of(*effect.arguments)
        return due, lambda: ports.Outcome(total)

    def _put(self, host: Host, content: bytes) -> BlobRef:
        digest = hashlib.sha256(content).digest()
        host.blobs[digest] = content
        return BlobRef(digest=digest, size=len(content))


def model(parent: bytes, step: bytes, dimension: int) -> bytes:
    """The bytes of a model: 4 a number, a function of what it was made of."""
    return hashlib.shake_128(parent + step).digest(4 * dimension)
