"""Whole rounds from fixed secrets, written down, and checked by a program that knows nothing of us.

DELIAN_GOLDEN=1 writes the files again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.privacy.secagg import graph, helper, kdf, masks, transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.cohort import layout
from delian.core.privacy.secagg.helper import Helper, Helpers, Ledger
from delian.core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from delian.core.privacy.secagg.params import parameters
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.privacy.secagg.signed_task import sign
from delian.core.privacy.secagg.transcript import Session
from delian.core.wire.helper_pb2 import HelpPart, HelpRequest
from delian.core.wire.round_pb2 import RingPlan, Task
from delian.core.wire.secure_pb2 import MaskSeeds

VECTORS = Path(__file__).parents[2] / "vectors"
DEVICES = (12, 30, 31, 57, 90_000_000_000)
SILENT = 31
SEED = 5
#: A device's update: number * `device` + place * `place`, modulo 2^32.
RULE = {"device": 2_654_435_761, "place": 40_503}


#: What a transcript shows of a task, a ring plan and a secure plan as it is.
TASK_FIELDS = ("run", "round", "attempt", "purpose", "time_ms", "expires_s")
RING_FIELDS = tuple(field.name for field in RingPlan.DESCRIPTOR.fields)
SECURE_FIELDS = (
    *("suite", "cohort_min", "corrupt", "dropout"),
    *("noise_survivors", "denied_version"),
)


def task_of(suite: int) -> Task:
    task = Task(run=2**40 + 1, round=3, attempt=2, time_ms=1_000, rng_key=b"roundkey")
    task.manifest = b"a signed artifact"
    task.weights.size, task.bundle.size = 20_000, 2_000
    task.weights.digest = hashlib.sha256(b"weights").digest()
    task.bundle.digest = hashlib.sha256(b"bundle").digest()
    task.ring.clip, task.ring.clients_max, task.ring.bits = 1.5, 100, 32
    task.ring.dimension, task.ring.noise = 5_000, 0.25
    task.ring.central, task.ring.rotated = False, True
    task.secure.suite, task.secure.cohort_min = suite, 3
    task.secure.corrupt, task.secure.dropout = 0.2, 0.1
    task.secure.noise_survivors, task.secure.denied_version = 3, 2**33 + 7
    sign(task, simulated_coordinator(SEED), ends_s=1_800_000_000)
    return task


def signing_key(identity: SimulatedIdentity) -> str:
    return hex(identity._key.private_numbers().private_value)


def master(device: int) -> bytes:
    return hashlib.sha256(f"master of {device}".encode()).digest()


def update(device: int, length: int) -> np.ndarray:
    places = np.arange(length, dtype=np.uint64)
    return (np.uint64(device * RULE["device"] % 2**32) + places * np.uint64(RULE["place"])).astype(
        np.uint32
    )


def round_of(suite: int) -> dict[str, Any]:
    """Runs a session of both sides, SILENT answering no more once shares are out."""
    task = task_of(suite)
    session, length = Session.of(task), task.ring.dimension + 1
    server = ServerSession(ServerState(), SimulatedIdentity(0, SEED))
    server.begin(task, DEVICES)
    identities = {d: SimulatedIdentity(d, SEED) for d in DEVICES}
    clients = {d: ClientSession(ClientState(d), identities[d]) for d in DEVICES}
    bundles = {d: clients[d].begin(task, master(d)) for d in DEVICES}
    secrets = {d: clients[d].state.secret for d in DEVICES}
    for bundle in bundles.values():
        assert server.add_bundle(bundle)
    sealed = {d: clients[d].take_cohort(one) for d, one in server.close_keys().items()}
    for shares in sealed.values():
        assert server.add_shares(shares)
    for device, delivery in server.close_shares().items():
        clients[device].take_delivery(delivery)
    alive = [d for d in DEVICES if d != SILENT]
    total, masked = np.zeros(length, np.uint32), {}
    for device in alive:
        vector = clients[device].mask(update(device, length))
        masked[device] = hashlib.sha256(vector.tobytes()).hexdigest()
        total += vector
    survivors = server.survivors(alive)
    consents = {d: clients[d].take_survivors(survivors[d]) for d in alive}
    requests: dict[int, Any] = {}
    for consent in consents.values():
        requests.update(server.add_consent(consent))
    unmasks = {d: clients[d].take_unmask(requests[d]) for d in alive}
    for unmask in unmasks.values():
        assert server.add_unmask(unmask)
    masks.add(total, server.keys(), suite)
    np.testing.assert_array_equal(total, sum(update(d, length) for d in alive))

    leaves = b"".join(transcript.leaf(bundles[d]) for d in DEVICES)
    place = layout(session, leaves, transcript.numbers(DEVICES))
    roster = transcript.roster(transcript_leaves(leaves), DEVICES)
    seed = transcript.graph_seed(session, roster)

    def mask_keys(i: int, device: int) -> dict[str, str]:
        keys = {"self": kdf.self_mask_key(kdf.self_seed(secrets[device]), place.binding)}
        near = place.neighbours(i)
        peers = [bundles[DEVICES[j]].mask_key for j in near]
        for j, shared in zip(near, kdf.agree(kdf.mask_secret(secrets[device]), peers), strict=True):
            keys[str(j)] = kdf.pair_mask_key(shared, place.binding, i, j)
        return {n: kdf.stream(key, suite).update(bytes(64)).hex() for n, key in keys.items()}

    def opened(i: int, device: int) -> dict[str, str]:
        near = place.neighbours(i)
        shared = kdf.agree(
            kdf.sealing_secret(secrets[device]), [bundles[DEVICES[j]].sealing_key for j in near]
        )
        return {
            str(one.index): kdf.open_sealed(key, place.binding, i, one.index, one.sealed).hex()
            for key, one in zip(shared, sealed[device].shares, strict=True)
        }

    return {
        "about": "A round of secure aggregation from fixed secrets; see docs/secure_aggregation.md"
        " and check.py. Bytes are hexadecimal. Whoever has no masked_sha256 fell silent after its"
        " shares. A word of an update is device * updates.device + place * updates.place mod 2^32.",
        "task": shown_task(task),
        "task_signature": task.signature.hex(),
        "coordinator_key": signing_key(simulated_coordinator(SEED)),
        "updates": RULE,
        "cohort": {
            "roster": roster.hex(),
            "binding": place.binding.hex(),
            "graph_seed": seed.hex(),
            "degree": place.graph.degree,
            "threshold": place.threshold,
            "order": graph.permutation(len(DEVICES), seed),
            "survivors": survivors[alive[0]].members.hex(),
        },
        "members": [
            {
                "device": device,
                "master": master(device).hex(),
                "next_master": kdf.ratchet(master(device)).hex(),
                "signing_key": signing_key(identities[device]),
                "certificate": "",
                "sealing_secret": kdf.sealing_secret(secrets[device]).hex(),
                "sealing_key": bundles[device].sealing_key.hex(),
                "mask_secret": kdf.mask_secret(secrets[device]).hex(),
                "mask_key": bundles[device].mask_key.hex(),
                "self_seed": kdf.self_seed(secrets[device]).hex(),
                "signature": bundles[device].signature.hex(),
                "leaf": transcript.leaf(bundles[device]).hex(),
                "neighbours": place.neighbours(i),
                "shares": opened(i, device),
                "sealed": {str(s.index): s.sealed.hex() for s in sealed[device].shares},
                "masks": mask_keys(i, device),
                "masked_sha256": masked.get(device, ""),
                "consent": consents[device].signature.hex() if device in consents else "",
                "unmask": {str(s.index): s.share.hex() for s in unmasks[device].shares}
                if device in unmasks
                else {},
            }
            for i, device in enumerate(DEVICES)
        ],
        "sum_sha256": hashlib.sha256(total.tobytes()).hexdigest(),
    }


def shown_task(task: Task) -> dict[str, Any]:
    """Everything that the coordinator signs; helpers' cards stand elsewhere."""
    parts = ((task, TASK_FIELDS), (task.ring, RING_FIELDS), (task.secure, SECURE_FIELDS))
    shown: dict[str, Any] = {name: getattr(part, name) for part, names in parts for name in names}
    for name in ("weights", "bundle"):
        ref = getattr(task, name)
        shown |= {name: ref.digest.hex(), f"{name}_size": ref.size}
    shown |= {name: getattr(task, name).hex() for name in ("rng_key", "manifest")}
    return {**shown, "digest": transcript.task_digest(task).hex()}


