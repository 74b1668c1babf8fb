"""What can happen to a device, and groups of its phases; `machine` has the table."""

from __future__ import annotations

from enum import StrEnum

from .device_state import Phase


class Trigger(StrEnum):
    """What can happen to a device."""

    STARTED = "started"
    RETRY = "time to come back"
    UNANSWERED = "no answer yet"
    HOME_SILENT = "no answer, too many times"
    LEASE_OVER = "lease is over"
    ACCEPTED = "Accept"
    REJECTED = "Reject"
    WORK_CAME = "Reject: but there is work now"
    SENT_AWAY = "Reject: another home may take it"
    TASK = "Task"
    UNWANTED = "Task that it will not do"
    REFUSED = "Task that is not signed, or breaks the owner's rules"
    BEHIND = "Task that names a newer deny list, for the first time"
    BLOB = "Blob that is missing"
    STORED = "blob stored"
    CORRUPT = "blob does not hash to its digest"
    BLOB_GONE = "blob that is gone or damaged"
    ALL_HERE = "nothing is missing"
    TRAINED = "finite update"
    TRAINED_EARLY = "finite update, before its neighbours are known"
    UNFIT = "no update"
    SESSION = "Cohort, Delivery, Survivors or UnmaskRequest"
    CAN_MASK = "its neighbours are known"
    SESSION_FAILED = "its session cannot go on"
    POLL_DUE = "no word of the session yet"
    ANSWERED = "UploadAck"
    IN_SUM = "UploadAck: its masked update is in the sum"
    HEARD = "UploadAck again"
    TIME_OVER = "task's time is over"
    CLOSED = "RoundClosed"
    CONDITIONS = "other conditions"
    CONSENT_LOST = "consent is taken back"
    CONSENT = "its owner agrees, or does no more"
    HOMES = "other homes"
    HOME_GONE = "other homes, without the present one"
    CONNECTED = "connected to its home again"
    DENIED = "another deny list"
    LOG_UPDATE = "a head of the certificate log"
    STALE = "late, repeated or of no use"


OFFLINE, IDLE, CHECKING_IN, READY, FETCHING, TRAINING, SEALING, UPLOADING, UNMASKING = Phase
RESTING = (IDLE, CHECKING_IN, READY)
#: Its home waits for its answer.
WORKING = (FETCHING, TRAINING, SEALING, UPLOADING)
OFFERED = (CHECKING_IN, READY)
BEFORE = (FETCHING, TRAINING, SEALING)
IN_SESSION = (*WORKING, UNMASKING)
NOT_OFFERED = (OFFLINE, IDLE, *WORKING, UNMASKING)
NOT_TRAINING = (*RESTING, FETCHING, SEALING, UPLOADING, UNMASKING)
