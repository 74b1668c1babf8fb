"""NumPy's functions with a rule of their own for complex numbers: (s, row, f, *arguments)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ir import DType
from ...traced import ARRAY, FLOAT, INT, SCALAR
from .. import complexes
from ..definitions import np_complexes as formulas
from ..memory import stores
from ..numpy import arithmetic, elementwise, reductions, shapes
from ..values import Tensor, describe, is_static
from . import complex_attributes, formula, lift, new, parts
from .complex_rows import (
    asked_type,
    by_parts,
    combined,
    given,
    numbers_in,
    pairs_of,
    part_of,
    strong,
)

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row

Handler = Callable[..., Any]


def _real(s: Specialiser, row: Row, f: Any, val: Any) -> Any:
    return _array_or_number(s, val).re


def _imag(s: Specialiser, row: Row, f: Any, val: Any) -> Any:
    return _array_or_number(s, val).im


def _array_or_number(s: Specialiser, value: Any) -> Complex:
    return complexes.present(s, elementwise.array(s, value))


def _flag(s: Specialiser, row: Row, name: str, value: Any) -> bool:
    """An argument that decides what is computed, so it must be known."""
    if not is_static(value):
        raise s.needs_static(value, f"`{name}` of `{row.name}`")
    if isinstance(value, np.ndarray) or complexes.is_any(value):
        raise s.error("DL105", f"`{name}` of `{row.name}` is {describe(value)}", "give a bool")
    return bool(value)


def _angle(s: Specialiser, row: Row, f: Any, z: Any, deg: Any = False) -> Any:
    pair = _array_or_number(s, z)
    made = formula(s, formulas.angle, *parts([pair]))
    if _flag(s, row, "deg", deg):
        made = arithmetic.multiply(s, made, 180 / np.pi)
    return given(s, made, [pair], SCALAR)


def converted(dtype: Any) -> Handler:
    """`np.complex64(x)` and `np.complex128(x)`."""

    def run(s: Specialiser, x: Any = 0) -> Any:
        value = elementwise.array(s, x)
        if complexes.shape_of(value) and complex_attributes.has_type(value, dtype):
            return value
        z = lift(s, value, complexes.part_type(s, dtype))
        return new(s, parts([z]), SCALAR)

    return run


def _of_type(s: Specialiser, row: Row, f: Any, x: Any = 0) -> Any:
    return row.handler(s, x)


def _making(s: Specialiser, row: Row, f: Any, *args: Any, **kwargs: Any) -> Any:
    """`np.zeros` and the like of a complex type: the parts are made as real arrays."""
    asked = kwargs.pop("dtype", None)
    rest = list(args)
    if asked is None:
        asked = next((v for v in rest if complexes.is_type(v)), None)
        if asked is None:
            raise s.error("DL119", f"`{row.name}`: a complex number is no size")
        rest.remove(asked)
    if not complexes.is_type(asked):
        raise s.error("DL119", f"`{row.name}`: {describe(asked)} is no element type")
    dtype = complexes.part_type(s, asked)
    re = row(s, f, rest, {**kwargs, "dtype": dtype.numpy})
    zeros = stores.fresh(s, s.scope.number(0, dtype, re.shape), True)
    return Complex(re, zeros)


def _filled(s: Specialiser, dtype: Any) -> DType:
    """The type of the parts of an array that is filled with a complex number."""
    if not complexes.is_type(dtype):
        raise s.error("DL116", "a complex number does not fill an array of real numbers")
    return complexes.part_type(s, dtype)


def _full(
    s: Specialiser, row: Row, f: Any, shape: Any, fill_value: Any, dtype: Any = None, **kwargs: Any
) -> Any:
    kind = _filled(s, dtype) if dtype is not None else complexes.common(s, (fill_value,))
    z = lift(s, fill_value, kind)
    return Complex(*(row(s, f, [shape, stores.plain(v)], kwargs) for v in (z.re, z.im)))


def _like(s: Specialiser, row: Row, f: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    """`np.zeros_like` and the like: of a complex array, or of a complex type."""
    asked = kwargs.pop("dtype", args[0] if args else None)
    if asked is None:
        kind = complexes.common(s, (a,))
    elif complexes.is_type(asked):
        kind = complexes.part_type(s, asked)
    else:
        real = lift(s, a).re if complexes.is_any(a) else a
        return row(s, f, [real], {**kwargs, "dtype": asked})
    value = lift(s, a, kind)
    re = row(s, f, [stores.plain(value.re)], kwargs)
    return Complex(re, stores.fresh(s, s.scope.number(0, kind, re.shape), True))


def _full_like(
    s: Specialiser, row: Row, f: Any, a: Any, fill_value: Any, dtype: Any = None, **kwargs: Any
) -> Any:
    kind = _filled(s, complex if dtype is None and complexes.is_any(a) else dtype)
    if dtype is None:
        kind = complexes.common(s, (a,))
    like, z = lift(s, a, kind), lift(s, fill_value, kind)
    return Complex(
        *(row(s, f, [stores.plain(like.re), stores.plain(v)], kwargs) for v in (z.re, z.im))
    )


def _array(s: Specialiser, row: Row, f: Any, object: Any, *args: Any, **kwargs: Any) -> Any:
    """`np.array`: copies, or gives an array as it is (`np.asarray`)."""
    asked = kwargs.pop("dtype", args[0] if args else None)
    if asked is not None and not complexes.is_type(asked):
        raise s.error("DL116", f"a complex number does not become one of {describe(asked)}")
    value = array(s, object, None if asked is None else complexes.part_type(s, asked))
    if not complexes.is_any(object):  # Its real part would be the array that is converted.
        value = new(s, parts([value]), ARRAY)
    made = [row(s, f, [arithmetic.of_one_class(v)], kwargs) for v in (value.re, value.im)]
    return Complex(*made)


def array(s: Specialiser, value: Any, dtype: DType | None = None) -> Complex:
    """A nested sequence with complex numbers in it, or one number, as an array."""
    if dtype is None:  # In a list a number of Python's has a type of its own.
        whole = isinstance(value, list | tuple)
        dtype = complexes.common(s, [strong(v) if whole else v for v in numbers_in(value)])
    if not isinstance(value, list | tuple):
        return lift(s, value, dtype)
    pairs = pairs_of(s, value, dtype)
    re, im = (shapes.array(s, part_of(pairs, name)) for name in ("re", "im"))
    return new(s, (re, im), ARRAY, True)


def _average(s: Specialiser, row: Row, f: Any, *args: Any, **kwargs: Any) -> Any:
    """Its sum of the weights, which `returned` asks for, has no imaginary part."""
    made = by_parts(s, row, f, args, kwargs)
    if type(made) is not tuple:
        return made
    weights = made[1].re
    return made[0], Complex(
        weights, stores.fresh(s, s.scope.number(0, weights.dtype, weights.shape), True)
    )


def _linspace(
    s: Specialiser, row: Row, f: Any, start: Any, stop: Any, *args: Any, **kw: Any
) -> Any:
    dtype, kw = asked_type(s, kw)
    dtype = dtype or complexes.common(s, (start, stop, 1.0))
    a, b = lift(s, start, dtype), lift(s, stop, dtype)
    made = [row(s, f, [x, y, *args], kw) for x, y in ((a.re, b.re), (a.im, b.im))]
    return combined(s, *made)


def _spread(
    s: Specialiser,
    row: Row,
    f: Any,
    a: Any,
    axis: Any = None,
    *,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
) -> Any:
    """Variance and standard deviation: those of both parts together, and real."""
    if dtype is not None:
        hint = "convert the result: np.var(z).astype(dtype)"
        raise s.error("DL116", f"`{row.name}` of complex numbers takes no `dtype`", hint)
    z = _array_or_number(s, a)
    made = [s.call(np.var, v, axis, keepdims=keepdims) for v in (z.re, z.im)]
    total = s.call(np.add, *made)
    if not isinstance(ddof, int | float | np.number) or complexes.is_any(ddof):
        raise s.needs_static(ddof, f"`ddof` of `{row.name}`")
    if ddof != 0:
        count = reductions.count_along(z.re, shapes.axes_of(s, z.re, axis))
        total = s.call(np.multiply, total, count)
        total = s.call(np.divide, total, reductions.freedom(s, count, ddof))
    return s.call(np.sqrt, total) if f is np.std else total


def _truths(s: Specialiser, row: Row, f: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    z = _array_or_number(s, a)
    return row(s, f, [formula(s, formulas.truth, *parts([z])), *args], kwargs)


def _along(s: Specialiser, z: Complex, axis: Any, place: int) -> tuple[list[Any], int]:
    """The parts with one axis at a place; None is all of them as one."""
    if axis is None:
        return [shapes.ravel(s, v) for v in parts([z])], 0
    at = shapes.axis_of(s, z.re, axis)
    return [shapes.moveaxis(s, v, at, place) for v in parts([z])], at


def _prod(s: Specialiser, row: Row, f: Any, a: Any, axis: Any = None, keepdims: Any = False) -> Any:
    z = _array_or_number(s, a)
    values, at = _along(s, z, axis, 0)
    made = formula(s, formulas.prod, *values)
    if _flag(s, row, "keepdims", keepdims):
        ones = tuple(range(len(z.re.shape))) if axis is None else at
        made = [shapes.expand_dims(s, v, ones) for v in made]
    return new(s, made, SCALAR)


def _cumprod(s: Specialiser, row: Row, f: Any, a: Any, axis: Any = None) -> Any:
    values, at = _along(s, _array_or_number(s, a), axis, 0)
    made = formula(s, formulas.cumprod, *values)
    return new(s, [shapes.moveaxis(s, v, 0, at) for v in made], SCALAR)


def _argmax(
    s: Specialiser, row: Row, f: Any, a: Any, axis: Any = None, *, keepdims: Any = False
) -> Any:
    z = _array_or_number(s, a)
    values, at = _along(s, z, axis, 0)
    greatest = row.name in ("np.argmax", "np.max")
    place = formula(s, formulas.argmax, *values, 1 if greatest else -1)
    if row.name in ("np.argmax", "np.argmin"):
        made = [place]
    else:
        index = shapes.expand_dims(s, place, 0)
        made = [s.call(np.take_along_axis, v, index, 0) for v in values]
        made = [shapes.squeeze(s, v, 0) for v in made]
    if _flag(s, row, "keepdims", keepdims):
        ones = tuple(range(len(z.re.shape))) if axis is None else at
        made = [shapes.expand_dims(s, v, ones) for v in made]
    return given(s, made[0] if len(made) == 1 else tuple(made), [], SCALAR)


def _argsort(
    s: Specialiser, row: Row, f: Any, a: Any, axis: Any = -1, kind: Any = None, stable: Any = None
) -> Any:
    reductions.check_sort(s, kind, stable)
    z = _array_or_number(s, a)
    values, at = _along(s, z, axis, -1)
    order = formula(s, formulas.argsort, *values)
    made = [order]
    if f is not np.argsort:
        made = [s.call(np.take_along_axis, v, order, -1) for v in values]
    made = [shapes.moveaxis(s, v, -1, at) for v in made]
    return given(s, made[0] if len(made) == 1 else tuple(made), [], SCALAR)


def _close(s: Specialiser, row: Row, f: Any, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    x, y = (elementwise.array(s, v) for v in (a, b))
    dtype = complexes.common(s, (x, y))
    values = parts([lift(s, v, dtype) for v in (x, y)])
    close = formula(s, formulas.isclose, *values, *args, **kwargs)
    if f is np.isclose:
        return given(s, close, [x, y], SCALAR)
    return Tensor(s.call(np.all, close).value, True)


def _array_equal(s: Specialiser, row: Row, f: Any, a1: Any, a2: Any, equal_nan: Any = False) -> Any:
    x, y = (elementwise.array(s, v) for v in (a1, a2))
    if complexes.shape_of(x) != complexes.shape_of(y):
        return False
    dtype = complexes.common(s, (x, y))
    pairs = [lift(s, v, dtype) for v in (x, y)]
    same = formula(s, formulas.equal, *parts(pairs))
    if _flag(s, row, "equal_nan", equal_nan):
        lost = [formula(s, formulas.isnan, *parts([v])) for v in pairs]
        same = arithmetic.bitwise_or(s, same, arithmetic.bitwise_and(s, *lost))
    return Tensor(s.call(np.all, same).value, True)


def _nan_to_num(s: Specialiser, row: Row, f: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if any(complexes.is_any(v) for v in (*args, *kwargs.values())):
        raise s.error("DL116", "np.nan_to_num puts real numbers in place, no complex ones")
    z = _array_or_number(s, x)
    return Complex(*(row(s, f, [v, *args], kwargs) for v in (z.re, z.im)))


def _norm(s: Specialiser, row: Row, f: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Every norm but those of singular values is one of the sizes of the elements."""
    if complexes.among([*args, *kwargs.values()]):  # The call would be one of complex numbers.
        raise s.error("DL105", f"`{row.name}` takes a complex number as its array alone")
    size = s.call(np.absolute, _array_or_number(s, x))
    return row(s, f, [size, *args], kwargs)


