"""The device's own model on disk: two slots, of which one is served.

    current                JSON: which slot is served
    a/, b/                 model.f32 (little-endian f32, the model's leaves in the bundle's order),
                           facts.json (what it is: its digest, its bundle, how it judged)
    bundles/HEX.bundle     what the slots' models are run with
    frozen/HEX             the parts of their frozen leaves: links to the blobs where that goes
    draft.f32              where training leaves a new model

A new model goes into the slot that is not served, and only when it is whole on the disk does
`current` name it; so there is always one to serve, whenever the power goes. On the device's own
query rows a new model must not be worse than the one that it replaces by more than a margin, or the
old one stays. The other slot keeps what was served before: `rollback` goes back to it.

One process writes (the agent); any number may read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ...core.common.files import sync_file, sync_folder, write_whole
from ...core.node.storage.disk import state_in

log = logging.getLogger("delian.device.agent.personal_model")

MODEL_BYTES_MAX = 1 << 30
FACTS_BYTES_MAX = 64 << 10
_SLOTS = ("a", "b")
_HEX = frozenset("0123456789abcdef")


class NoModelError(DelianError):
    """There is no personal model yet."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Mean losses and accuracies over the device's query rows.

    before: of the shared model. after: of the new personal one. present: of the one that is served,
    None where it was not judged.
    """

    loss_before: float
    loss_after: float
    accuracy_before: float
    accuracy_after: float
    count: float
    """Rows; with none there is nothing to judge by."""
    loss_present: float | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A model that can be served."""

    name: str
    model: Path
    bundle_path: Path
    digest: str
    """SHA-256 of the model, hexadecimal."""
    bundle: str
    """Of the bundle's file."""
    made_ms: int
    """Unix time."""
    judgement: Judgement
    frozen: tuple[Path, ...] = ()
    """The parts of the model's frozen leaves, in the bundle's order."""


