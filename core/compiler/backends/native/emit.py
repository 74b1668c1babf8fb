"""A program as C: one file for one or several functions.

Every IR function becomes an entry

    int NAME(void *const *params, void *const *results, char *arena, int64_t list_bytes_max)

that gives 0, or 1 when lists outgrew their limit. Tensors lie where `memory_plan` puts them;
rank-0 values and lists are local variables. The entry is a plain sequence of calls and control
flow: each fused group is a function of its own (`loops`), and so is each kernel that the headers do
not have (`kernels`), and two of the same text are one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources

from ....common.aligned_arrays import ALIGNMENT
from ....common.errors import line_of
from ...ir import Array, DType, Function, ListType, Op, Type, Value, unshared
from ...passes.schedule import memory_plan
from ...passes.schedule.block_steps import Call, Loop, Schedule, descent, is_elementwise, is_scalar
from ...passes.schedule.convolution_strips import strips_of
from ...passes.schedule.fuse import schedule
from ...passes.schedule.memory_plan import Move, Place
from ...passes.schedule.product_layouts import product
from ...passes.schedule.views import is_whole
from ...passes.value_ranges import intervals
from . import control_flow
from .c_headers import HEADERS
from .call_runs import Entry, Runs, entry_text
from .epilogues import after_of, part_of, then_of
from .kernels import list_kernels as lists
from .kernels import tiles
from .kernels.descent import both_gradients, product_added
from .kernels.kernels import KERNELS, TURNED_MAX, conv, product_into, scratch_bytes
from .list_memory import lent_bytes
from .loop_writer import LoopWriter
from .names import (
    MORE_INTS,
    expression,
    from_memory,
    literal,
    local_type,
    memory_type,
    unsigned_type,
)
from .parts import in_parts
from .shared_loops import shared_functions

#: Constants of more elements are passed by the caller instead of written out.
INLINE_CONSTANT_MAX = 64
#: What makes a function visible outside the object.
VISIBLE = '__attribute__((visibility("default")))'


@dataclass(frozen=True, slots=True)
class Program:
    """What the emitter says of one entry."""

    name: str
    """The entry's C function."""
    arena_bytes: int
    """Size of the arena that the caller passes."""
    tensor_bytes: int
    """What all stored tensors would take without sharing memory."""
    groups: int
    """Number of fused groups."""
    calls: int
    """Number of other steps."""
    constants: tuple[Array, ...]
    """What the caller passes after the parameters."""
    donated: tuple[tuple[int, int], ...]
    """(parameter, result whose buffer it lies in), by their places."""
    lists: bool
    """Whether it takes memory for lists."""


