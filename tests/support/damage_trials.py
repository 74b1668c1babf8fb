"""Damage trials: a real federation is ended by SIGKILL, one place of one file of a node is changed
or cut off, and the node's daemon is started again.

    python tests/support/damage_trials.py [--trials 200] [--seed 1] [--folder FOLDER]

A start is one of

    newest    it serves, and has what it had: what it replayed, its tables, its CA
    said      it serves, and a line of its log names the damage and what became of it
    refused   it ends with an error that says what is wrong, and no traceback
    silent    it serves, has something else than it had, and says nothing: a failure
    badly     it ends with a traceback, or does neither end nor serve: a failure

The owner's own files (configuration, data) and logs are left alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.pki.certificates import Role, authority_options, channel_credentials
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.net.free_ports import free_ports
from delian.core.wire import link_pb2
from delian.core.wire.authority_pb2 import RevokeRequest
from delian.core.wire.authority_pb2_grpc import AuthorityStub
from delian.core.wire.operator_pb2 import TokenRequest
from delian.simulations.processes.launcher import Child, Children
from delian.simulations.processes.processes import Shape, simulate_processes
from delian.simulations.scenario.scenario_file import load, override

ROUNDS = 3
#: Generous, so that a start on a busy machine does not count as one that hangs.
START_S = 300.0
TIMEOUT_MS = 1_200_000
#: Files that are no state: the owner's, locks, logs, and what SQLite makes again of its log.
OWN = ("delian.toml", "data.npz", "lock", "status.json")
OWN_ENDS = (".log", ".db-shm", ".part")
OUTCOMES = ("newest", "said", "refused", "silent", "badly")
TABLES = ("nodes", "runs", "rounds", "models", "aliases", "audit_entries", "run_events")


class Killed(Exception):
    """The fleet has done its rounds, and nothing of it runs."""


@dataclass
class Tier:
    """A node that is started again. folders: with its state. command: of its daemon."""

    name: str
    folders: tuple[Path, ...]
    command: tuple[str, ...]
    truth: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- real state


def make_fleet(folder: Path) -> None:
    """Runs a coordinator, an edge and three devices for some rounds, and kills them all."""

    def meddle(children: Children, record: Any) -> None:
        if record.round == ROUNDS:
            for child in children.all.values():
                child.kill()
            raise Killed

    changes = [f"rounds={ROUNDS + 3}", "evaluation.every=1", "round.reports_min=3"]
    changes.append(f"round.timeout_ms={TIMEOUT_MS}")
    asked = override(load("digits"), changes)
    try:
        simulate_processes(asked, Shape(3, 1, by_mqtt=0, folder=folder), meddle=meddle)
    except Killed:
        return
    raise AssertionError("the run was over before it was killed")


def make_authority(folder: Path, fleet: Path) -> tuple[str, ...]:
    """Runs an authority with a CA that is not new, has it called by an admin, and kills it."""
    state = folder / "authority"
    shutil.copytree(fleet / "ca", state / "ca", symlinks=True)
    ca = Authority(state / "ca")
    operator_identity(ca, folder / "admin", Role.ADMIN)
    admin = IdentityFolder(folder / "admin")
    listen, enrolment = (f"127.0.0.1:{port}" for port in free_ports(2))
    options = ("--state", str(state), "--listen", listen, "--enrolment", enrolment)
    command = ("authority", "run", *options, "--set", "log.format=json")
    child = Child("authority", command, folder)
    child.start()
    child.wait_ready(time.monotonic() + START_S)
    credentials = channel_credentials(admin.material())
    with grpc.secure_channel(
        listen, credentials, options=[*authority_options(ca.federation, 0)]
    ) as channel:
        stub = AuthorityStub(channel)
        for number in range(3, 7):
            ca.give_number(Role.DEVICE, number)
            issue_to(ca, Role.DEVICE, number)
            stub.CreateToken(TokenRequest(tier=link_pb2.NODE_DEVICE), timeout=START_S)
            stub.Revoke(RevokeRequest(name=f"device-{number}"), timeout=START_S)
    child.kill()
    return command


def tiers(folder: Path) -> list[Tier]:
    """Makes the state of each tier below a folder."""
    fleet = folder / "fleet"
    make_fleet(fleet)
    command = make_authority(folder, fleet)
    return [
        Tier("cloud", (fleet / "cloud", fleet / "ca"), _run(fleet, "cloud")),
        Tier("edge", (fleet / "edge-1",), _run(fleet, "edge", "edge-1")),
        Tier("device", (fleet / "device-0",), _run(fleet, "device", "device-0")),
        Tier("authority", (folder / "authority",), command),
    ]


def _run(fleet: Path, tier: str, name: str = "") -> tuple[str, ...]:
    return tier, "run", "--config", str(fleet / (name or tier) / "delian.toml")


# ---------------------------------------------------------------- one start


def start(tier: Tier, folder: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Starts a daemon and kills it: "served", "ended" or "hung", what it had, its log."""
    child = Child("trial", tier.command, folder)
    child.log.unlink(missing_ok=True)
    child.start()
    outcome = "served"
    try:
        child.wait_ready(time.monotonic() + START_S)
    except DelianError:
        outcome = "hung" if child.running else "ended"
    child.kill()
    lines = []
    for line in child.log.read_text(errors="replace").splitlines():
        try:
            lines.append(dict(json.loads(line)))
        except ValueError:
            lines.append({"event": line, "level": "error"})
    return outcome, held(tier, lines) if outcome == "served" else {}, lines


