"""The device's own model at work: from Python, and for other programs over a Unix socket.

    model = delian.device.PersonalModel(folder)         # the agent's `personal` folder
    logits = model.predict(x)                           # f32[n, ...] -> f32[n, classes]

`x` are rows as the device's data has them, also flat ones, or with axes of length one more or less:
the bundle's program scales them. A model that the agent has put in place of the old one is taken up
with the next call; calls that run finish with the one that they began with. A model that cannot be
loaded is not taken up.

The server is a process of its own, `python -m delian.device.serving.inference FOLDER SOCKET`, so
that the agent stays small. A request is a frame (`frames`):

    {"op": "predict", "dtype": "<f4", "shape": [n, ...]} + the array, row by row
    {"op": "status"}

and the answer {"ok": true, "dtype", "shape", "model"} + the logits, or {"ok": false, "error",
"hint"}. A connection may ask again and again; several are served at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.common.aligned_arrays import aligned
from ...core.common.errors import DelianError
from ...core.common.files import make_private
from ...core.compiler.backends import Backend, Executable
from ...core.compiler.backends.native.toolchain.artifact import ArtifactError
from ...core.compiler.ir import TensorType
from ...core.learning import bundle as bundles
from ...core.learning.bundle import Manifest
from ...core.learning.data.fit import as_rows
from ...core.learning.frozen import mapped
from ...core.learning.runtime import ready
from ...core.node.sandbox import frames, walls
from ...core.node.sandbox.process_limits import die_with
from ..agent.personal_model import NoModelError, PersonalStore, Slot, stamp

log = logging.getLogger("delian.device.serving.inference")

Array = NDArray[Any]

REQUEST_BYTES_MAX = 64 << 20
RANK_MAX = 8
CONNECTIONS_MAX = 64
#: A connection that says nothing for so long is closed.
IDLE_S = 300.0
#: How long one request may take to arrive or its answer to leave.
TRANSFER_S = 30.0
DTYPES = frozenset({"<f4", "<f8", "|u1", "<i4", "<i8"})


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model ready to run; never changed, so that a call keeps the one that it began with."""

    slot: Slot
    program: Executable
    leaves: tuple[Array, ...]
    batch: int
    row: tuple[int, ...]
    dtype: np.dtype[Any]
    numbers: bool

    def predict(self, x: Array) -> Array:
        parts = []
        for start in range(0, max(len(x), 1), self.batch):
            part = x[start : start + self.batch]
            filled = np.zeros((self.batch, *self.row), self.dtype)
            filled[: len(part)] = part
            parts.append(self.program(*self.leaves, filled)[0][: len(part)])
        return np.concatenate(parts)


class PersonalModel:
    """The model that the agent keeps in `folder`. Safe to call from several threads at once.

    Raises NoModelError when there is none yet.
    """

    def __init__(
        self, folder: Path | str, backend: Backend = "native", artifacts: Sequence[Path] = ()
    ) -> None:
        self._store, self._backend = PersonalStore(Path(folder)), backend
        self._artifacts = tuple(artifacts)
        self._loading = threading.Lock()
        self._stamp = 0
        self._loaded: _Loaded | None = None
        self._model()

    @property
    def slot(self) -> Slot:
        """What is served: its digest, when it was made, how it judged."""
        return self._model().slot

    @property
    def gives_numbers(self) -> bool:
        """Whether what it gives are the numbers themselves, and not logits of labels."""
        return self._model().numbers

    def predict(self, x: Any) -> Array:
        """Logits, or numbers where these are learnt: f32[n, ...] of a batch [n, ...] of any size.

        Raises DelianError when the rows are not those of the model.
        """
        return self.predict_with(np.asarray(x))[0]

    def predict_with(self, x: Array) -> tuple[Array, _Loaded]:
        """The prediction, and the model that made it."""
        model = self._model()
        rows = None if x.ndim < 1 else as_rows(x, model.row)
        if rows is None:
            raise DelianError(
                f"a batch of {list(x.shape)}",
                f"the model takes [n, {', '.join(map(str, model.row))}]",
            )
        if x.dtype.kind not in "fiub":
            raise DelianError(f"a batch of {x.dtype}", "give numbers")
        return model.predict(rows.astype(model.dtype, copy=False)), model

    def _model(self) -> _Loaded:
        """The newest that can be loaded. A request during a reload uses the old model."""
        now = stamp(self._store.folder)
        held = self._loaded
        if held is not None and now == self._stamp:
            return held
        if not self._loading.acquire(blocking=held is None):
            assert held is not None
            return held
        try:
            if self._loaded is None or now != self._stamp:
                self._loaded = self._load()
                self._stamp = now
            return self._loaded
        finally:
            self._loading.release()

    def _load(self) -> _Loaded:
        """What is served now; read again where it was replaced meanwhile."""
        while True:
            before = stamp(self._store.folder)
            try:
                return self._load_once(before)
            except (DelianError, OSError):
                if stamp(self._store.folder) == before:
                    raise

    def _load_once(self, before: int) -> _Loaded:
        slot = self._store.current()
        held = self._loaded
        if slot is None:
            if held is not None:
                return held
            raise NoModelError(
                f"there is no personal model in {self._store.folder} yet",
                "the device makes one when it takes part in an evaluation",
            )
        if held is not None and held.slot.digest == slot.digest:
            return held
        try:
            return _load(slot, self._backend, self._artifacts)
        except (DelianError, OSError) as error:
            if stamp(self._store.folder) != before:
                raise
            log.warning("the personal model cannot be loaded: %s", error)
            if held is not None:
                return held
            earlier = self._store.previous()
            if earlier is None or earlier.digest == slot.digest:
                raise
            return _load(earlier, self._backend, self._artifacts)


