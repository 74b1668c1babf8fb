"""Complex numbers of the running program: pairs of real tensors (`complex_numbers.Complex`).

A pair is a tree, so branches and loops carry it, and derivatives go through its parts. Operators
and functions are formulas on the parts (`definitions.np_complexes`), which follow NumPy: a real
operand becomes complex first, types promote by NEP 50, and what has no complex meaning is refused.
What is known while compiling (`1j`) is a Python or NumPy number until it meets one of the program.

Each of NumPy's functions that takes complex numbers has an entry in `complex_rows`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...complex_numbers import Complex, is_complex
from ...ir import DType
from ...ragged import Ragged
from ...traced import ARRAY, FLOAT, INT, SCALAR, same_static
from ..containers import containers
from ..definitions import np_complexes as formulas
from ..flow import raises
from ..memory import stores
from ..numpy import arithmetic, indexing
from ..numpy.formulas import formula as formula
from ..values import Tensor, describe, is_number, kind_of

if TYPE_CHECKING:
    from ..specialise import Specialiser

NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.complex64),
    DType.F64: np.dtype(np.complex128),
}
_PARTS = {np.dtype(np.complex64): DType.F32, np.dtype(np.complex128): DType.F64}

BINARY: dict[str, Callable[..., Any]] = {
    "+": formulas.add,
    "-": formulas.subtract,
    "*": formulas.multiply,
    "/": formulas.divide,
    "**": formulas.power,
}
COMPARE: dict[str, Callable[..., Any]] = {
    "==": formulas.equal,
    "!=": formulas.not_equal,
    "<": formulas.less,
    "<=": formulas.less_equal,
    ">": formulas.greater,
    ">=": formulas.greater_equal,
}


# What is complex


def is_any(value: Any) -> bool:
    """Whether it is a complex number: of the running program, or known."""
    return type(value) is Complex or is_complex(value)


def among(values: Sequence[Any]) -> bool:
    """Whether one of some values, or of the sequences in them, is complex, or the type of it."""
    return any(
        type(v) is Complex
        or (type(v) is not Tensor and (is_complex(v) or is_type(v)))
        or (type(v) in (list, tuple) and among(v))
        for v in values
    )


def is_type(value: Any) -> bool:
    """Whether it names a complex element type."""
    if isinstance(value, np.dtype):
        return value.kind == "c"
    if isinstance(value, type):
        return issubclass(value, complex | np.complexfloating)
    # "F" names a type too, but more often the order of Fortran.
    return isinstance(value, str) and value in ("complex", "complex64", "complex128", "D")


def part_type(s: Specialiser, dtype: Any) -> DType:
    """The element type of the parts of a complex dtype."""
    found = _PARTS.get(np.dtype(dtype))
    if found is None:
        raise s.error("DL116", f"there is no element type {np.dtype(dtype)}", "complex128 is there")
    return found


def numpy_type(z: Complex) -> np.dtype[Any]:
    """NumPy's element type of a complex number of the program."""
    return NUMPY[z.re.dtype]


