"""Judges models that Delian writes in ONNX: ONNX Runtime runs them, and NumPy says what is right.

    python tests/judges/onnx_export.py [SUITE...] [--seeds N] [--json FILE]

Needs the packages onnx and onnxruntime. Suites: `primitives`, the cases of each primitive;
`tensors`, `convolutions` and `models`, random programs of `tests/differential`, N of each; `steps`,
the zoo's models and whole training steps. A program is exported, checked, run by ONNX Runtime (by
ONNX's own reference evaluator where the runtime has no kernel of an operator in that type), and
compared with NumPy. Then it is read again by `dl.from_onnx`, and run by the reference back end.

States: passed; refused, by name; wrong; crashed. A random program, with comparisons that rounding
decides, is wrong where it is so for each of three draws of arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import delian as dl
import onnx
import onnx.reference
import onnxruntime
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.ir import Array, Builder, DType, Function, TensorType
from delian.core.learning.interchange.onnx_export.export_model import program_to_onnx
from differential import cases
from differential.cases import fitted, in_f64
from differential.judge import _difference, _unit

#: How far a float may be from the reference's: of itself, and of the largest in its tensor.
RELATIVE = 1e-5
#: The same in f16 and bf16, a few units in the last place.
OF_HALVES = {DType.F16: 4e-3, DType.BF16: 3e-2}
ATTEMPTS = 3
RANDOM = ("tensors", "convolutions", "models")
#: Primitives whose results are long sums.
PRODUCTS = ("attention", "dot", "conv", "grouped_conv")
SUITES = ("primitives", *RANDOM, "steps")


@dataclass
class Verdict:
    """What became of one program."""

    name: str
    state: str
    why: str = ""
    runner: str = ""
    round_trip: str = ""


@dataclass
class Program:
    """A program, and draws of its arguments."""

    name: str
    build: Callable[[], Function]
    arguments: Callable[[Function, int], Sequence[Array]]
    attempts: int = 1
    tight: bool = False
    """Whether each number counts by itself, and not beside its tensor's largest."""


def written(function: Function) -> Any:
    """The program as a checked model. Raises DelianError for what is refused."""
    return program_to_onnx(function, [f"p{k}" for k in range(len(function.param_names))], {})


def plain_ends(function: Function) -> Function:
    """The function with f32 for bf16 at its ends, which NumPy arrays of the runtime have not."""
    types: list[Any] = list(function.param_types)
    if not any(t.dtype is DType.BF16 for t in (*types, *function.result_types)):
        return function
    b = Builder([TensorType(DType.F32, t.shape) if t.dtype is DType.BF16 else t for t in types])
    inner = [
        b("convert", p, dtype=DType.BF16) if t.dtype is DType.BF16 else p
        for p, t in zip(b.params, types, strict=True)
    ]
    results = [
        b("convert", r, dtype=DType.F32) if r.dtype is DType.BF16 else r
        for r in b.inline(function.body, inner)
    ]
    return function.with_body(b.finish(results))


class Runner:
    """A model ready to run: by ONNX Runtime, or by the reference evaluator."""

    def __init__(self, model: Any, evaluator: bool = False) -> None:
        self.model = model
        if evaluator:
            self._evaluate()
            return
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.name = "onnxruntime"
        try:
            self._runs: Any = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise
            self._evaluate()

    def _evaluate(self) -> None:
        self.name = "reference evaluator"
        self._runs = onnx.reference.ReferenceEvaluator(self.model)

    def __call__(self, args: Sequence[Array]) -> list[Array]:
        names = [value.name for value in self.model.graph.input]
        found: list[Array] = self._runs.run(None, dict(zip(names, args, strict=True)))
        return [np.asarray(f) for f in found]


def difference(
    found: Sequence[Array], wanted: Sequence[Array], narrowest: DType, tight: bool
) -> str:
    """The first result that is further from the reference than it may be."""
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        if f.shape != w.shape or f.dtype != w.dtype:
            return f"result {k} is {f.dtype}{f.shape}, not {w.dtype}{w.shape}"
        if not f.size:
            continue
        if w.dtype.kind in "iub":
            bad = f != w
        else:
            here, there = np.asarray(f, np.float64), np.asarray(w, np.float64)
            part = OF_HALVES.get(narrowest, RELATIVE)
            finite = np.isfinite(there)
            scale = float(np.abs(there[finite]).max(initial=0))
            allowed = part * (np.abs(there) + (1e-2 if tight else 1.0) * scale)
            same = (here == there) | (np.isnan(here) & np.isnan(there))
            with np.errstate(all="ignore"):
                bad = ~same & ~(finite & np.isfinite(here) & (np.abs(here - there) <= allowed))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            count = f"{int(bad.sum())} of {bad.size}"
            return f"result {k} {w.dtype} at {at} is {f[at]!r}, not {w[at]!r} ({count})"
    return ""


def narrowest_float(function: Function) -> DType:
    types = [v.type for op in function.body.walk() for v in (*op.operands, *op.results)]
    every = [t for t in (*types, *function.param_types) if isinstance(t, TensorType)]
    halves = [d for d in (DType.BF16, DType.F16) if any(t.dtype is d for t in every)]
    return halves[0] if halves else DType.F32


def judge(program: Program, round_trip: bool, evaluator: bool = False) -> Verdict:
    try:
        function = plain_ends(program.build())
        model = written(function)
    except DelianError as error:
        return Verdict(program.name, "refused", str(error.message)[:300])
    except Exception as error:
        return Verdict(program.name, "crashed", _where(error))
    try:
        runner = Runner(model, evaluator)
        verdict = Verdict(program.name, "passed", runner=runner.name)
        verdict.why = _compared(program, function, runner)
    except Exception as error:
        return Verdict(program.name, "crashed", _where(error))
    if verdict.why:
        verdict.state = "wrong"
    elif round_trip:
        verdict.round_trip = _read_again(program, function, model)
    return verdict


