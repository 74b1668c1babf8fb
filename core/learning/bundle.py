"""A bundle: everything a tier needs to take part in a run, in one file.

    manifest.json      what the programs take and give, by name; the ring plan; the hash of
                       every other part
    programs/NAME.ir   serialised IR, one program each: init, client_update, server_update,
                       evaluate, personalise, infer; client_state where devices have client state,
                       update_begin, update_chunk and update_end where data need not fit in memory.
                       A quantised bundle has infer alone; one that sites' scripts train has none
    weights.f32        the first state, f32 little-endian, the leaves as the manifest lists them;
                       absent in what is sent to devices
    frozen/N.bin       the parts of the frozen leaves (`frozen`), which the manifest names by hash;
                       absent in what is sent to devices: they fetch these by hash, once

The file is a zip archive of stored (not compressed) entries with fixed timestamps, so that equal
bundles are equal bytes. Its content hash is the SHA-256 of the manifest, which names the hash of
every part: it is what a task message carries and what a device checks. Reading trusts nothing:
sizes are limited before they are allocated, every part is hashed, every program verified.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..common.errors import DelianError
from ..common.files import read_at_most, write_with
from ..compiler.ir import Array, DType, Function
from ..compiler.ir_codec import decode_function, encode_function
from ..compiler.verify import Limits
from ..privacy.mechanisms.ring import BITS, RingPlan
from . import frozen as frozen_leaves
from .frozen import FrozenPart
from .leaf import Leaf as Leaf

FORMAT = 1
PROGRAMS = ("init", "client_update", "server_update", "evaluate", "personalise", "infer")
#: Of algorithms whose devices keep a state of their own.
CLIENT_STATE = "client_state"
#: Of bundles for data that need not fit in memory (`build.window_programs`).
WINDOW_PROGRAMS = ("update_begin", "update_chunk", "update_end")
#: Of bundles whose devices may train with their edges (`build.split_programs`).
SPLIT_PROGRAMS = ("split_batch", "split_upload")
#: The step that the two cut, and a device's parts of it by its cuts, which it derives by itself: in
#: the bundle they are what is compiled.
SPLIT_STEP = "split_step"
SPLIT_PARTS_MAX = 64
#: Of a training by windows: as many as epochs can be asked for.
PASSES_MAX = 10_000
#: The leaf of the carry that counts the rows of a pass, i64[], and the sum of the steps' losses.
SEEN, TOTAL = "carry.seen.support", "carry.way.total"
#: What every `evaluate` gives, before the task's own.
JUDGED = ("loss", "correct", "count")
#: What a manifest says only where there is any: bundles without it are what they were before.
_ABSENT = (CLIENT_STATE, "metrics", "carry", "passes", "script", "frozen", "frozen_parts", "split")
#: A task's own metrics; each is two numbers of an evaluation's message.
METRICS_MAX = 16
_METRIC = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: What evaluations call what all tasks have.
_METRICS_TAKEN = ("accuracy", "loss")
#: What a device runs, where the bundle has it.
DEVICE_PROGRAMS = (
    *("client_update", "personalise", "evaluate", "infer", CLIENT_STATE),
    *WINDOW_PROGRAMS,
    *SPLIT_PROGRAMS,
    *(f"split_part_{number}" for number in range(SPLIT_PARTS_MAX)),
)
#: A bundle larger than this is refused before it is read: ten times the largest model a device is
#: meant for.
BYTES_MAX = 1 << 30
MANIFEST_BYTES_MAX = 1 << 20
#: What a zip entry's time is set to: the format's own earliest.
EPOCH = (1980, 1, 1, 0, 0, 0)


def check_metric_names(names: Sequence[str]) -> None:
    """Raises DelianError where a task's own metrics cannot be called so."""
    if len(names) > METRICS_MAX or len(set(names)) < len(names):
        raise DelianError(
            f"{len(names)} metrics of a task's own: {', '.join(names)[:200]}",
            f"{METRICS_MAX} at most, each with a name of its own",
        )
    for name in names:
        if not isinstance(name, str) or not _METRIC.fullmatch(name) or name in _METRICS_TAKEN:
            raise DelianError(
                f"no metric can be called {str(name)[:40]!r}",
                "small letters, digits and _, at most 32, as top_5; not accuracy or loss,"
                " which there are",
            )


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself."""

    task: str
    """Name of the task."""
    algorithm: str
    """Name of the algorithm."""
    state: tuple[Leaf, ...]
    """The leaves of the state, in the order of the weights and of the uploaded vector."""
    memory: tuple[Leaf, ...]
    """The leaves of the server's memory."""
    model: tuple[int, ...]
    """Which leaves make up the model that `evaluate` and `infer` take: those of the state, and then
    those of `frozen` (the first values of personal leaves). None in a bundle for inference alone.
    """
    data: tuple[Leaf, ...]
    """The leaves of a device's data."""
    clip: float
    """The L2 norm that a device's update is clipped to."""
    clients_max: int
    """How many updates one ring sum may hold."""
    weight_max: float
    """What a device's weight is divided by, so that it lies in (0, 1]."""
    noise: float = 0.0
    """Of the ring plan (`RingPlan`), whose steps the programs know; 0: none."""
    central: bool = False
    """Of the ring plan: whether one vector of noise is added to a sum."""
    rotated: bool = False
    """Of the ring plan: whether updates are rotated."""
    bits: int = BITS
    """Of the ring plan: a sum's width."""
    client_state: tuple[Leaf, ...] = ()
    """The leaves of what a device keeps from round to round; it never leaves it."""
    metrics: tuple[str, ...] = ()
    """Names of the task's own metrics, in the order in which `evaluate` gives their sums."""
    carry: tuple[Leaf, ...] = ()
    """The leaves of what a device carries from one window of its rows to the next; none in a bundle
    whose devices train in one call alone. It never leaves the device.
    """
    passes: int = 0
    """How often a training by windows goes over all rows; 0 where there is none."""
    script: Mapping[str, Any] = field(default_factory=dict)
    """What the sites' own script gets (`scripts.script_spec`); empty: none, devices train by
    `client_update` alone.
    """
    frozen: tuple[Leaf, ...] = ()
    """The leaves that are not trained, and the first values of personal ones: the last parameters
    of every program but `init` and `server_update`. Any dtype.
    """
    frozen_parts: tuple[FrozenPart, ...] = ()
    """The blobs that these lie in (`frozen.layout`)."""
    split: Mapping[str, Any] = field(default_factory=dict)
    """How devices train with their edges (`placement.split_training.run_step`); empty: they train
    by themselves.
    """

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of the bundle's programs.

        A quantised model has `infer` alone; what a script trains has all but that.
        """
        if not self.model:
            return ("infer",)
        kept = (CLIENT_STATE,) if self.client_state else ()
        names = (*PROGRAMS, *kept, *(WINDOW_PROGRAMS if self.carry else ()))
        if self.split:
            parts = (f"split_part_{number}" for number in range(self.split["parts"]))
            names += (*SPLIT_PROGRAMS, SPLIT_STEP, *parts)
        return tuple(n for n in names if n != "infer") if self.script else names

    @property
    def ring(self) -> RingPlan:
        """How `client_update` makes ring elements. Raises RingError for an impossible plan."""
        return RingPlan(
            self.clip,
            self.clients_max,
            self.dimension,
            noise=self.noise,
            central=self.central,
            rotated=self.rotated,
            bits=self.bits,
        )

    @property
    def dimension(self) -> int:
        """How many numbers the state has: the length of an update."""
        return sum(leaf.size for leaf in self.state)

    def model_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the model."""
        every = (*self.state, *self.frozen)
        return tuple(every[i] for i in self.model)

    @property
    def learns_numbers(self) -> bool:
        """Whether numbers are learnt of a row, and not its label."""
        return not self.script and any(
            each.name.rpartition(".")[2] == "y" and each.dtype == "f32" for each in self.data
        )


