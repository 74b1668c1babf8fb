"""A broker that comes with a command and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from delian.core.node.net.mqtt import broker_acl
from delian.core.node.net.mqtt.broker import (
    Broker,
    BrokerError,
    BrokerSettings,
    choose,
    is_loopback,
    mosquitto_config,
    mosquitto_path,
)
from delian.core.protocol.ports import Node, Tier
from delian.core.wire import admission_pb2, round_pb2

WAIT_S = 120  # only so that nothing hangs


def command(*arguments):
    return [sys.executable, "-m", "delian.cli", "broker", *arguments]


def alive(pid):
    """Whether the process runs; one that is dead and not yet fetched does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


@pytest.fixture
def up(tmp_path, mqtt):
    """Runs `delian broker up` and ends it."""
    started = []

    def run(*arguments):
        mqtt.need_mosquitto()
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            command("up", "--port", "0", "--json", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process, json.loads(process.stdout.readline())

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_leaves_nothing_behind(up, tmp_path, number):
    process, facts = up()
    host, port = facts["address"].removeprefix("mqtt://").split(":")
    socket.create_connection((host, int(port)), WAIT_S).close()
    assert host == "127.0.0.1" and alive(facts["pid"]) and list(tmp_path.iterdir())
    process.send_signal(signal.SIGHUP)  # the broker's to handle
    process.send_signal(number)
    assert process.wait(WAIT_S) == 0
    assert not alive(facts["pid"]) and list(tmp_path.iterdir()) == []


def test_the_command_ends_when_its_broker_does(up, tmp_path):
    process, facts = up()
    os.kill(facts["pid"], signal.SIGKILL)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and "ended by itself" in said
    assert list(tmp_path.iterdir()) == []


def test_a_broker_does_not_outlive_a_command_that_is_killed(up, tmp_path):
    process, facts = up()
    assert alive(facts["pid"]) and list(tmp_path.iterdir())
    process.kill()
    deadline = time.monotonic() + WAIT_S
    while (alive(facts["pid"]) or list(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(facts["pid"]) and list(tmp_path.iterdir()) == []


def test_a_broker_for_certificates_takes_no_others(up, farm):
    files = farm.broker()
    process, facts = up("--tls-dir", str(files.key.parent), "--federation", "farm")
    assert facts["address"].startswith("mqtts://") and process.poll() is None


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=WAIT_S)


def test_what_cannot_be_is_said_in_one_line_and_with_a_hint(tmp_path, mqtt):
    mqtt.need_mosquitto()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, words in (
            (("--port", str(taken.getsockname()[1])), "in use"),
            (("--host", "0.0.0.0"), "loopback only"),
            (("--tls-dir", str(tmp_path)), "--federation"),
            (("--tls-dir", str(tmp_path), "--federation", "farm"), "cannot read"),
            (("--tls-dir", str(tmp_path), "--federation", "a/b"), "cannot name"),
        ):
            done = run("up", *arguments)
            assert done.returncode == 2 and words in done.stderr, done.stderr
            assert "Traceback" not in done.stderr


def test_the_access_lists_are_printed():
    assert run("acl", "--federation", "farm", "--for", "emqx").stdout == broker_acl.emqx("farm")
    done = run("acl", "--federation", "farm", "--for", "mosquitto", "--edges", "2", "--json")
    assert json.loads(done.stdout) == {
        "for": "mosquitto",
        "text": broker_acl.mosquitto("farm", [1, 2]),
    }


def test_a_broker_that_will_not_start_says_why(mqtt, farm, tmp_path):
    mqtt.need_mosquitto()
    good = farm.broker()
    (tmp_path / "key.pem").write_bytes(b"no key")
    bad = type(good)(tmp_path / "key.pem", good.certificate, good.authority)
    settings = BrokerSettings(
        port=0, tls=bad, acl=broker_acl.mosquitto("farm", []), kind="mosquitto"
    )

    async def main():
        broker = Broker(settings)
        with pytest.raises(BrokerError, match="does not start"):
            await broker.start()
        assert broker.pid is None and broker._folder is None

    asyncio.run(main())


def test_a_stopped_broker_goes_on_with_what_it_had(mqtt):
    mqtt.need_mosquitto()

    async def main():
        broker = Broker(BrokerSettings(port=0, kind="mosquitto"))
        first = await broker.start()
        folder = broker._folder
        await broker.stop()
        assert broker.pid is None and folder.exists()
        assert await broker.start() == first
        await broker.close()
        assert not folder.exists()

    asyncio.run(main())


def test_a_broker_with_certificates_needs_an_access_list(farm):
    with pytest.raises(BrokerError, match="ACL"):
        asyncio.run(Broker(BrokerSettings(port=0, tls=farm.broker())).start())


def test_there_is_a_broker_or_a_hint(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert mosquitto_path() is None
    with pytest.raises(BrokerError, match=r"install .*\[broker\]"):
        choose("any")
    with pytest.raises(BrokerError, match="no broker that delian runs"):
        choose("emqx")


def test_the_private_folder_is_named_in_the_configuration(farm, tmp_path):
    settings = BrokerSettings(tls=farm.broker(), acl="x")
    text = mosquitto_config(settings, tmp_path, 1234, "mosquitto").splitlines()
    assert {"listener 1234 127.0.0.1", "user mosquitto", "allow_anonymous false"} <= set(text)
    assert {"require_certificate true", "use_identity_as_username true"} <= set(text)
    assert f"acl_file {tmp_path}/acl" in text and "max_packet_size 131072" in text
    plain = mosquitto_config(BrokerSettings(), tmp_path, 1, None)
    assert "allow_anonymous true" in plain and "user " not in plain and "file" not in plain


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_is_this_machine(host, expected):
    assert is_loopback(host) == expected


def test_nodes_speak_over_iotcore_too(mqtt):
    pytest.importorskip("iotcore")
    broker = mqtt.RunningBroker(BrokerSettings(port=0, kind="iotcore"))
    device_node, edge_node = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)

    async def main():
        edge, device = mqtt.Station(edge_node), mqtt.Station(device_node)
        hub, up = mqtt.hub(edge, broker.url), mqtt.uplink(device, {edge_node: broker.url})
        async with mqtt.closing(hub, up):
            message = round_pb2.Upload(device=5, vector=os.urandom(500_000))
            device.send(edge_node, message)
            assert await edge.gets(1) == [message]
            edge.send(device_node, admission_pb2.Accept(sequence=1))
            await device.gets(1)
            assert not hub.faults.counts and not up.faults.counts

    try:
        asyncio.run(main())
    finally:
        broker.close()
