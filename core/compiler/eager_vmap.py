"""`vmap` as plain Python: a loop over the lanes, for `dl.debug()`, print and pdb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.errors import DelianError
from . import tree


def loop_over_lanes(
    f: Callable[..., Any],
    axes: tuple[Any, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """`vmap(f, *axes)`, lane after lane. Raises DelianError where the axes do not fit."""
    in_axes, out_axes = axes
    specs = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
    if len(specs) != len(args):
        raise DelianError(f"in_axes has {len(specs)} entries for {len(args)} arguments")
    leaves, structure = tree.flatten((tuple(args), dict(kwargs)))
    places = [a for spec, arg in zip(specs, args, strict=True) for a in axes_of(spec, arg)]
    places += [0] * (len(leaves) - len(places))
    pairs = list(zip(leaves, places, strict=True))
    sizes = {np.shape(v)[axis] for v, axis in pairs if axis is not None}
    if len(sizes) != 1:
        raise DelianError(f"the mapped axes have sizes {sorted(sizes)}, not one size")
    results = []
    for lane in range(sizes.pop()):
        own = [v if axis is None else np.take(v, lane, axis) for v, axis in pairs]
        lane_args, lane_kwargs = tree.unflatten(structure, own)
        results.append(tree.flatten(f(*lane_args, **lane_kwargs)))
    out = results[0][1]
    wanted = axes_of(out_axes, tree.unflatten(out, results[0][0]))
    columns = zip(*(row for row, _ in results), strict=True)
    made = [
        column[0] if axis is None else np.stack(column, axis)
        for column, axis in zip(columns, wanted, strict=True)
    ]
    return tree.unflatten(out, made)


def axes_of(axes: Any, node: Any) -> list[int | None]:
    """An axis for each leaf of a tree, from a prefix of it. Raises DelianError when it is none."""
    if axes is None or type(axes) is int:
        return [axes] * len(tree.leaves(node))
    spec, parts = tree.children(axes), tree.children(node)
    if spec is None or parts is None or spec[0] != parts[0]:
        raise DelianError(f"the axes {axes!r} do not fit {type(node).__name__}")
    pairs = zip(spec[1], parts[1], strict=True)
    return [axis for inner, child in pairs for axis in axes_of(inner, child)]
