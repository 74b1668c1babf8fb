"""What `delian doctor` looks at on this machine: configuration, identities, ports, disks, packages.

A check gives findings: what it looked at, how that is, and what to do about it. It never raises and
changes nothing.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.common.errors import DelianError
from ..core.common.install_hint import install
from .settings import CloudConfig, Config, DeviceConfig

if TYPE_CHECKING:
    from ..core.node.identity.pki.identity_folder import IdentityFolder

DAY_S = 86400
DISK_WRONG_BYTES = 100 << 20
DISK_WARNING_BYTES = 1 << 30
LATE_S = 2 * DAY_S  # a renewal that is so late fails


class State(StrEnum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    name: str
    state: State
    text: str
    todo: str = ""
    """What to do about it, empty when it is well."""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, text: str) -> Finding:
    """A finding without a problem."""
    return Finding(name, State.OK, text)


def warning(name: str, text: str, todo: str) -> Finding:
    """A finding that should be changed. todo: what to do."""
    return Finding(name, State.WARNING, text, todo)


def wrong(name: str, text: str, todo: str) -> Finding:
    """A finding that must be changed. todo: what to do."""
    return Finding(name, State.WRONG, text, todo)


def of_error(name: str, error: DelianError) -> Finding:
    """A finding from an error."""
    return wrong(name, error.message, error.hint)


def roles_here(config: Config, given: set[str]) -> list[str]:
    """What this machine is set up to be.

    Sections that are configured, and those whose identity is present. given: sections with a value
    that is no default.
    """
    found = []
    if has_key(authority_ca(config)) or "authority" in given:
        found.append("authority")
    for role in ("cloud", "edge", "device", "operator"):
        there = identity_folder(config, role).exists()
        if role == "cloud":
            there = there or (authority_folder(config.cloud) / "ca.pem").exists()
        if there or role in given:
            found.append(role)
    return found


def identity_folder(config: Config, role: str) -> Path:
    """Where a role's identity is, or would be."""
    section = getattr(config, role)
    if role == "operator":
        return Path(section.identity)
    return Path(section.identity or section.state / "identity")


def authority_folder(cloud: CloudConfig) -> Path:
    """The CA's folder of a coordinator without a separate authority."""
    return cloud.ca or cloud.state / "ca"


def authority_ca(config: Config) -> Path:
    """The CA's folder of an authority."""
    return config.authority.ca or config.authority.state / "ca"


def ca_folder(config: Config) -> Path:
    """The CA's folder on this machine: the authority's, else the coordinator's."""
    there = authority_ca(config)
    return there if has_key(there) else authority_folder(config.cloud)


def has_key(folder: Path) -> bool:
    """Whether a folder is a CA's whose key is on this machine, in a file or in a token."""
    return any((folder / name).exists() for name in ("ca.key", "ca.token"))


# ---------------------------------------------------------------- identities


def check_identity(config: Config, role: str) -> Iterator[Finding]:
    """Checks a role's certificate.

    It is present, whole, its own key's, its CA's, for this role, and not about to expire.
    """
    from ..core.node.identity.pki.identity_folder import IdentityFolder

    name = f"{role} identity"
    section = getattr(config, role)
    own = IdentityFolder(identity_folder(config, role))
    if section.insecure:
        yield warning(name, "insecure: no TLS, on loopback only", f"unset {role}.insecure")
        return
    if not own.exists():
        if role == "cloud" and has_key(authority_folder(config.cloud)):
            yield ok(name, "none yet; the coordinator makes its own when it starts")
            return
        how = {
            "cloud": f"delian ca init {authority_folder(config.cloud)} --federation NAME",
            "operator": f"delian ca issue operator {own.folder} --ca CA_FOLDER",
        }.get(role, "delian join -")
        yield wrong(name, f"there is none in {own.folder}", how)
        return
    try:
        yield from _judge(config, role, own)
    except DelianError as error:
        yield of_error(name, error)


def _judge(config: Config, role: str, own: IdentityFolder) -> Iterator[Finding]:
    from ..core.node.identity.pki import certificates as c
    from ..core.node.identity.pki.chain import chain_of_pem

    name, now = f"{role} identity", time.time()
    files, material = own.files(), own.material()
    identity, facts = material.identity(), own.facts()
    chain = chain_of_pem(material.certificate)
    authority = c.load_certificate(material.authority)
    if identity.tier not in (c.OPERATORS if role == "operator" else (role,)):
        yield wrong(
            name,
            f"{own.folder} is the identity of {identity.common_name}, not of a {role}",
            f"set {role}.identity to another folder",
        )
    if chain.leaf.public_key() != c.load_key(material.key).public_key():
        yield wrong(name, f"{files.key} is not the certificate's key", "join again")
        return
    chain.check_issued(authority)
    if files.key.stat().st_mode & 0o077:
        yield wrong(name, f"others can read {files.key}", f"chmod 600 {files.key}")
    c.check_time(authority)
    chain.check_time()
    left = identity.not_after - now
    text = f"{identity.common_name} of {identity.federation}, {_days(left)} left"
    if now > facts.renew_at + LATE_S and role != "operator":
        yield warning(
            name,
            f"{text}; it should have been renewed {_days(now - facts.renew_at)} ago",
            f"is `delian {role} run` running, and does it reach the coordinator?",
        )
    elif role == "operator" and left < 7 * DAY_S:
        yield warning(name, text, "delian ca issue operator NEW_FOLDER --ca CA_FOLDER")
    else:
        yield ok(name, text)


