"""Signed artifacts: what counts, what does not, and why; and what a device remembers of them."""

from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from delian.core.node.identity.artifacts import artifact_keys as keys
from delian.core.node.identity.artifacts import manifest as m
from delian.core.node.identity.pki.certificates import IdentityError, key_pem
from delian.core.wire.artifact_pb2 import (
    ArtifactLimits,
    ArtifactManifest,
    OnlineKey,
    OnlineKeys,
    SignedArtifact,
)
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.round_pb2 import EVALUATE, RingPlan, Task
from delian.core.wire.secure_pb2 import SecurePlan

NOW = 1_800_000_000
BUNDLE = BlobRef(digest=hashlib.sha256(b"bundle").digest(), size=6)
ROOT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ALICE = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
MALLORY = Ed25519PrivateKey.from_private_bytes(b"m" * 32)


def listed(version=1, expires_s=NOW + 1000, key_ends=NOW + 1000, who=ALICE) -> OnlineKeys:
    online = OnlineKey(key=m.raw(who.public_key()), expires_s=key_ends, name="alice")
    return OnlineKeys(federation="farm", version=version, expires_s=expires_s, keys=[online])


def manifest(**changes) -> ArtifactManifest:
    given = {
        "federation": "farm",
        "line": "digits",
        "sequence": 7,
        "bundle": BUNDLE,
        "targets": ["any"],
        "issued_s": NOW,
        "expires_s": NOW + 500,
        "clip": 2.0,
        "dimension": 10,
    }
    return ArtifactManifest(**{**given, **changes})


def signed(root=ROOT, online=ALICE, keys_=None, **changes) -> bytes:
    return m.sign_manifest(online, m.sign_keys(root, keys_ or listed()), manifest(**changes))


def check(content: bytes, now=NOW) -> m.Verified:
    return m.verify(content, ROOT.public_key(), "farm", now)


def reason(content: bytes, now=NOW) -> str:
    with pytest.raises(m.ArtifactError) as error:
        check(content, now)
    return error.value.reason


def test_what_both_keys_signed_counts():
    found = check(signed(limits=ArtifactLimits(memory_mib=64)))
    assert found.manifest.line == "digits" and found.manifest.limits.memory_mib == 64
    assert found.keys.version == 1


def test_the_signed_bytes_are_those_that_the_contract_names():
    content = SignedArtifact.FromString(signed())
    ALICE.public_key().verify(content.signature, b"delian/artifact-manifest/v1" + content.manifest)
    ROOT.public_key().verify(content.keys_signature, b"delian/artifact-keys/v1" + content.keys)
    assert content.manifest == manifest().SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "unsigned"),
        (b"x" * 20_000, "too large"),
        (b"\xff\xff", "malformed"),
        (signed(root=MALLORY), "root"),
        (signed(online=MALLORY), "signer"),
        (signed(keys_=listed(expires_s=NOW)), "keys expired"),
        (signed(keys_=listed(key_ends=NOW)), "signer expired"),
        (signed(expires_s=NOW), "expired"),
        (signed(federation="barn"), "federation"),
    ],
)
def test_what_does_not_count_is_refused_by_its_reason(content, why):
    assert reason(content) == why


def test_the_clock_decides_when_it_ends():
    content = signed()
    assert check(content, NOW + 499).manifest.sequence == 7
    assert reason(content, NOW + 500) == "expired"
    assert reason(content, NOW + 1000) == "keys expired"


