"""What a run changes in the interpreter is put back."""

from __future__ import annotations

import gc
import sys

from delian.simulations.federation import process_tuning


def state():
    return gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count() > 0


def test_runs_side_by_side_leave_the_interpreter_as_it_was():
    gc.unfreeze()
    before = state()
    one, other = process_tuning.undisturbed(), process_tuning.undisturbed()
    with one:
        other.__enter__()
        inside = state()
    assert inside != before
    assert state() == inside  # the other goes on
    other.__exit__(None, None, None)
    assert state() == before