def _einsum(s: Specialiser, row: Row, f: Any, subscripts: Any, *operands: Any, **kw: Any) -> Any:
    if not isinstance(subscripts, str):
        raise s.error("DL119", "np.einsum of complex numbers takes its subscripts as text")
    values = [strong(elementwise.array(s, v)) for v in operands]
    dtype = complexes.common(s, values)
    total: dict[int, Any] = {}
    # A product of k complex operands is 2^k real ones, each times a power of i.
    choices: list[tuple[int, list[Any]]] = [(0, [])]
    for value in values:
        if complexes.is_any(value):
            z = lift(s, value, dtype)
            choices = [(p + k, [*row, v]) for p, row in choices for k, v in ((0, z.re), (1, z.im))]
        else:
            choices = [(p, [*row, arithmetic.tensor(s, value, dtype)]) for p, row in choices]
    for power, chosen in choices:
        made = row(s, f, [subscripts, *chosen], kw)
        negative, part = power % 4 >= 2, power % 2
        if part not in total:
            total[part] = s.call(np.negative, made) if negative else made
        else:
            total[part] = s.call(np.subtract if negative else np.add, total[part], made)
    return Complex(total[0], total[1])


def _solve(s: Specialiser, row: Row, f: Any, a: Any, b: Any) -> Any:
    x, y = (elementwise.array(s, v) for v in (a, b))
    dtype = complexes.common(s, (x, y))
    left, right = lift(s, x, dtype), lift(s, y, dtype)
    if len(left.re.shape) < 2 or left.re.shape[-1] != left.re.shape[-2]:
        raise s.error("DL115", f"`{row.name}` takes square matrices, not {describe(a)}")
    vector = len(right.re.shape) == 1
    values = parts([right])
    if vector:
        values = [shapes.expand_dims(s, v, 1) for v in values]
    shape = (*left.re.shape[:-2], *values[0].shape[-2:])
    if len(values[0].shape) < len(shape):
        values = [shapes.broadcast_to(s, v, shape) for v in values]
    made = formula(s, formulas.solve, *parts([left]), *values)
    if vector:
        made = [shapes.squeeze(s, v, -1) for v in made]
    return new(s, made, SCALAR)


