"""`delian build`: a bundle's programs as machine code for another machine, or as plain C."""

from __future__ import annotations

import re
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell, told_when_slow, write_out

if TYPE_CHECKING:
    from ...core.compiler.ir import Array
    from ...core.learning.bundle import Bundle

C_TARGET = "c"
_SLOW = (
    "compiling for {}; with zig the first command for a target takes a minute or more, in which it"
    " builds that target's C library"
)


class Profile(StrEnum):
    """How much of a program's arithmetic is the same everywhere."""

    fast = "fast"
    reproducible = "reproducible"


def build(
    bundle: Annotated[
        Path,
        typer.Argument(help="A .bundle file, as from `delian simulate` or `delian model export`."),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="aarch64-linux-musl, armv7-linux-musleabihf, x86_64_v3-linux-gnu, ..., native; or"
            " c: plain C.",
        ),
    ] = "native",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write. With -o X.c also X.h.")
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="A command that needs nothing, not an artifact.")
    ] = False,
    cpu: Annotated[
        str | None, typer.Option("--cpu", help="In place of the target's own: cortex_a53.")
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option("--program", help="Only this one; may be given again. (default: a device's)"),
    ] = None,
    profile: Annotated[
        Profile, typer.Option("--profile", help="reproducible: the same bits on every machine.")
    ] = Profile.fast,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Also write the bundle's weights, raw f32.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a bundle for another machine.

    An artifact is for a device without a compiler: `delian device run --artifact FILE`. With
    --static it is a command that trains and infers from files; run without arguments it says how.
    The target `c` writes plain C and a header, for microcontrollers.
    """
    from ...core.learning.bundle import load

    made = load(bundle)
    if weights is not None and not made.weights.size:
        raise DelianError(f"{bundle} has no weights in it", "fetch it with: delian model export")
    chosen = profile.value
    if target == C_TARGET:
        if static or cpu is not None:
            raise DelianError("--static and --cpu are for machines", "leave them out with C")
        facts = _write_c(made, out, bundle, program or [], chosen)
    else:
        facts = _write(made, out, bundle, target, static, cpu, program or [], chosen)
    if weights is not None:
        write_out(weights, _raw(made.weights))
        facts["weights"] = str(weights)
    tell(facts, as_json, lambda: _lines(facts))


def _write(
    made: Bundle,
    out: Path | None,
    bundle: Path,
    target: str,
    static: bool,
    cpu: str | None,
    programs: list[str],
    profile: str,
) -> dict[str, Any]:
    from ...core.compiler.backends.native.toolchain.artifact import SUFFIX
    from ...core.compiler.backends.native.toolchain.targets import find_target
    from ...core.learning.export.artifact_build import build_for

    machine = find_target(target, cpu)
    with told_when_slow(_SLOW.format(target)) if static else nullcontext():
        built = build_for(
            made,
            machine,
            static=static,
            programs=programs,
            profile="reproducible" if profile == "reproducible" else "fast",
        )
    file = out or Path(f"{bundle.stem}-{target}{'' if static else SUFFIX}")
    write_out(file, built.content)
    if static:
        file.chmod(file.stat().st_mode | 0o111)
    facts = built.facts
    return {
        "file": str(file),
        "bytes": len(built.content),
        "kind": "command" if static else "artifact",
        "target": facts.target,
        "features": list(facts.features),
        "abi": facts.abi,
        "compiler": facts.compiler,
        "bundle": facts.bundle,
        "programs": {
            e.name: {
                "ir": e.program,
                "arena_bytes": e.arena_bytes,
                "tensor_bytes": e.tensor_bytes,
            }
            for e in facts.entries
        },
    }


def _write_c(
    made: Bundle, out: Path | None, bundle: Path, programs: list[str], profile: str
) -> dict[str, Any]:
    from ...core.learning.export.portable import portable

    file = out or Path(f"{bundle.stem}.c")
    if file.suffix != ".c":
        raise DelianError(f"{file} is no .c file", "-o model.c writes model.c and model.h")
    name = re.sub(r"[^a-z0-9]+", "_", file.stem.lower()).strip("_")
    name = name if name[:1].isalpha() else f"net_{name}"
    text = portable(
        made,
        name,
        programs=programs,
        profile="reproducible" if profile == "reproducible" else "fast",
        header=file.with_suffix(".h").name,
    )
    write_out(file, text.source.encode())
    write_out(file.with_suffix(".h"), text.header.encode())
    return {
        "file": str(file),
        "header": str(file.with_suffix(".h")),
        "kind": "c",
        "functions": [f"{name}_{program}" for program in text.programs],
        "arena_bytes": text.arena_bytes,
        "list_bytes": text.list_bytes,
        "bundle": made.content_hash(),
    }


def _raw(weights: Array) -> bytes:
    import numpy as np

    return np.ascontiguousarray(weights, "<f4").tobytes()


def _lines(facts: dict[str, Any]) -> list[str]:
    said = [f"{facts['file']}: {facts['kind']}"]
    if facts["kind"] == "c":
        said.append(f"header     {facts['header']}")
        said.append(f"functions  {', '.join(facts['functions'])}")
        said.append(f"memory     {facts['arena_bytes']} bytes, lists {facts['list_bytes']}")
        return said
    said[0] += f" for {facts['target']}, {facts['bytes']} bytes"
    said.append(f"needs      {', '.join(facts['features']) or 'nothing more'}")
    said.append(f"compiler   {facts['compiler']}")
    for name, program in facts["programs"].items():
        said.append(
            f"{name:<14} memory {program['arena_bytes']} bytes for tensors of"
            f" {program['tensor_bytes']}, {program['ir'][:16]}"
        )
    return said
