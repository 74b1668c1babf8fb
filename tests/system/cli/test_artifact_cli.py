"""`delian artifact`, as whoever keeps the root key and whoever submits runs use it."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from delian.cli.fleet.submitted_plan import keep_to_terms
from delian.cli.programs.artifact_commands import check_can_sign, signed_plan
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.nn import Mlp, sgd
from delian.core.node.identity.artifacts import manifest as m
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage


@pytest.fixture(scope="module")
def small() -> Bundle:
    task = Classification("small", lambda key: Mlp.init(key, 2, (2,), 2), Samples(2, 1.0))
    rows = SampleSet(np.zeros((4, 2), np.float32), np.zeros(4, np.int32), np.array(4), np.array(1))
    return build(
        task,
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 2)),
        clip=5.0,
        clients_max=8,
        weight_max=4.0,
        seed=1,
    )


@pytest.fixture
def ready(delian, tmp_path, small):
    """A root, an online key that it has signed, and a bundle."""
    assert delian("artifact", "root-init", "root", "--json")[0] == 0
    assert delian("artifact", "key-init", "--json")[0] == 0
    online = tmp_path / "state" / "delian" / "operator" / "artifacts"
    code, listed, _ = delian(
        "artifact", "root-sign", "root", "--federation", "farm",
        "--key", f"alice={online / 'key.pub'}", "--out", online / "keys", "--json",
    )  # fmt: skip
    assert code == 0 and (listed["version"], listed["keys"]) == (1, ["alice"])
    small.save(tmp_path / "small.bundle")
    return online


def plan(small: Bundle) -> PlanMessage:
    message = PlanMessage(name="small", bundle=BlobRef(digest=bytes(32), size=5))
    message.ring.clip, message.ring.dimension = small.manifest.clip, small.manifest.dimension
    return message


def test_a_bundle_is_signed_and_checked(delian, ready, tmp_path):
    code, told, _ = delian(
        "artifact", "sign", "small.bundle", "--out", "m", "--cohort-min", 3, "--json"
    )
    assert code == 0 and (told["line"], told["cohort_min"]) == ("small", 3)
    again = ["artifact", "verify", "m", "--root", "root/root.pub"]
    code, facts, _ = delian(*again, "--bundle", "small.bundle", "--json")
    assert code == 0 and facts["bundle"] == told["bundle"] and facts["federation"] == "farm"
    code, facts, _ = delian(
        "artifact", "verify", ready / "keys", "--root", "root/root.pub", "--json"
    )
    assert code == 0 and facts["keys"] == ["alice"] and "bundle" not in facts
    code, text, _ = delian(*again)
    assert code == 0 and "sequence" in text


def test_what_does_not_hold_exits_with_2_and_says_why(delian, ready, tmp_path):
    delian("artifact", "sign", "small.bundle", "--out", "m")
    delian("artifact", "root-init", "other")
    code, _, err = delian("artifact", "verify", "m", "--root", "other/root.pub")
    assert code == 2 and "not signed by the root key" in err
    content = bytearray((tmp_path / "m").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m").write_bytes(content)
    code, _, err = delian("artifact", "verify", "m", "--root", "root/root.pub")
    assert code == 2 and "not what its online key has signed" in err
    code, _, err = delian("artifact", "root-init", "root")
    assert code == 2 and "is there already" in err
    code, _, err = delian("artifact", "root-sign", "root", "--federation", "farm", "--key", "x")
    assert code == 2 and "not NAME=KEY.pub" in err


def test_submit_signs_where_a_key_is_and_says_nothing_where_there_is_none(ready, tmp_path, small):
    message = plan(small)
    message.secure.cohort_min = 4
    root = m.load_public((tmp_path / "root" / "root.pub").read_bytes(), "root")
    content = signed_plan(message, ready, None, None)
    found = m.verify(content, root, "farm", m_now(content)).manifest
    assert (found.line, found.cohort_min) == ("small", 4)
    assert (found.clip, found.dimension) == (small.manifest.clip, small.manifest.dimension)
    assert found.bundle == message.bundle
    assert signed_plan(message, tmp_path / "nothing", None, None) == b""
    with pytest.raises(DelianError, match="no key in"):
        signed_plan(message, tmp_path / "nothing", None, "a line")
    (tmp_path / "m").write_bytes(content)
    assert signed_plan(message, None, tmp_path / "m", None) == content
    message.bundle.size += 1
    with pytest.raises(DelianError, match="another bundle"):
        signed_plan(message, None, tmp_path / "m", None)


def m_now(content: bytes) -> float:
    from delian.core.wire.artifact_pb2 import ArtifactManifest

    return ArtifactManifest.FromString(m.read(content).manifest).issued_s


def test_a_device_joins_with_the_root_key_and_doctor_tells_how_it_stands(
    delian, coordinator, ready, tmp_path
):
    delian("ca", "init", "ca", "--federation", "farm")

    def told() -> dict[str, str]:
        _, found, _ = delian("doctor", "device", "--offline", "--json")
        return next(f for f in found["findings"] if f["name"] == "device bundles")

    assert told()["state"] == "warning" and "no root key" in told()["text"]
    with coordinator(tmp_path / "ca") as (_, enrolment):
        where = ["--ca", "ca", "--address", f"127.0.0.1:{enrolment}", "--json"]
        token = delian("token", *where)[1]["token"]
        code, _, err = delian("join", token, "--artifact-root", "no.pub")
        assert code == 2 and "cannot be read" in err
        assert delian("join", token, "--artifact-root", "root/root.pub")[0] == 0
        edge = delian("token", "--tier", "edge", "--node-address", "e.example", *where)[1]["token"]
        code, _, err = delian("join", edge, "--identity", "e", "--artifact-root", "root/root.pub")
        assert code == 2 and "runs no bundles" in err
    assert told()["state"] == "ok" and "signed ones only" in told()["text"]
    identity = tmp_path / "state" / "delian" / "device" / "identity"
    (identity / "artifact-root.pub").write_text("damaged")
    assert told()["state"] == "wrong"


def test_doctor_tells_whether_updates_must_be_masked(delian, tmp_path):
    def told(*settings) -> dict[str, str]:
        _, found, _ = delian("doctor", "device", "--offline", "--json", *settings)
        return next(f for f in found["findings"] if f["name"] == "device masks")

    allowed = told("--set", "device.masks.required=false")
    assert allowed["state"] == "warning" and "can read" in allowed["text"]
    assert told()["state"] == "ok" and "among 3 or more" in told()["text"]
    asked = ("--set", "device.masks.required=true", "--set", "device.masks.cohort_min=20")
    assert told(*asked)["state"] == "ok" and "among 20 or more" in told(*asked)["text"]


class TestANewFederation:
    @pytest.fixture
    def made(self, delian, tmp_path):
        asked = ("ca", "init", "ca", "--federation", "farm", "--cohort-min", 12, "--json")
        code, facts, _ = delian(*asked)
        assert code == 0 and facts["terms"]["cohort_min"] == 12
        assert delian("ca", "issue", "operator", "op", "--ca", "ca")[0] == 0
        return facts["terms"]

    def terms(self, tmp_path):
        return IdentityFolder(tmp_path / "op").terms()

    def test_its_operator_s_key_is_signed_by_the_root_key_of_the_terms(
        self, delian, made, tmp_path, small
    ):
        """The chain that a device checks: terms, list of online keys, manifest, bundle."""
        terms = self.terms(tmp_path)
        assert made["artifact_root"] and terms.cohort_min == 12 and terms.masks_required
        check_can_sign(tmp_path / "op" / "artifacts", terms)
        message = plan(small)
        content = signed_plan(message, tmp_path / "op" / "artifacts", None, None)
        root = Ed25519PublicKey.from_public_bytes(terms.artifact_root)
        found = m.verify(content, root, "farm", m_now(content))
        assert [key.name for key in found.keys.keys] == ["admin-1"]

    def test_a_run_is_raised_to_the_terms(self, made, tmp_path, capsys):
        message = PlanMessage(name="small")
        message.secure.cohort_min, message.secure.corrupt = 3, 0.2
        assert keep_to_terms(message, ["rounds=5"], self.terms(tmp_path))
        assert (message.secure.cohort_min, message.secure.corrupt) == (12, 0.2)
        assert message.rounds == 5 and "12 or more" in capsys.readouterr().err

    def test_without_a_key_submit_says_how_to_get_one(self, made, tmp_path):
        with pytest.raises(DelianError, match="no key in") as caught:
            check_can_sign(tmp_path / "nothing", self.terms(tmp_path))
        assert "delian artifact key-init" in str(caught.value)
        assert "delian artifact root-sign ROOT --federation farm --keep" in str(caught.value)

    def test_another_root_key_s_list_is_told(self, made, ready, tmp_path, capsys):
        check_can_sign(ready, self.terms(tmp_path))
        assert "not signed by the root key" in capsys.readouterr().err

    def test_with_the_root_key_moved_an_operator_s_key_is_signed_offline(
        self, delian, made, tmp_path
    ):
        (tmp_path / "ca" / "artifact-root").rename(tmp_path / "usb")
        code, _, err = delian("ca", "issue", "operator", "bob", "--ca", "ca")
        assert code == 0 and "root-sign" in err and "admin-2" in err
        key = tmp_path / "bob" / "artifacts" / "key.pub"
        asked = ("artifact", "root-sign", "usb", "--federation", "farm", "--keep")
        out = tmp_path / "bob" / "artifacts" / "keys"
        code, listed, _ = delian(*asked, "--key", f"admin-2={key}", "--out", out, "--json")
        assert code == 0 and listed["keys"] == ["admin-1", "admin-2"]
        check_can_sign(tmp_path / "bob" / "artifacts", self.terms(tmp_path))

    def test_its_terms_are_shown_and_changed(self, delian, made):
        code, shown, _ = delian("ca", "terms", "ca", "--json")
        assert code == 0 and shown == made
        code, changed, _ = delian("ca", "terms", "ca", "--allow-plain", "--json")
        assert code == 0 and not changed["masks_required"] and changed["cohort_min"] == 12
        assert changed["version"] > made["version"]
        assert changed["artifact_root"] == made["artifact_root"]

    def test_a_device_shows_its_terms_and_runs_signed_bundles_only(
        self, delian, coordinator, made, tmp_path
    ):
        with coordinator(tmp_path / "ca") as (_, enrolment):
            where = ["--ca", "ca", "--address", f"127.0.0.1:{enrolment}", "--json"]
            token = delian("token", *where)[1]["token"]
            assert delian("join", token)[0] == 0
        code, shown, _ = delian("device", "terms", "--json")
        assert code == 0 and shown == {"terms": made, "offered": None}
        code, _, err = delian("device", "terms", "--accept")
        assert code == 2 and "no other terms" in err
        _, found, _ = delian("doctor", "device", "--offline", "--json")
        told = {f["name"]: f for f in found["findings"]}
        assert "signed ones only" in told["device bundles"]["text"]
        assert "among 12 or more" in told["device masks"]["text"]
