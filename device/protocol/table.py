"""The device's table; `machine` has the theory and the actions, `secure_session` those of a
session.
"""

from __future__ import annotations

from enum import StrEnum

from ...core.protocol.machine import IGNORE, row
from .device_state import Phase


class Trigger(StrEnum):
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
    HOMES = "other homes"
    HOME_GONE = "other homes, without the present one"
    CONNECTED = "connected to its home again"
    DENIED = "another deny list"
    LOG_UPDATE = "a head of the certificate log"
    STALE = "late, repeated or of no use"


OFFLINE, IDLE, CHECKING_IN, READY, FETCHING, TRAINING, SEALING, UPLOADING, UNMASKING = Phase
_T = Trigger
RESTING = (IDLE, CHECKING_IN, READY)
#: Somebody waits for its answer.
WORKING = (FETCHING, TRAINING, SEALING, UPLOADING)
OFFERED = (CHECKING_IN, READY)
_BEFORE = (FETCHING, TRAINING, SEALING)
_IN_SESSION = (*WORKING, UNMASKING)
_NOT_OFFERED = (OFFLINE, IDLE, *WORKING, UNMASKING)
_NOT_TRAINING = (*RESTING, FETCHING, SEALING, UPLOADING, UNMASKING)

TABLE = (
    row((OFFLINE, *RESTING), _T.STARTED, "start", CHECKING_IN, "offer itself"),
    row((FETCHING, TRAINING), _T.STARTED, "restart", FETCHING, "train again from the start"),
    row(SEALING, _T.STARTED, "resume_session", SEALING, "the update survived; ask again"),
    row(UPLOADING, _T.STARTED, "resume_upload", UPLOADING, "the answer survived; send it"),
    row(UNMASKING, _T.STARTED, "resume_session", UNMASKING, "the shares survived; ask again"),
    row(IDLE, _T.RETRY, "check_in", CHECKING_IN, "the retry window says so"),
    row(CHECKING_IN, _T.UNANSWERED, "repeat_check_in", CHECKING_IN, "request or answer was lost"),
    row(CHECKING_IN, _T.HOME_SILENT, "rehome", CHECKING_IN, "try the next home"),
    row(CHECKING_IN, _T.ACCEPTED, "wait", READY, "keep the lease and the next window"),
    row(OFFERED, _T.REJECTED, "rest", IDLE, "come back in the window"),
    row(OFFERED, _T.SENT_AWAY, "leave", IDLE, "try the next home in a moment"),
    row(IDLE, _T.WORK_CAME, "come_back_soon", IDLE, "in this window, not in the one before"),
    row(READY, _T.LEASE_OVER, "check_in", CHECKING_IN, "the edge may have forgotten it"),
    row(OFFERED, _T.CONNECTED, "check_in", CHECKING_IN, "a task may have come and gone unheard"),
    row(RESTING, _T.TASK, "take", FETCHING, "also when the Accept was lost"),
    row(RESTING, _T.UNWANTED, "decline", None, "it is over already, or not allowed"),
    row(RESTING, _T.REFUSED, "refuse_task", None, "record why; the true task may still come"),
    row(RESTING, _T.BEHIND, "await_list", None, "fetch the list; the task is sent again"),
    row(FETCHING, _T.BLOB, "keep", FETCHING, "store it"),
    row(FETCHING, _T.STORED, "note", FETCHING, "one less is missing"),
    row(FETCHING, _T.CORRUPT, IGNORE, FETCHING, "the next repetition asks again"),
    row(TRAINING, _T.BLOB_GONE, "refetch", FETCHING, "ask for it again, then train"),
    row(_NOT_TRAINING, _T.BLOB_GONE, "forget", None, "the next task asks for it again"),
    row(FETCHING, _T.UNANSWERED, "fetch_again", FETCHING, "request or blob was lost"),
    row(FETCHING, _T.ALL_HERE, "train", TRAINING, "one call into compiled code"),
    row(TRAINING, _T.TRAINED, "upload", UPLOADING, "mask and send"),
    row(TRAINING, _T.TRAINED_EARLY, "hold", SEALING, "mask it when they are"),
    row(TRAINING, _T.UNFIT, "refuse", UPLOADING, "say that there is no update"),
    row(_IN_SESSION, _T.SESSION, "attend", None, "check it, and say the next thing"),
    row(SEALING, _T.CAN_MASK, "upload_held", UPLOADING, "mask and send"),
    row(WORKING, _T.SESSION_FAILED, "leave_cohort", UPLOADING, "say that there is no update"),
    row(UNMASKING, _T.SESSION_FAILED, "abandon", IDLE, "its neighbours do without its shares"),
    row((*_BEFORE, UNMASKING), _T.POLL_DUE, "poll", None, "say the last thing again"),
    row(UNMASKING, _T.HOME_SILENT, "poll_elsewhere", UNMASKING, "any home passes it on"),
    row(UPLOADING, _T.UNANSWERED, "send_answer", UPLOADING, "answer or its UploadAck was lost"),
    row(UPLOADING, _T.ANSWERED, "finish", IDLE, "the task is over, whatever the status"),
    row(UPLOADING, _T.IN_SUM, "stay", UNMASKING, "its shares will be asked for"),
    row(UNMASKING, _T.HEARD, "hear", UNMASKING, "its home is there"),
    row(_BEFORE, _T.TIME_OVER, "give_up", IDLE, "say so once"),
    row((UPLOADING, UNMASKING), _T.TIME_OVER, "abandon", IDLE, "nobody waits any more"),
    row(WORKING, _T.CLOSED, "stop", IDLE, "it was not needed, or too slow"),
    row(UNMASKING, _T.CLOSED, "part", IDLE, "the sum is known, or given up"),
    row(_NOT_OFFERED, _T.CONDITIONS, "keep_conditions", None, "for the next check-in"),
    row(OFFERED, _T.CONDITIONS, "tell_conditions", CHECKING_IN, "its home must judge anew"),
    row(WORKING, _T.CONSENT_LOST, "withdraw", IDLE, "stop at once, and say so once"),
    row(UNMASKING, _T.CONSENT_LOST, "withhold", IDLE, "its neighbours do without its shares"),
    row((*_NOT_OFFERED, *OFFERED), _T.HOMES, "keep_homes", None, "for the next move"),
    row(OFFERED, _T.HOME_GONE, "leave_home", CHECKING_IN, "offer itself to the first of them"),
    row(tuple(Phase), _T.DENIED, "keep_denied", None, "how old it is decides about masked tasks"),
    row(tuple(Phase), _T.LOG_UPDATE, "keep_log", None, "if it continues the known one"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)
