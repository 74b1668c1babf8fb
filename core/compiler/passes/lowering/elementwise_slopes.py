"""Slopes of elementwise functions as one factor each.

Reverse mode gives the derivative of y = f(x) as a chain of products and sums of what comes back, g,
and of values that f computed. All of these are then kept from the way forwards, four for a gelu.
But the chain is linear in g: element by element it is g times f'(x), and f'(x) can be computed
where f is, in the same loop; then it alone is kept.

    %5 = erf(%1)                              %5 = erf(%1)
    %6 = exp(%2)                              %6 = exp(%2)
    ...                                 =>    %d = add(mul(%1, %6), %5)
    %8 = dot(...)                             %8 = dot(...)
    %9 = mul(%8, %1)                          %9 = mul(%8, %d)
    %10 = mul(%9, %6)
    %11 = mul(%8, %5)
    %12 = add(%10, %11)

It is done where it leaves less to be kept. Products and sums then round in another order, which the
profile "fast" may: in the profile "reproducible" what comes back is no product of f32 matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir import Block, Builder, DType, Function, ListType, Op, Value
from ..dce import dce
from ..schedule.block_steps import is_elementwise

#: What comes back is the result of one of these, in whatever view; in f32 they sum as they like.
_SUMS = frozenset(
    ("dot", "conv", "conv_input_grad", "grouped_conv", "grouped_conv_input_grad", "attention_grad")
)
_VIEWS = frozenset(["reshape", "transpose"])
_LINEAR = frozenset(["mul", "add", "sub", "neg"])


def fuse_elementwise_derivatives(function: Function) -> Function:
    """The function with fewer values kept for derivatives; the same one where that is so."""
    body = _rewritten(function.body)
    return function if body is function.body else function.with_body(body)


def _rewritten(block: Block) -> Block:
    """The very block where there is nothing to gain."""
    regions = {op: tuple(_rewritten(r) for r in op.regions) for op in block.ops if op.regions}
    chains = _chains(block)
    if not chains and all(op.regions == new for op, new in regions.items()):
        return block
    roots = {root: chain for chain in chains for root in chain.roots}
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op in regions:
            op = Op(op.name, op.operands, op.results, op.attrs, regions[op], op.locs)
        root = op.results[0] if op.results else None
        if root is None or root not in roots:
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            chain = roots[root]
            slope = _slope(b, chain, root, mapping, {})
            assert slope is not None
            mapping[root] = b("mul", mapping[chain.given], slope)
    return dce(b.finish([mapping[r] for r in block.results]))


@dataclass(frozen=True, slots=True)
class _Chain:
    """What is linear in a value, element by element."""

    given: Value
    """The value."""
    makers: Mapping[Value, Op]
    """The operations that make what is linear in it, by their result."""
    roots: Sequence[Value]
    """The values of it that something else reads and that are worth a factor."""


def _chains(block: Block) -> list[_Chain]:
    maker = {r: op for op in block.ops for r in op.results}
    readers: dict[Value, list[Op]] = {}
    for op in block.ops:
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(op)
    seen = set(block.results)
    found = []
    comes = (op for op in block.ops if op.results and _comes_back(op, op.results[0], maker))
    given_bits = {op.results[0]: 1 << i for i, op in enumerate(comes)}
    # By a bit for each, which of them a value depends on.
    depends: dict[Value, int] = {}
    for op in block.ops:
        bits = 0
        for v in op.operands:
            bits |= depends.get(v, 0)
        depends.update((r, bits | given_bits.get(r, 0)) for r in op.results)
    for given, bit in given_bits.items():
        makers = _linear(given, bit, depends, readers)
        ends = [
            v
            for v in makers
            if v in seen or any(_made(r) not in makers for r in readers.get(v, ()))
        ]
        kept = {v: _kept(v, given, makers, maker, readers, seen) for v in ends}
        roots = [v for v in ends if len(kept[v]) > 1]
        rest = {leaf for v in ends if v not in roots for leaf in kept[v]}
        if roots and len(roots) + len(rest) < len(rest.union(*kept.values())):
            found.append(_Chain(given, makers, roots))
    return found


def _made(op: Op) -> Value | None:
    return op.results[0] if op.results else None


def _comes_back(op: Op, given: Value, maker: Mapping[Value, Op]) -> bool:
    if isinstance(given.type, ListType) or given.dtype is not DType.F32 or given.shape == ():
        return False
    while op.name in _VIEWS and op.operands[0] in maker:
        op = maker[op.operands[0]]
    return op.name in _SUMS


def _linear(
    given: Value, bit: int, depends: Mapping[Value, int], readers: Mapping[Value, Sequence[Op]]
) -> dict[Value, Op]:
    """What is `given`, element by element, times something that does not depend on it."""
    makers: dict[Value, Op] = {}
    grew = True
    while grew:
        grew = False
        for op in dict.fromkeys(r for v in (given, *makers) for r in readers.get(v, ())):
            if op.name not in _LINEAR or op.result in makers or op.result.shape != given.shape:
                continue
            linear = [v is given or v in makers for v in op.operands]
            free = [not depends.get(v, 0) & bit for v in op.operands]
            one_each = linear.count(True) == free.count(True) == 1
            if one_each if op.name == "mul" else all(linear):
                makers[op.result] = op
                grew = True
    return makers


def _kept(
    root: Value,
    given: Value,
    makers: Mapping[Value, Op],
    maker: Mapping[Value, Op],
    readers: Mapping[Value, Sequence[Op]],
    seen: set[Value],
) -> set[Value]:
    """The elementwise factors of a value that only it needs stored."""
    kept: set[Value] = set()
    work = [root]
    while work:
        value = work.pop()
        if value is given:
            continue
        for v in makers[value].operands:
            if v is given or v in makers:
                work.append(v)
            elif (
                v in maker
                and v not in seen
                and v.dtype is DType.F32
                and is_elementwise(maker[v])
                and all(is_elementwise(r) for r in readers[v])
            ):
                kept.add(v)
    return kept


def _slope(
    b: Builder,
    chain: _Chain,
    value: Value,
    mapping: Mapping[Value, Value],
    done: dict[Value, Value | None],
) -> Value | None:
    """By what `given` is multiplied; None for one."""
    if value is chain.given:
        return None
    if value not in done:
        done[value] = _slope_of(b, chain, value, mapping, done)
    return done[value]


def _slope_of(
    b: Builder,
    chain: _Chain,
    value: Value,
    mapping: Mapping[Value, Value],
    done: dict[Value, Value | None],
) -> Value:
    op = chain.makers[value]
    if op.name == "mul":
        inside = [v is chain.given or v in chain.makers for v in op.operands]
        carried, factor = op.operands if inside[0] else op.operands[::-1]
        slope = _slope(b, chain, carried, mapping, done)
        return mapping[factor] if slope is None else b("mul", slope, mapping[factor])
    one = b.full(value.tensor, 1.0)
    parts = [_slope(b, chain, v, mapping, done) for v in op.operands]
    return b(op.name, *(one if part is None else part for part in parts))
