"""The tests of `test_federation` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys

from support.processes import python_path

SCRIPT = """
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.simulations.federation.federation import Federation
from delian.simulations.scenario.federation_plan import FederationPlan
from delian.simulations.federation.fleet import Fleet
from delian.simulations.federation.network import LINKS
from support.stub_training import StubTraining
ring = RingPlan(clip=1.0, clients_max=64, dimension=100)
fleet = Fleet(20, 3, {"phone": 1.0, "board": 1.0}, link=LINKS["poor"], dropout=0.1)
plan = FederationPlan.of(rounds=3, cohort=5, ring=ring, fleet=fleet)
print(Federation(plan, StubTraining(ring, THREADS), 5, THREADS).run().trace_hash)
"""


def test_the_trace_does_not_depend_on_threads_or_the_hash_seed():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT.replace("THREADS", threads)],
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads, seed in (("1", "0"), ("2", "1"), ("2", "12345"))
    }
    assert len(hashes) == 1 and len(hashes.pop().strip()) == 64
