"""The host's side of a training script: a process that the site's owner has installed.

The host, a device's agent or the simulator, starts the command with one end of a socket pair, whose
number is in DELIAN_CLIENT_FD; `delian.client` reads it. Over it go frames (`sandbox.frames`):

    first      {"version": 3, "client": number or null, "clients", "places": number,
                "memory": descriptor or null}
               + JSON {"leaves": [[name, shape], ...], "script": ScriptSpec}
    task       {"task", "purpose": "train" or "evaluate", "run", "round", "client", "clients",
                "seed", "folder", "given"} + the weights, f32[D]
    answer     {"task", "examples", "loss", "metrics": {name: number}} + the weights, or nothing
               {"task", "failed": text}
    of "init"  {"task", "arrays": [[name, "f" or "i", shape], ...]} + the arrays, f32 and i64

Weights lie as the bundle's manifest has its leaves. With "memory" they are in memory that both
sides have (`shared_weights`): frames of tasks have no body, and an answer says "shared". Those of a
task are at place "given", those of its answer at place task modulo "places". Tasks of the same
weights have one place. A task may be sent while the one before is worked on, as many as there are
places: the script then begins it at once.

The script runs with its owner's rights, and no sandbox: nothing of it comes from outside. What it
answers is checked like anything else: its sizes before they are allocated, its numbers before they
are used.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...common.printable import escaped
from ...learning.bundle import Leaf
from ...wire.round_pb2 import DEADLINE, PROGRAM_FAILED, FailureReason
from ..sandbox import frames
from .shared_weights import SharedWeights, shared_weights

VERSION = 3
FD_VARIABLE = "DELIAN_CLIENT_FD"
EXAMPLES_MAX = 2**31
METRICS_MAX = 64
WHY_CHARS_MAX = 500
#: Of what a script printed, so much is quoted when it has ended.
TAIL_BYTES, TAIL_LINES = 4096, 6
#: How often it is looked whether a silent script still runs.
_LOOK_S = 0.5
_END_S, _KILL_S = 10.0, 10.0
#: Of a short frame, which is received in one call of the system.
_AHEAD_BYTES = 4096

T = TypeVar("T")
Array = NDArray[Any]
Purpose = Literal["train", "evaluate", "init"]
#: The first weights that a script may send.
FIRST_BYTES_MAX = 1 << 30


class ScriptFault(DelianError):
    """A script gave no answer. reason: what the task is answered."""

    def __init__(self, reason: FailureReason, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A command of an owner's."""

    arguments: tuple[str, ...]
    """The program and its arguments."""
    folder: Path | None = None
    """Where it is started; None: where the host was."""
    client: int | None = None
    """The number that the script gets; None: the device's."""
    clients: int | None = None
    """How many scripts share what it reads, if it takes a part of it; None: it does not."""


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """What a script is asked for."""

    purpose: Purpose
    run: int
    round: int
    client: int
    """The site's number; in a simulation from 0 to `clients` - 1."""
    clients: int | None = None
    """In a simulation, how many there are."""
    seed: int = 0
    """Of what the script draws, below 2^63."""
    folder: str = ""
    """A folder of the client's own."""

    def fields(self) -> dict[str, Any]:
        """As a task's frame has them."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ScriptReply:
    """What a script answered, checked."""

    weights: Array | None
    """f32[D]; None where it sent none."""
    examples: float
    """How many it trained on, or judged by."""
    loss: float | None
    """The mean over training; None: it did not say."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the weights that it received, by name."""

    def kept(self) -> ScriptReply:
        """With weights of its own."""
        return self if self.weights is None else replace(self, weights=self.weights.copy())


