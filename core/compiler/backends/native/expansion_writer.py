"""Groups that compute a part of a matrix as C: what a product's packing calls.

    expand_1(pointers..., to, step, row, rows, column, columns)

writes rows and columns of the matrix, `to` with rows `step` apart. Along rows and columns a group
may have several loops, as codes of 4 bits have: two in a byte, and groups of them with a scale. A
row's indices are computed once; along columns go pieces of the innermost loop, as vectors.
"""

from __future__ import annotations

from ...ir import Value
from ...passes.schedule import views
from .epilogues import given_of
from .loop_writer import Axis, LoopWriter, merge_axes

_PARAMETERS = (
    *("float *restrict to", "int64_t step", "int64_t row", "int64_t rows"),
    *("int64_t column", "int64_t columns"),
)


class ExpansionWriter(LoopWriter):
    """Writes a group that stores nothing, by parts of one of its values."""

    def write_part(self, value: Value, columns: int) -> str:
        """The parameters and body of the function, without its name.

        columns: of the whole matrix, in which the value lies row by row.
        """
        rows, across = self._levels(columns)
        element = self._element([*rows, *across])
        store = f"to[(r - row) * step + at + l] = {self._name(value)};"
        inner = f"i{len(rows) + len(across) - 1}"
        width, whole = ("across", across[-1].size) if len(across) > 1 else ("columns", "DL_NR")
        first = "from" if len(across) > 1 else "column"
        body = []
        for head in (f"if ({width} == {whole})", "else"):
            size = whole if head != "else" else width
            loop = f"for (int64_t l = 0; l < {size}; l++) {{"
            lines = [f"const int64_t {inner} = {first} + l;", *element, store]
            body += [head, "  DL_INDEPENDENT", f"  {loop}", *("    " + x for x in lines), "  }"]
        if len(across) > 1:
            body = self._pieces(body, across, len(rows))
        else:
            body = ["const int64_t at = 0;", *body]
        lines = [
            "for (int64_t r = row; r < row + rows; r++) {",
            *("  " + line for line in (*_places(rows, 0, "r"), *body)),
            "}",
        ]
        return self._function([*self.declarations, *_PARAMETERS], lines)

    def _levels(self, columns: int) -> tuple[list[Axis], list[Axis]]:
        """The loops along rows, and along columns."""
        loop, sizes = self.loop, self.loop.extents
        strides = [
            views.strides_in(loop.space, v.shape, self.schedule.views[v].strides)
            for v in self.loads
        ]
        strides.append(views.contiguous_strides(sizes))
        axes = [Axis(n, tuple(s[i] for s in strides), False) for i, n in enumerate(sizes) if n != 1]
        rows = [a for a in axes if a.strides[-1] >= columns]
        return merge_axes(rows), merge_axes(axes[len(rows) :])

    def _pieces(self, body: list[str], across: list[Axis], first: int) -> list[str]:
        """A loop over the pieces of a row that lie in one innermost loop each."""
        size = across[-1].size
        return [
            "for (int64_t at = 0; at < columns;) {",
            "  const int64_t c = column + at, left = columns - at;",
            *("  " + line for line in _places(across[:-1], first, "c", size)),
            f"  const int64_t from = c % {size}, room = {size} - from;",
            "  const int64_t across = left < room ? left : room;",
            *("  " + line for line in body),
            "  at += across;",
            "}",
        ]


def _places(axes: list[Axis], first: int, of: str, inside: int = 1) -> list[str]:
    """The index of each loop out of that of all; `inside`: numbers of the loops within."""
    lines = []
    for n in range(len(axes) - 1, -1, -1):
        whole = f"{of} / {inside}" if inside > 1 else of
        lines.append(
            f"const int64_t i{first + n} = {f'({whole}) % {axes[n].size}' if n else whole};"
        )
        inside *= axes[n].size
    return lines


def expand_of(name: str, writer: ExpansionWriter) -> str:
    """A dl_expand that calls a function of `write_part`."""
    call = ", ".join([*given_of(writer), "to", "step", "row", "rows", "column", "columns"])
    return (
        "(const void *const *c, float *to, int64_t step, int64_t row, int64_t rows,"
        f" int64_t column, int64_t columns) {{\n  (void)c;\n  {name}({call});\n}}\n"
    )
