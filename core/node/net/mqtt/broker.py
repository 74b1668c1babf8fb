"""An MQTT broker of one's own: mosquitto where it is installed, else iotcore.

Either runs as a child process in a private folder that holds its configuration, its copies of the
TLS files and its state; when it is closed, process and folder are gone, and so they are when this
process is killed: a watchdog holds a pipe to it. Without TLS it listens on loopback only and
accepts any client. With TLS it takes only certificates of the federation, knows a client by its
certificate's common name, and keeps to an ACL file (`core/node/net/mqtt/broker_acl.py`).

mosquitto that is started by root gives its rights up before it reads its TLS files: so everything
in the folder is given to the user that it becomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import pwd
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....common.errors import DelianError
from ....common.install_hint import install
from ...driver.log_deduplication import Once
from ...identity.pki.certificates import TlsFiles
from ..free_ports import free_ports
from ..message_limits import KIB, MIB

log = logging.getLogger("delian.net.broker")

#: Largest packet that our broker takes, and that our nodes accept: a part of 96 KiB and its head.
#: AWS IoT Core takes as much, EMQX 1 MiB.
PACKET_BYTES_MAX = 128 * KIB
#: What a broker keeps for a client that is away.
QUEUED_MESSAGES_MAX = 2_000
QUEUED_BYTES_MAX = 32 * MIB
#: Heap of mosquitto, retained and queued messages among it. Beyond it mosquitto drops messages and
#: disconnects their senders: a client cannot take the machine's memory.
MEMORY_BYTES_MAX = 1024 * MIB
#: How often mosquitto writes its state down. It is worth little here: nodes repeat what matters.
AUTOSAVE_S = 5
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.05  # a broker does not say when it listens
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/sbin")
_USERS = ("mosquitto", "nobody")
#: A CONNECT of MQTT 5 without a name (MQTT 5.0, 3.1).
_CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"
#: mosquitto finds that a rule for all clients alike is none for each.
_EXPECTED = "Warning: ACL pattern"

#: Waits for the end of its input, which comes at the latest with the end of the writer, however
#: that ends; then ends process $1 and removes folder $2. Linux could signal the broker by itself
#: (PR_SET_PDEATHSIG), but forgets to when mosquitto gives up root's rights.
_WATCHDOG = """
read -r _
kill "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" 2>/dev/null || break; sleep 0.2; done
kill -9 "$1" 2>/dev/null
rm -rf -- "$2"
"""


class BrokerError(DelianError):
    """The broker cannot be found, configured or started."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How to run a broker."""

    port: int = 1883
    """0 picks a free one."""
    host: str = "127.0.0.1"
    tls: TlsFiles | None = None
    """Its own key and certificate and the federation's CA; None: plain, loopback only."""
    acl: str | None = None
    """The text of an ACL file for mosquitto."""
    kind: str = "any"
    """"mosquitto", "iotcore", or "any" for the first that is installed."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def mosquitto_path() -> str | None:
    """Where mosquitto is. Distributions put it where only root looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_FOLDERS))


def choose(kind: str) -> str:
    """Which broker runs: "mosquitto" or "iotcore". Raises BrokerError when there is none."""
    there = {
        "mosquitto": mosquitto_path() is not None,
        "iotcore": importlib.util.find_spec("iotcore") is not None,
    }
    if kind != "any" and kind not in there:
        raise BrokerError(f"`{kind}` is no broker that delian runs", "mosquitto or iotcore")
    for name, found in there.items():
        if found and kind in ("any", name):
            return name
    missing = "no MQTT broker" if kind == "any" else f"no {kind}"
    raise BrokerError(
        f"there is {missing} on this machine",
        f"install mosquitto with the system's packages, or: {install('broker')}",
    )


# ---------------------------------------------------------------- configuration


