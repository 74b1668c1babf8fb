"""Differentiation inside a program: `grad`, `value_and_grad`, `vjp`, `jvp` of any function.

The function is specialised in a scope of its own with its differentiated leaves as parameters. What
else it uses, the tensors that it closes over among them, is free in that scope; closing it makes
those parameters too, so the block is a function of everything, and an outer derivative flows
through all of it. Then the transform runs (IR -> IR), the result is simplified and inlined where
the call stood. So they nest to any depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import tree
from ...ir import Block, Builder, TensorType, Value
from ...traced import Transform
from .. import calls, complexes, operators, ragged
from ..containers import containers
from ..flow import raises
from ..numpy import arithmetic
from ..scope import Scope, close, free_values
from ..values import Tensor, describe, is_number
from . import custom_derivatives, vmap_calls

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Pullback:
    """What `vjp` gives with the result: takes its cotangents to those of the arguments."""

    __slots__ = ("closed",)

    def __init__(self, closed: Closed) -> None:
        self.closed = closed

    def __call__(self, *args: Any) -> Any:
        """There so that `callable` takes it; only a specialiser can run it."""
        raise TypeError("this pullback belongs to a program that is being compiled")


class Pushforward(Pullback):
    """What `linearize` gives with the result: takes the arguments' tangents to its own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """A function at given arguments, as a closed block."""

    block: Block
    """(differentiated leaves..., free values...) -> tensor leaves of the result."""
    operands: tuple[Value, ...]
    """What the block's parameters are at the call."""
    wrt: tuple[Tensor, ...]
    """The differentiated leaves themselves."""
    arguments: tree.Structure
    """Structure of the differentiated arguments, a tuple."""
    leaves: tuple[Any, ...]
    """Leaves of the result; a tensor's is its place among the block's results."""
    structure: tree.Structure
    """Of the result."""
    scope: Scope
    """Where its errors are (`raises.given`): the last results of the block."""

    def faults(self, s: Specialiser, values: Sequence[Value]) -> None:
        """Takes the errors of a call that gave these values."""
        raises.taken(s, self.scope, values[len(values) - len(self.scope.changed) :])

    def result(self, s: Specialiser, values: Sequence[Value]) -> Any:
        leaves = [_from(v, values) for v in self.leaves]
        return containers.rebuilt(s, self.structure, leaves)

    def gradients(self, s: Specialiser, values: Sequence[Value]) -> Any:
        """Cotangents of the differentiated leaves as a tuple of trees like the arguments."""
        leaves = [x.like(v) for v, x in zip(values, self.wrt, strict=True)]
        return complexes.conjugated(s, containers.rebuilt(s, self.arguments, leaves))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a leaf of a result is among the block's results, and its kind (`Tensor.kind`)."""

    index: int
    kind: int


def _from(leaf: Any, values: Sequence[Value]) -> Any:
    return Tensor(values[leaf.index], kind=leaf.kind) if type(leaf) is Place else leaf


