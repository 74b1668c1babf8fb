"""The front end's door: a Python function and the types of its arguments to an IR function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from ...common.errors import DelianError, ProgramError, TypeRuleError
from ...common.foreign_formats import way_of
from .. import tree
from ..ir import DType, Function, ListType, TensorType, Value
from ..traced import ARRAY, Static, Traced, Transform, flatten, has_own_operators, name_of
from . import calls, complexes
from .containers import list_packing
from .containers.argument_changes import ArgumentContainers
from .definitions.np_generators import STANDS_FOR
from .flow import unroll_limits
from .flow.raises import Faults, Raised
from .flow.unroll_limits import LoopWanted, TooLong, UnrollWanted
from .hir import tail_calls
from .memory import stores
from .memory.stores import Memory
from .numpy import arithmetic
from .scope import free_values
from .specialise import Specialiser, StaticNeeded
from .values import Tensor, describe, is_number, kind_of

#: Inlining recurses in Python, some ten frames a call; the calls themselves are limited to
#: `calls.DEPTH_MAX`.
_RECURSION = 20_000
#: How often a program is made again for loops that are to be unrolled.
_AGAIN_MAX = 64


def trace(
    f: Callable[..., Any],
    *specs: Any,
    name: str | None = None,
    simplified: bool = True,
    changes: bool = False,
    raises: bool = False,
    checks: bool = True,
    looping: bool | None = None,
) -> Traced:
    """Specialises a function.

    Args:
        f: a Python function, method, callable object, `functools.partial`, or a derivative of one.
        specs: one tree an argument. A leaf is a TensorType, an array (its type counts), a Python
            number (a weak type), or `Static(value)`; any other leaf is taken as static.
        name: the program's, by default the function's.
        simplified: False leaves what the function says as it is, for people to look at.
        changes: the function may change arrays among its arguments in place; what they hold then
            follows the results (`Traced.changed`).
        raises: there is a caller that raises the errors of the running program (`Traced.checked`);
            else `raise` that depends on its numbers is refused, and nothing is checked.
        checks: False leaves out `assert`, and what operations check.
        looping: whether reductions of generator expressions may be loops (`reduction_loops`); None
            where the program cannot be made without.

    Raises:
        LoopWanted: the program may be made with loops for reductions.
        ProgramError: the function cannot be compiled; says where, and what to do.
    """
    arguments = specs, name, simplified, changes, raises, checks
    if looping is not None:
        return _with_loops(f, looping, *arguments)
    try:
        return _with_loops(f, False, *arguments)
    except LoopWanted:
        return _with_loops(f, True, *arguments)


def _with_loops(f: Callable[..., Any], looping: bool, *arguments: Any) -> Traced:
    """A program in which loops that give names their first values are unrolled, as far as needed.

    First it is one round of such a loop, then all.
    """
    peeled: set[int] = set()
    unrolled: set[int] = set()
    while True:
        try:
            return _unrolled_or_stacked(f, looping, peeled, unrolled, *arguments)
        except UnrollWanted as e:
            if len(peeled) + len(unrolled) >= _AGAIN_MAX:
                raise
            (unrolled if e.loop in peeled else peeled).add(e.loop)


def _unrolled_or_stacked(f: Callable[..., Any], looping: bool, *arguments: Any) -> Traced:
    """A program with unrolled loops; a long one with lists of numbers as arrays."""
    try:
        return _traced(f, False, unroll_limits.FIRST_MAX, looping, *arguments)
    except TooLong:
        pass
    try:
        return _traced(f, True, unroll_limits.UNROLLED_MAX, looping, *arguments)
    except ProgramError as e:
        if e.code == "DL122" or isinstance(e, UnrollWanted):
            raise
        try:  # What a loop that was unrolled leaves is known, and may be needed.
            return _traced(f, False, unroll_limits.UNROLLED_MAX, looping, *arguments)
        except (ProgramError, TooLong):
            raise e from None


def _traced(
    f: Callable[..., Any],
    stacking: bool,
    size_max: int,
    looping: bool,
    peeled: set[int],
    unrolled: set[int],
    specs: tuple[Any, ...],
    name: str | None,
    simplified: bool,
    changes: bool,
    raises: bool,
    checks: bool,
) -> Traced:
    """One specialisation; raises TooLong where it should be another, with stacked lists."""
    s = Specialiser()
    s.looping, s.stacking, s.size_max = looping, stacking, size_max
    s.peeled |= peeled
    s.unrolled |= unrolled
    s.faults = Faults(s) if raises else None
    s.checks = checks
    leaves, structure = flatten(tuple(specs))
    names = _names(f, structure)
    params: list[Value] = []
    param_names: list[str] = []
    abstract: list[Any] = []
    static = set()
    arguments: dict[int, Memory] = {}
    packs = tuple(list_packing.of_arguments(leaves, structure)) if stacking and raises else ()
    packed: dict[int, Tensor] = {}
    for pack in packs:
        params.append(Value(TensorType(DType.of(pack.dtype), pack.shape)))
        param_names.append(list_packing.name(names[pack.first], pack))
        packed |= list_packing.parts(s, params[-1], pack, kind_of(leaves[pack.first]))
    for k, leaf in enumerate(leaves):
        if k in packed:
            abstract.append(packed[k])
            continue
        type_, kind = _type_of(leaf, names[k])
        if type_ is None:
            static.add(k)
            abstract.append(leaf.value if isinstance(leaf, Static) else leaf)
            continue
        params.append(Value(type_))
        param_names.append(names[k])
        argument = Tensor(params[-1], kind=kind)
        if argument.kind == ARRAY:
            known = raises and isinstance(leaf, np.ndarray) and leaf.flags.c_contiguous
            arguments[len(params) - 1] = _argument(s, argument, names[k], changes, known)
        abstract.append(argument)
    args = tree.unflatten(structure, abstract)
    held = None
    if changes and raises:
        held = ArgumentContainers(s, args, structure, parameter_names(f, len(args)))
    s.scope.inputs = params
    with _deep_recursion(), _as_program_errors(s), np.errstate(all="ignore"):
        s.look(f)
        result = calls.call(s, f, args, {})
        filled, made = held.filled(list(arguments.values())) if held is not None else ((), [])
        result = complexes.all_as_pairs(s, (result, *made) if filled else result)
        out, out_structure = tree.flatten(result)
        _check_kinds(s, out_structure)
        kinds = tuple(kind_of(v) if is_number(v) else 0 for v in out)
        paths = list(out_structure.paths())
        packed_results = tuple(list_packing.of_results(out)) if stacking and raises else ()
        results, result_names = [], []
        wholes = {p.first: p for p in packed_results}
        covered = {k for p in packed_results for k in range(p.first + 1, p.first + p.size)}
        for k, (leaf, path) in enumerate(zip(out, paths, strict=True)):
            if k in wholes:
                results.append(leaf.part.whole.value)
                result_names.append(list_packing.name(path, wholes[k]))
            elif k not in covered:
                results.append(_result(s, leaf, path))
                result_names.append(path)
        changed = [k for k, m in arguments.items() if m.value is not params[k]]
        results += [arguments[k].value for k in changed]
        said, mentioned = ((), []) if s.faults is None else s.faults.calls()
        hidden = [] if s.faults is None else s.faults.results()
        results += [*mentioned, *hidden]
        if free_values(s.scope.ops, params, results):
            hint = "return its results instead of the function"
            raise s.error("DL119", "a function made inside a derivative is called outside it", hint)
    s.scope.params = tuple(params)
    from ..passes.pass_manager import INDEPENDENT, run

    function = Function(
        name or name_of(f),
        s.scope.finish(results),
        tuple(param_names),
        (
            *(p or "result" for p in result_names),
            *(f"{param_names[k]} (changed)" for k in changed),
            *(f"said {k}" for k in range(len(mentioned))),
            *(f"fault {k}" if k else "fault" for k in range(len(hidden))),
        ),
    )
    function = run(function, INDEPENDENT, last="" if simplified else INDEPENDENT[0].name)
    outside = tuple(s.outside.values())
    seen = tuple(s.seen.values())
    return Traced(
        function,
        structure,
        out_structure,
        frozenset(static),
        outside,
        kinds,
        seen,
        tuple(changed),
        tuple(s.faults.table) if s.faults is not None else (),
        len(mentioned) + len(hidden),
        packs,
        packed_results,
        said,
        filled,
    )


def _argument(s: Specialiser, x: Tensor, name: str, changes: bool, row_major: bool) -> Memory:
    """The memory of an array that the caller passes.

    row_major: the program is for those alone whose elements lie next to each other, row by row.
    """
    x.own = stores.fresh(s, x.value).own
    memory = stores.memory_of(s, x)
    assert memory is not None
    memory.argument = name
    memory.row_major = row_major
    if not changes:
        memory.fixed = (
            f"the argument `{name}` cannot be changed in place: a program without a caller in"
            " Python has no array of the caller's to change"
        )
    return memory


def _type_of(leaf: Any, name: str) -> tuple[TensorType | None, int]:
    """A parameter's type and what it is in Python (`Tensor.kind`); None for a static leaf."""
    if isinstance(leaf, TensorType):
        return leaf, ARRAY
    if isinstance(leaf, ListType):
        raise ProgramError("DL118", f"the argument `{name}` cannot be a list of the IR")
    if has_own_operators(leaf):
        text = f"the argument `{name}` is a `{type(leaf).__name__}`, an array with own operators"
        raise ProgramError("DL118", text, hint="pass np.asarray(x), without a mask")
    if isinstance(leaf, np.ndarray | np.generic):
        try:
            return TensorType(DType.of(leaf.dtype), leaf.shape), kind_of(leaf)
        except KeyError:
            known = ", ".join(DType.names())
            raise ProgramError(
                "DL118",
                f"the argument `{name}` is an array of {leaf.dtype}, which the compiler has not",
                hint=f"convert it to one of {known}",
            ) from None
    if isinstance(leaf, bool | int | float):
        if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise ProgramError(
                "DL118",
                f"the argument `{name}` is {leaf}, and an int of a program has 64 bits",
                hint="pass it as a float, or as a known number: dl.Static(value)",
            )
        return TensorType.of(leaf), kind_of(leaf)
    return None, 0