class Unit:
    """The C file being written: the functions that its entries share, and the headers in use.

    embed: large constants are written out too, so that a caller passes none.
    tiles: convolutions go by tiles where that is faster, which takes more memory.
    """

    def __init__(self, embed: bool = False, tiles: bool = True) -> None:
        self.embed = embed
        self.tiles = tiles
        self.times: list[Loop | Call] | None = None  # with a list, every step is timed: `timing`
        self.headers = {"vector", "elementwise"}
        self.plain_types: set[DType] = set()
        self.instances: set[str] = set()
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.entries: list[Entry] = []
        self.tables: list[str] = []
        self.all_sizes: dict[str, int] = {}

    def need(self, header: str) -> None:
        self.headers.add(header)
        self.headers.update(HEADERS[header])

    def instance(self, macro: str, dtype: DType, *more: str) -> None:
        """Has the function that a macro of a header makes for a type, where the header has not."""
        if dtype in MORE_INTS:
            self.instances.add(f"{macro}({', '.join((memory_type(dtype), *more, dtype.value))})")

    def function(self, kind: str, text: str) -> str:
        """The name of the function with these parameters and this body."""
        if text not in self.texts:
            n = self.counts[kind] = self.counts.get(kind, 0) + 1
            self.texts[text] = f"{kind}_{n}"
        return self.texts[text]

    def constant(self, value: Array) -> str:
        """The name of a constant that is written out."""
        dtype = DType.of(value.dtype)
        numbers = ", ".join(literal(x, dtype) for x in value.ravel().tolist())
        text = f"[{value.size}] DL_ALIGN = {{{numbers}}}"
        name = f"constant_{len(self.tables)}"
        self.tables.append(f"static const {memory_type(dtype)} {name}{text};")
        return name

    def sizes(self, values: Mapping[str, int]) -> str:
        """A pointer to a dl_conv with these fields; calls of the same sizes share it."""
        fields = ", ".join(f".{k} = {v}" for k, v in values.items())
        return f"(dl_sizes + {self.all_sizes.setdefault(fields, len(self.all_sizes))})"

    def add(self, name: str, function: Function) -> Program:
        writer = FunctionWriter(self, name, function)
        self.entries.append(writer.write())
        return writer.program()

    def text(self) -> str:
        texts = ["\n".join(entry.body) for entry in self.entries]
        parts = ["/* Written by delian. */"]
        parts += tiles.defined([*self.texts, *texts], list(self.all_sizes), self.headers)
        parts += ["#define DL_THEN 1"] if "then" in self.counts else []
        folder = resources.files(__package__).joinpath("c")
        for header in HEADERS:
            if header in self.headers:
                parts.append(folder.joinpath(f"{header}.h").read_text(encoding="utf-8"))
        for dtype in sorted(self.plain_types, key=lambda d: d.value):
            kind, name = memory_type(dtype), dtype.value
            parts.append(f"DL_PLAIN_DOT({kind}, {unsigned_type(dtype)}, {name})")
            parts += [f"DL_PLAIN_CONV({kind}, {name})"] if dtype.is_float else []
        parts += sorted(self.instances)
        parts += self.tables
        if self.all_sizes:
            parts += ["static const dl_conv dl_sizes[] = {"]
            parts += [*(f"  {{{fields}}}," for fields in self.all_sizes), "};"]
        functions = shared_functions(self.texts)
        runs = Runs(functions.macros)
        bodies = runs.replaced([entry.body for entry in self.entries])
        entries = [entry_text(*both) for both in zip(self.entries, bodies, strict=True)]
        parts += in_parts(functions, [*runs.driver(), *entries])
        return "\n".join(parts)


