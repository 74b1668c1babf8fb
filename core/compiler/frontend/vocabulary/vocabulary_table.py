"""The functions that the compiler knows, one row each, found by identity.

A row says what a function means on abstract values. With `fold`, a call whose arguments are all
known is made by Python itself while compiling, so `np.sqrt(2.0)` is the very number that NumPy
gives. Functions that make arrays of a given size do not fold: a million zeros are one operation,
not a constant.

NumPy's functions are in `vocabulary_numpy`, Python's in `vocabulary_python`, Delian's own in
`vocabulary_delian`. Here is what a row is, how one is found, and what an array's attributes mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import ProgramError, TypeRuleError
from ...ir import DType
from ...traced import ARRAY, SCALAR
from .. import calls, complexes, operators, ragged
from ..complexes import complex_attributes, complex_rows
from ..containers import known_calls, list_stacks
from ..definitions import np_arrays, np_orders
from ..flow import integer_fits
from ..memory import array_changes, shared_memory
from ..numpy import (
    arithmetic,
    elementwise,
    indexing,
    matrix_products,
    positional_arguments,
    reductions,
    shapes,
    strided_views,
    taking,
)
from ..ragged import ragged_lists as ragged_lists
from ..ragged import ragged_rows as ragged_rows
from ..ragged import ragged_searches
from ..values import Method, Picked, Tensor, describe, is_static
from . import number_attributes

if TYPE_CHECKING:
    from ..specialise import Specialiser

Handler = Callable[..., Any]


class Row:
    """What one function means."""

    __slots__ = ("fold", "function", "gives", "handler", "name")

    def __init__(
        self, function: Any, name: str, handler: Handler, fold: bool, gives: int | None = SCALAR
    ) -> None:
        self.function = function
        self.name = name
        self.handler = handler
        self.fold = fold
        #: What a single number of the result is in Python; None where the handler says so itself.
        self.gives = gives

    def __call__(
        self, s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        args = list_stacks.as_lists(s, f, args)
        if misfit := positional_arguments.misfit(f, args, kwargs):
            raise s.error("DL105", f"`{self.name}`: {misfit}")
        if s.ragged and ragged_lists.among(args, kwargs) is not None:
            return ragged_lists.call(s, self, f, args, kwargs)
        if s.ragged and ragged_rows.takes(args, kwargs):
            return ragged_rows.call(s, self, f, args, kwargs)
        if self.gives is not None:
            args, kwargs = positional_arguments.placed(f, self.handler, args, kwargs)
        if kwargs and kwargs.get("out") is not None and self.name.startswith("np."):
            exact = not isinstance(f, np.ufunc)
            if not exact and len(args) > f.nin:
                raise s.error("DL105", f"`{self.name}`: `out` is given twice")
            own = ("out",) if exact or f is np.power else ("out", "where")
            rest = {k: v for k, v in kwargs.items() if k not in own}
            where = kwargs.get("where", True) if "where" in own else True
            result = self(s, f, args, rest)
            return array_changes.out(s, kwargs["out"], result, f"`{self.name}`", exact, where)
        if kwargs and (words := refused_keyword(kwargs, self.handler)):
            raise s.error("DL105", f"`{self.name}`: {words[0]}", words[1])
        if self.fold and all(map(is_static, args)) and all(map(is_static, kwargs.values())):
            return known_calls.call(s, f, args, kwargs, f"`{self.name}`")
        if complex_rows.takes(self, args, kwargs):
            return complex_rows.call(s, self, f, args, kwargs)
        if self.name.startswith(_OF_ARRAYS):
            args = as_arrays(s, self.handler, args)
            if not (isinstance(f, np.ufunc) or f in _PROMOTING or kwargs.get("dtype") is not None):
                for value in (*args, *kwargs.values()):
                    for item in value if isinstance(value, list | tuple) else (value,):
                        if type(item) is Tensor:
                            arithmetic.one_type(s, item)
        if isinstance(f, np.ufunc):
            args, kwargs = self.of_type(s, args, kwargs)
            args = _in_loop_type(s, self, args)
        result = calls.run_handler(s, self.name, self.handler, args, kwargs)
        if self.gives is not None and not s.defining:
            result = given_as(s, result, self.gives)
        return shared_memory.settled(s, self.name, result, args, kwargs)

    def of_type(
        self, s: Specialiser, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """A ufunc's `dtype`: its operands are converted first."""
        if not isinstance(self.function, np.ufunc) or "dtype" not in kwargs:
            return args, kwargs
        kind = arithmetic.numpy_dtype(s, kwargs["dtype"])
        if self.function.types[-1].endswith("?"):
            raise s.error("DL105", f"`{self.name}` gives bools", "leave `dtype` out")
        values = [elementwise.array(s, v) for v in args]
        check_loop(s, self, [arithmetic.dtype_of(s, v) for v in values], kind.numpy)
        for value in values:
            have, weak = arithmetic.dtype_of(s, value)
            known = _WEAK_TYPES.get(have, have.numpy) if weak else have.numpy
            if not np.can_cast(known, kind.numpy, "same_kind"):
                text = f"`{self.name}` cannot take {describe(value)} as {kind.value}"
                raise s.error("DL116", text, "convert it first: x.astype(dtype)")
        converted = [arithmetic.tensor(s, v, kind) for v in values]
        return converted, {k: v for k, v in kwargs.items() if k != "dtype"}


