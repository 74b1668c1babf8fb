"""The C compiler: which one, with which flags, and how it is run.

In order: `$DELIAN_CC`, then cc, gcc and clang on the PATH, then `zig cc` of the `ziglang` wheel.
Generated programs read no header of the C library and are linked with no library, so zig has
nothing to build first: with an empty cache it takes no longer than with a full one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...errors import DelianError

#: How much of a long error message is shown.
_MESSAGE_CHARS = 2000
_TIMEOUT_S = 300

_COMMON = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fwrapv",  # integers wrap
    "-fno-strict-aliasing",  # the arena holds tensors of every type in turn
    "-fno-math-errno",  # sqrt is one instruction
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-w",
)
_GCC = (
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-fno-tree-loop-distribute-patterns",
    # GCC 12 may address an array that is read backwards from 0, and then takes the loop for dead.
    "-fno-delete-null-pointer-checks",
)
_CLANG = ("-fno-sanitize=all",)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler. `identity` says its version, flags and processor: a part of every cache key."""

    name: str
    command: tuple[str, ...]
    flags: tuple[str, ...]
    identity: str

    def compile(self, source: Path, output: Path) -> None:
        """Makes a shared object of a C file. Raises DelianError with what the compiler said."""
        libraries: tuple[str, ...] = ("-nostdlib", "-s")
        if sys.platform == "darwin":
            libraries = ("-undefined", "dynamic_lookup")
        command = [*self.command, *self.flags, str(source), "-o", str(output), *libraries]
        env = dict(os.environ)
        if "ziglang" in self.command:  # its caches lie beside ours, never in the working folder
            folder = str(cache_folder() / "zig")
            env.setdefault("ZIG_GLOBAL_CACHE_DIR", folder)
            env.setdefault("ZIG_LOCAL_CACHE_DIR", folder)
        try:
            # In a session of its own, so that Ctrl-C in a terminal reaches us and not the compiler,
            # which would end with half a program.
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                env=env,
                check=False,
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DelianError(f"the C compiler {self.name} did not run: {error}", _HINT) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[:_MESSAGE_CHARS]
            raise DelianError(f"the C compiler {self.name} refused a program:\n{said}", _HINT)


_HINT = (
    "set DELIAN_CC to another C compiler, install the extra delian[compile] (zig),"
    ' or run with backend="reference"'
)


def cache_folder() -> Path:
    """Where compiled programs are kept: $DELIAN_CACHE, or delian in the user's cache folder."""
    if own := os.environ.get("DELIAN_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "delian"


def find() -> Toolchain | None:
    """The compiler to use, or None. It is looked for once for each $DELIAN_CC and PATH."""
    return _find(os.environ.get("DELIAN_CC", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(wanted: str, path: str) -> Toolchain | None:
    if wanted:
        command = tuple(shlex.split(wanted))
        if not command or shutil.which(command[0]) is None:
            raise DelianError(
                f"DELIAN_CC names {wanted!r}, which is not there", "unset it, or give a C compiler"
            )
        return _describe(command)
    for name in ("cc", "gcc", "clang"):
        if (found := shutil.which(name)) and (toolchain := _describe((found,))):
            return toolchain
    if importlib.util.find_spec("ziglang") is not None:
        return _describe((sys.executable, "-m", "ziglang", "cc"))
    return None


def _describe(command: tuple[str, ...]) -> Toolchain | None:
    """Asks a compiler who it is; None when it does not answer."""
    if "ziglang" in command:
        # Asking would start a 150 MB program: its package's version says as much.
        version = f"ziglang {_distribution_version('ziglang')}"
        is_clang, name = True, "zig cc"
    else:
        try:
            done = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        version = done.stdout.split("\n", 1)[0]
        is_clang, name = "clang" in done.stdout or "zig" in done.stdout, command[0]
    native = "-mcpu=native" if is_clang and "zig" in version + name else "-march=native"
    if platform.machine().lower() in ("arm64", "aarch64"):
        native = "-mcpu=native"
    flags = (*_COMMON, *(_CLANG if is_clang else _GCC), native)
    identity = " ".join((version, *flags, platform.machine(), _processor()))
    return Toolchain(name, command, flags, identity)


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