def _inv(s: Specialiser, row: Row, f: Any, a: Any) -> Any:
    value = lift(s, elementwise.array(s, a))
    if not value.re.shape:
        raise s.error("DL115", f"`{row.name}` takes square matrices, not {describe(a)}")
    eye = shapes.eye(s, value.re.shape[-1], dtype=value.re.dtype.numpy)
    return _solve(s, row, f, value, eye)


def _in_place(s: Specialiser, row: Row, f: Any, target: Any, *rest: Any, **kwargs: Any) -> Any:
    """`np.copyto`, `np.fill_diagonal`, `np.add.at`: what is written, last, by its parts."""
    if type(target) is not Complex:
        text = f"`{row.name}` would write a complex number into {describe(target)}"
        raise s.error("DL116", text, "take its real part: z.real")
    if row.name == "np.copyto":
        _copyto(s, target, *rest, **kwargs)
        return
    if row.name == "np.fill_diagonal":
        if len(rest) > 1:
            kwargs, rest = {"wrap": rest[1], **kwargs}, rest[:1]
        if "val" in kwargs:
            rest = (kwargs.pop("val"),)
    *between, value = rest
    new_value = lift(s, value, target.re.dtype)
    for part, made in ((target.re, new_value.re), (target.im, new_value.im)):
        row(s, f, [part, *between, made], kwargs)


