"""Copies, element types and arguments of NumPy's functions are NumPy's, or are refused.

Each was once a silent difference, or a fault of the compiler. A case is as in
`test_numpy_corners`.
"""

from __future__ import annotations

import pytest
from support.small_programs import is_as_in_python, is_refused

EQUALS: dict[str, tuple[str, ...]] = {
    "einsum multiplies narrow integers in the type of all": (
        "return np.einsum('i,i,i->', a, a, b), np.einsum('i,i', a, b)",
        "np.array([200, 3, 7], np.uint8), np.array([1.5, 2, -1])",
    ),
    "einsum counts bools in the type of all": (
        "return np.einsum('i,j->', a, b)",
        "np.array([True, False, True]), np.array([1.5, 2, -1])",
    ),
    "einsum sums narrow integers in the type of all": (
        "return np.einsum('i,j->j', a, b)",
        "np.array([200, 3, 7, 200], np.uint8), np.array([1, 2, 0])",
    ),
    "an array without axes copies a row": (
        "v = a[np.array(1)]\nv += 1\nw = a[:, np.array(1)]\nw += 1\nreturn a, v, w",
        "np.arange(6.0).reshape(2, 3)",
        "np.arange(6.0).reshape(2, 3) * 1j",
    ),
    "an array without axes copies an array without axes": (
        "v = a[np.array(1), ...]\nv += 1\nreturn a, v",
        "np.arange(3.0)",
    ),
    "an array without axes copies beside a number of the program": (
        "v = a[np.array(1), b]\nv += 1\nreturn a, v",
        "np.arange(24.0).reshape(2, 3, 4), 2",
    ),
    "a row that an array without axes names is written to": (
        "a[np.array(1)] += b\na[np.array(0)] = b\na[np.array(1), 2] *= 3\nreturn a",
        "np.arange(6.0).reshape(2, 3), np.ones(3)",
        "np.arange(6.0).reshape(2, 3) * 1j, np.ones(3)",
    ),
    "np.asarray copies where it is asked to": (
        "y = np.asarray(a, copy=True)\ny[0] = 9\n"
        "w = np.asanyarray(a, copy=True)\nw[1] = 9\nreturn a, y, w",
        "np.ones(3)",
        "np.ones(3) * 1j",
    ),
    "np.asarray gives the array where it need not be copied": (
        "y = np.asarray(a, copy=None)\ny[0] = 9\nw = np.asanyarray(a, None, 'C')\n"
        "w[1] = 9\nv = np.asarray(a, copy=False)\nv[2] = 7\nreturn a, y",
        "np.ones(3)",
    ),
    "np.asarray in row-major order copies another": (
        "y = np.asarray(a[:, :2], order='C')\ny[0, 0] = 9\n"
        "w = np.asanyarray(a.T, None, 'C')\nw[0, 0] = 8\n"
        "v = np.asarray(a[:, ::2], order='C')\nv[0, 0] = 7\nreturn a, y, w, v",
        "np.ones((2, 3))",
    ),
    "np.asarray in any order is the array itself": (
        "y = np.asarray(a.T, order='A')\ny[0, 0] = 9\nw = np.asarray(a.T, order='K')\n"
        "w[1, 1] = 8\nreturn a",
        "np.ones((2, 3))",
    ),
    "a complex array of a real one is a copy": (
        "y = np.asarray(a, complex)\nw = np.ascontiguousarray(a, dtype=complex)\n"
        "a[0] = 99\ny[1] = 1j\nreturn a, y, w",
        "np.array([1.5, 2, -1])",
    ),
    "a complex array that need not be converted": (
        "y = a.astype(a.dtype, copy=False)\ny[0] = 5\nw = np.complex128(a)\nw[1] = 6\n"
        "v = a.astype(a.dtype)\nv[2] = 7\nreturn a, y, w, v",
        "np.array([1j, 2 + 1j, -1])",
    ),
    "a complex array without axes that is converted": (
        "return np.complex128(a), np.complex64(a)",
        "np.array(1 + 2j)",
    ),
    "complex numbers that are cast by a rule": (
        "return a.astype(np.complex64, casting='same_kind'), b.astype(complex, casting='safe')",
        "np.array([1j, 2]), np.array([1.5, 2])",
    ),
    "arguments of np.copyto by their places": (
        "np.copyto(a, b, 'same_kind', c)\nreturn a",
        "np.array([1j, 2, 3]), np.array([1.5, 2, -1]), np.array([True, False, True])",
    ),
    "arguments of np.fill_diagonal by their places": (
        "np.fill_diagonal(a, b, False)\nreturn a",
        "np.eye(2) * 1j, 1 + 2j",
    ),
    "where sums and products of bools begin": (
        "return np.sum(a * 0, dtype=bool, initial=3), np.sum(a * 0, 0, dtype=bool, initial=b),"
        " np.prod(a, 0, dtype=bool, initial=0), np.prod(a, dtype=bool, initial=b)",
        "np.ones((2, 3)), 2",
        "np.ones((2, 3)), 0",
    ),
    "a number of Python's that is real": (
        "return np.isreal(a) is True, np.isreal(b) is False, np.iscomplex(b),"
        " np.iscomplex(b) is True, np.isreal(c)",
        "1.5, 1 + 2j, np.float64(1)",
    ),
    "closeness of complex numbers by a negative tolerance": (
        "return np.isclose(a, a, rtol=-1), np.isclose(a, b), np.isclose(b, a), np.isclose(b, b)",
        "np.array([1j, 2 + 1j]), np.array([1j, complex(np.inf, 1)])",
    ),
    "a geometric sequence from NaN": (
        "return np.geomspace(a, 2, 3), np.geomspace(2, a, 3), np.geomspace(a, 2, 3, False)",
        "np.nan",
        "5.0",
    ),
    "covariances of no variables": (
        "return np.cov(a), np.cov(a, b), np.corrcoef(a, b)",
        "np.zeros((0, 3)), np.array([1.0, 2, 4])",
    ),
    "bins that end with NaN": (
        "return np.digitize(a, [0, 1, np.nan]), np.digitize(a, b)",
        "np.array([0.5, 2, np.nan]), np.array([0, 1, np.nan, np.nan])",
    ),
}

