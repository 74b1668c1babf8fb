"""What real daemons leave after masked rounds: every file, database, log line and page of metrics
is searched for the devices' data, updates and secrets, which only their own folders may hold.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pytest
from delian.core.node.net.mqtt.broker import mosquitto_path
from delian.core.node.storage.codec import open_snapshot
from delian.core.node.storage.disk import FolderDisk
from delian.core.node.storage.segments import Segments
from delian.core.privacy.secagg import kdf
from delian.core.protocol.random_streams import Streams, device_key
from delian.device.protocol.machine import restore
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario.scenario_file import load, override
from support.canaries import Canary, files, leaks, of_numbers

ROUNDS, DEVICES = 2, 4
#: All that is done to an update on its way, so that it goes through real links once.
FINISHING = ["privacy.bits=20", "privacy.random_k=0.5", "privacy.clip_quantile=0.5"]
#: Words under which a number of examples could be told.
_COUNTS = rb'(?i)(?:num_)?examples"?\W{1,3}(\d+)'


class Fleet:
    """Four devices, half of them over a broker; `folder` has all that they and the others left."""

    def __init__(self, folder: Path) -> None:
        settings = [f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}", *FINISHING]
        asked = override(load("digits"), settings)
        by_mqtt = 2 if mosquitto_path() else 0
        shape = Shape(DEVICES, 1, by_mqtt=by_mqtt, folder=folder)
        self.folder, self.pages = folder, dict[str, bytes]()
        self.stage = Stage(fitted(asked, shape), None, None, "native", lambda event: None)
        self.seed = asked.seed
        self.canaries: list = []
        self.result = simulate_processes(asked, shape, meddle=self._look)

    def _look(self, children, record) -> None:
        """After a round: metrics, and in the first one the devices' first secrets."""
        opener = build_opener(ProxyHandler({}))
        for config in self.folder.glob("*/delian.toml"):
            found = re.search(r'health = "([^"]+)"', config.read_text())
            if found:
                with opener.open(f"http://{found[1]}/metrics", timeout=60) as reply:
                    self.pages[f"{config.parent.name} metrics {record.round}"] = reply.read()
        if record.round == 1:
            for device in range(DEVICES):
                self._keys(device)

    def _keys(self, device: int) -> None:
        """The secret that a device began with, and those after it; its certificate's key."""
        owner, folder = f"device-{device}", self.folder / f"device-{device}"
        (journal,) = {path.parent for path in folder.rglob("snapshot*")}
        snapshot, _ = Segments(FolderDisk(journal)).load()
        assert snapshot is not None
        secret = restore(open_snapshot(snapshot)[0]).secret
        for _ in range(4 * ROUNDS):
            self.canaries.append(Canary("master secret", owner, secret))
            secret = kdf.ratchet(secret)

    def data_and_updates(self) -> None:
        stage, streams, weights = self.stage, Streams(self.seed), self.stage.first
        for device in range(DEVICES):
            owner = f"device-{device}"
            held = stage.arrays[stage.data.training[device]]
            for row in np.asarray(held.x)[: int(held.support)].reshape(int(held.support), -1)[:20]:
                telling = (i for i in range(len(row)) if various(row[i : i + 12]))
                for start in itertools.islice(telling, 1):
                    self.canaries += of_numbers("data", owner, row[start : start + 40])
            key = streams.word("round key", 1, 1).to_bytes(8, "little")
            words = np.array(device_key(key, device), np.uint32)
            update = stage.runtime.client_update(weights, held, words).vector
            for at in range(0, len(update) - 8, 97):
                part = update[at : at + 8]
                if len(set(part.tolist())) == 8:
                    self.canaries += of_numbers("update", owner, part)

    def places(self):
        yield from self.pages.items()
        yield from files(self.folder)


def various(values: np.ndarray) -> bool:
    """Whether so few numbers, and their digits, are not found everywhere."""
    text = "".join(map(str, values.tolist()))
    return len(set(values.tolist())) >= 5 and len(set(text) & set("0123456789")) >= 5


def may_have(owner: str, place: str) -> bool:
    return place.startswith(f"{owner}/")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("leaks") / "fleet")
    fleet.data_and_updates()
    return fleet


def test_only_a_device_itself_has_what_is_its_own(fleet):
    assert fleet.result.stopped_by is None
    assert [r.applied for r in fleet.result.rounds] == [True] * ROUNDS
    # Half of 4,810 numbers, an indicator and a weight, in 20 bits, and what a session says.
    sent = fleet.result.rounds[-1].bytes["device_edge_up"]
    assert DEVICES * 2407 * 20 // 8 < sent < DEVICES * (2407 * 20 // 8 + 6_000)
    places = dict(fleet.places())
    assert len(fleet.pages) >= 2 * ROUNDS and any("delian.db rounds" in p for p in places)
    assert any(p.endswith(".log") for p in places)
    assert leaks(fleet.canaries, places.items(), may_have) == []
    own = leaks(fleet.canaries, places.items())
    assert {leak.what for leak in own} >= {"data", "master secret"}


def test_nobody_but_a_device_says_how_many_examples_it_has(fleet):
    held = [fleet.stage.arrays[i] for i in fleet.stage.data.training]
    counts = {str(int(n)).encode() for one in held for n in (one.support, one.query, len(one.y))}
    told = {
        (place, number)
        for place, content in fleet.places()
        if not place.startswith("device-") or place.endswith(".log")
        for number in re.findall(_COUNTS, content)
        if number in counts
    }
    assert not told


def test_a_leak_in_a_log_or_a_database_is_found(fleet):
    update = next(c for c in fleet.canaries if c.what == "update")
    line = f'{{"event": "round", "vector": "{update.content.hex()}"}}'.encode()
    (found,) = leaks(fleet.canaries, [("cloud.log", line)], may_have)
    assert found.what == "update" and found.place == "cloud.log"