def mosquitto_config(settings: BrokerSettings, folder: Path, port: int, user: str | None) -> str:
    """mosquitto.conf for a folder that holds acl, key.pem, cert.pem and ca.pem as the settings ask.

    user: the user it runs as when root starts it.
    """
    lines = [
        f"listener {port} {settings.host}",
        f"allow_anonymous {'true' if settings.tls is None else 'false'}",
        "set_tcp_nodelay true",
        f"max_packet_size {PACKET_BYTES_MAX}",
        f"max_queued_messages {QUEUED_MESSAGES_MAX}",
        f"max_queued_bytes {QUEUED_BYTES_MAX}",
        f"memory_limit {MEMORY_BYTES_MAX}",
        "persistence true",
        f"persistence_location {folder}/",
        f"autosave_interval {AUTOSAVE_S}",
        "persistent_client_expiration 1d",
        "log_dest stderr",
        "log_timestamp false",
        "log_type error",
        "log_type warning",
        "connection_messages false",
    ]
    if user is not None:
        lines.append(f"user {user}")
    if settings.acl is not None:
        lines.append(f"acl_file {folder}/acl")
    if settings.tls is not None:
        lines += [
            f"cafile {folder}/ca.pem",
            f"certfile {folder}/cert.pem",
            f"keyfile {folder}/key.pem",
            "require_certificate true",
            "use_identity_as_username true",
            "tls_version tlsv1.3",
        ]
    return "\n".join(lines) + "\n"


def iotcore_config(settings: BrokerSettings, port: int) -> str:
    """rumqttd's TOML. Its own default would listen everywhere and take 20 kB."""
    return f"""id = 0
[router]
id = 0
max_connections = 10000
max_outgoing_packet_count = 200
max_segment_size = 16777216
max_segment_count = 4
[v5.delian]
name = "delian"
listen = "{settings.host}:{port}"
next_connection_delay_ms = 1
[v5.delian.connections]
connection_timeout_ms = 10000
max_payload_size = {PACKET_BYTES_MAX}
max_inflight_count = 100
dynamic_filters = true
"""


def _user(folder: Path) -> pwd.struct_passwd | None:
    """The user that mosquitto runs as; None when it stays the one that starts it.

    It stays root where no other user can open the folder.
    """
    if os.geteuid() != 0:
        return None
    if all(parent.stat().st_mode & 0o001 for parent in folder.parents):
        for name in _USERS:
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name)
    return pwd.getpwuid(0)


# ---------------------------------------------------------------- the process


