"""The reference back end: a program run with NumPy, an operation at a time.

Slow, plain, and the judge of the other back ends.

A block is first laid out once as a plan: each value has a slot in a frame, each operation is a
function with the slots that it reads, writes and frees. A region is a plan of its own, run by the
step that holds it, so the depth of Python's stack is the depth of nesting, never a trip count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...common.errors import DelianError
from .. import debugging
from ..ir import Array, Block, Function, ListType, Op, TensorType, Value
from ..primitives import PRIMITIVES
from ..primitives.halves import reference_of
from ..primitives.lists import Stack
from ..primitives.table import Attrs

_Run: TypeAlias = Callable[[Sequence[Any], Attrs], Sequence[Any]]


class _Plan:
    """A block laid out for running. It holds no state of a run, so threads may share it."""

    __slots__ = ("params", "results", "size", "steps")

    def __init__(self, block: Block) -> None:
        slots: dict[Value, int] = {}
        for param in block.params:
            slots[param] = len(slots)
        last_use: dict[Value, int] = {}
        for n, op in enumerate(block.ops):
            last_use.update(dict.fromkeys(op.operands, n))
            last_use.update({v: max(n, last_use.get(v, n)) for v in op.results})
            for result in op.results:
                slots[result] = len(slots)
        for result in block.results:
            last_use.pop(result, None)
        freed: list[list[int]] = [[] for _ in block.ops]
        for value, n in last_use.items():
            freed[n].append(slots[value])
        self.params = len(block.params)
        self.size = len(slots)
        self.results = [slots[v] for v in block.results]
        self.steps = [
            (
                _watched(op),
                [slots[v] for v in op.operands],
                [slots[v] for v in op.results],
                op.attrs,
                freed[n],
            )
            for n, op in enumerate(block.ops)
        ]

    def run(self, args: Sequence[Any]) -> list[Any]:
        assert len(args) == self.params, f"{len(args)} arguments for {self.params} parameters"
        frame: list[Any] = [*args, *[None] * (self.size - self.params)]
        for run, operands, results, attrs, freed in self.steps:
            values = run([frame[i] for i in operands], attrs)
            for slot, value in zip(results, values, strict=True):
                frame[slot] = value
            for slot in freed:
                frame[slot] = None
        return [frame[i] for i in self.results]


def _watched(op: Op) -> _Run:
    return debugging.watched(op, _runner(op)) if debugging.on else _runner(op)


def _runner(op: Op) -> _Run:
    if op.name in _REGIONS:
        return _REGIONS[op.name](op)
    reference = PRIMITIVES[op.name].reference
    assert reference is not None, op.name
    return reference_of(op, reference)


def _if(op: Op) -> _Run:
    then, otherwise = (_Plan(region) for region in op.regions)

    def run(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        return (then if args[0] else otherwise).run(args[1:])

    return run


def _switch(op: Op) -> _Run:
    cases = [_Plan(region) for region in op.regions]

    def run(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        return cases[min(max(int(args[0]), 0), len(cases) - 1)].run(args[1:])

    return run


def _while(op: Op) -> _Run:
    cond, body = (_Plan(region) for region in op.regions)

    def run(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        consts, carries = args[: attrs["consts"]], args[attrs["consts"] :]
        while cond.run([*consts, *carries])[0]:
            carries = body.run([*consts, *carries])
        return carries

    return run


def _for(op: Op) -> _Run:
    body = _Plan(op.regions[0])

    def run(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        lo, hi, *rest = args
        consts, carries = rest[: attrs["consts"]], rest[attrs["consts"] :]
        for i in range(int(lo), int(hi)):
            carries = body.run([np.array(i, np.int64), *consts, *carries])
        return carries

    return run


def _custom_vjp(op: Op) -> _Run:
    primal = _Plan(op.regions[0])
    return lambda args, attrs: primal.run(args)


_REGIONS: dict[str, Callable[[Op], _Run]] = {
    "if": _if,
    "switch": _switch,
    "while": _while,
    "for": _for,
    "custom_vjp": _custom_vjp,
}


def run_block(block: Block, args: Sequence[Any]) -> list[Any]:
    """The results: ndarrays and `Stack`s. They may share memory with arguments."""
    return _Plan(block).run(args)


def check_arguments(function: Function, args: Sequence[Any]) -> None:
    """Raises DelianError for arguments that do not fit the function's parameters."""
    types = function.param_types
    if len(args) != len(types):
        raise DelianError(f"{function.name} takes {len(types)} arguments, not {len(args)}")
    for i, (arg, type_) in enumerate(zip(args, types, strict=True)):
        if isinstance(type_, ListType):
            if not isinstance(arg, Stack):
                raise DelianError(f"{_named(function, i)} must be a stack, not {type(arg)}")
        elif not isinstance(arg, np.ndarray):
            raise DelianError(
                f"{_named(function, i)} must be an array {type_}, not {type(arg).__name__}",
                f"numpy.asarray(value, numpy.{type_.dtype.numpy.name})",
            )
        elif arg.dtype != type_.dtype.numpy:
            raise DelianError(
                f"{_named(function, i)} must be {type_}, not {arg.dtype.name}",
                f"convert it: .astype(numpy.{type_.dtype.numpy.name})",
            )
        elif arg.shape != type_.shape:
            raise DelianError(
                f"{_named(function, i)} must have shape {list(type_.shape)}, not {list(arg.shape)}",
                "the program was compiled for fixed shapes; compile it again for others",
            )


def check_out(function: Function, out: Sequence[Array]) -> None:
    """Refuses result buffers that the results cannot be written into. Raises DelianError."""
    types = function.result_types
    if len(out) != len(types):
        raise DelianError(f"{function.name} gives {len(types)} results, out has {len(out)}")
    for i, (array, type_) in enumerate(zip(out, types, strict=True)):
        good = (
            isinstance(type_, TensorType)
            and isinstance(array, np.ndarray)
            and array.dtype == type_.dtype.numpy
            and array.shape == type_.shape
            and array.flags.c_contiguous
            and array.flags.writeable
        )
        if not good:
            name = function.result_names[i]
            raise DelianError(
                f"{function.name}: out[{i}] ({name}) must be a writable C-contiguous array {type_}"
            )


def _named(function: Function, i: int) -> str:
    return f"{function.name}: argument {i} ({function.param_names[i]})"


class ReferenceProgram:
    """A function that NumPy runs. Safe to call from several threads at once."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._plan = _Plan(function.body)

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Runs it, into `out` where given. Raises DelianError for arguments that do not fit."""
        check_arguments(self.function, args)
        if out is not None:
            check_out(self.function, out)
        # Copies: a result may be an argument, a constant or a view of one; a buffer may be an
        # argument. (A stack, which no user's function gives, is never written to.)
        results: tuple[Any, ...] = tuple(
            r if isinstance(r, Stack) else np.array(r, order="C") for r in self._plan.run(args)
        )
        if out is None:
            return results
        for buffer, result in zip(out, results, strict=True):
            buffer[...] = result
        return tuple(out)
