"""The text form of a program: what people read, and what parses back exactly.

    fn step(%0 w: f32[3], %1 lr: f32[]) -> (w: f32[3]) donates(0) {
      %2: f32[3] = broadcast(%1) {shape=[3], dims=[]} @ "sgd.py":4:9-4:15
      %3: f32[3], %4: i64[] = for(%5, %6, %2, %0, %7) {consts=1}
        body(%8: i64[], %9: f32[3], %10: f32[3], %11: i64[]) {
          ...
          return %12, %13
        }
      return %3
    }

Values are numbered through the whole function. Attributes: 3, 0.5, true, "text", f32 (an element
type), f32[3] and list<f32[3]> (types), [1, 2] (a tuple), f32[2](0.5, 1.0) (a constant) and
f32[99]<base64> (a large one, or one whose numbers would not read back exactly). Source spans follow
an @, innermost call last; lines and columns count from 1 and the end is exclusive.

`print_function` with locs=True and `parse_function` are each other's inverse.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..common.errors import Loc
from .ir import Array, Block, DType, Function, ListType, Op, TensorType, Value
from .parse import ParseError, elements, parse_function, region_label
from .primitives import PRIMITIVES

__all__ = ["ParseError", "parse_function", "print_block", "print_function"]

#: Constants of at most so many elements are written as numbers.
DECIMAL_SIZE_MAX = 16

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


def print_function(fn: Function, locs: bool = False) -> str:
    """The text of a function; with its source spans when `locs`."""
    return Printer(locs).function(fn)


def print_block(block: Block, locs: bool = False) -> str:
    """The text of a block alone, for people."""
    printer = Printer(locs)
    return "\n".join(printer.block("block", block, "")) + "\n"


class Printer:
    """Writes programs; `cli.programs.listing` writes more next to them."""

    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.next = 0

    def function(self, fn: Function) -> str:
        numbers = self._number(fn.body.params)
        params = ", ".join(
            f"{number}{_name(name)}: {p.type}"
            for number, name, p in zip(
                numbers.values(), fn.param_names, fn.body.params, strict=True
            )
        )
        results = ", ".join(
            f"{_name(name).strip()}: {r.type}" if name else str(r.type)
            for name, r in zip(fn.result_names, fn.body.results, strict=True)
        )
        donated = f" donates({', '.join(map(str, sorted(fn.donated)))})" if fn.donated else ""
        head = f"fn{_name(fn.name)}({params}) -> ({results}){donated} {{"
        lines = [head, *self._lines(fn.body, numbers, "  "), "}", ""]
        return "\n".join(lines)

    def block(self, label: str, block: Block, indent: str) -> Iterator[str]:
        numbers = self._number(block.params)
        params = ", ".join(f"{n}: {v.type}" for v, n in numbers.items())
        yield f"{indent}{label}({params}) {{"
        yield from self._lines(block, numbers, indent + "  ")
        yield f"{indent}}}"

    def _number(self, values: Sequence[Value]) -> dict[Value, str]:
        numbers = {}
        for v in values:
            numbers[v] = f"%{self.next}"
            self.next += 1
        return numbers

    def _lines(self, block: Block, numbers: dict[Value, str], indent: str) -> Iterator[str]:
        for op in block.ops:
            yield indent + self._op(op, numbers)
            for i, region in enumerate(op.regions):
                yield from self.block(region_label(op.name, i), region, indent + "  ")
        yield f"{indent}return {', '.join(numbers[v] for v in block.results)}".rstrip()

    def _op(self, op: Op, numbers: dict[Value, str]) -> str:
        operands = ", ".join(numbers[v] for v in op.operands)
        made = self._number(op.results)
        numbers.update(made)
        results = ", ".join(f"{n}: {v.type}" for v, n in made.items())
        text = f"{results} = " if results else ""
        text += f"{op.name}({operands})"
        if op.attrs:
            keys = _ordered(op)
            text += f" {{{', '.join(f'{k}={_attribute(op.attrs[k])}' for k in keys)}}}"
        if self.locs and op.locs:
            text += f" @ {' '.join(map(_loc, op.locs))}"
        return text


def _name(name: str) -> str:
    if not name:
        return ""
    return f" {name}" if _PLAIN_NAME.match(name) else f" {json.dumps(name)}"


def _ordered(op: Op) -> list[str]:
    """The attributes' names, in the order of the primitive's row."""
    row = PRIMITIVES.get(op.name)
    known = [k for k in row.attrs if k in op.attrs] if row is not None else []
    return known + sorted(op.attrs.keys() - set(known))


def _loc(loc: Loc) -> str:
    start, end = f"{loc.line}:{loc.column + 1}", f"{loc.end_line}:{loc.end_column + 1}"
    return f"{json.dumps(loc.file)}:{start}-{end}"


def _attribute(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.value
    if isinstance(value, TensorType | ListType):
        return str(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_attribute, value))}]"
    raise TypeError(f"an attribute cannot be a {type(value).__name__}")


def _float(value: float) -> str:
    text = repr(value)
    return text if any(c in text for c in ".ni") else text.replace("e", ".0e")


def _array(array: Array) -> str:
    kind = TensorType.of(array)
    if array.size <= DECIMAL_SIZE_MAX:
        words = [_number(x) for x in array.reshape(-1)]
        if elements(words, kind).tobytes() == array.tobytes():
            return f"{kind}({', '.join(words)})"
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return f"{kind}<{base64.b64encode(data).decode()}>"


def _number(x: np.generic) -> str:
    if x.dtype == np.bool_:
        return "true" if x else "false"
    if not DType.of(x.dtype).is_float:
        return str(int(x))
    short = str(x)  # the shortest that reads back in its own width
    return _float(float(short)) if float(short) == float(x) else short
