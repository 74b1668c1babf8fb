"""Fused groups as C: one function each, one nest of loops, the innermost one for the vectoriser.

A group is written without names from around it: pointers and rank-0 numbers are its parameters. So
two groups of the same text are one function, however often the program has them.

Reductions take one of three forms. When the innermost loop is kept, its elements are accumulated
side by side, in the result itself ("columns": bias gradients, the statistics of batch norm), or, of
few numbers, in a variable ("windows": pooling). When it is reduced, chunks of it are written to a
buffer on the stack and reduced with explicit vectors ("rows": softmax). All have a fixed order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...ir import DType, Op, Value
from ...passes.schedule import views
from ...passes.schedule.block_steps import Loop, Schedule
from ...passes.schedule.convolution_strips import Strips
from .far_angles import for_far_angles
from .names import expression, from_memory, local_type, memory_type, wrapping
from .tile_fetches import fetches

#: The numbers of a chunk, as in reduce.h.
_CHUNK = 256
#: A shorter innermost loop is reduced one number after the other.
_SHORT = 16
#: Columns of a tile that are computed together, if their number is a multiple: 16 is one of any
#: number of lanes, 8 of any tile's but one lane's.
_LANES = ((16, "DL_LANES"), (8, "(DL_LANES > 1 ? 8 : 1)"))
#: Sums of more rows than this go by blocks, so that they round little.
_ROWS_BLOCK = 64
#: Several rows are added up at once if a row takes no more operations than this.
_TOGETHER_OPS_MAX = 12
#: And if the loop goes over as many numbers: it is twice the code, and a compiler's time for it.
TOGETHER_MIN = 1 << 17
#: Up to so many are written out, if the operations on all of them are not too many.
_WINDOW_MAX = 9
_WINDOW_OPS_MAX = 40
#: The bytes that partial sums may take of the stack.
_PARTIAL_BYTES_MAX = 1 << 15
#: What a group must come to, in numbers read, computed and written, to be cut for several threads.
_PARALLEL_WORK = 1 << 19
#: Parts of it, and numbers of which the parts of a single loop are multiples.
_CHUNKS_MAX = 16
_ALIGNED = 64
_LANES_MAX = 16
_FIRST = re.compile(r"for \(int64_t i0 = 0; i0 < (\d+); i0\+\+\) \{")
_VECTOR_REDUCTIONS = {
    ("reduce_sum", DType.F32),
    ("reduce_sum", DType.F64),
    ("reduce_max", DType.F32),
    ("reduce_min", DType.F32),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """What the caller passes: the memory of a base, or a rank-0 value."""

    base: Value
    is_pointer: bool


@dataclass(slots=True)
class Axis:
    """One loop: its size, and the strides of every access along it."""

    size: int
    strides: tuple[int, ...]
    reduced: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """How the outermost loop of a function falls into chunks: its size, and of each chunk."""

    size: int
    span: int

    @property
    def chunks(self) -> int:
        return -(-self.size // self.span)


class LoopWriter:
    """Writes one group. memory: what a base lies in. literals: rank-0 constants as C."""

    def __init__(
        self,
        schedule: Schedule,
        loop: Loop,
        memory: dict[Value, str],
        literals: dict[Value, str],
    ) -> None:
        self.schedule = schedule
        self.loop = loop
        self.memory = memory
        self.literals = literals
        self.arguments: list[Argument] = []
        self.declarations: list[str] = []
        self.pointers: dict[str, str] = {}
        self.scalars: dict[Value, str] = {}
        self.written = {memory[copy] for copy, _ in loop.stores}
        self.written |= {memory[r.result] for r in loop.reductions}
        # Accesses: loads, stores, then reductions, each with one stride a loop.
        self.loads = list(loop.loads)
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.headers: set[str] = set()
        self.tile: Value | None = None
        self.in_tile = "tile[i * DL_NR + j]"
        self.cut: Cut | None = None

    def write_tile(self, value: Value, columns: int, turned: bool) -> str:
        """As `write`, but over one tile of a product, whose result is read from it.

        turned: the product may be computed as that of the turned matrices: tiles have any number of
        columns.
        """
        space = self.loop.space | {columns, *views.cuts_of((value.tensor.size // columns, columns))}
        rows: list[int] = []
        across: list[int] = []
        for v in (*self.loads, value):
            strides = views.contiguous_strides(views.extents(space))
            if v is not value:
                strides = views.strides_in(space, v.shape, self.schedule.views[v].strides)
            found = views.tile_strides(space, columns, strides)
            assert found is not None, "the loop runs over tiles"
            rows.append(found[0])
            across.append(found[1])
        axes = [
            Axis(0, (*rows, rows[-1]), False),
            Axis(0, (*across, across[-1]), False),
        ]
        self.tile = value
        body = [*self._element(axes), *self._stores(axes)]
        # Columns go by vectors down the rows: what is the same in all rows stays in registers.
        lanes = next((text for n, text in _LANES if columns % n == 0 and not turned), "")
        lines = [
            "for (int64_t i = 0; i < rows; i++) {",
            "  const int64_t i0 = m0 + i;",
            *("  " + line for line in fetches(self, axes, "n0 + from" if lanes else "n0")),
            "  DL_INDEPENDENT",
            f"  for (int64_t l = 0; l < {lanes or 'columns'}; l++) {{",
            f"    const int64_t j = {'from + l' if lanes else 'l'}, i1 = n0 + j;",
            *("    " + line for line in body),
            "  }",
            "}",
        ]
        if lanes:
            head = f"for (int64_t from = 0; from < columns; from += {lanes}) {{"
            lines = [head, *("  " + line for line in lines), "}"]
        more = ["const float *restrict tile", "int64_t m0", "int64_t rows", "int64_t n0"]
        more.append("int64_t columns")
        return self._function([*self.declarations, *more], lines)

    def write_strips(self, value: Value, strips: Strips) -> str:
        """As `write`, but over rows of a convolution's result, `made`, from `lo` to `hi`."""
        self.loop = replace(self.loop, space=strips.space)
        step = value.shape[2] * value.shape[3] * strips.rows
        self.tile, self.in_tile = value, f"made[(i0 - lo) * {step} + {{}}]"
        axes = self._axes(strips.cut)
        of_result = [self.schedule.views[v].base is value for v in self.loads]
        along = zip(axes[0].strides, [*of_result, False, False], strict=True)
        axes[0].strides = tuple(0 if made else stride for stride, made in along)
        body = self._body(axes)
        first = next(i for i, line in enumerate(body) if _FIRST.fullmatch(line))
        body[first] = "for (int64_t i0 = lo; i0 < hi; i0++) {"
        more = ["const float *restrict made", "const int64_t lo", "const int64_t hi"]
        return self._function([*self.declarations, *more], body)

    def write(self) -> str:
        """The parameters and body of the function, without its name.

        The function of a large group is a part of its outermost loop, from `lo` to `hi`; `cut` says
        how it falls into parts.
        """
        axes = self._axes()
        body = self._transposition(axes) or self._body(axes)
        self.cut = self._cut(body, len(axes))
        if self.cut is not None:
            self.declarations += ["const int64_t lo", "const int64_t hi"]
        return self._function(self.declarations, body)

    def _function(self, declarations: list[str], body: list[str]) -> str:
        head = ", ".join(declarations) or "void"
        read = {self.memory.get(self.schedule.views[v].base) for v in self.loads}
        body = for_far_angles(body, in_place=bool(read & self.written))
        return f"({head}) {{\n" + "\n".join("  " + line for line in [*self.lines, *body]) + "\n}\n"

    def _cut(self, body: list[str], depth: int) -> Cut | None:
        """Bounds the outermost loop by a part, where it is the only loop of independent parts."""
        count = math.prod(self.loop.extents)
        work = count * (len(self.loop.ops) + len(self.loads) + 1)
        start = 1 if body[0] == "DL_INDEPENDENT" else 0
        head = _FIRST.fullmatch(body[start])
        inside = all(line.startswith(" ") for line in body[start + 1 : -1])
        if work < _PARALLEL_WORK or head is None or not inside:
            return None
        size, unit = int(head[1]), _ALIGNED if depth == 1 else 1
        units = -(-size // unit)
        cut = Cut(size, -(-units // _CHUNKS_MAX) * unit)
        if cut.chunks < 2:
            return None
        begin, end = "lo", "hi"
        if depth == 1 and size % _LANES_MAX == 0:  # the hint for whole vectors
            begin, end = (f"({name} & -{math.gcd(size, _ALIGNED)})" for name in (begin, end))
        body[start] = f"for (int64_t i0 = {begin}; i0 < {end}; i0++) {{"
        return cut

    # -- accesses

    def _body(self, axes: list[Axis]) -> list[str]:
        if not self.loop.reductions:
            return self._plain(axes)
        if axes and not axes[-1].reduced:
            return self._windows(axes) or self._columns(axes)
        return self._rows(axes)

    def _axes(self, cut: int = 0) -> list[Axis]:
        """The loops, merged where all accesses allow.

        Kept ones are outside, then come the reduced ones, and innermost the last kept one if it was
        innermost. cut: the first one has what is outside of it, and nothing else.
        """
        loop = self.loop
        sizes, reduced = loop.extents, loop.reduced
        columns: list[tuple[int, ...]] = []
        for v in self.loads:
            columns.append(views.strides_in(loop.space, v.shape, self.schedule.views[v].strides))
        contiguous, kept = [0] * len(sizes), [0] * len(sizes)
        run, run_kept = 1, 1
        for i in range(len(sizes) - 1, -1, -1):
            contiguous[i] = run
            run *= sizes[i]
            if not reduced[i]:
                kept[i] = run_kept
                run_kept *= sizes[i]
        columns += [tuple(contiguous), tuple(kept)]
        rows = [
            Axis(sizes[i], tuple(c[i] for c in columns), reduced[i])
            for i in range(len(sizes))
            if sizes[i] != 1
        ]
        if cut:
            whole = [a for a in rows if a.strides[-2] >= cut]
            apart = merge_axes(whole) or [Axis(1, (0,) * len(columns), False)]
            return [*apart, *self._ordered(rows[len(whole) :])]
        return self._ordered(rows)

    def _ordered(self, rows: list[Axis]) -> list[Axis]:
        tail: list[Axis] = []
        while rows and not rows[-1].reduced and self.loop.reductions:
            tail.insert(0, rows.pop())
        merged_tail = merge_axes(tail)
        outer = merge_axes([a for a in rows if not a.reduced])
        outer = merge_axes([*outer, *merged_tail[:-1]])
        inner = merge_axes([a for a in rows if a.reduced])
        return [*outer, *inner, *merged_tail[-1:]]

    def _pointer(self, base: Value) -> str:
        memory = self.memory[base]
        if memory not in self.pointers:
            name = f"p{len(self.pointers)}"
            self.pointers[memory] = name
            const = "" if memory in self.written else "const "
            self.arguments.append(Argument(base, True))
            self.declarations.append(f"{const}{memory_type(base.dtype)} *restrict {name}")
        return self.pointers[memory]

    def _scalar(self, base: Value) -> str:
        if base in self.literals:
            return self.literals[base]
        if base not in self.scalars:
            name = f"s{len(self.scalars)}"
            self.scalars[base] = name
            self.arguments.append(Argument(base, False))
            self.declarations.append(f"const {local_type(base.dtype)} {name}")
        return self.scalars[base]

    def _element(self, axes: list[Axis]) -> list[str]:
        """Loads and computes one element at the loops' indices; everything gets its name in C."""
        lines = []
        for k, v in enumerate(self.loads):
            view = self.schedule.views[v]
            place = _index([(f"i{n}", a.strides[k]) for n, a in enumerate(axes)], view.offset)
            if view.base is self.tile:
                name = f"x{k}"
                lines.append(f"const float {name} = {self.in_tile.format(place)};")
            elif view.base in self.schedule.iotas:
                name = f"x{k}"
                lines.append(
                    f"const {local_type(v.dtype)} {name} = ({local_type(v.dtype)})({place});"
                )
            elif view.base.shape == ():
                name = self._scalar(view.base)
            else:
                name = f"x{k}"
                read = from_memory(v.dtype, f"{self._pointer(view.base)}[{place}]")
                lines.append(f"const {local_type(v.dtype)} {name} = {read};")
            self.names[v] = name
        for op in self.loop.ops:
            lines += self._compute(op)
        return lines

    def _compute(self, op: Op) -> list[str]:
        operands = [self._name(v) for v in op.operands]
        results = []
        for result in op.results:
            name = f"v{len(self.names) - len(self.loads)}"
            self.names[result] = name
            results.append(name)
        if op.name == "threefry":
            pair = f"&{results[0]}, &{results[1]}"
            return [
                f"uint32_t {results[0]}, {results[1]};",
                f"dl_threefry({', '.join(operands)}, {pair});",
            ]
        kind = local_type(op.result.dtype)
        return [f"const {kind} {results[0]} = {expression(op, operands)};"]

    def _name(self, value: Value) -> str:
        if value in self.names:
            return self.names[value]
        return self.names[self.schedule.source(value)]

    def _stores(self, axes: list[Axis]) -> list[str]:
        place = _index([(f"i{n}", a.strides[-2]) for n, a in enumerate(axes)], 0)
        return [
            f"{self._pointer(copy)}[{place}] = {self._name(value)};"
            for copy, value in self.loop.stores
        ]

    def _result_place(self, axes: list[Axis]) -> str:
        return _index([(f"i{n}", a.strides[-1]) for n, a in enumerate(axes) if not a.reduced], 0)

    # -- forms

    def _plain(self, axes: list[Axis]) -> list[str]:
        return _nest(axes, 0, [*self._element(axes), *self._stores(axes)], independent=True)

    def _transposition(self, axes: list[Axis]) -> list[str] | None:
        """A copy from columns to rows goes by blocks in registers."""
        if self.loop.ops or self.loop.reductions or len(self.loads) != 1 or len(axes) < 2:
            return None
        (source,) = self.loads
        (stored, _) = self.loop.stores[0]
        across = [n for n, a in enumerate(axes[:-1]) if a.strides[0] == 1]
        simple = len(self.loop.stores) == 1 and stored.dtype.itemsize == 4
        view = self.schedule.views[source]
        if not across or not simple or view.base.shape == () or view.base in self.schedule.iotas:
            return None
        other = across[-1]
        if axes[-1].strides[0] <= 1:
            return None
        self.headers.add("transpose")
        outer = [a for n, a in enumerate(axes[:-1]) if n != other]
        start = _index([(f"i{n}", a.strides[0]) for n, a in enumerate(outer)], view.offset)
        to = _index([(f"i{n}", a.strides[-2]) for n, a in enumerate(outer)], 0)
        from_, into = self._pointer(view.base), self._pointer(stored)
        call = (
            f"dl_transpose_f32({axes[-1].size}, {axes[other].size},"
            f" (const float *){from_} + {start}, {axes[-1].strides[0]},"
            f" (float *){into} + {to}, {axes[other].strides[-2]});"
        )
        return _nest(outer, 0, [call], independent=False)

    def _windows(self, axes: list[Axis]) -> list[str] | None:
        """Few rows, each written out: nothing is read back from the result."""
        rows = [(n, a) for n, a in enumerate(axes) if a.reduced]
        count = math.prod(a.size for _, a in rows)
        if count > _WINDOW_MAX or count * (len(self.loop.ops) + 1) > _WINDOW_OPS_MAX:
            return None
        element = [*self._element(axes), *self._stores(axes)]
        begin, end = [], []
        for k, r in enumerate(self.loop.reductions):
            kind = local_type(r.result.dtype)
            begin.append(f"{kind} a{k} = {_identity(r)};")
            element.append(f"a{k} = {_combine(r, f'a{k}', self._name(r.operands[0]))};")
            end.append(f"{self._pointer(r.result)}[{self._result_place(axes)}] = a{k};")
        body = list(begin)
        for place in product(*(range(a.size) for _, a in rows)):
            at = [f"const int64_t i{n} = {i};" for (n, _), i in zip(rows, place, strict=True)]
            body += ["{", *("  " + line for line in (*at, *element)), "}"]
        kept = [a for a in axes if not a.reduced]
        # The loops keep their numbers, from which those of the window are left out.
        numbers = [n for n, a in enumerate(axes) if not a.reduced]
        body += end
        for n, axis in zip(reversed(numbers), reversed(kept), strict=True):
            body = _nest([axis], n, body, independent=n == numbers[-1])
        return body

    def _columns(self, axes: list[Axis]) -> list[str]:
        kept = [a for a in axes[:-1] if not a.reduced]
        rows = [a for a in axes[:-1] if a.reduced]
        inner = axes[-1]
        element = [*self._element(axes), *self._stores(axes)]
        n, place = len(axes) - 1, self._result_place(axes)
        partial = (
            math.prod(a.size for a in rows) >= 2 * _ROWS_BLOCK
            and inner.size * 8 * len(self.loop.reductions) <= _PARTIAL_BYTES_MAX
            and rows[0].size > _ROWS_BLOCK
            and any(
                r.name == "reduce_sum" and r.result.dtype.is_float for r in self.loop.reductions
            )
        )
        results, sums, firsts = [], [], []
        for k, r in enumerate(self.loop.reductions):
            results.append(f"{self._pointer(r.result)}[{place}]")
            sums.append(f"t{k}[i{n}]" if partial else results[-1])
            firsts.append(_identity(r))
            if partial:
                # A power of two: loops that differ in this size alone can be one function.
                room = max(_ALIGNED, 1 << (inner.size - 1).bit_length())
                self.lines.append(f"{memory_type(r.result.dtype)} DL_ALIGN t{k}[{room}];")
        together = self._together(rows[-1].size) if rows else 1
        each = self._summed(element, sums, f"i{n - 1}", together)
        each = _nest([inner], n, each, independent=True)
        begin = [f"{r} = {f};" for r, f in zip(results, firsts, strict=True)]
        begin = _nest([inner], n, begin, independent=True)
        steps = [together if a is rows[-1] else 1 for a in rows]
        if not partial:
            body = begin + _nest(rows, len(kept), each, independent=False, steps=steps)
        else:
            clear = [f"{t} = {f};" for t, f in zip(sums, firsts, strict=True)]
            finish = []
            for r, result, t in zip(self.loop.reductions, results, sums, strict=True):
                finish.append(f"{result} = {_combine(r, result, t)};")
            i, size = f"i{len(kept)}", rows[0].size
            inside = _nest(rows[1:], len(kept) + 1, each, independent=False, steps=steps[1:])
            body = [
                *begin,
                f"for (int64_t block = 0; block < {size}; block += {_ROWS_BLOCK}) {{",
                *("  " + line for line in _nest([inner], n, clear, independent=True)),
                f"  const int64_t rest = {size} - block;",
                f"  const int64_t end = rest < {_ROWS_BLOCK} ? {size} : block + {_ROWS_BLOCK};",
                f"  for (int64_t {i} = block; {i} < end; {_step(i, steps[0])}) {{",
                *("    " + line for line in inside),
                "  }",
                *("  " + line for line in _nest([inner], n, finish, independent=True)),
                "}",
            ]
        return _nest(kept, 0, body, independent=False)

    def _together(self, rows: int) -> int:
        """How many rows are added up before they are added to memory."""
        plain = all(
            r.name == "reduce_sum" and r.result.dtype is DType.F32 for r in self.loop.reductions
        )
        few = math.prod(self.loop.extents) < TOGETHER_MIN
        if few or not plain or len(self.loop.ops) > _TOGETHER_OPS_MAX:
            return 1
        return next((n for n in (4, 2) if rows % n == 0), 1)

    def _summed(self, element: list[str], sums: list[str], row: str, together: int) -> list[str]:
        """An element of some rows, added to the sums."""
        reductions = list(zip(self.loop.reductions, sums, strict=True))
        if together == 1:
            each = list(element)
            for r, t in reductions:
                each.append(f"{t} = {_combine(r, t, self._name(r.operands[0]))};")
            return each
        body = []
        for k, (r, _) in enumerate(reductions):
            names = ", ".join(f"w{k}_{u}" for u in range(together))
            body.append(f"{local_type(r.result.dtype)} {names};")
        body.insert(0, f"const int64_t first = {row};")
        for u in range(together):
            values = (
                f"w{k}_{u} = {self._name(r.operands[0])};" for k, (r, _) in enumerate(reductions)
            )
            lines = (f"const int64_t {row} = first + {u};", *element, *values)
            body += ["{", *("  " + line for line in lines), "}"]
        for k, (r, t) in enumerate(reductions):
            w, kind = wrapping(r.result.dtype), local_type(r.result.dtype)
            pairs = [f"{w}w{k}_{u} + {w}w{k}_{u + 1}" for u in range(0, together, 2)]
            total = " + ".join(f"({p})" for p in pairs)
            body.append(f"{t} = ({kind})({w}{t} + ({total}));" if w else f"{t} += {total};")
        return body

    def _rows(self, axes: list[Axis]) -> list[str]:
        kept = [a for a in axes if not a.reduced]
        rows = [a for a in axes if a.reduced]
        element = [*self._element(axes), *self._stores(axes)]
        place = self._result_place(axes)
        chunked = bool(rows) and rows[-1].size > _SHORT
        begin, after, end = [], [], []
        for k, r in enumerate(self.loop.reductions):
            dtype, value = r.result.dtype, self._name(r.operands[0])
            begin.append(f"{local_type(dtype)} a{k} = {_identity(r)};")
            if chunked and (r.name, dtype) in _VECTOR_REDUCTIONS:
                self.lines.append(f"{local_type(dtype)} DL_ALIGN t{k}[{_CHUNK}];")
                element.append(f"t{k}[j] = {value};")
                after.append(f"a{k} = dl_{r.name}_{dtype.value}(a{k}, t{k}, count);")
                self.headers.add("reduce")
            else:
                element.append(f"a{k} = {_combine(r, f'a{k}', value)};")
                if dtype.is_float and not chunked and _out_of_order(rows):
                    element.append(f"DL_IN_ORDER(a{k});")
            end.append(f"{self._pointer(r.result)}[{place}] = a{k};")
        if after:
            i, size = f"i{len(axes) - 1}", rows[-1].size
            plain = len(after) < len(self.loop.reductions)
            chunk = [
                f"for (int64_t from = 0; from < {size}; from += {_CHUNK}) {{",
                f"  const int64_t count = {size} - from < {_CHUNK} ? {size} - from : {_CHUNK};",
                *([] if plain else ["  DL_INDEPENDENT"]),
                "  for (int64_t j = 0; j < count; j++) {",
                f"    const int64_t {i} = from + j;",
                *("    " + line for line in element),
                "  }",
                *("  " + line for line in after),
                "}",
            ]
            body = _nest(rows[:-1], len(kept), chunk, independent=False)
        else:
            body = _nest(rows, len(kept), element, independent=False)
        return _nest(kept, 0, [*begin, *body, *end], independent=False)


def _out_of_order(rows: list[Axis]) -> bool:
    """Whether several loops read something in another order than that of memory."""
    for read in zip(*(a.strides for a in rows), strict=True):
        steps = [stride for stride in read if stride]
        if min(steps, default=0) < 0 or steps != sorted(steps, reverse=True):
            return len(rows) > 1
    return False


def merge_axes(axes: list[Axis]) -> list[Axis]:
    """Loops of one kind, those as one that all accesses go through as one."""
    merged = views.collapse([(a.size, *a.strides) for a in axes])
    reduced = bool(axes) and axes[0].reduced
    return [Axis(m[0], m[1:], reduced) for m in merged]


def _index(terms: list[tuple[str, int]], offset: int) -> str:
    parts = [i if stride == 1 else f"{i} * {stride}" for i, stride in terms if stride]
    if offset or not parts:
        parts.append(str(offset))
    return " + ".join(parts)


def _step(index: str, by: int) -> str:
    return f"{index}++" if by == 1 else f"{index} += {by}"


def _nest(
    axes: list[Axis],
    first: int,
    body: list[str],
    independent: bool,
    steps: Sequence[int] | None = None,
) -> list[str]:
    """Loops around lines; their indices are i`first` and on, and go by `steps`."""
    for n in range(len(axes) - 1, -1, -1):
        i, by = f"i{first + n}", 1 if steps is None else steps[n]
        lines = [f"for (int64_t {i} = 0; {i} < {axes[n].size}; {_step(i, by)}) {{"]
        if independent and n == len(axes) - 1:
            lines.insert(0, "DL_INDEPENDENT")
        body = [*lines, *("  " + line for line in body), "}"]
    return body


def _identity(op: Op) -> str:
    """What a reduction starts from."""
    dtype = op.result.dtype
    if op.name == "reduce_sum":
        return "0"
    if op.name == "reduce_prod":
        return "1"
    largest = op.name == "reduce_min"
    if dtype.is_float:
        suffix = "f" if dtype is DType.F32 else ""
        return f"{'' if largest else '-'}__builtin_inf{suffix}()"
    limits = {
        DType.I64: ("INT64_MIN", "INT64_MAX"),
        DType.I32: ("INT32_MIN", "INT32_MAX"),
        DType.I16: ("INT16_MIN", "INT16_MAX"),
        DType.I8: ("INT8_MIN", "INT8_MAX"),
        DType.U64: ("0", "UINT64_MAX"),
        DType.U32: ("0", "UINT32_MAX"),
        DType.U16: ("0", "UINT16_MAX"),
        DType.U8: ("0", "UINT8_MAX"),
        DType.BOOL: ("0", "1"),
    }
    return limits[dtype][largest]


def _combine(op: Op, a: str, b: str) -> str:
    dtype = op.result.dtype
    if op.name in ("reduce_max", "reduce_min"):
        return f"dl_{op.name[7:]}_{dtype.value}({a}, {b})"
    sign, w = "+" if op.name == "reduce_sum" else "*", wrapping(dtype)
    return f"({local_type(dtype)})({w}{a} {sign} {w}{b})"
