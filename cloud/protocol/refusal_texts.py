"""Why devices refused a task, in words for the operator.

A device names a reason (`FailureReason`) and nothing else. Some of the reasons do not change
with further attempts, so an attempt that failed says them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ...core.wire.round_pb2 import (
    BELOW_FLOOR,
    MASKS_REQUIRED,
    NO_ROOM,
    NOT_SIGNED,
    QUESTION_REFUSED,
    TASK_NOT_SIGNED,
)

#: FailureReason -> what the operator reads.
REFUSALS: Final = {
    MASKS_REQUIRED: "device's owner requires masks",
    BELOW_FLOOR: "plan's masks are below the floor of the device's owner",
    QUESTION_REFUSED: "device's owner does not allow the question",
    NO_ROOM: "device has no room for the bundle, the weights and the model's frozen parts",
    TASK_NOT_SIGNED: "task arrived without the coordinator's signature, changed or expired",
    NOT_SIGNED: (
        "bundle's signature does not hold on the device: unsigned, of another root key, or older"
        " than one of its line that ran"
    ),
}


def explained(why: str, reasons: Iterable[int]) -> str:
    """Why an attempt failed, with the owners' refusals. reasons: of each device that refused."""
    counts = Counter(reason for reason in reasons if reason in REFUSALS)
    found = [
        f"{text} ({counts[reason]} {'device' if counts[reason] == 1 else 'devices'})"
        for reason, text in REFUSALS.items()
        if counts[reason]
    ]
    return f"{why}: {'; '.join(found)}" if found else why