def kind(value: Any) -> int:
    """What a number is in Python, as a `Tensor.kind`: the kind of its parts."""
    if type(value) is Complex:
        return ARRAY if type(value.re) is Ragged else int(value.re.kind)
    return FLOAT if type(value) is complex else kind_of(value)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a number or array, complex or not."""
    return arithmetic.shape_of(value.re if type(value) is Complex else value)


def classes(z: Complex) -> list[Any]:
    """The Python classes that it may have."""
    if is_picked(z):
        return [np.ndarray]
    out: list[Any] = [float] if z.re.kind & INT else []
    out += [complex] if z.re.kind & FLOAT else []
    out += [numpy_type(z).type] if z.re.kind & SCALAR else []
    return [*out, np.ndarray] if z.re.kind & ARRAY else out


def is_operand(value: Any) -> bool:
    """Whether an operator of complex numbers takes it: real numbers become complex."""
    return is_any(value) or is_number(value)


def is_picked(value: Any) -> bool:
    """Whether it is a complex array whose length the data decide: what a mask picked."""
    return type(value) is Complex and type(value.re) is Ragged


def whole(s: Specialiser, what: str, *values: Any) -> None:
    """Refuses what a mask picked, where only its parts are taken."""
    from .. import ragged

    for value in values:
        if is_picked(value):
            hint = "take its parts: z[mask].real, z[mask].imag"
            raise ragged.refused(s, what, value.re, hint)


# Making pairs


def common(s: Specialiser, values: Sequence[Any]) -> DType:
    """The type of the parts of what some numbers promote to, one of which is complex."""
    parts = [v.re if type(v) is Complex else v.real if is_complex(v) else v for v in values]
    dtype, _ = arithmetic.result_dtype(s, parts, _part_kind)
    if dtype is DType.BF16:
        raise s.error("DL116", "bf16 has no complex type", "convert it: x.astype(np.float32)")
    return _part_kind(dtype)


def _part_kind(dtype: DType) -> DType:
    return DType.F32 if dtype is DType.F16 else dtype if dtype.is_float else DType.F64


def lift(s: Specialiser, value: Any, dtype: DType | None = None) -> Complex:
    """Any number as a pair of strong tensors of this type; its memory is kept where it has it."""
    if isinstance(value, tuple | list):
        value = s.array(value)
    if dtype is None:
        dtype = common(s, (value,))
    if type(value) is Complex:
        return Complex(arithmetic.tensor(s, value.re, dtype), arithmetic.tensor(s, value.im, dtype))
    if is_complex(value):
        return Complex(*(arithmetic.tensor(s, v, dtype) for v in (value.real, value.imag)))
    if not is_number(value):
        raise arithmetic.not_a_number(s, value)
    re = arithmetic.tensor(s, value, dtype)
    return Complex(re, Tensor(s.scope.number(0, dtype, re.shape)))


def present(s: Specialiser, value: Any) -> Complex:
    """A complex number that is known, as one of the program, of the same kind in Python."""
    if type(value) is Complex:
        return value
    as_kind = kind(value)
    made = lift(s, value)
    return Complex(*(Tensor(v.value, kind=as_kind) for v in (made.re, made.im)))


def of_program(s: Specialiser, value: Any) -> Any:
    """A number, known or not, as one of the program."""
    return present(s, value) if is_any(value) else arithmetic.tensor(s, value)


def new(s: Specialiser, pair: Sequence[Any], kind: int, row_major: bool = False) -> Complex:
    """A pair that was just computed, with memory of its own where it is an array."""
    if pair[0].shape or kind == ARRAY:
        return Complex(*(stores.fresh(s, v.value, row_major) for v in pair))
    return Complex(*(Tensor(v.value, kind=kind) for v in pair))


def kind_of_result(values: Sequence[Any]) -> int:
    """The kind of the single number that an operator gives (`Tensor.kind`).

    It is a number of Python's own where all operands are; FLOAT is complex then, and INT says that
    it may be real.
    """
    kinds = [kind(v) for v in values]
    if len(kinds) == 2 and is_any(values[0]) and _is_f64_scalar(values[1]):
        kinds[1] = FLOAT  # An np.float64 is a float, to which Python's complex numbers answer.
    surely = any(is_any(v) and not kind(v) & INT for v in values)
    python = FLOAT if surely else FLOAT | INT
    if all(k < SCALAR for k in kinds):
        return python
    return SCALAR | python if all(k & (SCALAR - 1) for k in kinds) else SCALAR


def _is_f64_scalar(value: Any) -> bool:
    """Whether it is an `np.float64`, and so a float of Python's too."""
    if type(value) is Tensor:
        return value.kind == SCALAR and value.dtype is DType.F64
    return isinstance(value, np.float64)


def parts(values: Sequence[Complex]) -> list[Any]:
    """The present values of all parts, in order: re, im, re, im, ..."""
    return [stores.plain(p) for v in values for p in (v.re, v.im)]


