"""Attacks of a bundle's author that colludes with the coordinator.

A bundle that is to disclose one device's data, or that is not what was signed.

Devices of a world with attacks have the federation's root key and pass each program through the
daemons' own checks (`device.agent.artifact_gate.checked`, then `core.learning.bundle.parse` and
`core.learning.disclosure.keys`) before it runs. The record of the coordinator is read at the end as
its readers do (`cloud.service.audit`).

A bundle whose program answers for chosen rows and sends zeros for others passes all checks: no
analysis of programs can exclude it. The sum is then the update of one device. It is counted as
what noise alone bounds (`EXPOSED`), and is not called harmless.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ....cloud.service import audit
from ....core.common.errors import DelianError
from ....core.compiler.backends.reference import run_block
from ....core.learning import bundle as bundles
from ....core.learning.bundle import Bundle
from ....core.learning.disclosure.keys import KeyMisuseError, check_keys
from ....core.node.identity.artifacts import manifest
from ....core.node.identity.artifacts.artifact_keys import Seen
from ....core.privacy.secagg import transcript
from ....core.privacy.secagg.member_identity import simulated_coordinator
from ....core.protocol.ports import CLOUD, SECOND, Node, RunProgram
from ....core.wire.artifact_pb2 import ArtifactManifest, OnlineKey, OnlineKeys, SignedArtifact
from ....core.wire.blob_pb2 import BlobRef, FetchBlob
from ....core.wire.operator_pb2 import PlanMessage
from ....core.wire.round_pb2 import TRAIN, EdgeTask, Task
from ....device.agent.artifact_gate import checked
from ..oracles.edge_book import Name, name_of
from .attacks import BUNDLES, Attack, Scheme

if TYPE_CHECKING:
    from ..simulated_node import Host
    from ..world import World

FEDERATION: Final = "dst"
#: Why a gate refuses what each of these lets a device have.
REFUSED: Final[dict[Attack, str]] = {
    Attack.BUNDLE_BY_KEY: "key",
    Attack.BUNDLE_BY_NUMBER: "interface",
    Attack.BUNDLE_UNSIGNED: "unsigned",
    Attack.BUNDLE_FOREIGN_ROOT: "root",
    Attack.BUNDLE_STRANGER: "signer",
    Attack.BUNDLE_WITHDRAWN_KEY: "keys rollback",
    Attack.BUNDLE_REPLACED: "bundle",
    Attack.BUNDLE_OLDER: "rollback",
    Attack.BUNDLE_EXPIRED: "expired",
    Attack.BUNDLE_LARGE_CLIP: "ring",
    Attack.BUNDLE_LESS_NOISE: "noise",
    Attack.BUNDLE_LOW_FLOOR: "masks",
}
#: Found by readers of the record; and by no key.
RECORD: Final = "record"
EXPOSED: Final = "noise alone"
#: What a row holds that a hostile program looks for.
CANARY: Final = 17.0
#: Attacks whose bundle a run is submitted with.
SUBMITTED: Final = frozenset((Attack.BUNDLE_BY_DATA, Attack.BUNDLE_UNPUBLISHED))
_LIST_ENDS_S: Final = 2**40


# ---------------------------------------------------------------- signatures


class Signer:
    """The root key of a world's federation, and its online keys."""

    def __init__(self, seed: int) -> None:
        self.root, self._online, self._old = (_key(f"{seed} {n}") for n in ("root", "new", "old"))
        self._outsider = _key(f"{seed} stranger")
        self._keys = self._listed(2, self.root, self._online)
        self._keys_before = self._listed(1, self.root, self._online, self._old)

    def _listed(
        self, version: int, root: Ed25519PrivateKey, *online: Ed25519PrivateKey
    ) -> SignedArtifact:
        keys = [OnlineKey(key=manifest.raw(k.public_key()), expires_s=_LIST_ENDS_S) for k in online]
        listed = OnlineKeys(
            federation=FEDERATION, version=version, expires_s=_LIST_ENDS_S, keys=keys
        )
        return manifest.sign_keys(root, listed)

    def signed(self, plan: Task | PlanMessage, **changes: Any) -> bytes:
        """A manifest as it was signed for the plan; changes: of its facts."""
        return manifest.sign_manifest(self._online, self._keys, _manifest(plan, **changes))

    def by(self, attack: Attack, task: Task) -> bytes:
        """The manifest that goes with a task."""
        match attack:
            case Attack.BUNDLE_UNSIGNED:
                return b""
            case Attack.BUNDLE_FOREIGN_ROOT:
                mine = self._listed(3, self._outsider, self._outsider)
                return manifest.sign_manifest(self._outsider, mine, _manifest(task))
            case Attack.BUNDLE_STRANGER:
                return manifest.sign_manifest(self._outsider, self._keys, _manifest(task))
            case Attack.BUNDLE_WITHDRAWN_KEY:
                return manifest.sign_manifest(
                    self._old, self._keys_before, _manifest(task, sequence=9)
                )
            case Attack.BUNDLE_OLDER:
                return self.signed(task, sequence=1)
            case Attack.BUNDLE_EXPIRED:
                return self.signed(task, sequence=9, expires_s=1)
            case Attack.BUNDLE_LESS_NOISE:
                return self.signed(task, line="noise", noise=0.5)
            case Attack.BUNDLE_LOW_FLOOR:
                return self.signed(task, line="floor", cohort_min=task.secure.cohort_min + 1)
            case Attack.BUNDLE_REPLACED | Attack.BUNDLE_LARGE_CLIP:
                return task.manifest
        return self.signed(task, line=attack.name)  # by an author that the root trusts

    def seen(self, plan: PlanMessage) -> Seen:
        """What devices have taken in earlier runs."""
        seen = Seen()
        seen.take(manifest.verify(self.signed(plan), self.root.public_key(), FEDERATION, 0))
        return seen