def call(s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function that a transform of the compiler (`grad`, `vmap`, ...) made."""
    if t.kind == "vmap":
        return vmap_calls.call(s, t, args, kwargs)
    if t.kind == "checkpoint":
        return custom_derivatives.checkpoint(s, t, args, kwargs)
    if t.kind == "mixed_precision":
        return custom_derivatives.mixed_precision(s, t, args, kwargs)
    if t.kind == "custom_vjp":
        return custom_derivatives.call(s, t, args, kwargs)
    if t.kind == "jvp":
        return _jvp(s, t, args)
    if t.kind in ("jacfwd", "jacrev"):
        from . import jacobians

        return jacobians.call(s, t, args, kwargs)
    if t.kind in ("vjp", "linearize"):
        closed = close_over(s, t.f, args, tuple(range(len(args))), kwargs, False)
        values = s.scope.inline(closed.block, closed.operands)
        closed.faults(s, values)
        made = Pullback(closed) if t.kind == "vjp" else Pushforward(closed)
        return closed.result(s, values), made
    places = places_of(s, t, args)
    closed = close_over(s, t.f, args, places, kwargs, True, t.has_aux)
    block = _with_unit_cotangent(s, closed.block, len(closed.wrt))
    values = s.scope.inline(block, closed.operands)
    count = len(closed.block.results)
    closed.faults(s, values[:count])
    result = closed.result(s, values[:count])
    gradients = closed.gradients(s, values[count:])
    wanted = gradients[0] if isinstance(t.argnums, int) else gradients
    if t.kind == "value_and_grad":
        return result, wanted
    return (wanted, result[1]) if t.has_aux else wanted


def places_of(s: Specialiser, t: Transform, args: Sequence[Any]) -> tuple[int, ...]:
    """The arguments that `argnums` names, counted from the first."""
    argnums = (t.argnums,) if isinstance(t.argnums, int) else tuple(t.argnums)
    for k in argnums:
        if not -len(args) <= k < len(args):
            text = f"argnums names argument {k}, and the call has {len(args)}"
            raise s.error("DL117", text, "the differentiated arguments are given by position")
    places = tuple(k % len(args) for k in argnums)
    for k in places:
        if places.count(k) > 1:
            text = f"argnums names argument {k} more than once"
            raise s.error("DL117", text, "name each argument once")
    return places


def close_over(
    s: Specialiser,
    f: Any,
    args: Sequence[Any],
    places: Sequence[int],
    kwargs: Mapping[str, Any],
    scalar: bool,
    has_aux: bool = False,
) -> Closed:
    """Specialises `f` with the leaves of args[places] as parameters."""
    at = s.loc
    args = complexes.all_as_pairs(s, tuple(args))
    leaves, structure = tree.flatten(tuple(args[k] for k in places))
    names = list(structure.paths())
    wrt = tuple(_differentiable(s, v, n, places) for v, n in zip(leaves, names, strict=True))
    params = [Value(x.type) for x in wrt]
    with s.inside(s.new_scope(), faults=True) as scope:
        fresh = containers.rebuilt(
            s, structure, [x.like(p) for p, x in zip(params, wrt, strict=True)]
        )
        given = list(args)
        for k, value in zip(places, fresh, strict=True):
            given[k] = value
        result = calls.call(s, f, given, kwargs)
        if at is not None:
            s.at(at)
        result = complexes.all_as_pairs(s, result)
        if scalar:
            result = _checked_loss(s, result, has_aux)
        else:
            ragged.refuse(s, result, "a derivative")
        out, out_structure = tree.flatten(result)
        results: list[Value] = []
        kept: list[Any] = []
        for leaf in out:
            if type(leaf) is Tensor:
                kept.append(Place(len(results), leaf.kind))
                results.append(leaf.value)
            else:
                kept.append(leaf)
    results += raises.given(scope)
    free = free_values(scope.ops, params, results)
    block = close(scope, params, free, (), results)
    operands = (*(x.value for x in wrt), *free)
    return Closed(block, operands, wrt, structure, tuple(kept), out_structure, scope)


def _differentiable(s: Specialiser, leaf: Any, name: str, places: Sequence[int]) -> Tensor:
    if is_number(leaf) and arithmetic.dtype_of(s, leaf)[0].is_float:
        return arithmetic.tensor(s, leaf)
    first, _, rest = name.partition(".")
    where = f"argument {places[int(first)]}" + (f", leaf `{rest}`," if rest else "")
    hint = "differentiate with respect to floats (argnums), or convert with .astype(np.float32)"
    if not is_number(leaf):
        hint = "mark the field with dl.static_field(), so that it belongs to the structure"
    raise s.error("DL117", f"no gradient with respect to {where} which is {describe(leaf)}", hint)


def _checked_loss(s: Specialiser, result: Any, has_aux: bool) -> Any:
    """The result with its loss as a tensor; a loss is one floating-point number."""
    loss = result
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            text = f"with has_aux the function gives (loss, aux), not {describe(result)}"
            raise s.error("DL117", text)
        loss = result[0]
    fits = is_number(loss) and arithmetic.shape_of(loss) == ()
    if not fits or not arithmetic.dtype_of(s, loss)[0].is_float:
        hint = "reduce it, as with np.mean or np.sum; for another result use dl.vjp"
        if isinstance(loss, tuple):
            hint = "for a loss with other results use dl.value_and_grad(f, has_aux=True)"
        if complexes.is_any(loss):
            hint = "take a real number of it: abs(z), z.real; for a complex result use dl.vjp"
        text = f"only one floating-point number has a gradient, not {describe(loss)}"
        raise s.error("DL117", text, hint)
    loss = arithmetic.tensor(s, loss)
    return (loss, result[1]) if has_aux else loss


def _transformed(s: Specialiser, transform: Any, block: Block, wrt: Sequence[int]) -> Block:
    made: Block = operators.python(s, lambda: transform(block, wrt), "the derivative")
    return made


def _with_unit_cotangent(s: Specialiser, block: Block, count: int) -> Block:
    """Reverse mode of a loss: its cotangent is one, those of what comes along are zero."""
    from ...passes.simplify import simplify
    from ...transforms.vjp import vjp

    reverse = _transformed(s, vjp, simplify(block), range(count))
    builder = Builder([p.type for p in block.params], s.scope.locs)
    cotangents = [
        builder.full(r.tensor, 1 if k == 0 else 0)
        for k, r in enumerate(block.results)
        if isinstance(r.type, TensorType) and r.dtype.is_float
    ]
    results = builder.inline(reverse, [*builder.params, *cotangents])
    return simplify(builder.finish(results))


def pull(s: Specialiser, pullback: Pullback, args: Sequence[Any]) -> Any:
    """Cotangents like the function's result -> cotangents of its arguments, a tuple."""
    if isinstance(pullback, Pushforward):
        return _along(s, pullback.closed, args)[1]
    from ...passes.simplify import simplify
    from ...transforms.vjp import vjp

    closed = pullback.closed
    if len(args) != 1:
        raise s.error("DL105", f"a pullback takes one cotangent tree, not {len(args)} arguments")
    leaves, structure = tree.flatten(complexes.conjugated(s, args[0]))
    if structure != closed.structure:
        raise s.error("DL117", f"the cotangent {describe(args[0])} is not shaped like the result")
    cotangents = []
    for leaf, place in zip(leaves, closed.leaves, strict=True):
        if type(place) is not Place:
            continue
        want = closed.block.results[place.index].tensor
        if want.dtype.is_float:
            cotangents.append(_like(s, leaf, want, "a cotangent"))
    for value in raises.given(closed.scope):
        if value.dtype.is_float:
            cotangents.append(s.scope.number(0, value.dtype, value.shape))
    block = simplify(_transformed(s, vjp, closed.block, range(len(closed.wrt))))
    values = s.scope.inline(block, (*closed.operands, *cotangents))
    return closed.gradients(s, values[len(closed.block.results) :])


def _like(s: Specialiser, leaf: Any, want: TensorType, what: str) -> Value:
    if not is_number(leaf) or arithmetic.shape_of(leaf) != want.shape:
        raise s.error("DL117", f"{what} must be {want}, not {describe(leaf)}")
    return arithmetic.materialise(s, leaf, want.dtype, want.shape)


def _jvp(s: Specialiser, t: Transform, args: Sequence[Any]) -> Any:
    if len(args) != 2 or not all(isinstance(a, tuple | list) for a in args):
        raise s.error("DL105", "jvp takes (f, primals, tangents), the latter two as tuples")
    primals, tangents = args
    closed = close_over(s, t.f, primals, tuple(range(len(primals))), {}, False)
    return _along(s, closed, tangents, first=True)


def _along(
    s: Specialiser, closed: Closed, tangents: Sequence[Any], first: bool = False
) -> tuple[Any, Any]:
    """The result and its derivative along the tangents of the arguments.

    `first`: the result was not computed before, and nor were its errors.
    """
    from ...passes.simplify import simplify
    from ...transforms.jvp import jvp

    leaves, structure = tree.flatten(complexes.all_as_pairs(s, tuple(tangents)))
    if structure != closed.arguments:
        raise s.error("DL117", "the tangents are not shaped like the primals")
    given = [_like(s, v, x.type, "a tangent") for v, x in zip(leaves, closed.wrt, strict=True)]
    block = simplify(_transformed(s, jvp, closed.block, range(len(closed.wrt))))
    values = s.scope.inline(block, (*closed.operands, *given))
    count = len(closed.block.results)
    if first:
        closed.faults(s, values[:count])
    return closed.result(s, values[:count]), _tangents(s, closed, values[count:])


def _tangents(s: Specialiser, closed: Closed, values: Sequence[Value]) -> Any:
    """Tangents of the result: zeros where it is no float."""
    supply = iter(values)
    leaves = []
    for leaf in closed.leaves:
        if type(leaf) is not Place:
            leaves.append(arithmetic.tensor(s, 0.0) if is_number(leaf) else leaf)
            continue
        type_ = closed.block.results[leaf.index].tensor
        zero = None if type_.dtype.is_float else s.scope.number(0, type_.dtype, type_.shape)
        leaves.append(Tensor(next(supply) if zero is None else zero, kind=leaf.kind))
    return containers.rebuilt(s, closed.structure, leaves)