@dataclass(frozen=True)
class Bundle:
    """A manifest, its programs and the first state."""

    manifest: Manifest
    """What the bundle says of itself."""
    programs: Mapping[str, Function]
    """By name."""
    weights: Array
    """The first state as one vector, f32[D]. As it is sent to devices a bundle is bare: this is
    empty, for a device fetches the round's weights under their own hash.
    """
    written: dict[str, tuple[Function, bytes]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Programs that are encoded already: the function and its bytes, by name."""
    frozen: tuple[Array, ...] = ()
    """The frozen leaves, as the manifest lists them. A bare bundle has none."""

    def parts(self) -> dict[str, bytes]:
        """The files inside, but for the manifest."""
        files = {f"programs/{name}.ir": self._encoded(name) for name in self.manifest.programs}
        if self.weights.size:
            files["weights.f32"] = np.ascontiguousarray(self.weights, "<f4").tobytes()
        return files

    def frozen_contents(self) -> Iterator[bytes]:
        """The parts of the frozen leaves as devices fetch them, one after the other."""
        return frozen_leaves.packed(self.manifest.frozen, self.frozen)

    def _hashes(self) -> dict[str, str]:
        """Those of the files with frozen leaves inside, which the manifest has."""
        parts = enumerate(self.manifest.frozen_parts if self.frozen else ())
        return {f"{_FROZEN}{number}.bin": part.digest for number, part in parts}

    def model_of(self, weights: Array) -> Array:
        """The model in a state: f32[D] -> f32[M], with the first values of personal leaves."""
        ends = np.cumsum([leaf.size for leaf in self.manifest.state])
        if weights.size != self.manifest.dimension:
            raise DelianError(
                f"{weights.size} weights for a state of {self.manifest.dimension} numbers",
                "the weights belong to another bundle",
            )
        leaves: list[Array] = [*np.split(weights, ends[:-1]), *self.frozen]
        if max(self.manifest.model, default=0) >= len(leaves):
            raise DelianError(
                "the bundle lacks its frozen leaves, which the model's first personal values are",
                "take the bundle of the run's report, or delian model export",
            )
        return np.concatenate([leaves[i].reshape(-1) for i in self.manifest.model])

    def _encoded(self, name: str) -> bytes:
        function, made = self.programs[name], self.written.get(name)
        if made is None or made[0] is not function:
            made = self.written[name] = (function, encode_function(function))
        return made[1]

    @property
    def inference(self) -> Function:
        """The program `infer`. Raises DelianError where a site's own script trains the model."""
        if "infer" not in self.programs:
            raise DelianError(
                f"this bundle has no program `infer`: the script {self.manifest.script.get('name')}"
                " trains and runs its model",
                "delian model weights writes its weights for the script's framework",
            )
        return self.programs["infer"]

    def bare(self) -> Bundle:
        """The bundle without its weights and frozen leaves."""
        return replace(self, weights=np.empty(0, np.float32), frozen=())

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        self._write(buffer)
        return buffer.getvalue()

    def content_hash(self) -> str:
        """SHA-256, in hexadecimal, of the manifest with its parts' hashes."""
        written = manifest_bytes(self._body(), self.parts(), self._hashes())
        return hashlib.sha256(written).hexdigest()

    def save(self, path: Path) -> None:
        """Writes a temporary file and moves it to its place: no reader sees half of one.

        One part of the frozen leaves at a time is in memory.
        """
        write_with(Path(path), self._write)

    def _write(self, file: IO[bytes]) -> None:
        parts, hashes = self.parts(), self._hashes()
        written = manifest_bytes(self._body(), parts, hashes)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, content in {"manifest.json": written, **parts}.items():
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
            for name, content in zip(hashes, self.frozen_contents() if hashes else (), strict=True):
                archive.writestr(_aligned(name, file.tell()), content)

    def _body(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self.manifest).items() if k not in _ABSENT or v}


