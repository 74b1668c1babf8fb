"""A fleet of daemons whose devices train with their edge, and its operator's command line.

    with SplitFleet(folder) as fleet:
        events = list(fleet.submit())
        weights = fleet.model(2)

Some of the devices may be connected through a `Gate`, which stops them in the middle of a training.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from delian.core.compiler.ir import Array
from delian.core.learning.bundle import load as load_bundle
from delian.simulations.processes.fleet_files import FleetFiles, Layout
from delian.simulations.processes.launcher import Children
from delian.simulations.runs.stage import Stage
from delian.simulations.runs.windowed_data import device_file
from delian.simulations.scenario.scenario import Scenario
from delian.simulations.scenario.scenario_file import load, override

from support.processes.gate import Gate

DEVICES, ROUNDS = 4, 2
#: First layer on the device, with what is so slow there that the rest is best above, also where a
#: busy machine makes the link seem slow.
SETTINGS = (
    f"rounds={ROUNDS}",
    'algorithm={name="fedavg", learning_rate=0.05}',
    "round.timeout_ms=180000",
    f"round.cohort={DEVICES}",
    f"fleet.devices={DEVICES}",
    "fleet.edges=1",
    "fleet.dropout=0.0",
    "data.held_out_devices=0",
    "split.enabled=true",
    'split.on_device=["layers.0.*"]',
    "split.device_gflops=0.0001",
    "split.edge_gflops=5.0",
    "network.device_edge.latency_ms=1.0",
)
#: A device sends more than this in a training, and less before and without one.
HELD_BYTES = 40_000
COMMAND_S = 400


def scenario() -> Scenario:
    """What `submit` submits."""
    return override(load("digits"), SETTINGS)


class SplitFleet:
    """Coordinator, edge 1 and devices. Use it as a context: no process is left.

    gated: numbers of the devices that reach their edge through `gate`.
    """

    def __init__(self, folder: Path, gated: Sequence[int] = ()) -> None:
        self.folder = folder
        self._gated = gated
        self.files = FleetFiles(Layout(folder, 1, DEVICES, frozenset(), split=True))
        self.gate = Gate(self.files.address("edge-1"), HELD_BYTES)
        self.children = Children(folder)
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> SplitFleet:
        files = self.files
        files.make_identities()
        files.write_cloud()
        files.write_edge(1)
        with contextlib.closing(Stage(scenario(), None, None, "reference", _nothing)) as stage:
            names = [leaf.name.rpartition(".")[2] for leaf in stage.bundle.manifest.data]
            for number, device in enumerate(stage.data.training):
                given = device_file(stage.whole[device], names, stage.room)
                files.write_device(number, given, "native")
        for number in self._gated:
            config = files.config(f"device-{number}")
            text = config.read_text().replace(files.address("edge-1"), self.gate.address)
            config.write_text(text)
        with contextlib.ExitStack() as closing:
            closing.enter_context(self.gate)
            closing.enter_context(self.children)
            for name in ("cloud", "edge-1"):
                self._start(name)
                self.children.wait_ready([name])
            devices = [f"device-{number}" for number in range(DEVICES)]
            for name in devices:
                self._start(name)
            self.children.wait_ready(devices)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _start(self, name: str) -> None:
        tier = name.partition("-")[0]
        self.children.add(name, [tier, "run", "--config", str(self.files.config(name))])

    def submit(self) -> Iterator[dict[str, Any]]:
        """`delian run submit digits --watch`: the run's events as they come, until its end."""
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        watching = subprocess.Popen(
            self._command("run", "submit", "digits", *sets, "--watch", "--json"),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._closing.callback(watching.kill)
        return self._events(watching)

    def _events(self, watching: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        assert watching.stdout is not None
        with watching.stdout as lines:
            yield from map(json.loads, lines)
        assert watching.wait(COMMAND_S) == 0

    def model(self, round: int) -> Array:
        """The weights after a round, as `delian model export` gives them."""
        path = self.folder / "model.bundle"
        command = self._command("model", "export", f"1/{round}", str(path))
        subprocess.run(command, check=True, timeout=COMMAND_S, capture_output=True)
        return load_bundle(path).weights

    def trained(self, device: int) -> int:
        """How often a device has trained with the edge, to the end."""
        return (self.folder / f"device-{device}.log").read_text().count('"trained with edge')

    def _command(self, *words: str) -> list[str]:
        identity = str(self.folder / "operator" / "identity")
        at = ["--coordinator", self.files.address("cloud"), "--identity", identity]
        return [sys.executable, "-m", "delian", *words, *at]


def _nothing(_: object) -> None:
    """Takes what a stage reports, and drops it."""
