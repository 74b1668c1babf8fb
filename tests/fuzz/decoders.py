"""Every decoder that reads what comes from outside, as a function of bytes, and what it may raise.

A decoder gives a value or raises one of its named refusals; anything else (another exception, a
crash, an allocation far beyond its input) is a finding. `fuzz.py` feeds them with atheris,
`test_decoders.py` with hypothesis and mutated good inputs.

The state machines are decoders too: of a sequence of messages from peers that may lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import chain_decoders
import interchange_decoders
import log_decoders
import numpy as np
import parts_decoders
import table_decoders
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from delian.cloud.protocol.coordinator_state import CoordinatorState
from delian.cloud.protocol.machine import Coordinator
from delian.cloud.protocol.machine import restore as restore_cloud
from delian.cloud.protocol.run_plan import RunPlan
from delian.cloud.service import audit
from delian.core.common.errors import DelianError
from delian.core.compiler import ir_codec
from delian.core.compiler.backends.native.toolchain import artifact
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.parse import parse_function
from delian.core.compiler.verify import verify
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, bundle
from delian.core.learning.aggregate import chains
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.disclosure.interface import ports_of
from delian.core.learning.nn import Mlp, sgd
from delian.core.node.identity.artifacts import manifest
from delian.core.node.identity.artifacts.artifact_keys import Seen
from delian.core.node.identity.authority import approvals, deny_list, terms, tokens
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.enrolment import renewal_messages
from delian.core.node.identity.pki import certificates
from delian.core.node.net.mqtt import seal, topics
from delian.core.node.sandbox import frames
from delian.core.node.storage import codec
from delian.core.node.storage.memory_storage import MemoryDisk
from delian.core.node.storage.segments import Segments
from delian.core.privacy.mechanisms import sparse
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import (
    CLOUD,
    SECOND,
    Event,
    Node,
    Ordered,
    ProtocolError,
    Received,
    Started,
    Tier,
    TimerFired,
)
from delian.core.protocol.random_streams import Streams
from delian.core.wire import (
    admission_pb2,
    artifact_pb2,
    blob_pb2,
    enrolment_pb2,
    link_pb2,
    operator_pb2,
    round_pb2,
)
from delian.device.protocol.device_state import DevicePolicy
from delian.device.protocol.machine import DeviceMachine, DeviceState
from delian.device.protocol.machine import restore as restore_device
from delian.edge.protocol.machine import EdgeMachine, EdgeState
from delian.edge.protocol.machine import restore as restore_edge
from google.protobuf.message import DecodeError

BODY_BYTES_MAX = 1 << 16
DEVICE, EDGE = Node(Tier.DEVICE, 1), Node(Tier.EDGE, 1)
DIGEST = bytes(range(32))
DIMENSION = 3
SPARSE = RingPlan(1.0, 4, 6, top=2)


@dataclass(frozen=True)
class Decoder:
    """read: raises nothing but `refusals`. seeds: good inputs, which mutations begin with."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    refusals: tuple[type[Exception], ...] = (DelianError,)


# ---------------------------------------------------------------- messages


def task() -> round_pb2.Task:
    ref = blob_pb2.BlobRef(digest=DIGEST, size=10)
    ring = round_pb2.RingPlan(clip=1.0, clients_max=10, bits=32, dimension=DIMENSION)
    return round_pb2.Task(
        run=1,
        round=1,
        attempt=1,
        bundle=ref,
        weights=ref,
        ring=ring,
        time_ms=10_000,
        rng_key=bytes(8),
    )


def plan() -> operator_pb2.PlanMessage:
    ref = blob_pb2.BlobRef(digest=DIGEST, size=10)
    weights = blob_pb2.BlobRef(digest=DIGEST[::-1], size=4 * DIMENSION)
    return operator_pb2.PlanMessage(
        name="fuzz", rounds=2, cohort=1, bundle=ref, weights=weights, ring=task().ring
    )


def _vector() -> bytes:
    return bytes(4 * (DIMENSION + 1))


