"""`delian doctor`: what Delian finds on this machine, and what to install for more."""

from __future__ import annotations

import typer

EXTRAS = (
    ("scikit-learn", "the digits scenario", "sim"),
    ("ziglang", "a compiler for machines without one", "compile"),
    ("torch", "the cloud's back end", "torch"),
)


def doctor() -> None:
    """Show what Delian finds: the machine, a compiler, the cache, optional packages."""
    from ..simulations.host import machine_facts, version_of

    for name, value in machine_facts().items():
        if value is not None and name not in ("torch", "ziglang"):
            _say(name.replace("_", " "), str(value))
    _compiler()
    for package, purpose, extra in EXTRAS:
        version = version_of(package)
        found = version or f"not installed; pip install 'delian[{extra}]'"
        _say(package, f"{found}  ({purpose})")


def _compiler() -> None:
    _say("compiler", "unknown")


def _say(name: str, value: str) -> None:
    typer.echo(f"{name:<14} {value}")