def _check_kinds(s: Specialiser, structure: tree.Structure) -> None:
    """Raises ProgramError for a result of a class that stands for one of NumPy's."""
    stands_for = getattr(structure.kind, STANDS_FOR, None)
    if stands_for is not None and stands_for.__module__ != "collections":
        raise s.error(
            "DL118",
            "a random generator is a result, and lives in one call of a program",
            "return what it draws; a loop that draws belongs into the function",
        )
    if stands_for is not None:
        name = stands_for.__name__
        hint = "return what it holds: list(x)" if name == "deque" else "return dict(x)"
        raise s.error("DL118", f"a `{name}` is a result, and lives in one call of a program", hint)
    for child in structure.children:
        _check_kinds(s, child)


def _result(s: Specialiser, leaf: Any, path: str) -> Value:
    if not is_number(leaf):
        where = f"the result's `{path}`" if path else "the result"
        hint = "return arrays and numbers; mark a module's other fields with dl.static_field()"
        if foreign := way_of(leaf):
            raise s.error("DL118", f"{where} is {foreign[0]}", foreign[1])
        raise s.error("DL118", f"{where} is {describe(leaf)}, which is not an array", hint)
    return arithmetic.tensor(s, leaf).value


def parameter_names(f: Any, count: int) -> list[str]:
    """A name for each positional argument."""
    target = f
    while isinstance(target, Transform):
        if target.kind == "jvp":
            return ["primals", "tangents"][:count]
        target = target.f
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    out: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            out += [f"{p.name}.{k}" for k in range(count - len(out))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            out.append(p.name)
    return (out + [f"argument{k}" for k in range(len(out), count)])[:count]


def _names(f: Any, structure: tree.Structure) -> list[str]:
    firsts = parameter_names(f, len(structure.children))
    return [
        path
        for first, child in zip(firsts, structure.children, strict=True)
        for path in child.paths(first)
    ]


@contextmanager
def _as_program_errors(s: Specialiser) -> Iterator[None]:
    """Gives the errors of type rules their span."""
    try:
        yield
    except TypeRuleError as e:
        raise s.error("DL120", e.message, e.hint) from e
    except Raised as e:
        raise e.refused(s) from None
    except StaticNeeded as e:
        if s.wants_stacks and not s.stacking:
            raise TooLong from e
        raise _wanted(s, e) from e.__cause__
    except ProgramError as e:
        raise _wanted(s, e) from e.__cause__
    except (DelianError, TooLong):
        raise
    except RecursionError:
        raise s.error(
            "DL110",
            "the program is nested too deeply",
            "a recursion must end on a value known when the program is compiled; else use a loop;"
            " and no list or object may hold itself",
        ) from None
    except Exception as e:
        raise s.error(
            "DL121",
            f"the compiler fails here: {type(e).__name__}: {e}",
            "this is a fault of the compiler; please report the function with this message",
        ) from e
    finally:
        tree.close_objects(value for value, _ in s.owned.values())


def _wanted(s: Specialiser, e: ProgramError) -> ProgramError:
    """An error; of another class where loops for reductions may help."""
    if isinstance(e, UnrollWanted):
        return e
    wanted = s.wants_loops and not s.looping
    return LoopWanted(e.code, e.message, e.locs, e.hint) if wanted else e


_recursion_lock = Lock()


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raises Python's limit while any thread traces."""
    with _recursion_lock:
        if not tail_calls.recursion_limits:
            tail_calls.recursion_limits.append(sys.getrecursionlimit())
            sys.setrecursionlimit(max(tail_calls.recursion_limits[0], _RECURSION))
        tail_calls.recursion_limits.append(0)
    try:
        yield
    finally:
        with _recursion_lock:
            tail_calls.recursion_limits.pop()
            if len(tail_calls.recursion_limits) == 1:
                sys.setrecursionlimit(tail_calls.recursion_limits.pop())
