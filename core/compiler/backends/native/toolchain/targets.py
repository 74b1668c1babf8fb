"""The machines that programs are built for, and what they must have.

A target is named as compilers name it, MACHINE-linux-LIBRARY: `aarch64-linux-musl`. A shared object
asks nothing of the C library by name, so one that says musl runs where glibc is too, and the other
way round; what must be equal is the kind of processor, and its features are at least those that the
compiler was given. x86_64 has its four levels as machines of their own: `x86_64_v3-linux-gnu`.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .....common.errors import DelianError

NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine."""

    name: str
    """As it is asked for."""
    machine: str
    """As `platform.machine()` says there."""
    zig: str
    """The target of `zig cc`."""
    cpu: str
    cross: tuple[str, ...] = ()
    """What a cross compiler of GCC is called."""
    gcc_flags: tuple[str, ...] = ()
    """The CPU for it."""

    @property
    def is_native(self) -> bool:
        return self.name == NATIVE


#: 64-bit kernels run 32-bit programs, and say so of themselves only.
_SAME = {"armv7l": "armv7", "armv8l": "armv7", "arm64": "aarch64", "amd64": "x86_64"}
_X86_LEVELS = ("x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4")
#: Every ARMv7 processor that trains anything has what the smallest of them has: NEON, VFPv4.
_ARMV7_CPU = "cortex_a7"
_CPU = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


def _x86(level: str, library: str) -> Target:
    march = level.replace("_v", "-v").replace("x86_64", "x86-64")
    return Target(
        f"{level}-linux-{library}",
        "x86_64",
        f"x86_64-linux-{library}",
        level,
        (f"x86_64-linux-{library}-gcc",),
        (f"-march={march}",),
    )


def _others() -> tuple[Target, ...]:
    made = []
    for library in ("musl", "gnu"):
        made.append(
            Target(
                f"aarch64-linux-{library}",
                "aarch64",
                f"aarch64-linux-{library}",
                "generic",
                (f"aarch64-linux-{library}-gcc",),
            )
        )
        made.append(
            Target(
                f"armv7-linux-{library}eabihf",
                "armv7",
                f"arm-linux-{library}eabihf",
                _ARMV7_CPU,
                (f"arm-linux-{library}eabihf-gcc", f"armv7-linux-{library}eabihf-gcc"),
                ("-mcpu=cortex-a7", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
            )
        )
        made.append(
            Target(
                f"riscv64-linux-{library}",
                "riscv64",
                f"riscv64-linux-{library}",
                "baseline",
                (f"riscv64-linux-{library}-gcc",),
            )
        )
    return tuple(made)


TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        *_others(),
        *(_x86(level, library) for level in _X86_LEVELS for library in ("gnu", "musl")),
    )
}


def machine_here() -> str:
    """This machine, as targets name it."""
    said = platform.machine().lower()
    return _SAME.get(said, said)


def find_target(name: str, cpu: str | None = None) -> Target:
    """The target with this name.

    `native` is this machine, `x86_64_v3` short for x86_64_v3-linux-gnu. cpu: in place of its own,
    as zig names it (cortex_a53).

    Raises DelianError.
    """
    if cpu is not None and not _CPU.fullmatch(cpu):
        raise DelianError(f"`{cpu}` names no processor", "as zig names them: --cpu cortex_a53")
    if name == NATIVE:
        return Target(NATIVE, machine_here(), "native", cpu or "native")
    if name in _X86_LEVELS:
        name += "-linux-gnu"
    found = TARGETS.get(name)
    if found is None:
        raise DelianError(
            f"there is no target `{name}`", f"the targets are native, c, {', '.join(TARGETS)}"
        )
    if cpu is None:
        return found
    flag = f"-march={cpu.replace('_', '-')}" if found.machine == "x86_64" else ""
    flag = flag or f"-mcpu={cpu.replace('_', '-')}"
    kept = tuple(f for f in found.gcc_flags if not f.startswith(("-march", "-mcpu", "-mfpu")))
    return Target(found.name, found.machine, found.zig, cpu, found.cross, (flag, *kept))


#: This machine.
HERE = find_target(NATIVE)

# ---------------------------------------------------------------- processors' features

#: What a compiler defines when it may use a feature, and the name of the feature in /proc/cpuinfo.
_FEATURES: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "__SSE3__": "pni",
        "__SSSE3__": "ssse3",
        "__SSE4_1__": "sse4_1",
        "__SSE4_2__": "sse4_2",
        "__POPCNT__": "popcnt",
        "__AVX__": "avx",
        "__AVX2__": "avx2",
        "__FMA__": "fma",
        "__F16C__": "f16c",
        "__BMI__": "bmi1",
        "__BMI2__": "bmi2",
        "__LZCNT__": "abm",
        "__MOVBE__": "movbe",
        "__AVX512F__": "avx512f",
        "__AVX512CD__": "avx512cd",
        "__AVX512BW__": "avx512bw",
        "__AVX512DQ__": "avx512dq",
        "__AVX512VL__": "avx512vl",
        "__AVX512VNNI__": "avx512_vnni",
        "__AVX512BF16__": "avx512_bf16",
        "__AVX512FP16__": "avx512_fp16",
        "__AVXVNNI__": "avx_vnni",
        "__GFNI__": "gfni",
    },
    "aarch64": {
        "__ARM_NEON": "asimd",
        "__ARM_FEATURE_ATOMICS": "atomics",
        "__ARM_FEATURE_DOTPROD": "asimddp",
        "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
        "__ARM_FEATURE_QRDMX": "asimdrdm",
        "__ARM_FEATURE_SVE": "sve",
        "__ARM_FEATURE_SVE2": "sve2",
        "__ARM_FEATURE_BF16": "bf16",
        "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    },
    "armv7": {
        "__ARM_NEON": "neon",
        "__ARM_FEATURE_FMA": "vfpv4",
        "__ARM_FEATURE_IDIV": "idiva",
    },
    "riscv64": {},
}


def features_of(machine: str, macros: str) -> tuple[str, ...]:
    """The features that code may use, of what a compiler printed for `-dM -E`."""
    names = _FEATURES.get(machine, {})
    defined = {line.split()[1] for line in macros.splitlines() if line.startswith("#define ")}
    return tuple(feature for macro, feature in names.items() if macro in defined)


def features_here(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The features of this machine's processor; None where the system does not say."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        return None
    return None
