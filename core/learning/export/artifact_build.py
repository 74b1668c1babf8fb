"""What `delian build` makes of a bundle: an artifact for another machine, or a stand-alone command.

Both hold the programs that a device runs, and their own large constants, so that no caller passes
any. An artifact is loaded by a device that has the same bundle; a command needs nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...compiler.backends.native.assemble import assembled
from ...compiler.backends.native.toolchain import artifact, toolchain
from ...compiler.backends.native.toolchain.artifact import Facts
from ...compiler.backends.native.toolchain.targets import Target
from ...compiler.passes.number_profiles import in_profile
from ..bundle import Bundle
from . import standalone
from .program_ports import chosen

Profile = Literal["fast", "reproducible"]


@dataclass(frozen=True, slots=True)
class Built:
    """A built artifact."""

    content: bytes
    """The file."""
    facts: Facts
    """Its description, which the file holds too."""
    source: str
    """Its C source."""


def build_for(
    bundle: Bundle,
    target: Target,
    *,
    static: bool = False,
    programs: Sequence[str] = (),
    profile: Profile = "fast",
) -> Built:
    """Compiles a bundle's programs for a machine.

    static: a stand-alone command in place of an artifact. programs: which; all that a device runs
    when none is named. profile: as in `passes.profiles`. Raises DelianError when there is no
    compiler for the machine, or it fails.
    """
    if static:  # it has its C library in it: musl's, which is the one that zig can put there
        target = replace(target, zig=target.zig.replace("gnu", "musl"))
    tools = toolchain.find_for(target)
    strict = profile != "fast"
    functions = {n: in_profile(bundle.programs[n], profile) for n in chosen(bundle, programs)}
    digest = bundle.content_hash()
    made = assembled(functions, tools, strict, embed=True, features=tools.features(), bundle=digest)
    facts, text = made.facts, made.text
    if static:
        title = f"{bundle.manifest.task}, {bundle.manifest.algorithm}, for {target.name}"
        text += standalone.command(bundle, facts.entries, title)
    with tempfile.TemporaryDirectory(prefix="delian-") as scratch:
        source, output = Path(scratch) / "program.c", Path(scratch) / "program"
        source.write_text(text, encoding="utf-8")
        tools.compile(source, output, whole=static)
        content = output.read_bytes()
    return Built(artifact.sealed(content, facts), facts, text)
