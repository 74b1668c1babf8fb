"""Memory that was freed is there for the next large message."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
from delian.core.node.service.process_memory import keep_freed_memory

if {keep}:
    assert keep_freed_memory()
before = None
for i in range(220):
    blocks = [bytes(3 * 2**20) + b"x" for _ in range(4)]
    del blocks
    if i == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_blocks_of_some_mib_come_without_new_pages():
    def faults(keep: bool) -> int:
        script = FAULTS.format(keep=keep)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        return int(done.stdout)

    kept, given_back = faults(True), faults(False)
    assert kept < 2_000 and kept < given_back