def _load(slot: Slot, backend: Backend, artifacts: Sequence[Path]) -> _Loaded:
    bundle = bundles.load(slot.bundle_path)
    manifest = bundle.manifest
    content = slot.model.read_bytes()
    if hashlib.sha256(content).hexdigest() != slot.digest:
        raise DelianError("the personal model was replaced while it was read", "ask again")
    vector = np.frombuffer(content, "<f4").astype(np.float32, copy=False)
    infer = {"infer": bundle.inference}
    try:
        program = ready(infer, backend, artifacts)["infer"]
    except ArtifactError as error:
        log.warning("an artifact is left out: %s", error)
        program = ready(infer, backend)["infer"]
    wanted = program.function.param_types[-1]
    if not isinstance(wanted, TensorType) or len(wanted.shape) < 1:
        raise DelianError("the bundle's `infer` takes no batch", "build it again")
    return _Loaded(
        slot=slot,
        program=program,
        leaves=(*_leaves(vector, manifest), *mapped(manifest.frozen, slot.frozen)),
        batch=wanted.shape[0],
        row=wanted.shape[1:],
        dtype=wanted.dtype.numpy,
        numbers=manifest.learns_numbers,
    )


def _leaves(vector: Array, manifest: Manifest) -> tuple[Array, ...]:
    shapes = manifest.model_leaves()
    if vector.size != sum(leaf.size for leaf in shapes):
        raise DelianError(f"a model of {vector.size} numbers is not its bundle's")
    ends = np.cumsum([leaf.size for leaf in shapes])
    parts = np.split(vector, ends[:-1])
    return tuple(aligned(p.reshape(leaf.shape)) for p, leaf in zip(parts, shapes, strict=True))


# ---------------------------------------------------------------- the server


