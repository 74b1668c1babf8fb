"""Python's own functions of complex numbers, and the module `cmath`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...complex_numbers import Complex
from ...ir import DType
from ...traced import FLOAT, SCALAR
from .. import complexes
from ..definitions import np_complexes as formulas
from ..numpy import arithmetic
from ..values import Tensor, describe
from . import formula, lift, parts
from .complex_attributes import attribute
from .complex_rows import given

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row

Handler = Callable[..., Any]


def _abs(s: Specialiser, row: Row, f: Any, x: Any) -> Any:
    z = complexes.present(s, x)
    made = formula(s, formulas.absolute, *parts([z]))
    return given(s, made, [z], FLOAT if z.re.weak else SCALAR)


def _pow(s: Specialiser, row: Row, f: Any, base: Any, exp: Any, mod: Any = None) -> Any:
    if mod is not None:
        raise complexes.not_for_complex(s, "`pow` of three numbers")
    return complexes.binary(s, "**", base, exp)


def _refused(what: str) -> Handler:
    def run(s: Specialiser, row: Row, f: Any, *args: Any, **kwargs: Any) -> Any:
        raise complexes.not_for_complex(s, f"`{what}`")

    return run


def complex_of(s: Specialiser, real: Any = 0, imag: Any = None) -> Any:
    """`complex(a, b)`: a + b i, of any numbers."""
    numbers = (real,) if imag is None else (real, imag)
    for value in numbers:
        if not complexes.is_operand(value) or complexes.shape_of(value) != ():
            raise s.error("DL119", f"`complex` takes numbers, not {describe(value)}")
    if imag is None:
        z = lift(s, real, DType.F64)
        return Complex(*(Tensor(v.value, kind=FLOAT) for v in (z.re, z.im)))
    if not any(map(complexes.is_any, numbers)):
        re, im = (arithmetic.tensor(s, v, DType.F64) for v in numbers)
    else:
        a, b = (lift(s, v, DType.F64) for v in numbers)
        re, im = arithmetic.subtract(s, a.re, b.im), arithmetic.add(s, a.im, b.re)
    return Complex(*(Tensor(v.value, kind=FLOAT) for v in (re, im)))


def _class(s: Specialiser, row: Row, f: Any, value: Any) -> Any:
    if type(value) is not Complex:
        return type(value)
    if len(complexes.classes(value)) > 1:
        raise complexes.several_classes(s, value)
    return complexes.classes(value)[0]


def _isinstance(s: Specialiser, row: Row, f: Any, value: Any, classes: Any) -> Any:
    if type(value) is Complex:
        return complexes.of_class(s, value, classes)
    return row.handler(s, value, classes)


def _hasattr(s: Specialiser, row: Row, f: Any, value: Any, name: Any) -> Any:
    answers = {hasattr(c, name) for c in complexes.classes(complexes.present(s, value))}
    if len(answers) > 1:
        raise complexes.several_classes(s, value)
    return answers.pop()


def _getattr(s: Specialiser, row: Row, f: Any, value: Any, name: Any, *default: Any) -> Any:
    if default and not _hasattr(s, row, f, value, name):
        return default[0]
    return attribute(s, complexes.present(s, value), name)


def _len(s: Specialiser, row: Row, f: Any, value: Any) -> Any:
    return row.handler(s, value.re if type(value) is Complex else value)


PYTHON: dict[str, Handler] = {
    "complex": lambda s, row, f, *args, **kwargs: complex_of(s, *args, **kwargs),
    "abs": _abs,
    "pow": _pow,
    **{name: _refused(name) for name in ("int", "float", "round", "divmod")},
    "type": _class,
    "isinstance": _isinstance,
    "hasattr": _hasattr,
    "getattr": _getattr,
    "len": _len,
}


# cmath


def _of_one(f: Callable[..., Any]) -> Handler:
    """A function of one number: a formula that gives a complex number, a float or a bool."""

    def run(s: Specialiser, z: Any) -> Any:
        made = formula(s, f, *parts([lift(s, z, DType.F64)]))
        if isinstance(made, tuple):
            return Complex(*(Tensor(v.value, kind=FLOAT) for v in made))
        return Tensor(made.value, True)

    return run


def _log(s: Specialiser, z: Any, base: Any = None) -> Any:
    made = _of_one(formulas.log)(s, z)
    if base is None:
        return made
    return complexes.binary(s, "/", made, _of_one(formulas.log)(s, base))


def _polar(s: Specialiser, z: Any) -> Any:
    return _of_one(formulas.absolute)(s, z), _of_one(formulas.angle)(s, z)


def _rect(s: Specialiser, r: Any, phi: Any) -> Any:
    made = formula(s, formulas.rect, *(arithmetic.tensor(s, v, DType.F64) for v in (r, phi)))
    return Complex(*(Tensor(v.value, kind=FLOAT) for v in made))


def _isclose(s: Specialiser, a: Any, b: Any, *, rel_tol: Any = 1e-09, abs_tol: Any = 0.0) -> Any:
    pairs = parts([lift(s, v, DType.F64) for v in (a, b)])
    return Tensor(formula(s, formulas.is_close, *pairs, rel_tol, abs_tol).value, True)


#: What Python's `cmath` has: its functions take any number and give Python's own.
CMATH: dict[str, Handler] = {
    **{
        theirs: _of_one(getattr(formulas, ours))
        for theirs, ours in {
            **{n: n for n in ("exp", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
            **{n: n for n in ("isnan", "isinf", "isfinite")},
            **{f"a{n}": f"arc{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
            "phase": "angle",
        }.items()
    },
    "log": _log,
    "polar": _polar,
    "rect": _rect,
    "isclose": _isclose,
}
