"""What happens to an edge, and the phases in which; `machine` has the table."""

from __future__ import annotations

from enum import StrEnum

from .edge_state import Phase


class Trigger(StrEnum):
    """What can happen to an edge."""

    STARTED = "started"
    CHECK_IN = "CheckIn"
    PACE = "Pace"
    PACE_DRAINS = "Pace that drains it"
    PACE_OPENS = "Pace that drains it no more"
    HELLO_DUE = "time for an EdgeHello"
    FETCH = "FetchBlob"
    BLOB = "Blob that is missing"
    STORED = "blob stored"
    BLOB_GONE = "blob that is gone or damaged"
    CORRUPT = "blob does not hash to its digest"
    FETCH_DUE = "blob still missing"
    TASK = "EdgeTask, new"
    NO_ROOM = "EdgeTask, new, beyond the limits"
    REFUSED = "EdgeTask, new, that is not signed"
    ATTEMPT = "of an open attempt"
    ANSWER_AGAIN = "answer of a closed attempt again"
    LATE_ANSWER = "answer to no attempt that it knows"
    CLOSED = "RoundClosed"
    SESSION_UP = "KeyBundle, SealedShares, Consent or UnmaskShares"
    SESSION_DOWN = "Cohort, Delivery, Survivors, UnmaskRequest, or RoundClosed for a device"
    HELP = "HelpRequest"
    HELPED = "sum of masks"
    LOG_UPDATE = "another head of the certificate log"
    DENIED = "another copy of the deny list"
    DRAIN = "order to drain"
    OPEN_AGAIN = "order to drain no more"
    DRAIN_TOO = "order about draining, which goes on"
    FORGET = "a device is revoked"
    LEFT = "a device has lost its connection"
    STALE = "late, repeated or of no use"


OFFLINE, SERVING, DRAINING = Phase
ON = (SERVING, DRAINING)