def transcript_leaves(leaves: bytes) -> list[bytes]:
    return [leaves[at : at + 32] for at in range(0, len(leaves), 32)]


def graphs() -> dict[str, Any]:
    cases = []
    for members, corrupt, dropout in [
        (3, 0.2, 0.1),
        (10, 0.3, 0.1),
        (31, 0.2, 0.1),
        (32, 0.1, 0.1),
        (100, 0.2, 0.1),
        (100, 1 / 3, 0.1),
        (257, 0.25, 0.05),
    ]:
        found = parameters(members, corrupt, dropout)
        seed = hashlib.sha256(f"graph of {members}".encode()).digest()
        order = graph.permutation(members, seed)
        cases.append(
            {
                "members": members,
                "corrupt": corrupt,
                "dropout": dropout,
                "seed": seed.hex(),
                "degree": found.degree,
                "threshold": found.threshold,
                "complete": found.complete,
                "order": order,
                "neighbours_of_0": graph.neighbours(found, order, 0),
            }
        )
    return {"about": "Parameters, orders and neighbours; see check.py.", "graphs": cases}


def batch() -> dict[str, Any]:
    """Helper mode: what devices say to two helpers, and what is left of their sum."""
    task = task_of(1)
    task.ring.noise, task.ring.rotated = 0.0, False
    task.secure.noise_survivors = 0
    private = {edge: hashlib.sha256(f"helper {edge}".encode()).digest() for edge in (4, 9)}
    at = {e: Helper(e, key, SimulatedIdentity(e, SEED, "edge")) for e, key in private.items()}
    task.secure.helpers.extend(one.card() for one in at.values())
    named, length = Helpers.of(task), task.ring.dimension + 1
    members, said, total = [], [], np.zeros(length, np.uint32)
    for device in DEVICES:
        identity = SimulatedIdentity(device, SEED)
        secret = kdf.session_secret(master(device), named.session.task)
        vector, seeds = helper.mask(update(device, length), named, device, secret, identity)
        total += vector
        said.append(seeds)
        members.append(
            {
                "device": device,
                "master": master(device).hex(),
                "signing_key": signing_key(identity),
                "boxes": [one.sealed.hex() for one in seeds.seeds],
                "signatures": [one.signature.hex() for one in seeds.seeds],
                "masked_sha256": hashlib.sha256(vector.tobytes()).hexdigest(),
            }
        )
    sums = []
    for place, one in enumerate(at.values()):
        shown = [MaskSeeds(device=s.device, seeds=[s.seeds[place]]) for s in said]
        request = HelpRequest(run=task.run, batch=1, parts=[HelpPart(task=task, devices=shown)])
        ledger = Ledger()
        answer = one.answer(request, ledger)
        masks_sum = helper.masks_of(answer.keys, length, answer.suite)
        total -= masks_sum
        sums.append(
            {
                "digest": ledger.runs[task.run].batches[1].hex(),
                "masks_sha256": hashlib.sha256(masks_sum.tobytes()).hexdigest(),
            }
        )
    np.testing.assert_array_equal(total, sum(update(d, length) for d in DEVICES))
    return {
        "about": "A batch of helper mode from fixed secrets; see docs/secure_aggregation.md and"
        " check.py. Bytes are hexadecimal. A word of an update is as in the rounds' transcripts.",
        "task": shown_task(task),
        "updates": RULE,
        "helpers": [
            {
                "edge": edge,
                "private": key.hex(),
                "signing_key": signing_key(at[edge].identity),
                "key": at[edge].card().key.hex(),
                "certificate": "",
                "signature": at[edge].card().signature.hex(),
                **found,
            }
            for (edge, key), found in zip(private.items(), sums, strict=True)
        ],
        "binding": named.binding.hex(),
        "members": members,
        "sum_sha256": hashlib.sha256(total.tobytes()).hexdigest(),
    }


