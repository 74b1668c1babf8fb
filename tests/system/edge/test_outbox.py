"""The tests of `test_outbox` that need a process, a socket or a clock."""

from __future__ import annotations

import signal
import subprocess
import sys

from delian.edge.service.outbox import Outbox


def contents(box: Outbox, rows: int = 100) -> list[bytes]:
    return [item.content for item in box.take(rows)]


def test_what_was_put_survives_a_kill(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from delian.edge.service.outbox import Outbox\n"
        "box = Outbox(Path(sys.argv[1]))\n"
        "for i in range(20):\n"
        "    assert box.put(b'%02d' % i, 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "o.db")], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert contents(Outbox(tmp_path / "o.db")) == [b"%02d" % i for i in range(20)]
