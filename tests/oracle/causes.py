"""Why a program may differ without a fault: ints that leave 64 bits, errors in the last bits, the
order of sums, and the order that an unstable sort leaves equal elements in.
"""

from __future__ import annotations

import ast
import copy
import functools
import io
import itertools
import math
import operator
import random
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from . import numpys_faults
from .orders import reordered

_LIMIT = 2**63


def wraps_so(
    text: str, call: int, got: Any, mild: tuple[str, ...] = (), several: bool = False
) -> bool:
    """Whether a compiled program's outcome of a call comes of ints that have 64 bits.

    `got`: what Python's outcome is compared with, as `_run` gives it; `mild`: differences between
    the two that are stated whatever they come of; `several`: the class of a number depends on the
    path. Python runs the program with ints of 64 bits: what differs has to be there what it is
    then. With `several`, such an int may be a float, in all operations or in some of them.
    """
    want, wrapped = _run(text, {}), [_run(text, _WRAPPED)]
    if several:
        floats = [_float_of, *(_some_floats(random.Random(k)) for k in range(_SAMPLES))]
        wrapped += [_run(text, _fitting(fit)) for fit in floats]
    samples = [run[call] for run in wrapped if len(run) > call]
    return len(want) > call and bool(samples) and _excused(got, want[call], samples, 0.0, mild)


def _fit(value: Any) -> Any:
    """An int as one of 64 bits; of a list or tuple, its items."""
    if isinstance(value, complex) and not _complex[0]:  # A power of floats.
        raise _Beyond("ArithmeticError")
    if type(value) is int:
        return (value + _LIMIT) % (2 * _LIMIT) - _LIMIT
    if type(value) in (list, tuple) and any(map(_is_long, value)):
        items = [_fit(v) if type(v) is int else v for v in value]
        if type(value) is tuple:
            return tuple(items)
        value[:] = items
    return value


#: Whether the program that runs has complex numbers of its own.
_complex = [False]
_HAS_COMPLEX = re.compile(r"complex|\dj\b")


class _Beyond(BaseException):
    """The error of a program where Python has a value: no handler of the program takes it."""


def _is_long(value: Any) -> bool:
    return type(value) is int and not -_LIMIT <= value < _LIMIT


def _fitted(fit: Callable[[Any], Any], function: Any, *args: Any, **keywords: Any) -> Any:
    """What a function gives, with ints of 64 bits by way of `fit`."""
    if any(function is known for known in _REDUCED) and args:
        return _reduced(fit, _REDUCED[function], *args, **keywords)
    made = function(*args, **keywords)
    of_float = not (args and isinstance(args[0], int))
    whole = of_float and getattr(function, "__name__", "") in _FROM_FLOATS
    if whole and fit is _fit and _is_long(made):
        raise _Beyond("OverflowError")
    return fit(made)


def _reduced(
    fit: Callable[[Any], Any], step: tuple[Any, int], items: Any, /, start: Any = None
) -> Any:
    """`sum` and `math.prod`, of which no step leaves 64 bits."""
    combine, first = step
    total = first if start is None else start
    for item in items:
        total = fit(combine(total, fit(item)))
    return total


_REDUCED = {sum: (operator.add, 0), math.prod: (operator.mul, 1)}
#: What makes a whole number of a float: a program raises an error where it has no 64 bits for it.
_FROM_FLOATS = ("int", "round", "floor", "ceil", "trunc")


def _fitting(fit: Callable[[Any], Any]) -> dict[str, Any]:
    """What a program calls whose numbers pass through `fit`."""
    return {
        "_fit": fit,
        "_watched": fit,
        "_calls": functools.partial(_fitted, fit),
        "_stored": lambda array, value: value,
        "_moved": lambda value: value,
    }


#: What a program with ints of 64 bits calls.
_WRAPPED = _fitting(_fit)


def _float_of(value: Any) -> Any:
    """An int as a float where it has more than 64 bits."""
    if not _is_long(value):
        return value
    return math.copysign(math.inf, value) if abs(value).bit_length() > 1024 else float(value)


def _some_floats(rng: random.Random) -> Callable[[Any], Any]:
    """An int of more than 64 bits as a float here, Python's or NumPy's, as one of 64 bits there."""
    share, kind = rng.choice((0.25, 0.5, 0.75, 1.0)), rng.choice((float, np.float64))

    def fit(value: Any) -> Any:
        if not _is_long(value):
            return value
        return kind(_float_of(value)) if rng.random() < share else _fit(value)

    return fit


