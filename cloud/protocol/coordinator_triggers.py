"""What happens to the coordinator, and the phases in which."""

from __future__ import annotations

from enum import StrEnum

from .coordinator_state import Serving


class Trigger(StrEnum):
    """What can happen to the coordinator."""

    STARTED = "started"
    HELLO = "EdgeHello, newer"
    FETCH = "FetchBlob"
    OF_RUN = "message, timer or program of an active run"
    LATE_SUM = "EdgeSum of a run that is over"
    LATE_SESSION = "message of a session of a run that is over"
    SUBMIT = "order: a new run"
    ORDER = "order to an active run"
    BAD_ORDER = "order that cannot be followed"
    DRAIN = "order: an edge drains, or no more"
    DENIED = "another deny list"
    LOG_HEAD = "another head of the certificate log"
    BLOB_GONE = "blob that is gone or damaged"
    LOOK = "time to look at runs that wait"
    STALE = "late, repeated or of no use"


OFFLINE, SERVING = Serving
