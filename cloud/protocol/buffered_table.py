"""The table of a buffered run; `buffered` has the theory and the actions."""

from __future__ import annotations

from enum import StrEnum

from ...core.protocol.machine import IGNORE, row
from .coordinator_state import Phase


class Trigger(StrEnum):
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
_T = Trigger
OUT = (COLLECTING, AGGREGATING, EVALUATING)
_ON = (*OUT, PAUSED)

TABLE = (
    row(NEW, _T.STARTED, "begin", COLLECTING, "with the first model"),
    row(OUT, _T.STARTED, "restart", None, "the state survived: ask the edges again"),
    row(PAUSED, _T.STARTED, IGNORE, None, "nothing is under way"),
    row(OUT, _T.REST_OVER, "look", None, "take whoever is ready"),
    row(COLLECTING, _T.WAIT_OVER, "starve", COLLECTING, "a failed attempt"),
    row(OUT, _T.JUDGES_LATE, "skip", None, "training goes on without it"),
    row(COLLECTING, _T.OFFER, "open_wave", COLLECTING, "uniformly; from the newest model"),
    row((COLLECTING, EVALUATING), _T.JUDGES, "open_wave", None, "uniformly; they evaluate"),
    row(OUT, _T.PROGRESS, "note", None, "a sign of life, and a count"),
    row(OUT, _T.SUM, "add", None, "to the wave's sum"),
    row(OUT, _T.BAD_SUM, "refuse", None, "the edge's devices count as dropped"),
    row(_ON, _T.SUM_AGAIN, "ack", None, "it is of no more use to the edge"),
    row(OUT, _T.EDGE_LOST, "lose", None, "what it had is gone"),
    row(OUT, _T.SILENT, "ask_again", None, "task, request or answer was lost"),
    row(OUT, _T.WAVE_OVER, "end_wave", None, "whoever is missing is late"),
    row(OUT, _T.SESSION, "attend", None, "keep it, and say what comes next"),
    row(_ON, _T.SESSION_OVER, "turn_away", None, "nobody waits for the device"),
    row(OUT, _T.STEP_OVER, "step", None, "keys, shares, consents"),
    row(OUT, _T.OPENED, "use_sum", None, "as if there had been no masks"),
    row(AGGREGATING, _T.UNMASKED, "unmask", None, "take these masks out of the batch"),
    row(AGGREGATING, _T.NOT_UNMASKED, "note_refusal", COLLECTING, "these updates are lost"),
    row(AGGREGATING, _T.HELP_AGAIN, "prove_again", None, "from the head that the helper has"),
    row(AGGREGATING, _T.HELP_DUE, "ask_helpers", None, "request or answer was lost"),
    row(AGGREGATING, _T.HELP_OVER, "end_help", COLLECTING, "these updates are lost"),
    row(COLLECTING, _T.AT_EDGES, "flush", COLLECTING, "ask those that have some"),
    row(COLLECTING, _T.FULL, "fill", AGGREGATING, "decode, weigh by staleness, update the model"),
    row((COLLECTING, EVALUATING), _T.AGAIN, "see", None, "is there enough already?"),
    row(AGGREGATING, _T.UPDATED, "next_model", COLLECTING, "waves begin from it"),
    row(AGGREGATING, _T.LAST_UPDATED, "last_model", DONE, "all models are made"),
    row(AGGREGATING, _T.LAST_TO_JUDGE, "last_model", EVALUATING, "all models are made"),
    row(AGGREGATING, _T.UPDATE_STOPPED, "fall_short", COLLECTING, "these updates are lost"),
    row((COLLECTING, AGGREGATING), _T.GIVE_UP, "give_up", FAILED, "the run ends"),
    row(OUT, _T.LAST_JUDGED, "finish", DONE, "all are made, or none gets better"),
    row(OUT, _T.PAUSE, "pause", None, "begin no wave"),
    row((COLLECTING, EVALUATING), _T.HOLD, "hold", PAUSED, "all waves are over"),
    row(PAUSED, _T.RESUME, "go_on", COLLECTING, "with the newest model"),
    row(PAUSED, _T.RESUME_JUDGING, "go_on", EVALUATING, "with the last model"),
    row(OUT, _T.RESUME, "go_on", None, "it had not paused yet"),
    row(_ON, _T.CANCEL, "finish", CANCELLED, "drop what is under way; the model stays"),
    row(_ON, _T.WEIGHTS, "take_weights", None, "what began from others is dropped"),
    row(_ON, _T.STALE, IGNORE, None, "count it"),
)
