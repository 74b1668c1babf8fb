"""What was found to be fastest here: flags for a program, stored next to the cache.

`tune` measures a program compiled with other sizes of tiles and panels, lanes and compiler flags,
on this machine, and keeps the best for the program's content hash, this compiler, processor and
emitter. `compile_native` asks `applied` for the first of its functions that has been tuned.

Sizes of panels decide in which order a product's sum is rounded, so a tuned program may differ from
the untuned one in the last bits of f32, within the tolerances of the profile "fast". In the profile
"reproducible" sums are of f64 and go by no panels: there no choice changes a bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .....common.files import make_private, write_whole
from .cache import emitter_version
from .toolchain import Toolchain, cache_folder

_FILE_BYTES_MAX = 1 << 16

#: What can be chosen, and the values to try, the most promising first; gemm.h and dense.h say what
#: each is. No size may be above its default where kernels.py reckons working memory with it: KC,
#: THIN, SHORT and TURNED.
CHOICES: dict[str, tuple[int, ...]] = {
    "DL_FEW": (6, 0, 2, 1, 3),
    "DL_LANES": (8, 16),
    "DL_MR": (6, 4, 12),
    "DL_DIRECT": (32, 64, 16, 128),
    "DL_L1_FLOATS": (12288, 3072, 24576, 6144),
    "DL_KC": (256, 384, 128, 192, 512),
    "DL_THIN": (2048, 0, 8192),
    "DL_SHORT": (0, 64),
    "DL_TURNED": (0, 32),
}
#: Compiler flags to try; none changes what a program computes.
FLAGS: tuple[str, ...] = ("-O3", "-funroll-loops", "-mprefer-vector-width=256")


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found for one function."""

    flags: tuple[str, ...]
    """Flags for the C compiler."""
    before_s: float
    """Least seconds of one call before tuning."""
    after_s: float
    """Least seconds of one call after it."""
    tried: int
    """Number of variants measured."""


def is_allowed(flag: str) -> bool:
    """Whether a flag is one of the choices: what a file says is passed to a compiler."""
    name, equals, value = flag.removeprefix("-D").partition("=")
    if flag.startswith("-D") and equals:
        return value.isdigit() and int(value) in CHOICES.get(name, ())
    return flag in FLAGS


def file_of(toolchain: Toolchain, program: str) -> Path:
    """Where the tuning of a program lies, by its content hash."""
    parts = (emitter_version(), toolchain.identity, program)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_folder() / "tuned" / f"{key}.json"


def read(toolchain: Toolchain, program: str) -> Tuning | None:
    """The tuning of a program; None where there is none, or its file makes no sense."""
    path = file_of(toolchain, program)
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_FILE_BYTES_MAX))
        tuning = Tuning(
            tuple(map(str, said["flags"])),
            float(said["before_s"]),
            float(said["after_s"]),
            int(said["tried"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuning if all(map(is_allowed, tuning.flags)) else None


def write(toolchain: Toolchain, program: str, tuning: Tuning) -> Path:
    """Keeps a tuning. Raises OSError where it cannot be written."""
    path = file_of(toolchain, program)
    make_private(path.parent)
    write_whole(path, json.dumps(asdict(tuning)))
    return path


def applied(toolchain: Toolchain, programs: Sequence[str]) -> Toolchain:
    """The compiler with the flags of the first of some programs that has been tuned."""
    if toolchain.target.is_native:
        for program in programs:
            if (tuning := read(toolchain, program)) is not None:
                return toolchain.with_flags(tuning.flags)
    return toolchain
