"""Arrays to tensors and back, and the element types on the way.

torch's uint32 has hardly any operations, so u32 is kept as the same bits in int32. Sums, products
and bits come out right that way; what depends on the sign (an order, a quotient, a shift to the
right) is done on `unsigned` numbers in int64. The other types are torch's own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from ...ir import Array, DType, TensorType

Tensor: TypeAlias = Any

_LOW_32 = 0xFFFFFFFF

TORCH: dict[DType, Any] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.U32: torch.int32,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}


def unsigned(x: Tensor) -> Tensor:
    """The numbers of a u32 tensor, in int64."""
    return x.to(torch.int64) & _LOW_32


def bits32(x: Tensor) -> Tensor:
    """An int64 tensor's low bits, as a u32 tensor."""
    return x.to(torch.int32)


def to_tensor(array: Array, device: str) -> Tensor:
    """An array's elements on a device, in memory of their own."""
    kind = DType.of(array.dtype)
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if kind is DType.U32:
        plain = plain.view(np.int32)
    elif kind is DType.BF16:
        plain = plain.view(np.int16)
    # The copy is also what makes it writable.
    found = torch.from_numpy(
        plain.copy() if device == "cpu" or not plain.flags.writeable else plain
    )
    return (found.view(torch.bfloat16) if kind is DType.BF16 else found).to(device)


def to_array(tensor: Tensor, type_: TensorType) -> Array:
    """A tensor's elements as an array of the type that it stands for."""
    here = tensor.detach().to("cpu").contiguous()
    if type_.dtype is DType.BF16:
        found: Array = here.view(torch.int16).numpy().view(type_.dtype.numpy)
    else:
        found = here.numpy()
    if type_.dtype is DType.U32:
        found = found.view(np.uint32)
    return found.reshape(type_.shape)


def convert(x: Tensor, *, source: DType, target: DType) -> Tensor:
    """The numbers in another element type; integers that do not fit wrap."""
    if source is target:
        return x
    if source is DType.U32:
        x = unsigned(x)
    if source.is_float and target in (DType.U32, DType.U8):
        x = x.to(torch.int64)
    return x.to(TORCH[target])


def bitcast(x: Tensor, *, target: DType) -> Tensor:
    """The bits as another element type of the same width."""
    return x.view(TORCH[target])