def _compared(program: Program, function: Function, runs: Callable[..., Any]) -> str:
    reference, narrow = ReferenceProgram(function), narrowest_float(function)
    why = ""
    for attempt in range(program.attempts):
        args = program.arguments(function, attempt)
        with np.errstate(all="ignore"):
            wanted = reference(*args)
        found = runs(args)
        why = difference(found, wanted, narrow, program.tight)
        if why and not program.tight:  # sums that cancel: as far as rounding goes, measured in f64
            wide = in_f64(function)
            with np.errstate(all="ignore"):
                exact = ReferenceProgram(wide)(*fitted(args, wide))
            why = _difference(found, exact, wanted, _unit(function))
        if not why:
            return ""
    return why


def _read_again(program: Program, function: Function, model: Any) -> str:
    """equal, refused or wrong, and why: of the model that `from_onnx` reads."""
    try:
        again = dl.from_onnx(model)

        def runs(args: Sequence[Array]) -> list[Array]:
            return again.run(*args, backend="reference")

        why = _compared(program, function, runs)
    except DelianError as error:
        return f"refused: {error.message[:200]}"
    except Exception as error:
        return f"crashed: {_where(error)}"
    return f"wrong: {why}" if why else "equal"


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "onnx_export" in f.filename] or frames
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text} ({Path(own[-1].filename).name}:{own[-1].lineno})"


# The suites


def as_function(name: str, block: Any) -> Function:
    params = tuple(f"p{k}" for k in range(len(block.params)))
    return Function(name, block, params, tuple(f"r{k}" for k in range(len(block.results))))


def primitives() -> Iterator[Program]:
    from support.primitive_cases import TABLE

    for case in TABLE:

        def build(case: Any = case) -> Function:
            return as_function(case.name, case.block())

        tight = not case.name.startswith(PRODUCTS)
        yield Program(f"{case}", build, lambda f, k, c=case: _fitted(c.args, f), tight=tight)


def _fitted(args: Sequence[Array], function: Function) -> list[Array]:
    types: list[Any] = list(function.param_types)
    return [np.asarray(a).astype(t.dtype.numpy) for a, t in zip(args, types, strict=True)]


def random_programs(kind: str, seeds: range) -> Iterator[Program]:
    for case in cases(kind, list(seeds)):

        def arguments(function: Function, attempt: int, case: Any = case) -> list[Array]:
            return case.arguments(function.param_types, attempt)

        yield Program(case.name, case.build, arguments, ATTEMPTS)


def steps() -> Iterator[Program]:
    from judges.onnx_export_steps import programs

    for name, function, args in programs():

        def build(f: Any = function, a: Any = args) -> Function:
            return dl.trace(f, *a).function

        leaves = [np.asarray(v) for v in dl.tree.leaves(args)]
        yield Program(name, build, lambda f, k, v=leaves: v)


def programs(suite: str, seeds: range) -> Iterator[Program]:
    if suite in RANDOM:
        yield from random_programs(suite, seeds)
    else:
        yield from {"primitives": primitives, "steps": steps}[suite]()


def report(suite: str, verdicts: Sequence[Verdict]) -> list[str]:
    lines = []
    for state in ("wrong", "crashed"):
        lines += [f"{state} {v.name}: {v.why}" for v in verdicts if v.state == state]
    reasons = Counter(
        v.why.partition(":")[2].strip()[:160] for v in verdicts if v.state == "refused"
    )
    lines += [f"refused {n}: {why}" for why, n in reasons.most_common(8)]
    bad = [v for v in verdicts if v.round_trip.startswith(("wrong", "crashed"))]
    lines += [f"round trip of {v.name} {v.round_trip}" for v in bad]
    again = Counter(v.round_trip[:140] for v in verdicts if v.round_trip.startswith("refused"))
    lines += [f"round trip {n} {why}" for why, n in again.most_common(8)]
    counts = Counter(v.state for v in verdicts)
    runners = Counter(v.runner for v in verdicts if v.state == "passed")
    trips = Counter(v.round_trip.partition(":")[0] for v in verdicts if v.round_trip)
    lines.append(
        f"{suite}: {len(verdicts)} programs, "
        + ", ".join(f"{counts[s]} {s}" for s in ("passed", "refused", "wrong", "crashed"))
        + f" (by {', '.join(f'{r} {n}' for r, n in runners.items())})"
        + f"; round trips: {', '.join(f'{n} {s}' for s, n in sorted(trips.items())) or 'none'}"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--no-round-trip", action="store_true")
    parser.add_argument("--evaluator", action="store_true", help="ONNX's own, for all programs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    found: dict[str, list[Verdict]] = {}
    seeds = range(options.first, options.first + options.seeds)
    for suite in options.suites or SUITES:
        found[suite] = [
            judge(p, not options.no_round_trip, options.evaluator)
            for p in programs(suite, seeds)
            if options.only in p.name
        ]
        print("\n".join(report(suite, found[suite])), flush=True)
    if options.json:
        facts = {suite: [asdict(v) for v in verdicts] for suite, verdicts in found.items()}
        options.json.write_text(json.dumps(facts, indent=1))
    return int(any(v.state in ("wrong", "crashed") for vs in found.values() for v in vs))


if __name__ == "__main__":
    sys.exit(main())
