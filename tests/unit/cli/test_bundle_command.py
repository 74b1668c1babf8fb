"""`delian bundle explain`: what a bundle can tell, in words and as facts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Ditto, FedAvg, Samples, SampleSet, metrics
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.node.identity.artifacts import manifest as m
from delian.core.wire.artifact_pb2 import ArtifactManifest, OnlineKey, OnlineKeys
from delian.core.wire.blob_pb2 import BlobRef
from typer.testing import CliRunner

ROWS = SampleSet(np.zeros((8, 5), np.float32), np.zeros(8, np.int32), np.array(6), np.array(2))


def make(algorithm: Any = None, name: str = "tiny") -> Bundle:
    return build(
        Classification(name, lambda key: dl.nn.Mlp.init(key, 5, (4,), 3), Samples(4, 1.0)),
        algorithm or FedAvg(),
        ROWS,
        example=TensorType(DType.F32, (2, 5)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )


@pytest.fixture(scope="module")
def made() -> Bundle:
    return make()


def explained(path: Path, bundle: Bundle, *options: str) -> tuple[int, str]:
    file = path / "it.bundle"
    bundle.save(file)
    result = CliRunner().invoke(app, ["bundle", "explain", str(file), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def facts_of(path: Path, bundle: Bundle, *options: str) -> dict[str, Any]:
    code, output = explained(path, bundle, "--json", *options)
    assert code == 0
    return json.loads(output)


def output(facts: dict[str, Any], program: str, kind: str) -> dict[str, Any]:
    (found,) = [o for o in facts["programs"][program]["outputs"] if o["kind"] == kind]
    return found


def test_facts_say_what_goes_in_and_out_and_what_chooses(tmp_path, made) -> None:
    facts = facts_of(tmp_path, made)
    assert facts["refused"] is None and facts["hash"] == made.content_hash()
    assert [d["type"] for d in facts["data"]] == ["f32[8,5]", "i32[8]", "i64[]", "i64[]"]
    numbers = 5 * 4 + 4 + 4 * 3 + 3
    assert facts["update"]["numbers"] == numbers and facts["update"]["rows"] == numbers // 5
    assert facts["update"]["bytes"] == made.manifest.ring.nbytes
    assert facts["evaluation"] == metrics.metrics_plan(4).length
    update = output(facts, "client_update", "update")
    assert update["leaves"] and update["values"] == ["weights", "data"] and update["random"]
    assert not output(facts, "client_update", "loss")["leaves"]
    assert facts["sent"] == {
        "number": False,
        "key": False,
        "data": True,
        "data_selects": True,
        "random": True,
        "random_selects": True,
    }
    assert output(facts, "server_update", "weights")["values"] == ["weights", "mean update"]
    assert facts["programs"]["client_update"]["loops"]["depend"] == ["data"]


def test_what_a_device_keeps_is_said_to_stay(tmp_path) -> None:
    facts = facts_of(tmp_path, make(Ditto()))
    kept = output(facts, "client_update", "client state")
    assert not kept["leaves"] and facts["client_state"] == kept["numbers"] > 0
    assert "client state" not in output(facts, "client_update", "update")["values"]


def test_words_say_what_cannot_be_told(tmp_path, made) -> None:
    code, text = explained(tmp_path, made)
    assert code == 0
    for said in (
        "the device's number   no ",
        "the device's key      no ",
        "random numbers        YES",
        "data                  YES",
        "What this cannot show",
        "The bundle adds no noise",
    ):
        assert said in text
    _, *lines = text.splitlines()  # the first has the file's path, which may be of any length
    assert max(map(len, lines)) <= 110


def test_a_bundle_that_devices_refuse_is_explained_and_ends_with_1(tmp_path, made, peeking) -> None:
    code, text = explained(tmp_path, peeking(made))
    assert code == 1
    assert "REFUSED BY DEVICES: client_update compares a random key by `eq`" in text
    assert "the device's key      YES" in text


def test_names_of_a_hostile_author_are_escaped(tmp_path, made) -> None:
    named = dataclasses.replace(made.manifest, task="a\x1b]0;owned\x07\r" + "x" * 5000)
    for options in ([], ["--json"]):
        _, text = explained(tmp_path, dataclasses.replace(made, manifest=named), *options)
        assert "\x1b" not in text and "\r" not in text and "x" * 201 not in text


def signed(path: Path, bundle: Bundle) -> tuple[Path, Path]:
    """A manifest of the bundle, and the root's public key."""
    root, online, ends = m.new_key(), m.new_key(), int(time.time()) + 3600
    content = bundle.bare().to_bytes()
    ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
    key = OnlineKey(key=m.raw(online.public_key()), expires_s=ends, name="alice")
    keys = OnlineKeys(federation="farm", version=1, expires_s=ends, keys=[key])
    manifest = ArtifactManifest(
        federation="farm",
        line="digits",
        sequence=3,
        bundle=ref,
        targets=["any"],
        issued_s=1,
        expires_s=ends,
        clip=5.0,
        dimension=bundle.manifest.dimension,
        cohort_min=40,
        corrupt=0.1,
    )
    (path / "manifest").write_bytes(m.sign_manifest(online, m.sign_keys(root, keys), manifest))
    (path / "root.pub").write_bytes(m.public_pem(root.public_key()))
    return path / "manifest", path / "root.pub"


def test_a_signed_manifest_says_what_masks_there_are(tmp_path, made) -> None:
    manifest, root = signed(tmp_path, made)
    options = ["--manifest", str(manifest)]
    _, text = explained(tmp_path, made, *options)
    assert "masked among at least 40 devices" in text and "NOT CHECKED" in text
    _, text = explained(tmp_path, made, *options, "--root", str(root))
    assert "digits 3 (checked)" in text


def test_a_manifest_of_another_bundle_or_root_is_refused(tmp_path, made) -> None:
    manifest, root = signed(tmp_path, make(name="other"))
    with pytest.raises(dl.DelianError, match="for another bundle"):
        explained(tmp_path, made, "--manifest", str(manifest))
    (tmp_path / "root.pub").write_bytes(m.public_pem(m.new_key().public_key()))
    with pytest.raises(dl.DelianError, match="not signed by the root key"):
        explained(tmp_path, made, "--manifest", str(manifest), "--root", str(root))
