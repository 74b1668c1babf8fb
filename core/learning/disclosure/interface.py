"""The inputs and outputs of a bundle's programs, as its manifest lays them out.

Names in a program are its author's words. What an input is follows from its place alone, which is
what `core.learning.runtime` goes by when it calls a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...common.errors import DelianError
from ...compiler.ir import DType, TensorType
from ..bundle import Bundle, Manifest
from ..leaf import Leaf


class Kind(StrEnum):
    """What an input or output is of."""

    WEIGHTS = "weights"
    MEMORY = "server memory"
    MEAN = "mean update"
    WEIGHT = "sum of weights"
    DATA = "data"
    KEY = "random key"
    KEPT = "client state"
    CARRY = "carry"
    PLACE = "place"
    EXAMPLE = "input"
    UPDATE = "update"
    LOSS = "loss"
    FINITE = "finite"
    METRICS = "metrics"
    MODEL = "model"
    LOGITS = "logits"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a program: its kind, its name within that kind, and its type."""

    kind: Kind
    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one program."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    key: int | None
    """The place of the random key among the inputs; None: it takes none."""


#: Kinds of what the programs take and give, in order. `...` in place of a name: one for each leaf.
_TAKES: dict[str, tuple[Kind, ...]] = {
    "init": (Kind.KEY,),
    "client_state": (Kind.WEIGHTS, Kind.FROZEN),
    "client_update": (Kind.WEIGHTS, Kind.FROZEN, Kind.DATA, Kind.KEY, Kind.KEPT),
    "server_update": (Kind.WEIGHTS, Kind.MEMORY, Kind.MEAN, Kind.WEIGHT),
    "evaluate": (Kind.MODEL, Kind.FROZEN, Kind.DATA, Kind.KEY),
    "personalise": (Kind.WEIGHTS, Kind.FROZEN, Kind.DATA, Kind.KEY, Kind.KEPT),
    "infer": (Kind.MODEL, Kind.FROZEN, Kind.EXAMPLE),
    "update_begin": (Kind.WEIGHTS, Kind.FROZEN, Kind.KEPT),
    "update_chunk": (
        *(Kind.WEIGHTS, Kind.FROZEN, Kind.CARRY, Kind.DATA, Kind.KEY, Kind.KEPT, Kind.PLACE),
    ),
    "update_end": (Kind.WEIGHTS, Kind.FROZEN, Kind.CARRY, Kind.KEY, Kind.KEPT),
    "split_batch": (Kind.DATA, Kind.KEY, Kind.PLACE),
    "split_upload": (Kind.MEAN, Kind.WEIGHT, Kind.KEY),
}
_GIVES: dict[str, tuple[Kind, ...]] = {
    "init": (Kind.WEIGHTS, Kind.MEMORY),
    "client_state": (Kind.KEPT,),
    "client_update": (Kind.UPDATE, Kind.LOSS, Kind.FINITE, Kind.KEPT),
    "server_update": (Kind.WEIGHTS, Kind.MEMORY),
    "evaluate": (Kind.METRICS,),
    "personalise": (Kind.MODEL,),
    "infer": (Kind.LOGITS,),
    "update_begin": (Kind.CARRY,),
    "update_chunk": (Kind.CARRY,),
    "update_end": (Kind.UPDATE, Kind.LOSS, Kind.FINITE, Kind.KEPT),
    "split_batch": (Kind.EXAMPLE,),
    "split_upload": (Kind.UPDATE, Kind.FINITE),
}
_KEY = TensorType(DType.U32, (2,))
_WEIGHT = TensorType(DType.F32, ())


def ports_of(bundle: Bundle, program: str) -> Ports:
    """The ports of a bundle's program. Raises DelianError where they differ from the manifest."""
    function, manifest = bundle.programs[program], bundle.manifest
    inputs = _named(manifest, program, _TAKES[program], function.param_types)
    outputs = _named(manifest, program, _GIVES[program], function.result_types)
    weights = [port.type for port in inputs if port.kind is Kind.WEIGHT]
    if weights not in ([], [_WEIGHT]):
        raise _unfit(program, f"{', '.join(map(str, weights))[:200]} after the mean update")
    keys = [i for i, port in enumerate(inputs) if port.kind is Kind.KEY]
    if any(inputs[i].type != _KEY for i in keys):
        raise _unfit(program, f"a key of {inputs[keys[0]].type}, where one is {_KEY}")
    return Ports(inputs, outputs, keys[0] if keys else None)


def _named(
    manifest: Manifest, program: str, kinds: Sequence[Kind], types: Sequence[object]
) -> tuple[Port, ...]:
    known = [t for t in types if isinstance(t, TensorType)]
    if len(known) < len(types):
        raise _unfit(program, "a list, where programs take and give tensors")
    made: list[Port] = []
    for kind in kinds:
        if kind in _LEAVES:
            try:
                leaves = _LEAVES[kind](manifest)
                names = [(leaf.name, TensorType(DType(leaf.dtype), leaf.shape)) for leaf in leaves]
            except (ValueError, IndexError):  # an element type or a place that there is not
                raise _unfit(program, f"{kind.value} that its manifest does not name") from None
        else:
            rest = known[len(made) :] if kind is kinds[-1] else known[len(made) : len(made) + 1]
            names = [(str(i) if len(rest) > 1 else "", t) for i, t in enumerate(rest)]
        made += [Port(kind, name, type_) for name, type_ in names]
    if [port.type for port in made] != known:
        raise _unfit(
            program, f"{', '.join(map(str, known))[:200]}, where its manifest has other leaves"
        )
    return tuple(made)


def _unfit(program: str, what: str) -> DelianError:
    return DelianError(f"the bundle's {program} has {what}", "build the bundle again")


_LEAVES: dict[Kind, Callable[[Manifest], Sequence[Leaf]]] = {
    Kind.WEIGHTS: lambda m: m.state,
    Kind.MEMORY: lambda m: m.memory,
    Kind.MEAN: lambda m: m.state,
    Kind.DATA: lambda m: m.data,
    Kind.KEPT: lambda m: m.client_state,
    Kind.CARRY: lambda m: m.carry,
    Kind.MODEL: lambda m: m.model_leaves(),
    Kind.FROZEN: lambda m: m.frozen,
}
