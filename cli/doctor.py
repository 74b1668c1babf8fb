"""`delian doctor`: what Delian finds on this machine, what is wrong with it, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.printable import escaped
from .options import ConfigFile, Settings
from .output import echo

if TYPE_CHECKING:
    from .checks import Finding
    from .config import Loaded

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
        typer.Argument(help="What this machine is to be. [default: what it is set up for]"),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask nobody over the network.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what Delian finds, and what is wrong: the machine, a compiler, packages; configuration,
    certificates, clock, ports, broker, disk. Exit code 1 when something is wrong.
    """
    from . import checks

    findings: list[Finding] = []
    for finding in _findings(role, config, settings or [], offline):
        findings.append(finding)
        if not as_json:
            _say(finding)
    if as_json:
        echo(json.dumps(checks.as_json(findings), indent=2))
    if checks.any_wrong(findings):
        raise typer.Exit(1)


def _findings(
    role: Role | None, file: Path | None, settings: list[str], offline: bool
) -> Iterator[Finding]:
    from ..core.errors import DelianError
    from . import checks
    from .config import load

    yield from _machine()
    try:
        loaded = load(file, settings=settings)
    except DelianError as error:
        yield checks.of_error("configuration", error)
        return
    given = {key[0] for key in loaded.given}
    told = str(loaded.file) if loaded.file else "defaults; there is no delian.toml here"
    yield checks.ok("configuration", told)
    roles = [role.value] if role else checks.roles_here(loaded.config, given)
    for name in roles:
        yield from _local(loaded, name)
    if not offline and roles:
        from . import probes

        yield from probes.run(loaded.config, roles)


def _local(loaded: Loaded, role: str) -> Iterator[Finding]:
    """What can be seen of a role without the network."""
    from . import checks

    config = loaded.config
    if role == "authority":
        yield from checks.check_authority(config)
        yield checks.check_port("authority port", config.authority.listen)
        yield checks.check_port("enrolment port", config.authority.enrolment)
        yield checks.check_disk("authority disk", config.authority.state)
        return
    if role == "cloud":
        if not config.cloud.insecure:
            yield checks.check_key_is_elsewhere(config)
        yield from checks.check_authority(config)
        yield from checks.check_server_names(config)
        yield from checks.check_store(config.cloud)
        yield checks.check_port("cloud port", config.cloud.listen)
        if not config.cloud.authority:
            yield checks.check_port("enrolment port", config.cloud.enrolment)
        if config.cloud.health:
            yield checks.check_port("health port", config.cloud.health)
    if role == "edge":
        yield checks.check_port("edge port", config.edge.listen)
    if role == "device":
        yield from checks.check_data(config.device)
        yield from checks.check_artifacts(config.device)
        yield checks.check_masks(config.device)
    yield from checks.check_identity(config, role)
    if role != "operator":
        yield checks.check_disk(f"{role} disk", getattr(config, role).state)


def _machine() -> Iterator[Finding]:
    """The machine, a compiler, the cache, optional packages."""
    from ..simulations.host import machine_facts, version_of
    from . import checks

    optional = {package for package, _, _ in EXTRAS}
    for name, value in machine_facts().items():
        if value is not None and name not in optional:
            yield checks.ok(name.replace("_", " "), str(value))
    yield from _compiler()
    for package, purpose, extra in EXTRAS:
        found = version_of(package) or f"absent; pip install 'delian[{extra}]'"
        yield checks.ok(package, f"{found}  ({purpose})")


def _compiler() -> Iterator[Finding]:
    from ..core.backends.native import cache, toolchain
    from . import checks

    if found := toolchain.find():
        yield checks.ok("compiler", f"{found.name}: {found.version}")
    else:
        todo = "pip install 'delian[compile]'"
        yield checks.warning("compiler", "none: programs run on NumPy, slowly", todo)
    programs = cache.kept(workers=True)
    size_mib = sum(program.bytes for program in programs) / 2**20
    yield checks.ok("cache", f"{cache.folder()}, {len(programs)} programs, {size_mib:.1f} MiB")
    yield from checks.check_cache()
    yield checks.check_sandbox()


def _say(finding: Finding) -> None:
    mark = "" if finding.state == "ok" else f"{finding.state.upper()}: "
    echo(f"{finding.name:<{WIDTH}} {mark}{escaped(finding.text)}")
    if finding.todo:
        echo(f"{'':<{WIDTH}} -> {escaped(finding.todo)}")
