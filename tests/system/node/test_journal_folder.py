"""The tests of `test_journal_folder` that need a process, a socket or a clock."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest
from delian.core.node.storage.disk import FolderInUse, FolderLock


def test_a_lock_goes_with_its_process(tmp_path):
    code = """
        import sys, time
        from pathlib import Path
        from delian.core.node.storage.disk import FolderLock
        lock = FolderLock(Path(sys.argv[1]))
        print("locked", flush=True)
        time.sleep(600)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(FolderInUse, match=f"process {child.pid}"):
            FolderLock(tmp_path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(120)
        child.stdout.close()
    FolderLock(tmp_path).close()
