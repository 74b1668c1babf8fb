"""The module `math` on numbers of the running program: floats in, a float of Python's out.

Python raises where the result is no number and no argument is NaN (a domain error), or where it is
infinite and the arguments are not (a range error). So does a call of the compiled function, with
Python's own words: the error is made by Python, of the numbers that the program had. Where there
is no such call (a bundle, a batch) the program has the infinity or the NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ops
from ...ir import DType, Value
from .. import operators
from ..definitions import np_scalars
from ..flow import integer_fits, iteration, raises
from ..numpy import arithmetic, elementwise
from ..values import Tensor, describe, is_number
from .vocabulary_table import Handler, Row

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _number(s: Specialiser, x: Any, name: str) -> Tensor:
    """A number as the float that Python makes of it."""
    if not is_number(x) or arithmetic.shape_of(x):
        text = f"`math.{name}` takes one number, not {describe(x)}"
        raise s.error("DL119", text, f"np.{name} takes arrays" if hasattr(np, name) else "")
    return arithmetic.tensor(s, x, DType.F64)


def _weak(made: Any) -> Tensor:
    return Tensor(made.value, True)


def _checked(
    s: Specialiser, function: Callable[..., Any], values: Sequence[Tensor], made: Tensor
) -> Tensor:
    """The result, once it is one that Python has too."""
    infinite = _INFINITE.get(function.__name__)
    raises.ask_float(s, made, function, values, infinite)
    return made


#: The error where the result is infinite and the arguments are not.
_INFINITE: dict[str, type] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "atanh"), ValueError),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), OverflowError),
    **dict.fromkeys(("sqrt", "sin", "cos", "tan", "asin", "acos", "acosh"), raises.Uncaught),
    **dict.fromkeys(("atan", "tanh", "asinh", "fabs", "fmod", "atan2", "cbrt"), raises.Uncaught),
}


def _unless(
    s: Specialiser, truth: Value, function: Callable[..., Any], values: Sequence[Tensor]
) -> None:
    """What Python's function raises of these numbers where a condition does not hold."""
    raises.ask(s, s.emit("not", truth), function, *values)


def _floats(name: str, numpys: Any) -> Handler:
    """A function of floats as NumPy has it, and Python's errors."""
    function = getattr(math, name)

    def run(s: Specialiser, *args: Any) -> Tensor:
        values = [_number(s, a, name) for a in args]
        made = _checked(s, function, values, _weak(s.call(numpys, *values)))
        if not s.tries:
            return made
        safe = [raises.harmless(s, made, v, values, _HARMLESS.get(name, 0.5)) for v in values]
        return _weak(s.call(numpys, *safe))

    return run


#: Where functions have a value and a slope; others at 0.5.
_HARMLESS = {"acosh": 1.5}


def _log(s: Specialiser, x: Any, base: Any = None) -> Tensor:
    values = [_number(s, v, "log") for v in ((x,) if base is None else (x, base))]
    logs: list[Tensor] = [_floats("log", np.log)(s, v) for v in values]
    if base is None:
        return logs[0]
    made = _weak(arithmetic.divide(s, *logs))
    raises.ask(s, raises.gone(s, made, *values), math.log, *values)
    return made


def _hypot(s: Specialiser, *coordinates: Any) -> Tensor:
    values = [_number(s, v, "hypot") for v in coordinates]
    made = _weak(s.call(np.absolute, values[0])) if values else arithmetic.tensor(s, 0.0)
    for v in values[1:]:
        made = _weak(s.call(np.hypot, made, v))
    return _checked(s, math.hypot, values, made) if values else _weak(made)


def _dist(s: Specialiser, p: Any, q: Any) -> Tensor:
    pairs = [iteration.items(s, v) for v in (p, q)]
    if len(pairs[0]) != len(pairs[1]):
        raise s.error("DL115", "`math.dist`: both points must have the same number of dimensions")
    apart = [
        arithmetic.subtract(s, _number(s, a, "dist"), _number(s, b, "dist"))
        for a, b in zip(*pairs, strict=True)
    ]
    return _hypot(s, *apart)


