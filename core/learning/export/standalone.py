"""A bundle's programs as one command that needs nothing: no interpreter, no library, no compiler.

The C of the programs is followed by tables of what they take and give (`program_ports`) and by the
command itself, standalone.c, which says at its top how it is used. All memory but that of lists is
static.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from ...compiler.backends.native.toolchain.artifact import Entry
from ...compiler.ir import DType
from ..bundle import Bundle
from .program_ports import Port, Ports, ports_of

#: What the lists of one call may take. 32-bit machines have to have it too.
LIST_BYTES = 1 << 30

#: NumPy's names of element types.
_DESCR = {
    DType.F64: "<f8",
    DType.F32: "<f4",
    DType.I64: "<i8",
    DType.I32: "<i4",
    DType.I16: "<i2",
    DType.I8: "|i1",
    DType.U64: "<u8",
    DType.U32: "<u4",
    DType.U16: "<u2",
    DType.U8: "|u1",
    DType.BOOL: "|b1",
    DType.F16: "<f2",
    DType.BF16: "<V2",
}
_TYPES = """
typedef struct {
  const char *name, *descr;
  int rank;
  int64_t shape[16], bytes;
  int leaves;
  const int64_t *offsets;
} dl_port;
typedef struct {
  const char *name;
  int (*run)(void *const *, void *const *, char *, int64_t);
  int takes, gives;
  const dl_port *ports;
} dl_program;
"""


def command(bundle: Bundle, entries: Sequence[Entry], title: str) -> str:
    """What follows the C of the entries: tables and the command. title: its first line of help."""
    ports = {e.symbol: ports_of(bundle, e.name) for e in entries}
    parts = [_TYPES]
    for symbol, p in ports.items():
        parts += _tables(symbol, p)
    rows = [
        f"  {{{quoted(p.name)}, {symbol}, {len(p.takes)}, {len(p.gives)}, {symbol}_ports}},"
        for symbol, p in ports.items()
    ]
    arguments = [sum(len(x.offsets) for x in (*p.takes, *p.gives)) for p in ports.values()]
    parts += [
        "static const dl_program dl_programs[] = {",
        *rows,
        "};",
        f"static const int dl_program_count = {len(rows)};",
        f"static const char dl_title[] = {quoted(title)};",
        f"#define DL_PORTS_MAX {max(len(p.takes) + len(p.gives) for p in ports.values())}",
        f"#define DL_ARGUMENTS_MAX {max(arguments)}",
        f"#define DL_LIST_BYTES ((int64_t){LIST_BYTES})",
        f"static char DL_ALIGN dl_memory[{max(p.bytes for p in ports.values())}];",
        f"static char DL_ALIGN dl_arena[{max(*(e.arena_bytes for e in entries), 1)}];",
        resources.files(__package__).joinpath("standalone.c").read_text(encoding="utf-8"),
    ]
    return "\n".join(parts)


def _tables(symbol: str, ports: Ports) -> list[str]:
    lines, rows = [], []
    for i, port in enumerate((*ports.takes, *ports.gives)):
        name = f"{symbol}_offsets_{i}"
        lines.append(f"static const int64_t {name}[] = {{{', '.join(map(str, port.offsets))}}};")
        rows.append(f"  {_row(port, name)},")
    return [*lines, f"static const dl_port {symbol}_ports[] = {{", *rows, "};"]


def _row(port: Port, offsets: str) -> str:
    shape = ", ".join(map(str, port.shape)) or "0"
    return (
        f"{{{quoted(port.name)}, {quoted(_DESCR[port.dtype])}, {len(port.shape)}, {{{shape}}},"
        f" {port.nbytes}, {len(port.offsets)}, {offsets}}}"
    )


def quoted(text: str) -> str:
    """Text as C: names are whatever a bundle's maker wrote."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\?%' else "_" for c in text[:200])
    return f'"{plain}"'


def layout(bundle: Bundle, names: Sequence[str]) -> Mapping[str, Ports]:
    """The ports of some programs, by their names."""
    return {name: ports_of(bundle, name) for name in names}