def _copyto(
    s: Specialiser, dst: Complex, src: Any, casting: Any = "same_kind", where: Any = True
) -> None:
    if complexes.among([casting, where]):
        raise s.error("DL116", "np.copyto takes a name as `casting` and bools as `where`")
    narrowed = lift(s, src, dst.re.dtype)
    for part, made in ((dst.re, narrowed.re), (dst.im, narrowed.im)):
        s.call(np.copyto, part, made, casting, where)


def _shape(s: Specialiser, row: Row, f: Any, a: Any, *args: Any) -> Any:
    return row(s, f, [_array_or_number(s, a).re, *args], {})


def _isscalar(s: Specialiser, row: Row, f: Any, element: Any) -> Any:
    return complexes.kind(element) != ARRAY


def _result_type(s: Specialiser, row: Row, f: Any, *values: Any) -> Any:
    kinds = [
        np.empty(0, v) if isinstance(v, type | np.dtype) else elementwise.array(s, v)
        for v in values
    ]
    return complexes.NUMPY[complexes.common(s, kinds)]


def _astype(s: Specialiser, row: Row, f: Any, x: Any, /, dtype: Any, *, copy: Any = True) -> Any:
    return complex_attributes.astype(s, x, dtype, copy=copy)


def _iscomplex(s: Specialiser, row: Row, f: Any, x: Any) -> Any:
    z = _array_or_number(s, x)
    test = arithmetic.equal if f is np.isreal else arithmetic.not_equal
    made = test(s, stores.plain(z.im), 0)
    python = z.re.kind & (FLOAT | INT) and f is np.isreal  # NumPy compares its imaginary part.
    if python and z.re.kind & SCALAR:
        raise complexes.several_classes(s, z)
    return Tensor(made.value, True) if python else given(s, made, [z], SCALAR)


