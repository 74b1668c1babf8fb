"""What `delian run watch` says of a run's events."""

from __future__ import annotations

import pytest
from delian.cli.fleet.run_commands import _lines
from delian.cli.fleet.run_events import sentence
from delian.cli.output import to_json
from delian.core.wire.operator_pb2 import Outlook

STEP = {"round": 2, "attempt": 5, "phase": "masks", "devices": 38, "silent": 0}
SESSION = {
    "round": 2,
    "attempt": 5,
    "why": "",
    "asked": 40,
    "summed": 36,
    "seconds": {"keys": 0.25, "masks": 12.0},
}
BACK = {
    "round": 7,
    "to": 4,
    "loss": 0.71,
    "best": 0.5,
    "accuracy": 0.6,
    "best_accuracy": 0.75,
}
SPENT = {"privacy": {"epsilon": 1.5, "delta": 1e-6, "releases": 3}}
ROUND = {
    "round": 2,
    "attempt": 1,
    "succeeded": True,
    "selected": 8,
    "reported": 8,
    "refused": {},
    "model": "abc",
}
PLAN = {"name": "n", "rounds": 3, "mode": "synchronous", "cohort": 5, "cohorts": 0}
SHOWN = {
    "run": 1,
    "why": "",
    "attempt": 2,
    "chain": "",
    "weights": {"digest": ""},
    "created_ms": 1,
    "ended_ms": 0,
    "plan": {**PLAN, "bundle": {"digest": ""}, "labels": {}, "privacy": None},
    "privacy_spent": None,
}


@pytest.mark.parametrize(
    ("kind", "facts", "said"),
    [
        ("session_step", STEP, "round 2 attempt 5: masks, with 38 devices"),
        ("session_step", {**STEP, "silent": 2}, "masks, with 38 devices, 2 silent"),
        ("session", SESSION, "masked sum of 36 of 40 devices is open, 4 dropped out (keys 0.2 s"),
        ("session", {**SESSION, "why": "no word"}, "attempt 5: masked sum failed: no word"),
        ("rolled_back", BACK, "round 6 is rolled back to model 4: personal loss=0.71 (best 0.5)"),
        ("phase", {"phase": "failed", "why": "too few"}, "failed: too few"),
        (
            "phase",
            {"phase": "done", "why": "", **SPENT},
            "done; epsilon 1.5 at delta 1e-06 is spent",
        ),
        ("round", {**ROUND, **SPENT}, "model abc; epsilon 1.5 at delta 1e-06 is spent"),
    ],
)
def test_an_event_is_told_in_words(kind, facts, said):
    assert said in sentence(kind, facts, 9)


def test_only_the_end_of_a_run_and_its_rounds_say_what_is_spent():
    assert sentence("phase", {"phase": "unmasking", "why": "", **SPENT}, 9) == "unmasking"
    assert "epsilon" not in sentence("round", ROUND, 9)


def test_an_outlook_is_an_event_of_its_own():
    said = "needs 15 devices (at least 6), 4 ready"
    assert sentence("outlook", {"said": said, "wanted": 15}, 9) == f"waiting: {said}"


def test_a_run_that_is_over_is_in_its_last_round_and_one_that_waits_says_for_what():
    over = "\n".join(_lines({**SHOWN, "phase": "done", "round": 4}))
    assert "round     3 of 3, attempt 2" in over
    outlook = Outlook(wanted=15, least=6, ready=4, unconsented=1, next_try_ms=90_000)
    shown = {**SHOWN, "phase": "waiting", "round": 2, "outlook": to_json(outlook)}
    shown["plan"] = {**SHOWN["plan"], "secure": {"cohort_min": 6}}
    waits = _lines(shown)
    assert "round     2 of 3, attempt 2" in waits
    assert waits[2] == (
        "waits     needs 15 devices (at least 6), 4 ready, 1 without consent; the fleet lacks"
        " 2 devices; next try in 90 s"
    )
    hints = [line for line in waits if line.startswith("hint")]
    assert ["consent yes" in hints[0], "fleet ls" in hints[1], "cohort_min=N" in hints[2]] == [
        True,
        True,
        True,
    ]
    assert not any(
        line.startswith("waits") for line in _lines({**SHOWN, "phase": "waiting", "round": 1})
    )


def test_a_run_that_promises_something_is_shown_with_what_is_spent_of_it():
    shown = {**SHOWN, "phase": "done", "round": 4}
    assert "privacy" not in "\n".join(_lines(shown))
    shown["plan"] = {**SHOWN["plan"], "privacy": {"epsilon": 4.0, "delta": 1e-6}}
    spent = "\n".join(_lines({**shown, "privacy_spent": SPENT["privacy"]}))
    assert "privacy   epsilon 1.5 of 4 spent at delta 1e-06, in 3 sums" in spent
    assert "promised; not known how much is spent" in "\n".join(_lines(shown))