class ScriptProcess:
    """A running script of one bundle. After a fault it is gone.

    leaves, script: of the bundle's manifest. log: a file that gets what it prints. client: whose
    the process is; None: it serves several. clients: as of ScriptJob. places: how many jobs may be
    sent whose answers were not received. Raises ScriptFault where the command cannot be started.
    """

    def __init__(
        self,
        command: ScriptCommand,
        leaves: Sequence[Leaf],
        script: Mapping[str, Any],
        log: Path,
        nice: int = 0,
        *,
        client: int | None = None,
        clients: int | None = None,
        environment: Mapping[str, str] | None = None,
        places: int = 1,
    ) -> None:
        self.log, self._command = log, command
        self._size = sum(leaf.size for leaf in leaves)
        self._memory = shared_weights(self._size, places)
        self.ended = False
        self.answer_s = math.inf
        """How long the last answer was waited for."""
        self._places, self._sent, self._models = places, 0, 0
        self._newest: ref[Array] | None = None  # of the models that were given
        self._open: deque[tuple[int, Purpose]] = deque()  # jobs sent, by number
        near, far = socket.socketpair()
        passed = [far.fileno(), *([self._memory.descriptor] if self._memory else [])]
        given = dict(os.environ if environment is None else environment)
        given = {n: v for n, v in given.items() if not n.startswith("DELIAN__")}
        given |= {FD_VARIABLE: str(far.fileno()), "PYTHONUNBUFFERED": "1"}
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command.arguments,
                    cwd=command.folder,
                    env=given,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=passed,
                    start_new_session=True,
                )
        except OSError as error:
            near.close()
            self._forget()
            raise ScriptFault(
                PROGRAM_FAILED,
                f"the script {shown(command.arguments)} cannot be started: {error.strerror}",
                "its command is looked for in PATH; try it in a terminal",
            ) from None
        finally:
            far.close()
        if nice:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)
        self._socket = near
        self._reading = _Stream(near, self._process)
        self._writing = _Stream(near, self._process)
        names = [[leaf.name, list(leaf.shape)] for leaf in leaves]
        self._whose = {
            "version": VERSION,
            "client": client,
            "clients": clients,
            "places": places,
            "memory": self._memory.descriptor if self._memory else None,
        }
        hello = json.dumps({"leaves": names, "script": dict(script)}).encode()
        self._hello: bytes | None = hello

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def takes_at_once(self) -> bool:
        """Whether `send` does not wait for the script: weights do not go through the socket."""
        return self._memory is not None and not self.ended

    def ask(self, job: ScriptJob, weights: Array, wall_s: float) -> ScriptReply:
        """A job's answer. Blocks; another thread may `kill`. Raises ScriptFault."""
        self.send(job, weights, wall_s)
        return self.receive(wall_s).kept()

    def send(self, job: ScriptJob, weights: Array, wall_s: float) -> None:
        """Gives a job, while fewer than `places` are open; one thread at a time.

        Another may receive. weights: they are not changed as long as there are jobs of them. Raises
        ScriptFault.
        """
        with self._faults(wall_s):
            stream = self._writing
            stream.ends = time.monotonic() + wall_s
            if self._hello is not None:
                frames.write(stream, self._whose, self._hello)
                self._hello = None
            assert len(self._open) < self._places
            number = self._sent = self._sent + 1
            given, body = 0, memoryview(b"")
            if self._memory is not None:
                given = self._given(weights, self._memory)
            else:
                body = np.ascontiguousarray(weights, "<f4").view("u1").data
            self._open.append((number, job.purpose))
            frames.write(stream, {"task": number, **job.fields(), "given": given}, body)

    def _given(self, weights: Array, memory: SharedWeights) -> int:
        """The place of a job's weights, which are written there unless the job before had them.

        Other weights go to the next place. Fewer jobs than places are open, the last ones: none of
        them is of the weights that were there.
        """
        if self._newest is None or self._newest() is not weights:
            self._models += 1
            memory.given[self._models % self._places][:] = weights
            self._newest = ref(weights)
        return self._models % self._places

    def receive(self, wall_s: float) -> ScriptReply:
        """The answer of the open job that was sent first; one thread at a time.

        Its weights are overwritten by those of the job that is sent `places` after it. Raises
        ScriptFault.
        """
        size, memory = 4 * self._size, self._memory

        def read(number: int, purpose: Purpose, frame: frames.Frame) -> ScriptReply:
            shared = frame.head.get("shared") is True and memory is not None
            reply = reply_of(frame, size, "evaluate" if shared else purpose)
            if memory is None or not shared:
                return reply
            return replace(reply, weights=memory.answers[number % self._places])

        return self._received(wall_s, size, read)

    def first(self, wall_s: float) -> dict[str, Array]:
        """The arrays of the script's model as it begins, by name. Raises ScriptFault."""
        self.send(ScriptJob("init", 0, 0, 0), np.empty(0, np.float32), wall_s)
        return self._received(wall_s, FIRST_BYTES_MAX, lambda _, __, frame: arrays_of(frame))

    def _received(
        self, wall_s: float, bytes_max: int, read: Callable[[int, Purpose, frames.Frame], T]
    ) -> T:
        """What `read` makes of the answer. It raises FrameError where the script cannot go on."""
        began = time.monotonic()
        with self._faults(wall_s):
            self._reading.ends = began + wall_s
            frame = frames.read(self._reading, bytes_max)
            if frame is None:
                raise _Ended
            number, purpose = self._open[0]
            if (task := frame.head.get("task")) != number:
                raise frames.FrameError(f"it is of task {task!r:.40}, and not of this one")
            if "failed" in frame.head:
                self._open.popleft()
                why = escaped(str(frame.head["failed"])[:WHY_CHARS_MAX])
                raise ScriptFault(PROGRAM_FAILED, why, f"what it printed is in {self.log}")
            found = read(number, purpose, frame)
            self._open.popleft()
            self.answer_s = time.monotonic() - began
            return found

    @contextlib.contextmanager
    def _faults(self, wall_s: float) -> Iterator[None]:
        """Ends the process where the script cannot go on, and says why by a ScriptFault."""
        try:
            yield
        except TimeoutError:
            self.kill()
            raise ScriptFault(
                DEADLINE,
                f"the script {shown(self._command.arguments)} did not answer within {wall_s:g} s",
                f"what it printed is in {self.log}",
            ) from None
        except (_Ended, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)  # it has closed its end, and is about to end
            fault = self._ended()
            self.kill()
            raise fault from None
        except ScriptFault:
            raise
        except DelianError as error:
            self.kill()
            raise ScriptFault(PROGRAM_FAILED, f"the script's answer: {error.message}") from None

    def _ended(self) -> ScriptFault:
        code = self._process.returncode
        said = tail(self.log)
        return ScriptFault(
            PROGRAM_FAILED,
            f"the script {shown(self._command.arguments)} ended with {code}"
            + (f"; its last lines:\n{said}" if said else ""),
            "it is to take tasks until there are no more: for task in client.tasks()",
        )

    def close(self, wait_s: float = 0.0) -> None:
        """There are no more tasks; after the wait the process is killed. May be called twice."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self.kill()

    def kill(self) -> None:
        """Ends the process and all that it started. May be called twice, and by any thread."""
        self.ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        self._socket.close()
        self._forget()

    def _forget(self) -> None:
        if self._memory is not None:
            self._memory.close()


def reply_of(frame: frames.Frame, size: int, purpose: Purpose) -> ScriptReply:
    """An answer, checked. size: bytes of the weights. Raises FrameError."""
    head = frame.head
    try:
        examples, metrics = float(head["examples"]), dict(head.get("metrics") or {})
        loss = None if head.get("loss") is None else float(head["loss"])
        judged = {str(name): float(value) for name, value in metrics.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise frames.FrameError(f"it makes no sense: {error}") from None
    if not 0.0 <= examples <= EXAMPLES_MAX or len(judged) > METRICS_MAX:
        raise frames.FrameError(f"{examples:g} examples and {len(judged)} metrics")
    if len(frame.body) not in (0, size):
        raise frames.FrameError(f"weights of {len(frame.body)} bytes, where the model has {size}")
    weights = np.frombuffer(frame.body, "<f4") if frame.body else None
    if weights is None and purpose == "train":
        raise frames.FrameError("it has no weights, and the task was to train")
    return ScriptReply(weights, examples, loss, judged)


def arrays_of(frame: frames.Frame) -> dict[str, Array]:
    """The first weights that a script sends, by name, f32 and i64. Raises FrameError."""
    found: dict[str, Array] = {}
    start = 0
    try:
        for name, kind, shape in frame.head["arrays"]:
            dtype = np.dtype({"f": "<f4", "i": "<i8"}[kind])
            stop = start + dtype.itemsize * math.prod(int(d) for d in shape)
            found[str(name)] = np.frombuffer(frame.body[start:stop], dtype).reshape(shape)
            start = stop
    except (KeyError, TypeError, ValueError) as error:
        raise frames.FrameError(f"its first weights make no sense: {error}") from None
    return found


class _Ended(Exception):
    """The process is gone."""


class _Stream:
    """A socket as frames read or write it, until `ends`. Raises TimeoutError, _Ended, OSError."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._socket, self._process = connection, process
        self.ends = 0.0
        self._ahead = b""  # received, and not read

    def _waiting(self, step: Callable[[], Any]) -> Any:
        while True:
            left_s = self.ends - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            wait_s = min(left_s, _LOOK_S)
            if self._socket.gettimeout() != wait_s:  # to set it is a call of the system
                self._socket.settimeout(wait_s)
            try:
                return step()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise _Ended from None

    def read(self, size: int, /) -> bytes:
        found = self._ahead
        if not found:
            found = self._waiting(lambda: self._socket.recv(max(size, _AHEAD_BYTES)))
        self._ahead = found[size:]
        return found[:size]

    def write(self, content: bytes | memoryview, /) -> int:
        rest = memoryview(content).cast("B") if len(content) else memoryview(b"")
        while rest:
            sent: int = self._waiting(functools.partial(self._socket.send, rest))
            rest = rest[sent:]
        return len(content)

    def flush(self) -> None: ...


def shown(arguments: Sequence[str]) -> str:
    """A command, for people."""
    return escaped(" ".join(arguments)[:200])


def tail(log: Path) -> str:
    """The last lines of what a script printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {escaped(line[:200])}" for line in lines[-TAIL_LINES:])
