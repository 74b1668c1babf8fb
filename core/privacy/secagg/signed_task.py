"""The coordinator's signature on a task.

Edges pass tasks on to devices. A device that has an identity begins no task that the coordinator of
its federation has not signed: an edge can withhold a task, but it cannot take the masks out of it
or change its model, ring, plan or round key. The signature covers all that devices must agree on
(`transcript.task_bytes`), the same bytes that keys, seals and masks depend on. The coordinator
signs once an attempt.
"""

from __future__ import annotations

from typing import Final

from ...wire.round_pb2 import Task
from .member_identity import COORDINATOR_BYTES_MAX, SIGNATURE_BYTES_MAX, Identity
from .secure_errors import SecureError
from .transcript import signed_task

#: A task may be begun for so long after its attempt's end, by the device's clock: clocks of devices
#: may be wrong by that much. An earlier attempt than the last is refused without this.
CLOCK_ERROR_S: Final = 3 * 3600

#: The reasons for which a task is refused.
UNSIGNED: Final = "unsigned task"
EXPIRED: Final = "expired task"
SIGNATURE: Final = "task signature"


def sign(task: Task, identity: Identity, ends_s: int) -> None:
    """Signs a task in place until `ends_s`, Unix s. Raises SecureError for wrong sizes."""
    task.expires_s = ends_s + CLOCK_ERROR_S
    task.certificate = identity.certificate
    task.signature = identity.sign(signed_task(task))


def check(task: Task, identity: Identity, now_s: int) -> None:
    """Raises SecureError unless the task's signature is valid at `now_s`, Unix s."""
    if not task.signature:
        raise SecureError(UNSIGNED, "the coordinator has not signed the task")
    sizes = len(task.certificate), len(task.signature)
    if sizes[0] > COORDINATOR_BYTES_MAX or sizes[1] > SIGNATURE_BYTES_MAX:
        raise SecureError(SIGNATURE, "the certificate or the signature of the task is too large")
    if now_s > task.expires_s:
        raise SecureError(EXPIRED, "the task has expired")
    if not identity.verify_coordinator(task.certificate, signed_task(task), task.signature):
        raise SecureError(SIGNATURE, "the task is not what the coordinator has signed")
