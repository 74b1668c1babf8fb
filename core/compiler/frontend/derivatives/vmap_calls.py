"""`vmap` inside a program: an abstract function of one lane, specialised, run over many.

The function is specialised in a scope of its own with one lane of each mapped leaf as parameters;
what else it uses, unmapped arguments and tensors that it closes over, is the same in all lanes.
Then the transform runs on the closed block, and the result is inlined where the call stood. So it
nests with derivatives, and with itself, to any depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....common.errors import DelianError
from ... import tree
from ...eager_vmap import axes_of
from ...ir import TensorType, Value
from .. import calls, operators, ragged
from ..containers import containers
from ..flow import raises
from ..numpy import arithmetic
from ..scope import close, free_values
from ..values import Tensor, describe, is_number

if TYPE_CHECKING:
    from ...traced import Transform
    from ..specialise import Specialiser


def call(s: Specialiser, t: Transform, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a vmapped function: keyword arguments are mapped over their first axes."""
    in_axes, out_axes = t.extra
    if isinstance(in_axes, tuple | list) and len(in_axes) != len(args):
        text = f"in_axes has {len(in_axes)} entries for {len(args)} arguments"
        raise s.error("DL105", text, "one axis (or tree of axes) an argument, or one for all")
    per_argument = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
    mapped = [v for v, axis in zip(args, per_argument, strict=True) if axis is not None]
    ragged.refuse(s, (mapped, dict(kwargs)), "`dl.vmap`")
    given = (tuple(args), dict(kwargs))
    leaves, structure = tree.flatten(given)
    axes = [
        axis
        for spec, arg in zip(per_argument, args, strict=True)
        for axis in _axes_of_leaves(s, spec, arg, "in_axes")
    ]
    axes += [0] * (len(leaves) - len(axes))
    size, operands, inside = _one_lane(s, leaves, axes, list(structure.paths()))
    params = [v.value for v, axis in zip(inside, axes, strict=True) if axis is not None]
    at = s.loc
    with s.inside(s.new_scope(), faults=True) as scope:
        lane_args, lane_kwargs = containers.rebuilt(s, structure, inside)
        result = calls.call(s, t.f, lane_args, lane_kwargs)
        if at is not None:
            s.at(at)
        ragged.refuse(s, result, "`dl.vmap`")
        out, out_structure = tree.flatten(result)
        made = [arithmetic.tensor(s, v) if is_number(v) else v for v in out]
    results = [v.value for v in made if type(v) is Tensor]
    own = len(results)
    results += raises.given(scope)
    free = free_values(scope.ops, params, results)
    block = close(scope, params, free, (), results)
    values, flags = _run(s, block, (*operands, *free), len(params), size)
    raises.taken_of_lanes(s, scope, values[own:], flags[own:])
    supply = iter(zip(values[:own], flags[:own], strict=True))
    wanted = _axes_of_leaves(s, out_axes, result, "out_axes")
    finished = [
        v.like(_placed(s, *next(supply), axis, size)) if type(v) is Tensor else v
        for v, axis in zip(made, wanted, strict=True)
    ]
    return containers.rebuilt(s, out_structure, finished)


def _run(
    s: Specialiser, block: Any, operands: Sequence[Value], mapped: int, size: int
) -> tuple[Sequence[Value], Sequence[bool]]:
    """A block over the lanes, the first `mapped` operands of which have one."""
    from ...passes.simplify import simplify
    from ...transforms.vmap import vmap

    flags = [k < mapped for k in range(len(operands))]
    small = simplify(block)
    many, spread = operators.python(s, lambda: vmap(small, flags, size), "vmap")
    return s.scope.inline(simplify(many), operands), spread


def _axes_of_leaves(s: Specialiser, axes: Any, node: Any, what: str) -> list[int | None]:
    """An axis for each leaf of a tree, from a prefix of it."""
    try:
        return axes_of(axes, node)
    except DelianError:
        hint = "an axis, None, or a tree of them shaped like the arguments (or a prefix of it)"
        raise s.error("DL119", f"{what}: {axes!r} does not fit {describe(node)}", hint) from None


def _one_lane(
    s: Specialiser, leaves: Sequence[Any], axes: Sequence[int | None], names: Sequence[str]
) -> tuple[int, list[Value], list[Any]]:
    """How many lanes; the mapped leaves, lanes first; and the leaves as one lane sees them."""
    size: int | None = None
    operands, inside = [], []
    for leaf, axis, name in zip(leaves, axes, names, strict=True):
        if axis is None:
            inside.append(leaf)
            continue
        shape = arithmetic.shape_of(leaf) if is_number(leaf) else ()
        if not -len(shape) <= axis < len(shape):
            text = f"vmap: {_label(name)} is {describe(leaf)}, which has no axis {axis}"
            raise s.error("DL115", text, "give it None in in_axes, so that all lanes share it")
        axis %= len(shape)
        if size is not None and shape[axis] != size:
            text = f"vmap: {_label(name)} has {shape[axis]} lanes along axis {axis}, not {size}"
            raise s.error("DL115", text, "all mapped axes must have one size")
        size = shape[axis]
        value = arithmetic.tensor(s, leaf)
        operands.append(_moved(s, value.value, axis, 0))
        kind = TensorType(value.dtype, shape[:axis] + shape[axis + 1 :])
        inside.append(value.like(Value(kind)) if kind == value.type else Tensor(Value(kind)))
    if size is None:
        hint = "in_axes must name an axis of at least one argument"
        raise s.error("DL119", "vmap: no argument has an axis to map over", hint)
    if size == 0:
        raise s.error("DL115", "vmap: the mapped axis has size 0", "there must be a lane to run")
    return size, operands, inside


def _label(name: str) -> str:
    kind, _, rest = name.partition(".")
    if kind == "1":
        return f"argument `{rest}`"
    first, _, path = rest.partition(".")
    return f"argument {first}" + (f", leaf `{path}`," if path else "")


def _moved(s: Specialiser, value: Value, source: int, target: int) -> Value:
    """A value with one axis moved."""
    if source == target:
        return value
    perm = [i for i in range(len(value.shape)) if i != source]
    perm.insert(target, source)
    return s.emit("transpose", value, perm=tuple(perm))


def _placed(s: Specialiser, value: Value, spread: bool, axis: int | None, size: int) -> Value:
    """A result with its lanes where out_axes wants them."""
    if axis is None:
        if spread:
            text = "vmap: out_axes is None for a result that differs from lane to lane"
            raise s.error("DL119", text, "give it an axis, or reduce over the lanes outside")
        return value
    rank = len(value.shape) + (0 if spread else 1)
    if not -rank <= axis < rank:
        raise s.error("DL115", f"vmap: out_axes names axis {axis} of a result of rank {rank}")
    axis %= rank
    if spread:
        return _moved(s, value, 0, axis)
    shape = (*value.shape[:axis], size, *value.shape[axis:])
    dims = tuple(i for i in range(rank) if i != axis)
    return s.emit("broadcast", value, shape=shape, dims=dims)