def conversations() -> list[link_pb2.Envelope]:
    """A message of each kind, as an honest peer sends it."""
    name = {"run": 1, "round": 1, "attempt": 1}
    willing = admission_pb2.Eligibility(powered=True, unmetered=True, idle=True, consented=True)
    up = [
        admission_pb2.CheckIn(device=1, sequence=1, protocol=1, eligibility=willing),
        blob_pb2.FetchBlob(digest=DIGEST),
        round_pb2.Upload(**name, device=1, vector=_vector()),
        round_pb2.Failure(**name, device=1, reason=round_pb2.NO_DATA),
    ]
    higher = [
        admission_pb2.EdgeHello(edge=1, incarnation=1, sequence=1, protocol=1, ready=[1]),
        round_pb2.EdgeProgress(**name, edge=1, counted=1),
        round_pb2.EdgeSum(**name, edge=1, devices=[1], count=1, sum=_vector()),
        blob_pb2.FetchBlob(digest=DIGEST),
    ]
    down = [
        admission_pb2.Pace(ready_max=10, lease_ms=60_000),
        round_pb2.EdgeTask(task=task(), devices=[1], time_ms=20_000),
        round_pb2.Flush(**name, go_on=True),
        round_pb2.EdgeSumAck(**name),
        round_pb2.RoundClosed(**name, succeeded=True),
        blob_pb2.Blob(digest=DIGEST, size=10, content=bytes(10)),
    ]
    lowest = [
        admission_pb2.Accept(sequence=1, lease_ms=60_000),
        admission_pb2.Reject(sequence=1, reason=admission_pb2.POOL_FULL),
        task(),
        blob_pb2.Blob(digest=DIGEST, size=10, content=bytes(10)),
        round_pb2.UploadAck(**name, device=1, status=round_pb2.COUNTED),
        round_pb2.RoundClosed(**name),
    ]
    routes = (
        (DEVICE, EDGE, up),
        (EDGE, CLOUD, higher),
        (CLOUD, EDGE, down),
        (EDGE, DEVICE, lowest),
    )
    return [codec.envelope(a, b, m) for a, b, messages in routes for m in messages]


def _read_envelope(data: bytes) -> object:
    envelope = link_pb2.Envelope.FromString(data)
    return codec.node_of(envelope.sender), codec.message_of(envelope)


def _read_plan(data: bytes) -> object:
    return RunPlan.from_message(1, operator_pb2.PlanMessage.FromString(data))


def _entries() -> list[bytes]:
    events: list[Event] = [
        Received(codec.node_of(e.sender), codec.message_of(e)) for e in conversations()
    ]
    events += [Started((DIGEST,)), TimerFired("repeat")]
    return [codec.encode(event, 5 * SECOND) for event in events]


# ---------------------------------------------------------------- machines


def _talk(machine: DeviceMachine | EdgeMachine | Coordinator, data: bytes) -> object:
    """Lets peers say what the input holds: each message a length byte pair and an envelope."""
    now, at = 1, 0
    machine.handle(Started(), now)
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "little")
        said, at = data[at + 2 : at + 2 + length], at + 2 + length
        now += SECOND
        try:
            envelope = link_pb2.Envelope.FromString(said)
            event = Received(codec.node_of(envelope.sender), codec.message_of(envelope))
            machine.handle(event, now)
        except (ProtocolError, DecodeError):
            continue
        for name in ("repeat", "round", "hello", "retry", "task"):
            machine.handle(TimerFired(name), now)
    return machine.snapshot()


#: Of an owner who allows plain tasks, so that a task gets further than its refusal.
PLAIN = DevicePolicy(secure_required=False)


def _device(data: bytes) -> object:
    willing = admission_pb2.Eligibility(powered=True, unmetered=True, idle=True, consented=True)
    facts = admission_pb2.DeviceFacts(memory_mib=100)
    return _talk(DeviceMachine(DeviceState(1), (EDGE,), Streams(1), facts, willing, PLAIN), data)


def _edge(data: bytes) -> object:
    return _talk(EdgeMachine(EdgeState(1, incarnation=1)), data)


def _cloud(data: bytes) -> object:
    machine = Coordinator(CoordinatorState())
    machine.handle(Started(), 1)
    machine.handle(Ordered(operator_pb2.RunOrder(run=1, submit=plan())), 1)
    return _talk(machine, data)


def _talks(to: Node) -> list[bytes]:
    said = [e.SerializeToString() for e in conversations() if codec.node_of(e.to) == to]
    return [b"".join(len(s).to_bytes(2, "little") + s for s in said)]


def _states() -> list[bytes]:
    willing = admission_pb2.Eligibility(consented=True)
    facts = admission_pb2.DeviceFacts()
    device = DeviceMachine(DeviceState(1), (EDGE,), Streams(1), facts, willing, PLAIN)
    return [
        device.snapshot(),
        EdgeMachine(EdgeState(1, incarnation=1)).snapshot(),
        Coordinator(CoordinatorState()).snapshot(),
    ]


def _read_states(data: bytes) -> object:
    refused = 0
    for restore in (restore_device, restore_edge, restore_cloud):
        try:
            restore(data)
        except DelianError:
            refused += 1
    return refused


