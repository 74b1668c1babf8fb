"""`delian cloud run`, and what an operator asks of it from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cli.main import app
from delian.core.common.errors import DelianError

CODE = "import sys; from delian.cli.main import main; sys.argv[0] = 'delian'; main()"


def process(*arguments, **options):
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """Its address, and where it serves health."""
    folder = tmp_path_factory.mktemp("coordinator")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", CODE, "cloud", "run", "--insecure"),
            *("--state", str(folder / "state"), "--listen", "127.0.0.1:0"),
            *("--set", "cloud.health="),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("w"),
        text=True,
    )
    try:
        facts = json.loads(process.stdout.readline())
        yield f"127.0.0.1:{facts['ports']['grpc']}"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    assert code == 0, (folder / "log").read_text()


@pytest.fixture
def ask(coordinator, delian):
    """Runs a command in this process; gives its JSON."""

    def asked(*arguments):
        where = ("--insecure", "--coordinator", coordinator, "--json")
        code, said, err = delian(*arguments, *where)
        assert code == 0, err
        return said

    return asked


def test_a_run_from_its_submission_to_its_exported_model(ask, tmp_path):
    made = ask("run", "submit", "synthetic-mlp", "--plain", "--plan", "rounds=3", "--name", "first")
    number = made["run"]
    assert made["phase"] == "waiting" and made["plan"]["rounds"] == 3
    assert made["plan"]["labels"]["scenario"] == "synthetic-mlp"
    assert ask("run", "ls")["runs"][0]["run"] == number
    shown = ask("run", "show", number)
    assert shown["plan"]["name"] == "first"
    assert shown["chain"] == "clip(norm=10) | quantise(bits=32) | mean"
    assert ask("run", "pause", number)["phase"] == "paused"
    clone = ask("run", "clone", number, "--plan", "rounds=9", "--plan", "requirements.idle=true")
    assert clone["plan"]["rounds"] == 9 and clone["plan"]["requirements"]["idle"] is True
    assert ask("run", "cancel", number)["phase"] == "cancelled"
    lines = ask("run", "watch", number).splitlines()
    told = [json.loads(line) for line in lines]
    assert [e["facts"]["phase"] for e in told] == ["waiting", "paused", "cancelled"]
    assert [e["sequence"] for e in told] == [1, 2, 3]
    assert {m["run"] for m in ask("model", "ls")["models"]} >= {number, clone["run"]}
    assert ask("model", "promote", f"{number}/0")["aliases"] == ["serving"]
    exported = ask("model", "export", "serving", tmp_path / "m.bundle")
    from delian.core.learning.bundle import load

    bundle = load(tmp_path / "m.bundle")
    assert bundle.weights.size == bundle.manifest.dimension
    assert exported["bytes"] == (tmp_path / "m.bundle").stat().st_size
    own = (tmp_path / "m.bundle", "--plain")
    again = ask("run", "submit", "--bundle", *own, *plan("rounds=1", "cohort=2"))
    assert again["weights"] == made["weights"]
    assert ask("model", "promote", f"{again['run']}/0")["run"] == again["run"]
    assert ask("model", "rollback")["run"] == number
    assert ask("model", "show", made["weights"]["digest"])["weights"] == made["weights"]


def test_a_run_is_composed_in_one_line(ask):
    text = "chain=top_k(0.5) | clip(2) | quantise(16) | mean"
    number = ask("run", "submit", "synthetic-mlp", "--plain", "--set", text)["run"]
    shown = ask("run", "show", number)
    assert shown["chain"].endswith(" | clip(norm=2) | quantise(bits=16) | mean")
    assert shown["plan"]["ring"]["top"] > 0
    assert ask("run", "cancel", number)["phase"] == "cancelled"


def test_the_fleet_is_listed(ask):
    nodes = ask("fleet", "ls")["nodes"]
    assert [(n["node"]["tier"], n["node"]["number"]) for n in nodes] == [("node_edge", 0)]
    assert ask("fleet", "show", "edge-0")["state"] == "ready"
    assert ask("fleet", "ls", "--tier", "device")["nodes"] == []
    assert ask("fleet", "drain", "edge-0")["state"] in ("draining", "drained")
    assert ask("fleet", "ls")["nodes"][0]["state"] in ("draining", "drained")
    ask("fleet", "drain", "edge-0", "--undo")
    assert ask("fleet", "show", "edge-0")["state"] == "ready"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "show", "99"), "there is no run 99"),
        (("run", "submit"), "what should be trained?"),
        (("run", "submit", "synthetic-mlp", "--plan", "rounds=0"), "plan.rounds"),
        (("run", "submit", "synthetic-mlp"), "submit the run with --plain"),
        (("run", "submit", "synthetic-mlp", "--set", "privacy.top_k=0.1"), "top_k with mask"),
        (("run", "submit", "synthetic-mlp", "--plan", "speed=0"), "--plan speed=0"),
        (("run", "submit", "synthetic-mlp", "--plan", "cohort=many"), "--plan cohort=many"),
        (("model", "show", "99/1"), "there is no model"),
        (("model", "promote", "1/0", "NOT A NAME"), "no name for a model"),
        (("fleet", "show", "device-99"), "there is no device 99"),
        (("fleet", "show", "toaster-1"), "names no node"),
        (("fleet", "revoke", "device-1"), "certificates"),
        (("fleet", "drain", "device-1"), "only edges are drained"),
    ],
)
def test_a_mistake_is_told(coordinator, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    where = ("--insecure", "--coordinator", coordinator)
    with pytest.raises(DelianError) as caught:
        app([*arguments, *where], standalone_mode=False)
    assert words in str(caught.value)


def test_a_request_with_an_id_is_repeated_while_no_answer_comes(monkeypatch):
    from delian.core.node.service import operator_client as coordinator
    from delian.core.wire.operator_pb2 import SubmitRequest

    monkeypatch.setattr(coordinator, "PAUSES_S", (0, 0))
    heard = []

    class Fault(grpc.RpcError):
        def __init__(self, code):
            self.code, self.details = (lambda: code), (lambda: "")

    class Stub:
        def __init__(self, *answers):
            self.answers = iter(answers)

        def Submit(self, request, timeout, metadata):
            heard.append(request.request_id)
            answer = next(self.answers)
            if isinstance(answer, grpc.StatusCode):
                raise Fault(answer)
            return answer

    gone, late = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED
    request = SubmitRequest(request_id=b"r" * 16)
    client = coordinator.Client("x", Stub(gone, late, "made"), ())
    assert client.call_again("Submit", request) == "made" and heard == [b"r" * 16] * 3
    with pytest.raises(coordinator.Unreachable):
        coordinator.Client("x", Stub(gone, gone, gone, "never"), ()).call_again("Submit", request)
    with pytest.raises(DelianError, match="INVALID"):
        wrong = Stub(grpc.StatusCode.INVALID_ARGUMENT, "never")
        coordinator.Client("x", wrong, ()).call_again("Submit", request)


def test_a_coordinator_that_is_not_there_exits_with_3(tmp_path):
    done = process("run", "ls", "--insecure", "--coordinator", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 3 and "does not answer" in done.stderr


def test_without_tls_a_coordinator_serves_this_machine_alone(tmp_path):
    state = ("--state", tmp_path / "state", "--set", "cloud.health=")
    done = process("cloud", "run", "--insecure", "--listen", "0.0.0.0:0", *state, cwd=tmp_path)
    assert done.returncode == 2 and "loopback" in done.stderr and not done.stdout


def plan(*settings):
    return [word for setting in settings for word in ("--plan", setting)]
