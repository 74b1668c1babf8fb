"""Rarely used functions on extreme numbers give what NumPy gives, or are refused.

Each was once a silent difference. A case is a body of a function of `a`, `b`, `c` and the arguments
of its calls, which are of the same types each time.
"""

from __future__ import annotations

import pytest
from support.small_programs import is_as_in_python, is_refused

EQUALS: dict[str, tuple[str, ...]] = {
    # From NumPy 2.5 on an error.
    "ints that do not fit a choice": (
        "try:\n    y = np.where(a > 3, a, -2)\nexcept OverflowError:\n    y = a\nreturn y",
        "np.array([3, 6, 1], np.uint8)",
    ),
    "an unsigned place that wraps around": (
        "return np.take(a, b)",
        "np.arange(3.0), np.uint64(2**64 - 1)",
    ),
    "bins that fall, closed on the right": (
        "return np.digitize(a, [2, 1, 0], right=True), np.digitize(a, [2, 1, 0])",
        "np.array([-1.0, 0, 0.5, 1, 1.5, 2, 3])",
    ),
    "running logic gives bools": (
        "return np.logical_and.accumulate(a), np.logical_xor.accumulate(a)",
        "np.array([2.0, 0.0, 3.0])",
    ),
    "running hypotenuses of integers are floats": (
        "return np.hypot.accumulate(a), np.maximum.accumulate(a)",
        "np.array([3, 4, 0])",
    ),
    "reductions by any associative function": (
        "return np.bitwise_or.reduce(a, 1), np.gcd.reduce(a), np.logical_xor.reduce(a)",
        "np.array([[12, 4, 16], [8, 2, 0]], np.uint8)",
    ),
    "parts of an axis": (
        "return np.add.reduceat(a, [0, 2, 1]), np.maximum.reduceat(a, [1]),"
        " np.logical_and.reduceat(a, [0, 2])",
        "np.array([3, 4, 0, 7], np.int8)",
    ),
    "a reduction of one element begins with the identity, a part does not": (
        "return np.gcd.reduce(a), np.hypot.reduce(a), np.bitwise_or.reduce(a > 0),"
        " np.gcd.reduceat(a[[0, 0]], [0, 1]), np.hypot.reduceat(a[[0, 0]], [0, 1])",
        "np.array([-3], np.int8)",
    ),
    "weights that sum to zero": (
        "return np.average(a, weights=b)",
        "np.array([1, 2]), np.array([0.5, 1], np.float32)",
        "np.array([1, 2]), np.array([0.5, -0.5], np.float32)",
    ),
    "weights of one axis that sum to zero": (
        "return np.average(a, axis=0, weights=b, returned=True)",
        "np.eye(2), np.array([1, 2], np.int8)",
        "np.eye(2), np.array([2, -2], np.int8)",
    ),
    "no numbers have no error: negative powers": (
        "return b ** a, a ** b, np.power(b, a)",
        "-2, np.zeros((0, 3), np.int64)",
    ),
    "no numbers have no error: places and means": (
        "return np.nanargmax(a, 1), np.average(a, 1, weights=a), np.unravel_index(b, (3, 4))",
        "np.zeros((0, 3)), np.zeros(0, np.int64)",
    ),
    "the order of axes by its name": ("return np.transpose(a, axes=(1, 0))", "np.ones((2, 3))"),
    "steps of zero beside others": (
        "return np.linspace(a, 4), np.linspace(a, b, 5), np.linspace(a[1], b, 3, retstep=True)",
        "np.array([4, 1], np.float32), np.float32(1 + 1e-45)",
        "np.array([4, 0], np.float32), np.float32(1e-45)",
    ),
    "an imaginary part of rank 0": ("return np.imag(a), np.imag(b)", "np.array(3.0), np.int8(2)"),
    "more bins than a range has numbers": (
        "return np.histogram(a, bins=4, range=b)",
        "np.arange(6.0), (1e300, 1e300)",
    ),
    "a bool as a start of Python's": (
        "return [1, 2, 1].index(a, True), list(enumerate([a], True)), [a, 3, 4][::True]",
        "1",
    ),
    "weights that are bools": (
        "return np.average(a, weights=b)",
        "np.array([1.0, 2.5], np.float16), np.array([True, False])",
    ),
    "places of numbers that are all NaN": (
        "return np.nanargmax(a)",
        "np.array([1.0, np.nan])",
        "np.array([np.nan, np.nan])",
    ),
    "freedom that is none": (
        "return np.nanstd(a, 0, ddof=1), np.nanvar(a, ddof=4)",
        "np.array([[1.0, np.nan], [np.nan, np.nan]])",
    ),
    "covariances of too few observations": (
        "return np.cov(a, ddof=5)",
        "np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 7.0]])",
    ),
    "covariance of a matrix of one row, by columns": (
        "return np.cov(a, rowvar=False, ddof=0)",
        "np.array([[1.0, 2.0, 4.0]])",
    ),
    "ldexp by an int that no C int holds": (
        "return np.ldexp(a, b)",
        "np.array([-1, 2]), 3",
        "np.array([-1, 2]), 2**31",
    ),
    "places in a shape": (
        "return np.unravel_index(a, (2, 3))",
        "5",
        "6",
        "-1",
    ),
    "flat places of two": (
        "return np.ravel_multi_index((a, b), (2, 3))",
        "np.array([1, 0]), np.array([2, 0])",
        "np.array([1, 0]), np.array([3, 0])",
    ),
    "flat places of an array": (
        "return np.ravel_multi_index(a, (2, 3))",
        "np.array([[1, 0], [2, 0]])",
    ),
    "derivative of a constant polynomial": (
        "return np.polyder(a), np.polyint(a)",
        "np.array([3])",
    ),
    "slopes beside an infinity": (
        "return np.gradient(a), np.gradient(a, 0.5, edge_order=2)",
        "np.array([1.0, np.inf, 3.0, 5.0, 2.0])",
    ),
    "slopes on an even grid that is given": (
        "return np.gradient(a, b)",
        "np.array([1.0, np.inf, 3, 5]), np.array([5.0, 4, 3, 2])",
        "np.array([1.0, 7, 3, 5]), np.array([5.0, 4, 1, 2])",
    ),
    "slopes on a grid of narrow integers": (
        "return np.gradient(a, b)",
        "np.array([1.0, 4, 3, 5]), np.array([5, 3, 2, 1], np.uint8)",
    ),
    "cube roots": (
        "return np.cbrt(a), np.floor(np.cbrt(np.arange(30.0) ** 3))",
        "np.array([1, 2**62, -(2**63)])",
        "np.array([64, 27, 0])",
    ),
    "log of a sum of exponentials of unsigned integers": (
        "return np.logaddexp(a, b)",
        "np.array([5, 7], np.uint32), np.array([7, 5], np.uint32)",
    ),
    "hypotenuse of an infinity and NaN": (
        "return np.hypot(a, b), math.hypot(a, b)",
        "np.inf, np.nan",
        "3.0, 4.0",
    ),
    "interpolation between infinities": (
        "return np.interp(a, [0, 1, 2], b)",
        "np.array([0.0, 1, 2, 0.5, 1.5, -1, 3]), np.array([-np.inf, -np.inf, 3.0])",
        "np.array([0.0, 1, 2, 0.5, 1.5, -1, 3]), np.array([2.0, np.inf, 3.0])",
    ),
    "a first value that does not fit": (
        "return np.max(a, initial=b)",
        "np.array([1, 2], np.int8), 30",
        "np.array([1, 2], np.int8), 300",
    ),
    "a border that does not fit": (
        "return np.pad(a, 1, constant_values=b)",
        "np.array([1, 2], np.int8), np.int64(30)",
        "np.array([1, 2], np.int8), np.int64(300)",
    ),
    "a border that is NaN": (
        "return np.pad(a, 1, constant_values=(b, 7))",
        "np.array([1, 2]), 2.5",
        "np.array([1, 2]), np.nan",
    ),
    "a list that is put into integers": (
        "np.put(a, [0, -1], [b, c])\nreturn a",
        "np.array([2, 0, 6], np.uint32), 3.5, 1",
        "np.array([2, 0, 6], np.uint32), 3.5, -1",
    ),
    "a list that is put, by its digits": (
        "np.put(a, [0, -1], [b, c])\nreturn a",
        "np.array([2, 0, 6]), 2**53 + 1, 2.5",
    ),
    "a list that is put where a mask holds": (
        "np.putmask(a, a > 0, [b, c])\nreturn a",
        "np.array([2, 0, 6], np.int8), 5, 2.5",
        "np.array([2, 0, 6], np.int8), 5, np.nan",
    ),
    "a list that is placed": (
        "np.place(a, a > 0, [b, c])\nreturn a",
        "np.array([2, 0, 6], np.int16), 7, 1.5",
        "np.array([2, 0, 6], np.int16), 7, 1e300",
    ),
    "a complex number of Python's by zero": (
        "return a / b",
        "1 + 2j, 2.0",
        "1 + 2j, 0.0",
    ),
    "zero to a complex power": (
        "return a**b",
        "0j, 1 + 1j",
        "2j, 1 + 1j",
        "0j, -1 + 0j",
    ),
    "a complex power that overflows": (
        "return a**b",
        "2j, 7.5",
        "complex(1e200, 1e200), 7.5",
    ),
    "a complex number of Python's and an np.float64": (
        "return a + b, b + a, a * b, a == b, type(a / b) is complex",
        "1 + 2j, np.float64(3.0)",
    ),
    "a complex number of Python's in an array": (
        "return np.array([a, b]), np.array([1, a])",
        "1 + 2j, np.float32(3.0)",
    ),
    "powers of complex64 keep their type": (
        "return a**b, a ** c",
        "np.array([2 - 1j], np.complex64), np.array([3], np.int16), np.array([0.5], np.float32)",
    ),
    "a singular matrix": (
        "return np.linalg.inv(a), np.linalg.solve(a, b)",
        "np.eye(2), np.ones(2)",
        "np.zeros((2, 2)), np.ones(2)",
        "np.full((2, 2), np.nan), np.ones(2)",
    ),
    "a singular matrix in a loop": (
        "for k in range(3):\n    b = np.linalg.solve(a + k * 0, b)\nreturn b",
        "np.eye(2), np.ones(2)",
        "np.zeros((2, 2)), np.ones(2)",
    ),
    "a matrix that is not positive definite": (
        "return np.linalg.cholesky(a)",
        "np.eye(2)",
        "-np.eye(2)",
        "np.array([[1.0, np.nan], [np.nan, 4.0]])",
    ),
    "a number of Python's that is clipped is an array first": (
        "return np.clip(a, b, 5), np.clip(2.5, np.float32(a), 3), np.clip(b, 1, a)",
        "1, np.uint8(1)",
        "7, np.uint8(3)",
    ),
    "an array of rank 0 that is made contiguous": ("return np.ascontiguousarray(a)", "3"),
    "a choice that is not there": (
        "return np.choose(a, [1, 2.5]), np.choose(a, [1, 2], mode='clip')",
        "np.array([0, 1])",
        "np.array([0, 2])",
    ),
    "a number that is flipped": ("return np.flip(a)", "np.float32(2.0)"),
    "quantiles out of range": (
        "return np.quantile(a, b), np.percentile(a, b * 100)",
        "np.array([1.0, 2.0]), 0.5",
        "np.array([1.0, 2.0]), 1.5",
        "np.array([1.0, 2.0]), np.nan",
    ),
    "quantiles of integers by an int are integers": (
        "return np.quantile(a, 0), np.quantile(a, [0, 1]), np.nanquantile(a, 1, keepdims=True)",
        "np.array([1, 5, 2], np.int16)",
    ),
    "quantiles by an int are elements": (
        "return np.quantile(a, (0, 1)), np.quantile(a, 0), np.nanquantile(a, (0, 1)),"
        " np.percentile(a, 100)",
        "np.array([1, 2, 0.5], np.float32)",
        "np.array([1, np.nan, 0.5], np.float32)",
        "np.array([1, np.inf, 0.5], np.float32)",
    ),
    "the place of a quantile among many halves": (
        "return np.quantile(a, 0.37), np.percentile(a, 37), np.quantile(a, 0.37, method='lower')",
        "np.arange(3000).astype(np.float16)",
    ),
    "a squeezed scalar": ("return np.squeeze(a), np.squeeze(b)", "np.float32(2.0), np.array(2)"),
    "a variance in a narrow type": (
        "return np.var(a, dtype=np.float32), np.std(a, dtype=np.float32)",
        "np.array([1e8, 1e8 + 1, 1e8 + 2])",
    ),
    "a transposed scalar": (
        "return np.transpose(a), np.transpose(b)",
        "np.float32(2.0), np.array(2)",
    ),
    "a geometric sequence from an int": ("return np.geomspace(a, b, 3)", "3, np.float32(0.25)"),
    "a geometric sequence from an infinity": (
        "return np.geomspace(a, 2, 4), np.geomspace(a, b, 1), np.geomspace(a, b, 3, False)",
        "np.inf, 5.0",
        "7.0, 5.0",
    ),
    "inverse hyperbolic functions of large halves": (
        "return np.arcsinh(a), np.arccosh(a), np.arctanh(1 / a)",
        "np.array([60000, 3], np.float16)",
    ),
    "closeness by a negative tolerance": (
        "return np.isclose(a, b, c), np.isclose(a, b)",
        "np.array([-0.5, np.inf, 1.0]), np.array([-0.5, np.inf, 2.0]), -8.0",
    ),
    "rows to choose from": (
        "return np.choose(a, b)",
        "np.array([0, 1]), np.array([[1.0, 2.0], [3.0, 4.0]])",
    ),
    "quantiles of f32 by an np.float64": (
        "return np.quantile(a, b), np.quantile(a, 0.3)",
        "np.array([1, 2], np.float32), np.float64(0.3)",
    ),
    "numbers for NaN, in place": (
        "np.nan_to_num(a, copy=False)\nreturn a",
        "np.array([1.0, np.nan, np.inf])",
    ),
    "a difference of polynomials of unsigned numbers": (
        "return np.polysub(a, b)",
        "np.array([1, 2]), np.array([3], np.uint8)",
    ),
    "np.divmod by zero": ("return np.divmod(a, b)", "2.0, 0.0", "7.5, 2.0"),
    "the least integer's inverse hyperbolic sine": (
        "return np.arcsinh(a)",
        "np.array([-(2**63), 3])",
    ),
    "a number of Python's has a type of its own": (
        "return np.tensordot(a, b, 0), np.isin(a, b), np.gcd(a, 2)",
        "3, np.float32(3.0)",
    ),
    "places along axes": (
        "return c[np.ix_(a, b)]",
        "np.array([1, 0]), np.array([0]), np.eye(2)",
    ),
    "a rest of minus zero": ("return np.fmod(a, 2.0), 1 / np.fmod(a, 2.0)", "np.array([-0.0])"),
    "complex numbers around others": (
        "return np.diff(a, prepend=1.5, append=2), np.ediff1d(a, to_begin=[1, 2j]),"
        " np.pad(a, 1, constant_values=1.5), np.insert(a, 0, 7), np.append(a, [1.5]),"
        " np.hstack([a, 2.0]), np.interp(b, [0, 1, 2], a, left=5, right=-1)",
        "np.array([1 + 2j, 3, 1j], np.complex64), np.array([-1, 0.5, 9])",
    ),
    "where sums of complex numbers begin": (
        "return a.sum(initial=2), np.sum(a, initial=b), a.sum(where=[True, False], initial=1)",
        "np.array([1 + 2j, 3]), 2j",
    ),
    "weights of complex numbers": (
        "return np.average(a, returned=True), np.average(a, weights=b, returned=True)",
        "np.array([1 + 2j, 3]), np.array([1, 3], np.int8)",
    ),
    "variances of complex numbers by their degrees of freedom": (
        "return np.var(a, ddof=1), np.std(a, 0, ddof=1), np.var(a, ddof=7), a.var(ddof=2)",
        "np.array([1 + 2j, 3, 1j])",
    ),
    "complex numbers that a mask compresses": (
        "return np.compress(b, a), np.extract(b, a)",
        "np.array([1 + 2j, 3, 1j]), np.array([True, False, True])",
    ),
    "numbers of Python's in products with complex ones": (
        "return np.outer(a, 2.0), a.dot(2), np.kron(a, 2), np.multiply.outer(a, 2.0)",
        "np.array([1 + 2j, 3], np.complex64)",
    ),
    "a choice between complex numbers and one of Python's": (
        "return np.where(c, a, b), np.where(c, 1j, a), np.select([c], [a], b)",
        "np.array([1 + 2j, 3], np.complex64), 2j, np.array([True, False])",
    ),
    "a sign of a complex array of rank 0": ("return +a, -a", "np.array(1 + 2j)"),
    "degrees of freedom of integers": (
        "return np.nanvar(a, ddof=7), np.nanstd(a, ddof=3), np.nanvar(b, ddof=7)",
        "np.array([1, 5, 2]), np.array([1.0, np.nan])",
    ),
    "choices that are numbers of Python's": (
        "return np.choose(a, [1, 2.5, b]), np.choose(a, [300, b.astype(np.uint8), -1])",
        "np.array([0, 1, 2]), np.array([7], np.float32)",
    ),
    "what is selected otherwise, of another sign": (
        "return np.select([a > 1], [a], default=b)",
        "np.array([1, 2], np.uint64), -1",
    ),
    "an int by powers of two": (
        "return np.ldexp(5, a), np.ldexp(b, a[0]), np.ldexp(b, 2), np.ldexp(5.0, a)",
        "np.array([1, 2], np.int8), 3",
    ),
    "a number of Python's at places": (
        "np.add.at(a, [0, 0], 300)\nnp.maximum.at(b, slice(None), 300)\nreturn a, b",
        "np.array([4, 1], np.int8), np.array([4, 1], np.int8)",
    ),
    "arrays of rank 0": (
        "return np.tile(a, ()), np.resize(b, ()), np.cross(b[:2], b[1:])",
        "2, np.array([1, 2, 3])",
    ),
    "floats counted in whole numbers": (
        "return np.arange(1.0, 2.5, 0.3, dtype=int) + a, np.arange(-3, -7, 2, dtype=np.uint8) * a,"
        " np.arange(2**24, 2**24 + 3, dtype=np.float32) + a",
        "0",
    ),
    "a step between one point": ("return np.linspace(1.5, a, 1, retstep=True)", "np.ones(2)"),
    "numbers around integers": (
        "return np.pad(a, 1, constant_values=300), np.pad(a, 1, constant_values=(2.5, -1))",
        "np.array([1, 2], np.uint8)",
    ),
    "frequencies by a narrow spacing": (
        "return np.fft.fftfreq(4, a), np.fft.rfftfreq(4, b)",
        "np.float16(1.539), np.uint8(100)",
    ),
    "frequencies by no spacing": ("return np.fft.fftfreq(4, a)", "2.0", "0.0"),
    "a product with a number of Python's": (
        "return np.einsum('i,', a, 2), np.einsum('i,', a, b)",
        "np.array([1, 2], np.float32), 0.5",
    ),
    "equal places to interpolate between": (
        "return np.interp(a, b, c), np.interp(1, b, c)",
        "np.array([0.0, 0.5, 1]), np.array([0, 0, 1, 1]), np.array([4.0, 5, 6, 7])",
    ),
    "weights along several axes": (
        "return np.average(a, axis=(2, 0), weights=b), np.average(a, axis=1, weights=[1, 2.0, 3])",
        "np.arange(12.0).reshape(2, 3, 2), np.array([[1.0, 2], [3, 4]])",
    ),
    "quantiles by a narrow number": (
        "return np.nanquantile(a, b), np.nanpercentile(a, b)",
        "np.array([1, 5, 2], np.float32), np.float32(0.3)",
    ),
    "an int of Python's to draw": (
        "r = np.random.default_rng(a)\n"
        "return r.integers(9, dtype=int), r.integers(9), r.integers(9, dtype=int, size=2)",
        "3",
    ),
    "division by a complex zero, caught": (
        "try:\n    return a / b\nexcept ZeroDivisionError:\n    return 1j",
        "1 + 2j, 2.0",
        "1 + 2j, 0.0",
    ),
    "a bool of the path": (
        "t = a < 1\nreturn (a < 0.5 <= 0.5) is True, type(t and True) is bool, (t or True) is True",
        "np.float64(-1.5)",
    ),
    "a bool times a large power": ("return np.ldexp([a, True], 2**31), np.ldexp(a, 3)", "True"),
    "a large power of a bool": ("return np.ldexp([True, False], a)", "2**31"),
}
#: Refused, when it is compiled or where its numbers ask for it.
REFUSALS: dict[str, tuple[str, ...]] = {
    "a product of polynomials with leading zeros": (
        "return np.polymul(a, b)",
        "np.array([0, -6, 3]), np.array([1.0, 2.0])",
    ),
    "a polynomial without coefficients": (
        "return np.polyval(a, b)",
        "np.zeros(0), 2.0",
    ),
    "a float of Python's as a narrow integer": (
        "return np.multiply(a, b, dtype=np.int8)",
        "np.array([1, 2]), 3.0",
    ),
    "a first value that is a float among integers": (
        "return np.max(a, initial=b)",
        "np.array([1, 2], np.int8), np.float64(np.nan)",
    ),
    "an int of thousands of digits": ("return a**b", "7, 20_000"),
    "parts that begin beyond an axis": ("return np.add.reduceat(a, [0, 4])", "np.arange(4)"),
    "places along an axis by a mask": ("return np.ix_(a)", "np.array([True, False])"),
    "a variance in integers": ("return np.var(a, dtype=np.int64)", "np.arange(3)"),
    "a join in a type of another kind": ("return np.stack([a, a], dtype=bool)", "np.arange(3)"),
    "one end of np.clip": ("return np.clip(a, 1)", "np.arange(3)"),
    "bins that fall when it runs": ("return np.digitize(1.5, a)", "np.array([2, 1, 0])"),
    "bins that neither grow nor fall": ("return np.digitize(a, [3, 1, 2])", "1.5"),
    "a geometric sequence below zero": ("return np.geomspace(a, -100.0, 3)", "-1.0"),
    "the shape of complex numbers that a mask picks": (
        "return a[np.abs(a) > 1].shape",
        "np.array([1j, 2])",
    ),
    "a bool as an axis": ("return np.sum(a, True)", "np.eye(2)"),
    "a bool as a size": ("return np.zeros((2, True)) + a", "1.0"),
    "unsigned numbers down to a lower one": (
        "return np.arange(a, b)",
        "np.uint8(5), np.uint8(2)",
    ),
    "a row that would get an axis": ("a[-1] += a[:, :1]\nreturn a", "np.ones((1, 3)) * 1j"),
    "blocks of several depths": ("return np.block([[1, 2], a])", "np.ones(2)"),
    "an ellipsis without a place": ("return np.einsum('i...j->j', a)", "np.ones((2, 2, 2))"),
    "two places for two results": (
        "return np.divmod(a, 2, out=(np.zeros(2), np.zeros(2)))",
        "np.ones(2)",
    ),
    "a choice of rank 0": (
        "return np.random.default_rng(a).choice(5, size=(), replace=False)",
        "3",
    ),
    "another order of memory": ("return np.ravel(a.T, 'K')", "np.ones((2, 3))"),
    "an order that is none": ("return np.ravel(a, 2)", "np.eye(2)"),
    "a diagonal of two sizes": ("return np.einsum('ii', a)", "np.ones((1, 3))"),
    "two places for one result": ("return np.sqrt(a, a, out=a)", "np.ones(2)"),
    "a complex number as a type": ("return np.zeros(3, 1j) + a", "1.0"),
    "the size of two numbers": ("return abs(1j * a, 2)", "1.0"),
    "a parameter of another function": ("return np.asarray([a, a], ndmin=2)", "1.0"),
    "weights without an axis": ("return np.average(a, weights=b)", "np.eye(2), np.ones(2)"),
    "weights of another length": (
        "return np.average(a, 0, weights=b)",
        "np.eye(2), np.ones(1)",
    ),
    "a place for a sum that is too large": ("return np.sum(a, 0, out=b)", "np.eye(2), np.eye(2)"),
    "a place for a sort": ("return np.sort(a, out=b)", "np.ones(2), np.ones(2)"),
    "logic in floats": ("return np.logical_and.reduce(a, dtype=np.float32)", "np.ones(2)"),
    "an exponential in integers": ("return np.exp(a, dtype=np.int64)", "np.arange(3)"),
    "a size in complex numbers": ("return np.abs(a, dtype=complex)", "np.arange(3) * 1j"),
    "a sum of complex numbers in integers": ("return a.sum(0, np.uint8)", "np.arange(3) * 1j"),
    "a variance in complex numbers": ("return np.var(a, dtype=complex)", "np.arange(3)"),
    "the first product of complex numbers": ("return np.prod(a, initial=2)", "np.ones(2) * 1j"),
    "a complex number among real ones": ("return np.insert(a, 0, b)", "np.ones(2), 1j"),
    "a method of arrays alone": ("return a.dot(2)", "np.float32(2)"),
    "no end of bools": ("return np.clip(a, None, None)", "np.array([True])"),
    "conditions of another shape": (
        "return np.piecewise(a, b, [1, 2])",
        "np.ones((2, 3)), np.ones(4, bool)",
    ),
    "an int of NumPy's as a power": ("return math.ldexp(1.5, a)", "np.int64(2)"),
    "an axis that is named twice": ("return np.expand_dims(a, (0, 0))", "np.ones(2)"),
    "a norm along one axis twice": ("return np.linalg.norm(a, 1, (0, 0))", "np.ones(2)"),
    "a turn within an axis": ("return np.rot90(a, axes=(0, 0))", "np.eye(2)"),
    "a transform along one axis twice": ("return np.fft.rfftn(a, axes=(0, 0))", "np.ones(4)"),
    "transforms of a number": ("return np.fft.fftshift(a)", "1.0"),
    "a matrix that is none": ("return np.matvec(a, a)", "np.ones(3)"),
    "vectors of two lengths": ("return np.vecdot(a, b, axis=0)", "np.eye(3), np.ones((1, 3))"),
    "vectors of two elements": ("return np.linalg.cross(a, a)", "np.ones(2)"),
    "matrices as vectors": ("return np.linalg.outer(a, a)", "np.eye(2)"),
    "a matrix as a sequence": ("return np.convolve(a, [1, 2])", "np.eye(2)"),
    "a power that is a float": ("return np.linalg.matrix_power(a, 2.0)", "np.eye(2)"),
    "the power of a matrix that is not square": (
        "return np.linalg.matrix_power(a, 1)",
        "np.ones((2, 3))",
    ),
    "rows of a vector": ("return np.vsplit(a, [1])", "np.ones(3)"),
    "bins without number": ("return np.histogram(a, 0)", "np.ones(3)"),
    "a place beyond the end": ("return np.partition(a, 9)", "np.ones(3)"),
    "several bases": ("return np.logspace(a, 2, 3, base=[2, 3])", "1.0"),
    "a copy that is not to be": ("return np.array([a, a], copy=False)", "np.ones(2)"),
    "an order that NumPy has not": ("return np.resize(a, (2, 2), order='C')", "np.ones(3)"),
    "a product whose class its path decides": (
        "return np.einsum('i,i', a, a, optimize=True)",
        "np.ones(3)",
    ),
    "quantiles of numbers that are all NaN": (
        "return np.nanquantile(a, [0.5], 1)",
        "np.array([[np.nan]], np.float32)",
    ),
    "more counts than are asked for": (
        "return np.bincount(a, minlength=2)",
        "np.array([0, 5])",
    ),
    "a bool of NumPy's without its fraction": ("return math.trunc(a)", "np.bool_(True)"),
    "more places than a function has": ("return np.count_nonzero(a, 0, True)", "np.eye(2)"),
    "a place of a keyword": ("return np.vstack(a, None)", "np.eye(2)"),
    "a call without what it needs": ("return np.reshape(a)", "1.0"),
    "one choice of two": ("return np.where(a, None)", "np.ones(2)"),
    "lists without attributes": ("return np.unstack([a, a])", "np.ones(2)"),
    "places that are no array": ("return np.take_along_axis(a, [0, 1])", "np.ones(2)"),
    "the triangle of a stack": ("return np.tril_indices_from(a)", "np.ones((2, 2, 2))"),
    "a negative width around a number": ("return np.pad(a, -2)", "np.int64(1)"),
    "a broken width around a number": ("return np.pad(1, a)", "0.5"),
    "no width around a number": ("return np.pad(a, np.zeros(0, int))", "1.0"),
    "a keyword of another mode": ("return np.pad(a, 1, reflect_type='odd')", "np.ones(2)"),
    "a number around an edge": ("return np.pad(a, 1, 'edge', constant_values=0)", "np.ones(2)"),
    "blocks in a tuple": ("return np.block((a, a))", "np.ones(2)"),
    "a negative axis of einsum": ("return np.einsum(a, (-1, 2))", "np.eye(2)"),
    "slopes along an axis twice": ("return np.gradient(a, axis=(0, 0))", "np.eye(2)"),
    "keys without an axis": ("return np.lexsort(a, axis=None)", "np.eye(2)"),
    "keys of two lengths": ("return np.lexsort([a, a[:1]])", "np.ones(2)"),
    "a sort without a name": ("return np.sort(a, 0, 0)", "np.ones(2)"),
    "an order by two rules": ("return np.argsort(a, kind='heapsort', stable=True)", "np.ones(2)"),
    "an array without a shape": ("return a.reshape()", "np.int8(6)"),
    "axes in a list": ("return a.sum([0, 1])", "np.eye(2)"),
    "axes of a mean in an array": ("return np.mean(a, np.array([0]))", "np.eye(2)"),
    "axes to squeeze in a list": ("return np.squeeze(a, [0])", "np.ones((1, 2))"),
    "a choice with more axes": ("return np.sum(a, where=b)", "np.int8(6), np.ones(1, bool)"),
    "a partition without a name": ("return a.argpartition(0, 0, 0)", "np.ones(2)"),
    "a Hermitian matrix with two rows of three": (
        "return np.linalg.matrix_rank(a, 0, True)",
        "np.ones((2, 3))",
    ),
    "the inverse of no axes": ("return np.linalg.tensorinv(a, 0)", "np.eye(2)"),
    "the inverse of a number": ("return np.linalg.tensorinv(a)", "1.0"),
    "an integer of one type or another": (
        "return np.floor(max((b for b in [2, a])))",
        "np.int32(0)",
    ),
    "a number that is left as it is": ("return np.positive(max([2, a]))", "np.float32(0.5)"),
    "a stack of one type or another": ("return np.stack([max([2, a]), a])", "np.int32(0)"),
    "a sum into as many rows as hold": ("v = a[b]\nreturn np.add(v, 1, out=v)", "np.eye(2), True"),
    "a sum of no operands": ("return np.add(out=a)", "np.ones(2)"),
    "unsigned places to write to": (
        "np.put(a, b, 7.0)\nreturn a",
        "np.ones(3), np.array([1], np.uint64)",
    ),
    "a search for nothing": ("return np.searchsorted(a, None)", "np.zeros(0)"),
    "a range of a float": ("return [a for _ in range(b)]", "1.0, 2.0"),
    "powers of a float": ("return np.vander(a, b)", "np.ones(2), 2.0"),
    "the average of no columns": ("return np.average(a, -1)", "np.ones((0, 3))"),
}


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", EQUALS)
def test_it_is_numpys(name: str, backend: str) -> None:
    is_as_in_python(EQUALS[name], backend)


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name: str) -> None:
    is_refused(REFUSALS[name])
