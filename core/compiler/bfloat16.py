"""`dl.bfloat16`: NumPy's type for bf16, from the package ml_dtypes (the extra `delian[bf16]`).

It stands in a module of its own so that only its users need that package.
"""

from __future__ import annotations

from .ir import DType

#: The upper half of an f32: eight bits of exponent, seven of fraction.
bfloat16 = DType.BF16.numpy.type