#: What a number of Python's counts as among NumPy's types: one that fits any type of its kind.
_WEAK_TYPES: dict[DType, np.dtype[Any]] = {
    DType.I64: np.dtype(np.uint8),
    DType.F64: np.dtype(np.float16),
}
#: Functions that are no ufuncs, whose result's type follows from several numbers.
_PROMOTING = (np.where, np.clip, np.result_type)
#: Functions that take lists and tuples for arrays; to those of Python a list is a list.
_OF_ARRAYS = ("np.", "ops.", "nn.")
#: What NumPy calls the parameters that take one array: lists and tuples are arrays there.
_ARRAY_NAMES = frozenset(
    (
        *("a", "b", "x", "x1", "x2", "y", "m", "v", "ary", "arr", "A", "B", "xp", "fp", "array"),
        *("values", "prototype", "filt", "f", "val", "z"),
    )
)


def as_arrays(s: Specialiser, handler: Handler, args: Sequence[Any], first: int = 0) -> list[Any]:
    """A call's arguments, with arrays for the lists and tuples that stand for one array."""
    if handler.__module__ == array_changes.__name__:
        return [*args]  # NumPy converts a list to the type of the array that is changed
    names = positional_arguments.of_handler(handler)[first:]
    return [
        shapes.array(s, v) if isinstance(v, list | tuple) and n in _ARRAY_NAMES else v
        for v, n in zip(args, names, strict=False)
    ] + list(args[len(names) :])


#: Of these NumPy's loops often take others: of bools i8, of narrow integers narrow floats.
_OF_OTHER_LOOPS = (DType.BOOL, DType.U8, DType.I8, DType.U16, DType.I16)


def _in_loop_type(s: Specialiser, row: Row, args: Sequence[Any]) -> Sequence[Any]:
    """A ufunc's operands in the types that NumPy's loop takes, which may be others than theirs."""
    values = [elementwise.array(s, v) for v in args]
    if len(values) != row.function.nin or not all(map(arithmetic.is_operand, values)):
        return args
    kinds = [arithmetic.dtype_of(s, v) for v in values]
    other = any(kind in _OF_OTHER_LOOPS for kind, _ in kinds)
    classes = [arithmetic.alternatives(s, v) for v in values]
    # An integer that a function leaves as it is may be of NumPy's type or, of Python's, of i64.
    several = [
        v for v, f in zip(values, classes, strict=True) if len(f) > 1 and (other or _is_narrow(v))
    ]
    if several and len({_loop(s, row, c)[row.function.nin :] for c in product(*classes)}) > 1:
        raise arithmetic.depends(s, several[0])
    if not other:
        return args
    loop = _loop(s, row, kinds)
    out, has_bool = [], any(kind is DType.BOOL for kind, _ in kinds)
    for value, (kind, weak), to in zip(values, kinds, loop, strict=False):
        of_bool = has_bool and kind.is_int and to.kind == "f"
        if of_bool or (kind in _OF_OTHER_LOOPS and to != kind.numpy):
            value = tensor_of(s, value, to)
        elif has_bool:
            if (DType.BOOL, False) in kinds:  # NumPy compares no int beyond i64 with bools.
                arithmetic.check_range(s, value, arithmetic.numpy_dtype(s, to))
            if weak and kind.is_int and to.kind == "i":  # With bools it is of NumPy's own type.
                value = tensor_of(s, value, to)
        out.append(value)
    return out


