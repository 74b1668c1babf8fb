"""A model cut across real processes.

A cloud, an edge, a device, and a link that is changed under them.

The cloud and the edge are the daemons (`delian cloud run`, `delian edge run`, with `--serve`); the
device is a process with a `SplitModel`; between device and edge is a relay that shapes the link
(`shaped_link`). The device is slower than this machine by a stated factor: each of its runs is
followed by a pause of factor - 1 times what it took. `slowed` finds the factor for a device that
takes a stated time, so that a case is the same one on a fast machine and on a slow one.

    with Tiers(folder, slowed(Case())) as tiers:
        facts = tiers.ask(600, {200: slower, 400: faster})
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.common.errors import DelianError
from delian.core.compiler import ops as F
from delian.core.compiler import random
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.measure import measured_seconds
from delian.core.placement.cut.placement_plan import PlacementPlan
from delian.core.placement.cut.planning import plan_of
from delian.core.placement.cut.profile import NodeProfile
from delian.core.placement.cut.program_costs import Options
from delian.core.placement.subgraphs.part_programs import Model, Programs
from delian.simulations.processes.launcher import READY_S, Child

from support.processes.shaped_link import Shape, ShapedLink, in_thread

SIDE, CHANNELS, CLASSES = 96, 3, 10
#: Between edge and cloud: loopback, as it is.
CLOUD_LINK = LinkProfile(100e6, 100e6, 0.0005)
#: Of the whole program on the device that the case is made for: at the case's bandwidth the early
#: narrow place is the best cut, at a tenth of it the late one or none.
ALONE_S = 0.1
#: What a call takes in addition to its steps, about; the steps are measured.
CALL_S, ARGUMENT_S, COPY_S = 20e-6, 0.2e-6, 2e-10
#: For the device's process to end once its requests are answered.
END_S = 120.0


@dataclass(frozen=True, slots=True)
class Case:
    """A run of a partitioned model in real processes."""

    slowdown: float = 12.0
    """Factor on the device's run times."""
    bandwidth: float = 40e6 / 8
    """Of the device's link, bytes a second."""
    latency_s: float = 0.005
    """Of the device's link, one way."""
    edge_memory: int | None = 6 << 20
    """Bytes that the edge's parts may take; a larger part runs in the cloud."""
    due_s: float = 5.0
    """Deadline of an answer."""
    pause_s: float = 0.0
    """Pause between two requests."""
    under_way: int = 4
    """Requests at once."""
    backend: str = "native"
    seed: int = 7

    def shape(self, factor: float = 1.0) -> Shape:
        """The link with so many times its bandwidth."""
        return Shape.symmetric(self.bandwidth * factor, self.latency_s)


@dataclass(frozen=True, slots=True)
class Told:
    """What the device's process wrote down, and when the link was changed."""

    records: list[dict[str, Any]]
    """By request, when it began (monotonic), how long it took, what ran (`by`), whether as a
    fallback, and the cut that it got; or why it was refused.
    """
    switched: list[dict[str, Any]]
    """Each change of the cut."""
    right: int
    """Answers that are the whole program's."""
    alone_s: list[float]
    """Of the whole program on the device, now and then between the requests."""
    answered: dict[str, int]
    changes: dict[int, float] = field(default_factory=dict)
    """Request number -> when."""

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return sum("seconds" not in r for r in self.records)

    def percentile(self, q: float) -> float:
        """Seconds."""
        return float(np.percentile([r["seconds"] for r in self.records if "seconds" in r], q))

    def moved_s(self, number: int) -> float | None:
        """Seconds from a change of the link to the first cut other than before; None: never."""
        at = self.changes[number]
        after = [one["at"] - at for one in self.switched if one["at"] > at]
        return min(after, default=None)


