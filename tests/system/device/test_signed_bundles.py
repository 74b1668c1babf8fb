"""A device with a root key runs signed bundles and no others; nothing opens one before that."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.sources import DataSettings
from delian.core.node.identity.artifacts import artifact_keys as keys
from delian.core.node.identity.artifacts.manifest import ArtifactError, raw
from delian.core.node.identity.authority.terms import made
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.artifact_pb2 import ArtifactLimits
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.enrolment_pb2 import FederationTerms
from delian.core.wire.round_pb2 import NOT_SIGNED, OUT_OF_MEMORY, Task
from delian.core.wire.secure_pb2 import SecurePlan
from delian.device.agent.artifact_gate import Gate, gate_of, read_root
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner

NOW = 1_800_000_000
SECURE = SecurePlan(suite=1, cohort_min=10, corrupt=0.1, dropout=0.1)


@pytest.fixture
def signer(tmp_path):
    """A root, an online key that it has signed, and a clock that tests may move."""

    class Signer:
        root = keys.RootFolder.create(tmp_path / "root")
        online = keys.OnlineFolder.create(tmp_path / "online")
        now = NOW

        def gate(self) -> Gate:
            path = tmp_path / "artifacts.json"
            return Gate(self.root.public, "farm", path, clock=lambda: self.now)

        def sign(self, blobs, **changes) -> bytes:
            facts = blobs.made.manifest
            size = blobs.path(blobs.bundle).stat().st_size
            given = {"clip": facts.clip, "dimension": facts.dimension, "now_s": NOW}
            return self.online.sign(
                "small", BlobRef(digest=blobs.bundle, size=size), **{**given, **changes}
            )

    made = Signer()
    made.root.sign("farm", {"online": made.online.public}, now_s=NOW)
    (made.online.folder / "keys").write_bytes((made.root.folder / "keys").read_bytes())
    return made


def program(blobs, manifest: bytes, **changes):
    """A job as the machine asks for it, for a task that carries `manifest`."""
    job = blobs.program()
    size = blobs.path(blobs.bundle).stat().st_size
    task = Task(
        run=1,
        round=1,
        attempt=1,
        bundle=BlobRef(digest=blobs.bundle, size=size),
        ring=job.arguments[1],
        manifest=manifest,
        **changes,
    )
    return dataclasses.replace(job, task=task)


def outcomes(npz_file, blobs, gate, *programs, **worker):
    async def each():
        settings = WorkerSettings(data=DataSettings(str(npz_file)), backend="reference", **worker)
        runner = WorkerRunner(settings, blobs.path, gate=gate)
        try:
            said = [await runner.run(p) for p in programs]
        finally:
            await runner.close()
        return said, runner.starts

    return asyncio.run(asyncio.wait_for(each(), 300))


def test_a_signed_bundle_runs(signer, blobs, npz_file):
    gate = signer.gate()
    (said,), _ = outcomes(npz_file, blobs, gate, program(blobs, signer.sign(blobs)))
    assert isinstance(said, Outcome) and not gate.counts


def test_without_a_root_key_a_device_runs_what_it_is_sent(blobs, npz_file):
    (said,), _ = outcomes(npz_file, blobs, None, program(blobs, b""))
    assert isinstance(said, Outcome)


def test_what_is_not_signed_for_it_is_refused_before_any_process_is_there(
    signer, blobs, npz_file, tmp_path, caplog
):
    good = signer.sign(blobs)
    stranger = keys.RootFolder.create(tmp_path / "stranger")
    other = keys.OnlineFolder.create(tmp_path / "other")
    stranger.sign("farm", {"other": other.public}, now_s=NOW)
    (other.folder / "keys").write_bytes((stranger.folder / "keys").read_bytes())
    ref = BlobRef(digest=blobs.bundle, size=blobs.path(blobs.bundle).stat().st_size)
    forged = other.sign("small", ref, clip=5.0, dimension=4, now_s=NOW)
    another = signer.online.sign(
        "small", BlobRef(digest=bytes(32), size=9), clip=5.0, dimension=4, now_s=NOW
    )
    wide = program(blobs, good)
    wide.task.ring.clip *= 2
    gate = signer.gate()
    with caplog.at_level(logging.WARNING):
        said, starts = outcomes(
            npz_file,
            blobs,
            gate,
            program(blobs, b""),
            program(blobs, good[:-1]),
            program(blobs, forged),
            program(blobs, another),
            wide,
            dataclasses.replace(program(blobs, good), task=None),
        )
    assert said == [ProgramStopped(NOT_SIGNED)] * 6
    assert starts == 0, "no training process has seen the bundle"
    wanted = {"unsigned": 2, "malformed": 1, "root": 1, "bundle": 1, "ring": 1}
    assert gate.counts == wanted
    assert sum("a bundle was refused" in r.message for r in caplog.records) == 6


def test_a_masked_task_needs_a_bundle_that_was_signed_for_its_floors(signer, blobs, npz_file):
    """Whoever writes the bundle of a masked run can read single updates out of the sum."""
    jobs = [
        program(blobs, b""),
        program(blobs, signer.sign(blobs, cohort_min=20, corrupt=0.1)),
        program(blobs, signer.sign(blobs, cohort_min=10, corrupt=0.2)),
        program(blobs, signer.sign(blobs, cohort_min=10, corrupt=0.1)),
    ]
    for job in jobs:
        job.task.secure.CopyFrom(SECURE)
    gate = signer.gate()
    said, _ = outcomes(npz_file, blobs, gate, *jobs)
    assert said[:3] == [ProgramStopped(NOT_SIGNED)] * 3 and isinstance(said[3], Outcome)
    assert gate.counts == {"unsigned": 1, "masks": 2}


class TestWhichBundlesADeviceChecks:
    """By the root key of the federation's terms, unless the owner says otherwise."""

    def gate(self, tmp_path, terms, **given):
        return gate_of(
            "farm", tmp_path / "seen", **{"joined": True, "root": None, **given}, terms=terms
        )

    def terms(self, root: bytes = b"") -> FederationTerms:
        return made("farm", now_s=NOW, artifact_root=root)

    def masked(self, blobs, manifest: bytes):
        job = program(blobs, manifest)
        job.task.secure.CopyFrom(SECURE)
        return job

    def test_those_that_the_root_key_of_the_terms_vouches_for(self, signer, blobs, tmp_path):
        gate = self.gate(tmp_path, self.terms(raw(signer.root.public)))
        good = signer.online.sign(
            "small",
            program(blobs, b"").task.bundle,
            clip=blobs.made.manifest.clip,
            dimension=blobs.made.manifest.dimension,
            cohort_min=10,
            corrupt=0.1,
            now_s=int(time.time()),
        )
        with pytest.raises(ArtifactError) as caught:
            gate.admit(self.masked(blobs, b""))
        assert caught.value.reason == "unsigned"
        gate.admit(self.masked(blobs, good))

    def test_without_a_root_key_in_the_terms_masked_tasks_are_refused(self, blobs, tmp_path):
        gate = self.gate(tmp_path, self.terms())
        with pytest.raises(ArtifactError) as caught:
            gate.admit(self.masked(blobs, b""))
        assert caught.value.reason == "no root"
        assert gate.admit(program(blobs, b"")) == ArtifactLimits()

    def test_the_owner_s_root_key_goes_before_the_federation_s(self, signer, blobs, tmp_path):
        own = keys.RootFolder.create(tmp_path / "own")
        terms = self.terms(raw(signer.root.public))
        gate = self.gate(tmp_path, terms, root=own.folder / "root.pub")
        with pytest.raises(ArtifactError) as caught:
            gate.admit(self.masked(blobs, signer.sign(blobs)))
        assert caught.value.reason == "root"

    def test_the_owner_may_allow_unsigned_ones(self, signer, tmp_path):
        assert self.gate(tmp_path, self.terms(raw(signer.root.public)), signed=False) is None

    def test_a_device_that_joined_before_there_were_terms_goes_on(self, tmp_path, caplog):
        assert self.gate(tmp_path, None) is None
        assert "joined before its federation had terms" in caplog.text