def _is_narrow(value: Any) -> bool:
    """Whether it may be a number of NumPy's type, which is not the one that Python's have."""
    usual = (DType.BOOL, DType.I64, DType.F64)
    return type(value) is Tensor and value.kind & SCALAR != 0 and value.dtype not in usual


def check_loop(
    s: Specialiser, row: Row, kinds: Iterable[tuple[DType, bool]], result: np.dtype[Any]
) -> None:
    """Refuses a `dtype` in which NumPy's function does not compute."""
    f = row.function
    asked = [
        float if weak and kind.is_float else int if weak else kind.numpy for kind, weak in kinds
    ]
    signature = (*(None,) * f.nin, *(result,) * f.nout)
    try:
        f.resolve_dtypes((*asked, *(None,) * f.nout), signature=signature, casting="unsafe")
    except TypeError as e:
        hint = "leave `dtype` out, and convert the result: np.exp(x).astype(dtype)"
        raise s.error("DL116", f"`{row.name}` fails: {e}", hint) from None


def _loop(s: Specialiser, row: Row, kinds: Iterable[tuple[DType, bool]]) -> tuple[Any, ...]:
    """The types of the operands and results of NumPy's loop for operands of these types."""
    asked = (
        {DType.I64: int, DType.F64: float}.get(kind, kind.numpy) if weak else kind.numpy
        for kind, weak in kinds
    )
    try:
        return tuple(row.function.resolve_dtypes((*asked, *(None,) * row.function.nout)))
    except TypeError as e:
        hint = "convert one of them: x.astype(np.int32); of bools use ^, ~, &, |"
        raise s.error("DL116", f"`{row.name}` fails: {e}", hint) from None


def tensor_of(s: Specialiser, value: Any, dtype: Any) -> Tensor:
    """A number or array as a tensor of what a user may give as a dtype."""
    return arithmetic.tensor(s, value, arithmetic.numpy_dtype(s, dtype))


def given_as(s: Specialiser, result: Any, kind: int) -> Any:
    """A function's result whose single numbers are in Python of this kind."""
    if type(result) is Tensor:
        return result if result.kind == kind or result.shape else Tensor(result.value, kind=kind)
    if type(result) is tuple:
        return tuple(given_as(s, r, kind) for r in result)
    if type(result) is list:
        return s.own([given_as(s, r, kind) for r in result])
    return result


