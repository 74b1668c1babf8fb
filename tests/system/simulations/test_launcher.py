"""Daemons as child processes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from delian.simulations.processes import launcher
from delian.simulations.processes.launcher import Children

#: In place of a daemon.
_DAEMON = 'import signal; print("{}", flush=True); signal.pause()\n'


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child outlives its parent")
def test_a_child_outlives_the_thread_that_has_started_it_again(tmp_path, monkeypatch):
    """The kernel ends a child with the thread that started it, once the child has asked for it."""
    monkeypatch.setattr(launcher, "_BOOT", launcher._BOOT.rpartition("runpy.")[0] + _DAEMON)
    with Children(tmp_path) as children:
        child = children.add("daemon", [])
        children.wait_ready(["daemon"])

        def crash() -> None:
            children.crash("daemon")
            children.wait_ready(["daemon"])  # so it has asked

        thread = threading.Thread(target=crash)
        thread.start()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0)  # what its end leads to comes before it is gone
        child.signal(signal.SIGTERM)
        assert child.wait(time.monotonic() + launcher.STOP_S) == -signal.SIGTERM