def test_no_restart_lets_an_older_bundle_in_again(signer, blobs, npz_file):
    old, new = signer.sign(blobs), signer.sign(blobs)
    said, _ = outcomes(npz_file, blobs, signer.gate(), program(blobs, new))
    assert isinstance(said[0], Outcome)
    gate = signer.gate()  # as after a restart
    said, _ = outcomes(npz_file, blobs, gate, program(blobs, old), program(blobs, new))
    assert said[0] == ProgramStopped(NOT_SIGNED) and isinstance(said[1], Outcome)
    assert gate.counts == {"rollback": 1}


def test_a_bundle_runs_until_its_manifest_ends(signer, blobs, npz_file):
    gate, content = signer.gate(), signer.sign(blobs, valid_s=60)
    assert isinstance(outcomes(npz_file, blobs, gate, program(blobs, content))[0][0], Outcome)
    signer.now = NOW + 60
    assert outcomes(npz_file, blobs, gate, program(blobs, content))[0] == [
        ProgramStopped(NOT_SIGNED)
    ]


def test_what_was_seen_is_not_taken_for_seen_when_it_could_not_be_stored(
    signer, blobs, npz_file, tmp_path
):
    gate, content = signer.gate(), signer.sign(blobs)
    (tmp_path / "artifacts.json").mkdir()
    said, starts = outcomes(npz_file, blobs, gate, *[program(blobs, content)] * 2)
    assert not any(isinstance(s, Outcome) for s in said) and starts == 0
    (tmp_path / "artifacts.json").rmdir()
    assert isinstance(outcomes(npz_file, blobs, gate, program(blobs, content))[0][0], Outcome)


def test_whoever_signs_may_give_less_than_the_owner_and_not_more(signer, hungry, blobs, npz_file):
    tight = signer.sign(hungry, limits=ArtifactLimits(memory_mib=200))
    said, _ = outcomes(npz_file, hungry, signer.gate(), program(hungry, tight))
    assert said == [ProgramStopped(OUT_OF_MEMORY)]
    said, _ = outcomes(npz_file, hungry, signer.gate(), program(hungry, signer.sign(hungry)))
    assert isinstance(said[0], Outcome), "the owner gives enough"
    loose = signer.sign(hungry, limits=ArtifactLimits(memory_mib=100_000))
    said, _ = outcomes(npz_file, hungry, signer.gate(), program(hungry, loose), memory_mib=200)
    assert said == [ProgramStopped(OUT_OF_MEMORY)]


def test_a_device_that_was_to_have_a_root_key_does_not_run_without_it(signer, tmp_path):
    assert read_root(signer.root.folder / "root.pub") is not None
    with pytest.raises(DelianError, match="cannot be read"):
        read_root(tmp_path / "none.pub")
    (tmp_path / "bad.pub").write_text("not a key")
    with pytest.raises(DelianError, match="no Ed25519 public key"):
        read_root(tmp_path / "bad.pub")
