"""The folders of the signers of artifacts, and a device's record of what was signed.

ROOT/root.pem    the root key, mode 0600: keep this folder off every network
ROOT/root.pub    its public half: for devices
ROOT/keys        the last list of online keys that it has signed

ONLINE/key.pem   an online key, mode 0600: where runs are submitted
ONLINE/key.pub   its public half: for the root to sign
ONLINE/keys      the list that the root has signed
ONLINE/last      the highest sequence that was given out

a device's artifacts.json    the highest list and the highest sequence of each line
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ....privacy.task_limits import MANIFEST_BYTES_MAX
from ....wire import artifact_pb2
from ....wire.blob_pb2 import BlobRef
from ....wire.operator_pb2 import PlanMessage
from ..pki.certificates import KEY_BYTES_MAX, IdentityError, check_federation, key_pem, read_file
from ..pki.ledger import private_folder, write_file
from . import manifest as m

DAY_S = 24 * 3600
KEYS_VALID_S = 365 * DAY_S
MANIFEST_VALID_S = 90 * DAY_S
#: Lines that a device stores; only a holder of an online key can fill them.
LINES_MAX = 1024
_SUM_BYTES = 9  # of the line with the sum
SEEN_BYTES_MAX = 1 << 20
_HALF = 2**63  # sequences stay below


class RootFolder:
    """Where the root key is. Raises IdentityError where it is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = m.load_private(
            read_file(folder / "root.pem", KEY_BYTES_MAX), str(folder / "root.pem")
        )

    @classmethod
    def create(cls, folder: Path) -> RootFolder:
        """Makes a root key. Raises IdentityError where there is one."""
        _write_pair(folder, "root")
        return cls(folder)

    @property
    def public(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def sign(
        self,
        federation: str,
        online: Mapping[str, Ed25519PublicKey],
        *,
        valid_s: int = KEYS_VALID_S,
        now_s: float | None = None,
    ) -> artifact_pb2.OnlineKeys:
        """Signs a list of online keys, by name, one version above the last.

        It is in `keys` on return. Keys that are not in it do not count any more. Raises
        IdentityError.
        """
        now = int(time.time() if now_s is None else now_s)
        before = self._last()
        if before is not None and before.federation != federation:
            raise IdentityError(
                f"{self.folder} is the root of {before.federation}", "give each federation its own"
            )
        keys = artifact_pb2.OnlineKeys(
            federation=check_federation(federation),
            version=before.version + 1 if before is not None else 1,
            expires_s=now + valid_s,
            keys=[
                artifact_pb2.OnlineKey(key=m.raw(key), expires_s=now + valid_s, name=name)
                for name, key in sorted(online.items())
            ],
        )
        signed = m.sign_keys(self._key, keys)
        write_file(self.folder / "keys", signed.SerializeToString(deterministic=True))
        return keys

    def online(self) -> dict[str, Ed25519PublicKey]:
        """The keys of the last list, by name. Raises IdentityError."""
        last = self._last()
        if last is None:
            return {}
        return {k.name: Ed25519PublicKey.from_public_bytes(k.key) for k in last.keys}

    def _last(self) -> artifact_pb2.OnlineKeys | None:
        path = self.folder / "keys"
        if not path.exists():
            return None
        # Whether it has ended does not matter for its number.
        return m.verify_keys(m.read(read_file(path, MANIFEST_BYTES_MAX)), self.public, 0.0)


class OnlineFolder:
    """Where an online key is. Raises IdentityError where it is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key: Ed25519PrivateKey = _private(folder / "key.pem")

    @classmethod
    def create(cls, folder: Path) -> OnlineFolder:
        """Makes an online key, which counts when the root has signed it.

        Raises IdentityError where there is one.
        """
        _write_pair(folder, "key")
        return cls(folder)

    @property
    def public(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def keys(self) -> tuple[artifact_pb2.SignedArtifact, artifact_pb2.OnlineKeys]:
        """The list that the root has signed, which must name this key.

        Raises IdentityError. The root's signature is not checked: devices do that.
        """
        path = self.folder / "keys"
        if not path.exists():
            raise IdentityError(
                f"{self.folder} has no list of online keys",
                f"sign {self.folder / 'key.pub'} with `delian artifact root-sign`, and put what it"
                f" writes at {path}",
            )
        signed = m.read(read_file(path, MANIFEST_BYTES_MAX))
        keys = m.keys_of(signed)
        if all(key.key != m.raw(self.public) for key in keys.keys):
            raise IdentityError(
                f"{path} does not name the key in this folder",
                f"sign {self.folder / 'key.pub'} with `delian artifact root-sign`, or put the key"
                " that the list names here",
            )
        return signed, keys

    def sign(
        self,
        line: str,
        bundle: BlobRef,
        *,
        clip: float,
        dimension: int,
        cohort_min: int = 0,
        corrupt: float = 0.0,
        noise: float = 0.0,
        central: bool = False,
        targets: tuple[str, ...] = (m.ANY,),
        limits: artifact_pb2.ArtifactLimits | None = None,
        valid_s: int = MANIFEST_VALID_S,
        now_s: float | None = None,
    ) -> bytes:
        """Signs a manifest for a bundle; what comes back travels in the plan.

        Its sequence is above all that this folder gave out, and not below the time in seconds: so
        it grows too where the folder was restored from a backup. Raises IdentityError.
        """
        now = int(time.time() if now_s is None else now_s)
        signed, keys = self.keys()
        manifest = artifact_pb2.ArtifactManifest(
            federation=keys.federation,
            line=line,
            sequence=max(self._last() + 1, now),
            bundle=bundle,
            targets=targets,
            issued_s=now,
            expires_s=min(now + valid_s, keys.expires_s),
            limits=limits,
            clip=clip,
            dimension=dimension,
            cohort_min=cohort_min,
            corrupt=corrupt,
            noise=noise,
            central=central,
        )
        if manifest.expires_s <= now:
            raise IdentityError(
                "the list of online keys has ended", "sign a new one: delian artifact root-sign"
            )
        content = m.sign_manifest(self._key, signed, manifest)
        write_file(self.folder / "last", str(manifest.sequence).encode())
        return content

    def _last(self) -> int:
        path = self.folder / "last"
        if not path.exists():
            return 0
        text = read_file(path, 32).decode("ascii", "replace")
        if not text.isdigit() or int(text) >= _HALF:
            raise IdentityError(f"{path} is damaged", "delete it: the time is a sequence as well")
        return int(text)


def sign_plan(online: OnlineFolder, plan: PlanMessage, line: str | None = None) -> bytes:
    """Signs the manifest of a plan, its bundle and ring being set.

    line: what the bundle is a version of; None: the run's name. Raises IdentityError.
    """
    return online.sign(
        line or plan.name or plan.labels["task"],
        plan.bundle,
        clip=plan.ring.clip,
        dimension=plan.ring.dimension,
        cohort_min=plan.secure.cohort_min,
        corrupt=plan.secure.corrupt,
        noise=plan.ring.noise,
        central=plan.ring.central,
    )


@dataclass(slots=True)
class Seen:
    """What a device has taken."""

    version: int = 0
    """Of the highest list of keys; 0: none was taken."""
    keys: bytes = b""
    """SHA-256 of that list; empty: none was taken."""
    lines: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """By line, the sequence and SHA-256 of its highest manifest."""

    def take(self, found: m.Verified) -> bool:
        """Stores it; whether there was something new in it.

        Raises ArtifactError, and changes nothing, for what is older than what was seen, or another
        one of the same number.
        """
        keys, manifest = found.keys, found.manifest
        list_now = (keys.version, found.keys_digest)
        line_now = (manifest.sequence, found.manifest_digest)
        if _is_behind(list_now, (self.version, self.keys)):
            raise m.ArtifactError(
                "keys rollback",
                f"list {keys.version} of online keys, where list {self.version} was seen",
            )
        before = self.lines.get(manifest.line, (0, b""))
        if _is_behind(line_now, before):
            raise m.ArtifactError(
                "rollback",
                f"`{manifest.line}` {manifest.sequence}, where {before[0]} was seen",
                "runs that go on side by side need different lines: delian run submit --line",
            )
        if (list_now, line_now) == ((self.version, self.keys), before):
            return False
        if manifest.line not in self.lines and len(self.lines) >= LINES_MAX:
            raise m.ArtifactError("lines", f"more than {LINES_MAX} lines were signed")
        self.version, self.keys = list_now
        self.lines[manifest.line] = line_now
        return True

    def copy(self) -> Seen:
        return Seen(self.version, self.keys, dict(self.lines))

    def store(self, path: Path) -> None:
        """Durable on return: JSON, and a line with its CRC-32. Raises IdentityError."""
        lines = {line: [s, digest.hex()] for line, (s, digest) in sorted(self.lines.items())}
        content = {"version": self.version, "keys": self.keys.hex(), "lines": lines}
        body = json.dumps(content, indent=1).encode() + b"\n"
        write_file(path, b"%b%08x\n" % (body, crc32(body)), 0o600)

    @classmethod
    def load(cls, path: Path) -> Seen:
        """What was stored; nothing where there is no file.

        Raises IdentityError for a damaged one: a device that forgot would take what was withdrawn.
        """
        if not path.exists():
            return cls()
        try:
            content = read_file(path, SEEN_BYTES_MAX)
            if not content.endswith(b"}\n"):  # a file of before has no sum
                content, total = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
                if total != b"%08x\n" % crc32(content):
                    raise ValueError("another sum")
            said = json.loads(content)
            lines = {str(k): (int(s), bytes.fromhex(d)) for k, (s, d) in said["lines"].items()}
            return cls(int(said["version"]), bytes.fromhex(said["keys"]), lines)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise IdentityError(
                f"{path} is damaged", "restore it; deleting it lets older bundles in again"
            ) from None


def _is_behind(now: tuple[int, bytes], seen: tuple[int, bytes]) -> bool:
    return now[0] < seen[0] or (now[0] == seen[0] and now[1] != seen[1])


def _write_pair(folder: Path, name: str) -> None:
    path = folder / f"{name}.pem"
    if path.exists():
        raise IdentityError(f"{path} is there already", "name another folder")
    private_folder(folder)
    key = m.new_key()
    write_file(path, key_pem(key), 0o600)
    write_file(folder / f"{name}.pub", m.public_pem(key.public_key()))


def _private(path: Path) -> Ed25519PrivateKey:
    return m.load_private(read_file(path, KEY_BYTES_MAX), str(path))