FILES = {
    "helpers.json": batch,
    "round_aes.json": lambda: round_of(1),
    "round_chacha20.json": lambda: round_of(2),
    "graphs.json": graphs,
}


@pytest.mark.parametrize("name", FILES)
def test_sessions_say_what_was_written_down(name):
    path, found = VECTORS / "secagg" / name, FILES[name]()
    text = json.dumps(found, indent=1) + "\n"
    if os.environ.get("DELIAN_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == found


def run_check(*files: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a Python that refuses to import the project, wherever it is installed."""
    blind = (
        "import runpy, sys; sys.modules['delian'] = None;"  # importing it is an ImportError now
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", blind, str(VECTORS / "check.py"), *map(str, files)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
        check=False,
    )


def test_a_program_of_its_own_computes_the_same(tmp_path):
    files = sorted((VECTORS / "secagg").glob("*.json"))
    assert len(files) == len(FILES)
    done = run_check(*files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("good") == len(files)


@pytest.mark.parametrize("what", ["boxes", "signatures", "masked_sha256", "digest", "key"])
def test_it_notices_a_changed_batch(what, tmp_path):
    content = json.loads((VECTORS / "secagg" / "helpers.json").read_text(encoding="utf-8"))
    part = content["members" if what in content["members"][2] else "helpers"][1]
    value = part[what]
    part[what] = [*value[:-1], value[0]] if isinstance(value, list) else value[::-1]
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    done = run_check(path, cwd=tmp_path)
    assert done.returncode == 1 and "the file has" in done.stderr


@pytest.mark.parametrize("what", ["sum_sha256", "binding", "sealed", "consent"])
def test_it_notices_a_changed_value(what, tmp_path):
    content = json.loads((VECTORS / "secagg" / "round_aes.json").read_text(encoding="utf-8"))
    if what in content:
        content[what] = content[what][::-1]
    elif what in content["cohort"]:
        content["cohort"][what] = "00" * 32
    else:
        member = content["members"][0]
        member[what] = {**member[what], "1": "00"} if what == "sealed" else "00"
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    done = run_check(path, cwd=tmp_path)
    assert done.returncode == 1 and "the file has" in done.stderr
