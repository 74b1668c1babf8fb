"""`delian doctor`: what Delian finds on this machine, what is wrong with it, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.common.install_hint import install
from ..core.common.printable import escaped
from .options import ConfigFile, Settings
from .output import echo

if TYPE_CHECKING:
    from .config import Loaded
    from .doctor_checks import Finding

EXTRAS = (
    ("scikit-learn", "the digits scenario", "sim"),
    ("ziglang", "a C compiler for machines without one", "compile"),
    ("torch", "the tests against torch", "torch"),
)
WIDTH = 14  # of a name


class Role(StrEnum):
    """What a machine may be."""

    AUTHORITY = "authority"
    CLOUD = "cloud"
    EDGE = "edge"
    DEVICE = "device"
    OPERATOR = "operator"


def doctor(
    role: Annotated[
        Role | None,
        typer.Argument(help="What this machine is to be. (default: what it is set up for)"),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    offline: Annotated[bool, typer.Option("--offline", help="Make no network connection.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what Delian finds, and what is wrong.

    The machine, a compiler, packages; configuration, certificates, clock, ports, broker, disk. Exit
    code 1 when something is wrong.
    """
    from . import doctor_checks

    findings: list[Finding] = []
    for finding in _findings(role, config, settings or [], offline):
        findings.append(finding)
        if not as_json:
            _say(finding)
    if as_json:
        echo(json.dumps(doctor_checks.as_json(findings), indent=2))
    if doctor_checks.any_wrong(findings):
        raise typer.Exit(1)


def _findings(
    role: Role | None, file: Path | None, settings: list[str], offline: bool
) -> Iterator[Finding]:
    from ..core.common.errors import DelianError
    from . import doctor_checks
    from .config import load

    yield from _machine()
    try:
        loaded = load(file, settings=settings)
    except DelianError as error:
        yield doctor_checks.of_error("configuration", error)
        return
    given = {key[0] for key in loaded.given}
    told = str(loaded.file) if loaded.file else "defaults; there is no delian.toml here"
    yield doctor_checks.ok("configuration", told)
    roles = [role.value] if role else doctor_checks.roles_here(loaded.config, given)
    for name in roles:
        yield from _local(loaded, name)
    if not offline and roles:
        from . import doctor_probes

        yield from doctor_probes.run(loaded.config, roles)


def _local(loaded: Loaded, role: str) -> Iterator[Finding]:
    """What can be seen of a role without the network."""
    from . import doctor_checks

    config = loaded.config
    if role == "authority":
        yield from doctor_checks.check_authority(config)
        yield doctor_checks.check_port("authority port", config.authority.listen)
        yield doctor_checks.check_port("enrolment port", config.authority.enrolment)
        yield doctor_checks.check_disk("authority disk", config.authority.state)
        return
    if role == "cloud":
        if not config.cloud.insecure:
            yield doctor_checks.check_key_is_elsewhere(config)
        yield from doctor_checks.check_authority(config)
        yield from doctor_checks.check_server_names(config)
        yield from doctor_checks.check_store(config.cloud)
        yield doctor_checks.check_port("cloud port", config.cloud.listen)
        if not config.cloud.authority:
            yield doctor_checks.check_port("enrolment port", config.cloud.enrolment)
        if config.cloud.health:
            yield doctor_checks.check_port("health port", config.cloud.health)
    if role == "edge":
        yield doctor_checks.check_port("edge port", config.edge.listen)
    if role == "device":
        yield from doctor_checks.check_data(config.device)
        yield from doctor_checks.check_artifacts(config.device)
        yield doctor_checks.check_masks(config.device)
    yield from doctor_checks.check_identity(config, role)
    if role != "operator":
        yield doctor_checks.check_disk(f"{role} disk", getattr(config, role).state)


def _machine() -> Iterator[Finding]:
    """The machine, a compiler, the cache, optional packages."""
    from ..simulations.runs.host_facts import machine_facts, version_of
    from . import doctor_checks

    optional = {package for package, _, _ in EXTRAS}
    for name, value in machine_facts().items():
        if value is not None and name not in optional:
            yield doctor_checks.ok(name.replace("_", " "), str(value))
    yield from _compiler()
    for package, purpose, extra in EXTRAS:
        found = version_of(package) or f"absent; {install(extra)}"
        yield doctor_checks.ok(package, f"{found}  ({purpose})")


def _compiler() -> Iterator[Finding]:
    from ..core.compiler.backends.native.toolchain import cache, toolchain
    from . import doctor_checks

    if found := toolchain.find():
        yield doctor_checks.ok("compiler", f"{found.name}: {found.version}")
    else:
        todo = install("compile")
        yield doctor_checks.warning("compiler", "none: programs run on NumPy, slowly", todo)
    programs = cache.kept(workers=True)
    size_mib = sum(program.bytes for program in programs) / 2**20
    yield doctor_checks.ok(
        "cache", f"{cache.folder()}, {len(programs)} programs, {size_mib:.1f} MiB"
    )
    yield from doctor_checks.check_cache()
    yield doctor_checks.check_sandbox()


def _say(finding: Finding) -> None:
    mark = "" if finding.state == "ok" else f"{finding.state.upper()}: "
    echo(f"{finding.name:<{WIDTH}} {mark}{escaped(finding.text)}")
    if finding.todo:
        echo(f"{'':<{WIDTH}} -> {escaped(finding.todo)}")