def held(tier: Tier, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a node that was started and killed holds."""
    found: dict[str, Any] = {}
    for line in lines:
        if "replayed" in line:
            found[f"{line['node']} replayed"] = line["replayed"]
    for folder in tier.folders:
        if (folder / "delian.db").exists():
            found |= _rows(folder / "delian.db")
        for ca in (folder, folder / "ca"):
            if (ca / "issued.jsonl").exists():
                found |= _ca(ca)
    return found


def _rows(path: Path) -> dict[str, Any]:
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        rows = {table: base.execute(f"select * from {table}").fetchall() for table in TABLES}
    finally:
        base.close()
    # When a node was seen is written down while the coordinator runs.
    return {**rows, "nodes": [row[:4] for row in rows["nodes"]]}


def _ca(folder: Path) -> dict[str, Any]:
    ca = Authority(folder)
    own = (Role.AUTHORITY, Role.CLOUD)  # their certificates are made at each start
    names = {f"{role.value}-" for role in own}
    issued = [e for e in ca.issued() if not any(e["name"].startswith(n) for n in names)]
    return {
        "issued": sorted(e["serial"] for e in issued),
        "numbers": [ca.last_number(role) for role in (Role.DEVICE, Role.EDGE)],
        "denied": sorted(map(str, ca.denied().names)),
        "tokens": sorted(str(t["id"]) for t in TokenBook(folder).open_tokens()),
    }


# ---------------------------------------------------------------- trials


def places(tier: Tier) -> Iterator[Path]:
    """The files of a node's state."""
    for folder in tier.folders:
        for path in sorted(folder.rglob("*")):
            plain = path.is_file() and not path.is_symlink() and path.stat().st_size
            if plain and path.name not in OWN and not path.name.endswith(OWN_ENDS):
                yield path


def trial(tier: Tier, path: Path, draw: random.Random, folder: Path) -> tuple[str, str]:
    """Damages a file and starts the node: the outcome, and what was done and said."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    if draw.random() < 0.5:
        what = f"cut at {at} of {len(content)}"
        del content[at:]
    else:
        what = f"flip at {at} of {len(content)}"
        content[at] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    outcome, found, lines = start(tier, folder)
    text = "\n".join(str(line.get("event", "")) for line in lines)
    said = [str(x.get("event")) for x in lines if x.get("level") in ("warning", "error")]
    if outcome == "hung" or "Traceback (most recent" in text:
        return "badly", f"{what}: {outcome}: {text[-600:]}"
    if outcome == "ended":
        told = said[-1] if said else text[-300:]
        return ("refused" if told else "badly"), f"{what}: {told}"
    different = [key for key in tier.truth if found.get(key) != tier.truth[key]]
    name = path.name.partition(".")[0][:16]
    named = [s for s in said if name in s or "damaged" in s]
    if named:  # as of a run that is paused because its weights are damaged
        return "said", f"{what}: {different} {' | '.join(named)[:200]}"
    return ("silent" if different else "newest"), f"{what}: {different} {said[-3:]}"


def run(trials: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """All trials: counts of outcomes by tier and file."""
    draw, counts = random.Random(seed), {}
    made, kept, work = tiers(folder), folder / "kept", folder / "work"
    work.mkdir()
    for tier in made:
        for number, source in enumerate(tier.folders):
            shutil.copytree(source, kept / tier.name / str(number), symlinks=True)

    def put_back(tier: Tier) -> None:
        for number, source in enumerate(tier.folders):
            shutil.rmtree(source)
            shutil.copytree(kept / tier.name / str(number), source, symlinks=True)

    for tier in made:
        outcome, tier.truth, lines = start(tier, work)
        assert outcome == "served", lines[-5:]
        put_back(tier)
    files = [[(tier, path) for path in places(tier)] for tier in made]
    for of_tier in files:
        draw.shuffle(of_tier)
    # The tiers in turn, so that few trials are of all.
    every = [one for row in itertools.zip_longest(*files) for one in row if one is not None]
    for number in range(trials):
        # Each file once before one is damaged again.
        tier, path = every[number % len(every)]
        outcome, why = trial(tier, path, draw, work)
        put_back(tier)
        owner = next(f for f in tier.folders if path.is_relative_to(f))
        where = f"{tier.name}: {_kind(path.relative_to(owner.parent))}"
        counts.setdefault(where, Counter())[outcome] += 1
        print(f"{number:4} {outcome:8} {where}: {why}", flush=True)
    return counts


def by_tier(counts: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Counts of outcomes by tier, of those by tier and file."""
    tiers: dict[str, Counter[str]] = {}
    for where, outcomes in counts.items():
        tiers.setdefault(where.partition(":")[0], Counter()).update(outcomes)
    return tiers


def _kind(path: Path) -> str:
    """Of files of one kind one name."""
    parts = [p[:8] + "..." if len(p) > 40 else p.rstrip("0123456789") for p in path.parts]
    return "/".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="delian-damage-"))
    counts = run(asked.trials, asked.seed, folder)
    for where, outcomes in sorted(counts.items()):
        print(f"{where:60} {dict(outcomes)}")
    print()
    for tier, outcomes in sorted(by_tier(counts).items()):
        print(f"{tier:12}" + "".join(f"{outcomes[name]:5} {name}" for name in OUTCOMES))
    total: Counter[str] = sum(counts.values(), Counter())
    print(f"{'all':12}" + "".join(f"{total[name]:5} {name}" for name in OUTCOMES))
    return 1 if total["silent"] or total["badly"] else 0


if __name__ == "__main__":
    sys.exit(main())
