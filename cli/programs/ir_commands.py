"""`delian ir`: the programs that functions become."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.common.errors import DelianError, ProgramError
from ..options import AsJson
from ..output import echo, tell

if TYPE_CHECKING:
    from ...core.compiler.ir import Function

app = typer.Typer(help="Look at compiled programs.", no_args_is_help=True)

TEXT_BYTES_MAX = 64 << 20
_EXAMPLE = "delian ir show model.py:loss --arg 'f32[3]' --arg 'f32[8,3]' --arg 'f32[8]'"

Program = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FUNCTION",
        help="A Python file's function, a bundle's program (model.bundle:infer), or a text (x.ir).",
    ),
]
Args = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="TYPE", help="Type of an argument, in order: f32[8,3]."),
]
Grad = Annotated[
    int, typer.Option("--grad", min=0, max=8, help="Differentiate so many times by the first.")
]


TRACE, SIMPLIFY, FUSE = "trace", "simplify", "fuse"
"""Stages that a program can be shown at besides those after a pass."""


def _stage(name: str) -> str:
    """The name of a stage. Raises DelianError for an unknown one."""
    from ...core.compiler.passes.pipeline import PIPELINE

    names = (TRACE, *(each.name for each in PIPELINE), FUSE)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "`delian ir passes` lists the stages"
        raise DelianError(f"there is no stage {name!r}", hint)
    return name


After = Annotated[
    str,
    typer.Option(
        "--after",
        metavar="STAGE",
        help="trace: as the front end read it; a name that `delian ir passes` lists: after that"
        " pass; fuse: the loops of native code.",
    ),
]


@app.command("show")
def show(
    program: Program,
    args: Args = None,
    grad: Grad = 0,
    after: After = SIMPLIFY,
    as_json: AsJson = False,
) -> None:
    """Show a program next to its source, with shapes, operations and bytes."""
    from . import listing

    function = _load(program, args or [], grad, after)
    text = listing.fused(function) if after == FUSE else listing.listing(function)
    if not as_json:
        sys.stdout.write(text)
        return
    tell({"program": program, "after": after, **listing.facts(function), "text": text}, True, list)


@app.command("passes")
def passes(as_json: AsJson = False) -> None:
    """List the compiler's passes in the order in which they run."""
    from ...core.compiler.passes.pass_manager import INDEPENDENT
    from ...core.compiler.passes.pipeline import PIPELINE

    if as_json:
        found = [
            {"name": each.name, "what": each.text, "native": k >= len(INDEPENDENT)}
            for k, each in enumerate(PIPELINE)
        ]
        tell(found, True, list)
        return
    width = max(len(each.name) for each in PIPELINE)
    for k, each in enumerate(PIPELINE):
        if k == 0:
            echo("for every back end:")
        elif k == len(INDEPENDENT):
            echo("for native code:")
        echo(f"  {each.name:<{width}}  {each.text}")


@app.command("c")
def c(program: Program, args: Args = None, grad: Grad = 0, as_json: AsJson = False) -> None:
    """Print the C that a program becomes."""
    from ...core.compiler.backends.native.emit import emit
    from ...core.compiler.passes.pipeline import lowered

    function = lowered(_load(program, args or [], grad, SIMPLIFY))
    text, _ = emit({function.name: function})
    if as_json:
        tell({"program": program, "c": text}, True, list)
        return
    sys.stdout.write(text)