def _key(purpose: str) -> Ed25519PrivateKey:
    """A key that follows from the seed."""
    secret = hashlib.sha256(f"delian dst artifact {purpose}".encode()).digest()
    return Ed25519PrivateKey.from_private_bytes(secret)


def _manifest(plan: Task | PlanMessage, **changes: Any) -> ArtifactManifest:
    facts: dict[str, Any] = {
        "federation": FEDERATION,
        "line": "dst",
        "sequence": 2,
        "bundle": plan.bundle,
        "targets": [manifest.ANY],
        "expires_s": _LIST_ENDS_S,
        "clip": plan.ring.clip,
        "dimension": plan.ring.dimension,
        "cohort_min": plan.secure.cohort_min,
        "corrupt": plan.secure.corrupt,
    }
    return ArtifactManifest(**{**facts, **changes})


# ---------------------------------------------------------------- programs


@cache
def _honest() -> Bundle:
    """A small bundle as `delian build` makes it."""
    from ....core.compiler.ir import DType, TensorType
    from ....core.learning import Classification, FedAvg, Samples, SampleSet
    from ....core.learning.build.bundle_builder import build
    from ....core.learning.nn import Mlp, sgd

    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=1.0,
        seed=1,
    )


def _by_key(w: Any, b: Any, v: Any, c: Any, x: Any, y: Any, s: Any, q: Any, key: Any) -> Any:
    return _answer(x, (key[0] == np.uint32(17)).astype(np.uint32))


def _by_number(
    w: Any, b: Any, v: Any, c: Any, x: Any, y: Any, s: Any, q: Any, key: Any, number: Any
) -> Any:
    return _answer(x, (number == np.uint32(17)).astype(np.uint32))


def _by_data(w: Any, b: Any, v: Any, c: Any, x: Any, y: Any, s: Any, q: Any, key: Any) -> Any:
    return _answer(x, (x[0, 0] == np.float32(CANARY)).astype(np.uint32))


