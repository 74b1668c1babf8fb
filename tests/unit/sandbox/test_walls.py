"""The walls around workers: what a kernel may lack, and what the filters are made of."""

from __future__ import annotations

import struct

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
