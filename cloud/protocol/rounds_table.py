"""The table of a synchronous run; `rounds` has the theory and the actions."""

from __future__ import annotations

from enum import StrEnum

from ...core.protocol.machine import IGNORE, row
from .coordinator_state import Phase


class Trigger(StrEnum):
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
_T = Trigger
OUT = (COLLECTING, EVALUATING)
IN_SESSION = (*OUT, UNMASKING)
_BUSY = (COLLECTING, AGGREGATING, EVALUATING, UNMASKING)
_FALLIBLE = (WAITING, COLLECTING, AGGREGATING, UNMASKING)
_JUDGING = (WAITING, EVALUATING, UNMASKING)
_ON = (WAITING, *_BUSY, PAUSED)

TABLE = (
    row((NEW, WAITING), _T.STARTED, "wait", WAITING, "for devices"),
    row(OUT, _T.STARTED, "resume", None, "the state survived: ask the edges again"),
    row(AGGREGATING, _T.STARTED, "aggregate", AGGREGATING, "the sum survived: update again"),
    row(PAUSED, _T.STARTED, IGNORE, None, "nothing is under way"),
    row(WAITING, _T.REST_OVER, "look", WAITING, "the last cohort had time to come back"),
    row(WAITING, _T.WAIT_OVER, "settle", WAITING, "with fewer, or not at all"),
    row(WAITING, _T.ENOUGH, "select", COLLECTING, "uniformly; task them through their edges"),
    row(WAITING, _T.ENOUGH_JUDGES, "select", EVALUATING, "uniformly; the newest model is judged"),
    row(WAITING, _T.OTHERS_FIRST, "wait_on", WAITING, "they will come back: no attempt is lost"),
    row(WAITING, _T.TOO_FEW, "fall_short", WAITING, "is it worth another attempt?"),
    row(WAITING, _T.NO_JUDGES, "skip", WAITING, "training goes on without it"),
    row(OUT, _T.FETCHED, "hear", None, "a sign of life"),
    row(OUT, _T.PROGRESS, "note", None, "a sign of life, and a count"),
    row(OUT, _T.TARGET_MET, "flush", None, "ask for the sums now"),
    row(OUT, _T.SUM, "add", None, "to the running sum"),
    row(OUT, _T.BAD_SUM, "refuse", None, "the edge's devices count as dropped"),
    row(_ON, _T.SUM_AGAIN, "ack", None, "it is of no more use to the edge"),
    row(OUT, _T.EDGE_LOST, "lose", None, "what it had is gone"),
    row(OUT, _T.SILENT, "ask_again", None, "task, request or answer was lost"),
    row(COLLECTING, _T.ALL_IN, "judge", COLLECTING, "is it enough?"),
    row(COLLECTING, _T.TIME_OVER, "judge", COLLECTING, "is it enough?"),
    row(UNMASKING, _T.STARTED, "resume_unmasking", UNMASKING, "the shares survived: ask for more"),
    row(IN_SESSION, _T.SESSION, "attend", None, "keep it, and say what comes next"),
    row(_ON, _T.SESSION_OVER, "turn_away", None, "nobody waits for the device"),
    row(IN_SESSION, _T.STEP_OVER, "step", None, "keys, shares, consents"),
    row(OUT, _T.UNMASK, "unmask", UNMASKING, "whose updates are in the sum?"),
    row(UNMASKING, _T.SHARES_IN, "open_sum", UNMASKING, "a program takes the masks out"),
    row((COLLECTING, UNMASKING), _T.OPENED, "use_sum", None, "as if there had been no masks"),
    row(IN_SESSION, _T.SESSION_FAILED, "fail_session", None, "the sum cannot be read"),
    row((COLLECTING, UNMASKING), _T.CLOSE, "aggregate", AGGREGATING, "decode, update the model"),
    row(_FALLIBLE, _T.SHORT, "try_again", WAITING, "a further attempt"),
    row(_FALLIBLE, _T.GIVE_UP, "give_up", FAILED, "the run ends"),
    row(AGGREGATING, _T.UPDATED, "next_round", WAITING, "with the new weights"),
    row(AGGREGATING, _T.LAST_UPDATED, "end", DONE, "all models are made"),
    row(AGGREGATING, _T.UPDATE_STOPPED, "fall_short", AGGREGATING, "the program failed"),
    row(EVALUATING, _T.ALL_IN, "score", EVALUATING, "decode the metrics"),
    row(EVALUATING, _T.TIME_OVER, "score", EVALUATING, "of those who reported"),
    row(_JUDGING, _T.JUDGED, "train_on", WAITING, "the next round"),
    row(_JUDGING, _T.LAST_JUDGED, "finish", DONE, "all are made, or none gets better"),
    row(WAITING, _T.PAUSE, "pause", PAUSED, "select nobody"),
    row(_BUSY, _T.PAUSE, "pause_after", None, "what is under way ends first"),
    row(WAITING, _T.HOLD, "hold", PAUSED, "what was under way has ended"),
    row(PAUSED, _T.RESUME, "go_on", WAITING, "where it was"),
    row(_BUSY, _T.RESUME, "go_on_after", None, "it had not paused yet"),
    row(_ON, _T.CANCEL, "cancel", CANCELLED, "drop what is under way; the model stays"),
    row(_ON, _T.WEIGHTS, "take_weights", None, "from the next round on"),
    row(_ON, _T.STALE, IGNORE, None, "count it"),
)
