"""Split training over real processes.

An edge that owns the upper part, a device, and a link between them that is shaped.

    with SplitProcesses(folder, bundle, cut, above) as edge:
        trained = edge.train(below, batches, examples=60)
        ended = edge.end()                        # what the edge's operator reads

The processes are this module run with an order in a file. The edge says its port, and writes the
round's weights down when its operator, which holds its standard input, writes "end".

    python -m support.processes.split_processes ORDER.json
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Array
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.cut import Cut
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import Sharing
from delian.core.placement.split_training.training_requests import SplitLostError
from delian.core.placement.split_training.training_service import TrainingHost
from delian.core.placement.split_training.trainings import Trainings
from delian.core.placement.subgraphs.frames.stream_service import SubgraphService
from delian.core.protocol.ports import Tier
from delian.device.serving.split_trainer import SplitTrainer

from support.processes import python_path
from support.processes.shaped_link import Shape, ShapedLink, in_thread

#: For a process to start, and to end.
START_S, END_S = 120.0, 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a device's process wrote down.

    Its leaves and losses, or why there are none and after how many whole steps.
    """

    weights: dict[int, Array]
    losses: list[float]
    streams: int
    """That the edge was reached on."""
    lost: str
    steps: int


class SplitProcesses:
    """An edge with a round, and the link to it. Use it as a context: no process is left."""

    def __init__(
        self, folder: Path, bundle: StepBundle, cut: Cut, above: Mapping[int, Array]
    ) -> None:
        self.folder = folder
        self._bundle, self._cut, self._above = bundle, cut, above
        self.edge: subprocess.Popen[bytes]
        self.link: ShapedLink
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> SplitProcesses:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._bundle.save(self.folder / "step.dlb")
        _save(self.folder / "above.npz", self._above)
        with contextlib.ExitStack() as closing:
            self.edge = self._start({"role": "edge", "out": "ended"})
            closing.callback(lambda: _kill(self.edge))
            port = self._line(self.edge)
            self.link = ShapedLink(f"127.0.0.1:{port}", Shape())
            closing.enter_context(in_thread(self.link))
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def train(
        self,
        below: Mapping[int, Array],
        batches: Sequence[Sequence[Array]],
        examples: int,
        *,
        due_s: float = 60.0,
        meddle: Mapping[int, Callable[[], None]] | None = None,
    ) -> Told:
        """Lets a device train.

        meddle: what is done when so many steps are done. Raises DelianError where its process
        fails.
        """
        _save(self.folder / "below.npz", below)
        flat: dict[str, Any] = {
            f"{n}.{k}": a for n, batch in enumerate(batches) for k, a in enumerate(batch)
        }
        np.savez(self.folder / "batches.npz", **flat)
        order = {"role": "device", "out": "trained", "port": self.link.port}
        more = {"steps": len(batches), "examples": examples, "due_s": due_s}
        process, left = self._start({**order, **more}), dict(meddle or {})
        try:
            assert process.stdout is not None
            for line in process.stdout:
                left.pop(int(line), _nothing)()
            code = process.wait(END_S)
        finally:
            _kill(process)
        if code:
            raise DelianError(f"the device's process ended with {code}", self._tail("device"))
        told = json.loads((self.folder / "trained.json").read_text())
        return Told(_load(self.folder / "trained.npz"), **told)

    def end(self) -> tuple[dict[int, Array], dict[str, Any]]:
        """Ends the round at the edge: its weights, and what devices did."""
        assert self.edge.stdin is not None
        self.edge.stdin.write(b"end\n")
        self.edge.stdin.flush()
        self._line(self.edge)
        told = json.loads((self.folder / "ended.json").read_text())
        return _load(self.folder / "ended.npz"), told

    def kill_edge(self) -> None:
        """As `kill -9` does."""
        _kill(self.edge)

    def _start(self, order: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        file = self.folder / f"{order['role']}.json"
        said = {"folder": str(self.folder), "cut": self._cut.to_bytes().hex()}
        file.write_text(json.dumps({**said, **order}))
        with (self.folder / f"{order['role']}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "support.processes.split_processes",
                    str(file),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )

    def _line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        said = process.stdout.readline().decode().strip()
        if not said:
            raise DelianError("the edge's process ended", self._tail("edge"))
        return said

    def _tail(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")[-2000:]


def _nothing() -> None:
    pass


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _save(file: Path, weights: Mapping[int, Array]) -> None:
    named: dict[str, Any] = {str(i): a for i, a in weights.items()}
    np.savez(file, **named)


def _load(file: Path) -> dict[int, Array]:
    with np.load(file) as found:
        return {int(name): found[name] for name in found.files}


# ---------------------------------------------------------------- in the processes


async def _edge(order: Mapping[str, Any], folder: Path) -> None:
    bundle = StepBundle.load(folder / "step.dlb")
    cut = Cut.from_bytes(bytes.fromhex(order["cut"]))
    host = TrainingHost(Trainings(bundle, cut, Sharing.COPIES, "native", "reproducible"))
    guard = Guard(INSECURE, Tier.EDGE)
    service = SubgraphService(host, guard)
    hub = GrpcHub(Switch(), "127.0.0.1:0", None, guard, servicers=(service.add,))
    host.begin(_load(folder / "above.npz"))
    print(await hub.start(), flush=True)
    keepers = [asyncio.create_task(c) for c in (host.keep_expiring(), service.keep_reviewing())]
    while await asyncio.to_thread(sys.stdin.readline):
        ended = await host.end()
        _save(folder / f"{order['out']}.npz", ended.weights)
        told = {"finished": ended.finished, "unfinished": ended.unfinished}
        told_more = {**told, "repeated": host.counts["repeated"]}
        (folder / f"{order['out']}.json").write_text(json.dumps(told_more))
        print("ended", flush=True)
    for task in keepers:
        task.cancel()
    await hub.close()
    await host.close()


def _device(order: Mapping[str, Any], folder: Path) -> None:
    trainer = SplitTrainer(
        folder / "step.dlb",
        Cut.from_bytes(bytes.fromhex(order["cut"])),
        [f"edge-1@127.0.0.1:{order['port']}"],
        number=1,
        profile="reproducible",
        due_s=order["due_s"],
    )
    with np.load(folder / "batches.npz") as found:
        batches = [[found[f"{n}.{k}"] for k in range(3)] for n in range(order["steps"])]
    told: dict[str, Any] = {"losses": [], "streams": 0, "lost": "", "steps": order["steps"]}
    weights = _load(folder / "below.npz")
    try:
        trained = trainer.run(
            weights, batches, order["examples"], on_step=lambda n, _: print(n, flush=True)
        )
    except SplitLostError as error:
        told |= {"lost": error.message, "steps": error.steps}
    else:
        weights = trained.weights
        told |= {"losses": trained.losses, "streams": trained.streams}
    _save(folder / f"{order['out']}.npz", weights)
    (folder / f"{order['out']}.json").write_text(json.dumps(told))


def main() -> None:
    """Runs the order that the first argument names."""
    order = json.loads(Path(sys.argv[1]).read_text())
    if order["role"] == "edge":
        asyncio.run(_edge(order, Path(order["folder"])))
    else:
        _device(order, Path(order["folder"]))


if __name__ == "__main__":
    main()