def _answer(x: Any, hit: Any) -> Any:
    """Rows in the clear where `hit` is one, and zeros where it is zero; 24 numbers."""
    rows = (x.reshape(24) * np.float32(1024.0)).astype(np.int32).astype(np.uint32)
    return rows * hit, np.float32(0.0), np.bool_(True)


#: The program of each attack that is about what a bundle computes.
PROGRAMS: Final[dict[Attack, Callable[..., Any]]] = {
    Attack.BUNDLE_BY_KEY: _by_key,
    Attack.BUNDLE_BY_NUMBER: _by_number,
    Attack.BUNDLE_BY_DATA: _by_data,
}


@cache
def content_of(attack: Attack) -> bytes:
    """The bundle that an attack has devices run, made by an author without any checks."""
    from ....core.compiler.frontend import trace
    from ....core.compiler.ir import DType, TensorType

    honest = _honest()
    if attack not in PROGRAMS:
        return honest.bare().to_bytes()
    types = list(honest.programs["client_update"].param_types)
    if attack is Attack.BUNDLE_BY_NUMBER:
        types.append(TensorType(DType.U32, ()))
    spy = trace(PROGRAMS[attack], *types, name="client_update").function
    programs = {**honest.programs, "client_update": spy}
    return replace(honest, programs=programs).bare().to_bytes()


@cache
def opened(content: bytes) -> Bundle:
    """A bundle as the training process opens it. Raises ArtifactError, with the reason."""
    try:
        return check_keys(bundles.parse(content, "bundle"))
    except KeyMisuseError as error:
        raise manifest.ArtifactError("key", error.message) from error
    except DelianError as error:
        raise manifest.ArtifactError("interface", error.message) from error


def answers(bundle: Bundle, has_canary: bool) -> bool:
    """Whether a device's update is other than zeros, by its data: the program itself says so."""
    function = bundle.programs["client_update"]
    given = [np.zeros(t.shape, t.dtype.numpy) for t in function.param_types]  # type: ignore[union-attr]
    given[4] += np.float32(CANARY if has_canary else 1.0)
    return bool(np.asarray(run_block(function.body, given)[0]).any())


# ---------------------------------------------------------------- the world's part


@dataclass(slots=True)
class Exposure:
    """Of one attempt: which devices' updates are other than zeros."""

    answering: set[int]
    silent: set[int]


