"""The tests of `test_walls` that need a process, a socket or a clock."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from delian.core.node.sandbox import landlock, seccomp, syscalls


def test_the_numbers_are_those_of_this_machines_c_library():
    """Each by a call whose effect is known."""
    machine = seccomp.machine()
    if machine is None:
        pytest.skip(f"no numbers for {os.uname().machine}")
    numbers = syscalls.compute(machine)
    code = (
        "import ctypes, os; c = ctypes.CDLL(None).syscall;"
        f"assert c({numbers['getpid']}) == os.getpid();"
        f"assert c({numbers['geteuid']}) == os.geteuid();"
        f"c({numbers['exit_group']}, 7)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7


def confined(body: str, tmp_path) -> str:
    """What a process prints that confines itself; without landlock the test is skipped."""
    if not landlock.abi():
        pytest.skip("this kernel has no landlock")
    code = "import os, sys\nfrom delian.core.node.sandbox import walls\n" + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.strip()


def test_a_confined_process_reads_what_it_was_given_and_nothing_beside_it(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    (tmp_path / "given" / "link").symlink_to(tmp_path / "b")
    said = confined(
        """
        from pathlib import Path
        root = Path(sys.argv[1])
        walls.confine_run([str(root / "given"), str(root / "absent")])
        for name in ("given/a", "b", "given/link"):
            try:
                print((root / name).read_text(), end=" ")
            except PermissionError:
                print("refused", end=" ")
        """,
        tmp_path,
    )
    assert said.split() == ["a", "refused", "refused"]


def test_threads_that_were_there_before_are_told_or_refused(tmp_path):
    said = confined(
        """
        import threading
        from delian.core.common.errors import DelianError
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        try:
            walls.confine_run([], "require")
        except DelianError as error:
            print(error.message)
        print(walls.confine_run([]), flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    assert "1 threads were started before" in said and said.endswith("('threads',)")


def test_a_compiling_process_writes_its_folder_alone_and_opens_no_socket(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "key").write_text("secret")
    said = confined(
        """
        import socket, subprocess
        from pathlib import Path
        root = Path(sys.argv[1])
        walls.confine_compile([], [str(root / "own")])
        (root / "own" / "made").write_text("")
        print(subprocess.run(["ls", "/usr"], capture_output=True).returncode)
        for attempt in (
            lambda: (root / "made").write_text(""),
            (root / "key").read_text,
            socket.socket,
            lambda: (root / "key").chmod(0o644),
            lambda: subprocess.run(["cat", root / "key"], check=True, stderr=subprocess.DEVNULL),
        ):
            try:
                attempt()
                print("possible")
            except (OSError, subprocess.CalledProcessError):
                print("refused")
        """,
        tmp_path,
    )
    assert said.split() == ["0", *["refused"] * 5]
