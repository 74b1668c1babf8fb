"""What happens to a synchronous run, and the phases in which; `rounds_machine` has the table."""

from __future__ import annotations

from enum import StrEnum

from .coordinator_state import Phase


class Trigger(StrEnum):
    """What can happen to a synchronous run."""

    STARTED = "started"
    REST_OVER = "rest is over"
    WAIT_OVER = "waited long enough"
    ENOUGH = "enough devices are ready"
    ENOUGH_JUDGES = "enough devices are ready to evaluate"
    OTHERS_FIRST = "too few are ready, for other runs have them"
    TOO_FEW = "too few are ready"
    NO_JUDGES = "too few are ready to evaluate"
    FETCHED = "FetchBlob"
    PROGRESS = "EdgeProgress"
    TARGET_MET = "enough updates are with the edges"
    SUM = "first EdgeSum of an edge"
    BAD_SUM = "EdgeSum that does not fit"
    SUM_AGAIN = "EdgeSum again, or late"
    EDGE_LOST = "edge has started anew"
    SILENT = "edges still silent"
    ALL_IN = "all edges have reported"
    TIME_OVER = "round's time is over"
    CLOSE = "enough reports"
    UNMASK = "enough masked reports"
    SESSION = "KeyBundle, SealedShares, Consent or UnmaskShares"
    SESSION_OVER = "message of a session that is over"
    STEP_OVER = "time to go on without who is silent, or to ask them again"
    SHARES_IN = "enough shares"
    OPENED = "sum without masks"
    SESSION_FAILED = "the masks cannot be taken out"
    SHORT = "too few reports"
    GIVE_UP = "too few reports, too many times"
    UPDATED = "new model"
    LAST_UPDATED = "new model of the last round"
    UPDATE_STOPPED = "no new model"
    JUDGED = "evaluation is over"
    LAST_JUDGED = "evaluation is over, and it was the last"
    PAUSE = "pause"
    HOLD = "pause, which was ordered before"
    RESUME = "resume"
    CANCEL = "cancel"
    WEIGHTS = "other weights"
    STALE = "late, repeated or of no use"


(
    NEW,
    WAITING,
    COLLECTING,
    AGGREGATING,
    EVALUATING,
    UNMASKING,
    PAUSED,
    DONE,
    CANCELLED,
    FAILED,
) = Phase
OUT = (COLLECTING, EVALUATING)
IN_SESSION = (*OUT, UNMASKING)
BUSY = (COLLECTING, AGGREGATING, EVALUATING, UNMASKING)
FALLIBLE = (WAITING, COLLECTING, AGGREGATING, UNMASKING)
JUDGING = (WAITING, EVALUATING, UNMASKING)
ON = (WAITING, *BUSY, PAUSED)
