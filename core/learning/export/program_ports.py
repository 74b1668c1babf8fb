"""What a bundle's programs take and give, as files and C arguments.

Leaves that belong together are one port.

    client_update   weights, data..., key, kept?  ->  vector, loss, finite, kept?
    personalise     weights, data..., key, kept?  ->  model
    evaluate        model, data..., key           ->  loss, correct, count
    infer           model, x                      ->  logits
    client_state    weights                       ->  kept
    update_begin    weights, kept?                                        ->  carry...
    update_chunk    weights, carry..., data..., key, kept?, epoch, window ->  carry...
    update_end      weights, carry..., key, kept?                         ->  as client_update

`weights`, `model` and `kept` are the state, the model and a device's client state: f32 vectors of
the leaves one after the other, as the manifest lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...common.errors import DelianError
from ...compiler.ir import DType, TensorType, Type
from ..bundle import CLIENT_STATE, DEVICE_PROGRAMS, JUDGED, WINDOW_PROGRAMS, Bundle

_ALIGN = 64
BEGIN, CHUNK, END = WINDOW_PROGRAMS


@dataclass(frozen=True, slots=True)
class Port:
    """One array that a program takes or gives."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offsets: tuple[int, ...] = (0,)
    """Where each leaf begins, in bytes; a program has a parameter or a result for each."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def padded(self) -> int:
        return -(-max(self.nbytes, 1) // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class Ports:
    """A program's."""

    name: str
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]

    @property
    def bytes(self) -> int:
        return sum(p.padded for p in (*self.takes, *self.gives))


def chosen(bundle: Bundle, names: Iterable[str]) -> tuple[str, ...]:
    """The programs of these names; none: all of a device. Raises DelianError."""
    there = [n for n in DEVICE_PROGRAMS if n in bundle.programs]
    wanted = tuple(dict.fromkeys(names)) or tuple(there)
    for name in wanted:
        if name not in there:
            raise DelianError(
                f"a device runs no program `{name}`", f"this bundle has {', '.join(there)}"
            )
    return wanted


def ports_of(bundle: Bundle, name: str) -> Ports:
    """The ports of a device's program."""
    manifest, function = bundle.manifest, bundle.programs[name]
    state = [leaf.size for leaf in manifest.state]
    model = [leaf.size for leaf in manifest.model_leaves()]
    kept = [leaf.size for leaf in manifest.client_state]
    rest = [_c_name(leaf.name) for leaf in manifest.data]
    carry = [_c_name(leaf.name) for leaf in manifest.carry]
    groups: list[tuple[str, Sequence[int]]] = [("weights", state)]
    out: list[tuple[str, Sequence[int]]] = []
    results: list[str] = []
    frozen = [_c_name(f"frozen.{leaf.name}") for leaf in manifest.frozen]
    singles: list[str] = [*rest, "key"]
    last: list[str] = []
    if name == "infer":
        groups, singles, results = [("model", model)], ["x"], ["logits"]
    elif name == "evaluate":
        groups = [("model", model)]
        own = [f"{name}_{part}" for name in manifest.metrics for part in ("above", "below")]
        results = [*JUDGED, *own]
    elif name == CLIENT_STATE:
        out, singles = [("kept", kept)], []
    elif name == "personalise":
        out = [("model", model)]
    elif name == BEGIN:
        singles, results = [], carry
    elif name == CHUNK:
        singles, results, last = [*carry, *singles], carry, ["epoch", "window"]
    else:
        singles = [*carry, "key"] if name == END else singles
        results, out = ["vector", "loss", "finite"], [("kept", kept)]
    takes = [_vector(n, sizes) for n, sizes in groups]
    given = iter(function.param_types[sum(len(p.offsets) for p in takes) :])
    takes += [_single(n, next(given)) for n in (*frozen, *singles)]
    if name in ("client_update", "personalise", *WINDOW_PROGRAMS) and kept:
        takes.append(_vector("kept", kept))
    takes += [_single(n, t) for n, t in zip(last, function.param_types[-2:], strict=False)]
    gives = [_single(n, t) for n, t in zip(results, function.result_types, strict=False)]
    gives += [_vector(n, sizes) for n, sizes in out if sizes]
    assert sum(len(p.offsets) for p in takes) == len(function.param_types)
    assert sum(len(p.offsets) for p in gives) == len(function.result_types)
    return Ports(name, tuple(takes), tuple(gives))


def _vector(name: str, sizes: Sequence[int]) -> Port:
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += 4 * size
    return Port(name, DType.F32, (at // 4,), tuple(offsets))


def _single(name: str, type_: Type) -> Port:
    assert isinstance(type_, TensorType), "programs take and give tensors"
    return Port(name, type_.dtype, type_.shape)


def _c_name(name: str) -> str:
    """A name of the manifest as one that C takes: `data.support.x` is data_support_x."""
    made = re.sub(r"[^A-Za-z0-9]+", "_", name.encode("ascii", "replace").decode()).strip("_")
    return made if made and not made[0].isdigit() else f"data_{made}"