@app.command("time")
def time_(
    program: Program,
    args: Args = None,
    grad: Grad = 0,
    calls: Annotated[int, typer.Option("--calls", min=1, max=10_000, help="How often.")] = 10,
    top: Annotated[int, typer.Option("--top", min=1, help="So many steps, the slowest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Run a program natively on made-up numbers and show which steps take its time.

    Its floats are drawn between 0 and 1, its integers are 0: loops that end by what they compute
    may run longer or shorter than on real data.
    """
    import numpy as np

    from ...core.compiler.backends.native.toolchain.timing import time_steps
    from ...core.compiler.ir import TensorType

    function = _load(program, args or [], grad, SIMPLIFY)
    rng = np.random.default_rng(0)
    arrays = []
    for t in function.param_types:
        if not isinstance(t, TensorType):
            raise DelianError("a program that takes a list cannot be timed", _EXAMPLE)
        made = rng.random(t.shape) if t.dtype.is_float else np.zeros(t.shape)
        arrays.append(np.asarray(made).astype(t.dtype.numpy))
    steps = time_steps(function, arrays, calls)
    if as_json:
        slowest = sorted(steps, key=lambda s: -s.seconds)[:top]
        seconds = sum(s.seconds for s in steps)
        rows = [
            {
                "seconds": s.seconds,
                "runs": s.runs,
                "gflops": s.gflops,
                "operations": list(dict.fromkeys(s.operations)),
                "shape": list(s.shape),
                "places": list(s.places),
            }
            for s in slowest
        ]
        tell({"seconds": seconds, "count": len(steps), "steps": rows}, True, list)
        return
    total = sum(s.seconds for s in steps) or 1.0
    echo(f"{1e6 * total:.1f} us a call, {len(steps)} steps")
    echo(f"{'us':>10}{'%':>7}{'runs':>7}{'GFLOP/s':>9}  step")
    for s in sorted(steps, key=lambda s: -s.seconds)[:top]:
        shape = ", ".join(map(str, s.shape))
        text = f"{', '.join(dict.fromkeys(s.operations))} [{shape}] {' '.join(s.places[:2])}"
        share = 100 * s.seconds / total
        echo(f"{1e6 * s.seconds:10.1f}{share:7.1f}{s.runs:7d}{s.gflops:9.1f}  {text}")


@app.command("diff")
def diff(
    a: Program,
    b: Program,
    args: Args = None,
    grad: Grad = 0,
    after: After = SIMPLIFY,
    as_json: AsJson = False,
) -> None:
    """Show what two programs compute differently. Exit code 1: they differ.

    Values are named by what they are computed of, so an operation more renames nothing else.
    """
    from . import listing

    left, right = (_load(p, args or [], grad, after) for p in (a, b))
    found = listing.diff(left, right, (a, b))
    tell({"same": not found, "diff": found}, as_json, found.splitlines)
    if found:
        raise typer.Exit(1)


def _load(program: str, args: list[str], grad: int, after: str) -> Function:
    """The program, after the passes up to a stage."""
    from ...core.compiler.passes.pass_manager import INDEPENDENT, run
    from ...core.compiler.passes.pipeline import NATIVE

    shared = [each.name for each in INDEPENDENT]
    before_simplify = _stage(after) in (TRACE, *shared[: shared.index(SIMPLIFY)])
    function = _read(program, args, grad, simplified=not before_simplify)
    if after in (TRACE, FUSE, *shared):
        return function
    return run(function, NATIVE, last=after)


def _read(program: str, args: list[str], grad: int, *, simplified: bool) -> Function:
    path, _, name = program.rpartition(":")
    if not path:
        path, name = program, ""
    file = Path(path)
    if file.suffix == ".py":
        return _traced(file, name, args, grad, simplified)
    if args or grad:
        raise DelianError("--arg and --grad are for Python functions", _EXAMPLE)
    if not file.is_file():
        missing = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        raise DelianError(missing, _EXAMPLE)
    if file.suffix == ".bundle":
        from ...core.learning.bundle import load

        programs = load(file).programs
        if name not in programs:
            raise DelianError(f"{file} has no program `{name}`", f"it has {', '.join(programs)}")
        return programs[name]
    from ...core.compiler.parse import parse_function
    from ...core.compiler.verify import verify

    if file.stat().st_size > TEXT_BYTES_MAX:
        raise DelianError(f"{file} is larger than a program's text can be", _EXAMPLE)
    try:
        function = parse_function(file.read_text(encoding="utf-8"), str(file))
    except ProgramError as error:
        raise error if error.hint else DelianError(str(error), f"for example: {_EXAMPLE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DelianError(f"{file} cannot be read: {error}", _EXAMPLE) from None
    verify(function)
    return function


def _traced(file: Path, name: str, args: list[str], grad: int, simplified: bool) -> Function:
    from ...core.common.user_code import load_function
    from ...core.compiler import api
    from ...core.compiler.frontend import trace
    from ...core.compiler.ir import TensorType
    from ...core.compiler.parse import parse_type

    if not name:
        raise DelianError(f"{file}: which function?", _EXAMPLE)
    f = load_function(file, name, _EXAMPLE)
    try:
        types = [parse_type(text) for text in args]
    except ProgramError as error:
        raise DelianError(str(error), error.hint or f"for example: {_EXAMPLE}") from None
    if not all(isinstance(t, TensorType) for t in types):
        raise DelianError("an argument is a tensor", _EXAMPLE)
    for _ in range(grad):
        f = api.grad(f)
    return trace(f, *types, name=name, simplified=simplified).function
