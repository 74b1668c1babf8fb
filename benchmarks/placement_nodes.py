"""The nodes of benchmarks/placement.py: a tier above and a slow link, each in a process of its own,
and a device that answers by one cut whatever it takes.

    python benchmarks/placement_nodes.py serve lenet resnet20
    python benchmarks/placement_nodes.py relay 127.0.0.1:7451

Both print their port and end with their input; each line of the relay's is a shape of the link,
bytes a second and seconds one way.

The tier above is what an edge or a coordinator has (`PartsHost`), the device's side an
`AskingDriver`, the link a TCP relay (`support.processes.shaped_link`). Only the machine that
chooses cuts is replaced (`Fixed`): it has no choice, no prediction and no fallback, so that a bad
cut is measured to its end.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import tests_path  # noqa: F401
from delian.core.compiler import random, tree
from delian.core.compiler.backends import Executable
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Array, DType, TensorType
from delian.core.learning.nn import zoo
from delian.core.learning.runtime import run_once
from delian.core.learning.sampling import Samples
from delian.core.learning.task import Classification
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.loopback import INSECURE
from delian.core.placement.cut.cut import SHARED, Cut
from delian.core.placement.cut.value_graph import depends
from delian.core.placement.subgraphs.frames.stream_client import Upstream
from delian.core.placement.subgraphs.machines.part_ports import (
    Answer,
    Course,
    CutOpened,
    CutRefused,
    Effect,
    Event,
    Failure,
    Refuse,
    ReplyFailed,
    ReplyReceived,
    Requested,
    Run,
    RunFinished,
    SendRequest,
    UpperGone,
    Work,
)
from delian.core.placement.subgraphs.part_programs import Model, Prepared, Programs
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.placement.subgraphs.request_driver import Answered, AskingDriver
from delian.core.placement.subgraphs.upstream_driver import Above
from delian.core.protocol.ports import CLOUD, Node, Tier
from support.processes.shaped_link import Shape, ShapedLink

DEVICE = Node(Tier.DEVICE, 1)
SYMBOLS, LENGTH, TOKENS = 80, 80, 64
_KEY = TensorType(DType.U32, (2,))


def _image(side: int, channels: int) -> TensorType:
    return TensorType(DType.F32, (1, side, side, channels))


#: One input each: a model and the type of its batch of one.
MODELS: dict[str, tuple[Callable[[Any], Any], TensorType]] = {
    "lenet": (lambda key: zoo.lenet(key, (28, 28, 1), 10), _image(28, 1)),
    "resnet20": (lambda key: zoo.resnet(key, (32, 32, 3), 10), _image(32, 3)),
    "mobilenet": (lambda key: zoo.mobilenet_v2(key, (96, 96, 3), 10), _image(96, 3)),
    "lstm": (lambda key: zoo.char_model(key, SYMBOLS), TensorType(DType.I32, (1, LENGTH))),
    "transformer": (lambda key: zoo.transformer(key, SYMBOLS), TensorType(DType.I32, (1, TOKENS))),
}
#: A program of no weight: what a request costs beside compute and bytes.
PING = "ping"


@functools.cache
def model(name: str) -> Model:
    """The model as all nodes make it: its `infer`, with weights drawn from one key."""
    digest = hashlib.sha256(name.encode()).digest()
    if name == PING:
        ping = trace(lambda x: x + 1.0, TensorType(DType.F32, (4,)), name=PING).function
        return Model(digest, b"", "infer", ping, ())
    make, x = MODELS[name]
    init = trace(make, _KEY, name="init")
    weights = tree.unflatten(init.out_structure, run_once(init.function, [random.key(1)]))
    task = Classification(name, make, Samples(1, 1.0))
    function = trace(task.infer, weights, x, name="infer").function
    leaves = tuple(np.asarray(leaf) for leaf in tree.leaves(weights))
    return Model(digest, digest, "infer", function, leaves)


def example(name: str) -> Array:
    """An input."""
    rng = np.random.default_rng(0)
    if name == PING:
        return np.zeros(4, np.float32)
    x = MODELS[name][1]
    if x.dtype is DType.F32:
        return rng.standard_normal(x.shape, dtype=np.float32)
    return rng.integers(0, SYMBOLS, x.shape).astype(np.int32)


def all_on(name: str, tier: int) -> Cut:
    """The cut that has everything on one tier."""
    whole = model(name)
    moves = depends(whole.function, whole.resident)
    labels = tuple(tier if flag else SHARED for flag in moves)
    return Cut(labels, {}, whole.bundle.hex(), whole.program)


class Fixed:
    """Answers every request by the course that is set, whatever it takes."""

    def __init__(self) -> None:
        self.course: Course | None = None
        self.opened: dict[bytes, Failure | None] = {}
        self.gone = 0
        self._runs: dict[int, tuple[int, bool]] = {}
        self._count = 0

    def handle(self, event: Event, now: int) -> list[Effect]:
        course = self.course
        match event:
            case Requested(ticket):
                assert course is not None
                if course.before is not None:
                    return [self._run(ticket, course.before, last=not course.legs)]
                return [SendRequest(ticket, course.cut, event.deadline - now)]
            case RunFinished(run, failure):
                ticket, last = self._runs.pop(run)
                if failure is not None:
                    return [Refuse(ticket, failure)]
                assert course is not None
                if last:
                    return [Answer(ticket, Work.PART, False)]
                return [SendRequest(ticket, course.cut, int(60e9))]
            case ReplyReceived(ticket):
                assert course is not None
                if course.after is None:
                    return [Answer(ticket, Work.PART, False)]
                return [self._run(ticket, course.after, last=True)]
            case ReplyFailed(ticket, failure):
                return [Refuse(ticket, failure)]
            case CutOpened(cut):
                self.opened[cut] = None
            case CutRefused(cut, failure):
                self.opened[cut] = failure
            case UpperGone():
                self.gone += 1
        return []

    def _run(self, ticket: int, part: int, last: bool) -> Run:
        assert self.course is not None
        self._count += 1
        self._runs[self._count] = (ticket, last)
        return Run(self._count, self.course.cut, Work.PART, part, (ticket,))


class Slowed:
    """A program that takes so long to run, unless it takes longer."""

    def __init__(self, program: Executable, seconds: float) -> None:
        self._program, self._seconds = program, seconds

    def __call__(self, *args: Array) -> tuple[Array, ...]:
        until = time.perf_counter() + self._seconds
        made = self._program(*args)
        while (left := until - time.perf_counter()) > 0:
            time.sleep(left)
        return made


class Device:
    """A device that runs cuts of one model. A part takes `slowdown` times its least time here,
    measured beforehand, several runs in a row: what disturbs a run here is not multiplied.
    """

    def __init__(self, name: str, cuts: Sequence[Cut], slowdown: float, port: int) -> None:
        self.machine = Fixed()
        programs = Programs("native")
        self._input, whole = example(name), model(name)
        self.prepared: dict[bytes, Prepared] = {}
        for cut in cuts:
            made = programs.prepare(whole, cut, 0)
            slow: dict[tuple[int, int], Any] = {
                place: Slowed(program, slowdown * made.seconds[place])
                for place, program in made.programs.items()
            }
            self.prepared[cut.digest().encode()] = replace(made, programs=slow)

        def upstream(owner: Above) -> Upstream:
            return Upstream(DEVICE, [(CLOUD, f"127.0.0.1:{port}")], owner, None)

        self._driver = AskingDriver(whole, self.prepared, self.machine, programs, upstream)

    async def __aenter__(self) -> Device:
        self._driver.start()
        while self._driver.upstream is None or self._driver.upstream.stream is None:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._driver.close()

    async def use(self, cut: Cut) -> None:
        """Has the cut opened above, and runs by it from now on."""
        name = cut.digest().encode()
        course = self.prepared[name].course(name)
        if course.legs and name not in self.machine.opened:
            self._driver.above.open(name)
            while name not in self.machine.opened:
                await asyncio.sleep(0.005)
            assert self.machine.opened[name] is None, f"refused: {self.machine.opened[name]}"
        self.machine.course = course

    async def ask(self) -> Answered:
        """One request, to its answer."""
        return await self._driver.request((self._input,), 60.0)


# ---------------------------------------------------------------- processes


@contextmanager
def process(*words: str) -> Iterator[tuple[int, Callable[[str], None]]]:
    """A node in a process of its own: its port, and what tells it a line."""
    child = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert child.stdin is not None and child.stdout is not None
    stdin = child.stdin

    def say(line: str) -> None:
        stdin.write(line + "\n")
        stdin.flush()

    try:
        yield int(child.stdout.readline()), say
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait(30)


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


async def serve(names: Sequence[str]) -> None:
    """Runs parts for whoever comes, until its input ends."""
    models = [model(name) for name in names]
    host = PartsHost(models, CLOUD, Guard(INSECURE, Tier.CLOUD), INSECURE, secure=False)
    server = grpc.aio.server()
    host.service.add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    lines = await _lines()
    while await lines.readline():
        pass
    await host.close()
    await server.stop(0)


async def relay(target: str) -> None:
    """Is the link, until its input ends."""
    async with ShapedLink(target, Shape()) as link:
        print(link.port, flush=True)
        lines = await _lines()
        while line := (await lines.readline()).decode().split():
            link.change(Shape.symmetric(float(line[0]), float(line[1])))


def main() -> None:
    what, *rest = sys.argv[1:]
    asyncio.run(serve(rest) if what == "serve" else relay(*rest))


if __name__ == "__main__":
    main()