# Operators


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """An operator on two numbers of which one is complex."""
    if op == "@":
        return s.call(np.matmul, a, b)
    if op not in BINARY:
        raise not_for_complex(s, f"`{op}`")
    whole(s, f"`{op}`", a, b)
    dtype = common(s, (a, b))
    x, y = lift(s, a, dtype), lift(s, b, dtype)
    n = exponent(b) if op == "**" else None
    if n is not None:
        re, im = formula(s, formulas.whole_power, *parts([x]), n)
    else:
        re, im = formula(s, BINARY[op], *parts([x, y]))
    made = kind_of_result((a, b))
    if op in _FAILING and made < SCALAR:
        _check(s, op, (a, b), (x, y), (re, im))
    return new(s, (re, im), made, _row_major(a, b))


_FAILING = {"/": operator.truediv, "**": operator.pow}


def _check(
    s: Specialiser, op: str, given: Sequence[Any], pairs: Sequence[Complex], made: Sequence[Tensor]
) -> None:
    """The errors of Python's own complex numbers: a division by zero, a power that has no value."""
    x, y = pairs
    where = y if op == "/" else x
    zero = s.emit("not", truth(s, where))
    if op == "/":
        raises.ask(s, zero, operator.truediv, *given, kind=ZeroDivisionError)
        return
    finite = [s.emit("is_finite", part.value) for part in made]
    suspect = s.emit("or", zero, s.emit("not", s.emit("and", *finite)))
    raises.ask(s, suspect, _power_of_python, *given)


def _power_of_python(a: Any, b: Any) -> None:
    a**b


#: Beyond, NumPy and Python compute powers by logarithms too.
_WHOLE_MAX = 99


def exponent(value: Any) -> int | None:
    """The whole number that a known exponent is."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        value = value.real
    if is_complex(value) or not isinstance(value, int | float | np.number):
        return None
    number = float(value)
    return int(number) if abs(number) <= _WHOLE_MAX and number == int(number) else None


def _row_major(*values: Any) -> bool:
    from ..memory import shared_memory

    return shared_memory.all_row_major([v.re if type(v) is Complex else v for v in values])


def unary(s: Specialiser, op: str, a: Complex) -> Any:
    """`-z` or `+z`; `~z` is refused."""
    if op == "~":
        raise not_for_complex(s, "`~`")
    whole(s, f"`{op}`", a)
    re, im = formula(s, formulas.negative if op == "-" else formulas.positive, *parts([a]))
    kind = SCALAR if a.re.kind == ARRAY and not a.re.shape else a.re.kind
    return new(s, (re, im), kind, _row_major(a))


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A comparison with a complex number: NumPy's are lexicographic, Python's have no order."""
    whole(s, f"`{op}`", a, b)
    made_of = kind_of_result((a, b))
    python = made_of < SCALAR
    if made_of & (FLOAT | INT) and op not in ("==", "!="):
        raise not_for_complex(s, f"`{op}` of Python's numbers")
    dtype = common(s, (a, b))
    made = formula(s, COMPARE[op], *parts([lift(s, a, dtype), lift(s, b, dtype)]))
    if made.shape:
        return stores.fresh(s, made.value, _row_major(a, b))
    return Tensor(made.value, python)


def truth(s: Specialiser, z: Complex) -> Any:
    """Whether it is not zero."""
    whole(s, "the truth of an array", z)
    if shape_of(z) != ():
        return arithmetic.truth(s, z.re)  # Refuses with its own words.
    return formula(s, formulas.truth, *parts([z])).value


def not_for_complex(s: Specialiser, what: str) -> Exception:
    """The error of an operation that raises TypeError in Python and NumPy."""
    text = f"{what} does not take complex numbers, in Python and NumPy a TypeError"
    return s.error("DL119", text, "take z.real, z.imag, abs(z) or np.angle(z)")


# Items and changes in place


def subscript(s: Specialiser, z: Any, index: Any) -> Any:
    """`z[index]`: views of both parts."""
    z = present(s, z)
    if is_picked(z):
        return Complex(s.subscript(z.re, index), s.subscript(z.im, index))
    if z.re.weak:
        raise s.error("DL119", "a Python complex has no items")
    return Complex(indexing.subscript(s, z.re, index), indexing.subscript(s, z.im, index))