# ---------------------------------------------------------------- files and frames


def _segment() -> MemoryDisk:
    disk = MemoryDisk()
    journal = Segments(disk, lambda n: bytes(n))
    journal.load()
    journal.append([b"first", b"second"])
    journal.append([b"third"])
    return disk


def _read_segment(data: bytes) -> object:
    disk = MemoryDisk()
    (name,) = [n for n in _segment().list() if n.startswith("log-")]
    disk.append(name, [data])
    return Segments(disk, lambda n: bytes(n)).load()


def _segments() -> list[bytes]:
    disk = _segment()
    return [disk.read(name) for name in disk.list()]


def _read_frame(data: bytes) -> object:
    return frames.read(io.BytesIO(data), BODY_BYTES_MAX)


PROGRAM = """fn double(%0 x: f32[3]) -> (result: f32[3]) {
  %1: f32[3] = add(%0, %0)
  return %1
}
"""


def _read_program(data: bytes) -> object:
    function = ir_codec.decode_function(data)
    verify(function)
    return function


def _read_text(data: bytes) -> object:
    function = parse_function(data.decode("utf-8", "replace"))
    verify(function)
    return function


@cache
def _authority() -> tuple[bytes, bytes]:
    """A device's certificate, and a token, of a federation that is gone again."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder) / "ca", "example")
        request = certificates.certificate_request(certificates.new_key())
        issued = authority.issue(request, certificates.Role.DEVICE, 5)
        token = tokens.Token(
            certificates.Role.DEVICE,
            "example",
            "127.0.0.1:7444",
            authority.root_public,
            bytes(tokens._ID),
            bytes(tokens._SECRET),
        )
        return issued.chain, token.text().encode()


@cache
def _bundle() -> bytes:
    rows = SampleSet(np.zeros((4, 2), np.uint8), np.zeros(4, np.int32), np.array(2), np.array(2))
    task = Classification("fuzz", lambda key: Mlp.init(key, 2, (2,), 2), Samples(2, 1.0))
    return build(
        task,
        FedAvg(local=sgd(0.1)),
        rows,
        example=TensorType(DType.F32, (1, 2)),
        clip=1.0,
        clients_max=2,
        weight_max=4.0,
        seed=1,
    ).to_bytes()


@cache
def _parsed() -> bundle.Bundle:
    return bundle.parse(_bundle())


def _ports(data: bytes) -> object:
    """The programs of a good bundle under a manifest that says something else of them."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise DelianError("no JSON") from None
    if not isinstance(body, dict):
        raise DelianError("no manifest")
    made = replace(_parsed(), manifest=bundle._manifest_from(body, "fuzz"))
    return [ports_of(made, name) for name in made.programs]


@cache
def _renewal() -> tuple[x509.Certificate, renewal_messages.Asked, bytes, bytes]:
    """A CA's certificate, a renewal as it was read, the ask and its answer."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder) / "ca", "example")
        device, cloud = (
            certificates.TlsMaterial(key, issued.chain, authority.pem)
            for key, issued in (
                issue_to(authority, certificates.Role.DEVICE, 5),
                issue_to(authority, certificates.Role.AUTHORITY, 0),
            )
        )
        request = certificates.certificate_request(certificates.new_key())
        ask = renewal_messages.make_ask(device, request)
        asked = renewal_messages.read_ask(ask, authority.certificate)
        answer = renewal_messages.make_answer(cloud, asked, None, "revoked")
        encoded = ask.SerializeToString(), answer.SerializeToString()
        return authority.certificate, asked, *encoded


def _read_renewal(data: bytes) -> object:
    asked = renewal_messages.read_ask(link_pb2.RenewalAsk.FromString(data), _renewal()[0])
    certificates.requested_key(asked.request)
    assert asked.identity.node == asked.node
    return asked.claim_hash


def _read_renewed(data: bytes) -> object:
    ask = link_pb2.RenewalAsk.FromString(_renewal()[2])
    return renewal_messages.read_answer(link_pb2.RenewalAnswer.FromString(data), ask, _renewal()[0])


@cache
def _deny_list() -> tuple[x509.Certificate, deny_list.SignedList]:
    """A CA's certificate, and a list that it has signed."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder) / "ca", "example")
        authority.note_number(certificates.Role.DEVICE, 3)
        for number in (1, 3):
            authority.revoke(f"device-{number}")
        return authority.certificate, authority.signed()