def check_authority(config: Config) -> Iterator[Finding]:
    """The CA's folder, where there is one."""
    from ..core.node.identity.authority.authority import Authority
    from ..core.node.identity.authority.authority_folder import KEY
    from ..core.node.identity.authority.founding import root_folder, terms_of

    folder = ca_folder(config)
    if not has_key(folder):
        return
    try:
        authority = Authority(folder)
        left = authority.certificate.not_valid_after_utc.timestamp() - time.time()
        if (folder / KEY).exists() and (folder / KEY).stat().st_mode & 0o077:
            yield wrong("ca", f"others can read {folder / KEY}", f"chmod 600 {folder / KEY}")
        if (root := root_folder(authority) / "root.pem").exists():
            yield warning(
                "artifact root",
                f"{root} is on the coordinator's machine: an attacker there can sign any bundle",
                f"move {root.parent} offline; it is needed when an operator joins or leaves",
            )
        if terms_of(authority) is None:
            yield warning("terms", "the federation has none", "delian ca terms --cohort-min N")
        denied = len(authority.denied().names)
        text = f"{authority.federation}, {_days(left)} left, {denied} revoked"
        if authority.issuing is not None:
            text = f"authority-{authority.number} of {text}"
            if not config.authority.superior:
                yield wrong("root authority", "none is named", "set authority.superior")
        if left <= 0:
            yield wrong("ca", "its certificate has ended", _renewal(authority.number))
        elif left < 90 * DAY_S:
            yield warning("ca", text, _renewal(authority.number))
        else:
            yield ok("ca", text)
    except (DelianError, OSError) as error:
        yield wrong("ca", str(error).partition("\n")[0], getattr(error, "hint", ""))


def _renewal(number: int) -> str:
    """What to do about the end of a CA certificate. number: of an issuing authority, or 0."""
    if not number:
        return "plan a new federation; nodes must join again"
    return (
        "another certificate for its key: delian authority request, delian ca delegate --number"
        f" {number}, delian authority accept"
    )


def check_key_is_elsewhere(config: Config) -> Finding:
    """Whether the CA's key is out of reach of the coordinator's operator."""
    cloud = config.cloud
    key = authority_folder(cloud)
    migrate = f"delian authority migrate {cloud.state} AUTHORITY_STATE"
    if not has_key(key):
        if cloud.authority:
            return ok("authority", cloud.authority)
        return wrong("authority", "no CA is here and no authority named", "set cloud.authority")
    if cloud.authority:
        return wrong(
            "authority",
            f"the CA's key ({key}) is here though {cloud.authority} is the authority: a holder of"
            " this key can invent devices",
            migrate,
        )
    return warning(
        "authority",
        f"the CA's key ({key}) is on the coordinator's machine: masks do not hold against its"
        " operator, which can invent devices",
        f"run `delian authority run` on a machine that another organisation operates; {migrate}",
    )


def check_server_names(config: Config) -> Iterator[Finding]:
    """Reports an advertised address that only this machine can reach.

    It is right where the coordinator serves only this machine.
    """
    from .settings_forms import is_loopback

    cloud = config.cloud
    for key, listen, public in (
        ("public", cloud.listen, cloud.public),
        ("public_enrolment", cloud.enrolment, cloud.public_enrolment),
    ):
        told = public or listen
        if told.startswith(("0.0.0.0:", "[::]:")):
            yield wrong(
                "cloud address",
                f"nodes would connect to {told}",
                f"set cloud.{key} to the name by which they reach this machine",
            )
        elif is_loopback(told) and not is_loopback(listen):
            yield warning(
                "cloud address",
                f"nodes connect to {told}, which is this machine for each of them",
                f"set cloud.{key}",
            )
    enrolment = cloud.public_enrolment or cloud.enrolment
    if is_loopback(enrolment) and is_loopback(cloud.enrolment) and not is_loopback(cloud.listen):
        yield warning(
            "cloud address",
            f"tokens name {enrolment}, by which only this machine can join",
            "set cloud.enrolment, as 0.0.0.0:7444, and cloud.public_enrolment",
        )


def _days(seconds: float) -> str:
    days = seconds / DAY_S
    return f"{days:.0f} days" if days >= 2 else f"{seconds / 3600:.1f} hours"


# ---------------------------------------------------------------- ports, disks, packages


