"""`sorted`, `list.sort`, `max` and `min` by a key, `in` and `round`, where the numbers decide."""

from __future__ import annotations

import delian as dl
import numpy as np
import pytest
from support.small_programs import is_as_in_python, is_refused

EQUALS: dict[str, tuple[str, ...]] = {
    "floats": ("return sorted([a, b, 1.5])", "2.0, 1.0", "0.0, -0.0", "float('inf'), 1.5"),
    "equal ones stay in their order": (
        "return sorted([(a, 1), (b, 2), (1, 3)], key=lambda p: p[0], reverse=True)",
        "2, 1",
        "1, 1",
    ),
    "an array's elements": ("return sorted(a), sorted(a, reverse=True)", "np.array([3, 1, 2])"),
    "places by an array": (
        "return sorted(range(3), key=lambda k: a[k])",
        "np.array([3.0, 1.0, 2.0])",
        "np.array([3.0, 1.0, 1.0])",
    ),
    "a list in place": ("x = [a, b, 2]\nx.sort(key=lambda v: -v)\nx.append(a)\nreturn x", "3, 1"),
    "the nearest": (
        "near = sorted([(abs(x - a), k) for k, x in enumerate(b)], key=lambda p: p[0])\n"
        "return near[:2]",
        "1.5, np.array([1.0, 2.0, 4.0])",
    ),
    "an extreme by a key": (
        "return max([a, b, 3.0], key=abs), min([(a, 1), (b, 2)], key=lambda p: p[0])",
        "-5.0, 4.0",
        "3.0, -3.0",
        "float('nan'), 1.0",
        "1.0, float('nan')",
    ),
    "a place by a key": (
        "return min(range(3), key=lambda k: a[k]), max(range(3), key=lambda k: a[k])",
        "np.array([3.0, 1.0, 2.0])",
        "np.array([3.0, 3.0, 1.0])",
        "np.array([np.nan, 3.0, 1.0])",
    ),
    "a number among an array's": (
        "return a in b, a not in b, 1 if a in b else 2, 300 in b.astype(np.uint8)",
        "3, np.array([1, 2, 3])",
        "5, np.array([1, 2, 3])",
    ),
    "round to digits": (
        "return round(a, 2), round(a, 0), round(a, 15), type(round(a, 1)) is float",
        *("2.675", "1.005", "0.125", "0.375", "-2.675", "1e300", "-0.0", "-0.004", "2 / 3"),
        *("float('nan')", "float('inf')", "5e-324", "4503599627370497.5", "0.49999999999999994"),
    ),
    "an int to tens": (
        "return round(a, -1), round(a, -2), round(a, 3)",
        *("15", "25", "-15", "-25", "150", "250", "-7", "2**62"),
    ),
}
REFUSALS: dict[str, tuple[str, ...]] = {
    "NaN has no order": ("return sorted(a)", "np.array([1.0, np.nan])"),
    "numbers of two classes": ("return sorted([a[0], b[0]])", "np.arange(2), np.ones(2)"),
    "rows of an array": ("return sorted(a, key=lambda row: row[0])", "np.eye(2)"),
    "a float to tens": ("return round(a, -1)", "15.0"),
}


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", EQUALS)
def test_it_is_pythons(name: str, backend: str) -> None:
    is_as_in_python(EQUALS[name], backend)


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name: str) -> None:
    is_refused(REFUSALS[name])


def test_floats_round_to_digits_as_pythons_do() -> None:
    values = np.random.default_rng(0).uniform(-100, 100, 2000).round(3)
    values[::2] += 0.0005  # Near the middle of two, on either side.
    for digits in (0, 1, 3, 7):
        rounded = dl.compile(lambda x, digits=digits: [round(v, digits) for v in x.tolist()])
        made = rounded(values[:500])
        assert made == [round(v, digits) for v in values[:500].tolist()]


def test_the_slope_of_a_sorted_list_goes_to_its_place() -> None:
    def loss(x):
        least, middle, _ = sorted([x[0], x[1], x[2]])
        return 2 * least + 3 * middle

    slope = dl.compile(dl.grad(loss))(np.array([5.0, 1.0, 2.0]))
    assert slope.tolist() == [0.0, 2.0, 3.0]
