"""Whole Jacobians: one derivative along each direction of a basis, all at once by `vmap`.

    jacfwd   jvp over the identity of the arguments: as many lanes as the arguments have numbers
    jacrev   vjp over the identity of the result: as many lanes as the result has numbers

What does not depend on the direction, the function's own value among it, is computed once. The
Hessian is jacfwd of jacrev.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import tree
from ...complex_numbers import Complex
from ...ir import Block, Builder, DType, TensorType, Value
from ...traced import Transform
from .. import complexes, operators
from ..containers import containers
from . import gradients

if TYPE_CHECKING:
    from ..specialise import Specialiser


def call(s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The Jacobian by args[argnums].

    A tree like the result, whose leaves are trees like the argument (or tuples of them) of arrays
    [*result's shape, *argument's shape].
    """
    places = gradients.places_of(s, t, args)
    complexes.refuse(s, tuple(args[k] for k in places), f"`dl.{t.kind}`")
    closed = gradients.close_over(s, t.f, args, places, kwargs, False)
    if _is_complex(closed.structure):
        text = f"`dl.{t.kind}` does not take functions with complex results"
        raise s.error("DL117", text, "return the real and imaginary parts, or use dl.jvp or dl.vjp")
    outs = [
        closed.block.results[leaf.index]
        for leaf in closed.leaves
        if isinstance(leaf, gradients.Place)
    ]
    if len(outs) != len(closed.leaves) or not all(v.dtype.is_float for v in outs):
        text = "only floating-point results have a Jacobian"
        raise s.error("DL117", text, "return the floats alone, or use dl.jvp or dl.vjp")
    build = _forward if t.kind == "jacfwd" else _reverse
    count, own = len(closed.wrt), closed.block
    if closed.scope.changed:  # Its errors have no derivative.
        results = own.results[: -len(closed.scope.changed)]
        own = Block(own.params, own.ops, results)
    block = operators.python(s, lambda: build(own, count, outs), "the derivative")
    made = iter(s.scope.inline(block, closed.operands))
    if closed.scope.changed:
        closed.faults(s, s.scope.inline(closed.block, closed.operands))
    rows = []
    for _ in outs:
        parts = [x.like(next(made)) for x in closed.wrt]
        row = containers.rebuilt(s, closed.arguments, parts)
        rows.append(row[0] if isinstance(t.argnums, int) else row)
    return tree.unflatten(closed.structure, rows)


def _is_complex(structure: tree.Structure) -> bool:
    return structure.kind is Complex or any(map(_is_complex, structure.children))


def _basis(b: Builder, types: Sequence[TensorType]) -> list[Value]:
    """The identity over all numbers of these types: for each type [lanes, *shape]."""
    lanes, first, out = sum(t.size for t in types), 0, []
    for t in types:
        kind = TensorType(DType.I64, (lanes, t.size))
        row = b("iota", dtype=DType.I64, shape=kind.shape, axis=0)
        column = b("iota", dtype=DType.I64, shape=kind.shape, axis=1)
        hit = b("eq", row, b("add", column, b.full(kind, first)))
        ones = b("convert", hit, dtype=t.dtype)
        out.append(b("reshape", ones, shape=(lanes, *t.shape)))
        first += t.size
    return out


def _along(b: Builder, derivative: Block, fixed: int, types: Sequence[TensorType]) -> list[Value]:
    """A derivative's results over the basis of its last parameters; [lanes, ...] each."""
    from ...transforms.vmap import vmap

    lanes = sum(t.size for t in types)
    flags = [False] * fixed + [True] * len(types)
    many, spread = vmap(derivative, flags, lanes)
    made = b.inline(many, [*b.params, *_basis(b, types)])
    return [
        v
        if f
        else b("broadcast", v, shape=(lanes, *v.shape), dims=tuple(range(1, len(v.shape) + 1)))
        for v, f in zip(made, spread, strict=True)
    ]


def _parts(b: Builder, value: Value, types: Sequence[TensorType]) -> list[Value]:
    """The rows of [lanes, ...] that belong to each type, as [*its shape, ...]."""
    out, first, rest = [], 0, value.shape[1:]
    for t in types:
        start, stop = (first, *(0,) * len(rest)), (first + t.size, *rest)
        rows = b("slice", value, start=start, stop=stop, step=(1,) * len(start))
        out.append(b("reshape", rows, shape=(*t.shape, *rest)))
        first += t.size
    return out


def _reverse(block: Block, count: int, outs: Sequence[Value]) -> Block:
    """The parameters to, for each result and each argument, [*result, *argument]."""
    from ...passes.simplify import simplify
    from ...transforms.vjp import vjp

    derivative = vjp(simplify(block), range(count))
    b = Builder([p.type for p in block.params])
    types = [v.tensor for v in outs]
    made = _along(b, derivative, len(block.params), types)[len(block.results) :]
    by_argument = [_parts(b, v, types) for v in made]
    return simplify(b.finish([row[k] for k in range(len(outs)) for row in by_argument]))


def _forward(block: Block, count: int, outs: Sequence[Value]) -> Block:
    from ...passes.simplify import simplify
    from ...transforms.jvp import jvp

    derivative = jvp(simplify(block), range(count))
    b = Builder([p.type for p in block.params])
    types = [p.tensor for p in block.params[:count]]
    made = _along(b, derivative, len(block.params), types)[len(block.results) :]
    results = []
    for v, out in zip(made, outs, strict=True):
        for part, t in zip(_parts(b, v, types), types, strict=True):
            # [*argument, *result] -> [*result, *argument]
            inner, rank = len(t.shape), len(t.shape) + len(out.shape)
            perm = (*range(inner, rank), *range(inner))
            same = perm == tuple(range(rank))
            results.append(part if same else b("transpose", part, perm=perm))
    return simplify(b.finish(results))