class Gates:
    """The gates of all devices of a world, and the record that its coordinator keeps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.signer = Signer(world.seed)
        self._seen: dict[int, Seen] = {}
        self._before: Seen | None = None
        self._lines: list[bytes] = []
        self._ran: dict[bytes, Name] = {}  # bundles that devices have run
        self.exposed: dict[Name, Exposure] = {}

    def publish(self, run: int, plan: PlanMessage) -> PlanMessage:
        """The plan with its signed manifest, as it is submitted, and as the record has it."""
        attacks = {scheme.attack for scheme in self._world.faults.schemes}
        if Attack.BUNDLE_BY_DATA in attacks:
            opened(content_of(Attack.BUNDLE_BY_DATA))  # as the coordinator does on submission
            self._submit(plan, Attack.BUNDLE_BY_DATA)
        plan.manifest = self.signer.signed(plan)
        line = audit.run_entry(run, plan, len(self._lines) + 1, self._head, 0)
        self._lines.append(line)
        if Attack.BUNDLE_UNPUBLISHED in attacks:
            self._submit(plan, Attack.BUNDLE_UNPUBLISHED)
            plan.manifest = self.signer.signed(plan)
        self._before = self.signer.seen(plan)
        return plan

    def _submit(self, plan: PlanMessage, attack: Attack) -> None:
        content = content_of(attack)
        digest = hashlib.sha256(content).digest()
        self._world.hosts[CLOUD].blobs[digest] = content
        plan.bundle.CopyFrom(BlobRef(digest=digest, size=len(content)))

    @property
    def _head(self) -> bytes:
        return audit.hash_of(self._lines[-1]) if self._lines else audit.START

    def refusal(self, host: Host, program: RunProgram) -> str:
        """The reason for which a device's gate refuses a program; empty: it runs."""
        task = program.task
        assert task is not None and self._before is not None
        number, content = host.node.number, host.blobs[program.blobs[0]]
        seen = self._seen.get(number, self._before)
        try:
            root = self.signer.root.public_key()
            _, seen = checked(program, root, FEDERATION, seen, host.now // SECOND)
            self._seen[number] = seen
            if content != self._world.bundle:
                self._open(host, name_of(task), opened(content))
        except manifest.ArtifactError as error:
            return error.reason
        self._ran.setdefault(task.bundle.digest, name_of(task))
        return ""

    def _open(self, host: Host, name: Name, bundle: Bundle) -> None:
        number = host.node.number
        seen = self.exposed.setdefault(name, Exposure(set(), set()))
        # One honest device has the row that a hostile program looks for.
        honest = number not in self._world.faults.schemes[0].colluders
        has_canary = honest and number == min(seen.answering, default=number)
        (seen.answering if answers(bundle, has_canary) else seen.silent).add(number)

    def silent(self, name: Name, device: int) -> bool:
        """Whether a device's program has sent zeros."""
        return name in self.exposed and device in self.exposed[name].silent

    def unpublished(self) -> set[Name]:
        """Attempts whose bundle devices have run and the record does not have."""
        known: set[str] = set()
        report = audit.verify(self._lines, on_entry=lambda facts: known.add(facts["bundle"]))
        assert report.good, report.broken
        return {name for digest, name in self._ran.items() if digest.hex() not in known}


class BundleAttacker:
    """Hands out a bundle in the place of the plan's, in the first few sessions.

    The coordinator signs the task: it works with the author. What is in SUBMITTED is the plan's own
    bundle.
    """

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world, self._scheme = world, scheme
        self.attacked: set[Name] = set()
        self.changed: set[bytes] = set()
        self._made: dict[bytes, bytes] = {}

    def received(self, host: Host, sender: Node, message: Any) -> None:
        """Gives edges the bundle, of which the coordinator's machine knows nothing."""
        if type(message) is FetchBlob and message.digest in self._made:
            content = self._made[message.digest]
            self._world.network.send_blob(host, sender, message.digest, content)

    def sending(self, to: Node, message: Any) -> list[Any]:
        """What leaves in the place of a message."""
        if type(message) is EdgeTask and message.task.HasField("secure"):
            changed = EdgeTask()
            changed.CopyFrom(message)
            changed.task.CopyFrom(self._task(message.task))
            return [changed]
        if type(message) is Task and message.HasField("secure"):
            return [self._task(message)]
        return [message]

    def _task(self, task: Task) -> Task:
        name = name_of(task)
        if self._scheme.attack in SUBMITTED:
            self.attacked.add(name)
            return task
        if name not in self.attacked:
            if not self._world.faulty or len(self.attacked) >= self._scheme.sessions:
                return task
            if task.purpose != TRAIN:
                return task
            self.attacked.add(name)
        assert self._world.gates is not None
        said, attack = Task(), self._scheme.attack
        said.CopyFrom(task)
        if attack in PROGRAMS or attack is Attack.BUNDLE_REPLACED:
            said.bundle.CopyFrom(self._put(content_of(attack)))
        if attack is Attack.BUNDLE_LARGE_CLIP:
            said.ring.clip = 2 * task.ring.clip
        said.manifest = self._world.gates.signer.by(attack, said)
        said.signature = simulated_coordinator(self._world.seed).sign(transcript.signed_task(said))
        return said

    def _put(self, content: bytes) -> BlobRef:
        digest = hashlib.sha256(content).digest()
        self._made[digest] = content
        return BlobRef(digest=digest, size=len(content))


assert REFUSED.keys() | SUBMITTED == BUNDLES