class FunctionWriter:
    """Writes one entry. `schedule` is that of the block being written, `lines` what is written."""

    def __init__(self, unit: Unit, name: str, function: Function) -> None:
        for t in (*function.param_types, *function.result_types):
            assert not isinstance(t, ListType), "an entry takes and gives tensors"
        self.unit = unit
        self.name = name
        self.function = function = function.with_body(unshared(function.body))
        passed = [
            op.result
            for op in function.body.walk()
            if op.name == "constant"
            and op.attrs["value"].size > INLINE_CONSTANT_MAX
            and not unit.embed
        ]
        self.passed = {value: i for i, value in enumerate(passed)}
        self.static: list[str] = []
        self.static_of: dict[Value, int] = {}
        self.ranges = intervals(function.body)
        self.donated = donated = memory_plan.donations(function)
        taken = {j: function.body.params[i] for i, j in donated.items()}
        replaced = [taken.get(j) for j in range(len(function.body.results))]
        self.schedule = self.root = schedule(function.body, replaced)
        self.all_constants: dict[Value, Array] = {
            op.result: op.attrs["value"] for op in function.body.walk() if op.name == "constant"
        }
        room = partial(scratch_bytes, tiles=unit.tiles)
        self.plan = memory_plan.plan(self.root, self._constant_place, room, donated)
        self.names: dict[Value, str] = {}
        self.packed: dict[Call, str] = {}
        self.windows: dict[Value, str] = {}  # by how much such a part is off, a variable
        self.lines: list[str] = []
        self.count = 0
        self.groups = self.calls = 0
        self.uses_lists = any(isinstance(t, ListType) for t in _types(function))
        self.lent = lent_bytes(function.body, self.ranges)
        self.lent_at = -(-self.plan.arena_bytes // ALIGNMENT) * ALIGNMENT
        self.used: set[Place] = set()

    # -- the entry

    def write(self) -> Entry:
        if self.uses_lists:
            self.unit.need("lists")
        dtypes = {t.dtype for t in (*self.function.param_types, *_types(self.function))}
        if any(d.is_half for d in dtypes):
            self.unit.need("halves")
        casts = (op for op in self.function.body.walk() if op.name == "bitcast")
        if not dtypes.isdisjoint(MORE_INTS) or any(op.result.dtype.is_half for op in casts):
            self.unit.need("integers")
        for i, param in enumerate(self.function.body.params):
            if is_scalar(param):
                kind = local_type(param.dtype)
                stored = f"*(const {memory_type(param.dtype)} *)params[{i}]"
                name = self.local(param)
                self.lines.append(f"const {kind} {name} = {from_memory(param.dtype, stored)};")
        self.block(self.root)
        for j, value in self.plan.results:
            size = value.tensor.nbytes
            self.lines.append(f"memcpy(results[{j}], {self.pointer(value)}, {size});")
        for j, r in enumerate(self.root.results):
            if is_scalar(r):
                self.lines.append(f"*({memory_type(r.dtype)} *)results[{j}] = {self.scalar(r)};")
        return self._wrapped()

    def _wrapped(self) -> Entry:
        head = (
            f"/* {_plain(self.function.name)} */\n"
            f"{VISIBLE} int {self.name}(void *const *params,"
            " void *const *results, char *restrict arena, int64_t list_bytes_max) {"
        )
        places = {}
        for place in sorted(self.used, key=lambda p: (p.kind, p.index)):
            if place.kind == "param":
                kind = memory_type(self.function.body.params[place.index].dtype)
                name = f"p{place.index}"
                places[name] = f"const {kind} *restrict const {name} = params[{place.index}];"
            elif place.kind == "result":
                kind = memory_type(self.function.body.results[place.index].dtype)
                name = f"r{place.index}"
                places[name] = f"{kind} *restrict const {name} = results[{place.index}];"
        body = []
        if self.uses_lists:
            body.append("dl_heap heap = {.limit = (size_t)list_bytes_max};")
            if self.lent:
                body.append(f"dl_lend(&heap, arena + {self.lent_at}, {self.lent});")
        body += self.lines
        if self.uses_lists:
            body += ["dl_free_all(&heap);", "return 0;"]
            body += ["full: __attribute__((unused));", "dl_free_all(&heap);", "return 1;"]
        else:
            body.append("return 0;")
        return Entry(head, places, body)

    def program(self) -> Program:
        plan = self.plan
        return Program(
            name=self.name,
            arena_bytes=self.lent_at + self.lent if self.lent else plan.arena_bytes,
            tensor_bytes=plan.tensor_bytes,
            groups=self.groups,
            calls=self.calls,
            constants=tuple(self.all_constants[value] for value in self.passed),
            donated=tuple(self.donated.items()),
            lists=self.uses_lists,
        )

    def _constant_place(self, value: Value) -> Place:
        if value in self.passed:
            return Place("param", len(self.function.body.params) + self.passed[value])
        if value not in self.static_of:
            self.static_of[value] = len(self.static)
            self.static.append(self.unit.constant(self.all_constants[value]))
        return Place("constant", self.static_of[value])

    # -- names and memory

    def local(self, value: Value) -> str:
        """A new local variable for a value."""
        self.count += 1
        name = self.names[value] = f"v{self.count}"
        return name

    def pointer(self, value: Value) -> str:
        """Where a value lies that is stored row by row."""
        if value.tensor.size == 0:
            return "0"
        view = self.schedule.views[value]
        pointer = self.base_pointer(value)
        return f"({pointer} + {view.offset})" if view.offset else pointer

    def base_pointer(self, value: Value) -> str:
        """Where the base of a value lies. Of a rank-0 value, a variable."""
        base = self.schedule.views[value].base
        if base.shape == ():
            return f"&{self.names[base]}" if base in self.names else self._address(base)
        if base.tensor.size == 0:
            return "0"
        place = self.plan.places[base]
        kind = memory_type(base.dtype)
        if place.kind == "arena":
            name = f"({kind} *)(arena + {place.index})"
        elif place.kind == "constant":
            name = f"(const {kind} *)DL_TABLE({self.static[place.index]})"
        elif place.kind == "result":
            name = f"r{place.index}"
            self.used.add(place)
        elif place.index < len(self.function.body.params):
            name = f"p{place.index}"
            self.used.add(place)
        else:  # a constant that the caller passes
            name = f"(const {kind} *)params[{place.index}]"
        skips = [str(self.plan.offsets[base])] if self.plan.offsets.get(base) else []
        skips += [self.windows[base]] if base in self.windows else []
        if skips:
            return f"({' + '.join((name, *skips))})"
        return f"({name})" if " " in name else name

    def _address(self, value: Value) -> str:
        """A variable that holds a rank-0 constant."""
        self.count += 1
        name = f"k{self.count}"
        self.lines.append(f"const {memory_type(value.dtype)} {name} = {self.scalar(value)};")
        return f"&{name}"

    def address(self, value: Value) -> str:
        """Where a value lies, if need be in a new variable."""
        if value.shape != ():
            return self.pointer(value)
        base = self.schedule.views[value].base
        return f"&{self.names[base]}" if base in self.names else self._address(value)

    def scalar(self, value: Value) -> str:
        """A rank-0 value as an expression."""
        view = self.schedule.views[value]
        if view.base in self.names:
            return self.names[view.base]
        if view.base in self.schedule.constants and view.base.shape == ():
            return literal(self.schedule.constants[view.base].item(), value.dtype)
        if view.base in self.schedule.iotas:
            return f"({local_type(value.dtype)}){view.offset}"
        stored = f"{self.base_pointer(value)}[{view.offset}]"
        if value.dtype.value == "bool":
            return f"({from_memory(value.dtype, stored)})"
        return stored

    def scratch(self, call: Call, kind: str) -> str:
        """The working memory of a call."""
        if call not in self.plan.scratch:
            return "0"
        return f"({kind} *)(arena + {self.plan.scratch[call]})"

    # -- steps

    def block(self, schedule: Schedule) -> None:
        """Writes the steps of a block."""
        before, self.schedule = self.schedule, schedule
        for step in schedule.steps:
            if isinstance(step, Loop) and step.blank:
                continue
            if isinstance(step, Loop):
                self._timed(step, partial(self._loop, step))
            else:
                self._timed(step, partial(self._call, step))
        self.schedule = before

    def _timed(self, step: Loop | Call, write: Callable[[], None]) -> None:
        """Writes a step between two looks at the clock; a step with regions is its steps."""
        if self.unit.times is None or (isinstance(step, Call) and _is_not_timed(step)):
            write()
            return
        k = len(self.unit.times)
        self.unit.times.append(step)
        self.lines.append(f"const int64_t dl_begun_{k} = dl_now();")
        write()
        self.lines.append(f"dl_times[{k}] += dl_now() - dl_begun_{k}; dl_counts[{k}]++;")

    def _comment(self, ops: Sequence[Op]) -> None:
        names = list(dict.fromkeys(op.name for op in ops)) or ["copy"]
        places = dict.fromkeys(line_of(op.locs) for op in ops if op.locs)
        text = ", ".join(names)
        if places:
            text += f" ({', '.join(list(places)[:4])})"
        self.lines.append(f"/* {_plain(text)} */")

    def _declare(self, value: Value) -> None:
        """A variable that a kernel writes through a pointer."""
        self.lines.append(f"{memory_type(value.dtype)} {self.local(value)};")

    def _loop(self, loop: Loop) -> None:
        self.groups += 1
        first = [call.op for call in (loop.fused, loop.product) if call is not None]
        self._comment([*first, *loop.ops, *loop.reductions])
        for r in loop.reductions:
            if is_scalar(r.result):
                self._declare(r.result)
        made = None if loop.product is None else loop.product.op.result
        bases = [v for v in loop.loads if self.schedule.views[v].base is not made]
        stored = [*(copy for copy, _ in loop.stores), *(r.result for r in loop.reductions)]
        place, literals = self.memory_of(bases, stored)
        writer = LoopWriter(self.schedule, loop, place, literals)
        if loop.product is not None and loop.product.op.name == "dot":
            self._product_loop(loop.product, writer, place)
            return
        if loop.product is not None:
            self._convolution_loop(loop.product, writer, place)
            return
        name = self.unit.function("loop", writer.write())
        for header in sorted(writer.headers):
            self.unit.need(header)
        if writer.cut is None:
            arguments = [
                place[a.base] if a.is_pointer else self.scalar(a.base) for a in writer.arguments
            ]
            self.lines.append(f"{name}({', '.join(arguments)});")
            return
        self.unit.need("pool")
        part = self.unit.function("part", part_of(name, writer))
        context = f"(void *)context{self.context(writer, place)}"
        self.lines.append(f"dl_parallel({writer.cut.chunks}, {part}, {context}, 0, 0);")

    def memory_of(
        self, values: Iterable[Value], stored: Sequence[Value] = ()
    ) -> tuple[dict[Value, str], dict[Value, str]]:
        """Where the bases lie that a group reads or stores; and those that are constant numbers."""
        place: dict[Value, str] = {}
        literals: dict[Value, str] = {}
        for base in dict.fromkeys((*(self.schedule.views[v].base for v in values), *stored)):
            if base in self.schedule.constants and base.shape == ():
                literals[base] = self.scalar(base)
            elif base not in self.schedule.iotas and (base.shape != () or base in stored):
                place[base] = self.pointer(base)
        return place, literals

    def _product_loop(self, call: Call, writer: LoopWriter, place: Mapping[Value, str]) -> None:
        """A product whose tiles a loop takes as they are computed."""
        p = product(call.op, *(self.schedule.views[v] for v in call.operands))
        fused = writer.loop.fused
        plain = call not in self.packed and call.expands is None
        scaled = self._descent(writer.loop, place) if plain else None
        if scaled is not None and fused is not None:
            self.lines.append(both_gradients(self, call, fused, *scaled))
            return
        if fused is not None:
            self.lines += KERNELS["dot"](self, fused)
        if scaled is not None:
            self.lines.append(product_added(self, call, p, *scaled))
            return
        turned = p.bk == 1 and p.bn != 1 and p.m <= TURNED_MAX
        name = self.unit.function("tile", writer.write_tile(call.op.result, p.n, turned))
        name = self.unit.function("after", after_of(name, writer))
        n = self.context(writer, place)
        self.lines.append(f"const dl_target target{n} = {{0, 0, {name}, context{n}}};")
        self.lines.append(product_into(self, call, p, f"&target{n}"))

    def _convolution_loop(self, call: Call, writer: LoopWriter, place: Mapping[Value, str]) -> None:
        """A convolution whose rows a loop takes as they are computed."""
        strips = strips_of(writer.loop, call.op.result, self.schedule.views)
        assert strips is not None, "the loop runs over strips"
        name = self.unit.function("loop", writer.write_strips(call.op.result, strips))
        name = self.unit.function("then", then_of(name, writer, strips.rows))
        for header in sorted(writer.headers):
            self.unit.need(header)
        n = self.context(writer, place)
        self.lines.append(f"const dl_then then{n} = {{{name}, context{n}}};")
        self.lines += conv(self, call, f"&then{n}")

    def context(self, writer: LoopWriter, place: Mapping[Value, str]) -> int:
        """Declares an array of what a loop's function is given; its number."""
        context = [
            place[a.base] if a.is_pointer else self.address(a.base) for a in writer.arguments
        ]
        self.count += 1
        given = ", ".join(context) or "0"
        self.lines.append(f"const void *const context{self.count}[] = {{{given}}};")
        return self.count

    def _descent(self, loop: Loop, place: Mapping[Value, str]) -> tuple[str, str] | None:
        """Memory and factor of a loop that updates a matrix in place: W -+ rate * (product)."""
        found = descent(loop, self.schedule.source)
        if found is None or loop.stores != [(loop.ops[1].result,) * 2]:
            return None
        factor, matrix = self.schedule.views[found.factor].base, self.schedule.views[found.matrix]
        lies = place.get(matrix.base)
        whole = is_whole(matrix, found.matrix)
        if factor.shape != () or not whole or lies != place[loop.stores[0][0]]:
            return None
        return lies, f"{'-' if found.minus else ''}{self.scalar(found.factor)}"

    def _call(self, call: Call) -> None:
        op = call.op
        if op.results and all(_is_empty(r) for r in op.results):
            return
        self.calls += 1
        if is_elementwise(op):
            self._scalar_op(op, call.operands)
            return
        self._comment([op])
        if op.name in control_flow.WRITERS:
            control_flow.WRITERS[op.name](self, call)
        elif op.name in lists.WRITERS:
            lists.WRITERS[op.name](self, call)
        else:
            if op.name != "take":  # It defines its variable itself.
                for r in op.results:
                    if is_scalar(r):
                        self._declare(r)
            self.lines += KERNELS[op.name](self, call)

    def _scalar_op(self, op: Op, values: Sequence[Value]) -> None:
        """Arithmetic on rank-0 values. Operands become names: an expression may use one twice."""
        operands = []
        for v in values:
            text = self.scalar(v)
            if not text.isidentifier() and v not in self.schedule.constants:
                self.count += 1
                self.lines.append(f"const {local_type(v.dtype)} k{self.count} = {text};")
                text = f"k{self.count}"
            operands.append(text)
        if op.name == "threefry":
            names = [self.local(r) for r in op.results]
            self.lines.append(f"uint32_t {', '.join(names)};")
            pair = ", ".join(f"&{n}" for n in names)
            self.lines.append(f"dl_threefry({', '.join(operands)}, {pair});")
            return
        kind = local_type(op.result.dtype)
        text = expression(op, operands)
        self.lines.append(f"const {kind} {self.local(op.result)} = {text};")

    def moves(self, moves: Sequence[Move], source: Schedule) -> None:
        """Copies of tensors; the sources are values of that block."""
        for move in moves:
            before, self.schedule = self.schedule, source
            from_ = self.pointer(move.source)
            self.schedule = before
            to = self.place_pointer(move.target)
            self.lines.append(f"memcpy({to}, {from_}, {move.target.tensor.nbytes});")

    def place_pointer(self, value: Value) -> str:
        """Where a base lies that may be one of another block."""
        place = self.plan.places[value]
        if place.kind == "arena":
            return f"arena + {place.index}"
        assert place.kind == "result", "no copy goes to a parameter"
        self.used.add(place)
        return f"r{place.index}"


def _plain(text: str) -> str:
    """Text that ends no comment: names in a program are whatever its sender wrote."""
    return re.sub(r"[^\w .,:()\[\]-]", "?", text, flags=re.ASCII)[:200]


def _is_empty(value: Value) -> bool:
    return not isinstance(value.type, ListType) and value.tensor.size == 0


def _is_not_timed(call: Call) -> bool:
    return bool(call.bodies) or is_elementwise(call.op)


def _types(function: Function) -> list[Type]:
    return [r.type for op in function.body.walk() for r in op.results]


#: Every operation is rounded: compilers would make one instruction of a product and a sum, and GCC
#: 12, where it makes vectors of two numbers of straight code, leaves out f64's rounding to f32.
_STRICT = """#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("fp-contract=off", "no-tree-slp-vectorize")
#else
#pragma STDC FP_CONTRACT OFF
#endif
"""


def emit(
    functions: Mapping[str, Function],
    strict: bool = False,
    embed: bool = False,
    tiles: bool = True,
) -> tuple[str, dict[str, Program]]:
    """The C file of functions by entry, and their facts. strict: rounds each operation."""
    unit = Unit(embed, tiles)
    programs = {name: unit.add(name, function) for name, function in functions.items()}
    return (_STRICT if strict else "") + unit.text(), programs
