"""The tests of `test_dst` that need a process, a socket or a clock."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
from delian.simulations.dst.check import run_seed
print([run_seed(seed).trace.hexdigest() for seed in (4, 5, 6)])
"""


def test_a_seed_gives_one_trace_whatever_hashes_are_seeded_with():
    traces = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(
            command, capture_output=True, env=environment, check=True, timeout=600
        )
        traces.add(done.stdout)
    assert len(traces) == 1
