"""The examples of docs/language.md do what they do in Python, and have gradients."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import delian as dl
import numpy as np
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "language.md"
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "escapes": (np.array([0.5, -1.0, 2.1, 0.3]), np.float64(2.0)),
    "third_derivative": (np.float64(1.1),),
    "machine": (np.float64(0.3), np.int64(11)),
    "root": (np.float64(2.0), np.float64(1.0)),
    "scaled": (np.array([0.5, 2.0]), 0.7),
    "lower_upper": (np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.3, 1.0, 5.0]]),),
    "product": (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0], [1.5, 2.0]])),
    "escape_time": (np.complex128(0.3 + 0.5j),),
    "low_pass": (np.array([1.0, 2.0, -0.5, 0.25, 3.0, -1.0, 0.0, 2.0]), 0.5),
    "whitened": (np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.2], [-2.0, 1.0], [0.1, 0.7]]),),
    "robust_mean": (np.array([1.0, 1.2, 0.9, 40.0, 1.05]), 0.5),
    "mean_of_positive": (np.array([0.5, -1.0, 2.1, 0.3]),),
    "moving_mean": (np.array([0.5, -1.0, 2.1, 0.3]), 2.0),
    "mean_of_near": (np.array([0.5, -1.0, 2.1, 0.3]), np.float64(1.5)),
    "crossings": (np.array([0.5, -1.0, -2.0, 0.3, 1.0, -0.2]),),
    "counted": (np.float64(1.5), np.int64(4)),
    "filtered": (np.array([1.0, -2.0, 0.5, 3.0]),),
    "careful_root": (np.float64(2.0), np.float64(1e-13)),
    "mean_root": (np.array([4.0, -1.0, 2.25, -3.0]), 2.0),
    "relative_change": (np.array([1.0, 2.0, 4.0]), np.array([1.5, 1.0, 4.5])),
    "clipped": (np.array([3.0, 4.0]), 2.0),
    "walk": (7, 50),
    "interpreter": (np.float64(0.2), np.float64(1.7)),
    "momentum": (np.array([1.0, 2.0]), np.array([0.5, -1.0]), {"rate": 0.2}),
    "simulated": (2.0, 0.3),
}
#: These change an argument, which a derivative of a call of them cannot.
CHANGING = ("momentum",)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    blocks = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text(encoding="utf-8"))
    path = tmp_path_factory.mktemp("page") / "language_page_examples.py"
    modules = ("import dataclasses", "import delian as dl", "import numpy as np")
    path.write_text("\n\n".join([*modules, *blocks]))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.step(np.zeros(3)), [-0.5, -0.1, -0.1])
    assert {k for k, v in vars(module).items() if callable(v)} == {*ARGUMENTS, "step", "Filter"}
    return module


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_does_what_it_does_in_python(name: str, examples: ModuleType) -> None:
    f, args = getattr(examples, name), ARGUMENTS[name]
    compiled = dl.compile(f, backend="reference")
    theirs, mine = copy.deepcopy(args), copy.deepcopy(args)  # A call may change them.
    want = f(*theirs)
    np.testing.assert_allclose(compiled(*mine), want, rtol=1e-9)
    if np.asarray(want).dtype.kind != "f" or name in CHANGING:
        return  # a count has no slope
    slope = dl.compile(dl.grad(lambda *a: np.sum(f(*a))), backend="reference")(*args)
    step = 1e-6 * np.ones_like(args[0])

    def total(first: Any) -> Any:
        return np.sum(f(first, *copy.deepcopy(args[1:])))

    ahead, behind = total(args[0] + step), total(args[0] - step)
    assert float(np.sum(slope)) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-6)


def test_the_errors_are_those_of_python(examples: ModuleType) -> None:
    compiled = dl.compile(examples.careful_root, backend="reference")
    for args in ((-2.0, 1e-9), (2.0, -1.0)):
        with pytest.raises((ValueError, AssertionError)) as want:
            examples.careful_root(*args)
        with pytest.raises(want.type) as got:
            compiled(*args)
        assert str(got.value) == str(want.value)
