"""The script's side of its host: tasks are read, answers are sent.

`core.node.scripts.script_process` is the other side, and has the frames.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.common.errors import DelianError
from ..core.node.sandbox import frames
from ..core.node.scripts.shared_weights import SharedWeights
from . import weights as forms

VERSION = 3
FD_VARIABLE = "DELIAN_CLIENT_FD"
#: The largest body of a frame: 2^28 weights.
BODY_BYTES_MAX = 1 << 30
FAILED_CHARS_MAX = 500

Array = NDArray[Any]


class NoHostError(DelianError):
    """The script was started by hand, so nothing gives it tasks."""


class _Stream:
    """A socket as `frames` reads and writes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._incoming = connection.makefile("rb")  # a short frame in one call of the system

    def read(self, size: int, /) -> bytes:
        return self._incoming.read(size)

    def write(self, content: bytes | memoryview, /) -> int:
        self._socket.sendall(content)
        return len(content)

    def flush(self) -> None: ...


class _Host:
    """The connection to the host, and what it said first."""

    def __init__(self, number: int) -> None:
        self._stream = _Stream(socket.socket(fileno=number))
        hello = frames.read(self._stream, BODY_BYTES_MAX)
        if hello is None:
            raise NoHostError("the host of this script has ended")
        if hello.head.get("version") != VERSION:
            raise DelianError(
                f"the host speaks version {hello.head.get('version')!r:.20}, and this package"
                f" {VERSION}",
                "install the same version of Delian for the script and for the agent",
            )
        self.client: int | None = hello.head.get("client")
        self.clients: int | None = hello.head.get("clients")
        said = json.loads(hello.body)
        script = said["script"]
        self.leaves = [(str(n), tuple(int(d) for d in shape)) for n, shape in said["leaves"]]
        self.settings: Mapping[str, Any] = script.get("settings", {})
        self.metrics: tuple[str, ...] = tuple(script.get("metrics", ()))
        self.others = forms.others_of(script.get("others", {}))
        memory: int | None = hello.head.get("memory")
        self.memory: SharedWeights | None = None
        """Where tasks' weights and answers lie; None: in the bodies of frames."""
        if memory is not None:
            os.set_inheritable(memory, False)
            size = sum(math.prod(shape) for _, shape in self.leaves)
            self.memory = SharedWeights(memory, size, int(hello.head["places"]))

    def weights(self, frame: frames.Frame) -> Array:
        """A task's weights, f32[D]: not to be changed, and there until it is answered."""
        if self.memory is not None:
            return self.memory.given[int(frame.head["given"])]
        return np.frombuffer(frame.body, "<f4").astype(np.float32, copy=False)

    def put(
        self, task: int, weights: Mapping[str, Array]
    ) -> tuple[dict[str, Any], bytes | memoryview]:
        """Weights that are sent: what the answer's head says of them, and its body."""
        if self.memory is not None:
            answers = self.memory.answers
            forms.join(weights, self.leaves, answers[task % len(answers)])
            return {"shared": True}, b""
        flat = np.empty(sum(math.prod(shape) for _, shape in self.leaves), "<f4")
        forms.join(weights, self.leaves, flat)
        return {}, flat.view(np.uint8).data

    def next(self) -> frames.Frame | None:
        try:
            return frames.read(self._stream, BODY_BYTES_MAX)
        except ConnectionResetError:
            return None

    def send(self, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        try:
            frames.write(self._stream, head, body)
        except (BrokenPipeError, ConnectionResetError):
            raise NoHostError("the host of this script has ended") from None


class Task:
    """One round's work for this site: train, or only judge."""

    def __init__(self, host: _Host, frame: frames.Frame) -> None:
        head = frame.head
        self._host, self._number = host, head["task"]
        self._answered = False
        self.purpose: Literal["train", "evaluate"] = head["purpose"]
        """What is asked for: "train", or "evaluate", for metrics of the weights alone."""
        self.run = int(head["run"])
        """The run's number."""
        self.round = int(head["round"])
        """The round, from 1."""
        self.client = int(head["client"])
        """This site's number; in a simulation from 0 to `clients` - 1."""
        self.clients = head.get("clients")
        """How many clients a simulation has; None at a real site."""
        self.seed = int(head["seed"])
        """For what the script draws: a function of run, round and client, below 2^63."""
        self.settings = self._host.settings
        """What the run says to its scripts, such as a learning rate: numbers and texts by name."""
        self._folder: str = head.get("folder", "")
        self._given: Array | None = host.weights(frame)
        self._own: dict[str, Array] | None = None

    @property
    def folder(self) -> Path | None:
        """A folder where this client's script may keep what is its own."""
        return Path(self._folder) if self._folder else None

    @property
    def weights(self) -> dict[str, Array]:
        """The round's weights by name, f32, copied when they are first asked for.

        The script may change them. Raises DelianError where that is after the answer.
        """
        if self._own is None:
            self._own = forms.split(self._received().copy(), self._host.leaves)
        return self._own

    def _received(self) -> Array:
        """The weights as they came, f32[D]."""
        if self._given is None:
            raise DelianError(
                "the weights of a task that is answered are no longer there",
                "take task.weights before task.send()",
            )
        return self._given

    def _now(self) -> dict[str, Array]:
        """The weights by name, to be read at once: as they came, or as the script has them."""
        return self._own or forms.split(self._received(), self._host.leaves)

    def state_dict(self) -> dict[str, Any]:
        """The weights as torch tensors, with the site's own arrays that are no floats."""
        return forms.state_dict(self._now(), self._host.others)

    def arrays(self) -> list[Array]:
        """The weights as a list, in the order in which a list was given to the run."""
        return [self.weights[name] for name, _ in self._host.leaves]

    def load_into(self, model: Any) -> Any:
        """Puts the weights into a torch module or a fitted estimator; gives it back."""
        return forms.load_into(model, self._now(), self._host.others)

    def send(
        self,
        weights: Any = None,
        *,
        examples: float,
        loss: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Answers the task. Once.

        Args:
            weights: the trained ones: a torch module, a state_dict, a dict of arrays by name, a
                list in the order of `arrays`, or an estimator of scikit-learn. Not needed to
                evaluate.
            examples: how many the script trained on, or judged by: the weight of its answer.
            loss: the mean over training.
            metrics: of the weights that it received: "loss", "accuracy" (a share of 1) and the
                run's own.

        Raises:
            WeightsError: the weights are not those of the run's model; the error names the array.
            DelianError: the task was answered, a number is no number.
            NoHostError: the agent has ended.
        """
        if self._answered:
            raise DelianError("this task is answered", "send once for each of client.tasks()")
        trains = self.purpose == "train"
        if weights is None and trains:
            raise DelianError(
                "the task is to train, and no weights are sent",
                'give them to send, or send metrics alone where task.purpose == "evaluate"',
            )
        head = {
            "examples": _number("examples", examples),
            "loss": None if loss is None else _number("loss", loss),
            "metrics": _metrics(metrics or {}),
        }
        body: bytes | memoryview = b""
        if trains:
            found = forms.arrays_of(weights, self._host.leaves)
            self._host.others = forms.own_others(weights, self._host.others)
            said, body = self._host.put(self._number, found)
            head |= said
        self.answer(head, body)

    def answer(self, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Sends an answer's frame as it is. Once."""
        self._answered, self._given = True, None
        self._host.send({"task": self._number, **head}, body)

    def fail(self, why: str) -> None:
        """Answers that this round's task is not done, and why. The next one may be."""
        if not self._answered:
            self.answer({"failed": why[:FAILED_CHARS_MAX]})

    @property
    def answered(self) -> bool:
        """Whether it was sent, or failed."""
        return self._answered


_host: list[_Host] = []


def tasks(first: Any = None, *, purposes: Sequence[str] = ("train", "evaluate")) -> Iterator[Task]:
    """The tasks of this site, one after the other, until the host has no more.

    Args:
        first: the model, in any form that `Task.send` takes: its weights are a run's first ones
            where the run brings none along.
        purposes: those that the script serves. Others are answered with a failure.

    Raises:
        NoHostError: the script was not started by an agent or by the simulator.
        WeightsError: `first` is no model.
    """
    host = _connected()
    while (frame := host.next()) is not None:
        task = Task(host, frame)
        if frame.head["purpose"] == "init":
            _send_first(host, task, first)
            continue
        if task.purpose not in purposes:
            task.fail(f"the script does not {task.purpose}")
            continue
        yield task
        task.fail("the script went on without task.send()")


@dataclass(frozen=True, slots=True)
class Site:
    """Whose script this is."""

    client: int
    """The site's number; in a simulation from 0 to `clients` - 1."""
    clients: int | None
    """How many clients a simulation has; None at a real site."""
    settings: Mapping[str, Any]
    """As of `Task.settings`."""


def site() -> Site:
    """The site, before there is a task: for scripts that load their data first.

    Raises:
        NoHostError: as of `tasks`.
        DelianError: the process serves several simulated clients; their tasks say whose they are.
    """
    host = _connected()
    if host.client is None:
        raise DelianError(
            "this process serves several simulated clients",
            "choose the data by task.client, or set data.process_each = true in the scenario",
        )
    return Site(host.client, host.clients, host.settings)


def _send_first(host: _Host, task: Task, first: Any) -> None:
    """Answers with the model's arrays as they are."""
    if first is None:
        task.fail("no first weights: write client.tasks(model), or let the run bring them along")
        return
    parts, bodies = [], []
    for name, value in forms.named(first).items():
        kind = "f" if value.dtype.kind == "f" else "i"
        parts.append([name, kind, list(value.shape)])
        bodies.append(np.ascontiguousarray(value, "<f4" if kind == "f" else "<i8").tobytes())
    task.answer({"arrays": parts}, b"".join(bodies))


def connected() -> bool:
    """Whether there is a host that gives tasks."""
    return bool(_host) or FD_VARIABLE in os.environ


def _connected() -> _Host:
    if _host:
        return _host[0]
    number = os.environ.pop(FD_VARIABLE, "")  # what the script starts is no script of the host's
    if not number.isdigit():
        raise NoHostError(
            "no agent has started this script, so there are no tasks for it",
            "run it as delian simulate --script FILE, or delian device run --script NAME=COMMAND",
        )
    _end_with_parent()
    os.set_inheritable(int(number), False)
    _host.append(_Host(int(number)))
    return _host[0]


def _end_with_parent() -> None:
    """On Linux a script dies with its host, as workers do."""
    if sys.platform != "linux":
        return
    set_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)


def _number(name: str, value: Any) -> float:
    """A number of any package's, as float. Infinite and NaN go on: the host counts them."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise DelianError(f"{name} is {type(value).__name__}", "give a number") from None
    if name == "examples" and not 0 <= found < 2**31:
        raise DelianError(f"examples is {found:g}", "give how many the script trained on")
    return found


def _metrics(given: Mapping[str, Any]) -> dict[str, float]:
    found = {str(name): _number(f"the metric {name}", value) for name, value in given.items()}
    accuracy = found.get("accuracy", 0.0)
    if not math.isnan(accuracy) and not 0.0 <= accuracy <= 1.0:
        raise DelianError(
            f"the metric accuracy is {accuracy:g}", "it is a share of 1: divide percents by 100"
        )
    return found
