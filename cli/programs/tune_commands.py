"""`delian tune`: find the fastest way to compile a bundle's programs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ..options import AsJson
from ..output import echo, tell


def tune(
    bundle: Annotated[Path, typer.Argument(help="The .bundle to tune.")],
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, max=86400.0, help="How long to search.")
    ] = 60.0,
    program: Annotated[
        str, typer.Option("--program", help="Which of its programs.")
    ] = "client_update",
    as_json: AsJson = False,
) -> None:
    """Search sizes of tiles and panels, lanes and compiler flags for the fastest on this machine.

    The result is stored next to the cache, for this program, processor and compiler, and used from
    then on. Interrupted, it keeps the best so far. Results may differ in the last bits of f32; in
    the profile `reproducible` they do not.
    """
    from ...core.compiler.backends.native.toolchain import toolchain, tuning
    from ...core.compiler.backends.native.toolchain.tune import tune as search
    from ...core.compiler.ir_codec import content_hash
    from ...core.learning.bundle import load
    from ...core.learning.export.program_ports import chosen

    made = load(bundle)
    (name,) = chosen(made, [program])
    function = made.programs[name]
    tools = toolchain.find()
    if tools is None:
        raise DelianError("there is no C compiler here", install("compile"))
    try:
        found = search(function, tools, seconds, lambda text: echo(text, err=True))
    except KeyboardInterrupt:
        kept = tuning.read(tools, content_hash(function))
        said = " ".join(kept.flags) if kept is not None else "nothing yet"
        echo(f"interrupted; kept: {said}", err=True)
        raise
    except OSError as error:
        raise DelianError(
            f"the tuning cannot be kept: {error}",
            "set DELIAN_CACHE to a folder that can be written",
        ) from None
    facts = {
        "program": name,
        "flags": list(found.flags),
        "before_ms": 1e3 * found.before_s,
        "after_ms": 1e3 * found.after_s,
        "tried": found.tried,
        "file": str(tuning.file_of(tools, content_hash(function))),
    }
    tell(
        facts,
        as_json,
        lambda: [
            f"{name}: {facts['before_ms']:.3f} ms untuned, {facts['after_ms']:.3f} ms with"
            f" {' '.join(found.flags) or 'nothing more'}; {found.tried} variants"
            + ("" if found.tried else ": there was no time for one, give it more --seconds"),
            str(facts["file"]),
        ],
    )
