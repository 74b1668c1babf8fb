"""`delian doctor`: what Delian finds on this machine, and what to install for more."""

from __future__ import annotations

import typer

EXTRAS = (
    ("scikit-learn", "the digits scenario", "sim"),
    ("ziglang", "a C compiler for machines without one", "compile"),
    ("torch", "the tests against torch", "torch"),
)


def doctor() -> None:
    """Show what Delian finds: the machine, a compiler, the cache, optional packages."""
    from ..simulations.host import machine_facts, version_of

    optional = {package for package, _, _ in EXTRAS}
    for name, value in machine_facts().items():
        if value is not None and name not in optional:
            _say(name.replace("_", " "), str(value))
    _compiler()
    for package, purpose, extra in EXTRAS:
        found = version_of(package) or f"absent; pip install 'delian[{extra}]'"
        _say(package, f"{found}  ({purpose})")


def _compiler() -> None:
    from ..core.backends.native import toolchain

    if found := toolchain.find():
        _say("compiler", f"{found.name}: {found.identity.partition(' -')[0]}")
    else:
        _say("compiler", "none: programs run on NumPy, slowly; pip install 'delian[compile]'")
    folder = toolchain.cache_folder()
    kept = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size_mib = sum(path.stat().st_size for path in kept) / 2**20
    _say("cache", f"{folder}, {len(kept)} files, {size_mib:.1f} MiB")


def _say(name: str, value: str) -> None:
    typer.echo(f"{name:<14} {value}")
