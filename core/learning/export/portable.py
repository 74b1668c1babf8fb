"""A bundle's programs as plain C: one .c and one .h for whatever has a C11 compiler.

The C calls nothing of an operating system and takes no memory: it uses memcpy, memset and the
functions of math.h, and works in an arena of its own, static and shared by all programs, so that no
two of them may run at once. What a loop saves for its derivative lies in a static heap whose size
that the user's build may set. There are no vectors: a compiler may make its own.

It is right with integers that wrap and no strict aliasing. The file has the pragma for GCC; to
other compilers say it: -fwrapv -fno-strict-aliasing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from ...common.errors import DelianError
from ...compiler.backends import native
from ...compiler.backends.native.emit import emit
from ...compiler.backends.native.names import memory_type
from ...compiler.ir import DType
from ...compiler.passes.number_profiles import in_profile
from ...compiler.passes.pipeline import lowered
from ..bundle import Bundle
from .artifact_build import Profile
from .program_ports import Port, Ports, chosen, ports_of

#: The heap of programs that have lists, unless DL_LIST_BYTES says otherwise; and one piece of it.
LIST_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 10
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")

_BEGIN = """/* Written by delian. The functions are described in {header}.
 * Integers wrap, and the arena holds numbers of every type in turn. */
#define DL_PORTABLE
#ifndef DL_CHUNK_BYTES
#define DL_CHUNK_BYTES ((size_t){chunk})
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#if defined(__clang__)
#pragma GCC diagnostic ignored "-Wtautological-compare"
#pragma GCC diagnostic ignored "-Wbitwise-conditional-parentheses"
#else
#pragma GCC optimize ("wrapv", "no-strict-aliasing")
#endif
#endif
#include "{header}"
"""


@dataclass(frozen=True, slots=True)
class Portable:
    """The two files, and what they take."""

    name: str
    source: str
    header: str
    programs: tuple[str, ...]
    arena_bytes: int
    """Bytes of the arena."""
    list_bytes: int
    """Bytes of the heap of lists."""


def portable(
    bundle: Bundle,
    name: str,
    *,
    programs: Sequence[str] = (),
    profile: Profile = "fast",
    header: str = "",
) -> Portable:
    """The C of a bundle's programs.

    name: what the functions begin with. programs: which; all that a device runs when none is named.
    header: the name of the header's file; NAME.h when there is none. Raises DelianError.
    """
    if not _NAME.fullmatch(name):
        raise DelianError(
            f"`{name}` cannot begin the names of C functions", "small letters, digits, underscores"
        )
    names = chosen(bundle, programs)
    functions = {n: lowered(in_profile(bundle.programs[n], profile)) for n in names}
    symbols = {n: f"dl_entry_{i}" for i, n in enumerate(names)}
    text, made = emit(
        {symbols[n]: f for n, f in functions.items()},
        strict=profile != "fast",
        embed=True,
        tiles=False,
    )
    # Entries are called by the functions below alone.
    text = text.replace(
        '__attribute__((visibility("default"))) int dl_entry_', "static int dl_entry_"
    )
    arena = max(p.arena_bytes for p in made.values())
    heap = LIST_BYTES if any(p.lists for p in made.values()) else 0
    ports = {n: ports_of(bundle, n) for n in names}
    parts = [
        _BEGIN.replace("{header}", header or f"{name}.h").replace("{chunk}", str(_CHUNK_BYTES)),
        text,
        f"#ifndef DL_LIST_BYTES\n#define DL_LIST_BYTES {heap}\n#endif",
        resources.files(native).joinpath("c", "heap.h").read_text(encoding="utf-8"),
        "static union {",
        f"  char bytes[{max(arena, 1)}];",
        "  double aligned;",
        "  int64_t aligned_too;",
        "} dl_arena;",
        *(_definition(name, symbols[n], ports[n]) for n in names),
    ]
    return Portable(
        name, "\n".join(parts), _header(bundle, name, ports, arena, heap), names, arena, heap
    )


def _definition(prefix: str, symbol: str, ports: Ports) -> str:
    def pointers(of: Sequence[Port], mutable: bool) -> str:
        kind = "(char *)" if mutable else "(char *)(uintptr_t)"
        return ", ".join(f"{kind}{p.name} + {offset}" for p in of for offset in p.offsets)

    return "\n".join(
        [
            f"\n{_prototype(prefix, ports)} {{",
            f"  void *params[] = {{{pointers(ports.takes, False)}}};",
            f"  void *results[] = {{{pointers(ports.gives, True)}}};",
            f"  return {symbol}(params, results, dl_arena.bytes, DL_LIST_BYTES);",
            "}",
        ]
    )


def _prototype(prefix: str, ports: Ports) -> str:
    arguments = [f"const {memory_type(p.dtype)} *{p.name}" for p in ports.takes]
    arguments += [f"{memory_type(p.dtype)} *{p.name}" for p in ports.gives]
    return f"int {prefix}_{ports.name}({', '.join(arguments)})"


def _header(bundle: Bundle, name: str, ports: dict[str, Ports], arena: int, heap: int) -> str:
    upper = name.upper()
    lines = [
        f"/* {name}: written by delian from the bundle",
        f" * {bundle.content_hash()}.",
        " *",
        " * Arrays are stored row by row; none may overlap another. Each function gives 0, or 1",
        " * when its lists outgrew DL_LIST_BYTES, which may be set where the .c file is compiled.",
        " * All share one arena: no two may run at once.",
        " */",
        f"#ifndef DELIAN_{upper}_H",
        f"#define DELIAN_{upper}_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define {upper}_ARENA_BYTES {arena}",
        f"#define {upper}_LIST_BYTES {heap}",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
    ]
    for p in ports.values():
        lines.append("")
        for word, of in (("takes", p.takes), ("gives", p.gives)):
            lines += [f"/* {word} {q.name}: {_type(q)} */" for q in of]
        lines.append(f"{_prototype(name, p)};")
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def _type(port: Port) -> str:
    dtype = "u8, 0 or 1" if port.dtype is DType.BOOL else port.dtype.value
    return f"{dtype} [{', '.join(map(str, port.shape))}]" if port.shape else f"one {dtype}"
