"""One device and one edge as daemons, and a cloud played by the test: whole rounds over sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, metrics
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.data.fit import fit
from delian.core.learning.data.rows import DataSettings, Rows
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime
from delian.core.node.identity.artifacts.artifact_keys import OnlineFolder, RootFolder
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.switch import Switch
from delian.core.node.storage.blobs import FolderBlobs
from delian.core.protocol.ports import CLOUD, Node, Received, Tier
from delian.core.protocol.random_streams import device_key
from delian.core.wire.admission_pb2 import EdgeHello, Pace, RetryWindow
from delian.core.wire.blob_pb2 import BlobRef, FetchBlob
from delian.core.wire.round_pb2 import (
    EVALUATE,
    NOT_SIGNED,
    TRAIN,
    EdgeProgress,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    RingPlan,
    RoundClosed,
    Task,
)
from delian.device.agent import daemon as device_daemon
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.daemon import DeviceSettings
from delian.device.agent.key_secret import key_secret
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.status_file import read_status
from delian.device.protocol.device_state import DevicePolicy
from delian.device.serving.inference import ask
from delian.edge.service import daemon as edge_daemon
from delian.edge.service.daemon import EdgeSettings
from support.waiting import listens

EDGE, DEVICE = Node(Tier.EDGE, 1), Node(Tier.DEVICE, 7)
KEY = b"8 bytes!"
CAPACITY = 24


def make_bundle():
    task = Classification("small", lambda key: Mlp.init(key, 4, (5,), 3), Samples(4, 1.0))
    rows = SampleSet(
        np.zeros((CAPACITY, 4), np.float32),
        np.zeros(CAPACITY, np.int32),
        np.array(8),
        np.array(3),
    )
    return build(
        task,
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=4),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=float(CAPACITY),
        seed=1,
    )


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    y = np.arange(20) % 3
    return (np.eye(3, 4)[y] * 3 + rng.normal(0, 0.3, (20, 4))).astype(np.float32), y


class Cloud:
    """The cloud's part of a round, as short as it can be."""

    def __init__(self, folder: Path, made) -> None:
        self.made = made
        self.switch = Switch()
        self.blobs = FolderBlobs(folder, 1 << 30)
        self.hub: GrpcHub | None = None
        self.ready: set[int] = set()
        self.sums: dict[int, EdgeSum] = {}
        self.progress: list[EdgeProgress] = []
        self.hellos: list[EdgeHello] = []
        self.changed = asyncio.Event()
        self.task: EdgeTask | None = None

    async def start(self, port: int = 0) -> int:
        if not await self.blobs.digests():
            self.bundle = await self.blobs.put(self.made.bare().to_bytes())
            self.weights = await self.blobs.put(self.made.weights.tobytes())
        if self.switch.port(CLOUD) is None:
            self.switch.attach(CLOUD, self._take, self.blobs, lambda sender: 1 << 20)
        self.hub = GrpcHub(self.switch, f"127.0.0.1:{port}", None, Guard(INSECURE, Tier.CLOUD))
        port = await self.hub.start()
        self.switch.add_link(self.hub)
        return port

    async def stop(self) -> None:
        self.switch.remove_link(self.hub)
        await self.hub.close()

    async def close(self) -> None:
        await self.hub.close()
        await self.switch.close()
        await self.blobs.close()

    def say(self, message) -> None:
        self.switch.send(CLOUD, EDGE, message)

    def _take(self, event, traceparent: str = "", size: int = 0) -> None:
        assert isinstance(event, Received) and event.sender == EDGE
        message = event.message
        if isinstance(message, EdgeHello):
            self.ready = set(message.ready)
            self.hellos.append(message)
            if message.asks_pace:
                soon = RetryWindow(min_ms=50, max_ms=100)
                self.say(Pace(ready_max=9, after_task=soon, after_reject=soon, lease_ms=600_000))
            if self.task is not None and self.task.task.round not in self.sums and self.ready:
                self.say(self.task)
        elif isinstance(message, FetchBlob):
            self.switch.send_blob(CLOUD, EDGE, message.digest)
        elif isinstance(message, EdgeProgress):
            self.progress.append(message)
        elif isinstance(message, EdgeSum):
            if message.round not in self.sums:
                self.sums[message.round] = message
                self.ready = set()  # who comes back says so
            name = {"run": message.run, "round": message.round, "attempt": message.attempt}
            self.say(EdgeSumAck(**name, part=message.part))
            self.say(RoundClosed(**name, succeeded=True))
        self.changed.set()

    async def until(self, true) -> None:
        while not true():
            self.changed.clear()
            await self.changed.wait()

    async def round(self, number: int, purpose=TRAIN, manifest=b"", **ring) -> EdgeSum:
        """ring: what a malicious cloud asks for in place of the bundle's plan."""
        signed = manifest
        manifest = self.made.manifest
        plan = RingPlan(clip=manifest.clip, clients_max=4, bits=32, dimension=manifest.dimension)
        plan.MergeFrom(RingPlan(**ring))
        if purpose == EVALUATE:
            plan = RingPlan(clip=metrics.CLIP, clients_max=4, bits=32, dimension=4)
        await self.until(lambda: DEVICE.number in self.ready)
        self.task = EdgeTask(
            task=Task(
                run=1,
                round=number,
                attempt=1,
                bundle=self.bundle,
                weights=self.weights,
                ring=plan,
                time_ms=60_000,
                rng_key=KEY,
                purpose=purpose,
                manifest=signed,
            ),
            devices=[DEVICE.number],
            time_ms=70_000,
        )
        self.say(self.task)
        await self.until(lambda: number in self.sums)
        return self.sums[number]


