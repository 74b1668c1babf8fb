"""Writes the C of some programs with a driver, compiles both with sanitizers, and runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from delian.core.common.aligned_arrays import ALIGNMENT
from delian.core.compiler.backends.native import call_runs
from delian.core.compiler.backends.native import emit as emitter
from delian.core.compiler.backends.native.kernels import kernels, winograd
from delian.core.compiler.backends.native.names import memory_type
from delian.core.compiler.ir import Function, TensorType
from delian.core.compiler.passes.pipeline import lowered
from delian.core.compiler.passes.schedule import execution_order, memory_plan

from .variants import Variant

#: Poisoned bytes between buffers of an arena, and before the first.
GAP = 256
#: A program that runs longer hangs. Seconds of processor time; sanitizers take a tenth of it.
HANG_S = 20
COMPILE_S = 300
_FLAGS = (
    *("-std=gnu11", "-O1", "-g1", "-w", "-fno-strict-aliasing", "-fno-math-errno"),
    *("-fno-trapping-math", "-fno-delete-null-pointer-checks", "-fno-omit-frame-pointer"),
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1:exitcode=77",
    "UBSAN_OPTIONS": "print_stacktrace=0:halt_on_error=1:exitcode=77",
}
#: Small programs are lowered as large ones are.
_EAGER: tuple[tuple[Any, str, Any], ...] = (
    (winograd, "_WORTH", 100.0),
    (kernels, "_NARROW_WORK", 1),
    (execution_order, "TILES_MIN", 1),
    (execution_order, "BESIDE_MIN", 1),
    (execution_order, "BESIDE_FEW_MIN", 1),
)
#: And calls are data, in variants that say so.
_MANY: tuple[tuple[Any, str, Any], ...] = ((call_runs, "CALLS_MIN", 2), (call_runs, "RUN_MIN", 2))
Span = tuple[int, int]


@dataclass(frozen=True)
class Finding:
    """What a sanitizer said of a program, or that it did not end. hung: it ran too long."""

    program: str
    what: str
    hung: bool = False

    def __str__(self) -> str:
        return f"{self.program}: {self.what}"


def compiler() -> str | None:
    """GCC or clang with both sanitizers, or None."""
    for name in (os.environ.get("DELIAN_SANITIZED_CC", ""), "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found is None:
            continue
        probe = [found, "-fsanitize=address,undefined", "-x", "c", "-", "-o", os.devnull]
        said = subprocess.run(probe, input=b"int main(void){return 0;}", capture_output=True)
        if said.returncode == 0:
            return found
    return None


@contextmanager
def _lowering(spans: list[list[Span]], many: bool) -> Iterator[None]:
    """Buffers of an arena lie apart, and small programs are lowered as large ones are. `spans` has,
    for each program, where its buffers lie. many: as in `Variant`.
    """
    eager = (*_EAGER, *(_MANY if many else ()))

    def assign(self: Any) -> None:
        roots = [b for b in self.all if b.merged is None and b.place is None]
        at, taken = GAP, []
        for buffer in roots:
            buffer.place = memory_plan.Place("arena", at)
            taken.append((at, at + buffer.size))
            at += -(-buffer.size // ALIGNMENT) * ALIGNMENT + GAP
        self.plan.arena_bytes = at
        for value, buffer in self.buffers.items():
            self.plan.places[value] = buffer.root().place
        self.plan.scratch = {call: b.place.index for call, b in self.scratch.items()}
        spans.append(taken)

    kept = [(place, name, getattr(place, name)) for place, name, _ in eager]
    kept.append((memory_plan._Planner, "_assign", memory_plan._Planner._assign))
    for place, name, value in eager:
        setattr(place, name, value)
    memory_plan._Planner._assign = assign  # type: ignore[method-assign]
    try:
        yield
    finally:
        for place, name, value in kept:
            setattr(place, name, value)


@dataclass(frozen=True)
class Unit:
    """A C file of programs with its driver. headers: those that it is made of."""

    names: tuple[str, ...]
    text: str
    headers: frozenset[str]


def written(
    functions: Mapping[str, Function],
    variant: Variant,
    mutate: Callable[[str], str] = lambda text: text,
    seed: int = 0,
) -> Unit:
    """The C of some programs. mutate: changes it before the driver is added."""
    spans: list[list[Span]] = []
    lowest = {f"dl_entry_{i}": lowered(f) for i, f in enumerate(functions.values())}
    headers: set[str] = set()
    with _lowering(spans, variant.many):
        unit = emitter.Unit(embed=True, tiles=not variant.plain)
        if variant.threaded:
            unit.need("pool")
        programs = {name: unit.add(name, function) for name, function in lowest.items()}
        text = mutate(unit.text())
        headers = {f"{name}.h" for name in unit.headers}
    arenas = [p.arena_bytes for p in programs.values()]
    parts = [variant.prefix, text]
    if variant.plain:
        headers.add("heap.h")
        heap = resources.files("delian.core.compiler.backends.native").joinpath("c", "heap.h")
        parts.append(heap.read_text(encoding="utf-8"))
    parts.append(_driver(list(lowest.values()), arenas, spans, variant, seed))
    return Unit(tuple(functions), "\n".join(parts), frozenset(headers))


def _driver(
    functions: Sequence[Function],
    arenas: Sequence[int],
    spans: Sequence[Sequence[Span]],
    variant: Variant,
    seed: int,
) -> str:
    """The tables of all programs, and driver.c, which reads them."""
    rows, tables = [], []
    for i, (function, arena, taken) in enumerate(zip(functions, arenas, spans, strict=True)):
        ports = [
            f"{{'{_letter(t)}', {t.dtype.itemsize}, {t.size}, {int(n.startswith('small'))}}}"
            for t, n in zip(function.param_types, function.param_names, strict=True)
            if isinstance(t, TensorType)
        ]
        gives = [
            f"{{'{_letter(t)}', {t.dtype.itemsize}, {t.size}, 0}}"
            for t in function.result_types
            if isinstance(t, TensorType)
        ]
        used = [f"{{{a}, {b}}}" for a, b in taken]
        pairs = [f"{{{i}, {j}}}" for i, j in memory_plan.donations(function).items()]
        tables += [
            f"static const port takes_{i}[] = {{{', '.join([*ports, '{0}'])}}};",
            f"static const port gives_{i}[] = {{{', '.join([*gives, '{0}'])}}};",
            f"static const span spans_{i}[] = {{{', '.join([*used, '{0}'])}}};",
            f"static const span donated_{i}[] = {{{', '.join([*pairs, '{0}'])}}};",
        ]
        counts = f"{len(ports)}, {len(gives)}, {len(used)}, {len(pairs)}, {arena}"
        rows.append(f"{{dl_entry_{i}, takes_{i}, gives_{i}, spans_{i}, donated_{i}, {counts}}}")
    head = Path(__file__).with_name("driver.c").read_text(encoding="utf-8")
    defines = f"#define SEED {seed}ull\n#define HANG_S {HANG_S}\n"
    defines += f"#define THREADED {int(variant.threaded)}\n"
    body = "\n".join([*tables, "static const program programs[] = {", ",\n".join(rows), "};"])
    return (defines + head).replace("/* TABLES */", body)


def _letter(type_: TensorType) -> str:
    if type_.dtype.is_half:
        return "h"
    return {"float": "f", "double": "d", "int64_t": "l", "int32_t": "i"}.get(
        memory_type(type_.dtype), "b" if type_.dtype.value == "bool" else "u"
    )


def found_in(unit: Unit, variant: Variant, compiler: str, folder: Path) -> list[Finding]:
    """Compiles a file and runs each of its programs. Raises RuntimeError if it does not compile."""
    source, output = folder / "unit.c", folder / "unit"
    source.write_text(unit.text, encoding="utf-8")
    command = [compiler, *_FLAGS, *variant.flags, str(source), "-o", str(output), "-lm"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
    if made.returncode:
        raise RuntimeError(f"{variant.name}: does not compile:\n{made.stderr[:3000]}")
    findings, first = [], 0
    while first < len(unit.names):
        limit = HANG_S * (len(unit.names) - first) + 60
        done = subprocess.run(
            [str(output), str(first)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            env={**os.environ, **_OPTIONS},
        )
        if done.returncode == 0:
            break
        at = max([first, *(int(n) for n in re.findall(r"^program (\d+)$", done.stdout, re.M))])
        findings.append(_finding(unit.names[at], done))
        first = at + 1
    return findings


def _finding(name: str, done: subprocess.CompletedProcess[str]) -> Finding:
    said = [
        line
        for line in done.stderr.splitlines()
        if "runtime error" in line or "Sanitizer:" in line or line.lstrip().startswith(("#0", "#1"))
    ]
    if not said:
        hung = done.returncode == -24 or "hangs" in done.stderr
        return Finding(name, "hangs" if hung else f"ends with {done.returncode}", hung)
    return Finding(name, " | ".join(re.sub(r"/\S*/", "", line.strip()) for line in said[:4])[:500])