def check_port(name: str, address: str) -> Finding:
    """Whether a server can listen on this address, or another one does."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            bare, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return warning(
                name, f"{address} is in use", "well if the daemon runs; else choose another port"
            )
        if error.errno == errno.EACCES:
            return wrong(name, f"may not listen on {address}", "choose a port from 1024 on")
        why = error.strerror or str(error)
        return wrong(name, f"cannot listen on {address}: {why}", "is it this machine's address?")
    return ok(name, f"{address} is free")


def check_disk(name: str, folder: Path) -> Finding:
    """Room where a daemon keeps its state, and whether it may write there."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return wrong(name, f"cannot look at {there}: {error.strerror}", "check its permissions")
    text = f"{folder}, {free / 2**30:.1f} GiB free"
    if not os.access(there, os.W_OK | os.X_OK):
        return wrong(name, f"may not write to {there}", f"set another folder for the {name}")
    if free < DISK_WRONG_BYTES:
        return wrong(name, text, "make room: nothing can be stored durably on a full disk")
    if free < DISK_WARNING_BYTES:
        return warning(name, text, "make room")
    return ok(name, text)


def check_store(cloud: CloudConfig) -> Iterator[Finding]:
    """The packages that the coordinator's stores need."""
    needed = [("sqlalchemy", "cloud"), ("alembic", "cloud"), ("prometheus_client", "cloud")]
    if "postgres" in cloud.store:
        needed.append(("asyncpg", "postgres"))
    if "://" in cloud.objects:
        needed.append(("obstore", "s3"))
    missing = [(p, extra) for p, extra in needed if importlib.util.find_spec(p) is None]
    if missing:
        extras = ",".join(sorted({extra for _, extra in missing}))
        names = ", ".join(package for package, _ in missing)
        yield wrong("cloud packages", f"{names} absent", install(extras))
    else:
        yield ok("cloud packages", "all there")


def check_data(device: DeviceConfig) -> Iterator[Finding]:
    """The device's own data: named, and there."""
    source = device.data.source
    if not source:
        yield warning("device data", "no source is named", "set device.data.source")
        return
    kind, colon, rest = source.partition(":")
    if colon and kind in ("python", "entry"):
        yield ok("device data", source)
        return
    path = Path(rest if colon and kind == "sensor" else source).expanduser()
    if path.exists():
        yield ok("device data", str(path))
    else:
        yield wrong("device data", f"there is no {path}", "set device.data.source")


def check_artifacts(device: DeviceConfig) -> Iterator[Finding]:
    """Whether the device runs signed bundles alone."""
    from ..core.node.identity.artifacts.manifest import fingerprint
    from ..device.agent.artifact_gate import root_of
    from .fleet.device_commands import artifact_root, terms_of

    try:
        terms = terms_of(device)
        root = root_of(artifact_root(device), terms)
    except DelianError as error:
        yield of_error("device bundles", error)
        return
    if not device.signed:
        yield warning(
            "device bundles",
            "unsigned bundles run too: the submitter of a run can read single updates",
            "remove device.signed = false, unless you trust all submitters of runs",
        )
    elif root is not None:
        yield ok("device bundles", f"signed ones only; root key {fingerprint(root)}")
    elif terms is not None:
        yield warning(
            "device bundles",
            "no root key is known: it refuses masked tasks",
            "ask the operator for terms with a root key (delian ca terms)",
        )
    else:
        yield warning(
            "device bundles",
            "no root key: it runs whatever bundle the coordinator sends, signed or not",
            "the federation's terms bring one, or set device.artifact_root",
        )


def check_masks(device: DeviceConfig) -> Finding:
    """Whether the device keeps its updates from edges and coordinator."""
    from .fleet.device_commands import floor_of, masks_required

    try:
        floor = floor_of(device)
    except DelianError as error:
        return of_error("device masks", error)
    if not masks_required(device):
        return warning(
            "device masks",
            "not required: it takes plain tasks, whose updates edges and the coordinator can read",
            "remove device.masks.required = false, unless you trust both",
        )
    text = f"required, among {floor.cohort_min} or more, against {floor.corrupt:.0%} of them"
    return ok("device masks", text)


def any_wrong(findings: list[Finding]) -> bool:
    """Whether a finding must be changed."""
    return any(f.state is State.WRONG for f in findings)


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """The findings as JSON values; `ok` where none must be changed."""
    return {"ok": not any_wrong(findings), "findings": [f.to_json() for f in findings]}


# ---------------------------------------------------------------- running programs


def check_sandbox() -> Finding:
    """What the kernel has to confine processes that run programs."""
    from ..core.node.sandbox import landlock, seccomp, walls

    if absent := walls.lacking():
        text = f"no {' and no '.join(absent)}: programs run in processes with limits only"
        todo = "a Linux kernel of 5.13 or newer, with landlock in its list of security modules"
        return warning("sandbox", text, todo)
    return ok("sandbox", f"landlock ABI {landlock.abi()}, seccomp for {seccomp.machine()}")


def check_cache() -> Iterator[Finding]:
    """Whether others than this user can change what is loaded as code."""
    from ..core.compiler.backends.native.toolchain import cache, toolchain

    workers = toolchain.cache_folder() / cache.WORKERS
    for folder in (toolchain.cache_folder(), cache.folder(), workers, workers / "native"):
        try:
            cache.check_owner(folder)
        except cache.UnsafeError as error:
            yield of_error("cache", error)
        except OSError:
            pass  # it is not there yet