@pytest.fixture(scope="module")
def made():
    return make_bundle()


@pytest.fixture
def data(tmp_path) -> Path:
    x, y = rows()
    np.savez(tmp_path / "data.npz", x=x, y=y.astype(np.int32))
    return tmp_path / "data.npz"


def edge_settings(folder: Path, cloud_port: int, **given) -> EdgeSettings:
    return EdgeSettings(
        folder=folder / "edge",
        listen=given.pop("listen", "127.0.0.1:0"),
        cloud=HomeAddress(CLOUD, grpc=f"127.0.0.1:{cloud_port}"),
        insecure=True,
        number=1,
        **given,
    )


def device_settings(folder: Path, edge_port: int, data: Path, **given) -> DeviceSettings:
    return DeviceSettings(
        folder=folder / "device",
        homes=(HomeAddress(EDGE, grpc=f"127.0.0.1:{edge_port}"),),
        worker=WorkerSettings(data=DataSettings(str(data)), backend="reference"),
        conditions=ConditionSettings(
            powered=True, unmetered=True, idle=True, consented=True, poll_s=0.2
        ),
        policy=DevicePolicy(secure_required=False),
        insecure=True,
        number=DEVICE.number,
        **given,
    )


class Running:
    """A daemon as a task of this process."""

    def __init__(self, serve, settings) -> None:
        self.stop = asyncio.Event()
        self._ready: asyncio.Future = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(serve(settings, self.stop, self._ready.set_result))

    async def ready(self) -> dict:
        await asyncio.wait((self.task, self._ready), return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        return self._ready.result()

    async def end(self) -> None:
        self.stop.set()
        await self.task


def expected(made, device: Path) -> np.ndarray:
    """The update that the device with this folder must have made, computed here."""
    runtime = Runtime(made, "reference")
    x, y = rows()
    leaves = fit(Rows(x, y), made.manifest.data)
    key = np.array(device_key(KEY, DEVICE.number, key_secret(device)), np.uint32)
    return runtime.client_update(made.weights, leaves, key).vector


def run(scene) -> None:
    asyncio.run(asyncio.wait_for(scene, 400))


def test_rounds_over_sockets_give_the_sums_that_they_must(made, data, tmp_path):
    async def scene():
        cloud = Cloud(tmp_path / "cloud", made)
        port = await cloud.start()
        edge = Running(edge_daemon.serve, edge_settings(tmp_path, port, health="127.0.0.1:0"))
        facts = await edge.ready()
        socket = tmp_path / "p.sock"
        device = Running(
            device_daemon.serve,
            device_settings(tmp_path, facts["grpc"], data, inference=socket),
        )
        await device.ready()
        for number in (1, 2):
            total = await cloud.round(number)
            assert list(total.devices) == [DEVICE.number] and not total.failures
            np.testing.assert_array_equal(
                np.frombuffer(total.sum, "<u4"), expected(made, tmp_path / "device")
            )
        judged = await cloud.round(3, EVALUATE)
        plan = metrics.metrics_plan(4)
        said = metrics.decode(np.frombuffer(judged.sum, "<u4").astype(np.uint32), plan)
        assert 0 <= said["personalised_accuracy"] <= 1 and said["queries"] == pytest.approx(
            5, abs=0.1
        )
        while not listens(socket):
            await asyncio.sleep(0.02)
        answer, logits = await asyncio.to_thread(ask, socket, {"op": "predict"}, rows()[0])
        assert logits.shape == (20, 3)
        await ask_health(facts["health"])
        await device.end()
        status = read_status(tmp_path / "device")
        assert status["state"] == "stopped" and not status["alive"]
        assert status["personal_model"] == answer["model"]
        assert not socket.exists(), "the inference server ends with its device"
        await edge.end()
        await cloud.close()

    async def ask_health(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"delian_edge_cloud_up 1\n" in await reader.read()
        writer.close()

    run(scene())


def test_a_malicious_cloud_gets_nothing_from_a_device_that_has_a_root_key(made, data, tmp_path):
    """Unsigned bundles, signed for something else, loosened plans, replayed old ones."""
    root = RootFolder.create(tmp_path / "root")
    online = OnlineFolder.create(tmp_path / "online")
    root.sign(INSECURE, {"online": online.public})
    shutil.copy(root.folder / "keys", online.folder / "keys")
    bare = made.bare().to_bytes()
    ref = BlobRef(digest=hashlib.sha256(bare).digest(), size=len(bare))
    facts = {"clip": made.manifest.clip, "dimension": made.manifest.dimension}
    other = BlobRef(digest=bytes(32), size=ref.size)
    old, new = (online.sign("small", ref, **facts) for _ in range(2))
    elsewhere = online.sign("elsewhere", other, **facts)
    masked = online.sign("masked", ref, **facts, cohort_min=3)

    async def scene():
        cloud = Cloud(tmp_path / "cloud", made)
        port = await cloud.start()
        edge = Running(edge_daemon.serve, edge_settings(tmp_path, port))
        where = (await edge.ready())["grpc"]
        given = {"artifact_root": root.folder / "root.pub"}
        device = Running(device_daemon.serve, device_settings(tmp_path, where, data, **given))
        await device.ready()
        counted = []

        async def asks(number: int, manifest: bytes, **ring: float) -> bool:
            total = await cloud.round(number, manifest=manifest, **ring)
            refused = [(f.device, f.reason) for f in total.failures]
            assert refused in ([], [(DEVICE.number, NOT_SIGNED)])
            counted.append(not refused)
            return bool(total.count)

        assert not await asks(1, b"")
        assert not await asks(2, elsewhere)
        assert not await asks(3, new, clip=2 * facts["clip"])
        assert not await asks(4, masked)
        assert await asks(5, new)
        assert not await asks(6, old)
        await device.end()
        status = read_status(tmp_path / "device")
        assert status["signed_only"] and status["bundles_refused"] == 5
        # Another start does not make it forget.
        device = Running(device_daemon.serve, device_settings(tmp_path, where, data, **given))
        await device.ready()
        assert not await asks(7, old)
        assert await asks(8, new)
        await device.end()
        await edge.end()
        await cloud.close()
        assert counted == [False] * 4 + [True, False, False, True]

    run(scene())


def test_an_edge_that_lost_its_cloud_sends_the_sum_when_it_is_back(made, data, tmp_path):
    async def scene():
        cloud = Cloud(tmp_path / "cloud", made)
        port = await cloud.start()
        edge = Running(edge_daemon.serve, edge_settings(tmp_path, port))
        facts = await edge.ready()
        flag = tmp_path / "go"
        module = tmp_path / "slow_data.py"
        module.write_text(
            textwrap.dedent(
                f"""
                import os, time
                import numpy as np
                def read():
                    open({str(tmp_path / "working")!r}, "w").close()
                    while not os.path.exists({str(flag)!r}):
                        time.sleep(0.02)
                    loaded = np.load({str(data)!r})
                    return loaded["x"], loaded["y"]
                """
            )
        )
        os.environ["PYTHONPATH"] = str(tmp_path)
        settings = device_settings(tmp_path, facts["grpc"], data)
        slow = dataclasses.replace(settings.worker, data=DataSettings("python:slow_data:read"))
        device = Running(device_daemon.serve, dataclasses.replace(settings, worker=slow))
        await device.ready()
        working = asyncio.create_task(cloud.round(1))
        while not (tmp_path / "working").exists():
            await asyncio.sleep(0.02)
        await cloud.stop()
        flag.touch()
        await asyncio.sleep(0.5)
        assert not cloud.sums
        await cloud.start(port)
        total = await working
        np.testing.assert_array_equal(
            np.frombuffer(total.sum, "<u4"), expected(made, tmp_path / "device")
        )
        await device.end()
        await edge.end()
        await cloud.close()

    try:
        run(scene())
    finally:
        os.environ.pop("PYTHONPATH", None)


def test_an_edge_keeps_its_incarnation_until_its_disk_is_wiped(made, tmp_path):
    async def scene():
        cloud = Cloud(tmp_path / "cloud", made)
        port = await cloud.start()
        seen = []
        for wiped in (False, False, True):
            if wiped:
                shutil.rmtree(tmp_path / "edge")
            cloud.hellos.clear()
            edge = Running(edge_daemon.serve, edge_settings(tmp_path, port))
            await edge.ready()
            await cloud.until(lambda: cloud.hellos)
            seen.append(cloud.hellos[0].incarnation)
            await edge.end()
        await cloud.close()
        assert seen[0] == seen[1] < seen[2]

    run(scene())


DEVICE_PROCESS = """
import asyncio, json, sys
from pathlib import Path
from delian.cli.fleet.device_commands import device_settings
from delian.cli.config import load
from delian.device.agent.daemon import serve
flags = json.loads(sys.argv[1])
settings = device_settings(load(None, {}, flags, folder=Path(sys.argv[2])).config.device)
asyncio.run(serve(settings, ready=lambda facts: print(json.dumps(facts), flush=True)))
"""


def test_a_device_that_is_killed_while_it_trains_makes_the_same_update_when_started_again(
    made, data, tmp_path, monkeypatch
):
    flag, working = tmp_path / "go", tmp_path / "working"
    (tmp_path / "held_data.py").write_text(
        textwrap.dedent(
            f"""
            import os, time
            import numpy as np
            def read():
                with open({str(working)!r}, "a") as file:
                    file.write(f"{{os.getpid()}}\\n")
                while not os.path.exists({str(flag)!r}):
                    time.sleep(0.02)
                loaded = np.load({str(data)!r})
                return loaded["x"], loaded["y"]
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def scene():
        cloud = Cloud(tmp_path / "cloud", made)
        port = await cloud.start()
        edge = Running(edge_daemon.serve, edge_settings(tmp_path, port))
        facts = await edge.ready()
        flags = [
            f"device.state={tmp_path / 'device'}",
            f'device.homes=["edge-1@127.0.0.1:{facts["grpc"]}"]',
            "device.data.source=python:held_data:read",
            "device.worker.backend=reference",
            "device.inference=none",
            f"device.number={DEVICE.number}",
            "device.insecure=true",
            *(f"device.conditions.{n}=true" for n in ("powered", "unmetered", "idle", "consented")),
        ]
        command = (sys.executable, "-c", DEVICE_PROCESS, json.dumps(flags), str(tmp_path))

        async def start():
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            assert json.loads(await process.stdout.readline())["node"] == "device 7"
            return process

        first = await start()
        round_one = asyncio.create_task(cloud.round(1))
        while not working.exists():
            await asyncio.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        worker = int(working.read_text().split()[0])
        while alive(worker):  # its training process goes with it
            await asyncio.sleep(0.02)
        flag.touch()
        second = await start()
        total = await round_one
        np.testing.assert_array_equal(
            np.frombuffer(total.sum, "<u4"), expected(made, tmp_path / "device")
        )
        assert list(total.devices) == [DEVICE.number]
        second.terminate()
        assert await second.wait() == 0
        await edge.end()
        await cloud.close()

    run(scene())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
