"""What becomes of a program of the corpus: CPython with NumPy against the compiled function.

    equal      the same values, element types, shapes, classes, and changes of the arguments
    refused    an error with a code
    different  anything else, which is a failure

Arguments are values of the running program. Where that is refused because a number must be known
(DL107), the program is tried with its numbers as `dl.Static`, as few as it takes, as its user
would; a program that compiles so is counted among the equal ones, and told apart. One of which
nothing would be left to the running program is refused.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import programs

#: Seconds that a program may take to compile.
COMPILE_SECONDS = 10
#: What stops a compilation that takes far longer.
LIMIT_SECONDS = 40
#: What stops a program that the reference runs; native code runs it then.
RUN_SECONDS = 10
#: So far the slopes to either side may be apart, relative to the slope.
KINK = 1e-3
#: Relative and absolute tolerances by the size of a float: sums are added up in another order.
TOLERANCES = {2: 2e-2, 4: 2e-4, 8: 1e-7}


def in_a_process(verb: str, file: programs.File, folder: Path, more: Any) -> dict[str, Any]:
    """Runs a verb for one file in a process of its own: modules of repositories share names."""
    given = json.dumps({"verb": verb, "file": asdict(file), "folder": str(folder), "more": more})
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), given],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=1200,
        cwd=folder,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    if not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        if verb == "judge":
            raise RuntimeError(f"{file.path}: {last[0]}")
        print(f"    {file.path}: {last[0][:120]}", file=sys.stderr)
        return {"functions": [], "texts": [], "programs": []}
    out: dict[str, Any] = json.loads(lines[-1][2:])
    return out


# Comparing


def difference(got: Any, want: Any, where: str = "result") -> str:
    """What differs, in words; empty where nothing does."""
    if isinstance(want, list | tuple):
        if type(got) is not type(want) or len(got) != len(want):
            return f"{where}: {type(got).__name__} for {type(want).__name__} of {len(want)}"
        pairs = enumerate(zip(got, want, strict=True))
        return next((w for k, (a, b) in pairs if (w := difference(a, b, f"{where}[{k}]"))), "")
    if isinstance(want, dict):
        if type(got) is not type(want) or list(got) != list(want):
            return f"{where}: other keys"
        return next((w for k in want if (w := difference(got[k], want[k], f"{where}[{k!r}]"))), "")
    if type(got) is not type(want):
        return f"{where}: {type(got).__name__} for {type(want).__name__}"
    if not isinstance(want, np.ndarray | np.generic | float | complex):
        return "" if got == want else f"{where}: {got!r} for {want!r}"
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{where}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
    if b.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else f"{where}: other values"
    size = b.dtype.itemsize // (2 if b.dtype.kind == "c" else 1)
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    close = np.allclose(
        a, b, rtol=TOLERANCES[size], atol=TOLERANCES[size] * 1e-3 * max(scale, 1), equal_nan=True
    )
    return "" if close else f"{where}: values differ"


def _is_number(x: Any) -> bool:
    """Whether `dl.Static(x)` may stand for x: a number, or a tuple of whole numbers."""
    if isinstance(x, tuple):
        return bool(x) and all(isinstance(v, int) for v in x)
    return isinstance(x, bool | int | float | np.generic)


def _runs(x: Any, static: bool) -> bool:
    """Whether something of an argument belongs to the running program."""
    return programs.has_numbers(x) and not (static and _is_number(x))


def _static_sets(program: programs.Program) -> Iterator[frozenset[int]]:
    """Places of arguments to be `dl.Static`: the whole numbers, then all numbers."""
    numbers = [k for k, a in enumerate(program.args) if _is_number(a)]
    whole = [k for k in numbers if isinstance(program.args[k], bool | int | np.integer | tuple)]
    seen: set[frozenset[int]] = {frozenset()}
    for chosen in (frozenset(whole), frozenset(numbers)):
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def _with_static(program: programs.Program) -> tuple[dict[str, Any], frozenset[int]]:
    """The outcome with as few numbers known as it takes; refused where nothing else is left."""
    refused = {"is": "refused", "code": "", "why": ""}
    for chosen in _static_sets(program):
        found = _outcome(program, "reference", chosen)
        if found["is"] == "refused":
            continue
        for k in sorted(chosen):
            fewer = _outcome(program, "reference", chosen - {k})
            if fewer["is"] != "refused":
                found, chosen = fewer, chosen - {k}
        if any(_runs(a, k in chosen) for k, a in enumerate(program.args)):
            return found, chosen
    return refused, frozenset()


def _outcome(program: programs.Program, backend: Any, static: frozenset[int]) -> dict[str, Any]:
    import delian as dl
    from delian.core.common.errors import DelianError, ProgramError
    from delian.core.compiler.traced import flatten

    want_args = copy.deepcopy(program.args)
    random.seed(1)
    want = program.function(*want_args)
    args = copy.deepcopy(program.args)
    given = tuple(dl.Static(a) if k in static else a for k, a in enumerate(args))
    f = dl.compile(program.function, backend=backend)
    begun = time.perf_counter()
    try:
        with programs.limited(LIMIT_SECONDS):
            f._entry(*flatten(given))  # Compiled, and not run.
        seconds = time.perf_counter() - begun
        with programs.limited(RUN_SECONDS):
            got = f(*given)
    except ProgramError as e:
        return {"is": "refused", "code": e.code, "why": e.message, "line": _line(e)}
    except DelianError as e:
        return {"is": "refused", "code": "call", "why": str(e).split("\n")[0], "line": ""}
    except RecursionError:
        return {"is": "different", "why": "RecursionError in the compiler"}
    except programs.TookTooLong:
        if backend == "reference" and time.perf_counter() - begun < LIMIT_SECONDS:
            return _outcome(program, "native", static)  # NumPy runs its loops one by one.
        return {"is": "different", "why": f"over {LIMIT_SECONDS} s"}
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        where = f"({Path(at.filename).name}:{at.lineno})"
        return {"is": "different", "why": f"{type(e).__name__}: {e} {where}"[:200]}
    words = difference(got, want) or difference(tuple(args), tuple(want_args), "arguments")
    if words:
        return {"is": "different", "why": words, "seconds": seconds}
    return {"is": "equal", "seconds": seconds}


def _line(e: Any) -> str:
    locs = getattr(e, "locs", None) or ([e.loc] if getattr(e, "loc", None) else [])
    import linecache

    return linecache.getline(locs[0].file, locs[0].line).strip()[:100] if locs else ""


def judge(
    program: programs.Program, native: bool = False, gradients: bool = False
) -> dict[str, Any]:
    """What becomes of one program."""
    name = {"program": str(program)}
    with programs.quiet():
        found, known = _outcome(program, "reference", frozenset()), frozenset[int]()
        if found["is"] == "refused":
            second, chosen = _with_static(program)
            if second["is"] != "refused":
                found, known = {**second, "static": sorted(chosen)}, chosen
        if found["is"] == "equal" and native:
            again = _outcome(program, "native", known)
            if again["is"] != "equal":
                found = {**again, "backend": "native"}
        if found["is"] == "equal" and gradients:
            try:
                with programs.limited(LIMIT_SECONDS):
                    words = gradient_difference(program, known)
            except programs.TookTooLong:
                words = "not run: it takes too long"
            found["gradient"] = words
            if ", by differences " in words:
                found |= {"is": "different", "why": f"gradient: {words}"}
    return name | found


# Gradients


def _floats(x: Any) -> list[Any]:
    """The float arrays and numbers of a tree."""
    if isinstance(x, list | tuple):
        return [v for item in x for v in _floats(item)]
    if isinstance(x, dict):
        return [v for item in x.values() for v in _floats(item)]
    kind = isinstance(x, np.ndarray | np.floating | float)
    return [x] if kind and np.asarray(x).dtype.kind == "f" else []


def gradient_difference(program: programs.Program, known: frozenset[int]) -> str:
    """`equal`, `none` (no float result, or Python's slopes are not settled), `refused: ...`, or
    what differs: the gradient of a weighted sum of all float results, along one direction, against
    finite differences of two steps.
    """
    import delian as dl
    from delian.core.common.errors import DelianError

    args = program.args
    places = [
        k
        for k, a in enumerate(args)
        if k not in known
        and isinstance(a, np.ndarray | float)
        and np.asarray(a).dtype == np.float64
    ]
    if not places:
        return "none"
    f = program.function

    def total(*floats: Any) -> Any:
        given = list(args)
        for k, v in zip(places, floats, strict=True):
            given[k] = v
        results = _floats(f(*given))
        out = 0.0
        for r in results:
            out = out + np.sum(
                r * np.cos(np.arange(np.size(r), dtype=np.float64).reshape(np.shape(r)))
            )
        return out

    at = [copy.deepcopy(args[k]) for k in places]
    rng = np.random.default_rng(3)
    along = [rng.normal(size=np.shape(a)) for a in at]

    def end(step: float) -> Any:
        moved = [a + step * v for a, v in zip(copy.deepcopy(at), along, strict=True)]
        return total(
            *[float(m) if isinstance(a, float) else m for m, a in zip(moved, at, strict=True)]
        )

    try:
        slopes = [float(end(s) - end(-s)) / (2 * s) for s in (1e-5, 1e-6)]
        sides = [float(end(s) - end(0.0)) / s for s in (1e-6, -1e-6)]
    except Exception:
        return "none"
    scale = max(1.0, abs(slopes[1]))
    settled = np.isfinite(slopes).all() and abs(slopes[0] - slopes[1]) <= 1e-5 * scale
    settled = settled and abs(sides[0] - sides[1]) <= KINK * scale  # A kink has no slope.
    if not settled or not isinstance(end(0.0), float):
        return "none"
    try:
        given = copy.deepcopy(at)
        made = dl.compile(dl.grad(total, argnums=tuple(range(len(at)))), backend="reference")(
            *given
        )
    except DelianError as e:
        return f"refused: {str(e).splitlines()[0][:80]}"
    slope = sum(float(np.sum(g * v)) for g, v in zip(made, along, strict=True))
    close = abs(slope - slopes[1]) <= 1e-4 * max(1, abs(slopes[1]))
    return "equal" if close else f"{slope:.6g}, by differences {slopes[1]:.6g}"


# Reports


def line(found: dict[str, Any]) -> str:
    """One program's outcome."""
    words = [found["is"], f"{found.get('seconds', 0):.2f} s", found["program"]]
    if found["is"] != "equal":
        words.append(f"| {found.get('code', '')} {found.get('why', '')} | {found.get('line', '')}")
    if found.get("static"):
        words.append("(static)")
    return " ".join(words)


def construct(found: dict[str, Any]) -> str:
    """The kind of a refusal: its message without the names of the program."""
    import re

    why = re.sub(r"[a-z]+\d+\[[^\]]*\]", "TYPE", found["why"])
    kept = re.match(r"(try|raise|print|assert|with|yield|class|del)\b", why)
    return f"{found['code']} {kept[0] if kept else why[:70]}"


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Counts: outcomes, refusals by code and by construct."""
    total = collections.Counter(f["is"] for f in found)
    static = sum(bool(f.get("static")) for f in found if f["is"] == "equal")
    share = 100 * total["equal"] / max(1, len(found))
    out = [
        f"{len(found)} programs: {dict(total)}; {share:.1f}% equal ({static} of them with Static)"
    ]
    refused = [f for f in found if f["is"] == "refused"]
    for of in (lambda f: f["code"], construct):
        for what, count in collections.Counter(map(of, refused)).most_common(60):
            out.append(f"{count:5} {what}")
    slow = max((f.get("seconds", 0.0) for f in found), default=0.0)
    out.append(f"the slowest took {slow:.1f} s")
    gradients = collections.Counter(f["gradient"].split(":")[0] for f in found if "gradient" in f)
    if gradients:
        out.append(f"gradients: {dict(gradients)}")
    return "\n".join(out)


def _run(given: dict[str, Any]) -> dict[str, Any]:
    programs.stand_in()
    fields = {**given["file"], "functions": tuple(given["file"]["functions"])}
    file, folder = programs.File(**fields), Path(given["folder"])
    if given["verb"] == "choose":
        seen = set(given["more"])
        before = set(seen)
        functions = programs.choose(file, folder, seen)
        return {"functions": functions, "texts": sorted(seen - before)}
    found = programs.programs(file, folder)
    missing = set(file.functions) - {p.name for p in found}
    out = [judge(p, **given["more"]) for p in found]
    assert not missing, f"{file.path}: no arguments for {sorted(missing)}"
    return {"programs": out}


if __name__ == "__main__":
    sys.setrecursionlimit(3000)
    result = _run(json.loads(sys.argv[1]))
    print("@@" + json.dumps(result))
