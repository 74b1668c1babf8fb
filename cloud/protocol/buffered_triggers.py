"""What happens to a buffered run, and the phases in which; `buffered_machine` has the table."""

from __future__ import annotations

from enum import StrEnum

from .coordinator_state import Phase


class Trigger(StrEnum):
    """What can happen to a buffered run."""

    STARTED = "started"
    REST_OVER = "rest is over"
    WAIT_OVER = "no update for long"
    JUDGES_LATE = "waited long enough for devices to evaluate"
    OFFER = "ready devices"
    JUDGES = "ready devices to evaluate"
    PROGRESS = "EdgeProgress"
    SUM = "next part of an edge's sum"
    BAD_SUM = "EdgeSum that does not fit"
    SUM_AGAIN = "EdgeSum again, or of a wave that is over"
    EDGE_LOST = "edge has started anew"
    SILENT = "edges still silent"
    WAVE_OVER = "wave's time is over"
    SESSION = "KeyBundle, SealedShares, Consent or UnmaskShares"
    SESSION_OVER = "message of a session that is over"
    STEP_OVER = "time to go on without who is silent, or to ask them again"
    OPENED = "sum without masks"
    UNMASKED = "HelpSum"
    NOT_UNMASKED = "HelpSum that is none"
    HELP_AGAIN = "HelpSum from another head of the certificate log"
    HELP_DUE = "helpers still silent"
    HELP_OVER = "helpers silent for too long"
    AT_EDGES = "K updates are here and with the edges"
    FULL = "K updates are here"
    AGAIN = "what came meanwhile"
    UPDATED = "new model"
    LAST_UPDATED = "last model"
    LAST_TO_JUDGE = "last model, which is to be evaluated"
    UPDATE_STOPPED = "no new model"
    GIVE_UP = "nothing came of it, too many times"
    LAST_JUDGED = "evaluation is over, and it was the last"
    PAUSE = "pause"
    HOLD = "pause, and nothing is under way"
    RESUME = "resume"
    RESUME_JUDGING = "resume, after the last model"
    CANCEL = "cancel"
    WEIGHTS = "other weights"
    STALE = "late, repeated or of no use"


NEW, _, COLLECTING, AGGREGATING, EVALUATING, _, PAUSED, DONE, CANCELLED, FAILED = Phase
OUT = (COLLECTING, AGGREGATING, EVALUATING)
ON = (*OUT, PAUSED)