#: Refused, when it is compiled or where its numbers ask for it.
REFUSALS: dict[str, tuple[str, ...]] = {
    "a copy that its path decides": ("return np.asarray(a, copy=a[0] > 0)", "np.ones(2)"),
    "an array by columns": ("return np.asarray(a, order='F')", "np.eye(2)"),
    "complex numbers that are no longer exact": (
        "return a.astype(np.complex64, casting='safe')",
        "np.array([1j])",
    ),
    "real numbers that are left as they are": (
        "return a.astype(complex, 'K', 'no')",
        "np.ones(2)",
    ),
    "a parameter that `astype` has not": ("return a.astype(complex, rule=1)", "np.ones(2)"),
    "a place that is larger than a sum": ("return np.sum(a, out=a)", "np.ones(2) * 1j"),
    "a place that is larger than a mean": (
        "return np.mean(a, axis=0, out=a)",
        "np.ones((2, 3)) * 1j",
    ),
    "a place that is larger than a product": (
        "return np.dot(a, a, out=b)",
        "np.ones(3) * 1j, np.ones((2, 3)) * 1j",
    ),
    "freedom that its path decides": ("return np.std(a, ddof=b[0])", "np.ones(3) * 1j, np.ones(1)"),
    "axes that its path decides: a maximum": (
        "return np.max(a, keepdims=b[0])",
        "np.ones(3) * 1j, np.array([True])",
    ),
    "axes that its path decides: a place": (
        "return np.argmin(a, keepdims=b[0])",
        "np.ones(3) * 1j, np.array([True])",
    ),
    "axes that its path decides: a product": (
        "return np.prod(a, keepdims=b[0])",
        "np.ones(3) * 1j, np.array([True])",
    ),
    "equality that its path decides": (
        "return np.array_equal(a, a, equal_nan=b[0])",
        "np.ones(3) * 1j, np.array([True])",
    ),
    "the inverse of a complex number": ("return np.linalg.inv(a)", "np.array(1j)"),
    "a complex number that keeps axes": ("return np.linalg.norm(a, keepdims=b)", "np.ones(3), 1j"),
    "a norm of a complex order": (
        "return np.linalg.norm(a, ord=b[0])",
        "np.ones(3), np.array([1j])",
    ),
    "an order of another size": (
        "return np.searchsorted(a, 2, sorter=b)",
        "np.arange(3.0), np.array([1, 0])",
    ),
    "axes that are kept by their place": ("return a.all(0, None, None, 1)", "np.ones(3)"),
    "a sort of complex numbers without a name": (
        "return np.sort(a, kind=b)",
        "np.ones(2) * 1j, np.ones(2)",
    ),
    "NaN among edges": ("return np.histogram(a, [0, np.nan, 2])", "np.arange(3.0)"),
    "NaN among edges of the program": (
        "return np.histogram(a, b)",
        "np.arange(3.0), np.array([0, np.nan, 2])",
    ),
    "NaN among bins": ("return np.digitize(a, [0, np.nan, 2])", "np.arange(3.0)"),
    "NaN among bins of the program": (
        "return np.digitize(a, b)",
        "np.arange(3.0), np.array([0, np.nan, 2])",
    ),
}


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", EQUALS)
def test_it_is_numpys(name: str, backend: str) -> None:
    is_as_in_python(EQUALS[name], backend)


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name: str) -> None:
    is_refused(REFUSALS[name])