def store(s: Specialiser, z: Complex, index: Any, value: Any) -> None:
    """`z[index] = value`."""
    from ..memory import array_changes

    whole(s, "an assignment", z, value)
    new = lift(s, value, z.re.dtype)
    array_changes.store(s, z.re, index, new.re)
    array_changes.store(s, z.im, index, new.im)


def update(s: Specialiser, op: str, z: Complex, value: Any) -> None:
    """`z op= value` on an array."""
    from .. import operators

    whole(s, f"`{op}=`", z, value)
    stores.changeable(s, z.re)
    write(s, z, operators.binary(s, op, plain(z), value), f"`{op}=`")


def write(s: Specialiser, z: Complex, result: Any, what: str) -> None:
    """Writes a result into both parts of an array, in place; `what` names it in errors."""
    from ..memory import array_changes

    made = lift(s, result, z.re.dtype)
    array_changes.write(s, z.re, made.re, what)
    array_changes.write(s, z.im, made.im, what)


def out(s: Specialiser, z: Complex, result: Any, what: str, exact: bool) -> Complex:
    """What a call with `out=z` gives: its result, written there."""
    from ..memory import array_changes

    if not is_operand(result):
        raise s.error("DL105", f"{what}: `out` takes one result, not {describe(result)}")
    made = lift(s, result)
    if exact and (not is_any(result) or made.re.dtype is not z.re.dtype):
        text = f"{what} gives {describe(result)}, and `out` holds {z}"
        raise s.error("DL116", text, "assign instead: out[...] = result")
    array_changes.fits(s, made.re.shape, z.re.shape, what)
    if exact and made.re.shape != z.re.shape:
        text = f"{what} gives an array of shape {list(made.re.shape)}, and `out` is {z}"
        raise s.error("DL115", text, "assign instead: out[...] = result")
    write(s, z, result, what)
    return z


def update_item(s: Specialiser, op: str, z: Complex, index: Any, make: Callable[[], Any]) -> None:
    """`z[index] op= value`."""
    from .. import operators
    from ..memory import array_changes

    whole(s, f"`{op}=`", z)
    stores.changeable(s, z.re)
    im, _ = indexing.opened(s, z.im, index)
    re, index = indexing.opened(s, z.re, index)
    z = Complex(re, im)
    if indexing.is_mask(index):
        value = make()
        if shape_of(value) != ():
            raise array_changes.masked(s)
        wide = lift(s, operators.binary(s, op, plain(z), value), z.re.dtype)
        for part, made in ((z.re, wide.re), (z.im, wide.im)):
            array_changes.store_masked(s, part, index, made, True)
        return
    old = subscript(s, z, index)
    whole(s, f"`{op}=` of entries", old)
    value = make()
    result = operators.binary(s, op, plain(old), value)
    if shape_of(old) != ():
        array_changes.fits(s, shape_of(result), shape_of(old), f"`{op}=`")
    store(s, z, index, result)


def plain(z: Complex) -> Complex:
    """Its present value, without its memory."""
    return Complex(stores.plain(z.re), stores.plain(z.im))


# Where paths meet


def all_as_pairs(s: Specialiser, value: Any) -> Any:
    """A tree whose complex numbers are all of the program."""
    return _mapped(s, value, lambda v: present(s, v) if is_complex(v) else v)


def known_as_pairs(s: Specialiser, value: Any, content: bool = False) -> Any:
    """Likewise, but for those in lists and dicts, which stay the objects that they are.

    `content`: the value is itself what such a container holds.
    """
    if containers.is_container(value) and not content:
        return value
    node = tree.children(value) if type(value) is not Complex else None
    if node is None:
        return present(s, value) if is_complex(value) else value
    parts = [known_as_pairs(s, v) for v in node[1]]
    moved = any(x is not y for x, y in zip(node[1], parts, strict=True))
    return _rebuilt(value, parts) if moved else value


