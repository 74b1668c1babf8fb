"""Compiled programs without a compiler: what a process loads that must not start one.

The objects were made by another process (`compiler`). One that is in the cache, and whose compiler
is known, is found without a request; else the agent says where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...common.errors import DelianError
from ...compiler.backends import Executable
from ...compiler.ir import Function
from ...compiler.ir_codec import content_hash
from ...learning.bundle import Bundle


def functions_of(bundle: Bundle, programs: Sequence[str]) -> dict[str, Function]:
    """Those of the programs that the bundle has."""
    return {name: bundle.programs[name] for name in programs if name in bundle.programs}


def hashes_of(functions: Mapping[str, Function]) -> dict[str, str]:
    """The content hash of each. It takes a tenth of a job's start: it is computed once."""
    return {name: content_hash(function) for name, function in functions.items()}


def uncompiled(hashes: Mapping[str, str], artifacts: Sequence[Path]) -> dict[str, str]:
    """The hashes, by name, of the functions that no artifact has.

    Raises ArtifactError for a file that is none, or that is for another machine.
    """
    if not artifacts:
        return dict(hashes)
    from ...compiler.backends.native.toolchain import artifact

    there: set[str] = set()
    for path in artifacts:
        facts = artifact.read(path)
        artifact.check(facts, str(path))
        there.update(entry.program for entry in facts.entries)
    return {name: h for name, h in hashes.items() if h not in there}


def stored(hashes: Mapping[str, str]) -> Path | None:
    """The object of the functions with these hashes.

    None: it is not compiled yet, or the agent has to say where it is.
    """
    from ...compiler.backends.native import program
    from ...compiler.backends.native.toolchain import toolchain

    compiler = toolchain.known()
    return None if compiler is None else program.stored_object([*hashes.values()], compiler)


def load(
    functions: Mapping[str, Function],
    hashes: Mapping[str, str],
    artifacts: Sequence[Path],
    made: Path | None,
) -> dict[str, Executable]:
    """All functions, ready to be called.

    hashes: what `hashes_of` gives for them. made: the object of those that no artifact has. Raises
    DelianError where that is not theirs, or others than this user can write it.
    """
    from ...compiler.backends.native import program
    from ...compiler.backends.native.toolchain import cache

    found: dict[str, Executable] = {}
    found.update(program.load_artifacts(functions, artifacts, hashes))
    rest = {name: f for name, f in functions.items() if name not in found}
    if rest:
        if made is None:
            raise DelianError(f"{', '.join(rest)}: nothing was compiled", "try again")
        try:
            cache.check_owner(made)
        except OSError as error:
            raise DelianError(f"{made} cannot be read: {error.strerror}", "try again") from None
        found.update(program.load_artifacts(rest, [made], hashes))
    if absent := functions.keys() - found.keys():
        raise DelianError(f"{made} does not hold {', '.join(sorted(absent))}", "delete it")
    return found


def interpreted(functions: Mapping[str, Function]) -> dict[str, Executable]:
    """All functions, run by NumPy."""
    from ...compiler.backends import compile_module

    return dict(compile_module(functions, "reference"))
