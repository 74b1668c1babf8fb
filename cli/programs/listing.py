"""Listings of programs: the IR next to its source, with costs.

    fn loss(%0 w: f32[3], %1 x: f32[8,3], %2 y: f32[8]) -> (result: f32[]) {
      # loss.py:2   error = x @ w - y
      %3: f32[8] = dot(%1, %0) {...}                                          48 FLOP    32 B
      %4: f32[8] = sub(%3, %2)                                                 8 FLOP    32 B

A program can be listed as the front end read it (`trace`), after any pass (`delian ir passes`
lists them), or as the loops and calls that the native back end writes (`fuse`). At its end stand
the products and convolutions that native code leaves to plain loops, having no kernel for them.
Two programs are compared under names that say what a value is computed of, so that one operation
more does not rename the rest.
"""

from __future__ import annotations

import difflib
import hashlib
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.common.errors import Loc, line_of
from ...core.compiler.ir import Block, DType, Function, ListType, Op, Type, Value, unshared
from ...core.compiler.passes.schedule import fuse, memory_plan
from ...core.compiler.passes.schedule.block_steps import Loop, Schedule
from ...core.compiler.passes.schedule.copied_tensors import copies
from ...core.compiler.primitives import PRIMITIVES
from ...core.compiler.primitives.control import block_cost
from ...core.compiler.text import Printer

#: Where figures stand, unless a line is longer.
COLUMN = 88
NAME_DIGITS = 5
#: What native code has kernels for, where it is of f32 or of halves, on which it computes in f32.
KERNELS = frozenset(
    f"{groups}{name}"
    for groups in ("", "grouped_")
    for name in ("conv", "conv_input_grad", "conv_weight_grad")
) | {"dot", "attention", "attention_grad"}


@dataclass(frozen=True, slots=True)
class Cost:
    """The static cost of a program."""

    flops: int
    """Operations of one run, a loop's body counted once."""
    bytes: int
    """Size of all results."""


def cost_of(function: Function) -> Cost:
    """What a program costs, loops counted as one round of each."""
    made = (r.type for op in function.body.walk() for r in op.results)
    return Cost(block_cost(function.body), sum(map(_bytes, made)))


def fallbacks(block: Block) -> list[Op]:
    """The products, convolutions and attention that native code computes in plain loops.

    Their numbers are neither f32 nor halves.
    """
    made = [op for op in block.walk() if op.name in KERNELS]
    types = [(op, op.results[0].dtype) for op in made]
    return [op for op, dtype in types if dtype is not DType.F32 and not dtype.is_half]


def _bytes(kind: Type) -> int:
    return 0 if isinstance(kind, ListType) else kind.nbytes


def listing(function: Function) -> str:
    """The program, each operation under the source line that it is from, with its cost."""
    return _Lister(locs=False).function(function) + _total(function)


def facts(function: Function) -> dict[str, Any]:
    """What a program takes, gives and costs, as plain data."""
    cost = cost_of(function)
    return {
        "takes": [str(kind) for kind in function.param_types],
        "gives": [str(kind) for kind in function.result_types],
        "operations": sum(1 for _ in function.body.walk()),
        "flops": cost.flops,
        "bytes": cost.bytes,
    }


def _total(function: Function) -> str:
    cost = cost_of(function)
    count = sum(1 for _ in function.body.walk())
    lines = [f"# {count} operations, {cost.flops:,} FLOP a round, {cost.bytes:,} B of results"]
    numbers = _numbered(function)
    lines += [
        f"# {numbers[y]}: {op.name} of {y.dtype.value} is left to plain loops"
        for op in fallbacks(function.body)
        for y in op.results[:1]
    ]
    return "\n".join([*lines, ""])


class _Lister(Printer):
    def __init__(self, locs: bool) -> None:
        super().__init__(locs)
        self._at: tuple[str, int] | None = None

    def _lines(self, block: Block, numbers: dict[Value, str], indent: str) -> Iterator[str]:
        lines = super()._lines(block, numbers, indent)
        for op in block.ops:
            yield from self._source(op.locs, indent)
            yield _beside(next(lines), op)
            # What follows until the next operation of this block is its regions.
            for _ in op.regions:
                depth = 0
                for line in lines:
                    yield line
                    depth += line.endswith("{") - (line.strip() == "}")
                    if depth == 0:
                        break
            if op.regions:
                self._at = None
        yield from lines

    def _source(self, locs: Sequence[Loc], indent: str) -> Iterator[str]:
        """The user's line, where it is another than before.

        Of the function that was asked for, or in a bundle's program, where Delian's lines are
        around it, of the model or the algorithm.
        """
        loc = next((each for each in locs if not each.is_own()), locs[0] if locs else None)
        if loc is None or (loc.file, loc.line) == self._at:
            return
        self._at = loc.file, loc.line
        text = linecache.getline(loc.file, loc.line).strip()
        yield f"{indent}# {Path(loc.file).name}:{loc.line}   {text}".rstrip()