def test_no_byte_of_it_can_be_changed():
    content = signed()
    whole = SignedArtifact.FromString(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        try:
            found = check(bytes(changed))
        except m.ArtifactError:
            continue
        # Protobuf itself allows a few encodings of the outer message; what was signed is the same.
        assert found.manifest == manifest() and found.keys == listed()
    for name in ("keys", "manifest", "signature", "keys_signature", "signer"):
        other = SignedArtifact()
        other.CopyFrom(whole)
        part = bytearray(getattr(other, name))
        part[len(part) // 2] ^= 4
        setattr(other, name, bytes(part))
        assert reason(other.SerializeToString())


def test_signatures_of_one_kind_do_not_count_for_the_other():
    """A root that is tricked into signing a list cannot be made to vouch for a manifest."""
    content = manifest().SerializeToString(deterministic=True)
    own = m.sign_keys(ROOT, listed(who=ROOT))
    crossed = SignedArtifact(
        keys=own.keys,
        keys_signature=own.keys_signature,
        manifest=content,
        signer=m.raw(ROOT.public_key()),
        signature=ROOT.sign(b"delian/artifact-keys/v1" + content),
    )
    assert reason(crossed.SerializeToString()) == "signature"


def test_fields_that_this_version_does_not_know_are_refused_though_signed():
    content = manifest().SerializeToString(deterministic=True) + b"\xa8\x06\x01"  # field 101
    own = m.sign_keys(ROOT, listed())
    made = SignedArtifact(
        keys=own.keys,
        keys_signature=own.keys_signature,
        manifest=content,
        signer=m.raw(ALICE.public_key()),
        signature=ALICE.sign(b"delian/artifact-manifest/v1" + content),
    )
    assert reason(made.SerializeToString()) == "malformed"


@pytest.mark.parametrize(
    "changes",
    [
        {"line": ""},
        {"line": "x" * 129},
        {"sequence": 0},
        {"bundle": BlobRef(digest=b"short", size=1)},
        {"targets": []},
        {"targets": ["any"] * 17},
        {"clip": 0.0},
        {"clip": float("nan")},
        {"noise": -1.0},
        {"noise": float("nan")},
        {"corrupt": 1.0},
        {"corrupt": float("nan")},
        {"dimension": 0},
    ],
)
def test_a_manifest_that_says_too_little_or_too_much_cannot_be_signed(changes):
    with pytest.raises(m.ArtifactError, match="not one that counts"):
        signed(**changes)


def test_it_is_for_one_bundle_and_for_the_machines_that_it_names():
    found = manifest(targets=["linux-x86_64"])
    m.check_bundle(found, BUNDLE, "linux-x86_64")
    with pytest.raises(m.ArtifactError, match="this is linux-armv7l"):
        m.check_bundle(found, BUNDLE, "linux-armv7l")
    m.check_bundle(manifest(), BUNDLE)
    for ref in (BlobRef(digest=bytes(32), size=6), BlobRef(digest=BUNDLE.digest, size=7)):
        with pytest.raises(m.ArtifactError, match="another bundle"):
            m.check_bundle(found, ref, "linux-x86_64")


def test_a_coordinator_cannot_loosen_the_plan_that_was_signed():
    ring = RingPlan(clip=2.0, clients_max=4, bits=32, dimension=10)
    m.check_task(manifest(), Task(ring=ring))
    m.check_task(manifest(), Task(ring=RingPlan(clip=1.0, dimension=10)))
    for other in (RingPlan(clip=2.1, dimension=10), RingPlan(clip=2.0, dimension=11)):
        with pytest.raises(m.ArtifactError, match="the task asks for"):
            m.check_task(manifest(), Task(ring=other))
    # An evaluation's ring is of metrics, and everybody computes it.
    m.check_task(manifest(), Task(purpose=EVALUATE, ring=RingPlan(clip=96.0, dimension=4)))
    strong = manifest(cohort_min=5, corrupt=0.2)
    m.check_task(strong, Task(ring=ring, secure=SecurePlan(cohort_min=5, corrupt=0.2)))
    for share in (0.1, float("nan")):
        weak = Task(ring=ring, secure=SecurePlan(cohort_min=5, corrupt=share))
        with pytest.raises(m.ArtifactError, match="against 20% of them"):
            m.check_task(strong, weak)
    masked = manifest(cohort_min=5)
    m.check_task(masked, Task(ring=ring, secure=SecurePlan(cohort_min=5)))
    for task in (Task(ring=ring), Task(ring=ring, secure=SecurePlan(cohort_min=4))):
        with pytest.raises(m.ArtifactError, match="masked among at least 5"):
            m.check_task(masked, task)
    with pytest.raises(m.ArtifactError, match="masked among"):
        m.check_task(masked, Task(purpose=EVALUATE))


def test_a_coordinator_cannot_take_the_noise_out_that_was_signed():
    def task(**ring) -> Task:
        return Task(ring=RingPlan(clip=2.0, dimension=10, **ring))

    noisy = manifest(noise=0.5)
    m.check_task(noisy, task(noise=0.5))
    m.check_task(noisy, task(noise=0.7))
    for other in (task(), task(noise=0.4), task(noise=0.5, central=True)):
        with pytest.raises(m.ArtifactError, match="noise"):
            m.check_task(noisy, other)
    m.check_task(manifest(noise=0.5, central=True), task(noise=0.5, central=True))
    m.check_task(manifest(), task())


def test_a_coordinator_cannot_drown_the_noise_that_was_signed_in_rounding():
    """A round's own clip makes an update a few steps long; it is rounded by a key that the
    coordinator knows, and what rounding tells is many times what the noise of these few steps
    hides.
    """
    plan = RingPlan(clip=2.0, clients_max=100, bits=32, dimension=100_000, noise=0.3)
    noisy = manifest(noise=0.3, clip=2.0, dimension=100_000)
    for within, passes in ((0.0, True), (1.9, True), (0.5, True), (2e-3, False), (2e-4, False)):
        asked = RingPlan(within=within)
        asked.MergeFrom(plan)
        if passes:
            m.check_task(noisy, Task(ring=asked))
        else:
            with pytest.raises(m.ArtifactError, match="rounding would show") as error:
                m.check_task(noisy, Task(ring=asked))
            assert error.value.reason == "noise"
    with pytest.raises(m.ArtifactError, match="rounding would show"):
        m.check_task(noisy, Task(ring=RingPlan(clip=2.0, dimension=100_000, noise=0.3, within=1)))


def test_what_was_signed_with_noise_is_not_evaluated_without_any():
    asked = Task(purpose=EVALUATE, ring=RingPlan(clip=2.0, dimension=4))
    m.check_task(manifest(), asked)
    with pytest.raises(m.ArtifactError, match="evaluation") as error:
        m.check_task(manifest(noise=0.5), asked)
    assert error.value.reason == "noise"


# ---------------------------------------------------------------- what a device remembers


def taken(seen: keys.Seen, *, list_version=1, sequence=7, line="digits", **more) -> str:
    """The reason of the refusal, empty when it was taken."""
    content = signed(keys_=listed(version=list_version), sequence=sequence, line=line, **more)
    try:
        seen.take(check(content))
    except m.ArtifactError as error:
        return error.reason
    return ""


def test_nothing_older_is_taken_again():
    seen = keys.Seen()
    assert taken(seen, sequence=7) == "" and taken(seen, sequence=7) == ""
    assert taken(seen, sequence=6) == "rollback"
    assert taken(seen, sequence=7, clip=1.0) == "rollback", "another manifest of the same number"
    assert taken(seen, sequence=8) == "" and taken(seen, sequence=7) == "rollback"
    assert taken(seen, sequence=1, line="speech") == "", "lines do not hold each other up"
    assert taken(seen, list_version=3, sequence=9) == ""
    assert taken(seen, list_version=2, sequence=10) == "keys rollback"
    assert seen.lines["digits"][0] == 9


def test_what_was_seen_survives_and_damage_is_told(tmp_path):
    path, seen = tmp_path / "artifacts.json", keys.Seen()
    assert keys.Seen.load(path) == seen
    taken(seen, list_version=4, sequence=11)
    seen.store(path)
    again = keys.Seen.load(path)
    assert again == seen and taken(again, list_version=4, sequence=10) == "rollback"
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    body = whole[: whole.rindex(b"}") + 2]
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for content in (changed, whole[:at]):
            path.write_bytes(content)
            if content == body:  # as a file of before was written
                assert keys.Seen.load(path) == seen
                continue
            with pytest.raises(IdentityError, match="is damaged"):
                keys.Seen.load(path)
    for content in ("", "[]", "{}", json.dumps({"version": 1, "keys": "zz", "lines": {}})):
        path.write_text(content)
        with pytest.raises(IdentityError, match="is damaged"):
            keys.Seen.load(path)


def test_lines_have_a_limit(monkeypatch):
    monkeypatch.setattr(keys, "LINES_MAX", 2)
    seen = keys.Seen()
    assert [taken(seen, line=line) for line in "abca"] == ["", "", "lines", ""]


# ---------------------------------------------------------------- those who sign


def test_from_a_new_root_to_a_manifest_that_counts(tmp_path):
    root = keys.RootFolder.create(tmp_path / "root")
    online = keys.OnlineFolder.create(tmp_path / "online")
    for path in (root.folder / "root.pem", online.folder / "key.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="no list of online keys"):
        online.sign("digits", BUNDLE, clip=2.0, dimension=10)
    root.sign("farm", {"alice": online.public}, now_s=NOW)
    (online.folder / "keys").write_bytes((root.folder / "keys").read_bytes())
    first = online.sign("digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW)
    second = online.sign("digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW)
    found = [m.verify(c, root.public, "farm", NOW).manifest for c in (first, second)]
    assert [f.sequence for f in found] == [NOW, NOW + 1]
    assert found[0].expires_s == NOW + keys.MANIFEST_VALID_S
    # Its memory is lost: time has gone on.
    (online.folder / "last").unlink()
    third = keys.OnlineFolder(online.folder).sign(
        "digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW + 60
    )
    assert m.verify(third, root.public, "farm", NOW + 60).manifest.sequence == NOW + 60


def test_a_withdrawn_key_counts_no_more_where_the_new_list_was_seen(tmp_path):
    root = keys.RootFolder.create(tmp_path / "root")
    old, new = (keys.OnlineFolder.create(tmp_path / name) for name in ("old", "new"))
    for folder, version in ((old, 1), (new, 2)):
        made = root.sign("farm", {folder.folder.name: folder.public}, now_s=NOW)
        assert made.version == version
        (folder.folder / "keys").write_bytes((root.folder / "keys").read_bytes())
    seen = keys.Seen()

    def take(folder: keys.OnlineFolder) -> bool:
        content = folder.sign("digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW)
        return seen.take(m.verify(content, root.public, "farm", NOW))

    assert take(new)
    with pytest.raises(m.ArtifactError, match="list 1 of online keys, where list 2 was seen"):
        take(old)
    (old.folder / "keys").write_bytes((root.folder / "keys").read_bytes())
    with pytest.raises(IdentityError, match="does not name the key"):
        old.keys()


def test_folders_that_are_not_what_they_must_be(tmp_path):
    with pytest.raises(IdentityError, match="cannot read"):
        keys.RootFolder(tmp_path)
    (tmp_path / "root.pem").write_bytes(b"x" * 5000)
    with pytest.raises(IdentityError, match="larger than"):
        keys.RootFolder(tmp_path)
    (tmp_path / "root.pem").write_bytes(b"no key")
    with pytest.raises(IdentityError, match="no Ed25519 private key"):
        keys.RootFolder(tmp_path)
    with pytest.raises(IdentityError, match="is there already"):
        keys.RootFolder.create(tmp_path)
    with pytest.raises(IdentityError, match="no Ed25519 public key"):
        m.load_public(key_pem(ROOT), "x")
    with pytest.raises(IdentityError, match="no Ed25519 private key"):
        m.load_private(m.public_pem(ROOT.public_key()), "x")
    root = keys.RootFolder.create(tmp_path / "root")
    root.sign("farm", {"alice": ALICE.public_key()}, now_s=NOW)
    with pytest.raises(IdentityError, match="the root of farm"):
        root.sign("barn", {"alice": ALICE.public_key()}, now_s=NOW)
    online = keys.OnlineFolder.create(tmp_path / "online")
    root.sign("farm", {"alice": online.public}, valid_s=10, now_s=NOW)
    (online.folder / "keys").write_bytes((root.folder / "keys").read_bytes())
    with pytest.raises(IdentityError, match="has ended"):
        online.sign("digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW + 10)
    (online.folder / "last").write_text("-1")
    with pytest.raises(IdentityError, match="is damaged"):
        online.sign("digits", BUNDLE, clip=2.0, dimension=10, now_s=NOW)
