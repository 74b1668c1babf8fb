"""What a run leaves in a folder so that it can be resumed.

Its log (`history`), and as they were after the round with which that ends, the models in use, the
states of the server's optimiser and of devices, and the observer's.

    lock            held by the run that works in the folder
    log             appended to
    model-HEX       weights f32[D], under their name
    memory-HEX      the state of the server's optimiser
    states          client states (`client_states`)
    kept            what of the others is valid, in JSON; ends with its own SHA-256

`kept` is put in place last, whole, and everything that it names is on the disk by then: a process
that is killed, at any moment, leaves the one before or the one after, and what it names. What a
torn write has left in the log behind the bytes that it names is written over.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.files import read_at_most, sync_file, write_whole
from ...core.compiler import tree
from ...core.node.storage.disk import FolderLock
from ...core.protocol.ports import Floats
from ..federation.trace import weights_name
from ..scenario.plan_tables import current

FORMAT = 1
LOG, KEPT, STATES = "log", "kept", "states"
_MODEL, _MEMORY = "model-", "memory-"
#: The log of some fifteen million updates. A run whose log is as long is kept no more.
LOG_BYTES_MAX = 2**30
KEPT_BYTES_MAX = 2**28
_SHA_BYTES = 32
#: Arrays longer than that are identified by sums, like weights (`trace`).
_SHORT_BYTES = 2**16
#: Of what differs, values so long are shown, and so many.
_SHOWN_MAX, _DIFFERING_MAX = 60, 8
_DAMAGED_HINT = "it cannot be resumed: start it again, into another folder"


@dataclass(frozen=True, slots=True)
class Saved:
    """A run as it was kept."""

    rounds: int
    """That were made."""
    log: bytes
    """Its entries."""
    facts: Mapping[str, Any]
    """What else there is."""
    weights: Mapping[bytes, Floats]
    """By name."""
    memories: Mapping[bytes, bytes]
    """By name."""


class Resumable:
    """The folder. facts: what must be the same for the run to be resumed, by name."""

    def __init__(self, folder: Path, facts: Callable[[], Mapping[str, Any]]) -> None:
        self.folder, self._tell = folder, facts
        self._lock: FolderLock | None = None
        self._length, self._hash = 0, hashlib.sha256()
        self._files: set[str] = set()

    @functools.cached_property
    def _told(self) -> dict[str, Any]:
        """As JSON gives it back. Asked for when it is needed: to look at all data takes time."""
        told: dict[str, Any] = json.loads(json.dumps(self._tell()))
        return told

    @property
    def states(self) -> Path:
        """The file of client states."""
        return self.folder / STATES

    def states_made(self) -> Path:
        """The same, in a folder that is there and this process's own.

        Raises OSError, DelianError where another process works in it.
        """
        self._take()
        return self.states

    def load(self) -> Saved | None:
        """The run that was kept here; None where there is none.

        Raises DelianError where it was another run, where something is damaged, or where the run
        still goes on.
        """
        if not (self.folder / KEPT).exists():
            return None
        try:
            self._take()
        except OSError as error:
            raise DelianError(
                f"cannot write into {self.folder}: {error.strerror}", "a run that goes on is kept"
            ) from None
        try:
            return self._load()
        except (KeyError, TypeError, ValueError, AttributeError):
            self.close()
            raise self._damaged(KEPT) from None
        except BaseException:
            self.close()
            raise

    def _load(self) -> Saved:
        said = self._said()
        before = {**said["told"]}
        if "scenario" in before:
            before["scenario"] = current(before["scenario"])
        differing = list(_differing(before, self._told))
        if differing:
            raise DelianError(
                f"the run in {self.folder} cannot be resumed: "
                + "; ".join(differing[:_DIFFERING_MAX]),
                "resume it as it was, or begin another run, into another folder",
            )
        log = self._read(LOG, LOG_BYTES_MAX)[: said["log_bytes"]]
        self._hash = hashlib.sha256(log)
        self._length = len(log)
        if self._hash.hexdigest() != said["log_sha256"]:
            raise self._damaged(LOG)
        weights, memories = {}, {}
        for name in said["models"]:
            content = self._read(_MODEL + name, said["model_bytes"])
            weights[bytes.fromhex(name)] = made = np.frombuffer(content, "<f4").astype(np.float32)
            if name not in (weights_name(made).hex(), hashlib.sha256(content).hexdigest()):
                raise self._damaged(_MODEL + name)
        for name, size in said["memories"].items():
            memories[bytes.fromhex(name)] = content = self._read(_MEMORY + name, size)
            if hashlib.sha256(content).hexdigest() != name:
                raise self._damaged(_MEMORY + name)
        self._files = {*(_MODEL + n for n in said["models"])}
        self._files |= {*(_MEMORY + n for n in said["memories"])}
        return Saved(said["rounds"], log, said["facts"], weights, memories)

    def keep(
        self,
        rounds: int,
        pending: bytes,
        weights: Mapping[bytes, Floats],
        memories: Mapping[bytes, bytes],
        facts: Mapping[str, Any],
    ) -> None:
        """Keeps a run after a round.

        pending: what has come to its log. Raises OSError; then the run is as it was kept before,
        and `pending` is to be given again.
        """
        if self._length + len(pending) > LOG_BYTES_MAX:
            raise OSError(f"the log would be longer than {LOG_BYTES_MAX} bytes")
        self._take()
        self._append(pending)
        digest = self._hash.copy()
        digest.update(pending)
        files = {_MODEL + n.hex(): w.astype("<f4", copy=False).data for n, w in weights.items()}
        files |= {_MEMORY + n.hex(): memoryview(m) for n, m in memories.items()}
        for name, content in files.items():
            if name not in self._files:
                write_whole(self.folder / name, bytes(content), durable=True)
        said = {
            "format": FORMAT,
            "told": self._told,
            "rounds": rounds,
            "log_bytes": self._length + len(pending),
            "log_sha256": digest.hexdigest(),
            "models": [n.hex() for n in weights],
            "model_bytes": max((w.nbytes for w in weights.values()), default=0),
            "memories": {n.hex(): len(m) for n, m in memories.items()},
            "facts": dict(facts),
        }
        body = json.dumps(said).encode()
        sealed = body + hashlib.sha256(body).digest()
        if len(sealed) > KEPT_BYTES_MAX:
            raise OSError(f"what is to be kept is longer than {KEPT_BYTES_MAX} bytes")
        write_whole(self.folder / KEPT, sealed, durable=True)
        self._hash, self._length = digest, self._length + len(pending)
        self._files = set(files)
        with contextlib.suppress(OSError):
            self._sweep(keep={*files, LOG, KEPT, STATES, FolderLock.NAME})

    def close(self) -> None:
        """Lets another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """The run is over: nothing is left of all this, but what others have put there."""
        with contextlib.suppress(OSError, DelianError):
            if self.folder.is_dir():
                self._take()  # one that was killed while it was kept first has left drafts
                self._sweep(keep=set())
                self.folder.rmdir()
        self.close()

    def _take(self) -> None:
        if self._lock is None:
            self._lock = FolderLock(self.folder)

    def _append(self, pending: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
        fd = os.open(self.folder / LOG, flags, 0o666)
        try:
            os.ftruncate(fd, self._length)
            os.lseek(fd, self._length, os.SEEK_SET)
            rest = memoryview(pending)
            while rest:
                rest = rest[os.write(fd, rest) :]
            sync_file(fd)
        finally:
            os.close(fd)

    def _sweep(self, keep: set[str]) -> None:
        """Removes models that are in use no more, and drafts of a process that was killed."""
        fixed = {LOG, KEPT, STATES, FolderLock.NAME}
        for path in self.folder.iterdir():
            name = path.name.removeprefix(".")
            ours = name.split(".")[0] in fixed or name.startswith((_MODEL, _MEMORY))
            if ours and path.name not in keep:
                path.unlink(missing_ok=True)

    def _said(self) -> dict[str, Any]:
        content = self._read(KEPT, KEPT_BYTES_MAX)
        body, digest = content[:-_SHA_BYTES], content[-_SHA_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise self._damaged(KEPT)
        said: dict[str, Any] = json.loads(body)
        if said["format"] != FORMAT:
            raise DelianError(
                f"{self.folder} is of format {said['format']}, not {FORMAT}", _DAMAGED_HINT
            )
        return said

    def _read(self, name: str, limit: int) -> bytes:
        try:
            return read_at_most(self.folder / name, limit)
        except OSError as error:
            raise DelianError(
                f"cannot read {self.folder / name}: {error.strerror}", _DAMAGED_HINT
            ) from None

    def _damaged(self, name: str) -> DelianError:
        return DelianError(f"{self.folder / name} is damaged", _DAMAGED_HINT)


def packed(places: bytes) -> str:
    """Bytes as JSON has them."""
    return base64.b64encode(places).decode()


def unpacked(said: str) -> bytes:
    """The reverse of `packed`."""
    return base64.b64decode(said)


def content_of(arrays: Sequence[Any]) -> str:
    """The fingerprint of devices' data: a hash, of long arrays one of sums."""
    digest = hashlib.sha256()
    for device in arrays:
        for leaf in map(np.ascontiguousarray, tree.leaves(device)):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            content = leaf.reshape(-1).view(np.uint8)
            if leaf.nbytes > _SHORT_BYTES:
                whole = leaf.nbytes // 8 * 8
                digest.update(weights_name(content[:whole].view(np.uint32)))
                content = content[whole:]
            digest.update(content.data)
    return digest.hexdigest()


def _differing(before: Any, now: Any, key: str = "") -> Any:
    """In words, what is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            inner = f"{key}.{name}" if key else name
            yield from _differing(before.get(name), now.get(name), inner)
    elif before != now and all(_is_hash(value) for value in (before, now)):
        yield f"the {key} differ"
    elif before != now:
        yield f"{key} was {_short(before)} and is {_short(now)}"


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 2 * _SHA_BYTES


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