def _to_int(name: str, rounding: Handler) -> Handler:
    function = getattr(math, name)

    def run(s: Specialiser, x: Any) -> Tensor:
        value = arithmetic.tensor(s, x)
        if value.shape:
            raise s.error("DL119", f"`math.{name}` takes one number, not {describe(x)}")
        if name == "trunc" and not all(hasattr(c, "__trunc__") for c in value.classes):
            raise s.error("DL119", f"`math.{name}` takes no {describe(x)}", "convert it: int(x)")
        if value.dtype.is_float:
            value = arithmetic.tensor(s, value, DType.F64)
            integer_fits.ask_whole(s, value, function)
            value = rounding(s, value)
        elif value.dtype is DType.U64:
            integer_fits.ask_whole(s, value, function)
        return Tensor(arithmetic.convert(s, value.value, DType.I64), True)

    return run


def _question(name: str, test: Handler) -> Handler:
    def run(s: Specialiser, x: Any) -> Tensor:
        return _weak(test(s, _number(s, x, name)))

    return run


def _is_close(a: float, b: float, relative: float, absolute: float) -> None:
    math.isclose(a, b, rel_tol=relative, abs_tol=absolute)


def _isclose(s: Specialiser, a: Any, b: Any, *, rel_tol: Any = 1e-9, abs_tol: Any = 0.0) -> Tensor:
    x, y, relative, absolute = (_number(s, v, "isclose") for v in (a, b, rel_tol, abs_tol))
    for given, tolerance in ((rel_tol, relative), (abs_tol, absolute)):
        if not (isinstance(given, int | float) and given >= 0):
            negative = arithmetic.less(s, tolerance, 0).value
            raises.ask(s, negative, _is_close, a, b, rel_tol, abs_tol, kind=ValueError)
    gap = s.call(np.absolute, arithmetic.subtract(s, x, y))
    size = s.call(np.maximum, s.call(np.absolute, x), s.call(np.absolute, y))
    allowed = s.call(np.maximum, arithmetic.multiply(s, relative, size), absolute)
    near = arithmetic.bitwise_and(
        s, arithmetic.less_equal(s, gap, allowed), elementwise.isfinite(s, gap)
    )
    return _weak(arithmetic.bitwise_or(s, arithmetic.equal(s, x, y), near))


def _wholes(s: Specialiser, values: Sequence[Any], name: str) -> list[Tensor]:
    out = []
    for v in values:
        t = arithmetic.tensor(s, v) if is_number(v) else None
        whole = t is not None and (t.dtype.is_int or (t.dtype is DType.BOOL and t.weak))
        if t is None or t.shape or not whole:
            raise s.error("DL119", f"`math.{name}` takes whole numbers, not {describe(v)}")
        if t.dtype is DType.U64:
            integer_fits.ask_whole(s, t, int)
        out.append(arithmetic.tensor(s, t, DType.I64))
    return out


def _of_wholes(name: str, numpys: Any) -> Handler:
    def run(s: Specialiser, *integers: Any) -> Tensor:
        first, *rest = _wholes(s, integers or (0,), name)
        made = s.call(np.absolute, first)
        for v in rest:
            made = s.call(numpys, made, v)
        return _weak(made)

    return run


def _isqrt(s: Specialiser, n: Any) -> Tensor:
    """The root of a float is off by one at most; what that is decides the rest."""
    (value,) = _wholes(s, [n], "isqrt")
    _unless(s, arithmetic.greater_equal(s, value, 0).value, math.isqrt, [_weak(value)])
    near = s.call(np.sqrt, arithmetic.tensor(s, value, DType.F64))
    root = arithmetic.tensor(s, s.call(np.floor, near), DType.I64)
    for step, test in ((-1, arithmetic.greater), (1, arithmetic.less_equal)):
        tried = root if step < 0 else arithmetic.add(s, root, 1)
        # Whether its square is above the number, or not, without the square.
        moved = test(s, tried, arithmetic.floor_divide(s, value, tried))
        root = arithmetic.select(s, moved, arithmetic.add(s, root, step), root)
    return _weak(root)