def alike(s: Specialiser, values: Sequence[Any], content: bool = False) -> list[Any]:
    """Trees that are to be joined, with complex numbers in the same places.

    Where one has a complex number and another a known one, or a number of Python's own, that
    becomes complex too. Lists and dicts are left as they are; with `content` the values are what
    such a container holds.
    """
    first = values[0]
    if type(first) is Complex or any(is_any(v) for v in values):
        if all(is_complex(v) and same_static(v, first) for v in values):
            return list(values)
        return [_as_pair(s, v) for v in values]
    if containers.is_container(first) and not content:
        return list(values)
    nodes = [tree.children(v) for v in values]
    keys = nodes[0][0] if nodes[0] is not None else ()
    if not keys or any(n is None or n[0] != keys for n in nodes):
        return list(values)
    columns = [alike(s, column) for column in zip(*(n[1] for n in nodes if n), strict=True)]
    out = []
    for value, node, row in zip(values, nodes, zip(*columns, strict=True), strict=True):
        assert node is not None
        moved = any(x is not y for x, y in zip(node[1], row, strict=True))
        out.append(_rebuilt(value, row) if moved else value)
    return out


def _as_pair(s: Specialiser, value: Any) -> Any:
    if is_any(value):
        return present(s, value)
    real = is_number(value) and kind_of(value) < SCALAR and shape_of(value) == ()
    if not real or arithmetic.dtype_of(s, value)[0] is DType.BOOL:
        return value
    held = value.value if type(value) is Tensor else arithmetic.tensor(s, value).value
    zero = s.scope.number(0, DType.F64)
    return Complex(Tensor(held, kind=FLOAT | INT), Tensor(zero, kind=FLOAT | INT))


def _rebuilt(value: Any, parts: Sequence[Any]) -> Any:
    return tree.unflatten(tree.flatten(value, lambda v: v is not value)[1], parts)


def _mapped(s: Specialiser, value: Any, f: Callable[[Any], Any]) -> Any:
    node = tree.children(value) if type(value) is not Complex else None
    if node is None:
        return f(value)
    parts = [_mapped(s, v, f) for v in node[1]]
    moved = any(x is not y for x, y in zip(node[1], parts, strict=True))
    if not moved:
        return value
    made = _rebuilt(value, parts)
    return s.own(made) if isinstance(made, list | dict) else made


# Derivatives


def conjugated(s: Specialiser, value: Any) -> Any:
    """A tree with its complex numbers conjugated.

    A real derivative has the cotangent of each part; JAX's of z = x + iy is that of x less i times
    that of y. So cotangents are conjugated where they come in and go out.
    """

    def one(v: Any) -> Any:
        if not is_any(v):
            return v
        z = present(s, v)
        return Complex(z.re, z.im.like(s.emit("neg", z.im.value)))

    return _mapped(s, value, one)


def holds(value: Any) -> bool:
    """Whether a tree has complex numbers in it."""
    if is_any(value):
        return True
    node = tree.children(value)
    return node is not None and any(map(holds, node[1]))


def refuse(s: Specialiser, value: Any, what: str) -> None:
    """Refuses a tree with complex numbers where they have no meaning here."""
    if holds(value):
        hint = "take its real and imaginary parts as arguments or results"
        raise s.error("DL117", f"{what} does not take complex numbers: {describe(value)}", hint)


def of_class(s: Specialiser, z: Complex, classinfo: Any) -> bool:
    """`isinstance` of a complex number."""
    from .. import operators

    answers = {
        bool(operators.python(s, partial(issubclass, c, classinfo), "`isinstance`"))
        for c in classes(z)
    }
    if len(answers) > 1:
        raise several_classes(s, z)
    return answers.pop()


def several_classes(s: Specialiser, z: Complex) -> Exception:
    """The error of an operation that needs to know which class of Python a number has."""
    words = " or ".join(f"`{c.__name__}`" for c in classes(z))
    text = f"this number is in Python {words}, as the program takes its path"
    return s.static_needed(text, "convert it on each path: complex(x), np.complex128(x)")


def attribute_of(s: Specialiser, z: Complex, name: str) -> Any:
    """`z.name`."""
    from . import complex_attributes

    return complex_attributes.attribute(s, z, name)
