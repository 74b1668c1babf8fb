"""Makes the next model of a mean: runs the bundle's `server_update` for the coordinator's machine.

The programs come from the submitter of the run. So they are compiled and run in processes of their
own, one a bundle (`core.node.sandbox`, `update_worker`), and never in the coordinator's, which
holds its keys: an update that does not end is stopped at its limit of time, one that takes too much
of anything or crashes takes only its process with it, and other runs continue. The same bundle,
weights, memory and mean give the same bytes on every run. Both results are durable in the store
before the machine receives them.

To take the masks out of a sum (`unmask`) is as much arithmetic, and needs no submitted program:
that is Delian's own code, works on keys that no other process may see, and stays on a thread here.
So do the rules that stand in the mean's place (`core.learning.aggregate.robust`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.processors import cores
from ...core.compiler.backends import Backend
from ...core.compiler.ir import Array
from ...core.learning.aggregate.robust import update_of
from ...core.node.sandbox import walls
from ...core.node.sandbox.compiling import compiled
from ...core.node.sandbox.process_limits import WorkerLimits
from ...core.node.sandbox.worker_process import Jobs, Stopped, WorkerProcess, command, environment
from ...core.node.storage.blobs import BlobStore
from ...core.privacy.mechanisms import noise_mechanism
from ...core.privacy.mechanisms.noise import KEY_BYTES as NOISE_KEY_BYTES
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg import masks
from ...core.protocol.ports import NewModel, Outcome, ProgramStopped, RunProgram, Vector
from ...core.wire import round_pb2
from ...core.wire.blob_pb2 import BlobRef
from .update_worker import PROGRAM, Layout

log = logging.getLogger("delian.cloud.service.updates")

_T = TypeVar("_T")

COMMAND = command("delian.cloud.service.update_worker")
#: What a coordinator gives to one update, unless its operator says otherwise.
LIMITS = WorkerLimits(memory_mib=8192, cpu_s=600, wall_s=600, nice=0)
#: Updates that run at once: one that does not end must not hold up others until its time is over.
UPDATES_MAX = 16
#: Processes that wait for the next round of their run.
IDLE_MAX = 4
#: The environment variables of GPUs' libraries; of a back end that is not confined.
_GPU = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ASCEND_")
#: F_ADD_SEALS; F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (fcntl(2)).
_ADD_SEALS, _SEALS = 1033, 0b111
#: One call reads or writes less than 2 GiB.
_CHUNK_BYTES = 1 << 30


class ServerUpdates:
    """A ProgramRunner (`core.node.driver.executor`) for `server_update` and `unmask`.

    limits: of one update. on_update: called with the seconds that one took. Raises DelianError
    where the limits demand a sandbox that this machine does not have.
    """

    def __init__(
        self,
        blobs: BlobStore,
        backend: Backend = "native",
        limits: WorkerLimits = LIMITS,
        on_update: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        walls.check(limits.sandbox)
        if limits.sandbox == "require" and not _is_confined(backend):
            raise DelianError(
                f"server updates by {backend} run without a sandbox, and one is required",
                'use the back end "native", or set sandbox = "prefer"',
            )
        self._blobs, self._backend, self._limits = blobs, backend, limits
        self._on_update = on_update
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="delian-update")
        self._slots = asyncio.Semaphore(UPDATES_MAX)
        self._updaters: OrderedDict[bytes, _Updater] = OrderedDict()
        self._jobs = Jobs()
        self._closed = False

    async def run(self, program: RunProgram) -> Outcome | NewModel | ProgramStopped:
        """Gives a NewModel, a sum without masks, or why there is none."""
        if program.program == "unmask":
            return await self._unmask(*program.arguments)
        assert program.program == PROGRAM, program.program
        made = await self._jobs.run(program.ticket, self._update(program))
        return ProgramStopped(round_pb2.PROGRAM_FAILED) if made is None else made

    async def cancel(self, ticket: int) -> None:
        """Stops an update, with its process."""
        await self._jobs.cancel(ticket)

    async def close(self) -> None:
        """Stops all updates, and waits for a sum that is being unmasked. May be called twice."""
        self._closed = True
        await self._jobs.close()
        for updater in self._updaters.values():
            await updater.close()
        self._updaters.clear()
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)

    # ------------------------------------------------ updates

    async def _update(self, program: RunProgram) -> NewModel | ProgramStopped:
        async with self._slots:
            if self._closed:
                return ProgramStopped(round_pb2.PROGRAM_FAILED)
            began = time.perf_counter()
            try:
                made = await self._made(program)
            except Stopped as stop:
                name = round_pb2.FailureReason.Name(stop.reason)
                facts = {"ticket": program.ticket, "reason": name}
                log.error("the server update gave nothing (%s): %s", name, stop.why, extra=facts)
                return ProgramStopped(stop.reason)
            except MemoryError:
                return ProgramStopped(round_pb2.OUT_OF_MEMORY)
            except (DelianError, OSError) as fault:
                log.error("the server update failed: %s", fault)
                return ProgramStopped(round_pb2.PROGRAM_FAILED)
            self._on_update(time.perf_counter() - began)
            return made

    async def _made(self, program: RunProgram) -> NewModel:
        """Raises Stopped, DelianError and OSError."""
        bundle, weights, *memory = program.blobs
        made, weight = program.arguments
        if isinstance(made, np.ndarray) and made.dtype == np.uint32:
            # An exact sum is the result: no program makes anything of it.
            return NewModel(await self._blobs.put(made.astype("<u4").tobytes()), None)
        mean = await self._on_thread(lambda: update_of(made))
        updater = self._updaters.setdefault(
            bundle, _Updater(bundle, self._blobs, self._backend, self._limits)
        )
        self._updaters.move_to_end(bundle)
        try:
            async with updater.turn:
                state = await self._blobs.read(weights)
                before = await self._blobs.read(memory[0]) if memory else b""
                after, remembered = await updater.update(state, before, mean, weight)
        finally:
            await self._let_go()
        finite = await asyncio.to_thread(lambda: np.isfinite(np.frombuffer(after, "<f4")).all())
        if not finite:
            raise Stopped(round_pb2.NON_FINITE, "the next model has numbers that are not finite")
        kept: BlobRef | None = await self._blobs.put(remembered) if remembered else None
        return NewModel(await self._blobs.put(after), kept)

    async def _let_go(self) -> None:
        """Ends the processes that have not been used for longest."""
        idle = [d for d, each in self._updaters.items() if not each.turn.locked()]
        for digest in idle[: max(len(idle) - IDLE_MAX, 0)]:
            await self._updaters.pop(digest).close()

    # ------------------------------------------------ sums

    async def _unmask(
        self,
        total: Vector,
        keys: list[tuple[bytes, int]],
        suite: int,
        noised: RingPlan | None = None,
    ) -> Outcome | ProgramStopped:
        """The exact sum is never seen outside where the coordinator adds noise to it."""

        def work() -> Vector:
            plain = np.array(total, np.uint32)
            masks.add(plain, keys, suite, cores())
            if noised is not None:
                noise_mechanism.add(plain, noised, os.urandom(NOISE_KEY_BYTES))
            return plain

        try:
            return Outcome(await self._on_thread(work))
        except MemoryError:
            return ProgramStopped(round_pb2.OUT_OF_MEMORY)

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class _Updater:
    """The updates of one bundle, one at a time (`turn`), in a process that has no other's."""

    def __init__(
        self, digest: bytes, blobs: BlobStore, backend: Backend, limits: WorkerLimits
    ) -> None:
        self.turn = asyncio.Lock()
        self._digest, self._blobs, self._backend, self._limits = digest, blobs, backend, limits
        self._process: WorkerProcess | None = None
        self._layout: Layout | None = None
        self._file = -1

    async def update(
        self, state: bytes, memory: bytes, mean: Array, weight: float
    ) -> tuple[bytes, bytes]:
        """The next state and the next memory.

        weight: the sum of weights in the mean. Raises Stopped, DelianError and OSError; then the
        process is gone, and the next update starts another.
        """
        ends = asyncio.get_running_loop().time() + self._limits.wall_s
        try:
            return await self._update(state, memory, mean, weight, ends)
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def _update(
        self, state: bytes, memory: bytes, mean: Array, weight: float, ends: float
    ) -> tuple[bytes, bytes]:
        if self._layout is None:
            await self._start(ends)
        layout, process, file = self._layout, self._process, self._file
        assert layout is not None and process is not None
        if len(state) != layout.state or mean.nbytes != layout.state:
            why = f"weights of {len(state)} bytes and a mean of {mean.nbytes}"
            raise Stopped(round_pb2.PROGRAM_FAILED, f"{why}, where the bundle has {layout.state}")
        if memory and len(memory) != layout.memory:
            why = f"a server's memory of {len(memory)} bytes, where the bundle's takes"
            raise Stopped(round_pb2.PROGRAM_FAILED, f"{why} {layout.memory}")
        places = layout.offsets
        sent: memoryview[int] = np.ascontiguousarray(mean, "<f4").view(np.uint8).data
        parts: tuple[bytes | memoryview[int], ...] = (state, sent, memory)

        def write() -> None:
            for place, part in zip(places[:3], parts, strict=True):
                _write(file, place, part)

        def read() -> tuple[bytes, bytes]:
            return _read(file, places[3], layout.state), _read(file, places[4], layout.memory)

        await asyncio.to_thread(write)
        job = {"ticket": 1, "op": "update", "remembered": bool(memory), "weight": weight}
        await process.ask(job, wall_s=ends - asyncio.get_running_loop().time())
        return await asyncio.to_thread(read)

    async def _start(self, ends: float) -> None:
        """A process with the bundle's program ready in it."""
        try:
            content = await self._blobs.read(self._digest)
        except DelianError as fault:
            raise Stopped(round_pb2.BAD_BUNDLE, fault.message) from fault
        seen = self._environment()
        self._file = await asyncio.to_thread(_nameless)
        given = {
            "limits": self._limits.to_json(),
            "backend": self._backend,
            "file": self._file,
        }
        process = await WorkerProcess.start(COMMAND, seen, given, (self._file,))
        self._process = process
        job: dict[str, Any] = {"ticket": 0, "op": "load"}
        try:
            answer = await process.ask(job, content, wall_s=_left(ends))
        except Stopped as stop:
            if stop.head.get("compile") != "all":
                raise
            made = await compiled(content, (PROGRAM,), self._limits, seen, wall_s=_left(ends))
            answer = await process.ask({**job, "object": made}, content, wall_s=_left(ends))
        self._layout = _layout(answer.head, self._limits)
        await asyncio.to_thread(_size, self._file, self._layout.size)

    def _environment(self) -> Mapping[str, str]:
        seen = environment(self._limits.memory_mib)
        if not _is_confined(self._backend):
            seen |= {name: value for name, value in os.environ.items() if name.startswith(_GPU)}
        return seen

    async def close(self) -> None:
        """Ends the process. May be called twice."""
        process, self._process, self._layout = self._process, None, None
        file, self._file = self._file, -1
        if process is not None:
            await process.kill()
        if file >= 0:
            os.close(file)


