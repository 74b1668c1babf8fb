"""A part of a part of a tensor is read where it lies."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np


def test_rows_of_matrices_of_a_tensor() -> None:
    def total(x: Any) -> Any:
        found = 0.0
        for i in range(6):
            matrix = x[i]
            for j in range(5):
                row = matrix[j]
                for k in range(7):
                    found = np.sin(found + row[k] * (i + 1) * (j + 2))
        return found

    x = np.random.default_rng(0).normal(size=(6, 5, 7))
    np.testing.assert_allclose(dl.compile(total)(x), total(x), rtol=1e-12)
