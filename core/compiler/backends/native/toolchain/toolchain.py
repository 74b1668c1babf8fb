"""The C compiler: which one, with which flags, and how it is run.

In order: `$DELIAN_CC`, then cc, gcc and clang on the PATH, then `zig cc` of the `ziglang` wheel.
Generated programs read no header of the C library and are linked with no library, so zig has
nothing to build first: with an empty cache it takes no longer than with a full one.

For another machine (`targets`) it is `zig cc`, which has all of them, else the machine's cross
compiler of GCC where one is installed.

What starts processes is imported when a compiler is asked: a device that only loads what was
compiled for it has no memory to spare for that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .....common.errors import DelianError
from .....common.files import make_private
from .....common.install_hint import install
from .....common.processors import cores
from .. import parts
from . import compilers, targets
from .targets import Target

if TYPE_CHECKING:
    import subprocess

#: How much of a long error message is shown.
_MESSAGE_CHARS = 2000
_TIMEOUT_S = 300
#: How long a compiler that is ended may take to remove what it has written.
_ENDING_S = 2

_COMMON = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-fwrapv",  # integers wrap
    "-fno-strict-aliasing",  # the arena holds tensors of every type in turn
    "-fno-math-errno",  # sqrt is one instruction
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fno-asynchronous-unwind-tables",  # nothing unwinds: a twentieth of the object
    "-fno-stack-protector",
    "-w",
)
_GCC = (
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-fno-tree-loop-distribute-patterns",
    # GCC 12 may address an array that is read backwards from 0, and then takes the loop for dead.
    "-fno-delete-null-pointer-checks",
    # Objects are small: functions lie one after the other, though loops begin where that is quick;
    "-fno-align-functions",
    "-fno-align-jumps",
    "-fno-align-labels",
    "-Wl,-z,noseparate-code",  # code and constants are in one segment,
    "-Wl,-z,norelro",  # and what is relocated fills no page of its own.
)
_CLANG = ("-fno-sanitize=all",)


#: What a compiler or a linker says, and a process that may write no more, where a disk is full.
_NO_SPACE = ("No space left", "Disk quota exceeded", "File too large", "File size limit", "NoSpace")

#: What zig, GCC and clang say of a processor that they do not know.
_NO_PROCESSOR = (
    "unknown CPU:",
    "for '-march=' switch",
    "for '-mcpu=' switch",
    "unknown target CPU",
)


class NoSpaceError(DelianError):
    """The compiler could not write what it made."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler. `identity` says its version, flags and processor: a part of every cache key."""

    name: str
    command: tuple[str, ...]
    flags: tuple[str, ...]
    identity: str
    version: str = ""
    """The compiler's version."""
    target: Target = targets.HERE
    """The machine that it compiles for."""

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command or "zig" in Path(self.command[0]).name

    def compile(self, source: Path, output: Path, *, whole: bool = False) -> None:
        """Makes a shared object of a C file; with `whole` a program that needs no other file.

        What has parts is compiled by two processes at once. Raises DelianError with what the
        compiler said, NoSpaceError when there was none.
        """
        if whole:
            made: tuple[str, ...] = ("-static",)
            libraries: tuple[str, ...] = ("-s", "-lm")
        else:
            made, libraries = ("-shared",), ("-nostdlib", "-s")
            if sys.platform == "darwin" and self.target.is_native:
                libraries = ("-undefined", "dynamic_lookup")
            elif self.target.machine == "armv7":
                libraries = (*libraries, "-lgcc")  # 64-bit division is a function there
        inputs = (source,) if whole else self._parts(source)
        self._run(
            [*self.flags, *made, *map(str, inputs), "-o", str(output), *libraries], output.parent
        )

    def _parts(self, source: Path) -> tuple[Path, ...]:
        """The objects of a file that has parts; one that has none as it is."""
        if parts.MARK not in source.read_text(encoding="utf-8"):
            return (source,)
        objects = tuple(source.with_suffix(f".{i}.o") for i in range(len(parts.PARTS)))
        orders = [
            [*self.flags, part, "-c", str(source), "-o", str(made)]
            for part, made in zip(parts.PARTS, objects, strict=True)
        ]
        # One after the other where there is one core: two would only take more memory.
        for together in [orders] if cores() > 1 else [[order] for order in orders]:
            self._run_all(together, source.parent)
        return objects

    def features(self) -> tuple[str, ...]:
        """The processor's features that the compiler may use, by their names in /proc/cpuinfo."""
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            said = self._run([*self.flags, "-dM", "-E", "-x", "c", os.devnull], Path(folder))
        return targets.features_of(self.target.machine, said)

    def preprocessed(self, source: Path) -> str:
        """What the compiler makes of a C file before it compiles it: a tenth of the time."""
        return self._run([*self.flags, "-E", "-P", str(source)], source.parent)

    def with_flags(self, flags: tuple[str, ...]) -> Toolchain:
        """The compiler with flags after its own."""
        if not flags:
            return self
        identity = " ".join((self.identity, *flags))
        return replace(self, flags=(*self.flags, *flags), identity=identity)

    def _run(self, arguments: list[str], scratch: Path) -> str:
        (said,) = self._run_all([arguments], scratch)
        return said

    def _run_all(self, orders: list[list[str]], scratch: Path) -> list[str]:
        """Runs compilers side by side and ends all when one fails or the caller is interrupted."""
        import subprocess

        env = dict(os.environ)
        if self.is_zig:  # its libraries are kept next to ours, the rest goes with scratch
            env.setdefault("ZIG_GLOBAL_CACHE_DIR", str(_zig_folder(scratch)))
            env["ZIG_LOCAL_CACHE_DIR"] = str(scratch / "zig")
        running: list[subprocess.Popen[str]] = []
        try:
            for arguments in orders:
                # In a session of its own, so that Ctrl-C in a terminal reaches us and not the
                # compiler, which would end with half a program. A worker process has such a session
                # itself, and its agent ends all that is in it.
                process = subprocess.Popen(
                    [*self.command, *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=env,
                    start_new_session=not os.environ.get(PART),
                )
                running.append(process)
            return [
                self._said(process, *process.communicate(timeout=_TIMEOUT_S)) for process in running
            ]
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DelianError(f"the C compiler {self.name} did not run: {error}", _HINT) from error
        finally:
            for process in running:
                _end(process)

    def _said(self, process: subprocess.Popen[str], out: str, errors: str) -> str:
        """What a compiler has said that ended. Raises DelianError where it refused."""
        import signal

        if process.returncode:
            whole = (errors or out).strip()
            named = self.target.cpu != targets.NATIVE
            if named and any(text in whole for text in _NO_PROCESSOR):
                raise DelianError(
                    f"{self.name} knows no processor `{self.target.cpu}` of {self.target.name}",
                    "--cpu takes zig's names, as cortex_a53, or haswell for an x86-64 with AVX2",
                )
            said = whole[:_MESSAGE_CHARS]
            if process.returncode == -signal.SIGXFSZ or any(text in said for text in _NO_SPACE):
                raise NoSpaceError(f"the C compiler {self.name} has no room to write", _SPACE_HINT)
            raise DelianError(f"the C compiler {self.name} refused a program:\n{said}", _HINT)
        return out


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a compiler and its children, with time to remove what it has begun to write."""
    import signal
    import subprocess

    with process:  # closes what it says, and waits
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(OSError):  # it has just ended
                    if os.getpgid(process.pid) == process.pid:
                        os.killpg(process.pid, number)
                    else:
                        process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)


def _zig_folder(scratch: Path) -> Path:
    """Where zig keeps the libraries that it builds."""
    folder = own_folder() / "zig"
    try:
        make_private(folder)
    except OSError:
        return scratch / "zig"
    return folder if os.access(folder, os.W_OK) else scratch / "zig"


_SPACE_HINT = "make room on the disk, or set DELIAN_CACHE to a folder elsewhere"
_HINT = (
    "set DELIAN_CC to another C compiler, install the extra delian[compile] (zig),"
    ' or run with backend="reference"'
)


#: Names the part of the cache that is this process's own; unset: the cache itself.
PART = "DELIAN_CACHE_PART"
#: Where in the cache answers of compilers lie.
ANSWERS = "compilers"


def cache_folder() -> Path:
    """The cache's folder: $DELIAN_CACHE, or the user's. Raises DelianError without a home."""
    if own := os.environ.get("DELIAN_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "delian"
    except RuntimeError:  # as under a number that the system knows no user of
        raise DelianError(
            "compiled programs are kept in the user's home folder, and there is none",
            "set DELIAN_CACHE to a folder that is this user's alone",
        ) from None


def own_folder() -> Path:
    """Where this process keeps what it builds.

    The cache folder, or a part of it that $DELIAN_CACHE_PART names. Workers have a part of their
    own, so that what runs as a worker never writes what an agent loads.
    """
    part = os.environ.get(PART, "")
    return cache_folder() / part if part else cache_folder()


def find() -> Toolchain | None:
    """The compiler to use, or None. It is looked for once for each $DELIAN_CC and PATH."""
    return _find(os.environ.get("DELIAN_CC", ""), os.environ.get("PATH", ""))


def known() -> Toolchain | None:
    """The compiler that `find` gives, where that is known without starting a process; else None."""
    try:
        return _search(os.environ.get("DELIAN_CC", ""), _never)
    except _NotKnownError:
        return None


def find_for(target: Target) -> Toolchain:
    """The compiler for a machine. Raises DelianError when there is none."""
    if target.is_native and target.cpu == "native":
        found = find()
        if found is None:
            raise DelianError("there is no C compiler here", _HINT)
        return found
    if importlib.util.find_spec("ziglang") is not None:
        flags: tuple[str, ...] = (*_COMMON, *_CLANG)
        flags = (*flags, "-target", _zig_triple(target), f"-mcpu={target.cpu}")
        version = f"ziglang {_distribution_version('ziglang')}"
        command = (sys.executable, "-m", "ziglang", "cc")
        return Toolchain("zig cc", command, flags, f"{version} {' '.join(flags)}", version, target)
    for name in target.cross:
        if found_at := shutil.which(name):
            version = _version_of((found_at,)) or ""
            flags = (*_COMMON, *_GCC, *target.gcc_flags)
            identity = " ".join((version, *_stamp(found_at), *flags))
            return Toolchain(name, (found_at,), flags, identity, version, target)
    tried = "".join(f", {name}" for name in target.cross)
    raise DelianError(
        f"no compiler for {target.name} is here: neither ziglang{tried}",
        f"{install('compile')} has one for every target",
    )


def _zig_triple(target: Target) -> str:
    return f"{target.machine}-linux-musl" if target.is_native else target.zig


class _NotKnownError(DelianError):
    """Only the compiler itself can say which one it is."""


def _never(command: tuple[str, ...]) -> str | None:
    raise _NotKnownError(f"{command[0]} has not been asked yet")


@functools.cache
def _find(wanted: str, path: str) -> Toolchain | None:
    return _search(wanted, _ask)


def _search(wanted: str, ask: Callable[[tuple[str, ...]], str | None]) -> Toolchain | None:
    if wanted:
        command = tuple(shlex.split(wanted))
        if not command or shutil.which(command[0]) is None:
            raise DelianError(
                f"DELIAN_CC names {wanted!r}, which is not there", "unset it, or give a C compiler"
            )
        return _describe(command, ask)
    for name in ("cc", "gcc", "clang"):
        if (found := shutil.which(name)) and (toolchain := _describe((found,), ask)):
            return toolchain
    if importlib.util.find_spec("ziglang") is not None:
        return _describe((sys.executable, "-m", "ziglang", "cc"), ask)
    return None


def _describe(
    command: tuple[str, ...], ask: Callable[[tuple[str, ...]], str | None]
) -> Toolchain | None:
    """Asks a compiler for its version; None when it does not answer."""
    if "ziglang" in command:
        # Asking would start a 150 MB program: its package's version says as much.
        said = version = f"ziglang {_distribution_version('ziglang')}"
        is_clang, name = True, "zig cc"
    else:
        answer = _version_of(command, True, ask)
        if answer is None:
            return None
        said, version, name = answer, answer.split("\n", 1)[0], command[0]
        is_clang = "clang" in said or "zig" in said
    native = "-mcpu=native" if is_clang and "zig" in version + name else "-march=native"
    if platform.machine().lower() in ("arm64", "aarch64"):
        native = "-mcpu=native"
    flags = (*_COMMON, *(_CLANG if is_clang else _GCC), native)
    stamp = _stamp(shutil.which(command[0]) or command[0])
    own = command[1:]  # options in $DELIAN_CC make other programs too
    identity = " ".join((version, *stamp, *own, *flags, platform.machine(), _processor()))
    return Toolchain(name, command, flags, identity, version)


def _version_of(
    command: tuple[str, ...],
    whole: bool = False,
    ask: Callable[[tuple[str, ...]], str | None] | None = None,
) -> str | None:
    """What a compiler says of itself, its first line or the whole of it; None: nothing."""
    ask = ask or _ask
    file = shutil.which(command[0])
    if file is None:
        return None
    try:
        folder = own_folder() / ANSWERS
    except DelianError:  # there is no such folder
        said = ask(command)
    else:
        said = compilers.said_by(command, file, folder, lambda: ask(command))
    return said if whole or said is None else said.split("\n", 1)[0]


def _ask(command: tuple[str, ...]) -> str | None:
    import subprocess

    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _stamp(path: str) -> tuple[str, ...]:
    """Size and time of the compiler's file: two that call themselves alike are not the same one."""
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return (f"{found.st_size}", f"{found.st_mtime_ns}")


def _distribution_version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _processor() -> str:
    """What `native` stands for here: the processor's features."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return platform.processor()
    keys = ("flags", "Features", "model name", "CPU part")
    lines = [line for line in text.split("\n\n", 1)[0].splitlines() if line.startswith(keys)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