def _is_confined(backend: Backend) -> bool:
    """A GPU's libraries open devices, start threads, and take address space without end."""
    return backend in ("native", "reference")


def _left(ends: float) -> float:
    return ends - asyncio.get_running_loop().time()


def _layout(head: Mapping[str, Any], limits: WorkerLimits) -> Layout:
    """Of what a process has said of its bundle, within the update's memory. Raises Stopped."""
    dimension, memory = head.get("dimension"), head.get("memory")
    if type(dimension) is not int or type(memory) is not int or min(dimension, memory) < 0:
        raise Stopped(round_pb2.PROGRAM_FAILED, "an answer that makes no sense")
    layout = Layout(4 * dimension, memory)
    if layout.size > limits.memory_mib << 20:
        why = f"a model that takes {layout.size >> 20} MiB to update"
        raise Stopped(round_pb2.OUT_OF_MEMORY, f"{why}; worker.memory_mib is {limits.memory_mib}")
    return layout


# ---------------------------------------------------------------- the file that is shared


def _nameless() -> int:
    """A file without a name: in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("delian-update", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _size(file: int, size: int) -> None:
    """Gives the file its size, for good where the system can: no process can make it larger."""
    os.ftruncate(file, size)
    if hasattr(os, "memfd_create"):
        import fcntl

        fcntl.fcntl(file, _ADD_SEALS, _SEALS)


def _write(file: int, place: int, content: bytes | memoryview[int]) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left[:_CHUNK_BYTES], place)
        left, place = left[written:], place + written


def _read(file: int, place: int, size: int) -> bytes:
    """A copy: what is looked at is what is stored, whatever the process still does."""
    parts, end = [], place + size
    while place < end:
        part = os.pread(file, min(end - place, _CHUNK_BYTES), place)
        if not part:
            raise OSError("the file that is shared with an update is too short")
        parts.append(part)
        place += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
