"""The ways in which the headers are compiled, each with loops and tails of its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

_PLAIN = """#define DL_PORTABLE
#define DL_CHUNK_BYTES ((size_t)1024)
#define DL_LIST_BYTES 65536
"""


@dataclass(frozen=True)
class Variant:
    """One way.

    Attributes:
        flags: of the compiler.
        prefix: what the file begins with.
        plain: C11 without vectors, with lists in a static heap.
        threaded: chunks of work go to a runner that gives each working memory of its own.
        many: calls become data, and loops that are alike one function, however few they are.
        needs: features that the processor must have.
    """

    name: str
    flags: tuple[str, ...] = ()
    prefix: str = ""
    plain: bool = False
    threaded: bool = False
    many: bool = False
    needs: tuple[str, ...] = ()


#: Work of any size falls into chunks.
_CHUNKS = "-DDL_PARALLEL_WORK=64"

_WIDE = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mfma")

VARIANTS = (
    Variant("lanes 8", ("-mavx2", "-mfma")),
    Variant("lanes 4, threads", (_CHUNKS,), threaded=True),
    Variant("plain C", (), _PLAIN, plain=True),
    Variant(
        "lanes 16, threads", (*_WIDE, _CHUNKS), threaded=True, needs=("avx512f", "avx512_vnni")
    ),
    Variant("lanes 8, threads, calls as data", ("-mavx2", "-mfma", _CHUNKS), "", False, True, True),
    Variant("lanes 4", ()),
)


@functools.cache
def here() -> tuple[Variant, ...]:
    """Those that this processor runs."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        said = ""
    has = set(said.split())
    return tuple(v for v in VARIANTS if has.issuperset(v.needs) and (has & {"avx2"} or not v.flags))