def _read_deny_list(data: bytes) -> object:
    """A list of which the CA has signed the head, or of a CA that signs anything."""
    authority, signed = _deny_list()
    head = deny_list.verify_head(signed.head, signed.signature, authority, "example")
    count, digest = len(data) // deny_list.ENTRY_BYTES, hashlib.sha256(data).digest()
    forged = replace(head, entries=count, digest=digest)
    listed = deny_list.read_entries(forged, data)
    assert len(listed.names) == count
    with contextlib.suppress(DelianError):
        deny_list.read_entries(head, data)
    with contextlib.suppress(DelianError):
        deny_list.verify_head(data, signed.signature, authority, "example")
    with contextlib.suppress(DelianError):
        deny_list._read_head(data)
    return listed


def _channel() -> seal.Channel:
    return seal.Channel(b"12345678", bytes(32), bytes(32), sealed=True)


def _open_sealed(data: bytes) -> object:
    return _channel().open("a/topic", data)


_ROOT, _ONLINE = (Ed25519PrivateKey.from_private_bytes(name * 32) for name in (b"r", b"o"))


@cache
def _online_keys() -> artifact_pb2.SignedArtifact:
    online = artifact_pb2.OnlineKey(key=manifest.raw(_ONLINE.public_key()), expires_s=9, name="o")
    keys = artifact_pb2.OnlineKeys(federation="example", version=1, expires_s=9, keys=[online])
    return manifest.sign_keys(_ROOT, keys)


def _manifest() -> artifact_pb2.ArtifactManifest:
    return artifact_pb2.ArtifactManifest(
        federation="example",
        line="fuzz",
        sequence=1,
        bundle=blob_pb2.BlobRef(digest=DIGEST, size=10),
        targets=["any"],
        expires_s=9,
        clip=1.0,
        dimension=DIMENSION,
    )


_CA = certificates.new_key()


def _read_terms(data: bytes) -> object:
    """The CA's signature holds, whatever is signed."""
    signature = _CA.sign(b"delian/federation-terms/v1" + data, ec.ECDSA(hashes.SHA256()))
    signed = enrolment_pb2.SignedTerms(terms=data, signature=signature).SerializeToString()
    return terms.verify(signed, _CA.public_key(), "example")


def _terms() -> enrolment_pb2.FederationTerms:
    return terms.made("example", now_s=9, artifact_root=manifest.raw(_ROOT.public_key()))


def _read_signed(data: bytes) -> object:
    found = manifest.verify(data, _ROOT.public_key(), "example", 0)
    manifest.check_task(found.manifest, task())
    return Seen().take(found)


def _read_whatever_is_signed(data: bytes) -> object:
    """As a stolen online key would have it: the signature holds, whatever is signed."""
    signed = artifact_pb2.SignedArtifact()
    signed.CopyFrom(_online_keys())
    signed.manifest, signed.signer = data, manifest.raw(_ONLINE.public_key())
    signed.signature = _ONLINE.sign(b"delian/artifact-manifest/v1" + data)
    return _read_signed(signed.SerializeToString())


