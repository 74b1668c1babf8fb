"""`np.fft`: discrete Fourier transforms of real and complex arrays.

A transform of n = n1 n2 numbers is n2 transforms of n1 numbers, a multiplication by roots of unity
("twiddles"), and n1 transforms of n2 (Cooley and Tukey 1965); up to `_DIRECT` numbers it is a
product with the matrix of the roots, which a back end does fastest. Where n has no small factor, a
transform is a convolution of a power of two (Bluestein 1970). So the work is O(n log n) for any n,
and all of it is products and sums, whose derivatives are transforms again.

Angles are multiples of 2 pi / n by whole numbers below n, so that no root loses digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ir import DType
from ...traced import ARRAY
from .. import complexes, operators
from ..memory import stores
from ..numpy import arithmetic, elementwise, matrix_products, shapes
from ..values import Tensor, describe
from . import lift, new

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Transforms of so many numbers, and of so many without a smaller factor, are matrix products.
_DIRECT, _DIRECT_PRIME = 32, 96
#: Tables of roots up to this are constants of the program; longer ones it computes.
_CONSTANT_MAX = 1 << 14

Pair = tuple[Tensor, Tensor]


def _product(s: Specialiser, a: Sequence[Any], b: Sequence[Any], run: Any) -> Pair:
    """The complex product by a real product `run`; a real factor is (x, None)."""
    (p, q), (u, v) = a, b
    if q is None:
        return run(s, p, u), run(s, p, v)
    re = arithmetic.subtract(s, run(s, p, u), run(s, q, v))
    return re, arithmetic.add(s, run(s, p, v), run(s, q, u))


def _roots(s: Specialiser, index: Any, n: int, dtype: DType) -> tuple[Any, Any]:
    """e^(2 pi i k / n) for each k of an index: known whole numbers, or ones of the program."""
    if isinstance(index, np.ndarray):
        known = index % n * (2 * np.pi / n)
        return np.cos(known).astype(dtype.numpy), np.sin(known).astype(dtype.numpy)
    turns = arithmetic.tensor(s, arithmetic.remainder(s, index, n), DType.F64)
    angle = arithmetic.multiply(s, turns, 2 * np.pi / n)
    return tuple(arithmetic.tensor(s, s.call(f, angle), dtype) for f in (np.cos, np.sin))  # type: ignore[return-value]


def _count(s: Specialiser, n: int, size: int) -> Any:
    """0, 1, ... n - 1, for a table of so many roots."""
    return np.arange(n) if size <= _CONSTANT_MAX else Tensor(shapes.iota(s, n))


def _turned(roots: tuple[Any, Any], sign: int, s: Specialiser) -> tuple[Any, Any]:
    re, im = roots
    if sign > 0:
        return re, im
    return re, -im if isinstance(im, np.ndarray) else arithmetic.negative(s, im)


def _factor(n: int) -> int:
    """The largest factor of n that is transformed directly; 1 where there is none."""
    return next((k for k in range(min(_DIRECT, n - 1), 1, -1) if n % k == 0), 1)


def transform(s: Specialiser, x: tuple[Tensor, Tensor | None], sign: int) -> Pair:
    """sum over j of x[..., j] e^(sign 2 pi i j k / n), for all k; (x, None) is real."""
    re, im = x
    n, dtype = re.shape[-1], re.dtype
    if n == 1:
        return re, Tensor(s.scope.number(0, dtype, re.shape)) if im is None else im
    first = _factor(n)
    if n <= _DIRECT or (first == 1 and n <= _DIRECT_PRIME):
        k = np.arange(n)
        matrix = _turned(_roots(s, np.outer(k, k), n, dtype), sign, s)
        return _product(s, x, matrix, matrix_products.matmul)
    if first == 1:
        return _bluestein(s, x, sign)
    rest = n // first
    columns = tuple(v if v is None else _columns(s, v, first, rest) for v in x)
    k = np.arange(first)
    matrix = _turned(_roots(s, np.outer(k, k), first, dtype), sign, s)
    made = _product(s, columns, matrix, matrix_products.matmul)
    count = _count(s, rest, n)
    rows = count[:, None] if isinstance(count, np.ndarray) else shapes.expand_dims(s, count, 1)
    index = rows * k if isinstance(rows, np.ndarray) else arithmetic.multiply(s, rows, k)
    twiddles = _turned(_roots(s, index, n, dtype), sign, s)
    made = _product(s, made, twiddles, arithmetic.multiply)
    made = transform(s, tuple(shapes.swapaxes(s, v, -1, -2) for v in made), sign)  # type: ignore[arg-type]
    flat = [shapes.swapaxes(s, v, -1, -2) for v in made]
    out = [shapes.reshape(s, v, (*v.shape[:-2], n)) for v in flat]
    return out[0], out[1]


def _columns(s: Specialiser, v: Tensor, first: int, rest: int) -> Tensor:
    """[..., first * rest] as [..., rest, first]."""
    return shapes.swapaxes(s, shapes.reshape(s, v, (*v.shape[:-1], first, rest)), -1, -2)


def _bluestein(s: Specialiser, x: tuple[Tensor, Tensor | None], sign: int) -> Pair:
    """By j k = (j^2 + k^2 - (k - j)^2) / 2: a convolution with the roots of the squares."""
    re = x[0]
    n, dtype = re.shape[-1], re.dtype
    size = 1 << (2 * n - 2).bit_length()
    k = _count(s, n, size)
    squares = k * k if isinstance(k, np.ndarray) else arithmetic.multiply(s, k, k)
    chirp = _turned(_roots(s, squares, 2 * n, dtype), sign, s)
    start = _product(s, x, chirp, arithmetic.multiply)
    padded = tuple(_resized(s, v, size) for v in start)
    if isinstance(k, np.ndarray):
        kernel = np.zeros(size, complex)
        exact = _turned(_roots(s, squares, 2 * n, DType.F64), -sign, s)
        kernel[:n] = exact[0] + 1j * exact[1]
        kernel[size - n + 1 :] = kernel[n - 1 : 0 : -1]
        found = np.fft.fft(kernel)
        spectrum: tuple[Any, Any] = tuple(v.astype(dtype.numpy) for v in (found.real, found.imag))  # type: ignore[assignment]
    else:
        spectrum = transform(s, _wrapped(s, _turned(chirp, -1, s), size), -1)
    both = _product(s, transform(s, padded, -1), spectrum, arithmetic.multiply)  # type: ignore[arg-type]
    whole = transform(s, both, 1)
    scaled = [arithmetic.multiply(s, _resized(s, v, n), 1 / size) for v in whole]
    return _product(s, scaled, chirp, arithmetic.multiply)


def _wrapped(s: Specialiser, x: tuple[Any, Any], size: int) -> Pair:
    """x[0], x[1] ... x[n - 1], zeros, x[n - 1] ... x[1]."""
    out = []
    for v in x:
        n = v.shape[0]
        tail = s.call(np.flip, s.subscript(v, slice(1, None)))
        zeros = Tensor(s.scope.number(0, v.dtype, (size - 2 * n + 1,)))
        out.append(shapes.concatenate(s, [v, zeros, tail]))
    return out[0], out[1]


def _resized(s: Specialiser, x: Tensor, n: int) -> Tensor:
    """The last axis cut, or filled up with zeros."""
    size = x.shape[-1]
    if n <= size:
        return stores.plain(s.subscript(x, (Ellipsis, slice(0, n)))) if n < size else x
    zeros = Tensor(s.scope.number(0, x.dtype, (*x.shape[:-1], n - size)))
    return shapes.concatenate(s, [x, zeros], -1)


# NumPy's functions

_NORMS = (None, "backward", "ortho", "forward")


def _scale(s: Specialiser, n: int, norm: Any, inverse: bool) -> float:
    if norm not in _NORMS:
        raise s.error("DL119", f"`norm` is one of backward, ortho and forward, not {norm!r}")
    if norm == "ortho":
        return float(1 / np.sqrt(n))
    return 1 / n if (norm == "forward") is not inverse else 1.0


def _length(s: Specialiser, n: Any, usual: int) -> int:
    size = usual if n is None else operators.static_int(s, n, "the length of a transform")
    if size < 1:
        raise s.error("DL113", f"a transform of {size} numbers fails: ValueError")
    return size


def _operand(s: Specialiser, a: Any, axis: Any) -> tuple[tuple[Tensor, Tensor | None], int]:
    """The parts, (x, None) of a real array, the axis last; and which it was."""
    value = elementwise.array(s, a)
    if not complexes.is_operand(value) or complexes.shape_of(value) == ():
        raise s.error("DL119", f"a Fourier transform takes an array, not {describe(value)}")
    z = lift(s, value)
    at = shapes.axis_of(s, z.re, axis)
    moved = [shapes.moveaxis(s, stores.plain(v), at, -1) for v in (z.re, z.im)]
    return (moved[0], moved[1] if complexes.is_any(value) else None), at


def _finished(s: Specialiser, made: Sequence[Tensor], at: int, scale: float) -> list[Tensor]:
    out = []
    for v in made:
        scaled = v if scale == 1.0 else arithmetic.multiply(s, v, scale)
        out.append(shapes.moveaxis(s, scaled, -1, at))
    return out


def _complex(s: Specialiser, a: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Complex:
    (re, im), at = _operand(s, a, axis)
    size = _length(s, n, re.shape[-1])
    x = _resized(s, re, size), None if im is None else _resized(s, im, size)
    made = transform(s, x, 1 if inverse else -1)
    return new(s, _finished(s, made, at, _scale(s, size, norm, inverse)), ARRAY)


def fft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Complex:
    return _complex(s, a, n, axis, norm, False)


def ifft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Complex:
    return _complex(s, a, n, axis, norm, True)


def _no_halves(s: Specialiser, a: Any) -> None:
    value = s.array(a) if isinstance(a, tuple | list) else a
    if not complexes.is_any(value) and arithmetic.dtype_of(s, value)[0] is DType.F16:
        text = "NumPy has no transform of f16 from or to real numbers"
        raise s.error("DL116", text, "convert it first: x.astype(np.float32)")


def rfft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Complex:
    if complexes.is_any(a):
        raise complexes.not_for_complex(s, "`np.fft.rfft`")
    _no_halves(s, a)
    (re, _), at = _operand(s, a, axis)
    size = _length(s, n, re.shape[-1])
    made = transform(s, (_resized(s, re, size), None), -1)
    half = [_resized(s, v, size // 2 + 1) for v in made]
    return new(s, _finished(s, half, at, _scale(s, size, norm, False)), ARRAY)


def irfft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Tensor:
    """Of the first half of a spectrum, the other half of which mirrors it."""
    _no_halves(s, a)
    (re, im), at = _operand(s, a, axis)
    size = _length(s, n, 2 * (re.shape[-1] - 1))
    half = size // 2 + 1
    tail = (Ellipsis, slice((size - 1) // 2, 0, -1))
    re = _resized(s, re, half)
    whole = [shapes.concatenate(s, [re, s.subscript(re, tail)], -1)]
    if im is not None:
        im = _resized(s, im, half)
        # NumPy does not look at the imaginary parts of the ends, where the mirror has none.
        real = np.zeros(half, np.bool_)
        real[0] = True
        real[-1] = size % 2 == 0
        im = arithmetic.select(s, real, 0, im)
        mirror = arithmetic.negative(s, s.subscript(im, tail))
        whole.append(shapes.concatenate(s, [im, mirror], -1))
    made = transform(s, (whole[0], whole[1] if im is not None else None), 1)
    return _finished(s, made[:1], at, _scale(s, size, norm, True))[0]


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _swapped(s: Specialiser, norm: Any) -> str:
    _scale(s, 1, norm, False)
    return _SWAPPED[norm]


def hfft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Tensor:
    return irfft(s, s.call(np.conjugate, a), n, axis, _swapped(s, norm))


def ihfft(s: Specialiser, a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
    return s.call(np.conjugate, rfft(s, a, n, axis, _swapped(s, norm)))


def _axes(
    s: Specialiser, a: Any, sizes: Any, axes: Any, real: bool = False
) -> list[tuple[Any, int]]:
    """(length or None, axis) of a transform over several axes, as NumPy pairs them."""
    value = elementwise.array(s, a)
    shape = complexes.shape_of(value)
    part = value.re if type(value) is Complex else value
    if sizes is not None and not isinstance(sizes, tuple | list | np.ndarray):
        raise s.error(
            "DL119", f"a Fourier transform takes a length each axis, not {describe(sizes)}"
        )
    given = None if sizes is None else list(operators.static_ints(s, sizes, "a length"))
    if axes is None:
        places = range(-len(shape if given is None else given), 0)
    else:
        places = operators.static_ints(s, axes, "an axis")  # type: ignore[assignment]
    found = [shapes.axis_of(s, part, k) for k in places]
    lengths = [None] * len(found) if given is None else [None if n == -1 else n for n in given]
    if not found and real:
        raise s.error("DL113", "a Fourier transform fails: ValueError: at least one axis is needed")
    if len(set(found)) < len(found):
        raise s.error("DL119", "a Fourier transform goes along each axis once")
    if len(lengths) != len(found):
        raise s.error("DL113", "a Fourier transform fails: ValueError: as many sizes as axes")
    return list(zip(lengths, found, strict=True))


def fftn(spec: Specialiser, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    for n, axis in reversed(_axes(spec, a, s, axes)):
        a = fft(spec, a, n, axis, norm)
    return a


def ifftn(spec: Specialiser, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    for n, axis in reversed(_axes(spec, a, s, axes)):
        a = ifft(spec, a, n, axis, norm)
    return a


def rfftn(spec: Specialiser, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, (n, axis) = _axes(spec, a, s, axes, True)
    a = rfft(spec, a, n, axis, norm)
    for n, axis in reversed(others):
        a = fft(spec, a, n, axis, norm)
    return a


def irfftn(spec: Specialiser, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, last = _axes(spec, a, s, axes, True)
    for n, axis in others:
        a = ifft(spec, a, n, axis, norm)
    return irfft(spec, a, *last, norm)


def fft2(spec: Specialiser, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return fftn(spec, a, s, axes, norm)


def ifft2(spec: Specialiser, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return ifftn(spec, a, s, axes, norm)


def rfft2(spec: Specialiser, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return rfftn(spec, a, s, axes, norm)


def irfft2(spec: Specialiser, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return irfftn(spec, a, s, axes, norm)


def _shifted(s: Specialiser, x: Any, axes: Any, back: bool) -> Tensor:
    value = arithmetic.tensor(s, elementwise.array(s, x))
    if not complexes.shape_of(value):
        raise s.error("DL115", "np.fft.fftshift takes an array with an axis")
    found = shapes.axes_of(s, value, axes)
    halves = tuple(value.shape[k] // 2 for k in found)
    return shapes.roll(s, value, tuple(-n for n in halves) if back else halves, found)


def fftshift(s: Specialiser, x: Any, axes: Any = None) -> Tensor:
    return _shifted(s, x, axes, False)


def ifftshift(s: Specialiser, x: Any, axes: Any = None) -> Tensor:
    return _shifted(s, x, axes, True)


def _count_of(s: Specialiser, n: Any) -> int:
    size = operators.static_int(s, n, "the length of a transform")
    if size < 1:
        raise s.error("DL119", f"a transform has one element or more, not {size}")
    return size


def fftfreq(s: Specialiser, n: Any, d: Any = 1.0) -> Tensor:
    size = _count_of(s, n)
    places = np.fft.fftfreq(size, 1 / size).round().astype(np.int64)
    return _frequencies(s, places, size, d)


def rfftfreq(s: Specialiser, n: Any, d: Any = 1.0) -> Tensor:
    size = _count_of(s, n)
    return _frequencies(s, np.arange(size // 2 + 1), size, d)


def _frequencies(s: Specialiser, places: Any, size: int, d: Any) -> Tensor:
    """As NumPy divides: numbers first, with their own types and errors."""
    unit = operators.binary(s, "/", 1.0, operators.binary(s, "*", size, d))
    return s.call(np.multiply, places, unit)  # type: ignore[no-any-return]


NAMES = (
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2"),
    *("fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift", "fftfreq", "rfftfreq"),
)