def network(key: Any) -> nn.Sequential:
    """An hourglass twice over.

    An image of 108 KiB becomes 36 KiB almost at once, 4.5 KiB after a third of the work, and most
    of the work comes after that. So each bandwidth has its cut.
    """
    keys = random.split(key, 10)
    relu = nn.Function(F.relu)
    return nn.Sequential(
        (
            *(nn.Conv.init(keys[0], 3, CHANNELS, 8, stride=2), relu),
            *(nn.Conv.init(keys[1], 3, 8, 16, stride=2), relu),
            *(nn.Conv.init(keys[2], 3, 16, 128), relu),
            *(nn.Conv.init(keys[3], 3, 128, 128), relu),
            *(nn.Conv.init(keys[4], 3, 128, 128), relu),
            *(nn.Conv.init(keys[5], 3, 128, 8, stride=2), relu),
            *(nn.Conv.init(keys[6], 3, 8, 256), relu),
            *(nn.Conv.init(keys[7], 3, 256, 256), relu),
            *(nn.Conv.init(keys[8], 3, 256, 256), relu),
            *(nn.Conv.init(keys[9], 3, 256, 256), relu),
            *(nn.GlobalAvgPool(), nn.Dense.init(keys[0], 256, CLASSES)),
        )
    )


def make_bundle(seed: int = 7) -> Bundle:
    """The network with weights at random, for one image at a time."""
    rng = np.random.default_rng(seed)
    rows = SampleSet(
        rng.random((4, SIDE, SIDE, CHANNELS), np.float32),
        np.zeros(4, np.int32),
        np.array(2),
        np.array(2),
    )
    return build(
        Classification("parted", network, Samples(2, 1.0)),
        FedAvg(local=nn.sgd(0.1), server=nn.sgd(1.0)),
        rows,
        example=TensorType(DType.F32, (1, SIDE, SIDE, CHANNELS)),
        clip=1.0,
        clients_max=2,
        weight_max=2.0,
        seed=seed,
    )


def slowed(case: Case, alone_s: float = ALONE_S) -> Case:
    """The case with a device that takes `alone_s` seconds for the whole program.

    Scaled from its time on this machine now.
    """
    return replace(case, slowdown=max(1.0, alone_s / usual_s(Model.of(make_bundle(case.seed)))))


def usual_s(model: Model, runs: int = 15, pause_s: float = 0.03) -> float:
    """Seconds of the whole program as a device runs it.

    Now and then, with caches that others have used meanwhile. The median.
    """
    program = Programs().whole(model)
    x = np.zeros((1, SIDE, SIDE, CHANNELS), np.float32)
    spent = []
    for _ in range(runs):
        time.sleep(pause_s)
        began = time.perf_counter()
        program(*model.leaves, x)
        spent.append(time.perf_counter() - began)
    return float(np.median(spent))


def make_plan(bundle: Bundle, case: Case) -> PlacementPlan:
    """The plan, from the time of the whole program on this machine.

    It is shared among the operations by what each takes alone; the device takes `slowdown` times as
    long.
    """
    model = Model.of(bundle)
    each = measured_seconds(model.function, seconds=0.3)
    colder = usual_s(model) / sum(each)
    here = [colder * s for s in each]
    node = NodeProfile(
        name="here",
        cpu="",
        date="",
        threads=1,
        samples={},
        element_s={},
        bandwidth=1e10,
        memory=None,
        call_s=CALL_S,
        argument_s=ARGUMENT_S,
        encode_s={"f32": COPY_S, "f16": COPY_S, "i8": COPY_S},
    )
    device = [case.slowdown * s for s in here]
    return plan_of(
        model.function,
        model.resident,
        (node.scaled(case.slowdown, "device"), node, node),
        (LinkProfile(case.bandwidth, case.bandwidth, case.latency_s), CLOUD_LINK),
        Options(memory=(None, case.edge_memory, None)),
        bundle=bundle.content_hash(),
        program="infer",
        seconds=(device, here, here),
    )


