"""Compiled programs without a compiler: what a process loads that must not start one.

The objects were made by another process (`compiler`). One that is in the cache, and whose compiler
is known, is found without asking anybody; else the agent says where it lies.
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


def uncompiled(functions: Mapping[str, Function], artifacts: Sequence[Path]) -> dict[str, Function]:
    """The functions that no artifact has. Raises ArtifactError for a file that is none, or that is
    for another machine.
    """
    if not artifacts:
        return dict(functions)
    from ...compiler.backends.native.toolchain import artifact

    there: set[str] = set()
    for path in artifacts:
        facts = artifact.read(path)
        artifact.check(facts, str(path))
        there.update(entry.program for entry in facts.entries)
    return {name: f for name, f in functions.items() if content_hash(f) not in there}


def stored(functions: Mapping[str, Function]) -> Path | None:
    """The object of these functions; None: it has to be compiled first, or asked for."""
    from ...compiler.backends.native import program
    from ...compiler.backends.native.toolchain import toolchain

    compiler = toolchain.known()
    return None if compiler is None else program.stored_object(functions, compiler)


def load(
    functions: Mapping[str, Function], artifacts: Sequence[Path], made: Path | None
) -> dict[str, Executable]:
    """All functions, ready to be called. made: the object of those that no artifact has. Raises
    DelianError where that is not theirs, or others than this user can write it.
    """
    from ...compiler.backends.native import program
    from ...compiler.backends.native.toolchain import cache

    found: dict[str, Executable] = {}
    found.update(program.load_artifacts(functions, artifacts))
    rest = {name: f for name, f in functions.items() if name not in found}
    if rest:
        if made is None:
            raise DelianError(f"{', '.join(rest)}: nothing was compiled", "try again")
        try:
            cache.check_owner(made)
        except OSError as error:
            raise DelianError(f"{made} cannot be read: {error.strerror}", "try again") from None
        found.update(program.load_artifacts(rest, [made]))
    if absent := functions.keys() - found.keys():
        raise DelianError(f"{made} does not hold {', '.join(sorted(absent))}", "delete it")
    return found


def interpreted(functions: Mapping[str, Function]) -> dict[str, Executable]:
    """All functions, run by NumPy."""
    from ...compiler.backends import compile_module

    return dict(compile_module(functions, "reference"))