class InferenceServer:
    """Serves a folder's model on a Unix socket that only its owner may open."""

    def __init__(
        self,
        folder: Path,
        path: Path,
        backend: Backend = "native",
        artifacts: Sequence[Path] = (),
    ) -> None:
        self._folder, self._path, self._backend = folder, path, backend
        self._artifacts = tuple(artifacts)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="delian-infer")
        self._model: PersonalModel | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.served = 0

    async def start(self) -> None:
        """Listens. Raises DelianError when the socket cannot be made, or another server has it."""
        _clear(self._path)  # here: a thread that is started now would not be confined later
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
        except (OSError, ValueError) as error:
            raise DelianError(
                f"cannot listen on {self._path}: {error}", "choose a short path that can be written"
            ) from error
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Lets requests that run finish, and goes. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with contextlib.suppress(PermissionError):  # confined: the next start clears it away
                self._path.unlink(missing_ok=True)
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown, True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                await _refuse(writer, DelianError("too many connections", "close some"))
                return
            while await self._serve(reader, writer):
                pass
        except (TimeoutError, ConnectionError):
            pass
        except asyncio.CancelledError:
            # By `close`: asyncio's server, which made this task, would log it as an error.
            if self._server is not None:
                raise
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), TRANSFER_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request. False: there will be no other on this connection."""
        try:
            async with asyncio.timeout(IDLE_S):
                frame = await frames.receive(reader, REQUEST_BYTES_MAX)
        except frames.FrameError as error:
            await _refuse(writer, error)  # the bytes that follow cannot be parsed
            return False
        if frame is None:
            return False
        try:
            loop = asyncio.get_running_loop()
            head, body = await loop.run_in_executor(self._pool, self._answer, frame)
        except (DelianError, OSError) as error:
            return await _refuse(writer, error)
        except MemoryError:
            return await _refuse(writer, DelianError("out of memory", "ask with fewer rows"))
        async with asyncio.timeout(TRANSFER_S):
            await frames.send(writer, {"ok": True, **head}, body)
        self.served += 1
        return True

    def _answer(self, frame: frames.Frame) -> tuple[Mapping[str, Any], bytes]:
        operation = frame.head.get("op")
        if operation not in ("predict", "status"):
            raise DelianError(f"no operation {str(operation)[:40]!r}", "predict or status")
        if self._model is None:
            self._model = PersonalModel(self._folder, self._backend, self._artifacts)
        if operation == "status":
            slot = self._model.slot
            return {"model": slot.digest, "made_ms": slot.made_ms, "bundle": slot.bundle}, b""
        logits, model = self._model.predict_with(_array(frame))
        made = np.ascontiguousarray(logits, "<f4")
        facts = {"model": model.slot.digest, "numbers": model.numbers}
        return {"dtype": "<f4", "shape": list(made.shape), **facts}, made.tobytes()


async def _refuse(writer: asyncio.StreamWriter, error: Exception) -> bool:
    hint = error.hint if isinstance(error, DelianError) else ""
    message = error.message if isinstance(error, DelianError) else str(error)
    async with asyncio.timeout(TRANSFER_S):
        await frames.send(writer, {"ok": False, "error": message[:2000], "hint": hint[:2000]})
    return True


def _array(frame: frames.Frame) -> Array:
    """The array of a frame. Raises DelianError when head and body do not agree."""
    dtype, shape = frame.head.get("dtype"), frame.head.get("shape")
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > RANK_MAX:
        raise DelianError("a request without a dtype and a shape", f"dtype: {sorted(DTYPES)}")
    if not all(type(n) is int and 0 <= n <= REQUEST_BYTES_MAX for n in shape):
        raise DelianError("a shape holds no natural numbers")
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(frame.body):
        raise DelianError(f"{len(frame.body)} bytes for an array {dtype}{shape}")
    return np.frombuffer(frame.body, kind).reshape(shape)


def _clear(path: Path) -> None:
    """Removes a socket on which no server answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return
    if not path.is_socket():
        raise DelianError(f"{path} is there and is no socket", "choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise DelianError(f"another server answers on {path}", "stop it, or choose another path")


# ---------------------------------------------------------------- asking it


def ask(
    path: Path, head: Mapping[str, Any], array: Array | None = None
) -> tuple[dict[str, Any], Array]:
    """One request to a server, for programs that use no asyncio.

    Raises DelianError with what the server said.
    """
    sent = {**head}
    body = b""
    if array is not None:
        array = np.ascontiguousarray(array)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sent |= {"dtype": array.dtype.str, "shape": list(array.shape)}
        body = array.tobytes()
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(TRANSFER_S)
            link.connect(str(path))
            # A server that does not listen to the end has said why before it closed.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.sendall(frames.pack(sent, len(body)))
                link.sendall(body)
            with link.makefile("rb") as stream:
                frame = frames.read(stream, REQUEST_BYTES_MAX)
    except OSError as error:
        raise DelianError(f"no answer on {path}: {error}", "is the device running?") from error
    if frame is None:
        raise DelianError(f"{path} closed the connection")
    if not frame.head.get("ok"):
        raise DelianError(str(frame.head.get("error")), str(frame.head.get("hint", "")))
    answer = dict(frame.head)
    return answer, _array(frame) if "shape" in answer else np.empty(0, np.float32)


def _confine(folder: Path, artifacts: Sequence[Path]) -> None:
    """Confines the process, because another party wrote the bundle's program.

    It can open none of the device's files but the personal models and the workers' cache, no
    network connection, and no other process's memory.
    """
    from ...core.compiler.backends.native.toolchain import toolchain

    try:
        own = toolchain.own_folder()
        make_private(own)
        os.environ["TMPDIR"] = str(own)  # the compiler's, too
        tempfile.tempdir = None
        read = [str(folder), *map(str, artifacts), str(toolchain.cache_folder())]
        walls.confine_server(read, [str(own)])
    except (DelianError, OSError) as error:
        log.warning("the inference server is not confined: %s", error)


async def _main(folder: Path, path: Path, backend: Backend, artifacts: Sequence[Path]) -> None:
    server = InferenceServer(folder, path, backend, artifacts=artifacts)
    await server.start()
    _confine(folder, artifacts)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await stop.wait()
    await server.close()


def main() -> int:
    """Serves the personal models of a folder on a Unix socket."""
    parser = argparse.ArgumentParser(prog="python -m delian.device.serving.inference")
    parser.add_argument("folder", type=Path)
    parser.add_argument("socket", type=Path)
    parser.add_argument("--backend", choices=("native", "reference"), default="native")
    parser.add_argument("--artifact", type=Path, action="append", default=[])
    parser.add_argument("--parent", type=int, help="end with this process, the agent's")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if given.parent:
        die_with(given.parent)
    try:
        asyncio.run(_main(given.folder, given.socket, given.backend, given.artifact))
    except DelianError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
