"""`delian device`: what an owner asks of the device beside running it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from delian.cli.config import load
from delian.cli.fleet import device_commands
from delian.cli.fleet.device_commands import device_settings
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.founding import publish
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.device.agent.conditions import read_consent
from delian.device.agent.personal_model import Judgement, PersonalStore
from typer.testing import CliRunner


def delian(*arguments: str, code: int = 0):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, DelianError), done.output
    return str(done.exception)


@pytest.fixture
def state(tmp_path, blobs):
    """A device's folder with two personal models, the second of twice the numbers."""
    store = PersonalStore(tmp_path / "device" / "personal")
    for scale in (1, 2):
        store.prepare()
        model = (blobs.made.weights * np.float32(scale)).astype("<f4")
        store.draft.write_bytes(model.tobytes())
        judgement = Judgement(1.0, 1 / scale, 0.5, 0.5, 5.0)
        assert store.offer(blobs.path(blobs.bundle), blobs.bundle, judgement)
    return tmp_path / "device"


def test_a_device_does_not_start_without_the_data_that_it_names(tmp_path):
    where = ("--insecure", "--number", "9", "--home", "127.0.0.1:1", "--state", str(tmp_path / "d"))
    for source, says in (
        (str(tmp_path / "nofile.csv"), "there is no"),
        ("python:no_such_module:rows", "there is no module no_such_module"),
        (str(tmp_path), "holds no images"),
    ):
        assert says in refused("device", "run", "--data", source, *where)


