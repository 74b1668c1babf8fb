"""What of a training step a shield can cover (`privacy.boundary`).

All that goes up from the device has to be a row for each example, and a row has to depend on no
other.

The second is tried, not proved: a device's side runs on random batches that differ in some rows,
against the same replies. Where anything that it sends differs in another row, rows mix: in a batch
normalisation, in an attention over the batch. Those that differ are first the rows whose number has
a bit, then those that have it not, and so for each bit: of any two rows each is changed once while
the other stays. How many rows count is known to all (their weights are no part of the promise).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...compiler.ir import Array, DType, TensorType
from ...privacy.mechanisms.accountant import Budget
from ...privacy.mechanisms.activation_noise import BoundaryError, Shield, Spent
from ..cut.cut import DEVICE
from ..cut.program_split import Message, Parts
from ..cut.wire_formats import decode, encode
from .step_sides import Programs, Sent, Side, Weights


def released(parts: Parts, rows: int) -> Mapping[int, TensorType]:
    """What goes up from the device in a step, by value's number.

    rows: of a batch. Raises BoundaryError for what cannot be released row by row: the batch itself,
    or what is of all of it.
    """
    given = {p.value for p in parts.inputs}
    out = {}
    for port in parts.crossing(DEVICE, up=True):
        if port.value in given:
            raise BoundaryError(
                "a part of the batch itself would go up",
                "with a shield labels stay on the device, and a last layer with them",
            )
        shape = port.type.shape
        if port.type.dtype is not DType.F32 or not shape or shape[0] != rows:
            raise BoundaryError(
                f"{port.type} goes up, which is not a row for each of {rows} examples",
                "cut where activations have the batch's axis first",
            )
        out[port.value] = port.type
    return out


def shields_of(parts: Parts, rows: int, shields: Sequence[Shield]) -> dict[int, Shield]:
    """The shield of each value that goes up from the device, in the order in which they do.

    shields: one for each, or one for all. Raises BoundaryError for another number of them, and as
    `released` does.
    """
    values = released(parts, rows)
    if len(shields) not in (1, len(values)):
        raise BoundaryError(
            f"{len(shields)} shields for {len(values)} tensors that go up",
            "one for each, or one for all",
        )
    given = list(shields) * (len(values) if len(shields) == 1 else 1)
    return dict(zip(values, given, strict=True))


def spent_on(parts: Parts, shields: Mapping[int, Shield], budget: Budget) -> Spent:
    """What passes through these shields cost, and the budget that it is charged to."""
    types = {p.value: p.type for p in parts.crossing(DEVICE, up=True)}
    releases = ((math.prod(types[v].shape[1:]), shield) for v, shield in shields.items())
    return Spent(budget, tuple(releases))


def check_rows(programs: Programs, weights: Weights, rows: int, seed: int = 0) -> None:
    """Raises BoundaryError where a row that goes up depends on another row."""
    parts = programs.parts
    rng = np.random.default_rng(seed)
    # The last input says which rows count: that is the same for both.
    batch = {p.value: _drawn(p.type, rng) for p in parts.inputs[:-1]}
    counts = {p.value: np.ones(p.type.shape, p.type.dtype.numpy) for p in parts.inputs[-1:]}
    replies = {p.value: _drawn(p.type, rng) for p in parts.crossing(DEVICE, up=False)}
    first = _said(programs, weights, {**batch, **counts}, replies)
    for bit in range((rows - 1).bit_length()):
        having = (np.arange(rows) >> bit & 1).astype(bool)
        for moved in (having, ~having):
            other = {v: _with_others(a, moved, rng) for v, a in batch.items()}
            said = _said(programs, weights, {**other, **counts}, replies)
            for a, b in zip(first, said, strict=True):
                if len(a) == rows and not np.array_equal(a[~moved], b[~moved]):
                    raise BoundaryError(
                        "what goes up of one row depends on other rows",
                        "no batch normalisation, nor anything else over a batch, on the device",
                    )


def _said(
    programs: Programs,
    weights: Weights,
    inputs: Mapping[int, Array],
    replies: Mapping[int, Array],
) -> Sequence[Array]:
    """All that a device sends up in a step, when it is answered so."""
    down = iter(m for m in programs.parts.messages if m.receiver == DEVICE)
    side = Side(programs, DEVICE, weights)
    said = []
    sent = side.start(inputs)
    while sent is not None:
        said += [decode(sent.tensors[0][p.value], p.type) for p in sent.message.ports]
        sent = side.take(_reply(next(down), replies))
    return said


def _reply(message: Message, replies: Mapping[int, Array]) -> Sent:
    return Sent(message, ({p.value: encode(replies[p.value], p.wire) for p in message.ports},))


def _drawn(type: TensorType, rng: np.random.Generator) -> Array:
    drawn: Array = rng.uniform(-1.0, 2.0, type.shape)
    return (
        np.abs(drawn).astype(type.dtype.numpy)
        if type.dtype is not DType.F32
        else drawn.astype(np.float32)
    )


def _with_others(array: Array, moved: Array, rng: np.random.Generator) -> Array:
    """The batch with other rows at these places."""
    changed = array.copy()
    if array.ndim:
        rows = changed[moved]
        flat = rng.permuted(rows.reshape(len(rows), -1), axis=1)
        changed[moved] = flat.reshape(rows.shape) + np.ones((), array.dtype)
    return changed
