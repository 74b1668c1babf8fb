"""Operators of versions 1 to 6, where they mean something else than later ones.

There a smaller operand was broadcast from an axis on demand, and training was the default.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row
from .elementwise_rows import divide, equal, power, prelu
from .normalisation_rows import batch_norm_last

_OLD_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": np.add,
    "And": np.logical_and,
    "Div": divide,
    "Equal": equal,
    "Greater": np.greater,
    "Less": np.less,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "Pow": power,
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}


def _from_axis(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator of two tensors that broadcasts the second from an axis on."""

    def old(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
        if not broadcast and a.shape != b.shape:
            raise OnnxError(
                f"shapes {list(a.shape)} and {list(b.shape)} differ, and broadcast is not set",
                "convert the model to a newer version with onnx.version_converter",
            )
        if axis is not None:
            front = axis + a.ndim if axis < 0 else axis
            b = b.reshape(b.shape + (1,) * (a.ndim - front - b.ndim))
        return function(a, b)

    return old


def old_prelu(x: Tensor, slope: Tensor) -> Tensor:
    """PRelu before version 7: a vector is a slope a channel."""
    if slope.ndim == 1 and slope.shape[0] > 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return prelu(x, slope)


def old_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """Gemm before version 7."""
    return ((a.T if transA else a) @ (b.T if transB else b)) * alpha + c * beta


def old_dropout(
    x: Tensor,
    *,
    ratio: float = 0.5,
    is_test: int = 0,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """Dropout before version 7, where training is the default."""
    if not is_test and ratio != 0:
        raise OnnxError("Dropout in training mode draws random numbers of ONNX's own", _EVALUATE)
    if len(outputs) > 1:
        return x, np.ones_like(x)
    return (x,)


def dropout_of_ratio(
    x: Tensor, *, ratio: float = 0.5, outputs: tuple[bool, ...] = (True,)
) -> tuple[Tensor, ...]:
    """Dropout of versions 7 to 11, outside of training."""
    if len(outputs) > 1:
        return x, np.ones(x.shape, np.bool_)
    return (x,)


def old_batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    is_test: int | None = None,
    momentum: float = 0.9,
    spatial: int = 1,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """BatchNormalization before version 14, where one output means evaluation."""
    if len(outputs) > 1 or is_test == 0:
        raise OnnxError("batch normalisation of an old version in training mode", _EVALUATE)
    if not spatial:
        raise OnnxError("batch normalisation of each element (spatial=0)", _EVALUATE)
    shape = (-1,) + (1,) * (x.ndim - 2)
    centred = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + epsilon)
    return (centred * scale.reshape(shape) + bias.reshape(shape),)


def old_reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Reshape of versions 1 to 4: the shape is an attribute."""
    return np.reshape(x, tuple([x.shape[k] if n == 0 else n for k, n in enumerate(shape)]))


_EVALUATE = "export the model in evaluation mode, with a newer version"

#: Rows for versions before those of the other tables, and from where those hold.
LEGACY_ROWS: dict[str, tuple[tuple[Row, ...], int]] = {
    **{name: ((Row(_from_axis(f)),), 7) for name, f in _OLD_BINARY.items()},
    "BatchNormalization": (
        (
            Row(old_batch_norm, fixed=(3, 4), several=True, counted=True),
            Row(
                old_batch_norm,
                fixed=(3, 4),
                several=True,
                counted=True,
                since=7,
                last=batch_norm_last,
            ),
        ),
        14,
    ),
    "Dropout": (
        (
            Row(old_dropout, several=True, counted=True),
            Row(dropout_of_ratio, several=True, counted=True, since=7),
        ),
        12,
    ),
    "Gemm": ((Row(old_gemm),), 7),
    "PRelu": ((Row(old_prelu),), 7),
    "Reshape": ((Row(old_reshape),), 5),
}