class Defined:
    """The handler of a function that is written in NumPy (`definitions`): it is inlined.

    An error within it is one of the user's call.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, s: Specialiser, *args: Any, **kwargs: Any) -> Any:
        if not s.defining:
            names = positional_arguments.of_handler(self)
            args = tuple(self.whole(s, n, v) for n, v in zip(names, args, strict=False)) + tuple(
                args[len(names) :]
            )
            kwargs = {n: self.whole(s, n, v) for n, v in kwargs.items()}
        s.defining += 1  # Promotion is of the whole function, not of each step of it.
        try:
            return self.inlined(s, args, kwargs)
        except TypeRuleError as e:
            raise _outside(s.error("DL120", e.message, e.hint)) from e
        except ProgramError as e:
            raise _outside(e) from e.__cause__
        finally:
            s.defining -= 1

    def inlined(self, s: Specialiser, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return s.call(self.function, *args, **kwargs)

    def whole(self, s: Specialiser, name: str, value: Any) -> Any:
        """An argument; a whole number of NumPy's as Python's where the definition asks for one.

        NumPy computes with it in its own type, where it may overflow.
        """
        numpys = isinstance(value, np.generic | np.ndarray)
        if not (numpys or isinstance(value, float)) or not self.takes_int(name):
            return value
        if numpys and not name.startswith("axis") and value.dtype != np.int64:
            text = f"`{name}` is of {value.dtype}, and NumPy computes with it in that type"
            raise s.error("DL119", text, f"give int({name})")
        return operators.static_int(s, value, f"`{name}`")

    def takes_int(self, name: str) -> bool:
        return getattr(self.function, "__annotations__", {}).get(name) == "int"


class DefinedMethod(Defined):
    """The handler of a method that has this row itself."""

    __slots__ = ()

    def inlined(self, s: Specialiser, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        assert isinstance(self.function, FunctionType)
        return calls.call_function(s, self.function, args, kwargs)


def _outside(e: ProgramError) -> ProgramError:
    """The error without the spans within definitions."""
    kept = [loc for loc in e.locs if not loc.file.startswith(_DEFINITIONS)]
    return type(e)(e.code, e.message, kept or e.locs, e.hint)


_DEFINITIONS = str(Path(__file__).parents[1] / "definitions")

#: Keywords that NumPy's functions have and a program without changes of memory cannot.
_REFUSED = {
    "out": ("`out` is not known here", "take the result: y[...] = np.add(a, b)"),
    "where": (
        "`where` is not known here",
        "choose by np.where(mask, new, old): of a result, or of what a reduction takes",
    ),
}


def refused_keyword(
    kwargs: Mapping[str, Any], handler: Handler | None = None
) -> tuple[str, str] | None:
    """What is wrong with a call that has one of them, and a hint."""
    for name in kwargs:
        if handler is not None and name in positional_arguments.of_handler(handler):
            continue
        if name in _REFUSED and kwargs[name] is not None:
            return _REFUSED[name]
    return None


# Attributes of tensors


def _item(s: Specialiser, x: Tensor) -> Tensor:
    kind = x.dtype if x.dtype is DType.BOOL else DType.F64 if x.dtype.is_float else DType.I64
    if x.dtype is DType.U64:
        integer_fits.ask_whole(s, Tensor(indexing.reshape(s, x.value, ())), int)
    return Tensor(arithmetic.convert(s, indexing.reshape(s, x.value, ()), kind), True)


#: A list of more numbers is not made: each is a value of its own.
_LISTED_MAX = 10_000


def _tolist(s: Specialiser, x: Tensor) -> Any:
    """Nested lists of Python's numbers; of an array without axes, the number."""
    if x.type.size > _LISTED_MAX:
        text = f"`tolist` makes {x.type.size} numbers of {describe(x)}"
        raise s.error("DL119", text, f"at most {_LISTED_MAX}; index the array instead")
    if not x.shape:
        return _item(s, x)
    return s.own([_tolist(s, indexing.subscript(s, x, k)) for k in range(x.shape[0])])


#: Methods whose result is an array though it has no axis: always, or where the owner is one.
_ARRAY_METHODS = frozenset(("reshape",))
_LIKE_METHODS = frozenset(
    ("astype", "copy", "transpose", "squeeze", "swapaxes", "view", "conj", "conjugate")
)


def method_result(s: Specialiser, name: str, owner: Any, result: Any) -> Any:
    """What an ndarray's method gives, as NumPy gives it."""
    if type(result) is not Tensor or result.shape or name in ("item", "tolist"):
        return result
    kind = owner.kind & (SCALAR | ARRAY) or SCALAR if name in _LIKE_METHODS else SCALAR
    return given_as(s, result, ARRAY if name in _ARRAY_METHODS else kind)


#: ndarray's methods.
METHODS: dict[str, Handler] = {
    "astype": shapes.astype,
    "view": shapes.view,
    "reshape": shapes.reshape,
    "ravel": shapes.ravel,
    "flatten": shapes.ravel,
    "transpose": shapes.transpose,
    "swapaxes": shapes.swapaxes,
    "squeeze": shapes.squeeze,
    "repeat": shapes.repeat,
    "take": taking.take,
    "copy": shapes.copy,
    "sum": reductions.sum_,
    "prod": reductions.prod,
    "mean": reductions.mean,
    "var": reductions.var,
    "std": reductions.std,
    "max": reductions.max_,
    "min": reductions.min_,
    "any": reductions.any_,
    "all": reductions.all_,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argsort": reductions.argsort,
    "nonzero": ragged_searches.nonzero,
    "cumsum": reductions.cumsum,
    "cumprod": reductions.cumprod,
    "argpartition": Defined(np_orders.argpartition),
    "searchsorted": Defined(np_orders.searchsorted),
    "diagonal": Defined(np_arrays.diagonal),
    "trace": Defined(np_arrays.trace),
    "conj": arithmetic.positive,
    "conjugate": arithmetic.positive,
    "dot": matrix_products.dot,
    "clip": elementwise.clipped,
    "round": elementwise.round_,
    "item": _item,
    "tolist": _tolist,
    "fill": array_changes.fill,
    "sort": array_changes.sort,
}