class Broker:
    """A broker that runs as long as this object is open.

    broker = Broker(BrokerSettings(port=0)); await broker.start(); ...; await broker.close()

    complaints: how often mosquitto has said that something is wrong.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.port = settings.port
        self.kind = ""
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watchdog: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._last_words: list[str] = []
        self._first = Once()
        self._own_faults = 0
        self.complaints = 0

    @property
    def address(self) -> str:
        """`mqtt://host:port`, or `mqtts://` with TLS."""
        scheme = "mqtt" if self.settings.tls is None else "mqtts"
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{scheme}://{host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process; None when it does not run."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and alive else None

    async def start(self) -> str:
        """Starts it, again where it has ended, and waits until it listens; gives the address.

        Raises BrokerError.
        """
        settings = self.settings
        self.kind = choose(settings.kind)
        _check(settings, self.kind)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="delian-broker-"))
            self.port = settings.port or free_ports(1, settings.host)[0]
        try:
            await self._taken()
            await self._end_watchdog()
            command, environment = self._prepare(self._folder)
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._folder,
                env=environment,
                # Its own group: an interrupt at the terminal reaches it through `stop` alone.
                start_new_session=True,
            )
            self._watchdog = await _watch(self._process.pid, self._folder)
            self._reader = asyncio.create_task(self._read(self._process))
            await self._listening(self._process)
        except BaseException:
            await self.close()
            raise
        log.info("broker listens", extra={"broker": self.kind, "address": self.address})
        return self.address

    def _prepare(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Writes the configuration; gives the command and its environment."""
        environment = dict(os.environ)
        if self.kind == "iotcore":
            config = folder / "broker.toml"
            config.write_text(iotcore_config(self.settings, self.port), encoding="utf-8")
            return [sys.executable, "-m", "iotcore", "--config", str(config)], environment
        user = _user(folder)
        config = folder / "mosquitto.conf"
        name = None if user is None else user.pw_name
        text = mosquitto_config(self.settings, folder, self.port, name)
        files: dict[str, bytes] = {config.name: text.encode()}
        if self.settings.acl is not None:
            files["acl"] = self.settings.acl.encode()
        if self.settings.tls is not None:
            material = self.settings.tls.read()
            files["key.pem"] = material.key
            files["cert.pem"] = material.certificate
            files["ca.pem"] = material.authority
        _write(folder, files, user)
        path = mosquitto_path()
        assert path is not None
        return [path, "-c", str(config)], environment

    async def _taken(self) -> None:
        """Another broker on the port would look like ours."""
        try:
            _, writer = await asyncio.open_connection(self.settings.host, self.port)
        except OSError:
            return
        writer.close()
        raise BrokerError(
            f"port {self.port} of {self.settings.host} is in use", "choose another with --port"
        )

    async def _listening(self, process: asyncio.subprocess.Process) -> None:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            if process.returncode is not None:
                break
            if await self._answers():
                return
            await asyncio.sleep(_POLL_S)
        if self._reader is not None and process.returncode is not None:
            await self._reader
        words = "; ".join(self._last_words[-3:]) or "it said nothing"
        raise BrokerError(f"{self.kind} does not start: {words}")

    async def _answers(self) -> bool:
        """Whether a broker is at work on the port.

        That it takes connections says little: the system does so before mosquitto has read its
        keys, and may yet refuse them.
        """
        where, context = (self.settings.host, self.port), None
        if self.settings.tls is not None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._own_faults = 1  # it says that this client has shown no certificate
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*where, ssl=context)
                try:
                    if context is None:
                        writer.write(_CONNECT)
                        return bool(await reader.read(1))
                    return True
                finally:
                    writer.close()
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError:
            return True
        except (OSError, TimeoutError):
            return False

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """What the broker says, a line at a time.

        mosquitto logs only errors (rejected clients, for one): these are counted, and logged once.
        """
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").strip()
            self._last_words = [*self._last_words[-9:], text]
            log.debug("broker says", extra={"broker": self.kind, "line": text})
            if self.kind != "mosquitto" or not text or text.startswith(_EXPECTED):
                continue
            if self._own_faults and text.startswith("OpenSSL Error"):
                self._own_faults -= 1
                continue
            self.complaints += 1
            if self._first(text):
                log.warning("%s says: %s", self.kind, text)

    async def wait(self) -> int:
        """Until it ends; gives its exit code."""
        assert self._process is not None, "not started"
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Passes a signal on, if it runs."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """Ends the process, and keeps what it has stored: `start` goes on with it."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        await self._end_watchdog()
        if self._reader is not None:
            await self._reader
        self._process = self._reader = None

    async def _end_watchdog(self) -> None:
        """Once the broker that it watches has ended: the number may become another process's."""
        if self._watchdog is not None:
            with contextlib.suppress(ProcessLookupError):
                self._watchdog.kill()
            await self._watchdog.wait()
            self._watchdog = None

    async def close(self) -> None:
        """Ends the process and removes its folder."""
        await self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


async def _watch(pid: int, folder: Path) -> asyncio.subprocess.Process:
    """The watchdog of a broker; its input ends with this process."""
    nothing = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _WATCHDOG, "watchdog", str(pid), str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )


def _check(settings: BrokerSettings, kind: str) -> None:
    if settings.tls is None and not is_loopback(settings.host):
        raise BrokerError(
            f"a broker without TLS listens on loopback only, not on {settings.host}",
            "give --tls-dir, or a loopback --host",
        )
    if settings.tls is not None and settings.acl is None:
        raise BrokerError("a broker with TLS needs an ACL: without one every client may say all")
    if settings.tls is not None and kind != "mosquitto":
        raise BrokerError(
            f"{kind} keeps no ACL: it runs on loopback without TLS only",
            "install mosquitto with the system's packages",
        )


def _write(folder: Path, files: Mapping[str, bytes], user: pwd.struct_passwd | None) -> None:
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if user is not None:
            os.chown(path, user.pw_uid, user.pw_gid)
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
