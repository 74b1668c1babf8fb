"""Limits of processes: what a daemon that holds keys asks for itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEEN = """
import asyncio, ctypes, resource
from delian.cli.fleet import daemons

async def serve(config, ready, spans):
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    print(dumpable, *resource.getrlimit(resource.RLIMIT_CORE))

daemons.run("delian-device", serve, None, {}, ())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
def test_a_daemon_leaves_no_core_dump_and_shows_its_memory_to_no_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", SEEN],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=True,
    )
    assert done.stdout.split() == ["0", "0", "0"]
