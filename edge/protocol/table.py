"""The table of an edge; `machine` has the actions, and `collection` the table of one attempt."""

from __future__ import annotations

from enum import StrEnum

from ...core.protocol.machine import IGNORE, row
from .edge_state import Phase


class Trigger(StrEnum):
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
    STALE = "late, repeated or of no use"


OFFLINE, SERVING, DRAINING = Phase
_T = Trigger
_ON = (SERVING, DRAINING)

TABLE = (
    row(OFFLINE, _T.STARTED, "start", SERVING, "say hello"),
    row(_ON, _T.STARTED, "restart", None, "the state survived: set the timers again"),
    row(_ON, _T.CHECK_IN, "admit", None, "Accept or Reject"),
    row(_ON, _T.PACE, "keep_pace", None, "how many devices, and when they come back"),
    row(SERVING, _T.PACE_DRAINS, "drain_by_pace", DRAINING, "send the pool away, as by an order"),
    row(DRAINING, _T.PACE_OPENS, "keep_pace", SERVING, "take devices again"),
    row(_ON, _T.HELLO_DUE, "hello", None, "the pool changed, or a heartbeat"),
    row(_ON, _T.FETCH, "serve", None, "send it, or when it is here"),
    row(_ON, _T.BLOB, "keep", None, "store it"),
    row(_ON, _T.STORED, "serve_waiting", None, "send it to all who asked"),
    row(_ON, _T.BLOB_GONE, "refetch", None, "ask for it again where a task names it"),
    row(_ON, _T.CORRUPT, IGNORE, None, "the next repetition asks again"),
    row(_ON, _T.FETCH_DUE, "fetch_again", None, "request or blob was lost"),
    row(_ON, _T.TASK, "open", None, "a collection of its own, beside the others"),
    row(_ON, _T.NO_ROOM, "turn_down", None, "an empty sum, so that nobody waits"),
    row(_ON, _T.REFUSED, "refuse_task", None, "record why; devices would refuse it too"),
    row(_ON, _T.ATTEMPT, "pass_on", None, "its collection knows what to do"),
    row(_ON, _T.ANSWER_AGAIN, "ack_again", None, "the UploadAck was lost"),
    row(_ON, _T.LATE_ANSWER, "ack_late", None, "it is in no sum"),
    row(_ON, _T.CLOSED, "close", None, "its weights may be of no use any more"),
    row(_ON, _T.SESSION_UP, "pass_up", None, "to the cloud, from whichever device"),
    row(_ON, _T.SESSION_DOWN, "pass_down", None, "to the device that it names"),
    row(_ON, _T.HELP, "help", None, "open the seeds, once and for all, and add their masks up"),
    row(_ON, _T.HELPED, "give", None, "to the cloud"),
    row(tuple(Phase), _T.LOG_UPDATE, "keep_log", None, "take it if it continues the known one"),
    row(tuple(Phase), _T.DENIED, "keep_denied", None, "it helps by one that is not too old"),
    row(SERVING, _T.DRAIN, "drain", DRAINING, "send the pool away; what was begun goes on"),
    row(DRAINING, _T.OPEN_AGAIN, "serve_again", SERVING, "take devices again"),
    row(DRAINING, _T.DRAIN_TOO, "keep_order", None, "the cloud's pace says so too, or still"),
    row(_ON, _T.FORGET, "forget", None, "nobody waits for it"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)
