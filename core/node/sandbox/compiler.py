"""The compiling process, `python -m delian.core.node.sandbox.compiler`.

`compiling.compiled` starts it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.errors import DelianError
from ...common.files import make_private
from ...compiler.backends.native import program
from ...compiler.backends.native.toolchain import cache, toolchain
from ...compiler.verify import Limits as ProgramLimits
from ...learning import bundle as bundles
from ...wire.round_pb2 import OUT_OF_MEMORY
from . import compiled_programs, frames
from .process_limits import Limits, WorkerLimits
from .walls import confine_compile
from .worker_serving import JobStopped, Work, refused, serve

#: What a compiler left behind that was killed is removed when it is older.
_ABANDONED_S = 3600.0


def main() -> int:
    """Runs the compiling process."""
    return serve(_begin, bundles.BYTES_MAX)


def _begin(given: dict[str, Any]) -> Work:
    worker = WorkerLimits(**given["limits"])
    os.umask(0o077)
    scratch = _scratch()
    os.environ["TMPDIR"] = str(scratch)
    limits = Limits(worker)
    limits.compiling()
    read = [*given["read"], str(toolchain.cache_folder())]
    confine_compile(read, [str(toolchain.own_folder())], worker.sandbox)
    allowed = worker.of_programs()
    return lambda job: (_compile(job, allowed), b"")


def _scratch() -> Path:
    """A folder for what the compiler writes on its way."""
    folder = toolchain.own_folder() / "tmp"
    make_private(folder)
    for left in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                left.unlink()
    return folder


def _compile(job: frames.Frame, limits: ProgramLimits) -> Mapping[str, Any]:
    head = job.head
    try:
        if path := head.get("bundle"):
            found = bundles.load(Path(path), limits=limits)
        else:
            found = bundles.parse(bytes(job.body), "the bundle", limits=limits)
        functions = compiled_programs.functions_of(found, head["programs"])
        artifacts = [Path(a) for a in head["artifacts"]]
        absent = compiled_programs.uncompiled(compiled_programs.hashes_of(functions), artifacts)
        rest = {name: functions[name] for name in absent}
        compiler = toolchain.find()
        if not rest or compiler is None:
            return {"object": None}
        made, _ = program.compiled_object(rest, compiler)
        if made.parent != cache.folder():
            raise DelianError(
                f"compiled programs cannot be kept in {cache.folder()}",
                "make room, or set DELIAN_CACHE to a folder that is this user's alone",
            )
        return {"object": str(made)}
    except DelianError as error:
        raise refused(error) from error
    except MemoryError as error:
        raise JobStopped(OUT_OF_MEMORY, "the compiler is out of memory") from error


if __name__ == "__main__":
    sys.exit(main())
