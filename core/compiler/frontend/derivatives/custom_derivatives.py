"""`custom_vjp` and `checkpoint` inside a program: functions closed as regions.

Both specialise a function in a scope of its own and close it. A checkpointed one may use anything
that is around it: that becomes an operand. One with a rule of its own may not use tensors of the
program but its arguments, since its rule gives cotangents for those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import tree
from ...ir import Block, TensorType, Value
from .. import calls, complexes, operators, ragged
from ..containers import containers
from ..flow import raises
from ..numpy import arithmetic
from ..scope import close, free_values
from ..values import Tensor, describe, is_number

if TYPE_CHECKING:
    from ...traced import Transform
    from ..specialise import Specialiser


def checkpoint(s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function so that a derivative through the call keeps its arguments alone."""
    from ...transforms.checkpoint import checkpoint as transform

    every = t.extra[0]
    if every is not None and (type(every) is not int or every < 1):
        raise s.error("DL119", f"checkpoint: every must be 1 or more trips, not {every!r}")
    return _transformed(s, t.f, args, kwargs, lambda b: transform(b, every), "checkpoint")


def mixed_precision(
    s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Calls a function with its products of matrices and convolutions in 16 bits."""
    from ...transforms.mixed_precision import mixed_precision as transform

    dtype = arithmetic.numpy_dtype(s, t.extra[0])
    if not dtype.is_half:
        text = f"mixed precision computes in float16 or bfloat16, not {dtype.value}"
        raise s.error("DL116", text, "dl.mixed_precision(f, np.float16)")
    name = "mixed_precision"
    return _transformed(s, t.f, args, kwargs, lambda block: transform(block, dtype), name)


def _transformed(
    s: Specialiser,
    f: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    transform: Callable[[Block], Block],
    name: str,
) -> Any:
    """Calls a function whose operations, closed as a block, are transformed."""
    from ...passes.simplify import simplify

    at = s.loc
    with s.inside(s.new_scope(), faults=True) as scope:
        result = calls.call(s, f, args, kwargs)
        if at is not None:
            s.at(at)
        leaves, structure = tree.flatten(result)
        made = [arithmetic.tensor(s, v) if is_number(v) else v for v in leaves]
    results = [v.value for v in made if type(v) is Tensor]
    results += raises.given(scope)
    free = free_values(scope.ops, (), results)
    small = simplify(close(scope, (), free, (), results))
    block = operators.python(s, lambda: transform(small), name)
    got = s.scope.inline(block, free)
    raises.taken(s, scope, got[len(got) - len(scope.changed) :])
    values = iter(got)
    out = [v.like(next(values)) if type(v) is Tensor else v for v in made]
    return containers.rebuilt(s, structure, out)


@dataclass(frozen=True, slots=True)
class _Region:
    """A function as a closed block of its own tensors, and the tree of its result."""

    block: Block
    leaves: tuple[Any, ...]
    structure: tree.Structure

    def rebuilt(self, s: Specialiser, values: Sequence[Value]) -> Any:
        """The result again, with these tensors."""
        supply = iter(values)
        out = [v.like(next(supply)) if type(v) is Tensor else v for v in self.leaves]
        return containers.rebuilt(s, self.structure, out)


def call(s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function with a reverse rule of its own."""
    if kwargs:
        raise s.error("DL105", "a function with dl.custom_vjp takes its arguments by position")
    complexes.refuse(s, tuple(args), "`dl.custom_vjp`")
    ragged.refuse(s, tuple(args), "`dl.custom_vjp`")
    leaves, structure = tree.flatten(tuple(args))
    given = [arithmetic.tensor(s, v) if type(v) is Tensor else v for v in leaves]
    operands = [v.value for v in given if type(v) is Tensor]
    forward_of, reverse_of = t.extra
    primal = _region(s, t.f, given, structure, "the function")
    forward = _region(s, forward_of, given, structure, "the forward function")
    kept = _residuals(s, primal, forward)
    reverse = _reverse(s, reverse_of, primal, forward, kept, given, structure)
    regions = (primal.block, forward.block, reverse)
    return primal.rebuilt(s, s.scope.emit("custom_vjp", operands, {}, regions))


def _region(
    s: Specialiser, f: Any, given: Sequence[Any], structure: tree.Structure, what: str
) -> _Region:
    """`f` of these leaves, the tensors among them as parameters."""
    at = s.loc
    params = [Value(v.value.type) for v in given if type(v) is Tensor]
    supply = iter(params)
    inside = [v.like(next(supply)) if type(v) is Tensor else v for v in given]
    with s.inside(s.new_scope()) as scope:
        args = containers.rebuilt(s, structure, inside)
        result = calls.call(s, f, args, {})
        if at is not None:
            s.at(at)
        ragged.refuse(s, result, "`dl.custom_vjp`")
        out, out_structure = tree.flatten(result)
        made = tuple(arithmetic.tensor(s, v) if is_number(v) else v for v in out)
    results = [v.value for v in made if type(v) is Tensor]
    if free_values(scope.ops, params, results):
        text = f"{what} of a dl.custom_vjp uses a value of the program that is no argument of it"
        raise s.error("DL117", text, "pass the value as an argument, so that it gets a cotangent")
    return _Region(close(scope, params, [], (), results), made, out_structure)


def _residuals(s: Specialiser, primal: _Region, forward: _Region) -> Sequence[Any]:
    """The leaves of what the forward function keeps, without the function's result."""
    count = len(primal.leaves)
    good = (
        forward.structure.kind is tuple
        and len(forward.structure.children) == 2
        and forward.structure.children[0] == primal.structure
    )
    if good:
        pairs = zip(primal.leaves, forward.leaves, strict=False)
        good = all(
            a.value.type == b.value.type if type(a) is type(b) is Tensor else a is b or a == b
            for a, b in pairs
        )
    if not good:
        text = "the forward function of a dl.custom_vjp must give (what the function gives, kept)"
        raise s.error("DL117", text, "with the same shapes and element types")
    return forward.leaves[count:]


def _reverse(
    s: Specialiser,
    f: Any,
    primal: _Region,
    forward: _Region,
    kept: Sequence[Any],
    given: Sequence[Any],
    structure: tree.Structure,
) -> Block:
    """The reverse function as a block: (residuals, float cotangents) -> float cotangents."""
    at = s.loc
    residuals = [Value(v.value.type) for v in kept if type(v) is Tensor]
    results = primal.block.results
    floats = [Value(r.type) for r in results if r.dtype.is_float]
    params = [*residuals, *floats]
    with s.inside(s.new_scope()) as scope:
        supply = iter(residuals)
        inside = [v.like(next(supply)) if type(v) is Tensor else v for v in kept]
        res = containers.rebuilt(s, forward.structure.children[1], inside)
        cts = iter(floats)
        values = [
            next(cts) if r.dtype.is_float else s.scope.number(0, r.dtype, r.shape) for r in results
        ]
        back = calls.call(s, f, (res, primal.rebuilt(s, values)), {})
        if at is not None:
            s.at(at)
        outs = _cotangents(s, back, given, structure)
    if free_values(scope.ops, params, outs):
        text = "the reverse function of a dl.custom_vjp uses a value that it was not given"
        raise s.error("DL117", text, "let the forward function keep the value")
    return close(scope, params, [], (), outs)


def _cotangents(
    s: Specialiser, back: Any, given: Sequence[Any], structure: tree.Structure
) -> list[Value]:
    """A cotangent for each float argument; None stands for zeros."""
    args = tree.unflatten(structure, given)
    if not isinstance(back, tuple) or len(back) != len(args):
        text = f"the reverse function must give a tuple of {len(args)} cotangents"
        raise s.error("DL117", f"{text}, not {describe(back)}", "one for each argument, or None")
    outs = []
    for k, (arg, ct) in enumerate(zip(args, back, strict=True)):
        for leaf, part in _pairs(s, arg, ct, k):
            if type(leaf) is Tensor and leaf.dtype.is_float:
                outs.append(_fitted(s, 0.0 if part is None else part, leaf.value.tensor, k))
    return outs


def _pairs(s: Specialiser, arg: Any, ct: Any, k: int) -> Iterator[tuple[Any, Any]]:
    """An argument's leaves, each with its cotangent; None for a tree is one for its leaves."""
    parts = tree.children(arg)
    if parts is None or ct is None:
        yield from ((leaf, ct) for leaf in tree.leaves(arg))
        return
    own = tree.children(ct)
    if own is None or own[0] != parts[0]:
        text = f"the cotangent of argument {k} is {describe(ct)}, not like the argument"
        raise s.error("DL117", text)
    for inner, its in zip(parts[1], own[1], strict=True):
        yield from _pairs(s, inner, its, k)


def _fitted(s: Specialiser, ct: Any, want: TensorType, k: int) -> Value:
    if not is_number(ct) or (arithmetic.shape_of(ct) != want.shape and type(ct) is Tensor):
        text = f"the cotangent of argument {k} must be {want}, not {describe(ct)}"
        raise s.error("DL117", text)
    return arithmetic.materialise(s, ct, want.dtype, want.shape)