def _as_strided(
    s: Specialiser, row: Row, f: Any, x: Any, shape: Any = None, strides: Any = None, **rest: Any
) -> Any:
    """Of both parts, whose elements have half as many bytes."""
    if isinstance(strides, tuple | list) and is_static(strides):
        strides = tuple(n // 2 if n % 2 == 0 else n for n in strides)
    z = _array_or_number(s, x)
    return Complex(*(row(s, f, [v, shape, strides], rest) for v in (z.re, z.im)))


def _object_is_complex(answer: bool) -> Handler:
    return lambda s, row, f, x: answer


OTHERS: dict[str, Handler] = {
    "real": _real,
    "imag": _imag,
    "angle": _angle,
    **dict.fromkeys(("zeros", "ones", "empty", "eye", "identity"), _making),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like"), _like),
    "full": _full,
    "full_like": _full_like,
    **dict.fromkeys(("array", "asarray", "asanyarray", "ascontiguousarray"), _array),
    "average": _average,
    "linspace": _linspace,
    **dict.fromkeys(("var", "std"), _spread),
    **dict.fromkeys(("any", "all", "count_nonzero"), _truths),
    "prod": _prod,
    "cumprod": _cumprod,
    **dict.fromkeys(("max", "min", "argmax", "argmin"), _argmax),
    **dict.fromkeys(("sort", "argsort"), _argsort),
    **dict.fromkeys(("isclose", "allclose"), _close),
    "array_equal": _array_equal,
    "nan_to_num": _nan_to_num,
    **dict.fromkeys(("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm"), _norm),
    "einsum": _einsum,
    "linalg.solve": _solve,
    "linalg.inv": _inv,
    **dict.fromkeys(("copyto", "fill_diagonal", "add.at", "subtract.at"), _in_place),
    **dict.fromkeys(("shape", "ndim", "size"), _shape),
    "isscalar": _isscalar,
    "result_type": _result_type,
    "astype": _astype,
    **dict.fromkeys(("iscomplex", "isreal"), _iscomplex),
    "iscomplexobj": _object_is_complex(True),
    "isrealobj": _object_is_complex(False),
    "lib.stride_tricks.as_strided": _as_strided,
    "complex64": _of_type,
    "complex128": _of_type,
}
