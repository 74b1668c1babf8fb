"""How far a native f32 result may be from the exact one, by primitive: the profile "fast".

Elementwise functions are held to units in the last place of the exact result rounded to f32.
Operations that add many numbers round once for each, in an order of their own: they are held to
units of f32 relative to the sum of the terms' magnitudes, which is what the result's error scales
with (Higham 2002, "Accuracy and stability of numerical algorithms", section 4.2). That is for terms
whose errors go either way, so that a product's of n terms grow with the root of n; where all terms
are equal they grow with n, and 4,225 of them were 125 units off. Convolutions that go by tiles
(`winograd`) are held to as many units of the largest such sum in the result: where one pixel is
much larger than its neighbours, so are their errors, and where it is infinite or no number, so are
they, up to five pixels away.

Primitives that are not named are exact, or rounded once. f64 is within 2 units of libm's. Integers,
bits and random numbers are equal everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Units in the last place of the result.
ULPS: Mapping[str, float] = {
    "exp": 2,
    "expm1": 4,
    "log": 2,
    "log1p": 4,
    "tanh": 4,
    "sigmoid": 4,
    "erf": 4,
    "sin": 2,
    "cos": 2,
    "rsqrt": 2,
    "pow": 2,
    "atan2": 2,
}

#: Units of f32 (2^-23) relative to the sum of the magnitudes of what is added or multiplied.
ACCUMULATED: Mapping[str, float] = {
    "dot": 32,
    "conv": 32,
    "conv_input_grad": 32,
    "conv_weight_grad": 32,
    "grouped_conv": 32,
    "grouped_conv_input_grad": 32,
    "grouped_conv_weight_grad": 32,
    # Errors of scores, relative to 1, are relative errors of their exponentials.
    "attention": 64,
    "attention_grad": 128,
    "reduce_sum": 16,
    "reduce_prod": 16,
    "cumsum": 16,
    "put_add": 16,
    "put_along_add": 16,
}
