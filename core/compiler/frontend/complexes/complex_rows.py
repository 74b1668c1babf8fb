"""Calls of NumPy's functions that are given a complex number.

A row of the vocabulary is looked up by its name: in `PARTS` are functions that only move elements
about or are linear, which run on either part; in `ELEMENTWISE` those with a formula; in `PRODUCTS`
those that are linear in two operands; in `complex_functions.OTHERS` and `complex_python.PYTHON` the
rest. A function of NumPy that is in none of them is refused; one of Python's only moves values
about.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ir import DType
from ...ragged import Ragged
from ...traced import SCALAR
from .. import complexes
from ..definitions import np_complexes as formulas
from ..memory import stores
from ..numpy import arithmetic, elementwise, positional_arguments
from ..values import Tensor, describe, is_static
from . import formula, lift, new, parts

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row

Handler = Callable[..., Any]

#: Functions that run on either part, and which of their arguments are numbers that have parts.
PARTS: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(
        (
            *("reshape", "ravel", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze"),
            *(
                "atleast_1d",
                "atleast_2d",
                "atleast_3d",
                "broadcast_to",
                "lib.stride_tricks.sliding_window_view",
                "rollaxis",
                "matrix_transpose",
                "linalg.matrix_transpose",
            ),
            *("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack", "block"),
            *("split", "array_split", "hsplit", "vsplit", "dsplit", "unstack", "repeat", "tile"),
            *("resize", "flip", "flipud", "fliplr", "rot90", "roll", "take", "take_along_axis"),
            *("delete", "tril", "triu", "diagonal", "diag", "diagflat", "trace", "copy"),
            *("linalg.diagonal", "linalg.trace", "sum", "mean", "average", "cumsum"),
            *("cumulative_sum", "ediff1d", "trapezoid", "gradient", "round", "around"),
            *("rint", "add.reduce", "add.accumulate", "fft.fftshift", "fft.ifftshift"),
        ),
        (0,),
    ),
    "append": (0, 1),
    "diff": (0, "prepend", "append"),
    "insert": (0,),
    "compress": (1,),
    "extract": (1,),
    "where": (1, 2),
    "select": (1, "default"),
    "interp": (2,),
    "pad": (0,),
}

#: Arguments that have parts as well, and become numbers of the first one's type.
FILLS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "add.reduce"), ("initial",)),
    "ediff1d": ("to_end", "to_begin"),
    "insert": ("values",),
    "interp": ("left", "right"),
    "pad": ("constant_values",),
}

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    name: getattr(formulas, name)
    for name in (
        *("add", "subtract", "multiply", "divide", "power", "negative", "positive", "conjugate"),
        *("square", "reciprocal", "absolute", "sign", "sqrt", "exp", "exp2", "expm1", "log"),
        *("log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin"),
        *("arccos", "arctan", "arcsinh", "arccosh", "arctanh", "equal", "not_equal", "less"),
        *("less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor"),
        *("logical_not", "isnan", "isinf", "isfinite", "maximum", "minimum"),
    )
}

#: Functions that are linear in two arguments: which, and whether the first is conjugated.
PRODUCTS: dict[str, tuple[int, int, bool]] = {
    **dict.fromkeys(
        (
            *("matmul", "dot", "inner", "outer", "tensordot", "kron", "convolve", "matvec"),
            *("linalg.matmul", "linalg.outer", "linalg.tensordot", "cross", "linalg.cross"),
            *("multiply.outer",),
        ),
        (0, 1, False),
    ),
    **dict.fromkeys(("vdot", "vecdot", "linalg.vecdot", "vecmat"), (0, 1, True)),
}


#: Functions that take what a mask picked, for they ask about its parts or for them.
_ASKING = frozenset(
    (
        *("np.real", "np.imag", "np.iscomplexobj", "np.isrealobj", "np.shape", "np.size"),
        *("np.ndim", "np.var", "np.std", "np.nan_to_num", "type", "isinstance", "len"),
        *("hasattr", "getattr"),
    )
)


def call(s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function that was given a complex number or type."""
    from ..calls import run_handler
    from .complex_functions import OTHERS
    from .complex_python import PYTHON

    if row.name not in _ASKING:
        complexes.whole(s, f"`{row.name}`", *numbers_in([*args, *kwargs.values()]))
    if row.name in PYTHON:
        return _run(s, row, f, PYTHON[row.name], args, kwargs)
    name = row.name.removeprefix("np.")
    if name.startswith("fft.") and name not in PARTS:
        return run_handler(s, row.name, row.handler, args, kwargs)
    args, kwargs = _named(s, row, f, args, kwargs)
    if name in OTHERS:
        return _run(s, row, f, OTHERS[name], args, kwargs)
    if name in PARTS:
        return by_parts(s, row, f, args, kwargs)
    if name in ELEMENTWISE:
        return _elementwise(s, row, args, kwargs)
    if name in PRODUCTS:
        return _product(s, row, f, args, kwargs, PRODUCTS[name])
    hint = "take z.real and z.imag, or call it outside the compiled function"
    raise s.error("DL116", f"`{row.name}` does not take complex numbers in a program", hint)


