"""Images of other frameworks, [N, C, space...], and Delian's, [N, space..., C]."""

from __future__ import annotations

import numpy as np

from ...compiler.ir import Tensor


def channels_last(x: Tensor) -> Tensor:
    """[N, C, space...] -> [N, space..., C]."""
    return np.moveaxis(x, 1, -1)


def channels_first(x: Tensor) -> Tensor:
    """[N, space..., C] -> [N, C, space...]."""
    return np.moveaxis(x, -1, 1)