def _read_seen(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifacts.json"
        path.write_bytes(data)
        return Seen.load(path)


def _seen() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        seen, path = Seen(), Path(folder) / "artifacts.json"
        signed = manifest.sign_manifest(_ONLINE, _online_keys(), _manifest())
        seen.take(manifest.verify(signed, _ROOT.public_key(), "example", 0))
        seen.store(path)
        return path.read_bytes()


FACTS = artifact.Facts(
    "aarch64-linux-musl",
    "aarch64",
    "a compiler",
    ("-O2",),
    "emitter",
    (artifact.Entry("infer", "dl_entry_0", "hash", 64, 64, 1, 1, donated=((0, 0),)),),
)


def _record() -> bytes:
    fields = {"run": 1, "round": 1, "model": DIGEST, "devices": 3}
    first = audit.entry("evaluation", fields, DIGEST, 1, audit.START, 0)
    second = audit.entry("evaluation", fields, DIGEST, 2, audit.hash_of(first), 0)
    asked = {"by": "admin-1", "role": "admin", "serial": "4a", "method": "Rollback"}
    asked |= {"request": DIGEST.hex(), "facts": {"alias": "serving"}}
    call = audit.call_entry(asked, 3, audit.hash_of(second), 0)
    done = {"call": 3, "ok": False, "why": "no room", "facts": {}}
    outcome = audit.outcome_entry(done, 4, audit.hash_of(call), 0)
    signed = audit.Checkpoint(4, audit.hash_of(outcome), 0, _authority()[0], bytes(70))
    return b"\n".join((first, second, call, outcome, signed.line()))


def _token_request() -> bytes:
    wanted = approvals.Wanted("farm", "admin-1", "device", 500, 3600, "00" * 16, 2**31)
    return approvals.Approval(wanted, _authority()[0], bytes(70)).content()


DECODERS: Mapping[str, Decoder] = {
    "signed manifest": Decoder(
        _read_signed, lambda: [manifest.sign_manifest(_ONLINE, _online_keys(), _manifest())]
    ),
    "manifest": Decoder(
        _read_whatever_is_signed, lambda: [_manifest().SerializeToString(deterministic=True)]
    ),
    "terms": Decoder(_read_terms, lambda: [_terms().SerializeToString(deterministic=True)]),
    "seen manifests": Decoder(_read_seen, lambda: [_seen()]),
    "token request": Decoder(approvals.Approval.parse, lambda: [_token_request()]),
    "record": Decoder(lambda data: audit.verify(data.split(b"\n")), lambda: [_record()], ()),
    "envelope": Decoder(
        _read_envelope,
        lambda: [e.SerializeToString() for e in conversations()],
        (ProtocolError, DecodeError),
    ),
    "entry": Decoder(codec.decode, _entries),
    "plan": Decoder(_read_plan, lambda: [plan().SerializeToString()], (DelianError, DecodeError)),
    "device": Decoder(_device, lambda: _talks(DEVICE), ()),
    "edge": Decoder(_edge, lambda: _talks(EDGE), ()),
    "cloud": Decoder(_cloud, lambda: _talks(CLOUD), ()),
    "state": Decoder(_read_states, _states, ()),
    "journal": Decoder(_read_segment, _segments),
    "frame": Decoder(_read_frame, lambda: [frames.pack({"a": 1}, 3) + b"abc"]),
    "program": Decoder(_read_program, lambda: [ir_codec.encode_function(parse_function(PROGRAM))]),
    "chain": Decoder(
        lambda data: chains.read(data.decode("utf-8", "replace")),
        lambda: [b"clip(norm=2) | quantise(8) | mask(cohorts=3) | median(0.3) | server(adam, 0.1)"],
    ),
    "sparse upload": Decoder(
        lambda data: sparse.received(data, SPARSE),
        lambda: [sparse.sent(np.array([0, 5, 0, 9, 0, 1, 3], np.uint32), SPARSE)],
    ),
    "text": Decoder(_read_text, lambda: [PROGRAM.encode()]),
    "bundle": Decoder(bundle.parse, lambda: [_bundle()]),
    "bundle's manifest": Decoder(_ports, lambda: [bundle.manifest_bytes(_parsed()._body(), {})]),
    "artifact": Decoder(
        lambda data: artifact.parse(data, "x"), lambda: [artifact.sealed(b"object", FACTS)]
    ),
    "artifact's facts": Decoder(
        lambda data: artifact.facts_of(data, "x"),
        lambda: [json.dumps(FACTS.to_json()).encode()],
    ),
    "topic": Decoder(
        lambda data: topics.parse(data.decode("utf-8", "replace")),
        lambda: [
            b"delian/v1/example/device/device-5/up/birth/edge-1",
            b"delian/v1/example/edge/edge-1/up/home",
        ],
    ),
    "token": Decoder(
        lambda data: tokens.parse(data.decode("utf-8", "replace")), lambda: [_authority()[1]]
    ),
    "certificate": Decoder(certificates.identity_of, lambda: [_authority()[0]]),
    "request": Decoder(
        certificates.requested_key,
        lambda: [certificates.certificate_request(certificates.new_key())],
    ),
    "renewal": Decoder(_read_renewal, lambda: [_renewal()[2]], (DelianError, DecodeError)),
    "renewed": Decoder(_read_renewed, lambda: [_renewal()[3]], (DelianError, DecodeError)),
    "deny list": Decoder(_read_deny_list, lambda: [_deny_list()[1].entries]),
    "sealed": Decoder(_open_sealed, lambda: [_channel().seal("a/topic", b"hello")]),
    "presence": Decoder(
        lambda data: seal.Credentials("example", EDGE, None).read(data),
        lambda: [seal.Credentials("example", EDGE, None).home(1)],
    ),
    **{name: Decoder(*found) for name, found in parts_decoders.DECODERS.items()},
    **{name: Decoder(*found) for name, found in log_decoders.DECODERS.items()},
    **{name: Decoder(*found) for name, found in chain_decoders.DECODERS.items()},
    **{name: Decoder(*found) for name, found in interchange_decoders.DECODERS.items()},
    **{name: Decoder(*found) for name, found in table_decoders.DECODERS.items()},
}
