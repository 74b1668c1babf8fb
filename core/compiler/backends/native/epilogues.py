"""What stands between a loop's function and the kernel that calls it for one part at a time.

A group whose outermost loop falls into chunks is called by threads, and one that follows a
convolution (`passes.strips`) by that, with some rows of its result that are still in the first
cache. Both have what the function is given in an array, the context: pointers, and addresses of
rank-0 values.
"""

from __future__ import annotations

from collections.abc import Mapping

from .loop_writer import LoopWriter

#: As in plain.h.
_STRIP_FLOATS, _STRIP_DEPTH = 4096, 192


def strip_rows(d: Mapping[str, int], depth: int) -> int:
    """Rows that a convolution with so many terms a sum makes at a time, where a loop follows."""
    rows = max(_STRIP_FLOATS // (d["ow"] * d["o"]) // 2 * 2, 2)
    return d["oh"] if depth > _STRIP_DEPTH else min(rows, d["oh"])


def strip_floats(d: Mapping[str, int], depth: int) -> int:
    """The numbers of these rows."""
    return strip_rows(d, depth) * d["ow"] * d["o"]


def part_of(name: str, writer: LoopWriter) -> str:
    """A dl_body that calls a group's function for one chunk."""
    cut = writer.cut
    assert cut is not None, "a group that is not cut has no parts"
    call = ", ".join([*given_of(writer), "lo", "hi"])
    return (
        "(void *context, int64_t chunk, void *scratch) {\n"
        "  void *const *c = (void *const *)context;\n"
        f"  const int64_t lo = chunk * {cut.span}, end = lo + {cut.span};\n"
        f"  const int64_t hi = end < {cut.size} ? end : {cut.size};\n"
        f"  (void)c, (void)scratch;\n  {name}({call});\n}}\n"
    )


def then_of(name: str, writer: LoopWriter, rows: int) -> str:
    """A dl_then_rows that calls a function of `write_strips`."""
    call = ", ".join([*given_of(writer), "made", f"from / {rows}", f"to / {rows}"])
    return (
        "(const void *const *c, const float *made, int64_t from, int64_t to) {\n"
        f"  (void)c;\n  {name}({call});\n}}\n"
    )


def after_of(name: str, writer: LoopWriter) -> str:
    """A dl_after that calls a function of `write_tile`."""
    call = ", ".join([*given_of(writer), "tile", "m0", "rows", "n0", "columns"])
    return (
        "(const void *const *c, const float *tile, int64_t m0, int64_t rows, int64_t n0,"
        f" int64_t columns) {{\n  (void)c;\n  {name}({call});\n}}\n"
    )


def given_of(writer: LoopWriter) -> list[str]:
    """The arguments of a group's function out of a context, c."""
    given = []
    declared = zip(writer.arguments, writer.declarations, strict=False)  # and then lo and hi
    for n, (argument, declaration) in enumerate(declared):
        kind = declaration.rsplit(" ", 1)[0].replace("restrict", "")
        given.append(f"({kind})c[{n}]" if argument.is_pointer else f"*({kind} *)c[{n}]")
    return given
