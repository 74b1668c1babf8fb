"""Limits of a task, the same on devices and edges, checked before allocation."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.ports import BLOB_BYTES_MAX, FROZEN_PARTS_MAX, RETRY_MS_MAX
from ..wire.blob_pb2 import BlobRef
from ..wire.round_pb2 import EVALUATE, TRAIN, Task
from .mechanisms.ring import RingError, RingPlan
from .secagg.cohort import check_plan
from .secagg.helper import Helpers, is_card
from .secagg.secure_errors import SecureError
from .secagg.transcript import Session

DIGEST_BYTES = 32
KEY_BYTES = 8
#: Of a SignedArtifact (proto/artifact.proto).
MANIFEST_BYTES_MAX = 16 * 1024
#: A task that takes longer than a week is a mistake.
TIME_MS_MAX = RETRY_MS_MAX


def is_sane(task: Task) -> bool:
    """Whether a task keeps the limits that proto/round.proto states."""
    return (
        min(task.run, task.round, task.attempt) >= 1
        and task.time_ms <= TIME_MS_MAX
        and len(task.rng_key) == KEY_BYTES
        and len(task.manifest) <= MANIFEST_BYTES_MAX
        and task.purpose in (TRAIN, EVALUATE)
        and _is_sane_ref(task.bundle)
        and _is_sane_ref(task.weights)
        and are_parts(task.frozen)
        and _can_be_added(task)
        and _can_be_masked(task)
    )


def left_ms(task: Task) -> int:
    """What was left of a task's time when this copy of it was sent."""
    return min(task.left_ms, task.time_ms) if task.HasField("left_ms") else task.time_ms


def with_left(task: Task, left_ms: int) -> Task:
    """A task as it is sent with so much of its time left: itself, or a copy."""
    if left_ms >= task.time_ms:
        return task
    copy = Task()
    copy.CopyFrom(task)
    copy.left_ms = max(0, left_ms)
    return copy


def _is_sane_ref(ref: BlobRef) -> bool:
    return len(ref.digest) == DIGEST_BYTES and ref.size <= BLOB_BYTES_MAX


def are_parts(refs: Sequence[BlobRef]) -> bool:
    """Whether these can be the parts of a model's frozen leaves."""
    return len(refs) <= FROZEN_PARTS_MAX and all(ref.size and _is_sane_ref(ref) for ref in refs)


def _can_be_added(task: Task) -> bool:
    """Whether updates that are made by the task's plan fit the ring.

    The clip must be a number, the element's width supported, and the sum must not overflow.
    Distributed noise needs masks, because one device's share of it hides little; updates whose
    coordinates each device chooses cannot be masked.
    """
    try:
        ring = RingPlan.of(task.ring)
    except RingError:
        return False
    masked = task.HasField("secure")
    return not (ring.top if masked else ring.noise)


def _can_be_masked(task: Task) -> bool:
    """Whether a plan of masks, where there is one, has numbers that a session can have."""
    if not task.HasField("secure"):
        return True
    try:
        if task.secure.helpers:
            Helpers.of(task)
            return all(map(is_card, task.secure.helpers))
        check_plan(Session.of(task))
    except SecureError:
        return False
    return True