PROPERTIES: dict[str, Callable[[Specialiser, Tensor], Any]] = {
    "shape": lambda s, x: x.shape,
    "ndim": lambda s, x: len(x.shape),
    "size": lambda s, x: x.type.size,
    "dtype": lambda s, x: x.dtype.numpy,
    "itemsize": lambda s, x: x.dtype.itemsize,
    "nbytes": lambda s, x: x.type.nbytes,
    "strides": strided_views.strides_of,
    "real": lambda s, x: s.call(np.real, x),
    "imag": lambda s, x: s.call(np.imag, x),
    "T": lambda s, x: shapes.transpose(s, x),
    "mT": lambda s, x: shapes.swapaxes(s, x, -1, -2),
}

#: Methods that an ndarray has and a compiled program cannot: name -> what to do instead.
_INSTEAD = {
    "partition": "use x[...] = np.partition(x, k)",
    "put": "assign instead: x[places] = values",
    "resize": "an array keeps its size; use np.reshape or np.pad",
}


def tensor_attribute(s: Specialiser, x: Tensor | Picked, name: str) -> Any:
    """`x.name`: a property's value, or a method bound to x."""
    if type(x) is Picked:
        raise s.static_needed(f"`{name}` needs to know which list this is", "use np.array(rows)")
    assert type(x) is Tensor
    if len({hasattr(c, name) for c in x.classes}) > 1:
        raise operators.of_several_classes(s, x)
    if x.weak:
        return number_attributes.of_python(s, x, name)
    found, handler = PROPERTIES.get(name), METHODS.get(name)
    if (found or handler) and not any(hasattr(c, name) for c in x.classes):
        said = " or ".join(c.__name__ for c in x.classes)
        raise s.error("DL104", f"{said} has no attribute `{name}`", "np.asarray(x) makes an array")
    if found is not None:
        return _of_scalar(x, method_result(s, "copy", x, found(s, x)))
    if handler is not None:
        return Method(name, x, partial(_method, name, handler))
    if (operator := number_attributes.operator(x, name)) is not None:
        return operator
    near = difflib.get_close_matches(name, [*METHODS, *PROPERTIES], 1)
    text = _INSTEAD.get(name) or (f"did you mean `{near[0]}`?" if near else "")
    raise s.error("DL104", f"{describe(x)} has no attribute `{name}` in a compiled program", text)


def _method(name: str, handler: Handler, s: Specialiser, x: Tensor, /, *a: Any, **k: Any) -> Any:
    function = getattr(np, name, None)
    if name in ("all", "any") and len(a) > 1:  # Their order is not that of the functions.
        raise s.error("DL105", f"`{name}` takes an axis by its place alone", "write `keepdims=`")
    if function is not None and name not in ("reshape", "transpose", "astype", "copy"):
        # The array itself is the function's first argument.
        (x, *a), k = positional_arguments.placed(function, handler, (x, *a), k)  # type: ignore[assignment]
    if k and (words := refused_keyword(k, handler)):
        raise s.error("DL105", f"`{name}`: {words[0]}", words[1])
    if s.ragged and ragged_rows.takes(a, k):
        if function is None:
            raise ragged.refused(s, f"`{name}`", [*a, *k.values()])
        return s.call(function, x, *a, **k)
    if complexes.among(a) or (k and complexes.among(tuple(k.values()))):
        return complex_attributes.method_of_real(s, name, x, a, k)
    a = as_arrays(s, handler, a, 1)  # type: ignore[assignment]
    return _of_scalar(x, method_result(s, name, x, calls.run_handler(s, name, handler, (x, *a), k)))