class PersonalStore:
    """See the module. margin: how much worse the loss of a new model may be, as a share."""

    def __init__(self, folder: Path, margin: float = 0.05) -> None:
        if margin < 0 or not math.isfinite(margin):
            raise DelianError(f"personal.margin is {margin}", "give a share, such as 0.05")
        self.folder, self.margin = folder, margin

    @property
    def draft(self) -> Path:
        """Where a training process writes a new model, before `offer`."""
        return self.folder / "draft.f32"

    def prepare(self) -> None:
        """Makes the folder, for its owner alone, and clears away what a crash left."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "bundles").mkdir(exist_ok=True)
        (self.folder / "frozen").mkdir(exist_ok=True)
        self.draft.unlink(missing_ok=True)

    def current(self) -> Slot | None:
        """The model that is served; the other slot's model where that one is damaged.

        None where there is none.
        """
        served = self._served()
        for name in (served, *(n for n in _SLOTS if n != served)):
            if name is not None and (slot := self._slot(name)) is not None:
                return slot
        return None

    def previous(self) -> Slot | None:
        """What `rollback` would go back to."""
        served = self._served()
        return next((s for n in _SLOTS if n != served and (s := self._slot(n))), None)

    def offer(
        self,
        bundle: Path,
        bundle_digest: bytes,
        judgement: Judgement,
        frozen: Sequence[Path] = (),
    ) -> bool:
        """Serves the draft unless it is worse than what is served. False: it was turned down.

        frozen: the files of the bundle's frozen parts, in order, named by their hashes. They stay
        here for as long as the model does, and take no room of their own where the file system
        links files.

        Raises DelianError when the draft cannot be read or kept.
        """
        with state_in(self.folder):
            if self._good_enough(judgement):
                self._install(bundle, bundle_digest.hex(), judgement, frozen)
                return True
            self.draft.unlink(missing_ok=True)
        log.info(
            "personal model turned down",
            extra={"loss": judgement.loss_after, "present": judgement.loss_present},
        )
        return False

    def rollback(self) -> Slot:
        """Serves the model that was served before.

        Raises NoModelError where there is none, and DelianError where the folder takes no change.
        """
        slot = self.previous()
        if slot is None or self._served() is None:
            raise NoModelError(
                f"{self.folder} holds no earlier model to go back to",
                "delian device status says what is served",
            )
        with state_in(self.folder):
            self._serve(slot.name)
        log.warning("personal model rolled back", extra={"digest": slot.digest})
        return slot

    # ------------------------------------------------

    def _good_enough(self, judgement: Judgement) -> bool:
        present = self.current()
        if judgement.count <= 0:
            return True
        if not math.isfinite(judgement.loss_after):
            return False
        if present is None:
            return True
        against = judgement.loss_present
        if against is None or not math.isfinite(against):
            # It was trained by another bundle: how it judged itself then is all that is known.
            against = present.judgement.loss_after
        return judgement.loss_after <= against * (1.0 + self.margin)

    def _install(
        self, bundle: Path, bundle_hex: str, judgement: Judgement, frozen: Sequence[Path]
    ) -> None:
        if self.draft.stat().st_size > MODEL_BYTES_MAX:
            raise DelianError(f"a personal model of {self.draft.stat().st_size} bytes is too large")
        served = self._served()
        name = next(n for n in _SLOTS if n != served)
        kept = self.folder / "bundles" / f"{bundle_hex}.bundle"
        if not kept.exists():
            part = kept.with_suffix(".part")
            shutil.copyfile(bundle, part)
            _sync(part)
            part.replace(kept)
            sync_folder(kept.parent)
        for part in frozen:
            _link(part, self.folder / "frozen" / part.name)
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        content = self.draft.read_bytes()
        facts = {
            "digest": hashlib.sha256(content).hexdigest(),
            "bundle": bundle_hex,
            "made_ms": time.time_ns() // 1_000_000,
            "judgement": asdict(judgement),
            "frozen": [part.name for part in frozen],
        }
        self.draft.replace(folder / "model.f32")
        _sync(folder / "model.f32")
        _write(folder / "facts.json", facts)
        self._serve(name)
        self._forget_bundles()
        log.info(
            "personal model served",
            extra={"slot": name, "loss": judgement.loss_after, "before": judgement.loss_before},
        )

    def _serve(self, name: str) -> None:
        _write(self.folder / "current", {"slot": name})

    def _served(self) -> str | None:
        said = _read(self.folder / "current")
        name = said.get("slot") if said else None
        return name if name in _SLOTS else None

    def _slot(self, name: str) -> Slot | None:
        """The slot's model when it is whole."""
        folder = self.folder / name
        said, model = _read(folder / "facts.json"), folder / "model.f32"
        if said is None:
            return None
        try:
            slot = Slot(
                name=name,
                model=model,
                bundle_path=self.folder / "bundles" / f"{said['bundle']}.bundle",
                digest=str(said["digest"]),
                bundle=str(said["bundle"]),
                made_ms=int(said["made_ms"]),
                judgement=Judgement(**said["judgement"]),
                frozen=tuple(self.folder / "frozen" / str(n) for n in said.get("frozen", ())),
            )
            sound = (
                all(set(n) <= _HEX for n in (slot.bundle, *(p.name for p in slot.frozen)))
                and all(part.is_file() for part in slot.frozen)
                and slot.bundle_path.is_file()
                and model.stat().st_size <= MODEL_BYTES_MAX
                and hashlib.sha256(model.read_bytes()).hexdigest() == slot.digest
            )
        except (KeyError, TypeError, ValueError, OSError):
            sound = False
        if not sound:
            log.warning("a slot of the personal model is damaged", extra={"slot": name})
            return None
        return slot

    def _forget_bundles(self) -> None:
        slots = [s for n in _SLOTS if (s := self._slot(n)) is not None]
        needed = {s.bundle_path for s in slots} | {part for s in slots for part in s.frozen}
        for place in ("bundles", "frozen"):
            for path in (self.folder / place).iterdir():
                if path not in needed:
                    path.unlink(missing_ok=True)


def _link(file: Path, place: Path) -> None:
    """Puts a durable file that is never changed to another place as well."""
    if place.exists():
        return
    try:
        os.link(file, place)
    except OSError:  # another file system, or one without links
        part = place.with_suffix(".part")
        shutil.copyfile(file, part)
        _sync(part)
        part.replace(place)
    sync_folder(place.parent)


def stamp(folder: Path) -> int:
    """Changes when another model is served; cheap. Zero: none is."""
    with contextlib.suppress(OSError):
        facts = (folder / "current").stat()
        return facts.st_mtime_ns ^ facts.st_ino
    return 0


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            said = json.loads(stream.read(FACTS_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def _write(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(facts, sort_keys=True), durable=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        sync_file(file.fileno())
