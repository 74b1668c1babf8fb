"""The doctor: a healthy machine is well, and each illness is told with its cure."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import tomllib
from pathlib import Path

import pytest
from delian.cli import doctor_checks, doctor_probes
from delian.cli.settings import Config
from delian.cli.settings_forms import is_loopback
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.founding import publish
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.sandbox import landlock, seccomp
from delian.core.protocol.ports import CLOUD

DAY = 86400


def named(found):
    return {f["name"]: f for f in found["findings"]}


def test_a_machine_that_is_nothing_yet_is_well(delian):
    code, out, _ = delian("doctor")
    assert code == 0 and "configuration  defaults" in out
    code, found, _ = delian("doctor", "--json")
    assert code == 0 and found["ok"] and named(found)["python"]["state"] == "ok"


def test_a_wrong_configuration_is_told_and_the_exit_code_is_1(delian, tmp_path):
    (tmp_path / "delian.toml").write_text("[cloud]\nlissten = 1\n")
    code, out, _ = delian("doctor")
    assert code == 1 and "configuration  WRONG: delian.toml:2:1" in out
    assert "-> did you mean `cloud.listen`?" in out


@pytest.fixture
def device(tmp_path):
    """A device that has joined: its configuration, and a way to give it another certificate."""
    authority = Authority.create(tmp_path / "ca", "farm")
    own = IdentityFolder(tmp_path / "device" / "identity")
    (tmp_path / "rows.csv").write_text("1,2\n")

    class Joined:
        def __init__(self):
            self.authority, self.folder = authority, own
            self.give()

        def give(self, *, role=Role.DEVICE, now_s=None, home="127.0.0.1:9", key=None):
            made, issued = issue_to(authority, role, 5, now_s=now_s)
            material = TlsMaterial(key or made, issued.chain, authority.pem)
            own.store(
                material,
                renew_after_s=issued.renew_after_s,
                homes=[HomeAddress(CLOUD, home)],
                now_s=now_s,
            )

        def config(self, **changes):
            section = {
                "state": tmp_path / "device",
                "data": {"source": str(tmp_path / "rows.csv")},
                **changes,
            }
            return Config.model_validate({"device": section})

    return Joined()


def only(findings):
    (finding,) = findings
    return finding


def test_a_good_identity_is_well(device):
    finding = only(doctor_checks.check_identity(device.config(), "device"))
    assert finding.state == "ok" and finding.text == "device-5 of farm, 30 days left"


def test_no_identity_is_told_with_how_to_get_one(device, tmp_path):
    config = device.config(identity=tmp_path / "nowhere")
    finding = only(doctor_checks.check_identity(config, "device"))
    assert finding.state == "wrong" and finding.todo == "delian join -"


def test_an_expired_identity_is_wrong(device):
    device.give(now_s=time.time() - 40 * DAY)
    finding = only(doctor_checks.check_identity(device.config(), "device"))
    assert finding.state == "wrong" and "ended on" in finding.text and "clock" in finding.todo


def test_a_renewal_that_does_not_come_is_a_warning(device):
    device.give(now_s=time.time() - 25 * DAY)
    finding = only(doctor_checks.check_identity(device.config(), "device"))
    assert finding.state == "warning" and "should have been renewed 5 days ago" in finding.text


def test_a_key_that_is_another_s_or_that_others_can_read_is_wrong(device):
    key = device.folder.files().key
    key.chmod(0o640)
    findings = list(doctor_checks.check_identity(device.config(), "device"))
    assert findings[0].state == "wrong" and findings[0].todo == f"chmod 600 {key}"
    device.give(key=issue_to(device.authority, Role.DEVICE, 6)[0])
    assert (
        "the key is not the certificate"
        in only(doctor_checks.check_identity(device.config(), "device")).text
    )


def test_another_role_s_identity_and_another_ca_s_are_wrong(device, tmp_path):
    device.give(role=Role.EDGE)
    first = next(iter(doctor_checks.check_identity(device.config(), "device")))
    assert first.state == "wrong" and "identity of edge-5, not of a device" in first.text
    device.give()
    other = Authority.create(tmp_path / "other", "farm")
    device.folder.files().authority.write_bytes(other.pem)
    finding = only(doctor_checks.check_identity(device.config(), "device"))
    assert finding.state == "wrong" and "not signed by" in finding.text


@pytest.mark.parametrize("role", [Role.VIEWER, Role.RUNNER, Role.OWNER, Role.ADMIN])
def test_an_operator_of_any_role_is_well(device, tmp_path, role):
    operator_identity(device.authority, tmp_path / "op", role, "north" * (role is Role.OWNER))
    config = Config.model_validate({"operator": {"identity": tmp_path / "op"}})
    finding = only(doctor_checks.check_identity(config, "operator"))
    assert finding.state == "ok" and f"{role.value}-1 of farm" in finding.text


def test_insecure_is_never_quite_well(device):
    finding = only(doctor_checks.check_identity(device.config(insecure=True), "device"))
    assert finding.state == "warning"


def test_the_ca_is_looked_at_where_there_is_one(device, tmp_path):
    config = Config.model_validate({"cloud": {"ca": tmp_path / "ca"}})
    assert only(doctor_checks.check_authority(config)).state == "ok"
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    assert next(iter(doctor_checks.check_authority(config))).state == "wrong"
    assert not list(doctor_checks.check_authority(Config()))


def test_a_root_key_on_the_coordinator_s_machine_is_told(tmp_path):
    publish(Authority.create(tmp_path / "ca", "farm"), fresh=True)
    config = Config.model_validate({"cloud": {"ca": tmp_path / "ca"}})
    told = {f.name: f for f in doctor_checks.check_authority(config)}
    assert told["artifact root"].state == "warning" and "offline" in told["artifact root"].todo
    (tmp_path / "ca" / "artifact-root").rename(tmp_path / "usb")
    assert {f.name for f in doctor_checks.check_authority(config)} == {"ca"}


def test_a_ca_without_terms_is_told(tmp_path):
    made = Authority.create(tmp_path / "ca", "farm")
    (made.folder / "terms").unlink()
    config = Config.model_validate({"cloud": {"ca": tmp_path / "ca"}})
    told = {f.name: f for f in doctor_checks.check_authority(config)}
    assert told["terms"].state == "warning" and "delian ca terms" in told["terms"].todo


JOINED = {"enrolment": "0.0.0.0:7444", "public_enrolment": "c.example:7444"}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, []),
        ({"listen": "0.0.0.0:7443"}, ["wrong", "warning"]),
        ({"listen": "0.0.0.0:7443", "public": "c.example:7443"}, ["warning"]),
        ({"listen": "0.0.0.0:7443", "public": "127.0.0.1:7443"}, ["warning", "warning"]),
        ({"listen": "0.0.0.0:7443", "public": "c.example:7443", **JOINED}, []),
    ],
)
def test_what_nodes_are_told_must_be_what_they_can_reach(changes, state):
    config = Config.model_validate({"cloud": changes})
    assert [f.state for f in doctor_checks.check_server_names(config)] == state


def test_the_configuration_that_the_page_begins_with_is_well():
    page = Path(__file__).resolve().parents[3] / "docs" / "operating.md"
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    config = Config.model_validate(tomllib.loads(block))
    assert not is_loopback(config.cloud.listen) and not list(
        doctor_checks.check_server_names(config)
    )


def test_ports_that_are_free_in_use_or_not_ours():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        assert doctor_checks.check_port("port", taken).state == "warning"
    assert doctor_checks.check_port("port", taken).state == "ok"
    assert doctor_checks.check_port("port", "192.0.2.1:7443").state == "wrong"
    assert doctor_checks.check_port("port", "no.such.host.invalid:1").state == "wrong"


def test_a_full_disk_is_wrong_and_a_fuller_one_a_warning(monkeypatch, tmp_path):
    def free(count):
        usage = shutil.disk_usage(tmp_path)._replace(free=count)
        monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: usage)
        return doctor_checks.check_disk("disk", tmp_path / "not" / "yet").state

    assert [free(1 << 20), free(1 << 29), free(1 << 40)] == ["wrong", "warning", "ok"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_one_may_not_write_to_is_wrong(tmp_path):
    tmp_path.chmod(0o500)
    assert doctor_checks.check_disk("disk", tmp_path).state == "wrong"


def test_data_that_is_not_there_is_wrong(device, tmp_path):
    config = device.config()
    assert only(doctor_checks.check_data(config.device)).state == "ok"
    missing = device.config(data={"source": str(tmp_path / "no.csv")})
    assert only(doctor_checks.check_data(missing.device)).state == "wrong"
    assert (
        only(doctor_checks.check_data(device.config(data={"source": ""}).device)).state == "warning"
    )
    assert (
        only(doctor_checks.check_data(device.config(data={"source": "entry:mine"}).device)).state
        == "ok"
    )


def test_packages_of_the_coordinator(monkeypatch):
    def without(*names):
        find = lambda name: None if name in names else name  # noqa: E731
        monkeypatch.setattr(doctor_checks.importlib.util, "find_spec", find)

    without()
    assert only(doctor_checks.check_store(Config().cloud)).state == "ok"
    without("asyncpg", "obstore")
    assert only(doctor_checks.check_store(Config().cloud)).state == "ok"
    stores = {"store": "postgresql+asyncpg://h/d", "objects": "s3://b"}
    config = Config.model_validate({"cloud": stores})
    assert "[postgres,s3]" in only(doctor_checks.check_store(config.cloud)).todo


def test_clocks():
    assert doctor_probes.skew_finding(1.0, 0.1).state == "ok"
    assert doctor_probes.skew_finding(-45.0, 0.1).state == "warning"
    assert doctor_probes.skew_finding(400.0, 0.1).state == "wrong"
    assert doctor_probes.skew_finding(40.0, 20.0).state == "ok", "it may be the network"
    assert (
        "behind" in doctor_probes.skew_finding(9, 0).text
        and "ahead" in doctor_probes.skew_finding(-9, 0).text
    )


# ---------------------------------------------------------------- over the network


def probed(config):
    return {f.name: f for f in doctor_probes.run(config, ["device"])}


def test_a_coordinator_that_knows_us_and_has_our_time_is_well(device, coordinator):
    with coordinator(device.authority.folder) as (links, _):
        device.give(home=f"127.0.0.1:{links}")
        found = probed(device.config())
    assert {n: f.state for n, f in found.items()} == {
        "device to cloud": "ok",
        "device to cloud trust": "ok",
        "clock": "ok",
    }


def test_a_clock_that_differs_is_told(device, coordinator):
    with coordinator(device.authority.folder, lambda: time.time() + 3600) as (links, _):
        device.give(home=f"127.0.0.1:{links}")
        found = probed(device.config())
    assert found["clock"].state == "wrong" and "3600" in found["clock"].text


def test_a_coordinator_that_has_revoked_us_is_told(device, coordinator):
    with coordinator(device.authority.folder) as (links, _):
        device.give(home=f"127.0.0.1:{links}")
        device.authority.revoke("device-5")
        found = probed(device.config())
        assert "refuses us: revoked" in found["device to cloud trust"].text


def test_a_coordinator_of_another_federation_is_told(device, coordinator, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    with coordinator(other.folder) as (links, _):
        device.give(home=f"127.0.0.1:{links}")
        found = probed(device.config())
        assert "not signed by this federation's CA" in found["coordinator"].text


def test_a_coordinator_that_is_not_there_is_told(device):
    found = probed(device.config())
    assert (
        found["device to cloud"].state == "wrong"
        and "cannot reach" in found["device to cloud"].text
    )


def test_a_broker_is_asked_whether_it_keeps_to_the_rules(device, tmp_path):
    import asyncio

    if not shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("mosquitto is not installed")
    from delian.core.node.identity.pki.certificates import TlsFiles
    from delian.core.node.identity.pki.local_identity import broker_files
    from delian.core.node.net.mqtt import broker_acl
    from delian.core.node.net.mqtt.broker import Broker, BrokerSettings

    folder = tmp_path / "broker"
    broker_files(device.authority, folder, ["127.0.0.1"])
    tls = TlsFiles(folder / "key.pem", folder / "cert.pem", folder / "ca.pem")

    async def ask(rules):
        broker = Broker(BrokerSettings(port=0, tls=tls, acl=rules, kind="mosquitto"))
        try:
            address = await broker.start()
            config = device.config(homes=(f"edge-1@{address}",))
            return {f.name: f for f in await doctor_probes.probe(config, "device")}
        finally:
            await broker.close()

    good = asyncio.run(ask(broker_acl.mosquitto("farm", [1])))
    assert good["device broker"].state == "ok" and good["device broker rules"].state == "ok"
    open_to_all = asyncio.run(ask("pattern readwrite #\n"))
    assert open_to_all["device broker rules"].state == "wrong"


def test_a_broker_that_is_not_there_is_told(device):
    found = probed(device.config(homes=("edge-1@mqtts://127.0.0.1:9",)))
    assert found["device broker"].state == "wrong"


def test_the_command_looks_at_what_the_machine_is_set_up_for(delian, device, coordinator, tmp_path):
    with coordinator(device.authority.folder) as (links, _):
        device.give(home=f"127.0.0.1:{links}")
        settings = ["--set", f"device.state={tmp_path / 'device'}"]
        settings += ["--set", f"device.data.source={tmp_path / 'rows.csv'}"]
        code, found, _ = delian("doctor", *settings, "--json")
    assert code == 0, found
    names = named(found)
    assert names["device identity"]["state"] == names["clock"]["state"] == "ok"
    assert not any(name.startswith(("cloud", "edge")) for name in names)
    code, found, _ = delian("doctor", "edge", "--offline", "--json")
    assert code == 1 and named(found)["edge identity"]["state"] == "wrong"


def test_it_says_which_parts_of_the_sandbox_the_kernel_has(monkeypatch):
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    finding = doctor_checks.check_sandbox()
    assert finding.state == "warning" and "no landlock" in finding.text
    monkeypatch.setattr(landlock, "abi", lambda: 3)
    monkeypatch.setattr(seccomp, "is_here", lambda: True)
    finding = doctor_checks.check_sandbox()
    assert finding.state == "ok" and "landlock ABI 3" in finding.text


def test_a_cache_that_others_can_write_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    tmp_path.chmod(0o700)
    assert list(doctor_checks.check_cache()) == []
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers").chmod(0o770)
    finding = only(doctor_checks.check_cache())
    assert finding.state == "wrong" and "chmod -R go-w" in finding.todo
