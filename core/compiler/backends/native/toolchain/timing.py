"""Which steps of a program take its time.

The program is written once more with a look at the clock before and after each step (a fused loop,
a product, a convolution), is compiled into a folder that goes, and is called several times. The
clock is the thread's processor time, and of each step the least time of a call is kept: on a busy
machine the others say what the neighbours did. A step in a loop of the program is timed in every
trip; a look calls the system and takes some 0.2 us, so the times of very small steps are that.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .....common.errors import DelianError, line_of
from ....ir import Array, Function, Op
from ....passes.pipeline import lowered
from ....passes.schedule.block_steps import Call, Loop
from ....primitives import PRIMITIVES
from .. import emit
from ..program import NativeProgram, load_object
from .artifact import Entry, Facts, Layout, sealed
from .toolchain import find

_CLOCK = """
int clock_gettime(int, void *);
#if DL_PART != 1
__attribute__((visibility("default"))) int64_t dl_times[{n}], dl_counts[{n}];
#endif
static inline int64_t dl_now(void) {{
  struct {{ long s, ns; }} t; /* a timespec */
  clock_gettime({clock}, &t);
  return (int64_t)t.s * 1000000000 + t.ns;
}}
"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a program."""

    operations: tuple[str, ...]
    places: tuple[str, ...]
    """Where in the source the operations are from."""
    shape: tuple[int, ...]
    seconds: float
    """In one call of the program."""
    runs: int
    """In one call of the program."""
    flops: int
    """Operations on numbers in each run."""

    @property
    def gflops(self) -> float:
        """Billions of operations a second."""
        return self.flops * self.runs / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def is_product(self) -> bool:
        return any(o == "dot" or "conv" in o or "attention" in o for o in self.operations)


def time_steps(
    function: Function, args: Sequence[Array], calls: int = 10, seconds: float = 0.0
) -> list[StepTime]:
    """The steps of a program in the order of its text, timed over some calls.

    More calls follow until `seconds` are over. Donated arguments are copied before each call.
    Raises DelianError where there is no compiler.
    """
    toolchain = find()
    if toolchain is None:
        raise DelianError("there is no C compiler to time a program with", "install one, or zig")
    symbol = "dl_entry_0"
    unit = emit.Unit()
    steps: list[Loop | Call] = []
    unit.times = steps
    p = unit.add(symbol, lowered(function))
    count = max(len(steps), 1)
    unit.tables.insert(0, _CLOCK.format(n=count, clock=time.CLOCK_THREAD_CPUTIME_ID))
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "timed.c", Path(folder) / "timed.so"
        source.write_text(unit.text(), encoding="utf-8")
        toolchain.compile(source, output)
        program, library = _loaded(function, p, output)
    times = np.ctypeslib.as_array((ctypes.c_int64 * count).in_dll(library, "dl_times"))
    counts = np.ctypeslib.as_array((ctypes.c_int64 * count).in_dll(library, "dl_counts"))
    best = np.full(count, np.iinfo(np.int64).max)
    done, end = 0, time.monotonic() + seconds
    while done < calls or time.monotonic() < end:
        done += 1
        times[:] = counts[:] = 0
        program(*(np.array(a) if i in function.donated else a for i, a in enumerate(args)))
        np.minimum(best, times, out=best)
    return [
        _step(step, int(ns) * 1e-9, int(runs))
        for step, ns, runs in zip(steps, best, counts, strict=False)
    ]


def _loaded(function: Function, p: emit.Program, path: Path) -> tuple[NativeProgram, ctypes.CDLL]:
    counts = (p.arena_bytes, p.tensor_bytes, p.groups, p.calls)
    constants = tuple(map(Layout.of, p.constants))
    entry = Entry(function.name, p.name, "", *counts, constants, p.donated, p.lists)
    facts = Facts("", "", "", (), "", (entry,))  # it was built here and now, for this process
    path.write_bytes(sealed(path.read_bytes(), facts, p.constants))
    program = load_object({function.name: function}, path, facts)[function.name]
    program.threads = 1  # the clock is that of one
    return program, ctypes.CDLL(str(path))


def _step(step: Loop | Call, seconds: float, runs: int) -> StepTime:
    ops: list[Op] = []
    if isinstance(step, Call):
        ops = [step.op]
        shape = next((r.shape for r in step.op.results if hasattr(r.type, "shape")), ())
    else:
        products = [call.op for call in (step.fused, step.product) if call is not None]
        ops = [*products, *step.ops, *step.reductions]
        shape = step.extents
    places = dict.fromkeys(line_of(op.locs) for op in ops if op.locs)
    flops = sum(PRIMITIVES[op.name].cost(op) for op in ops)
    names = tuple(op.name for op in ops) or ("copy",)
    return StepTime(names, tuple(places), shape, seconds, runs, flops)