def _beside(line: str, op: Op) -> str:
    flops = PRIMITIVES[op.name].cost(op)
    size = sum(_bytes(r.type) for r in op.results)
    figures = f"{flops:>12,} FLOP {size:>12,} B"
    return f"{line:<{COLUMN}} {figures}"


def fused(function: Function) -> str:
    """The loops and calls that the program becomes, in the order in which they run.

    And which tensors it copies.
    """
    function = function.with_body(unshared(function.body))
    numbers = _numbered(function)
    schedule = fuse.schedule(function.body)
    lines = [f"fn {function.name} {{"]
    lines += _schedule(schedule, numbers, "  ")
    return "\n".join([*lines, "}", *_copies(schedule), ""]) + _total(function)


def _copies(schedule: Schedule) -> Iterator[str]:
    """A line for each tensor that is copied as a whole."""
    plan = memory_plan.plan(schedule, lambda _: memory_plan.Place("constant", 0), lambda *_: 0)
    for one in copies(schedule, plan):
        where = f" of {one.op.name} ({line_of(one.op.locs)})" if one.op else ""
        yield f"# copy of {one.type}, within {one.depth} loops: {one.when}{where}"


def _numbered(function: Function) -> dict[Value, str]:
    """The names that `print_function` gives."""
    names: dict[Value, str] = {}

    def block(of: Block) -> None:
        for value in of.params:
            names[value] = f"%{len(names)}"
        for op in of.ops:
            for value in op.results:
                names[value] = f"%{len(names)}"
            for region in op.regions:
                block(region)

    block(function.body)
    return names


def _schedule(schedule: Schedule, numbers: dict[Value, str], indent: str) -> Iterator[str]:
    for step in schedule.steps:
        if isinstance(step, Loop):
            shape = "x".join(map(str, step.extents)) or "1"
            taken = step.product and step.product.op
            before = f" of {numbers[taken.result]} = {taken.name}" if taken else ""
            before += f", after {_short(step.fused.op, numbers)}" if step.fused else ""
            yield f"{indent}loop {shape}{before} {{"
            for op in [*step.ops, *step.reductions]:
                yield f"{indent}  {_short(op, numbers)}"
            for copy, value in step.stores:
                if copy is not value:  # It has no name in the program.
                    numbers[copy] = f"copy of {numbers[value]}"
            stored = ", ".join(dict.fromkeys(numbers[v] for v, _ in step.stores))
            if stored:
                yield f"{indent}  store {stored}"
            yield f"{indent}}}"
            continue
        kind = "window" if step.window else "place" if step.opens is not None else "call"
        yield f"{indent}{kind} {_short(step.op, numbers)}"
        for body in step.bodies:
            yield f"{indent}{{"
            yield from _schedule(body, numbers, indent + "  ")
            yield f"{indent}}}"


def _short(op: Op, numbers: dict[Value, str]) -> str:
    made = ", ".join(f"{numbers[r]}: {r.type}" for r in op.results)
    return f"{made} = {op.name}({', '.join(numbers[v] for v in op.operands)})"


def diff(a: Function, b: Function, names: tuple[str, str] = ("a", "b")) -> str:
    """What two programs compute differently, as a unified diff; empty where they are the same."""
    same = (replace(f, name="program") for f in (a, b))
    left, right = (_ContentPrinter(locs=False).function(f).splitlines() for f in same)
    return "\n".join(difflib.unified_diff(left, right, *names, lineterm="", n=2))


class _ContentPrinter(Printer):
    """Names a value by the hash of how it is computed."""

    def __init__(self, locs: bool) -> None:
        super().__init__(locs)
        self._computed: dict[Value, str] = {}

    def _number(self, values: Sequence[Value]) -> dict[Value, str]:
        return {v: self._computed.get(v) or f"%p{i}" for i, v in enumerate(values)}

    def _op(self, op: Op, numbers: dict[Value, str]) -> str:
        regions = "".join(
            "\n".join(_ContentPrinter(locs=False).block("", r, "")) for r in op.regions
        )
        attrs = ", ".join(f"{k}={op.attrs[k]!r}" for k in sorted(op.attrs))
        operands = ", ".join(numbers[v] for v in op.operands)
        content = f"{op.name}({operands}) {attrs} {regions}".encode()
        digest = hashlib.sha256(content).hexdigest()[:NAME_DIGITS]
        many = len(op.results) > 1
        for i, result in enumerate(op.results):
            self._computed[result] = f"%{digest}.{i}" if many else f"%{digest}"
        return super()._op(op, numbers)