def _named(
    s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A call with the arguments from `dtype` on under their names."""
    names = list(positional_arguments.numpys(f) or ())
    at = names.index("dtype") if "dtype" in names else len(args)
    named = dict(zip(names[at:], args[at:], strict=False))
    if twice := named.keys() & kwargs.keys():
        raise s.error("DL105", f"`{row.name}`: `{min(twice)}` is given twice")
    return args[:at], {**named, **kwargs}


def _run(
    s: Specialiser,
    row: Row,
    f: Any,
    handler: Handler,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    try:
        return handler(s, row, f, *args, **kwargs)
    except TypeError:
        try:
            inspect.signature(handler).bind(s, row, f, *args, **kwargs)
        except TypeError as misfit:
            hint = "take z.real and z.imag, or call it outside the compiled function"
            text = f"`{row.name}` of complex numbers: {misfit}"
            raise s.error("DL105", text, hint) from None
        raise


def takes(row: Row, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a row is one of complex numbers.

    Python's own functions that only move values about are not.
    """
    if not complexes.among(args) and not (kwargs and complexes.among(tuple(kwargs.values()))):
        return False
    from .complex_python import PYTHON

    return row.name.startswith("np.") or row.name in PYTHON


def asked_type(s: Specialiser, kwargs: Mapping[str, Any]) -> tuple[DType | None, dict[str, Any]]:
    """The type of the parts that `dtype` asks for, and the other keywords."""
    asked = kwargs.get("dtype")
    if asked is None:
        return None, {k: v for k, v in kwargs.items() if k != "dtype"}
    if not complexes.is_type(asked):
        text = f"a complex number does not become one of {describe(asked)}"
        raise s.error("DL116", text, "take z.real or abs(z)")
    return complexes.part_type(s, asked), {k: v for k, v in kwargs.items() if k != "dtype"}


def numbers_in(value: Any) -> list[Any]:
    """The items of nested lists and tuples, or the value itself, as one list."""
    if isinstance(value, list | tuple):
        return [x for v in value for x in numbers_in(v)]
    return [value]


def pairs_of(s: Specialiser, value: Any, dtype: DType) -> Any:
    """A number, or a sequence of them, as pairs of one type."""
    if isinstance(value, list | tuple):
        return [pairs_of(s, v, dtype) for v in value]
    return lift(s, value, dtype)


def part_of(value: Any, name: str) -> Any:
    """The part `name` (re, im) of a complex number, or of each in nested lists."""
    if isinstance(value, list):
        return [part_of(v, name) for v in value]
    part: Tensor = getattr(value, name)
    return part


def by_parts(
    s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A function that runs on either part."""
    if row.name.startswith("np.atleast") and len(args) > 1:
        return tuple(s.call(f, v) for v in args)
    dtype, kwargs = asked_type(s, kwargs)
    name = row.name.removeprefix("np.")
    given = dict(enumerate(args)) | dict(kwargs)
    promoted = _places(f, PARTS[name], given)
    fills = _places(f, FILLS.get(name, ()), given)
    if complexes.among([v for k, v in given.items() if k not in (*promoted, *fills)]):
        hint = "take z.real and z.imag"
        raise s.error("DL116", f"`{row.name}` does not take a complex number there", hint)
    values = [
        v
        if name == "select" or (name == "where" and not isinstance(given[k], list | tuple))
        else strong(v)
        for k in promoted
        for v in numbers_in(given[k])
    ]
    if not complexes.among(values) and dtype is None:
        text = f"`{row.name}` makes a complex number one of {describe(given[promoted[0]])}"
        raise s.error("DL116", text, "convert the array first: x.astype(complex)")
    dtype = dtype or complexes.common(s, values)
    pairs = {k: pairs_of(s, given[k], dtype) for k in (*promoted, *fills)}
    out = []
    for part in ("re", "im"):
        here = {k: part_of(pairs[k], part) if k in pairs else v for k, v in given.items()}
        named = {k: v for k, v in here.items() if isinstance(k, str)}
        out.append(row(s, f, [here[k] for k in range(len(args))], named))
    return combined(s, out[0], out[1])


def _places(f: Any, wanted: Sequence[int | str], given: Mapping[int | str, Any]) -> list[int | str]:
    """Where a call gives these arguments: by their place, or by their name."""
    names = list(positional_arguments.numpys(f) or ())
    out: list[int | str] = []
    for key in wanted:
        place = names.index(key) if key in names else key
        word = names[place] if isinstance(place, int) and place < len(names) else key
        out += [k for k in (place, word) if k in given and given[k] is not None][:1]
    return out


def strong(value: Any) -> Any:
    """A number as NumPy has it in an array, with a type of its own."""
    if type(value) is Complex:
        return Complex(arithmetic.strong(value.re), arithmetic.strong(value.im))
    if type(value) is Tensor:
        return arithmetic.strong(value)
    return np.asarray(value) if isinstance(value, bool | int | float | complex) else value


def combined(s: Specialiser, re: Any, im: Any) -> Any:
    """The results of either part, as one."""
    if type(re) in (Tensor, Ragged):
        return Complex(re, im)
    if type(re) in (tuple, list):
        made = [combined(s, a, b) for a, b in zip(re, im, strict=True)]
        return tuple(made) if type(re) is tuple else s.own(made)
    return re


def _elementwise(s: Specialiser, row: Row, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    asked, kwargs = asked_type(s, kwargs)
    if kwargs:
        text = f"`{row.name}` of complex numbers does not take `{next(iter(kwargs))}`"
        raise s.error("DL105", text)
    values = [elementwise.array(s, v) for v in args]
    if isinstance(f := row.function, np.ufunc) and len(values) != f.nin:
        raise s.error("DL105", f"`{row.name}` takes {f.nin} numbers, not {len(values)}")
    dtype = asked or complexes.common(s, values)
    name = row.name.removeprefix("np.")
    n = complexes.exponent(values[1]) if name == "power" and len(values) == 2 else None
    pairs = [lift(s, v, dtype) for v in values]
    if n is not None:
        made = formula(s, formulas.whole_power, *parts(pairs[:1]), n)
    else:
        made = formula(s, ELEMENTWISE[name], *parts(pairs))
    if asked is not None and not isinstance(made, tuple):
        raise s.error("DL105", f"`{row.name}` gives no complex numbers", "leave `dtype` out")
    return given(s, made, values, SCALAR)


def given(s: Specialiser, made: Any, values: Sequence[Any], kind: int) -> Any:
    """What a formula gives: a pair, or a real number."""
    from ..memory import shared_memory

    row_major = shared_memory.all_row_major([v.re if type(v) is Complex else v for v in values])
    if isinstance(made, tuple):
        return new(s, made, kind, row_major)
    if made.shape:
        return stores.fresh(s, made.value, row_major)
    return Tensor(made.value, kind=kind)


def _product(
    s: Specialiser,
    row: Row,
    f: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    spec: tuple[int, int, bool],
) -> Any:
    i, j, conjugate = spec
    if "dtype" in kwargs:
        hint = "convert the operands first: x.astype(complex)"
        raise s.error("DL105", f"`{row.name}` of complex numbers takes no `dtype`", hint)
    if len(args) <= max(i, j) or not all(map(is_static, kwargs.values())):
        raise s.error("DL105", f"`{row.name}` takes complex numbers by position")
    a, b = (strong(elementwise.array(s, args[k])) for k in (i, j))
    rest = [v for k, v in enumerate(args) if k not in (i, j)]
    if rest and positional_arguments.numpys(f) is None:
        raise s.error("DL105", f"`{row.name}` takes two numbers, not {len(args)}")

    def run(x: Any, y: Any) -> Any:
        return row(s, f, [x, y, *rest], kwargs)

    return bilinear(s, run, a, b, conjugate)


def bilinear(
    s: Specialiser, run: Callable[[Any, Any], Any], a: Any, b: Any, conjugate: bool = False
) -> Any:
    """A function that is linear in two numbers, of which one is complex."""
    dtype = complexes.common(s, (a, b))
    x = lift(s, a, dtype) if complexes.is_any(a) else arithmetic.tensor(s, a, dtype)
    y = lift(s, b, dtype) if complexes.is_any(b) else arithmetic.tensor(s, b, dtype)
    if type(x) is not Complex:
        assert type(y) is Complex
        return Complex(run(x, y.re), run(x, y.im))
    if type(y) is not Complex:
        im = run(x.im, y)
        re = run(x.re, y)
        return new(s, (re, arithmetic.negative(s, im) if conjugate else im), re.kind)
    direct, crossed = run(x.re, y.re), run(x.im, y.im)
    left, right = run(x.re, y.im), run(x.im, y.re)
    if conjugate:
        re, im = arithmetic.add(s, direct, crossed), arithmetic.subtract(s, left, right)
    else:
        re, im = arithmetic.subtract(s, direct, crossed), arithmetic.add(s, left, right)
    return new(s, (re, im), direct.kind)