def _counted(name: str, function: Callable[..., Any]) -> Handler:
    """Of whole numbers that must not be negative."""

    def run(s: Specialiser, *numbers: Any) -> Tensor:
        values = [_weak(v) for v in _wholes(s, numbers, name)]
        for v in values:
            if v.value not in s.natural:
                truth = arithmetic.greater_equal(s, v, 0).value
                _unless(s, truth, getattr(math, name), values)
        return arithmetic.tensor(s, s.call(function, *values), DType.I64)

    return run


def _factorial(s: Specialiser, n: Any) -> Tensor:
    return _weak(_counted("factorial", np_scalars.factorial)(s, n))


def _comb(s: Specialiser, n: Any, k: Any) -> Tensor:
    return _weak(_counted("comb", np_scalars.comb)(s, n, k))


def _perm(s: Specialiser, n: Any, k: Any = None) -> Tensor:
    return _factorial(s, n) if k is None else _weak(_counted("perm", np_scalars.perm)(s, n, k))


def _prod(s: Specialiser, iterable: Any, *, start: Any = 1) -> Any:
    total = start
    for value in iteration.items(s, iterable):
        total = operators.binary(s, "*", total, value)
    return total


def _modf(s: Specialiser, x: Any) -> tuple[Tensor, Tensor]:
    rest, whole = s.call(np.modf, _number(s, x, "modf"))
    return _weak(rest), _weak(whole)


def _ldexp(s: Specialiser, x: Any, i: Any) -> Tensor:
    if not (type(i) is int or (type(i) is Tensor and i.weak)):
        raise s.error(
            "DL116", "`math.ldexp` takes an int of Python's as its second argument", "int(i)"
        )
    (power,) = _wholes(s, [i], "ldexp")
    value = _number(s, x, "ldexp")
    return _checked(s, math.ldexp, [value, _weak(power)], _weak(s.call(np.ldexp, value, power)))


#: math's name -> NumPy's function.
_NUMPYS = {
    **{n: getattr(np, n) for n in ("sqrt", "exp", "expm1", "log2", "log10", "log1p")},
    **{n: getattr(np, n) for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{n: getattr(np, n) for n in ("degrees", "radians", "fabs", "copysign", "fmod")},
    **{"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2},
    **{"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.float_power},
    **{"cbrt": np.cbrt, "exp2": np.exp2, "erf": ops.erf},
}


def _handlers() -> Iterator[tuple[str, Handler]]:
    for name, numpys in _NUMPYS.items():
        yield name, _floats(name, numpys)
    yield from (
        ("log", _log),
        ("hypot", _hypot),
        ("dist", _dist),
        ("floor", _to_int("floor", elementwise.whole("floor"))),
        ("ceil", _to_int("ceil", elementwise.whole("ceil"))),
        ("trunc", _to_int("trunc", elementwise.trunc)),
        ("isnan", _question("isnan", elementwise.isnan)),
        ("isinf", _question("isinf", elementwise.isinf)),
        ("isfinite", _question("isfinite", elementwise.isfinite)),
        ("isclose", _isclose),
        ("gcd", _of_wholes("gcd", np.gcd)),
        ("lcm", _of_wholes("lcm", np.lcm)),
        ("isqrt", _isqrt),
        ("comb", _comb),
        ("factorial", _factorial),
        ("perm", _perm),
        ("remainder", _floats("remainder", np_scalars.remainder)),
        ("prod", _prod),
        ("modf", _modf),
        ("ldexp", _ldexp),
    )


def rows() -> list[Row]:
    """A row for each function of `math` that a program may call; those of known numbers fold."""
    return [
        Row(getattr(math, name), f"math.{name}", handler, True, None)
        for name, handler in _handlers()
    ]
