"""Writes what a small federation of real daemons needs.

Identities, data, and a configuration for each node. Everything is under one folder, and so is what
the daemons keep.

    FOLDER/ca           the federation's CA           FOLDER/edge-1/delian.toml, identity, ...
    FOLDER/broker       the broker's certificate      FOLDER/device-0/delian.toml, data.npz, ...
    FOLDER/cloud        the coordinator               FOLDER/operator   submits the run
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.node.identity.authority.authority import Authority
from ...core.node.identity.authority.founding import (
    ONLINE_FOLDER,
    add_online_key,
    publish,
    root_folder,
)
from ...core.node.identity.authority.terms import published
from ...core.node.identity.pki.certificates import (
    Role,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
)
from ...core.node.identity.pki.identity_folder import IdentityFolder
from ...core.node.net.free_ports import free_ports
from ...core.privacy.secagg.limits import COHORT_MIN
from ...device.agent import key_secret

FEDERATION = "processes"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class OwnScript:
    """A training script of the user's."""

    name: str
    """By which the run knows it."""
    command: str
    """What runs it."""
    clients: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """Rows in files of the user's, which stay where they are."""

    path: Path
    query_fraction: float


@dataclass(frozen=True)
class Layout:
    """The nodes, and their addresses.

    Edges are numbered from 1; device i goes to edge 1 + i % edges.
    """

    folder: Path
    """Where the nodes' files are."""
    edges: int
    """How many edges gather devices."""
    devices: int
    """How many devices there are."""
    by_mqtt: frozenset[int]
    """Numbers of the devices that use MQTT."""
    store: str = ""
    """The coordinator's setting of that name; empty: its default."""
    helpers: int = 0
    """Further edges, which gather no devices and hold what unmasks."""
    plain: bool = False
    """The scenario has no masks, and the devices' owners allow that."""
    split: bool = False
    """Devices may train with their edges, which both sides' owners allow."""

    @property
    def all_edges(self) -> range:
        """Numbers of the edges, the helpers last."""
        return range(1, self.edges + self.helpers + 1)

    @property
    def helping(self) -> range:
        """Numbers of the helpers."""
        return self.all_edges[self.edges :]

    def edge_of(self, device: int) -> int:
        return 1 + device % self.edges

    @property
    def uses_broker(self) -> bool:
        return bool(self.by_mqtt)


