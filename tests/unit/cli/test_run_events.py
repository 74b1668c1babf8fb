"""What `delian run watch` says of a run's events."""

from __future__ import annotations

import pytest
from delian.cli.fleet.run_commands import _lines, _sentence

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
    assert said in _sentence(kind, facts, 9)


def test_only_the_end_of_a_run_and_its_rounds_say_what_is_spent():
    assert _sentence("phase", {"phase": "unmasking", "why": "", **SPENT}, 9) == "unmasking"
    assert "epsilon" not in _sentence("round", ROUND, 9)


def test_a_run_that_is_over_is_in_its_last_round_and_one_that_waits_says_for_whom():
    over = "\n".join(_lines({**SHOWN, "phase": "done", "round": 4}))
    assert "round     3 of 3, attempt 2" in over
    waits = "\n".join(_lines({**SHOWN, "phase": "waiting", "round": 2}))
    assert "round     2 of 3" in waits and "waiting (for enough devices: `delian fleet ls`" in waits


def test_a_run_that_promises_something_is_shown_with_what_is_spent_of_it():
    shown = {**SHOWN, "phase": "done", "round": 4}
    assert "privacy" not in "\n".join(_lines(shown))
    shown["plan"] = {**SHOWN["plan"], "privacy": {"epsilon": 4.0, "delta": 1e-6}}
    spent = "\n".join(_lines({**shown, "privacy_spent": SPENT["privacy"]}))
    assert "privacy   epsilon 1.5 of 4 spent at delta 1e-06, in 3 sums" in spent
    assert "promised; not known how much is spent" in "\n".join(_lines(shown))
