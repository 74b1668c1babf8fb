"""The tests of `test_collector` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNTED = """
import gc
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info) if phase == "start" else None)
import {module}
assert gc.isenabled() and not gc.get_freeze_count()
print(len(searched))
"""


@pytest.mark.parametrize(
    "module",
    [
        "delian.simulations.runs.simulate",
        "delian.simulations.scenario.scenario_file",
        "delian.simulations.runs.result",
        "delian.device.agent.worker",
        "delian.cli.main",
    ],
)
def test_what_takes_long_to_import_is_imported_without_it(module):
    done = subprocess.run(
        [sys.executable, "-c", COUNTED.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 20  # otherwise 50 to 150


ENDED = """
import weakref
from delian.core.common.collector import end_unsearched

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("searched")

{call}
kept = Cycle()
weakref.finalize(kept, print, "finalised")
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [("end_unsearched()", ["finalised"]), ("", ["finalised", "searched"])],
)
def test_a_process_ends_without_a_search_and_with_what_was_registered(call, said):
    done = subprocess.run(
        [sys.executable, "-c", ENDED.format(call=call)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == said