def test_an_owner_who_has_not_said_anything_is_asked_on_a_terminal(tmp_path, monkeypatch):
    asked = []

    def answer(question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(device_commands.typer, "confirm", answer)
    flags = {"device.state": tmp_path}
    device_commands._ask_consent(None, flags, ())
    assert not asked, "this is no terminal"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    for _ in range(2):
        device_commands._ask_consent(None, flags, ())
    assert len(asked) == 1 and read_consent(tmp_path / "consent")


def test_consent_is_given_and_taken_back(tmp_path):
    folder = str(tmp_path)
    delian("device", "consent", "yes", "--state", folder)
    assert read_consent(tmp_path / "consent")
    delian("device", "consent", "no", "--state", folder)
    assert not read_consent(tmp_path / "consent")
    assert "neither yes nor no" in refused("device", "consent", "perhaps", "--state", folder)
    own = tmp_path / "mine"
    key = f"device.conditions.consent_file={own}"
    delian("device", "consent", "yes", "--state", folder, "--set", key)
    assert read_consent(own)


def test_the_personal_model_answers_without_a_running_device(state, tmp_path):
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    asked = ("--state", str(state), "--json", "--set", "device.worker.backend=reference")
    one = json.loads(delian("device", "predict", str(tmp_path / "x.npz"), *asked).stdout)
    assert len(one["labels"]) == 5
    out = tmp_path / "logits.npy"
    two = delian("device", "predict", str(tmp_path / "x.npy"), *asked, "--out", str(out))
    assert json.loads(two.stdout) == one
    assert list(np.load(out).argmax(-1)) == one["labels"]
    text = delian("device", "predict", str(tmp_path / "x.npy"), "--state", str(state)).stdout
    assert [int(line) for line in text.split()] == one["labels"]
    (tmp_path / "bad.npy").write_bytes(b"no array")
    assert "is not an .npy file" in refused("device", "predict", str(tmp_path / "bad.npy"), *asked)


def test_a_model_is_rolled_back_once(state):
    before = PersonalStore(state / "personal").current().digest
    assert "serving" in delian("device", "rollback", "--state", str(state)).stdout
    after = PersonalStore(state / "personal").current()
    assert after.digest != before and after.judgement.loss_after == 1.0


def test_the_status_is_what_the_device_said_last_and_whether_it_is_alive(tmp_path):
    assert "no device has run" in refused("device", "status", "--state", str(tmp_path))
    said = {
        "state": "running",
        "pid": os.getpid(),
        "phase": "ready",
        "homes": ["a:1"],
        "eligibility": {"powered": True, "idle": False},
        "personal_model": None,
        "sessions_failed": {"too_few": 2},
        "traffic": {"edge": {"sent_messages": 3, "sent_bytes": 12345}, "cloud": {}},
        "memory_mib": 2048,
        "started_ms": 1_700_000_000_123,
    }
    (tmp_path / "status.json").write_text(json.dumps(said))
    shown = delian("device", "status", "--state", str(tmp_path)).stdout
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert lines["eligibility"] == "powered, not idle" and lines["phase"] == "ready"
    assert lines["started"] == "2023-11-14 22:13:20" and lines["memory"] == "2,048 MiB"
    assert lines["sessions"] == "failed  too few 2"
    assert lines["traffic"] == "edge: sent messages 3, sent bytes 12,345; cloud: -"
    told = delian("device", "status", "--state", str(tmp_path), "--json")
    assert json.loads(told.stdout)["started_ms"] == 1_700_000_000_123
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    (tmp_path / "status.json").write_text(json.dumps({**said, "pid": done.pid}))
    told = delian("device", "status", "--state", str(tmp_path), "--json", code=1)
    assert json.loads(told.stdout)["alive"] is False
    (tmp_path / "status.json").write_text("[]")
    assert "damaged" in refused("device", "status", "--state", str(tmp_path))


def test_the_configuration_becomes_the_daemons_settings(tmp_path):
    flags = {
        "device.state": tmp_path,
        "device.homes": ["edge-3@127.0.0.1:7443", "mqtt://127.0.0.1:1883"],
        "device.data.source": "rows.csv",
        "device.number": 5,
        "device.insecure": True,
        "device.inference": "none",
    }
    given = device_settings(
        load(None, flags, ("device.worker.nice=3",), {}, tmp_path).config.device
    )
    assert [str(h.node) for h in given.homes] == ["edge 3", "edge 0"]
    assert given.worker.nice == 3 and given.worker.data.source.endswith("/rows.csv")
    assert given.worker.data.source.startswith("/")
    assert given.inference is None and given.identity is None and given.number == 5
    secure = device_settings(load(None, {"device.state": tmp_path}, (), {}, tmp_path).config.device)
    assert secure.identity == tmp_path / "identity"
    assert secure.inference == tmp_path / "personal.sock"
    owners = {**flags, "device.data.source": "python:mine:read"}
    mine = device_settings(load(None, owners, (), {}, tmp_path).config.device)
    assert mine.worker.data.source == "python:mine:read"


def test_a_device_that_does_not_know_who_it_is_says_what_to_do(tmp_path):
    for arguments, said in (
        ((), "delian join"),
        (("--insecure",), "--number"),
        (("--insecure", "--number", "1", "--home", "example.org:7443"), "not on this machine"),
        (("--insecure", "--number", "1"), "--home"),
        (("--insecure", "--number", "1", "--home", "here"), "host:port"),
    ):
        command = [sys.executable, "-m", "delian.cli", "device", "run", "--state", str(tmp_path)]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        assert done.returncode == 2 and said in done.stderr, (arguments, done.stderr)


@pytest.mark.parametrize(
    ("asked", "refuses_plain"),
    [
        ({}, True),
        ({"device.masks.required": False}, False),
        ({"device.insecure": True, "device.number": 1}, False),
        ({"device.insecure": True, "device.number": 1, "device.masks.required": True}, True),
    ],
)
def test_a_device_with_a_certificate_refuses_plain_tasks_unless_its_owner_allows_them(
    tmp_path, asked, refuses_plain
):
    config = load(None, {"device.state": tmp_path, **asked}, (), {}, tmp_path).config
    assert device_settings(config.device).policy.secure_required is refuses_plain


def test_an_owner_may_ask_for_masks_and_large_cohorts(tmp_path):
    asked = {
        "device.state": tmp_path,
        "device.masks.required": True,
        "device.masks.cohort_min": 50,
        "device.masks.corrupt": 0.25,
    }
    policy = device_settings(load(None, asked, (), {}, tmp_path).config.device).policy
    assert policy.secure_required
    assert (policy.floor.cohort_min, policy.floor.corrupt) == (50, 0.25)


class TestTheFloorOfADevice:
    @pytest.fixture
    def identity(self, tmp_path):
        authority = Authority.create(tmp_path / "ca", "farm")
        publish(authority, cohort_min=12, corrupt=0.1, fresh=True)
        operator_identity(authority, tmp_path / "identity")  # any identity has the terms
        return tmp_path / "identity"

    def floor(self, tmp_path, **asked):
        named = {"device.state": tmp_path, **{f"device.masks.{n}": v for n, v in asked.items()}}
        floor = device_settings(load(None, named, (), {}, tmp_path).config.device).policy.floor
        return floor.cohort_min, floor.corrupt

    def test_is_that_of_the_federation_s_terms(self, identity, tmp_path):
        assert self.floor(tmp_path) == (12, 0.1)

    def test_is_the_owner_s_word_in_both_directions(self, identity, tmp_path):
        assert self.floor(tmp_path, cohort_min=3) == (3, 0.1)
        assert self.floor(tmp_path, cohort_min=40, corrupt=0.2) == (40, 0.2)

    def test_is_the_protocol_s_where_the_device_has_no_terms(self, tmp_path):
        assert self.floor(tmp_path) == (3, 0.05)