class _Watch(ast.NodeTransformer):
    """Operands, which are only read, and results of operators go through `_watched`.

    Which function is called is known when the program runs, so a call goes through `_calls`. What
    is written to a place goes through `_stored`.
    """

    def __init__(self) -> None:
        self._places = itertools.count()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node  # It looks at the frame that calls it.
        called = ast.Call(ast.Name("_calls", ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(called, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.left, node.right = _called(node.left), _called(node.right)
        if isinstance(node.op, ast.MatMult):
            names = [ast.Name(name, ast.Load()) for name in ("_calls", "_matmul")]
            called = ast.Call(names[0], [names[1], node.left, node.right], [])
            return ast.copy_location(called, node)
        return _called(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        node.operand = _called(node.operand)
        return _called(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        alike = ast.unparse(node.left) == ast.unparse(node.comparators[0])  # It asks for NaN.
        if not alike and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            node.left = _called(node.left)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Subscript):
            held = ast.parse(ast.unparse(target.value), mode="eval").body
            stored = ast.Call(ast.Name("_stored", ast.Load()), [held, node.value], [])
            node.value = ast.copy_location(stored, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """`a[k] op= v` becomes `p1 = a; p2 = k; p3 = p1[p2]; p3 op= v; p1[p2] = _fit(_moved(p3))`.

        A slice of a list or an array is only moved afterwards.
        """
        self.generic_visit(node)
        node.value = _called(node.value)
        if any(isinstance(inner, ast.Slice) for inner in ast.walk(node.target)):
            return [node, *ast.parse(f"_moved({ast.unparse(node.target)})").body]
        held, key, item = (f"_place{next(self._places)}" for _ in range(3))
        target, lines = ast.unparse(node.target), []
        if isinstance(node.target, ast.Subscript):
            lines = [f"{held} = {ast.unparse(node.target.value)}"]
            lines += [f"{key} = {ast.unparse(node.target.slice)}"]
            target = f"{held}[{key}]"
        elif isinstance(node.target, ast.Attribute):
            lines = [f"{held} = {ast.unparse(node.target.value)}"]
            target = f"{held}.{node.target.attr}"
        change = ast.unparse(ast.AugAssign(ast.Name(item, ast.Store()), node.op, node.value))
        lines += [f"{item} = {target}", change, f"{target} = _fit(_moved({item}))"]
        return ast.parse("\n".join(lines)).body


def _called(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name("_watched", ast.Load()), [node], []), node)


#: Functions and methods that give what they are given, or a part of it: they round nothing.
_EXACT = frozenset(
    (
        *("abs", "absolute", "fabs", "max", "min", "maximum", "minimum", "fmax", "fmin"),
        *("amax", "amin", "sign", "negative", "positive", "conj", "real", "float", "int"),
        *("bool", "float16", "float32", "float64", "asarray", "array", "copy", "item"),
        *("tolist", "astype", "take", "get", "pop", "sort", "clip", "where", "choose", "next"),
        *("getitem", "floor", "ceil", "trunc", "rint", "reshape", "ravel", "squeeze"),
        *("transpose"),
    )
)
#: Errors in the last bits of floats, by their size.
_ERRORS = {2: 2.0**-11, 4: 2.0**-23, 8: 2.0**-51}
#: Python's results with other errors, and how much larger than theirs an error may be.
_SAMPLES, _TIMES = 48, 4.0
#: Python's results with only sums and products in another order.
_REORDERED = 24


def _rounds(function: Any) -> bool:
    """Whether a function is one of NumPy or Python that computes; others are disturbed inside."""
    if isinstance(function, type | FunctionType | MethodType | functools.partial):
        known = getattr(function, "__module__", "").partition(".")[0] == "numpy"
    else:
        known = callable(function)
    return known and getattr(function, "__name__", "") not in _EXACT


def _is_of_matrices(function: Any) -> bool:
    """Whether a function solves or factors: its result is that of a matrix with small errors."""
    name = getattr(function, "__name__", "")
    return name not in _PLAIN and getattr(np.linalg, name, None) is function


#: Of NumPy's linear algebra, what only multiplies or takes elements.
_PLAIN = ("diagonal", "trace", "outer", "cross", "matrix_transpose", "vecdot", "matmul", "norm")


def _is_fresh(made: Any, function: Any, args: Any, keywords: Any) -> bool:
    """Whether an array is surely not one that others hold."""
    owner = getattr(function, "__self__", None)
    numpys = isinstance(function, np.ufunc) or isinstance(owner, np.ndarray)
    numpys = numpys or str(getattr(function, "__module__", "")).startswith("numpy")
    known = any(made is value for value in (owner, *args))
    return numpys and made.base is None and not known and "out" not in keywords


def _fills(made: Any, function: Any, args: Any, keywords: Any) -> bool:
    """Whether a function of NumPy has written into an array that was there before."""
    if not isinstance(function, np.ufunc):
        return False
    given = keywords.get("out", args[function.nin :])
    return any(made is value for value in (given if isinstance(given, tuple) else (given,)))


#: What `resolve_dtypes` takes for numbers of Python.
_KINDS: dict[type, Any] = {bool: np.dtype(bool), int: int, float: float, complex: complex}


def _rounded_as(function: np.ufunc, args: Any, made: Any) -> np.dtype[Any]:
    """The narrower of what NumPy computes in and of the array that is written."""
    given = args[: function.nin]
    kinds = [_KINDS.get(type(a)) or np.asarray(a).dtype for a in given]
    types = (*kinds, *(None,) * function.nout)
    return min(function.resolve_dtypes(types)[-1], made.dtype, key=lambda d: d.itemsize)


def rounds_so(
    text: str, call: int, got: Any, mild: tuple[str, ...] = (), narrow: bool = False
) -> bool:
    """Whether a compiled program's outcome of a call comes of errors in the last bits of floats.

    `got`, `mild`: as in `wraps_so`; `narrow`: as in `_errors`. Python runs the program several
    times with such errors and with ints of 64 bits: each operation that gives a float with a
    fraction is disturbed, and the signs of zeros and the order of sums are drawn. A small
    number that is a multiple of 1/64 is left: those that programs start from are exact in every
    order of operations. What differs has to differ there too, at the same place: by a like amount,
    or in the same way, or as a whole number that follows the last bits.
    """
    want = _run(text, _WRAPPED)
    runs = [
        _run(text, _errors(random.Random(k), narrow or bool(mild), k % 2 == 1, k >= _SAMPLES))
        for k in range(_SAMPLES + _REORDERED)
    ]
    samples = [run[call] for run in runs if len(run) > call]
    return len(want) > call and _excused(got, want[call], samples, _TIMES, mild)


def _errors(rng: random.Random, narrow: bool, alike: bool, reordered_only: bool) -> dict[str, Any]:
    """What a disturbed program calls.

    narrow: a float of Python's may have the bits of f32, as where another path has one of those.
    alike: the elements of an array have errors of one sign, so equal ones stay equal.
    reordered_only: no number has an error. What cancels is 0 then, which a product of numbers that
        overflow may meet before they do.
    """

    def watched(value: Any, sign: int = 0) -> Any:
        value = _fit(value)
        dtype = getattr(value, "dtype", np.dtype(float) if type(value) is float else None)
        if np.iscomplexobj(value):
            made = np.array(value, getattr(value, "dtype", complex))
            made.real, made.imag = watched(made.real[...]), watched(made.imag[...])
            return made if isinstance(value, np.ndarray) else type(value)(made[()])
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            sign = rng.choice((-1, 1)) if alike else 0
            made = [watched(v, sign) for v in value.ravel()]
            return np.array(made, value.dtype).reshape(value.shape)
        if not isinstance(dtype, np.dtype) or dtype.kind != "f" or np.ndim(value):
            return value
        if value == 0:
            return type(value)(rng.choice((0.0, -0.0)))
        error = _ERRORS[4 if narrow and type(value) is float else dtype.itemsize]
        if reordered_only or not np.isfinite(value) or _is_exact(float(value), error):
            return value
        return type(value)(value * (1 + (sign or rng.choice((-1, 1))) * error))

    def calls(function: Any, *args: Any, **keywords: Any) -> Any:
        factors = _is_of_matrices(function) and not reordered_only
        given = [inexact(v) for v in args] if factors else args
        made = _fitted(_fit, reordered(rng, function), *given, **keywords)
        if isinstance(made, np.ndarray) and not _is_fresh(made, function, args, keywords):
            if _fills(made, function, args, keywords) and _rounds(function):
                disturbed = watched(made.astype(_rounded_as(function, args, made)))
                np.copyto(made, disturbed, where=keywords.get("where", True))
            return made
        if getattr(function, "__name__", "") == "astype":
            return converted(getattr(function, "__self__", None), made.dtype, made)
        return watched(made) if _rounds(function) else made

    def inexact(value: Any) -> Any:
        """A matrix, each element of which has an error in the last bits of the largest one."""
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf" or not value.size:
            return value
        value = value if value.dtype.kind == "f" else value.astype(np.float64)
        size = _ERRORS[value.dtype.itemsize] * np.abs(value).max()
        signs = [rng.choice((-1, 0, 1)) for _ in range(value.size)]
        return value + np.reshape(np.array(signs, value.dtype) * size, value.shape)

    def stored(array: Any, value: Any) -> Any:
        return converted(value, array.dtype, value) if isinstance(array, np.ndarray) else value

    def converted(value: Any, dtype: Any, made: Any) -> Any:
        """Floats of an array as integers: those that do not fit become one or another."""
        if not isinstance(value, np.ndarray) or (value.dtype.kind, dtype.kind) not in _CONVERTED:
            return made
        info = np.iinfo(dtype)
        fits = (value > info.min - 1) & (value < info.max + 1)
        other = rng.choice((0, info.min, info.max, info.max // 2 + 1))
        return np.where(fits, value.astype(dtype), dtype.type(other)) if not fits.all() else made

    def moved(value: Any) -> Any:
        """What an operator has changed in place: an array's elements have errors where they are."""
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.flags.writeable:
            np.copyto(value, watched(value.copy()))
        return value

    made = {"_fit": _fit, "_watched": watched, "_calls": calls, "_stored": stored}
    return {**made, "_moved": moved}


#: Kinds of floats, and of the integers that they are converted to.
_CONVERTED = (("f", "i"), ("f", "u"))


#: Four bits.
_SPARE = 16


def _is_exact(value: float, error: float) -> bool:
    """Whether a number and its like are exact in every order of operations.

    Of one that takes nearly all of its type's bits nothing shows that it was not rounded.
    """
    if abs(value) * 64 >= 1 / error or value * 64 != int(value * 64):
        return False
    whole = abs(int(value * 64))
    return whole // (whole & -whole) * _SPARE < 1 / error


def _excused(
    got: Any, want: Any, samples: list[Any], times: float, mild: tuple[str, ...] = ()
) -> bool:
    """Whether each difference is one that a sample has at its place.

    times: how much larger than that of a sample the error of a float may be.
    """
    from .judge import ZERO, difference, numbers_of, unsigned

    said = difference(got, want)
    if not said or said.startswith((ZERO, *mild)):
        return True
    if isinstance(got, str) and isinstance(want, str):
        (form, mine), (other, numbers), *drawn = (
            numbers_of(unsigned(text)) for text in (got, want, *samples) if isinstance(text, str)
        )
        if form == other:
            return _excused(mine, numbers, [n for f, n in drawn if f == form], times, mild)
    alike = [s for s in samples if _form(s) == _form(got)]
    if _form(want) != _form(got):
        if not alike:
            return False
        want = alike[0]
    if isinstance(got, list | tuple):
        places = zip(got, want, strict=True)
        return all(
            _excused(g, w, [s[k] for s in alike], times, mild) for k, (g, w) in enumerate(places)
        )
    if isinstance(got, dict):
        return all(
            _excused(got[key], want[key], [s[key] for s in alike], times, mild) for key in got
        )
    if isinstance(got, int | float | complex | np.ndarray | np.generic):
        return _numbers_excused(got, want, alike, times)
    if hasattr(got, "__dict__"):
        return _excused(vars(got), vars(want), [vars(s) for s in alike], times, mild)
    return any(not difference(got, s) for s in alike)


def _form(value: Any) -> Any:
    """Class, and length, keys or element type and shape."""
    inner: Any = None
    if isinstance(value, np.ndarray):
        inner = value.dtype, value.shape
    elif isinstance(value, dict):
        inner = list(value)
    elif isinstance(value, list | tuple):
        inner = len(value)
    return type(value).__name__, inner


def _numbers_excused(got: Any, want: Any, samples: list[Any], times: float) -> bool:
    from .judge import is_near

    if np.iscomplexobj(want) and np.iscomplexobj(got):
        parts = ([part(v) for v in (got, want, *samples)] for part in (np.real, np.imag))
        return all(_numbers_excused(g, w, more, times) for g, w, *more in parts)
    near = is_near(got, want)
    for sample in samples:
        near = near | is_near(got, sample)
    if times and np.asarray(want).dtype.kind == "f" and samples:
        drawn = np.array([want, *samples], np.float64)
        drawn[~np.isfinite(drawn)] = np.nan
        least, most = np.fmin.reduce(drawn), np.fmax.reduce(drawn)
        middle = np.where(np.isfinite(drawn[0]), drawn[0], least)
        spread = np.maximum(most - middle, middle - least)
        near = near | (np.abs(np.asarray(got, np.float64) - middle) <= times * spread)
    if times and np.asarray(want).dtype.kind in "iu" and samples:
        ordered = np.sort([np.asarray(s) for s in samples], axis=0)
        values = np.sum(ordered[1:] != ordered[:-1], axis=0) + 1
        lies = (ordered[0] <= np.asarray(got)) & (np.asarray(got) <= ordered[-1])
        near = near | (lies & (values >= _VALUES)) | (values >= _SAMPLES // 2)
    return bool(np.all(near))


#: Whole numbers that a place has among the samples, for any between them to be one that follows the
#: last bits of floats; where they are many, the numbers have lost their first bits.
_VALUES = 3


# -- the order of equal elements


def stable(text: str) -> str:
    """The program with `kind="stable"` in each `argsort`; itself where it has none."""
    return ast.unparse(_Stable().visit(ast.parse(text))) if "argsort" in text else text


class _Stable(ast.NodeTransformer):
    """`x.argsort`, `np.argsort` become a call that knows no kind: `_stable(x)`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "argsort":
            return node
        return ast.copy_location(ast.Call(ast.Name("_stable", ast.Load()), [node.value], []), node)


def stable_argsort(owner: Any) -> Any:
    """`owner.argsort`, of NumPy or of an array, that leaves equal elements in their order."""

    def argsort(*args: Any, **keywords: Any) -> Any:
        names = ("axis", "kind") if owner is not np else ("a", "axis", "kind")
        given = {**dict(zip(names, args, strict=False)), **keywords, "kind": "stable"}
        return owner.argsort(**given)

    return argsort


def _run(text: str, more: dict[str, Any]) -> list[Any]:
    """The outcome of each call, with these `_watched` and `_calls`; empty: of the program itself.

    It is the result, the arguments, the module's values and what was printed, or the name of an
    error's class. As for the judge, an error ends a call and not the program.
    """
    _complex[0] = _HAS_COMPLEX.search(text) is not None
    tree = ast.parse(text)
    for node in tree.body:
        if more and isinstance(node, ast.FunctionDef | ast.ClassDef):
            _Watch().visit(node)
    ast.fix_missing_locations(tree)
    names: dict[str, Any] = {"__name__": "program", **HELPERS, **more}
    exec(compile(tree, "<disturbed>", "exec", dont_inherit=True), names)
    out: list[Any] = []
    for make in names["CALLS"]:
        given = make()
        try:
            with redirect_stdout(io.StringIO()) as printed:
                result = names["f"](*given)
            outcome = (result, given, state(names), printed.getvalue())
            out.append(copy.deepcopy(outcome, {id(np): np}))  # An argument may be the module.
        except (Exception, _Beyond) as e:
            out.append(str(e) if type(e) is _Beyond else type(e).__name__)
        try:
            names["between"]()
        except Exception:
            break
    return out


#: What a program that was rewritten here calls.
HELPERS: dict[str, Any] = {
    "_stable": stable_argsort,
    "_negative": numpys_faults.negative,
    "_power": numpys_faults.power,
    "_power_of": numpys_faults.power_of,
    "_power_in": numpys_faults.power_in,
    "_matmul": operator.matmul,
}


def state(names: dict[str, Any]) -> dict[str, Any]:
    """The values of a program's module."""
    return {n: v for n, v in names.items() if n[0] == "W" and n[1:].isdigit()}
