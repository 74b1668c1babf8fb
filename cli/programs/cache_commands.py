"""`delian cache`: the programs that were compiled on this machine."""

from __future__ import annotations

import time
from typing import Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import table, tell

app = typer.Typer(help="Show and clear compiled programs.", no_args_is_help=True)


@app.command("ls")
def list_programs(as_json: AsJson = False) -> None:
    """List compiled programs, the last used first.

    Above DELIAN_CACHE_BYTES_MAX those go that were not used for longest.
    """
    from ...core.compiler.backends.native.toolchain import artifact, cache, toolchain

    rows: list[dict[str, Any]] = []
    for kept in cache.kept(workers=True):
        try:
            names = [e.name for e in artifact.read(kept.path).entries]
        except artifact.ArtifactError:
            names = []  # it will be built again
        rows.append(
            {"key": kept.key, "bytes": kept.bytes, "used_s": kept.used_s, "programs": names}
        )
    facts: dict[str, Any] = {
        "folder": str(toolchain.cache_folder()),
        "bytes": sum(row["bytes"] for row in rows),
        "bytes_max": cache.bytes_max(),
        "programs": rows,
    }

    def lines() -> list[str]:
        cells = [
            [
                row["key"][:16],
                f"{row['bytes'] / 1024:.0f}",
                time.strftime("%Y-%m-%d %H:%M", time.gmtime(row["used_s"])),
                " ".join(row["programs"])[:60] or "damaged",
            ]
            for row in rows
        ]
        total = f"{facts['bytes'] / 2**20:.1f} of {facts['bytes_max'] / 2**20:.0f} MiB"
        return [
            *table(("KEY", "KIB", "USED (UTC)", "PROGRAMS"), cells),
            f"{facts['folder']}: {total}",
        ]

    tell(facts, as_json, lines)


@app.command("clear")
def clear(as_json: AsJson = False) -> None:
    """Remove every compiled program, what compilers left, and tunings; they are made again."""
    from ...core.compiler.backends.native.toolchain import cache, toolchain

    before = cache.kept(workers=True)
    removed = cache.clear()
    facts = {
        "folder": str(toolchain.cache_folder()),
        "programs": len(removed),
        "bytes": sum(k.bytes for k in removed),
    }
    said = f"{facts['folder']}: {facts['programs']} programs, {facts['bytes']} bytes are removed"
    tell(facts, as_json, lambda: [said])
    if left := sum(k.path.exists() for k in before):
        raise DelianError(
            f"{left} programs in {facts['folder']} cannot be removed", "check its permissions"
        )