def _of_scalar(x: Tensor, made: Any) -> Any:
    """What a method of a NumPy scalar gives: where it is one number, a scalar and no array."""
    if type(made) is Tensor and made.kind == ARRAY and not made.shape and not x.kind & ARRAY:
        return Tensor(made.value)
    return made


# Finding rows

_TABLE: dict[Any, Row] = {}
#: NumPy functions whose absence needs a word: name -> hint.
_NUMPY_HINTS = {
    **dict.fromkeys(
        ("place", "put", "putmask"),
        "assign instead: x[mask] = value, or x[places] = values",
    ),
    **dict.fromkeys(
        ("unique_values", "union1d", "intersect1d", "setdiff1d", "setxor1d"),
        "its shape depends on the data; use np.sort and compare neighbours",
    ),
    **dict.fromkeys(
        ("eig", "eigvals", "lstsq"),
        "of symmetric matrices use np.linalg.eigh; for least squares np.linalg.pinv(a) @ b",
    ),
    "vectorize": "use dl.vmap, or write it on whole arrays",
    "put_along_axis": "assign instead: x[i, j] = values with arrays of places",
    "erf": "use dl.ops.erf",
}
#: Methods of ufuncs without a row: name -> hint.
_UFUNC_HINTS = {
    "at": "assign instead: x[places] = f(x[places], values), or use np.add.at",
    "reduceat": "reduce the parts that np.split gives",
}


def _table() -> dict[Any, Row]:
    if not _TABLE:
        from . import (
            vocabulary_collections,
            vocabulary_delian,
            vocabulary_math,
            vocabulary_numpy,
            vocabulary_python,
            vocabulary_random,
        )

        modules = (
            *(vocabulary_numpy, vocabulary_math, vocabulary_python, vocabulary_delian),
            *(vocabulary_random, vocabulary_collections),
        )
        for row in (row for module in modules for row in module.rows()):
            _TABLE[_key(row.function)] = row
    return _TABLE


def find(f: Any) -> Row | None:
    """The row of a function, if it has one."""
    if type(f) is BuiltinFunctionType and isinstance(f.__self__, np.ufunc):
        from . import ufunc_methods

        return ufunc_methods.ufunc_method(f.__self__, f.__name__)
    return (_TABLE or _table()).get(_key(f))


def _key(f: Any) -> Any:
    # A class's method is another object each time.
    method = type(f) is BuiltinFunctionType and isinstance(f.__self__, type)
    return (f.__self__, f.__name__) if method else id(f)


def names() -> list[str]:
    """Every function's name, sorted."""
    return sorted({row.name for row in _table().values()})


def hint(f: Any) -> str:
    """What to use instead of a function without a row."""
    module = getattr(f, "__module__", None) or type(f).__module__ or ""
    name = getattr(f, "__name__", type(f).__name__)
    owner = getattr(f, "__self__", None)
    if module.startswith("numpy.random") or type(owner).__module__.startswith("numpy.random"):
        return (
            "draw from a generator that the function makes: rng = np.random.default_rng(seed); or"
            " use delian.random: uniform(key, shape), normal(key, shape), permutation(key, ...)"
        )
    if isinstance(owner, np.ufunc):
        return _UFUNC_HINTS.get(name, f"write it with np.{owner.__name__} and a loop or reduction")
    if module.split(".")[0] == "math":
        return f"use np.{name}" if hasattr(np, name) else "compute it outside, or with NumPy"
    if module.split(".")[0] == "numpy" or isinstance(f, np.ufunc):
        if name in _NUMPY_HINTS:
            return _NUMPY_HINTS[name]
        known = [n.removeprefix("np.") for n in names() if n.startswith("np.")]
        near = difflib.get_close_matches(name, known, 1)
        if near:
            return f"the nearest that it knows is `np.{near[0]}`"
        return "write it with the functions that it knows, or call it outside the compiled function"
    if module == "builtins" and name in ("print", "breakpoint", "input"):
        return "take it out, or debug with DELIAN_DEBUG=1: then the function is plain Python"
    if module == "builtins":
        near = difflib.get_close_matches(name, names(), 1)
        return f"the nearest that it knows is `{near[0]}`" if near else ""
    return "it has no Python source; write it with NumPy's functions, or call it outside"
