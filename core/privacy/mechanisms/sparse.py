"""Uploads of which most coordinates are zero: those that are not travel with their places.

A device that chose so many of an update's coordinates (`top_k` of `learn.aggregate.stages`) sends
their places, in increasing order, each in as many bits as the last place needs, then their elements
and the weight as any others (`packing`): of 100,000 coordinates 1 % are 17 + 32 bits each, a
sixty-fifth of the whole. Edges add them to a sum that has all coordinates. Of coordinates that
rounding has made zero places travel too, so that the length reveals nothing.
"""

from __future__ import annotations

import numpy as np

from ...protocol.ports import Content, Vector
from . import bit_packing, ring
from .bit_packing import PackingError
from .ring import RingPlan


def sent(vector: Vector, plan: RingPlan) -> bytes:
    """A device's elements u32[plan.length] as they travel: `plan.sent_bytes` bytes."""
    if not plan.top:
        return ring.packed(vector, plan)
    coordinates = vector[: plan.coordinates]
    # Those that are not zero first, and of equal ones the first; never more than the plan says.
    places = np.sort(np.argsort(coordinates == 0, kind="stable")[: plan.top])
    elements = np.concatenate([coordinates[places], vector[plan.coordinates :]])
    where = bit_packing.pack(places.astype(np.uint32), plan.place_bits)
    return where + bit_packing.pack(elements, plan.bits)


def is_sent(content: Content, plan: RingPlan) -> bool:
    """Whether `received` takes it."""
    if not plan.top:
        return ring.is_packed(content, plan)
    try:
        _read(content, plan)
    except PackingError:
        return False
    return True


def received(content: Content, plan: RingPlan) -> Vector:
    """The reverse of `sent`: a new array u32[plan.length]. Raises PackingError."""
    if not plan.top:
        return ring.unpacked(content, plan)
    total = ring.zeros(plan)
    add_sent(total, content, plan)
    return total


def add_sent(total: Vector, content: Content, plan: RingPlan) -> None:
    """Adds a device's update as it travels to a running sum. Raises PackingError."""
    if not plan.top:
        ring.add_packed(total, content, plan)
        return
    places, elements = _read(content, plan)
    total[places] += elements[: plan.top]  # each place once
    total[plan.coordinates :] += elements[plan.top :]


def summed(total: Vector | None, content: Content, plan: RingPlan) -> Vector:
    """As `ring.summed`, of a device's update as it is sent. Raises PackingError."""
    if not plan.top:
        return ring.summed(total, content, plan)
    if total is None:
        return received(content, plan)
    add_sent(total, content, plan)
    return total


def _read(content: Content, plan: RingPlan) -> tuple[Vector, Vector]:
    """Places u32[top], increasing, and elements u32[top + what stands behind the coordinates]."""
    cut = bit_packing.packed_bytes(plan.top, plan.place_bits)
    places = bit_packing.unpack(memoryview(content)[:cut], plan.top, plan.place_bits)
    behind = plan.length - plan.coordinates
    elements = bit_packing.unpack(memoryview(content)[cut:], plan.top + behind, plan.bits)
    if int(places[-1]) >= plan.coordinates or not np.all(places[1:] > places[:-1]):
        raise PackingError("places that are none, or not in increasing order")
    return places, ring.settled(elements, plan)