class Tiers:
    """A cloud and an edge that serve the bundle, and the link to the edge.

    Use it as a context: none of the processes is left. folder: for all that they keep and log.
    broker: whether there is an MQTT broker as well, by which the edge can be asked.
    """

    def __init__(self, folder: Path, case: Case, broker: bool = False) -> None:
        self.folder, self.case = folder, case
        self._broker, self._with_broker = "", broker
        self.bundle_file, self.plan_file = folder / "model.dlb", folder / "plan.json"
        self.link: ShapedLink
        self.edge: Child
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Tiers:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as closing:
            bundle = make_bundle(self.case.seed)
            bundle.save(self.bundle_file)
            self.plan = make_plan(bundle, self.case)
            self.plan_file.write_text(self.plan.to_json())
            cloud = Child(
                "cloud",
                (
                    *("cloud", "run", "--insecure", "--state", str(self.folder / "cloud")),
                    *("--listen", "127.0.0.1:0", "--set", "cloud.health="),
                    *("--serve", str(self.bundle_file)),
                ),
                self.folder,
            )
            closing.callback(_end, cloud)
            cloud.start()
            port = cloud.wait_ready(time.monotonic() + READY_S)["ports"]["grpc"]
            self._cloud = f"127.0.0.1:{port}"
            if self._with_broker:
                broker = Child("broker", ("broker", "up", "--port", "0", "--json"), self.folder)
                closing.callback(_end, broker)
                broker.start()
                self._broker = broker.wait_ready(time.monotonic() + READY_S)["address"]
            self.edge = self._edge("127.0.0.1:0")
            closing.callback(lambda: _end(self.edge))
            self.edge.start()
            served = self.edge.wait_ready(time.monotonic() + READY_S)["grpc"]
            self._served = f"127.0.0.1:{served}"
            self.link = ShapedLink(self._served, self.case.shape())
            closing.enter_context(in_thread(self.link))
            self._closing = closing.pop_all()
        return self

    def _edge(self, listen: str) -> Child:
        return Child(
            "edge",
            (
                *("edge", "run", "--insecure", "--number", "1", "--listen", listen),
                *("--state", str(self.folder / "edge"), "--coordinator", self._cloud),
                *("--serve", str(self.bundle_file)),
                *("--set", f"edge.broker.url={self._broker}"),
            ),
            self.folder,
        )

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def restart_edge(self) -> None:
        """Starts the edge again where it was."""
        self.edge = self._edge(self._served)
        self.edge.start()
        self.edge.wait_ready(time.monotonic() + READY_S)

    def ask(
        self,
        requests: int,
        meddle: Mapping[int, Callable[[], None]] | None = None,
        *,
        mqtt: bool = False,
    ) -> Told:
        """Lets a device ask so many times.

        meddle: what is done at which request (a multiple of ten). mqtt: through the broker, and not
        over the shaped link. Raises DelianError where the device's process fails.
        """
        case, out = self.case, self.folder / "facts.json"
        order = {
            "bundle": str(self.bundle_file),
            "plan": str(self.plan_file),
            "homes": [f"edge-1@{self._broker if mqtt else f'127.0.0.1:{self.link.port}'}"],
            "requests": requests,
            "shape": [1, SIDE, SIDE, CHANNELS],
            "slowdown": case.slowdown,
            "backend": case.backend,
            "under_way": case.under_way,
            "due_s": case.due_s,
            "pause_s": case.pause_s,
            "seed": case.seed,
            "alone": 20,
            "out": str(out),
        }
        file = self.folder / "order.json"
        file.write_text(json.dumps(order))
        out.unlink(missing_ok=True)
        left = dict(meddle or {})
        changes: dict[int, float] = {}
        with (self.folder / "device.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    str(Path(__file__).with_name("parted_device.py")),
                    str(file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said = line.decode().strip()
                if said.isdigit() and int(said) in left:
                    changes[int(said)] = time.monotonic()
                    left.pop(int(said))()
            code = process.wait(END_S)
        finally:
            process.kill()
            process.wait()
        if code or not out.exists():
            tail = (self.folder / "device.log").read_text(errors="replace")[-2000:]
            raise DelianError(f"the device's process ended with {code}", tail)
        return Told(**json.loads(out.read_text()), changes=changes)


def _end(child: Child) -> None:
    child.ask_to_stop()
    child.wait(time.monotonic() + 10.0)
