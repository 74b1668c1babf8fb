"""The walls around workers: what a kernel may lack, and what the filters are made of."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap

import pytest
from delian.core.common.errors import DelianError
from delian.core.node.sandbox import landlock, seccomp, syscalls, walls
from delian.core.node.sandbox.process_limits import WorkerLimits

EPERM, ENOSYS = 1, 38
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def answer(filter_, arch, number, *arguments):
    """What a filter says to a system call: the kernel's interpreter, as far as it is used."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    at, held = 0, 0
    while True:
        code, right, wrong, value = filter_[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif code == 0x15:
            at += right if held == value else wrong
        elif code == 0x35:
            at += right if held >= value else wrong
        else:
            return value


def test_calls_under_the_numbers_of_x32_end_the_process():
    x32_socket = 0x40000000 + 41
    for made in (seccomp.compute("x86_64", 77), seccomp.compiling("x86_64")):
        assert answer(made, syscalls.MACHINES["x86_64"][1], x32_socket) == KILL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "armv7l"])
class TestFilters:
    def ask(self, machine, names, name, *arguments, make=lambda m: seccomp.compute(m, 77)):
        arch = syscalls.MACHINES[machine][1]
        return answer(make(machine), arch, names(machine)[name], *arguments)

    def test_what_computes_is_allowed_and_what_reaches_out_is_refused(self, machine):
        assert self.ask(machine, syscalls.compute, "read") == ALLOW
        assert self.ask(machine, syscalls.compute, "exit_group") == ALLOW
        refused = syscalls.not_compiling(machine)
        for name in ("socket", "ptrace", "fchmod", "bpf", "process_vm_readv", "io_uring_setup"):
            assert self.ask(machine, lambda m: refused, name) == ERRNO | EPERM

    def test_arguments_decide_where_a_call_may_be_harmless(self, machine):
        def says(name, *arguments):
            return self.ask(machine, syscalls.checked, name, *arguments)

        assert says("prlimit64", 0) == says("prlimit64", 77) == ALLOW
        assert says("prlimit64", 78) == ERRNO | EPERM
        assert says("tgkill", 77) == ALLOW and says("tgkill", 1) == ERRNO | EPERM
        assert says("fcntl", 3, 2) == ALLOW and says("fcntl", 3, 8) == ERRNO | EPERM
        assert says("ioctl", 0, 0x5401) == ALLOW and says("ioctl", 0, 0x5412) == ERRNO | EPERM

    def test_clone3_seems_to_be_absent_so_that_clone_is_asked_and_refused(self, machine):
        assert self.ask(machine, syscalls.absent, "clone3") == ERRNO | ENOSYS
        assert "clone" not in syscalls.compute(machine)

    def test_another_machines_calls_end_the_process(self, machine):
        for make in (lambda m: seccomp.compute(m, 77), seccomp.compiling):
            assert answer(make(machine), 0x40000003, 1) == KILL

    def test_a_compiler_runs_programs_and_opens_no_socket(self, machine):
        made = seccomp.compiling
        assert self.ask(machine, lambda m: {"read": 0}, "read", make=made) == ALLOW
        for name in ("socket", "fchmodat", "mount"):
            said = self.ask(machine, syscalls.not_compiling, name, make=made)
            assert said == ERRNO | EPERM

    def test_no_two_calls_share_a_number_and_no_filter_is_too_long(self, machine):
        tables = (syscalls.compute, syscalls.checked, syscalls.absent, syscalls.not_compiling)
        for table in tables:
            numbers = table(machine)
            assert numbers and len(set(numbers.values())) == len(numbers)
        assert not set(syscalls.compute(machine)) & set(syscalls.not_compiling(machine))
        assert len(seccomp.compute(machine, 77)) < 4096


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


class TestLacking:
    @pytest.fixture
    def without_landlock(self, monkeypatch):
        monkeypatch.setattr(landlock, "abi", lambda: 0)

    def test_a_kernel_without_a_wall_is_told(self, without_landlock, caplog):
        assert "landlock" in walls.lacking()
        walls.tell_lacking()
        assert "no landlock" in caplog.text

    def test_where_walls_are_required_nothing_runs_without(self, without_landlock):
        walls.check("prefer")
        with pytest.raises(DelianError, match="no landlock"):
            walls.check("require")

    def test_a_filter_for_an_unknown_machine_is_none(self, monkeypatch):
        monkeypatch.setattr("platform.machine", lambda: "sparc64")
        assert seccomp.machine() is None and "seccomp" in walls.lacking()

    def test_a_demand_that_is_none_is_refused(self):
        with pytest.raises(DelianError, match="prefer or require"):
            WorkerLimits(sandbox="perhaps")  # type: ignore[arg-type]


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