class FleetFiles:
    """The files of one federation. `ports`: by the name of the listening node."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.folder = layout, layout.folder
        names = ["cloud", "enrolment", "cloud health", "broker"]
        for edge in layout.all_edges:
            names += [f"edge-{edge}", f"edge-{edge} health"]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    def address(self, name: str) -> str:
        return f"{LOOPBACK}:{self.ports[name]}"

    @property
    def broker(self) -> str:
        return f"mqtts://{self.address('broker')}" if self.layout.uses_broker else ""

    @property
    def signing(self) -> Path:
        """The folder of the key that signs runs."""
        return self.folder / "operator" / "identity" / ONLINE_FOLDER

    def config(self, name: str) -> Path:
        return self.folder / name / "delian.toml"

    # ------------------------------------------------ identities

    def make_identities(self) -> None:
        """Makes the CA, with the federation's terms, and all identities.

        A certificate for every node, the operator and the broker, and the operator's key that signs
        runs: what `delian ca init` and `ca issue` make.
        """
        authority = Authority.create(self.folder / "ca", FEDERATION)
        # The floors of sums are the plan's: a fleet of processes is small.
        publish(authority, cohort_min=COHORT_MIN, masks_required=not self.layout.plain, fresh=True)
        self._issue(authority, "cloud", Role.CLOUD, 0, [LOOPBACK])
        self._issue(authority, "operator", Role.OPERATOR, 1)
        for edge in self.layout.all_edges:
            self._issue(authority, f"edge-{edge}", Role.EDGE, edge, [LOOPBACK])
        for device in range(self.layout.devices):
            self._issue(authority, f"device-{device}", Role.DEVICE, device)
        if self.layout.uses_broker:
            self._issue_broker(authority)

    def _issue(
        self, authority: Authority, name: str, role: Role, number: int, at: Sequence[str] = ()
    ) -> None:
        key = new_key()
        issued = authority.issue(certificate_request(key), role, number, addresses=at)
        material = TlsMaterial(key_pem(key), issued.chain, authority.pem)
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        own = IdentityFolder(folder / "identity")
        own.store(material, renew_after_s=issued.renew_after_s)
        own.take_terms(published(authority.folder), authority.pem, FEDERATION)
        if role is Role.OPERATOR:
            add_online_key(self.signing, FEDERATION, f"operator-{number}", root_folder(authority))

    def _issue_broker(self, authority: Authority) -> None:
        key, folder = new_key(), self.folder / "broker"
        folder.mkdir(mode=0o700)
        chain = authority.issue_server(certificate_request(key), [LOOPBACK])
        for name, content in (
            ("key.pem", key_pem(key)),
            ("cert.pem", chain),
            ("ca.pem", authority.pem),
        ):
            (folder / name).write_bytes(content)

    # ------------------------------------------------ configurations

    def write_cloud(self) -> None:
        section: dict[str, Any] = {
            "state": self._at("cloud"),
            "ca": self._at("ca"),
            "identity": self._at("cloud", "identity"),
            "listen": self.address("cloud"),
            "enrolment": self.address("enrolment"),
            "health": self.address("cloud health"),
        }
        if self.layout.store:
            section["store"] = self.layout.store
        if self.broker:
            section["broker"] = {"url": self.broker}
        self._write("cloud", {"cloud": section})

    def write_edge(self, edge: int) -> None:
        name = f"edge-{edge}"
        section: dict[str, Any] = {
            "state": self._at(name),
            "identity": self._at(name, "identity"),
            "listen": self.address(name),
            "coordinator": self.address("cloud"),
            "health": self.address(f"{name} health"),
        }
        if self.broker:
            section["broker"] = {"url": self.broker}
        if edge in self.layout.helping:
            section["helps"] = True
        if self.layout.split:
            section["split"] = True
        self._write(name, {"edge": section})

    def write_device(
        self, device: int, given: Mapping[str, Any] | OwnScript | OwnFolder, backend: str
    ) -> None:
        """given: a script, a folder of rows, or a program's arrays by the manifest's names."""
        name, edge = f"device-{device}", self.layout.edge_of(device)
        # Its keys are those of the virtual simulation, so that models are the same bit for bit.
        (self.folder / name / key_secret.FILE).write_bytes(key_secret.SIMULATED)
        trains = self._trains_on(device, given)
        by_mqtt = device in self.layout.by_mqtt
        home = self.broker if by_mqtt else self.address(f"edge-{edge}")
        # What a device of a simulation always has. Its owner is the user of this command.
        have = dict.fromkeys(("powered", "unmetered", "idle", "consented", "fresh"), True)
        section = {
            "state": self._at(name),
            "identity": self._at(name, "identity"),
            "homes": [f"edge-{edge}@{home}"],
            "transport": "mqtt" if by_mqtt else "grpc",
            **trains,
            "conditions": have,
            "worker": {"nice": 0, "backend": backend},
        }
        masks: dict[str, Any] = {"required": False} if self.layout.plain else {}
        if self.layout.helpers:
            masks["helpers"] = [str(edge) for edge in self.layout.helping]
        if masks:
            section["masks"] = masks
        if self.layout.split:
            section["split"] = True
        self._write(name, {"device": section})

    def _trains_on(
        self, device: int, given: Mapping[str, Any] | OwnScript | OwnFolder
    ) -> dict[str, Any]:
        """The sections of a device's data or of its script."""
        if isinstance(given, OwnScript):
            script = {"command": given.command, "folder": str(Path.cwd())}
            numbers = {"client": device, "clients": given.clients}
            return {"scripts": {given.name: {**script, **numbers}}}
        if isinstance(given, OwnFolder):
            rows = {"source": str(given.path), "query_fraction": given.query_fraction}
            return {"data": rows}
        data = self.folder / f"device-{device}" / "data.npz"
        np.savez(data, **given)
        return {"data": {"source": str(data)}}

    def _at(self, *names: str) -> str:
        return str(self.folder.joinpath(*names))

    def _write(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        path = self.config(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for table, keys in {"log": {"format": "json"}, **tables}.items():
                file.write("".join(_toml_lines((table,), keys)))


def _toml_lines(path: tuple[str, ...], keys: Mapping[str, Any]) -> list[str]:
    """A table, its own keys first. JSON's strings, numbers, booleans and lists are TOML's too."""
    lines = [f"[{'.'.join(path)}]\n"]
    lines += [f"{k} = {json.dumps(v)}\n" for k, v in keys.items() if not isinstance(v, Mapping)]
    for name, inner in keys.items():
        if isinstance(inner, Mapping):
            lines += _toml_lines((*path, name), inner)
    return lines
