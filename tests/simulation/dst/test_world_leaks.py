"""What is left of a masked federation in its journals, stores, states, records and messages:
nothing of a device's update, number of examples, loss or keys but at that device.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
from delian.core.node.storage.codec import envelope_bytes
from delian.core.privacy.secagg import kdf
from delian.core.protocol.ports import Tier
from delian.device.protocol.machine import DeviceMachine
from delian.simulations.dst.faulty_network import Network
from delian.simulations.dst.node_work import EXAMPLES, LOSS, Work
from delian.simulations.dst.simulated_node import Host
from delian.simulations.dst.swarm import FaultPlan, draw
from delian.simulations.dst.world import World
from support.canaries import Canary, leaks, of_numbers


class Left:
    """Runs a world whose nodes all keep journals, and gathers what it leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.canaries: list = []
        self.vectors: list[tuple[str, np.ndarray]] = []
        self.places: list[tuple[str, bytes]] = []
        shape = replace(draw(seed, 16, 3)[0], orders=(), rounds=2, evaluate_every=1, buffer=0)
        assert shape.secure
        nodes = frozenset(World(seed, shape, FaultPlan()).hosts)
        faults = FaultPlan(mortal=nodes, crash=0.0, checkpoint_entries=40, settle=True)
        self._watch(monkeypatch)
        self.world = World(seed, shape, faults)
        for device in range(shape.devices):
            owner = f"device {device}"
            secret = hashlib.sha256(f"{seed} {device}".encode()).digest()
            self.canaries.append(Canary("master secret", owner, secret))
            text = str(EXAMPLES + device).encode()
            self.canaries.append(Canary("number of examples", owner, text))
        self.canaries.append(Canary("loss", "a device", repr(LOSS).encode()))
        self.world.run()
        for owner, vector in self.vectors:
            for at in range(0, len(vector) - 4, 16):
                part = vector[at : at + 6]
                # Of small whole numbers devices may have the same: nobody could tell whose.
                others = (v.tobytes() for o, v in self.vectors if o != owner)
                if not any(part.tobytes() in other for other in others):
                    self.canaries.extend(of_numbers("update", owner, part))
        for node, host in self.world.hosts.items():
            self.places.append((f"{node} state", host.machine.snapshot()))
            for name in host.disk.list():
                self.places.append((f"{node} journal", host.disk.read(name)))
            for digest, content in host.blobs.items():
                self.places.append((f"{node} blob {digest.hex()[:8]}", content))

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran, sent, recorded = Work.run, Network.send, Host._record
        ratchet, secret_of = kdf.ratchet, kdf.session_secret
        now: list[str] = [""]

        def watched_run(work, host, effect):
            due, finish = ran(work, host, effect)
            if host.node.tier is Tier.DEVICE and finish is not None:
                self._update(host, finish())
            return due, finish

        def handle(machine, event, at, handled=DeviceMachine.handle):
            now[0] = str(machine.node)
            return handled(machine, event, at)

        def watched_secret(master, digest):
            session = secret_of(master, digest)
            self._keys(now[0], session)
            return session

        def watched_ratchet(master):
            after = ratchet(master)
            self.canaries.append(Canary("master secret", now[0], after))
            return after

        def watched_send(network, host, to, message):
            self.places.append((f"{host.node} says", envelope_bytes(host.node, to, message)))
            sent(network, host, to, message)

        def watched_record(host, effect, event):
            self.places.append((f"{host.node} records", repr((effect, event)).encode()))
            recorded(host, effect, event)

        monkeypatch.setattr(Work, "run", watched_run)
        monkeypatch.setattr(DeviceMachine, "handle", handle)
        monkeypatch.setattr(kdf, "session_secret", watched_secret)
        monkeypatch.setattr(kdf, "ratchet", watched_ratchet)
        monkeypatch.setattr(Network, "send", watched_send)
        monkeypatch.setattr(Host, "_record", watched_record)

    def _keys(self, owner: str, session: bytes) -> None:
        secrets = {
            "session secret": session,
            "sealing key": kdf.sealing_secret(session),
            "mask key": kdf.mask_secret(session),
            "self-mask seed": kdf.self_seed(session),
            "noise key": kdf.noise_key(session),
        }
        self.canaries += [Canary(what, owner, secret) for what, secret in secrets.items()]

    def _update(self, host: Host, outcome) -> None:
        owner = str(host.node)
        self.vectors.append((owner, outcome.vector.astype("<u4")))
        # An entry's encoding of its examples and loss: the journal of a device may have them.
        self.canaries.append(Canary("loss", owner, struct.pack("<d", LOSS) * 2))

    def found(self):
        return leaks(self.canaries, self.places, self._may_have)

    @staticmethod
    def _may_have(owner: str, place: str) -> bool:
        """A device's own journal and state have all of it; nothing that it says has."""
        return place in (f"{owner} state", f"{owner} journal")


@pytest.fixture
def left(monkeypatch):
    return Left(monkeypatch)


def test_nothing_of_a_device_is_left_anywhere_else(left):
    assert left.found() == []
    kinds = {place.split()[0] + " " + place.split()[-1] for place, _ in left.places}
    assert {"cloud journal", "cloud state", "cloud says", "cloud records", "edge state"} <= kinds
    own = leaks(left.canaries, left.places)
    assert {leak.what for leak in own} >= {"update", "session secret", "master secret"}
    assert all(leak.owner in leak.place for leak in own), "what is found is found at its owner"


@pytest.mark.parametrize("form", ["raw", "hex", "text"])
def test_a_planted_leak_is_found(left, form):
    """A coordinator that would write a device's update into its journal, a log or a record."""
    device = next(c for c in left.canaries if c.what == "update")
    numbers = np.frombuffer(device.content, "<u4")
    written = {
        "raw": device.content,
        "hex": device.content.hex().encode(),
        "text": str(numbers.tolist()).encode(),
    }[form]
    left.places.append(("cloud journal", b"x" * 13 + written + b"y" * 5))
    (found,) = {(leak.owner, leak.place) for leak in left.found()}
    assert found == (device.owner, "cloud journal")


def test_an_update_that_leaves_without_masks_is_found(monkeypatch):
    from delian.core.privacy.secagg import masks

    monkeypatch.setattr(masks, "add", lambda vector, keys, suite, threads=1: None)
    monkeypatch.setattr(
        "delian.simulations.dst.oracles.session_ledger._check_masks", lambda host, upload: None
    )
    places = {leak.place for leak in Left(monkeypatch).found() if leak.what == "update"}
    assert any(place.startswith("edge") for place in places)
    assert any(place.endswith("says") and place.startswith("device") for place in places)
