"""A program as a graph of values, as cutting it sees it.

Values are numbered: parameters first, then the results of the top level's operations, in order. An
operation with regions (a loop, a branch) is one node. Parameters are of three kinds:

    resident   every tier has it: the weights of a program that is only run.
    owned      one tier has it, and it never travels: a weight that is trained. All that reads it
               runs there.
    input      the device has it, and it travels to where it is needed. All others.

An operation *moves* when it depends on an input or on something owned; the others give the same on
every tier, so no value of theirs ever crosses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...compiler.ir import Block, Function, ListType, Value


@dataclass(frozen=True, slots=True)
class Graph:
    """The numbers and edges of a function."""

    function: Function
    """The function."""
    resident: frozenset[int]
    """Numbers of the parameters that every tier has."""
    owned: frozenset[int]
    """Numbers of the parameters that one tier has."""
    values: tuple[Value, ...]
    """By number."""
    producer: tuple[int, ...]
    """By value's number, the operation that gives it; -1: none, it is a parameter."""
    operands: tuple[tuple[int, ...], ...]
    """By operation, the numbers of the values that it reads, each once, in order."""
    gives: tuple[tuple[int, ...], ...]
    """By operation, the numbers of its results."""
    consumers: tuple[tuple[int, ...], ...]
    """By value's number, the operations that read it, in order; only those that move."""
    results: tuple[int, ...]
    """The numbers of the function's results."""
    moves: tuple[bool, ...]
    """By operation, whether it depends on an input or on something owned."""
    fed: tuple[bool, ...]
    """By operation, whether it depends on an input."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the parameters that are inputs."""
        count = len(self.function.body.params)
        return tuple(i for i in range(count) if i not in self.resident and i not in self.owned)

    def shared(self, value: int) -> bool:
        """Whether every tier can have a value without its travelling."""
        op = self.producer[value]
        return value in self.resident if op < 0 else not self.moves[op]

    def travels(self, value: int) -> bool:
        """Whether a value may cross between tiers: a tensor that is not owned."""
        return not isinstance(self.values[value].type, ListType) and value not in self.owned


def values_of(body: Block) -> tuple[Value, ...]:
    """A block's values by number."""
    return (*body.params, *(r for op in body.ops for r in op.results))


def graph_of(function: Function, resident: Collection[int], owned: Collection[int] = ()) -> Graph:
    """The graph of a function, some of whose parameters are resident or owned.

    Raises ValueError for a parameter that the function has not, or that is said to be both.
    """
    body, values = function.body, values_of(function.body)
    held, own = frozenset(resident), frozenset(owned)
    if held & own:
        raise ValueError(f"parameters {sorted(held & own)} are both resident and owned")
    if any(not 0 <= i < len(body.params) for i in held | own):
        raise ValueError(f"{function.name} has {len(body.params)} parameters, not those given")
    producer = [-1] * len(body.params)
    gives = []
    for n, op in enumerate(body.ops):
        gives.append(tuple(range(len(producer), len(producer) + len(op.results))))
        producer.extend([n] * len(op.results))
    number = {v: i for i, v in enumerate(values)}
    operands = tuple(tuple(dict.fromkeys([number[v] for v in op.operands])) for op in body.ops)
    moves = _reached(body, operands, set(range(len(body.params))) - held)
    fed = _reached(body, operands, set(range(len(body.params))) - held - own)
    consumers: list[list[int]] = [[] for _ in values]
    for n, read in enumerate(operands):
        if moves[n]:
            for v in read:
                consumers[v].append(n)
    return Graph(
        function=function,
        resident=held,
        owned=own,
        values=values,
        producer=tuple(producer),
        operands=operands,
        gives=tuple(gives),
        consumers=tuple(map(tuple, consumers)),
        results=tuple(number[r] for r in body.results),
        moves=moves,
        fed=fed,
    )


def _reached(
    body: Block, operands: Sequence[Sequence[int]], params: Collection[int]
) -> tuple[bool, ...]:
    """By operation, whether it depends on one of these parameters."""
    reached = [i in params for i in range(len(body.params))]
    flags = []
    for op, read in zip(body.ops, operands, strict=True):
        flags.append(any(reached[v] for v in read))
        reached.extend([flags[-1]] * len(op.results))
    return tuple(flags)


def depends(function: Function, resident: Collection[int]) -> list[bool]:
    """Whether each operation of the top level has a tier.

    It has one if it depends on a parameter that is not resident. The label of the others is
    `cut.SHARED`.
    """
    return list(graph_of(function, resident).moves)


def bound_pairs(graph: Graph) -> list[tuple[int, int]]:
    """Pairs of operations on one tier: those of a list, and the readers of owned values."""
    pairs = []
    for value, readers in enumerate(graph.consumers):
        if graph.shared(value) or graph.travels(value) or not readers:
            continue
        first = graph.producer[value] if value not in graph.owned else readers[0]
        pairs += [(first, n) for n in readers if n != first and first >= 0]
    return pairs