def manifest_bytes(
    body: Mapping[str, Any], parts: Mapping[str, bytes], hashes: Mapping[str, str] | None = None
) -> bytes:
    """A manifest with the hash of every part, as it is written and hashed.

    hashes: of parts whose bytes are not at hand.
    """
    found = {n: hashlib.sha256(c).hexdigest() for n, c in sorted(parts.items())}
    whole = {"format": FORMAT, **body, "parts": {**found, **(hashes or {})}}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


#: Where frozen leaves are in the file.
_FROZEN = "frozen/"
#: A zip entry's header: signature and lengths of its name and extra field (APPNOTE.TXT, 4.3.7).
_ENTRY = struct.Struct("<4s22xHH")
#: The extra field that aligns an entry: an identifier that no other program uses, and its length.
_EXTRA = struct.Struct("<HH")
_PADDING = 0xD935
#: Larger files are mapped.
_READ_MAX = 1 << 24
#: What frozen leaves may be made of.
_DTYPES = frozenset(each.value for each in DType)
#: What zipfile and JSON raise on damaged input.
_DAMAGED = (
    zipfile.BadZipFile,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def pack(body: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """The file of a manifest and its parts; equal bytes for equal contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {"manifest.json": manifest_bytes(body, parts), **parts}.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
    return buffer.getvalue()


def _aligned(name: str, place: int) -> zipfile.ZipInfo:
    """An entry at this place of the file whose content begins at a multiple of a cache line.

    So the file can be mapped, and kernels read vectors from it.
    """
    entry = zipfile.ZipInfo(name, EPOCH)
    begins = place + _ENTRY.size + len(name) + _EXTRA.size
    entry.extra = _EXTRA.pack(_PADDING, -begins % frozen_leaves.ALIGNMENT)
    entry.extra += bytes(-begins % frozen_leaves.ALIGNMENT)
    return entry


def load(path: Path, own: bool = False, limits: Limits | None = None) -> Bundle:
    """Reads a bundle's file. own, limits: as in `parse`. Raises DelianError, naming the file."""
    try:
        return _load(Path(path), own, limits)
    except DelianError:
        from ..common.foreign_formats import refuse_file

        refuse_file(path, "bundle")
        raise


def read(path: Path) -> bytes:
    """A bundle's file. Raises DelianError, naming it, where it is missing or too large."""
    try:
        return read_at_most(path, BYTES_MAX)
    except OSError as e:
        raise DelianError(
            f"{path}: cannot be read: {e.strerror}", "name a .bundle: delian model export makes one"
        ) from e


def _load(path: Path, own: bool, limits: Limits | None) -> Bundle:
    """A bundle's file, which is mapped where it is larger than what is read at once."""
    try:
        if path.stat().st_size > _READ_MAX:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return _parsed(memoryview(data), file, str(path), own, limits)
    except OSError:
        pass  # `read` says what is wrong
    return parse(read(path), str(path), own, limits)


@dataclass(frozen=True)
class Unpacked:
    """What is in a file; every part has been checked against its hash."""

    body: Mapping[str, Any]
    """The manifest."""
    parts: Mapping[str, bytes]
    frozen: Mapping[str, memoryview]
    """The parts with frozen leaves, where they lie in the file."""


def unpack(data: bytes, where: str) -> Unpacked:
    """Reads what is in a bundle. Raises DelianError."""
    return _unpacked(memoryview(data), io.BytesIO(data), where)


def _unpacked(data: memoryview, file: IO[bytes], where: str) -> Unpacked:
    """As `unpack`, of a file whose bytes are `data` too."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {i.filename: i for i in archive.infolist()}
            if any(i.compress_type != zipfile.ZIP_STORED for i in entries.values()):
                raise zipfile.BadZipFile("a part is compressed")
            others = (i.file_size for n, i in entries.items() if not n.startswith(_FROZEN))
            if sum(others) > BYTES_MAX:
                raise DelianError(f"{where}: its parts are larger than any bundle's")
            body = _read_manifest(archive, entries, where)
            found = Unpacked(body, parts := {}, frozen := {})
            for name, digest in body["parts"].items():
                entry = entries.get(name)
                if entry is None:
                    raise DelianError(f"{where}: the part {name} is missing")
                if name.startswith(_FROZEN):
                    frozen[name] = _view(data, entry)
                    _check_hash(name, frozen[name], digest, where)
                else:
                    parts[name] = archive.read(entry)
                    _check_hash(name, parts[name], digest, where)
            return found
    except _DAMAGED as e:
        raise DelianError(
            f"{where}: not a bundle, or a damaged one: {e}", hint="fetch or build it again"
        ) from e


def parse(
    data: bytes, where: str = "bundle", own: bool = False, limits: Limits | None = None
) -> Bundle:
    """Reads a bundle from bytes.

    Raises DelianError for anything that is not a whole and honest one. own: this very version of
    Delian has written them, and would write them so again. limits: what its programs may ask for;
    None: the defaults.
    """
    return _parsed(memoryview(data), io.BytesIO(data), where, own, limits)


def _parsed(
    data: memoryview, file: IO[bytes], where: str, own: bool, limits: Limits | None
) -> Bundle:
    """As `parse`, of a file whose bytes are `data` too."""
    unpacked = _unpacked(data, file, where)
    body, parts = unpacked.body, unpacked.parts
    manifest = _manifest_from(body, where)
    check_metric_names(manifest.metrics)
    if bool(manifest.carry) != (0 < manifest.passes <= PASSES_MAX):
        raise DelianError(f"{where}: {manifest.passes} passes over windows of rows")
    missing = [n for n in manifest.programs if f"programs/{n}.ir" not in parts]
    if missing:
        raise DelianError(f"{where}: the bundle lacks {', '.join(missing)}")
    encoded = {n: parts[f"programs/{n}.ir"] for n in manifest.programs}
    programs = {n: decode_function(content, limits) for n, content in encoded.items()}
    gives = len(programs["evaluate"].result_types) if "evaluate" in programs else 0
    if manifest.metrics and gives != len(JUDGED) + 2 * len(manifest.metrics):
        raise DelianError(
            f"{where}: evaluate gives {gives} numbers, and {len(manifest.metrics)} metrics of its"
            " own are named"
        )
    weights = np.frombuffer(parts.get("weights.f32", b""), "<f4").astype(np.float32)
    if weights.size not in (0, manifest.dimension):
        raise DelianError(
            f"{where}: {weights.size} weights for a state of {manifest.dimension} numbers"
        )
    written = {n: (programs[n], content) for n, content in encoded.items()} if own else {}
    return Bundle(manifest, programs, weights, written, _frozen_from(manifest, unpacked, where))


def _frozen_from(manifest: Manifest, unpacked: Unpacked, where: str) -> tuple[Array, ...]:
    """The frozen leaves in a bundle's parts; none in a bare one. Raises DelianError."""
    _, sizes = frozen_leaves.layout(manifest.frozen)
    if tuple(part.size for part in manifest.frozen_parts) != sizes:
        raise DelianError(f"{where}: the frozen leaves do not fit the parts that are named")
    names = [f"{_FROZEN}{number}.bin" for number in range(len(sizes))]
    if not unpacked.frozen:
        return ()
    contents = [unpacked.frozen.get(name, memoryview(b"")) for name in names]
    for name, named, content in zip(names, manifest.frozen_parts, contents, strict=True):
        # The content fits the hash that the file has of it; that is the one that devices ask for.
        if len(content) != named.size or unpacked.body["parts"].get(name) != named.digest:
            raise DelianError(
                f"{where}: a part of the frozen leaves is missing or not the one that is named",
                "fetch or build the bundle again",
            )
    return tuple(frozen_leaves.arrays_of(manifest.frozen, contents))


def _any_dtype(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """Frozen leaves as a manifest lists them. Raises ValueError for impossible ones."""
    for leaf in leaves:
        if leaf.dtype not in _DTYPES or min(leaf.shape, default=0) < 0:
            raise ValueError(f"a frozen leaf {leaf.name[:40]!r} of {leaf.dtype[:10]}{leaf.shape}")
    return leaves


def _read_manifest(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], where: str
) -> dict[str, Any]:
    entry = entries.get("manifest.json")
    if entry is None or entry.file_size > MANIFEST_BYTES_MAX:
        raise DelianError(
            f"{where}: no manifest, or one larger than {MANIFEST_BYTES_MAX} bytes",
            "name a bundle: model.bundle of a run, or what delian model export wrote",
        )
    body = json.loads(archive.read(entry))
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DelianError(
            f"{where}: not of bundle format {FORMAT}",
            hint="it was made by another version of Delian; build it again",
        )
    if not isinstance(body.get("parts"), dict):
        raise DelianError(f"{where}: the manifest lists no parts")
    return body


def _view(data: memoryview, entry: zipfile.ZipInfo) -> memoryview:
    """An entry's content where it lies. Raises ValueError where it does not lie in the file."""
    at = entry.header_offset
    header = _ENTRY.unpack(data[at : at + _ENTRY.size])
    begins = at + _ENTRY.size + header[-2] + header[-1]
    if header[0] != b"PK\3\4" or begins + entry.file_size > len(data):
        raise ValueError("an entry lies outside of the file")
    return data[begins : begins + entry.file_size]


def _check_hash(name: str, content: bytes | memoryview, digest: str, where: str) -> None:
    """Raises DelianError for another content than the manifest names."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise DelianError(
            f"{where}: the part {name} is not what the manifest's hash says",
            hint="it was damaged or changed; fetch it again",
        )


def _split_from(body: Any) -> dict[str, Any]:
    """What a manifest says of training on two tiers. Raises ValueError."""
    found = dict(body)
    if found and not 1 <= int(found["parts"]) <= SPLIT_PARTS_MAX:
        raise ValueError(f"{found['parts']} parts of a step; from 1 to {SPLIT_PARTS_MAX}")
    return found


def _manifest_from(body: Mapping[str, Any], where: str) -> Manifest:
    def leaves(key: str) -> tuple[Leaf, ...]:
        return tuple(
            Leaf(str(x["name"]), str(x["dtype"]), tuple(int(d) for d in x["shape"]))
            for x in body.get(key, () if key in _ABSENT else None)
        )

    try:
        return Manifest(
            task=str(body["task"]),
            algorithm=str(body["algorithm"]),
            state=leaves("state"),
            memory=leaves("memory"),
            model=tuple(int(i) for i in body["model"]),
            data=leaves("data"),
            clip=float(body["clip"]),
            clients_max=int(body["clients_max"]),
            weight_max=float(body["weight_max"]),
            # Absent in bundles of before there was noise.
            noise=float(body.get("noise", 0.0)),
            central=bool(body.get("central", False)),
            rotated=bool(body.get("rotated", False)),
            # Absent in bundles of before rings could be narrower.
            bits=int(body.get("bits", BITS)),
            client_state=leaves(CLIENT_STATE),
            metrics=tuple(str(name) for name in body.get("metrics", ())),
            carry=leaves("carry"),
            passes=int(body.get("passes", 0)),
            script=dict(body.get("script", {})),
            split=_split_from(body.get("split", {})),
            frozen=_any_dtype(leaves("frozen")),
            frozen_parts=tuple(
                FrozenPart(str(x["digest"]), int(x["size"])) for x in body.get("frozen_parts", ())
            ),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise DelianError(f"{where}: the manifest is incomplete: {e}") from e
